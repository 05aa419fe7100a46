#!/bin/sh
# Which device a run gets, and what is said when it cannot be had: with no module, a module that does not fit, a host without a GPU, two ranks on one GPU.
# A fake module stands for the cuda device (test/fake_cuda.c). Prints TAP.
set -u
here=$(cd "${builddir:-.}" && pwd)
export OMP_NUM_THREADS=1 MPIEXEC_TIMEOUT=60
tmp=$(mktemp -d) && cd "$tmp" || exit 99
trap 'rm -rf "$tmp"' EXIT
n=0
ok () { n=$((n + 1)); if [ "$1" = "$2" ]; then echo "ok $n - $3"; else echo "not ok $n - $3"; echo "# '$1' is not '$2'"; sed 's/^/# /' said out | tail -n 12; fi; }
skip () { n=$((n + 1)); echo "ok $n - $1 # SKIP $2"; }
mkdir bin
cp "$here/src/pretrain" bin/pretrain   # a copy: the module is sought beside the program
run () { ranks=$1; shift; rm -rf d; "${MPIEXEC:-mpiexec}" -n "$ranks" "$tmp/bin/pretrain" run.yaml "$@" >out 2>said </dev/null; rc=$?; }
says () { grep -c -- "$1" said; }
lines () { grep -c . said; }
module () { rm -f bin/cuda.so; if [ -n "$1" ]; then cp "$here/test/$1" bin/cuda.so; fi; }

seq 1 1000 >text.txt
bin/pretrain tokenize --tokenizer bytes text.txt a.h5 >said 2>&1 || { echo "Bail out! no tokens"; exit 1; }
cat >run.yaml <<'S'
model: {dim: 16, layers: 2, heads: 4, kv_heads: 2, ffn: 32, vocab: 257}
data: {train: a.h5}
run: {dir: d, threads: 1, save_every: 0}
eval: {batches: 0}
train: {seq_len: 16, micro_batch: 1, global_batch: 4, dtype: fp32, steps: 1}
S

run 2 --run.device cuda
ok "$rc $(lines) $(says 'this build has no device cuda')" "2 1 1" "no module: $(cat said)"
module fake_cuda.so
FAKE_CUDA=old run 2 --run.device cuda
ok "$rc $(lines) $(says 'cuda.so was built from other sources than this program')" "2 1 1" "a module of another build: refused"
FAKE_CUDA=none run 2 --run.device cuda
ok "$rc $(lines) $(says 'no GPU can be used here')" "2 1 1" "a module, no GPU: $(cat said)"
module fake_broken.so
run 2 --run.device cuda
ok "$rc $(lines) $(says 'device cuda cannot be opened: libabsent_nccl.so')" "2 1 1" "a library is missing: $(cat said)"
echo no module >bin/cuda.so
run 2 --run.device cuda
ok "$rc $(lines) $(says 'device cuda cannot be opened: .*cuda.so')" "2 1 1" "a file that is no module: $(cat said)"

if [ -e /dev/nvidiactl ]; then
  skip "run.device auto on a host without a GPU" "this one has the driver"
  skip "run.device auto without either" "this one has the driver"
else
  module fake_cuda.so
  run 2
  ok "$rc $(lines) $(grep -c '^run.device auto takes the cpu device: this host has no NVIDIA driver' out)" "0 0 1" "run.device auto on a host without a GPU: $(grep auto out)"
  module ""
  run 2
  ok "$rc $(lines) $(grep -c auto out)" "0 0 0" "run.device auto without module and GPU: nothing to say"
fi

# ---- one rank a GPU
taken () { if [ "$rc" != 0 ] && grep -q '^0:[a-d]$' taken && ! grep -q 'would all use' said; then echo yes; fi; rm -f taken; }
module fake_cuda.so
FAKE_GPUS=0:a,0:b,0:c,0:d run 4 --run.device cuda
ok "$(taken)" yes "4 ranks on 4 GPUs: taken"
FAKE_GPUS=0:a,0:b,0:c,0:b run 4 --run.device cuda
ok "$rc $(lines) $(says '^pretrain: ranks 1, 3 of host [^ ]* would all use the GPU 0:b: start one rank a GPU')" "2 1 1" "two of 4 ranks on one: $(cut -c -70 said)..."
FAKE_GPUS=0:a,0:a,0:a,0:a run 4 --run.device cuda
ok "$rc $(lines) $(says 'ranks 0-3 of host')" "2 1 1" "4 ranks on one"
FAKE_GPUS=0:a,0:a run 2 --run.device cuda --debug.shared_gpu true
ok "$(taken)" yes "two on one with debug.shared_gpu: taken"
ok "$(ls d/metrics.jsonl 2>&1 | grep -c 'No such')" 1 "and no run began"

# ---- the module speaks to MPI only through the program
if [ -e "$here/gpu/cuda.so" ] && command -v nm >/dev/null; then
  ok "$(nm -D --undefined-only "$here/gpu/cuda.so" | grep -c 'MPI_')" 0 "the cuda device calls no MPI"
else
  skip "the cuda device calls no MPI" "none was built"
fi
echo "1..$n"
