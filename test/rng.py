"""The program's random numbers in NumPy: src/rng.h describes them; test/t_rng.c holds the two together, bit by bit.

`rng.py table` prints the values that t_rng compares."""
import sys
import numpy as np

U32, U64 = np.uint32, np.uint64
MASK = U64(0xffffffff)


def philox(x, key):
    """Philox4x32-10: x is four arrays of 32-bit words (kept in uint64), key a 64-bit integer."""
    x0, x1, x2, x3 = (np.asarray(v, U64) for v in x)
    k0, k1 = key & 0xffffffff, key >> 32
    for _ in range(10):
        a, b = x0 * U64(0xd2511f53), x2 * U64(0xcd9e8d57)
        x0, x1, x2, x3 = (b >> U64(32)) ^ x1 ^ U64(k0), b & MASK, (a >> U64(32)) ^ x3 ^ U64(k1), a & MASK
        k0, k1 = (k0 + 0x9e3779b9) & 0xffffffff, (k1 + 0xbb67ae85) & 0xffffffff
    return x0, x1, x2, x3


def key(name):
    h = 0xcbf29ce484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001b3 % 2**64
    return h


def poly(q, *coefficients):
    """Horner, highest power first."""
    p = np.full_like(q, coefficients[0])
    for c in coefficients[1:]:
        p = c + q * p
    return p


def log(x):
    """ln ((2 x + 1) / 2^33)"""
    bits = (U64(2) * x + U64(1)).astype(np.float64).view(U64)
    e = (bits - U64(0x3fe6a09e667f3bcd)) >> U64(52)
    m = (bits - (e << U64(52))).view(np.float64)
    s = (m - 1) / (m + 1)
    p = poly(s * s, 1 / 13, 1 / 11, 1 / 9, 1 / 7, 1 / 5, 1 / 3, 1.0)
    return 0.69314718055994530942 * (e.astype(np.int64) - 33).astype(np.float64) + 2 * s * p


def sincos(x):
    """Sine and cosine of 2 pi (x + 1/2) / 2^32"""
    turn = ((x + U64(0x20000000)) & MASK) >> U64(30)
    rest = ((x - (turn << U64(30))) & MASK).astype(U32).view(np.int32)
    a = (rest.astype(np.float64) + 0.5) * 1.46291807926715968e-9
    q = a * a
    s = a * poly(q, -1 / 39916800, 1 / 362880, -1 / 5040, 1 / 120, -1 / 6, 1.0)
    c = poly(q, 1 / 479001600, -1 / 3628800, 1 / 40320, -1 / 720, 1 / 24, -0.5, 1.0)
    odd = (turn & U64(1)) != 0
    s, c = np.where(odd, c, s), np.where(odd, s, c)
    return np.where(turn & U64(2), -s, s), np.where((turn + U64(1)) & U64(2), -c, c)


def normals(seed, k, start, count):
    """fp32 normals of the indices start .. start + count - 1 of the tensor with key k."""
    first = start // 4
    block = U64(first) + np.arange((start + count - 1) // 4 - first + 1, dtype=U64)
    one = np.ones_like(block)
    x = philox((block & MASK, block >> U64(32), one * U64(k & 0xffffffff), one * U64(k >> 32)), seed)
    z = np.empty((len(block), 4), np.float32)
    for i in (0, 2):
        r = np.sqrt(-2 * log(x[i]))
        s, c = sincos(x[i + 1])
        z[:, i], z[:, i + 1] = r * c, r * s
    return z.reshape(-1)[start - 4 * first:][:count]


def weights(seed, name, shape, std):
    """Initial fp32 weights of a whole tensor."""
    return (np.float32(std) * normals(seed, key(name), 0, int(np.prod(shape)))).reshape(shape)


def permute(seed, epoch, i, n):
    bits = (n - 1).bit_length()
    low = (bits + 1) // 2
    while True:
        half = [i & ((1 << low) - 1), i >> low]
        for r in range(8):
            mask = (1 << (bits - low if r & 1 else low)) - 1
            x = philox((half[1 - (r & 1)], r, epoch & 0xffffffff, epoch >> 32), seed ^ 0x6f72646572)
            half[r & 1] ^= int(x[0]) & mask
        i = half[1] << low | half[0]
        if i < n:
            return i


def table():
    """One case a line: normals as hexadecimal bits, then permutations."""
    for seed in (0, 1, 2**32 + 7, 2**64 - 1):
        for name in ("model.embed_tokens.weight", "model.layers.31.mlp.down_proj.weight", "é"):
            for start in (0, 3, 2**31 - 6, 2**34 + 1, 2**63 + 5):
                bits = normals(seed, key(name), start, 64).view(U32)
                print("normal", seed, name, start, *("%08x" % b for b in bits))
            print("weight", seed, name, 0.02, *("%08x" % b for b in weights(seed, name, (8, 8), 0.02).view(U32).ravel()))
        for n in (1, 2, 3, 5, 64, 65, 1000003, 2**32, 2**32 + 1, 2**63 - 25, 2**64 - 1):
            for epoch in (0, 1, 2**40):
                for i in sorted({0, n // 3, n - 1}):
                    print("permute", seed, epoch, i, n, permute(seed, epoch, i, n))


if __name__ == "__main__" and sys.argv[1:] == ["table"]:
    table()
