  /* the strategies */
  { 2, "--mesh.dp_shard 2 --sharding.strategy NO_SHARD" },
  { 2, "--mesh.dp_shard 2 --sharding.strategy SHARD_OPT --train.dtype bf16" },
  { 3, "--mesh.dp_shard 3 --sharding.strategy SHARD_GRAD_OP --train.micro_batch 1 --train.global_batch 9" },
  { 4, "--mesh.dp_shard 4 --sharding.strategy SHARD_GRAD_OP --sharding.reshard backward --train.micro_batch 1" },
  { 4, "--mesh.dp_shard 4 --sharding.strategy FULL_SHARD --train.micro_batch 1" },
  { 8, "--mesh.dp_replicate 2 --mesh.dp_shard 4 --sharding.strategy HYBRID_SHARD --train.micro_batch 1 --train.dtype bf16" },
  { 4, "--mesh.dp_replicate 2 --mesh.dp_shard 2 --sharding.strategy NO_SHARD --sharding.reduce_dtype bf16" },
  { 4, "--mesh.dp_replicate 2 --mesh.dp_shard 2 --sharding.strategy HYBRID_SHARD --sharding.reduce_dtype bf16 --sharding.grad_dtype bf16 --train.dtype bf16" },
  /* when weights are let go, how many units and slots */
  { 2, "--mesh.dp_shard 2 --sharding.prefetch 0 --train.micro_batch 1" },
  { 2, "--mesh.dp_shard 2 --sharding.prefetch 1 --train.micro_batch 1 --pipeline.schedule gpipe --model.layers 7" },
  { 2, "--mesh.dp_shard 2 --sharding.reshard step --train.dtype bf16 --train.micro_batch 1" },
  { 2, "--mesh.dp_shard 2 --sharding.reshard backward --train.micro_batch 1 --sharding.reduce_dtype bf16" },
  { 2, "--mesh.dp_shard 2 --sharding.reshard backward --sharding.wrap model --train.micro_batch 1" },
  { 2, "--mesh.dp_shard 2 --sharding.reshard forward --sharding.wrap model --train.micro_batch 1" },
  { 4, "--mesh.dp_shard 4 --sharding.wrap size:60000 --sharding.prefetch 0 --train.micro_batch 1 --model.layers 5" },
  { 2, "--mesh.dp_shard 2 --sharding.prefetch 0 --model.vocab 584 --train.micro_batch 1" },   /* the embedding is nearly of a layer's size */
  { 2, "--mesh.dp_shard 2 --sharding.prefetch 0 --model.vocab 920 --train.micro_batch 1" },   /* ... and above it, the head above both */
  { 2, "--mesh.dp_shard 2 --sharding.wrap size:50000 --model.vocab 790 --model.layers 3 --model.tied true --train.micro_batch 1" },
  { 2, "--mesh.dp_shard 2 --sharding.prefetch 0 --sharding.wrap size:50000 --model.vocab 790 --model.layers 3 --model.tied true --train.micro_batch 1" },
  /* tensor parallelism */
  { 2, "--mesh.tp 2 --train.loss_chunk 24" },
  { 2, "--mesh.tp 2 --recompute.mode full --train.dtype bf16" },
  { 2, "--mesh.tp 2 --recompute.mode selective" },
  { 2, "--mesh.tp 2 --mesh.tp_overlap 4 --recompute.mode full" },
  { 8, "--mesh.dp_shard 2 --mesh.pp 2 --mesh.tp 2 --mesh.tp_overlap 2 --pipeline.schedule zbh1 --train.micro_batch 1" },
  { 2, "--mesh.tp 2 --recompute.mode selective --recompute.keep gate_up,attention" },
  { 2, "--mesh.tp 2 --recompute.mode selective --recompute.keep norms,qkv,residual" },
  { 2, "--mesh.tp 2 --recompute.mode auto", 144950000 },   /* some layers keep more than others */
  { 4, "--mesh.tp 4 --model.qkv_bias true --recompute.mode full --recompute.every 2 --train.dtype bf16" },
  { 8, "--mesh.tp 8 --model.qk_norm true --model.head_dim 12 --train.global_batch 2" },
  { 8, "--mesh.dp_shard 2 --mesh.tp 4 --model.tied true --sharding.grad_dtype bf16 --train.dtype bf16" },
  /* 8 bits: what travels is bf16 */
  { 4, "--mesh.dp_shard 4 --train.dtype fp8 --train.micro_batch 1" },
  { 4, "--mesh.dp_shard 2 --mesh.tp 2 --train.dtype fp8" },
  { 2, "--mesh.tp 2 --recompute.mode full --train.dtype fp8" },
  { 4, "--mesh.tp 2 --mesh.pp 2 --pipeline.schedule zbh1 --train.micro_batch 1 --train.dtype fp8" },
  /* pipelines */
  { 4, "--mesh.pp 4 --pipeline.schedule 1f1b --train.micro_batch 1" },
  { 2, "--mesh.pp 2 --pipeline.schedule gpipe --debug.sync_send true" },
  { 2, "--mesh.pp 2 --pipeline.schedule interleaved --pipeline.chunks 2 --train.micro_batch 1" },
  { 4, "--mesh.dp_shard 2 --mesh.pp 2 --pipeline.schedule zbh1 --train.micro_batch 1" },
  { 4, "--mesh.dp_shard 2 --mesh.pp 2 --pipeline.schedule zbh1 --train.micro_batch 1 --recompute.mode selective --sharding.prefetch 0" },
  { 4, "--mesh.tp 2 --mesh.pp 2 --pipeline.schedule zbh1 --train.micro_batch 1 --recompute.mode selective --recompute.keep gate_up,attention,residual" },
  { 4, "--mesh.tp 2 --mesh.pp 2 --pipeline.schedule zbh1 --train.micro_batch 1 --sharding.reshard backward" },
  { 4, "--mesh.dp_shard 2 --mesh.pp 2 --pipeline.schedule zbh1 --train.micro_batch 1 --sharding.wrap model --sharding.reshard backward --model.tied true" },
  { 8, "--mesh.dp_shard 2 --mesh.pp 4 --train.global_batch 16 --train.micro_batch 1 --model.layers 14 --sharding.prefetch 1" },
  { 8, "--mesh.dp_shard 4 --mesh.pp 2 --train.global_batch 16 --train.micro_batch 1 --model.tied true --sharding.reshard backward" },
  { 4, "--mesh.dp_shard 2 --mesh.pp 2 --train.micro_batch 1 --model.layers 5", 2300000 },   /* auto keeps the last stage's weights, which fit in a quarter of it */
  { 4, "--mesh.dp_shard 2 --mesh.pp 2 --train.micro_batch 1 --sharding.reshard forward", 1 << 30 },
  { 4, "--mesh.dp_shard 2 --mesh.pp 2 --train.micro_batch 1 --sharding.cpu_offload params", 1 << 30 },   /* auto would keep them on the device */
  { 2, "--mesh.dp_shard 2 --train.micro_batch 1 --sharding.cpu_offload optimizer --train.dtype bf16" },
  /* together */
  { 8, "--mesh.dp_shard 2 --mesh.pp 2 --mesh.tp 2" },
  { 8, "--mesh.dp_shard 2 --mesh.pp 2 --mesh.tp 2 --mesh.order tp-dp-pp --model.tied true --sharding.strategy SHARD_OPT --sharding.reduce_dtype bf16" },
  { 8, "--mesh.dp_shard 1 --mesh.pp 2 --mesh.tp 4 --pipeline.schedule interleaved --pipeline.chunks 2 --train.micro_batch 1 --recompute.mode full" },
  { 8, "--mesh.dp_replicate 2 --mesh.dp_shard 2 --mesh.pp 2 --model.tied true --sharding.strategy HYBRID_SHARD --train.micro_batch 1" },
