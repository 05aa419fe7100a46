#!/bin/sh
# Saves and loads of whole runs when file calls fail, are slow or come short, on one rank and on all; full disks; saves behind training; where runs begin. Prints TAP.
set -u
program=$(cd "${builddir:-.}" && pwd)/src/pretrain
fault=$(cd "${builddir:-.}" && pwd)/test/fault.so
reader=$(cd "${srcdir:-..}" && pwd)/share/doc/read_checkpoint.py
export OMP_NUM_THREADS=1 MPIEXEC_TIMEOUT=60 program fault
tmp=$(mktemp -d) && cd "$tmp" || exit 99
trap 'rm -rf "$tmp"' EXIT
n=0
ok () { n=$((n + 1)); if [ "$1" = "$2" ]; then echo "ok $n - $3"; else echo "not ok $n - $3"; echo "# '$1' is not '$2'"; sed 's/^/# /' said | tail -n 12; fi; }
skip () { n=$((n + 1)); echo "ok $n - $1 # SKIP $2"; }
# run FOLDER FAULT... -- OPTION...: two ranks, the faults in the environment of the program alone
run () {
  dir=$1 faults=; shift
  while [ "$1" != -- ]; do faults="$faults $1"; shift; done
  shift
  "${MPIEXEC:-mpiexec}" -n 2 env LD_PRELOAD="$fault" $faults "$program" run.yaml --run.dir "$dir" "$@" >out 2>said </dev/null; rc=$?
}
code () { sed -n 's/.*"code": \([0-9]*\),.*/\1/p' "$1/exit.json"; }
says () { grep -c -- "$1" said | sed 's/^1$/yes/'; }
lines () { grep -c . said; }
has () { ls "$1/checkpoints" | sed 's/step_0*//; s/\.h5//' | tr '\n' ' '; }
good () { "$program" verify "$@" >verified 2>&1 && echo good; }
same () { "$program" verify "$1" "$2" 2>&1 | grep -c 'same to the bit'; }

seq 1 3000 >text.txt
"$program" tokenize --tokenizer bytes text.txt a.h5 >said 2>&1 || { echo "Bail out! no tokens"; exit 1; }
cat >run.yaml <<'S'
model: {dim: 32, layers: 2, heads: 4, kv_heads: 2, ffn: 64, vocab: 257}
data: {train: a.h5}
run: {device: cpu, threads: 1, save_every: 2, keep: 0, log_every: 100}
eval: {batches: 0}
train: {seq_len: 16, micro_batch: 1, global_batch: 4, dtype: fp32, steps: 8}
schedule: {warmup: 2, steps: 40}
S

# ---- behind training is the same as at once
run once -- --run.save_async false
run slow FAULT=pwrite:0 FAULT_US=100000 --
ok "$rc $(has slow)" "0 2 4 6 8 " "a slow disk: all checkpoints are written"
a=; for i in 2 4 6 8; do a=$a$(same once/checkpoints/step_0000000$i.h5 slow/checkpoints/step_0000000$i.h5); done
ok "$a" 1111 "each holds the state of its step, though training had gone on"
ok "$([ "$(grep -c 'is still being written' out)" -gt 0 ] && echo said)" said "a save that is due while another runs waits, and that is said"
run short FAULT=pwrite:0 FAULT_SHORT=1 --
ok "$rc $(same once/checkpoints/step_00000008.h5 short/checkpoints/step_00000008.h5)" "0 1" "writes that come short"
run short FAULT=pread:0 FAULT_SHORT=1 -- --train.steps 9
ok "$rc $(grep -c 'resumed at step 8' out)" "0 1" "reads that come short"

