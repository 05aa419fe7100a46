"""The operations of a Llama-like model in fp64, written from their formulas.

Each returns its result and a function from the gradient of the result to a tuple of the gradients of the inputs.
Shapes: x [.., features]; q, k, v [batch, seq, heads, head_dim]; weights [out, in]."""
import numpy as np


def bf16(x):
    """x rounded to the nearest bfloat16 (ties to even), still as fp64."""
    bits = np.ascontiguousarray(x, np.float64).view(np.uint64)
    keep = np.uint64(45)   # 52 - 7 bits of the fraction go
    bits = bits + np.uint64((1 << 44) - 1) + (bits >> keep & np.uint64(1))
    return np.where(np.isfinite(x), (bits >> keep << keep).view(np.float64), x)


def linear(x, w, b=None):
    """y = x w' + b"""
    y = x @ w.T if b is None else x @ w.T + b

    def back(dy):
        rows = dy.reshape(-1, dy.shape[-1])
        return dy @ w, rows.T @ x.reshape(-1, x.shape[-1]), rows.sum(0)
    return y, back


def rmsnorm(x, w, eps):
    """y = x w / sqrt (mean x^2 + eps)"""
    rstd = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)

    def back(dy):
        g = dy * w
        dx = rstd * g - x * rstd ** 3 * (g * x).mean(-1, keepdims=True)
        return dx, (dy * x * rstd).reshape(-1, len(w)).sum(0)
    return x * rstd * w, back


def rope_frequencies(head_dim, theta, scaling=None):
    """Radians a position for each pair. scaling: Llama 3's (factor, low, high, original): waves longer than original / low are
    slowed down by the factor, those shorter than original / high kept, those between interpolated by original / wavelength."""
    freq = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    if not scaling or not scaling[0]:
        return freq
    factor, low, high, original = scaling
    turns = original * freq / (2 * np.pi)
    keep = np.clip((turns - low) / (high - low), 0, 1)
    return freq * (keep + (1 - keep) / factor)


def rope(x, position, freq):
    """Rotate the pairs (i, i + head_dim / 2) of each head by position * freq; position [batch, seq]."""
    angle = position[:, :, None, None] * freq
    c, s = np.cos(angle), np.sin(angle)

    def turn(x, s):
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)
    return turn(x, s), lambda dy: (turn(dy, -s),)


def visible(doc, window):
    """[batch, query, key]: query i sees key j if doc[i] <= j <= i and, with a window, i - j < window (`window` keys)."""
    i = np.arange(doc.shape[1])
    sees = (i[None, :] <= i[:, None]) & (i[None, None, :] >= doc[:, :, None])
    return sees & (i[:, None] - i[None, :] < window) if window else sees


def attention(q, k, v, sees):
    """o = softmax (q k' / sqrt (head_dim)) v over the keys that are seen; query head h uses KV head h * kv_heads / heads."""
    batch, seq, heads, dim = q.shape
    kv, scale = k.shape[2], dim ** -0.5

    def split(x):   # [batch, seq, heads, dim] -> [batch, kv heads, heads of the group, seq, dim]
        return x.reshape(batch, seq, kv, -1, dim).transpose(0, 2, 3, 1, 4)

    def join(x):
        return x.transpose(0, 3, 1, 2, 4).reshape(batch, seq, -1, dim)

    def t(x):
        return x.swapaxes(-1, -2)
    q, k, v = split(q), split(k), split(v)
    scores = np.where(sees[:, None, None], q @ t(k) * scale, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)

    def back(do):
        do = split(do)
        dp = do @ t(v)
        ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * scale
        return join(ds @ k), join((t(ds) @ q).sum(2, keepdims=True)), join((t(p) @ do).sum(2, keepdims=True))
    return join(p @ v), back


def swiglu(gate, up):
    """gate sigmoid (gate) up"""
    s = 1 / (1 + np.exp(-gate))

    def back(dy):
        return dy * up * s * (1 + gate * (1 - s)), dy * gate * s
    return gate * s * up, back


def embed(ids, table):
    def back(dy):
        d = np.zeros_like(table)
        np.add.at(d, ids.ravel(), dy.reshape(-1, dy.shape[-1]))
        return (d,)
    return table[ids], back


def cross_entropy(logits, target):
    """Sum of the losses of the tokens with target >= 0, and the gradient of that sum."""
    z = logits.reshape(-1, logits.shape[-1])
    target = target.ravel()
    valid = target >= 0
    z = z - z.max(-1, keepdims=True)
    total = np.exp(z).sum(-1, keepdims=True)
    at = np.arange(len(z)), np.maximum(target, 0)
    loss = ((np.log(total)[:, 0] - z[at]) * valid).sum()

    def back():
        d = np.exp(z) / total
        d[at] -= 1
        return ((d * valid[:, None]).reshape(logits.shape),)
    return loss, back


def adamw(p, g, m, v, t, lr, beta1, beta2, eps, decay):
    """Update number t (from 1) of p, m and v in place (Loshchilov and Hutter, 2019)."""
    m += (1 - beta1) * (g - m)
    v += (1 - beta2) * (g * g - v)
    p -= lr * (m / (1 - beta1 ** t) / (np.sqrt(v / (1 - beta2 ** t)) + eps) + decay * p)


def learning_rate(step, kind, peak, warmup, steps, min_lr=0.0, decay=0):
    """Of step 1, 2, ...: up in a line to the peak at step `warmup`, then as `kind` says down to min_lr at step `steps`, then
    min_lr. wsd: the peak until steps - decay, then down in a line."""
    if step <= warmup:
        return peak * step / warmup
    if kind == "constant":
        return peak
    start = max(warmup, steps - decay) if kind == "wsd" else warmup
    if step <= start:
        return peak
    part = min(1.0, (step - start) / (steps - start)) if steps > start else 1.0
    fall = 0.5 * (1 + np.cos(np.pi * part)) if kind == "cosine" else 1 - part
    return min_lr + (peak - min_lr) * fall


def clip_scale(norm, clip):
    """Factor for the gradients; clip 0 is off."""
    return clip / norm if clip and norm > clip else 1.0


def ideal(op, *args):
    """What bf16 must cost at least: OP's results and gradients in fp64, exact and with inputs and outputs rounded to bf16; a list
    of (exact, rounded, rms error) for the result and then each gradient, for a gradient of the result of ones and minus ones."""
    def rounded(x):
        return bf16(x) if isinstance(x, np.ndarray) and x.dtype == np.float64 else x
    y, back = op(*args)
    y16, back16 = op(*map(rounded, args))
    dy = np.where(np.arange(y.size) % 3 == 1, -1.0, 1.0).reshape(y.shape)
    pairs = [(y, bf16(y16))] + [(a, bf16(b)) for a, b in zip(back(dy), back16(dy))]
    return [(a, b, rms(a - b)) for a, b in pairs]


def rms(x):
    return np.sqrt(np.mean(np.square(x)))
