#!/bin/sh
# compute-sanitizer on two steps of a tiny model on the GPU, with cuDNN's attention and with our own: no access out of bounds, no race in our kernels. Prints TAP.
set -u
program=$(cd "${builddir:-.}" && pwd)/src/pretrain
export OMP_NUM_THREADS=1
tmp=$(mktemp -d) && cd "$tmp" || exit 99
trap 'rm -rf "$tmp"' EXIT
n=0
ok () { n=$((n + 1)); if [ "$1" = "$2" ]; then echo "ok $n - $3"; else echo "not ok $n - $3"; echo "# '$1' is not '$2'"; tail -n 25 log said | sed 's/^/# /'; fi; }
command -v compute-sanitizer >/dev/null || { echo '1..0 # SKIP no compute-sanitizer'; exit 0; }
seq 1 3000 >text.txt
"$program" tokenize --tokenizer bytes --documents lines text.txt a.h5 >said 2>&1 || { echo "Bail out! no tokens"; exit 1; }
cat >run.yaml <<'S'
model: {dim: 256, layers: 2, heads: 4, kv_heads: 2, ffn: 512, vocab: 257, qk_norm: true, qkv_bias: true}
data: {train: a.h5}
run: {device: cuda, save_every: 0}
eval: {batches: 0}
train: {seq_len: 128, micro_batch: 2, global_batch: 4, steps: 2}
recompute: {mode: selective}
S
"$program" run.yaml --run.dir probe --train.dtype bf16 >out 2>said </dev/null || {
  if grep -q 'no GPU can be used\|no device cuda\|cannot be opened' said; then echo "1..0 # SKIP $(head -n 1 said)"; else echo "Bail out! $(head -n 1 said)"; fi; exit 0; }
check () {   # TOOL WHAT OPTIONS
  tool=$1 what=$2; shift 2
  timeout 60 compute-sanitizer --tool "$tool" --print-limit 100000 --log-file log "$program" run.yaml --run.dir d "$@" >out 2>said </dev/null; rc=$?
  steps=$(cat d/metrics.jsonl 2>/dev/null | wc -l)
  rm -rf d
  summary=$(grep -c SUMMARY log)
  # Of a hazard in the libraries' own kernels nothing follows for ours.
  case $tool in
    memcheck) bad=$(sed -n 's/.*ERROR SUMMARY: \([0-9]*\) error.*/\1/p' log);;
    *) bad=$(grep -E 'Race reported|Write access|Read access' log | grep -vcE 'cudnn|cublas|cutlass|nvjet|xmma|gemm|gemv|splitK');;
  esac
  ok "$rc $steps $summary $bad" "0 2 1 0" "$tool, $what: $(grep SUMMARY log | sed 's/=* *//')"
}
check memcheck "bf16, cuDNN's attention where it is found" --train.dtype bf16
check memcheck "bf16, our own attention" --train.dtype bf16 --data.document_mask true
check memcheck "fp32" --train.dtype fp32
small="--model.layers 1 --train.seq_len 64 --train.micro_batch 1 --train.global_batch 1 --recompute.mode none"   # racecheck is slow
check racecheck "bf16, our own attention" $small --train.dtype bf16 --data.document_mask true
check racecheck "fp32" $small --train.dtype fp32
echo "1..$n"