# ---- a call that fails in the save of step 4, on the last rank, on rank 0, on all
run base -- --train.steps 2
for f in pwrite:28 fsync:5 rename:13 open:13; do
  for who in 1 0 all; do
    for async in true false; do
      [ $async = false ] && [ $f != pwrite:28 ] && continue   # the same code but for the thread
      rm -rf bad; cp -r base bad
      r=; [ $who = all ] || r=FAULT_RANK=$who
      # resuming opens the checkpoint that is there: once by HDF5's way, once plainly, after rank 0 has looked at it twice
      after=0; [ $f = open:13 ] && after=$([ $who = 1 ] && echo 1 || echo 5)
      run bad FAULT=$f FAULT_AFTER=$after $r -- --train.steps 8 --run.save_async $async
      want="4 1 4 2  good"
      case $f$who in rename:131|fsync:51) want="0 0 0 2 4 6 8  good";; esac   # calls that this rank never makes
      ok "$rc $(lines) $(code bad) $(has bad) $(good bad/checkpoints/*2.h5)" "$want" "$f fails on $who, save_async $async: $(cat said)"
    done
  done
done
r=0
for after in 2 5 9 12 15 18 21 24 27 30; do   # HDF5's own writes, those of the elements, the sums, `complete`
  rm -rf bad; cp -r base bad
  run bad FAULT=pwrite:28 FAULT_AFTER=$after FAULT_RANK=0 -- --train.steps 4
  [ "$rc $(lines) $(has bad)" = "4 1 2 " ] || [ "$rc $(has bad)" = "0 2 4 " ] || { r=1; sed "s/^/# $after $rc $(has bad): /" said | head -n 4; }
  [ $rc = 0 ] && break
done
ok "$r $rc" "0 0" "pwrite fails at its first, third ... call in a save, $after do not"
run bad -- --train.steps 8
ok "$rc $(has bad)" "0 2 4 6 8 " "and the next launch goes on from there"
run flock FAULT=flock:37 -- --train.steps 4
ok "$rc $(has flock)" "0 2 4 " "no locks on this file system: no matter"
run flock FAULT=flock:37 FAULT_RANK=0 -- --train.steps 6
ok "$rc $(has flock)" "0 2 4 6 " "nor on that of one rank"
rm -rf bad; cp -r base bad
run bad FAULT=pwrite:28 FAULT_RANK=1 FAULT_COUNT=1 -- --train.steps 8 --run.save_error continue
ok "$rc $(code bad) $(has bad) $(says 'step 4 has no checkpoint, and training goes on')" "0 0 2 6 8  yes" "run.save_error continue: $(cat said)"
rm -rf bad; cp -r base bad
run bad FAULT=pwrite:28 -- --train.steps 8 --run.save_error continue
ok "$rc $(code bad) $(has bad) $(tail -n 1 said | grep -c 'step_00000008.*No space left')" "4 4 2  1" "but not without the last one"

# ---- a read that fails on one rank
for f in open:13 pread:5; do
  after=0; [ $f = open:13 ] || after=2
  t=$(date +%s)
  run base FAULT=$f FAULT_RANK=1 FAULT_AFTER=$after -- --train.steps 4
  ok "$rc $(code base) $([ $(($(date +%s) - t)) -le 30 ] && echo soon) $(says 'rank 1: .*step_00000002.h5')" "2 2 soon yes" "$f fails on rank 1 in a load: $(head -n 1 said)"
done

# ---- a damaged one
run damaged -- --train.steps 4
printf XXXX | dd of=damaged/checkpoints/step_00000004.h5 bs=1 seek=60000 conv=notrunc 2>said
cp -r damaged strict
run damaged -- --train.steps 5
ok "$rc $(grep -c 'resumed at step 2' out) $(says 'skipping a checkpoint: .*step_00000004.h5 is damaged')" "0 1 yes" "resume falls back, and says so"
run strict -- --train.steps 5 --load.fallback false
ok "$rc $(lines) $(says 'step_00000004.h5 is damaged.*load.fallback')" "4 1 yes" "or stops: $(cat said)"
truncate -s 50000 strict/checkpoints/step_00000004.h5
run strict -- --train.steps 5 --load.fallback false
ok "$rc $(lines) $(says 'step_00000004.h5')" "4 1 yes" "one that is cut: $(cat said)"

