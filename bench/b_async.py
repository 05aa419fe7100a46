#!/usr/bin/env python3
"""What a save behind training costs: the steps that it overlaps beside the others of the same run, and how long training stands still beside a copy of the state.

usage: b_async.py [FOLDER [STEPS [option ...]]]    FOLDER: where the run writes (its disk counts); PRETRAIN as a variable

One rank of one thread on the cpu device, so that the writer needs a core of its own: run it on 2 cores that do nothing else. First the last checkpoint must be that of a run
that saves at once, to the bit. Aim: overlapped steps at most 1.1 of the others, standing still no longer than the copy."""
import ctypes
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

folder = sys.argv[1] if len(sys.argv) > 1 else None
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 60
program = os.environ.get("PRETRAIN", "src/pretrain")
EVERY = 6
RUN = """
model: {dim: 768, layers: 10, heads: 12, kv_heads: 12, ffn: 2048, vocab: 512}
data: {train: %s/tokens.u16, format: u16, valid_fraction: 0}
run: {dir: %s, device: cpu, threads: 1, log_every: 1, keep: 1, save_every: %d, save_async: %s}
eval: {batches: 0}
train: {steps: %d, seq_len: 64, micro_batch: 4, global_batch: 4, dtype: fp32}
schedule: {type: constant, warmup: 0}
"""


def run(work, name, behind):
    yaml = f"{work}/{name}.yaml"
    with open(yaml, "w") as f:
        f.write(RUN % (work, f"{work}/{name}", EVERY, str(behind).lower(), steps))
    done = subprocess.run([program, yaml, *sys.argv[3:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(done.stdout)
    with open(f"{work}/{name}/metrics.jsonl") as f:
        seconds = {r["step"]: r["seconds"] for r in map(json.loads, f) if "step" in r and "seconds" in r}
    return done.stdout, seconds


def overlapped(log):
    """Steps during which a writer worked: it begins after the step that follows the save, and its end is told after the last one. Also the seconds of standing still."""
    step, steps, still = 0, set(), []
    for line in log.splitlines():
        if m := re.search(r"step +(\d+)/", line):
            step = int(m[1])
        if m := re.search(r"checkpoint of step (\d+) in .* stood still for ([\d.]+)", line):
            steps |= set(range(int(m[1]) + 2, step + 1))
            still.append(float(m[2]))
    return steps, still


def copy_seconds(n):
    a, b = bytearray(n), bytearray(n)
    to, by = (ctypes.addressof((ctypes.c_char * n).from_buffer(x)) for x in (a, b))
    best = 9e9
    for _ in range(5):
        t = time.perf_counter()
        ctypes.memmove(to, by, n)
        best = min(best, time.perf_counter() - t)
    return best


work = tempfile.mkdtemp(prefix="b_async.", dir=folder)
try:
    with open(f"{work}/tokens.u16", "wb") as f:
        random.seed(1)
        f.write(b"".join(random.randrange(512).to_bytes(2, "little") for _ in range(20000)))
    run(work, "once", False)
    log, seconds = run(work, "behind", True)
    last = [f"{work}/{d}/checkpoints/step_{steps:08d}.h5" for d in ("once", "behind")]
    same = subprocess.run([program, "verify", *last], stdout=subprocess.PIPE, text=True)
    if "the same to the bit" not in same.stdout:
        sys.exit("not ok: a save behind training holds another state\n" + same.stdout)
    under, still = overlapped(log)
    size = os.path.getsize(last[0])
    plain = [s for k, s in seconds.items() if k > 1 and k not in under]
    if not under or not plain:
        sys.exit("not ok: no step was overlapped\n" + log)
    with_save, without = statistics.median(seconds[k] for k in under), statistics.median(plain)
    copy = copy_seconds(size)
    print(f"{len(under)} steps under {len(still)} saves of {size / 1e9:.2f} GB: {with_save:.3f} s, {len(plain)} others {without:.3f} s; stood still "
          f"{statistics.median(still):.3f} s (at most {max(still):.3f}), a copy of the state takes {copy:.3f}")
    print(json.dumps({"bench": "async", "gb": round(size / 1e9, 3), "step_ratio": round(with_save / without, 3), "still_over_copy": round(statistics.median(still) / copy, 2)}))
finally:
    shutil.rmtree(work)
