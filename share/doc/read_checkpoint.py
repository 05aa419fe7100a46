#!/usr/bin/env python3
"""Read a checkpoint of pretrain with h5py and NumPy; checkpoint.txt describes the file.

usage: read_checkpoint.py CHECKPOINT                                    what it holds
       read_checkpoint.py CHECKPOINT TENSOR [param|exp_avg|exp_avg_sq]  one tensor
       read_checkpoint.py CHECKPOINT --npz OUT.npz                      all weights, one by one
"""
import sys
import zipfile

import h5py
import numpy as np

VERSIONS = (2, 3)


def open_checkpoint(path):
    f = h5py.File(path, "r")
    if text(f.attrs.get("format")) != "tessera checkpoint" or f.attrs["version"] not in VERSIONS:
        raise ValueError(f"{path} is no checkpoint of format version 2 or 3")
    if f.attrs["complete"] != 1:
        raise ValueError(f"{path} is not complete")
    return f


def text(b):
    return b.decode() if isinstance(b, bytes) else b


def tensors(f):
    """{name: shape} in the order of the model."""
    return {text(t["name"]): tuple(int(n) for n in t["shape"][: t["ndim"]]) for t in f["/index/tensors"][()]}


def read_tensor(f, name, kind="param"):
    """The whole tensor as fp32, put together from the pieces that ranks wrote."""
    names = list(tensors(f))
    shape = tensors(f)[name]
    out = np.empty(shape if len(shape) == 2 else (shape[0], 1), np.float32)   # a vector counts as one column
    missing = out.size
    slices = f["/index/slices"][()]
    for s in slices[slices["tensor"] == names.index(name)]:
        data = f[f"/{kind}/rank{s['rank']:05d}"][int(s["offset"]) : int(s["offset"] + s["count"])]
        local = np.arange(s["start"], s["start"] + s["count"])                # row-major within a rectangle s.cols wide
        out[s["row0"] + local // s["cols"], s["col0"] + local % s["cols"]] = data
        missing -= len(data)
    if missing:
        raise ValueError(f"{missing} elements of {name} are missing")
    return out.reshape(shape)


def show(f):
    for key in ("step", "tokens", "updates", "mesh"):
        print(f"{key:8} {text(f.attrs[key])}")
    print(f"{'ranks':8} {len(f['/index/ranks'])}")
    for name, shape in tensors(f).items():
        print(f"{name:56} {list(shape)}")


def save_npz(f, path):
    with zipfile.ZipFile(path, "w") as z:
        for name in tensors(f):
            with z.open(name + ".npy", "w", force_zip64=True) as out:
                np.lib.format.write_array(out, read_tensor(f, name))


def main(argv):
    if len(argv) < 2 or argv[1] in ("-h", "--help"):
        print(__doc__)
        return 0 if len(argv) > 1 else 2
    with open_checkpoint(argv[1]) as f:
        if len(argv) == 2:
            show(f)
        elif argv[2] == "--npz":
            save_npz(f, argv[3])
        else:
            t = read_tensor(f, argv[2], argv[3] if len(argv) > 3 else "param")
            print(f"{argv[2]} {list(t.shape)} mean {t.mean(dtype=np.float64):.6g} rms {np.sqrt(np.mean(t.astype(np.float64) ** 2)):.6g}\n{t}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
