#!/bin/sh
# The program against the referee (test/reference.py), in fp32: families of models, masks, schedules, meshes. What is compared
# and how closely: test/judge.py. ONLY=WORD runs the cases with WORD in their name.
dtype=fp32
. "$srcdir/test/judge.sh"
scaling="--model.rope_scaling.factor 8 --model.rope_scaling.original 32"
# From weights that have moved at a high rate, so that no bias is 0 and no norm 1.
high="--optimizer.lr 5e-3 --schedule.type constant"
later="--train.steps 10 --debug.dump_step 10 $high"
qwen3="--model.qk_norm true --model.head_dim 12"
documents="--data.document_mask true --train.micro_batch 1"
odd="--model.vocab 263 --model.heads 6 --model.head_dim 10 --train.loss_chunk 40"
replicas="--mesh.dp_replicate 2 --mesh.dp_shard 1 --sharding.strategy HYBRID_SHARD"

# name, ranks, options
cases () {
  grep -v '^ *#' <<X
llama 1 $scaling
llama-tp2-dp2 4 $scaling --mesh.tp 2 --train.micro_batch 1 --optimizer.clip 2
llama-later 1 $scaling $later
tied 1 --model.tied true --schedule.type linear --train.micro_batch 4
tied-pp2 2 --model.tied true --schedule.type linear --mesh.pp 2 --train.micro_batch 1
tied-later-pp2-tp2 4 --model.tied true --mesh.pp 2 --mesh.tp 2 --train.steps 3 --debug.dump_step 3 $high
qwen2 1 --model.qkv_bias true --schedule.type wsd --schedule.decay 6 --optimizer.clip 0
qwen2-later 1 --model.qkv_bias true $later
qwen2-later-tp4 4 --model.qkv_bias true --mesh.tp 4 $later
qwen3 1 $qwen3 --schedule.type constant --optimizer.clip 10
qwen3-later 1 $qwen3 $later
qwen3-later-tp2-pp2 4 $qwen3 --mesh.tp 2 --mesh.pp 2 --pipeline.schedule zbh1 --train.micro_batch 1 $later
window 1 --model.window 9 --schedule.steps 14
window-dp3 3 --model.window 17 --model.layers 4 --train.micro_batch 1 --train.global_batch 6 --optimizer.weight_decay 0.5
documents 1 --data.train lines.h5 $documents $scaling
documents-pp3 3 --data.train lines.h5 $documents --model.layers 3 --mesh.pp 3 --optimizer.beta1 0.8 --optimizer.beta2 0.99
mask 1 --data.train mask.h5 --data.document_mask true
mask-dp4 4 --data.train mask.h5 --train.micro_batch 1 --train.global_batch 8 --sharding.strategy zero2 --optimizer.eps 1e-6
mask-odd-tp2-dp2 4 --data.train mask.h5 $odd $replicas --mesh.tp 2
accumulation 1 --train.micro_batch 1 --train.global_batch 12 --recompute.mode full --schedule.warmup 0
epochs-dp2 2 --data.valid_fraction 0.9 --train.micro_batch 1 --optimizer.beta2 0.999
skip-dp2-tp2 4 --mesh.tp 2 --train.micro_batch 1 --debug.nan_rank 2 --debug.nan_step 5
accumulation-dp2-pp2 4 --mesh.dp_shard 2 --mesh.pp 2 --train.micro_batch 1 --train.global_batch 12 --recompute.mode selective
X
}

run_cases
