"""What share/doc/read_checkpoint.py makes of a checkpoint that `t_ckpt --save` wrote, element by element."""
import importlib.util
import sys

import numpy as np

spec = importlib.util.spec_from_file_location("read_checkpoint", sys.argv[1])
reader = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reader)


def elements(name, kind, n):
    h = 0xCBF29CE484222325
    for c in name.encode():
        h = (h ^ c) * 0x100000001B3 % 2**64
    h = np.uint64((h + kind) * 0x9E3779B97F4A7C15 % 2**64)
    h = (h + np.arange(n, dtype=np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
    return (h >> np.uint64(32)).astype(np.uint32) & np.uint32(0xBFFFFFFF)


with reader.open_checkpoint(sys.argv[2]) as f:
    wrong = 0
    for name, shape in reader.tensors(f).items():
        for k, kind in enumerate(("param", "exp_avg", "exp_avg_sq")):
            t = reader.read_tensor(f, name, kind)
            assert t.shape == shape
            wrong += int(np.sum(t.view(np.uint32).ravel() != elements(name, k, t.size)))
    print(len(reader.tensors(f)), "tensors,", wrong, "wrong elements")
    sys.exit(wrong != 0)
