#!/bin/sh
# bf16: each gradient's error against the referee in fp64 beside that of an ideal computation, which rounds the inputs and outputs
# of each operation and nothing else: at most 1.5 times it (test/judge.py). JUDGE_TABLE=1 shows all tensors; ONLY=WORD as in
# t_referee.sh.
dtype=bf16
. "$srcdir/test/judge.sh"
scaling="--model.rope_scaling.factor 8 --model.rope_scaling.original 32"
high="--optimizer.lr 5e-3 --schedule.type constant"
first="--train.steps 1 --schedule.warmup 0"
later="--train.steps 10 --debug.dump_step 10 $high"
masked="--data.train mask.h5 --data.document_mask true"

cases () {
  grep -v '^ *#' <<X
llama 1 $scaling $first
llama-later 1 $scaling $later
tied 1 --model.tied true --model.layers 4 $first
qwen2 1 --model.qkv_bias true $first
qwen2-later 1 --model.qkv_bias true $later
qwen3 1 --model.qk_norm true --model.head_dim 12 $first
qwen3-later 1 --model.qk_norm true --model.head_dim 12 $later
mask-window-accumulation 1 $masked --model.window 17 --train.micro_batch 1 --train.global_batch 8 $first
llama-dp2 2 --mesh.dp_shard 2 --train.micro_batch 1 $first
llama-pp2 2 --mesh.pp 2 --train.micro_batch 1 $first
llama-tp2 2 --mesh.tp 2 $first
qwen2-later-tp4 4 --model.qkv_bias true --mesh.tp 4 $later
deep 1 --model.layers 12 $first
all-bf16-dp2 2 --mesh.dp_shard 2 --train.micro_batch 1 --sharding.reduce_dtype bf16 --sharding.grad_dtype bf16 $first
X
}

run_cases
