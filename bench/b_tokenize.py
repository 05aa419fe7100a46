#!/usr/bin/env python3
"""Tokenizing: pretrain against the packages tokenizers and sentencepiece, one process and one thread each, on the same documents. Verifies that the ids are equal, then times
both in turns and prints the best of each and their ratio. Times are of the processor, so that other work on the machine matters little; ours is the whole command, with
MPI, loading of the vocabulary and writing of the file.

  HF_PYTHON b_tokenize.py PRETRAIN TOKENIZER [TEXT]      TEXT left out: 10 MB of test/tok.py's mixture

Needs the package, NumPy, and h5dump on the PATH."""
import os
import resource
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
import numpy as np

pretrain, path = sys.argv[1:3]
here = os.path.dirname(os.path.abspath(__file__))
with tempfile.TemporaryDirectory() as folder:
    file = sys.argv[3] if len(sys.argv) > 3 else os.path.join(folder, "text")
    if len(sys.argv) < 4:
        subprocess.run([sys.executable, os.path.join(here, "..", "test", "tok.py"), "text", file, "10000000"], check=True)
    data = open(file, "rb").read()
    docs = [d[:-1] if d.endswith(b"\r") else d for d in data.split(b"\n")]
    docs = [d.decode("utf-8", "replace") for d in docs if d]
    if path.endswith(".model"):
        import sentencepiece
        t = sentencepiece.SentencePieceProcessor(model_file=path)
        what, eod, encode = f"sentencepiece {sentencepiece.__version__}", t.eos_id(), lambda: t.encode(docs, num_threads=1)
    else:
        import tokenizers
        t = tokenizers.Tokenizer.from_file(path)
        known = [t.token_to_id(s) for s in ("<|endoftext|>", "<|end_of_text|>", "</s>")]
        what, eod, encode = f"tokenizers {tokenizers.__version__}", [k for k in known if k is not None][0], lambda: [x.ids for x in t.encode_batch(docs, add_special_tokens=False)]
    out = os.path.join(folder, "out.h5")

    def ours():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([pretrain, "tokenize", "--tokenizer", path, "--documents", "lines", file, out], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def theirs():
        start = time.process_time()
        ids = encode()
        return time.process_time() - start, ids

    best = [ours(), theirs()]
    ids = np.concatenate([np.array(i + [eod], dtype=np.int64) for i in best[1][1]])
    best[1] = best[1][0]
    raw = os.path.join(folder, "raw")
    subprocess.run(["h5dump", "-d", "/tokens", "-b", "LE", "-o", raw, out], check=True, stdout=subprocess.DEVNULL)
    mine = np.fromfile(raw, "<u2" if os.path.getsize(raw) == 2 * len(ids) else "<u4")
    if len(mine) != len(ids) or (mine != ids).any():
        sys.exit(f"{path}: the ids differ")
    for _ in range(2):
        best = [min(best[0], ours()), min(best[1], theirs()[0])]
    mb = len(data) / 1e6
    print(f"{os.path.basename(path)}: {len(ids)} ids equal; pretrain {mb / best[0]:.2f} MB a CPU second, {what} {mb / best[1]:.2f}, ratio {best[1] / best[0]:.1f}")