# ---- where runs begin
run new -- --load.from once --train.steps 10
ok "$rc $(grep -c 'began from once/checkpoints/step_00000008.h5, step 8$' out) $(has new)" "0 1 10 " "load.from a run: its newest, at its step"
run weights -- --load.from once/checkpoints/step_00000008.h5 --load.weights_only true --train.steps 2
ok "$rc $(grep -c 'step 8, its weights alone' out) $(has weights)" "0 1 2 " "its weights only: step 0"
run fresh -- --load.from base/checkpoints --train.steps 2
ok "$rc $(lines) $(says 'load.from: base/checkpoints has no checkpoint')" "2 1 yes" "a folder without: $(cat said)"
run tied -- --model.tied true --model.dim 256 --train.steps 2
run untied -- --load.from tied --model.dim 256 --train.steps 4
ok "$rc $(lines) $(says 'lm_head.weight (tied there')" "2 1 yes" "a tied checkpoint for an untied model: $(cat said)"
run untied -- --load.from tied --load.weights_only true --model.dim 256 --mesh.tp 2 --train.steps 1 --optimizer.lr 0 --schedule.min_lr 0
ok "$rc $(has untied)" "0 1 " "its weights alone do"
if "${PYTHON:-/usr/bin/python3}" -c 'import h5py, numpy' 2>/dev/null; then
  "${PYTHON:-/usr/bin/python3}" "$reader" tied/checkpoints/step_00000002.h5 --npz a.npz; "${PYTHON:-/usr/bin/python3}" "$reader" untied/checkpoints/step_00000001.h5 --npz b.npz
  "${PYTHON:-/usr/bin/python3}" -c "import numpy as n; a, b = n.load('a.npz'), n.load('b.npz'); print(all((a[k] == b[k]).all() for k in a) and (b['lm_head.weight'] == a['model.embed_tokens.weight']).all())" >said 2>&1
  ok "$(cat said)" True "and the head is the embedding, to the byte"
else
  skip "the head is the embedding" "no h5py"
fi
run half -- --run.save_moments bf16 --train.steps 4
run half -- --train.steps 6 --run.save_moments fp32
ok "$rc $(good half/checkpoints/*6.h5) $(good half/checkpoints/*4.h5; grep -c 'moments in bf16' verified)" "0 good good
1" "moments in bf16, and resumed from"
if "${PYTHON:-/usr/bin/python3}" -c 'import h5py, numpy' 2>/dev/null; then
  "${PYTHON:-/usr/bin/python3}" - "$reader" once/checkpoints/step_00000004.h5 half/checkpoints/step_00000004.h5 >said 2>&1 <<'P'
import importlib.util, sys
import numpy as np
spec = importlib.util.spec_from_file_location("reader", sys.argv[1])
reader = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reader)
with reader.open_checkpoint(sys.argv[2]) as a, reader.open_checkpoint(sys.argv[3]) as b:
    for name in reader.tensors(a):
        for kind, most in (("param", 0), ("exp_avg", 2**-8), ("exp_avg_sq", 2**-8)):
            x, y = reader.read_tensor(a, name, kind), reader.read_tensor(b, name, kind)
            assert np.all(np.abs(x - y) <= most * np.abs(x)), (name, kind)
P
  ok $? 0 "the reader in Python: weights the same, moments to bf16's precision"
else
  skip "the reader in Python" "no h5py"
fi
run stripes -- --run.stripe_count 4 --run.stripe_size 1M --train.steps 2
ok "$rc $(good stripes/checkpoints/*2.h5)" "0 good" "stripe hints where nothing is striped"

# ---- a full disk
mkdir disk
if unshare -rm sh -c 'mount -t tmpfs -o size=1m none disk' 2>/dev/null; then
  cat >full.sh <<'S'
mount -t tmpfs -o size=1400k none disk
go () { ${MPIEXEC:-mpiexec} -n 2 "$program" run.yaml --run.dir disk "$@" >out 2>said </dev/null; echo $?; }
a=$(go --train.steps 2)
dd if=/dev/zero of=disk/ballast bs=1k count=700 2>/dev/null
a=$a$(go --train.steps 8 --run.save_async $1)
cp said first; ls disk/checkpoints >list
rm disk/ballast
a=$a$(go --train.steps 4)
echo "$a $(wc -l <first) $(cat list)" >result
S
  for async in true false; do
    unshare -rm sh full.sh $async; cp first said
    ok "$(cat result)" "040 1 step_00000002.h5" "a full disk, save_async $async: $(cat first)"
  done
else
  skip "a full disk" "no file system of one's own"
fi
echo "1..$n"
