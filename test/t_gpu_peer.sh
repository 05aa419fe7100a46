#!/bin/sh
# Logits, gradients and one AdamW step of random models on the GPU against transformers (peer_step.py). Prints TAP.
set -u
here=$(cd "${builddir:-.}" && pwd) source=$(cd "$srcdir" && pwd)
python=${PYTHON:-python3}
export OMP_NUM_THREADS=1 TEST_DEVICE=${TEST_DEVICE:-cuda} HF_HUB_OFFLINE=1
tmp=$(mktemp -d) && cd "$tmp" || exit 99
trap 'rm -rf "$tmp"' EXIT
big="--model.dim 256 --model.heads 4 --model.kv_heads 2 --model.layers 2 --model.ffn 512 --model.vocab 1000 --train.seq_len 128 --train.micro_batch 4
  --train.global_batch 4 --train.steps 100 --schedule.warmup 0 --schedule.type constant --optimizer.eps 1e-3 --optimizer.lr 1e-2"   # a high rate: steps far above the resolution of weights of 1
while read -r name options; do
  "$here/test/peer_step" "$name" $big $options >said 2>&1 </dev/null && continue
  if grep -q 'no GPU can be used\|no device cuda\|cannot be opened' said; then echo "1..0 # SKIP $(head -n 1 said)"; exit 0; fi
  sed "s/^/# $name: /" said
done <<'S'
llama --model.rope_theta 500000 --model.rope_scaling.factor 8 --model.rope_scaling.original 64
llama-tied --model.tied true
qwen2 --model.qkv_bias true
qwen3 --model.qk_norm true --model.head_dim 128
llama-bf16 --train.dtype bf16
qwen3-bf16 --train.dtype bf16 --model.qk_norm true --model.head_dim 128
S
"$python" "$source/test/peer_step.py" --have 2>said
case $? in
  0) "$python" "$source/test/peer_step.py" llama llama-tied qwen2 qwen3 llama-bf16 qwen3-bf16;;
  77) echo "1..0 # SKIP $python has no torch or no transformers";;
  *) echo "Bail out! $(tail -n 1 said)"; exit 1;;
esac
