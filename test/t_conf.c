/* Options: what is understood, what is refused and in which words, and that a dump reads back to the bit. np: 1 */
#include "tap.h"
#include "conf_int.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_NAME "t_conf.tmp.yaml"

/* Load YAML text (NULL: no file), then OPTIONS split at spaces. */
static int load_on (struct conf *c, const char *yaml, const char *options, struct err *e)
{
  char copy[2048], *argv[64];
  int argc = 0;
  *e = (struct err) { 0 };
  if (yaml) {
    FILE *f = fopen (FILE_NAME, "w");
    fputs (yaml, f);
    fclose (f);
  }
  snprintf (copy, sizeof copy, "%s", options);
  for (char *w = strtok (copy, " "); w; w = strtok (NULL, " ")) argv[argc++] = w;
  int rc = conf_load (c, yaml ? FILE_NAME : NULL, argc, argv, e);
  unlink (FILE_NAME);
  return rc;
}

static struct conf *load (const char *yaml, const char *options)
{
  static struct conf c[2];
  static int turn;
  struct err e;
  struct conf *one = &c[turn ^= 1];
  conf_default (one);
  if (load_on (one, yaml, options, &e)) fprintf (stderr, "# %s\n", e.msg);
  return one;
}

/* One case of the tables below: all of WORDS, separated by |, are in the sentence. */
static void refused (const char *yaml, const char *options, const char *words)
{
  struct conf c;
  struct err e;
  char copy[400];
  conf_default (&c);
  int good = load_on (&c, yaml, options, &e) == -1 && e.code == EXIT_USER && !strchr (e.msg, '\n');
  snprintf (copy, sizeof copy, "%s", words);
  for (char *w = strtok (copy, "|"); w; w = strtok (NULL, "|")) good &= strstr (e.msg, w) != NULL;
  if (!good) fprintf (stderr, "# `%s` is not `%s`\n", e.msg, words);
  char what[80];
  snprintf (what, sizeof what, "%s %s", yaml ? yaml : "", options);
  for (char *s = what; *s; s++) if (*s < ' ' || *s > '~' || *s == '#') *s = ' ';
  tap_ok (good, "refused: %s", what);
}

#define TINY "model: tiny\n"
static const struct { const char *yaml, *options, *words; } bad[] = {
  /* keys that are none */
  { TINY "optimizer:\n  lerning_rate: 1e-3\n", "", FILE_NAME " line 3: optimizer.lerning_rate|nearest is optimizer.lr" },
  { TINY "lerning_rate: 1e-3\n", "", "line 2: lerning_rate|nearest is optimizer.lr" },
  { TINY "\n\ntrain: {seq_lne: 64}\n", "", "line 4: train.seq_lne|nearest is train.seq_len" },
  { TINY "train: {lr: 1e-3}\n", "", "line 2: train.lr|nearest is optimizer.lr" },
  { TINY "mesh.pt: 2\n", "", "line 2: mesh.pt|nearest is mesh.pp" },
  { TINY "trian: {steps: 3}\n", "", "line 2: trian.steps|nearest is train.steps" },
  { TINY "foo:\n", "", "line 2: foo" },
  { "model: {dim: 64, layer: 4}\n", "", "line 1: model.layer|nearest is model.layers" },
  { "model: {base: tiny, rope_scaling: {facter: 8}}\n", "", "model.rope_scaling.facter|nearest is model.rope_scaling.factor" },
  { TINY, "--optimiser.lr 1", "--optimiser.lr|nearest is --optimizer.lr" },
  { TINY, "--tensor-model-paralel-size 2", "--tensor-model-paralel-size|nearest is --mesh.tp" },
  { TINY, "--sharding.stratgy=NO_SHARD", "nearest is --sharding.strategy" },
  { TINY "train: 5\n", "", "line 2: train is a section" },
  { TINY "train.steps.x: 5\n", "", "line 2: train.steps.x|train.steps" },
  { TINY "<<: {train.steps: 5}\n", "", "line 2: <<.train.steps" },
  /* values of the wrong type */
  { TINY "train:\n  steps: 12abc\n", "", "line 3: train.steps|whole number|`12abc`" },
  { TINY "train.seq_len: 1.5\n", "", "line 2: train.seq_len|whole number|`1.5`" },
  { TINY "train.seq_len: 4k\n", "", "train.seq_len|whole number|`4k`" },
  { TINY "train.seq_len: 1e3\n", "", "train.seq_len|whole number|`1e3`" },
  { TINY "train.steps: 1e3\n", "", "train.steps|`1e3`" },
  { TINY "train.steps: 1.00000005M\n", "", "train.steps" },
  { TINY "train.steps: 5K\n", "", "train.steps|`5K`" },
  { TINY "train.seq_len: 010\n", "", "train.seq_len|`010`" },
  { TINY "train.seq_len: 0x10\n", "", "train.seq_len|`0x10`" },
  { TINY "train.seq_len: '12 '\n", "", "train.seq_len|`12 `" },
  { TINY "train.seq_len: ' 12'\n", "", "train.seq_len" },
  { TINY "train.seq_len: ''\n", "", "train.seq_len" },
  { TINY "train.seq_len:\n", "", "line 2: train.seq_len has no value" },
  { TINY "train.seq_len: ~\n", "", "line 2: train.seq_len has no value" },
  { TINY "train.seq_len: 99999999999999999999\n", "", "train.seq_len|`99999999999999999999`" },
  { TINY "train.steps: 9999999999999G\n", "", "train.steps" },
  { TINY "train.seq_len: true\n", "", "train.seq_len|`true`" },
  { TINY "train.seq_len: [64]\n", "", "train.seq_len expects one value" },
  { TINY "train.seq_len: {a: 1}\n", "", "train.seq_len.a|nearest is train.seq_len" },
  { TINY "optimizer.lr: fast\n", "", "optimizer.lr|number|`fast`" },
  { TINY "optimizer.lr: 1e-3x\n", "", "optimizer.lr|`1e-3x`" },
  { TINY "optimizer.lr: 1.2.3\n", "", "optimizer.lr|`1.2.3`" },
  { TINY "optimizer.lr: 3e\n", "", "optimizer.lr|`3e`" },
  { TINY "optimizer.lr: nan\n", "", "optimizer.lr|`nan`" },
  { TINY "optimizer.lr: 1e999\n", "", "optimizer.lr|`1e999`" },
  { TINY "optimizer.lr: 1e-999\n", "", "optimizer.lr" },
  { TINY "optimizer.lr: 0x1p-3\n", "", "optimizer.lr" },
  { TINY "optimizer.lr: 3,5\n", "", "optimizer.lr|`3,5`" },
  { TINY "run.overlap: maybe\n", "", "run.overlap|true or false|`maybe`" },
  { TINY "run.overlap: 1\n", "", "run.overlap|true or false" },
  { TINY "train.dtype: fp16\n", "", "train.dtype|fp32|bf16|fp8|`fp16`" },
  { TINY "sharding.strategy: FULL\n", "", "sharding.strategy|NO_SHARD|HYBRID_SHARD|`FULL`" },
  { TINY "run.device: gpu\n", "", "run.device|auto|cuda|`gpu`" },
  { TINY "run.dir: \"a\\0b\"\n", "", "line 2: run.dir|zero byte" },
  { TINY, "--run.dir=a\xff", "--run.dir|UTF-8" },
  { TINY, "--run.dir=\xed\xa0\x80", "--run.dir|UTF-8" },
  { TINY, "--train-iters 12abc", "--train-iters = train.steps|whole number|`12abc`" },
  { TINY, "--run.overlap=maybe", "--run.overlap|true or false" },
  { TINY, "--run.overlap maybe", "`maybe` is not an option" },
  { TINY, "--train.steps", "--train.steps needs a value" },
  { TINY, "--train.steps --run.keep 2", "--train.steps needs a value" },
  { TINY, "train.steps=4", "`train.steps=4` is not an option" },
  { TINY, "--", "`--`" },
  /* values out of range */
  { TINY "train.steps: 0\n", "", "train.steps|>0|`0`" },
  { TINY "train.micro_batch: -1\n", "", "train.micro_batch|>0|`-1`" },
  { TINY "optimizer.beta2: 1\n", "", "optimizer.beta2|[0,1)|`1`" },
  { TINY "optimizer.beta1: -0.1\n", "", "optimizer.beta1|[0,1)" },
  { TINY "optimizer.eps: 0\n", "", "optimizer.eps|>0" },
  { TINY "data.valid_fraction: 1\n", "", "data.valid_fraction|[0,1)" },
  { TINY "train: {micro_batch: 4, global_batch: 2}\n", "", "train.global_batch 2|train.micro_batch 4" },
  { TINY "train: {micro_batch: 4, global_batch: 6}\n", "", "train.global_batch 6|multiple|train.micro_batch 4" },
  { TINY "train: {micro_batch: 2, global_batch: 8}\nmesh.dp: 3\n", "", "train.global_batch 8|train.micro_batch 2 x dp 3" },
  { TINY "train.steps: 10\nschedule.warmup: 11\n", "", "schedule.warmup 11|10 steps" },
  { TINY "optimizer.lr: 1e-3\nschedule.min_lr: 2e-3\n", "", "schedule.min_lr 0.002|optimizer.lr 0.001" },
  { TINY "schedule: {type: wsd, warmup: 60, decay: 50}\n", "", "schedule.warmup 60|schedule.decay 50|100 steps" },
  { TINY "sharding.wrap: size:0\n", "", "sharding.wrap|size:0" },
  { TINY "sharding.wrap: size:12x\n", "", "sharding.wrap|size:12x" },
  { TINY "sharding.wrap: layers\n", "", "sharding.wrap|layer, model" },
  { TINY "recompute: {mode: selective, keep: [norms, qk]}\n", "", "recompute.keep|gate_up, qkv|`qk`" },
  { TINY "recompute: {mode: auto, every: 2}\n", "", "recompute.every 2|auto" },
  { TINY "mesh.order: tp-pp\n", "", "mesh.order|`tp-pp`" },
  { TINY "mesh.order: tp-pp-dp-tp\n", "", "mesh.order" },
  { TINY "mesh.order: tp-pp-dp-dp_shard\n", "", "mesh.order" },
  { TINY "mesh.order: tp-pp-dp_shard\n", "", "mesh.order" },
  { TINY "mesh.order: tp-pp-cp\n", "", "mesh.order|`tp-pp-cp`" },
  { TINY "mesh.tp: 3\n", "", "model.heads 8|mesh.tp 3|1, 2, 4 or 8" },
  { TINY "mesh.pp: 5\n", "", "model.layers 4|mesh.pp 5" },
  { TINY "mesh.pp: 2\npipeline.split: [3, 2]\n", "", "3,2|5 layers|has 4" },
  { TINY "mesh.dp_replicate: 2\n", "", "mesh.dp_replicate 2|HYBRID_SHARD or NO_SHARD" },
  { TINY "pipeline.chunks: 2\n", "", "pipeline.chunks 2|interleaved" },
  { TINY "pipeline.schedule: interleaved\n", "", "pipeline.chunks of 2 or more" },
  { TINY "model.norm_eps: 0\n", "", "model.norm_eps|>0" },
  { TINY "model.heads: 6\nmodel.kv_heads: 4\nmodel.head_dim: 8\n", "", "model.heads 6|model.kv_heads 4" },
  { TINY "model.heads: 6\n", "", "model.dim 64|model.heads 6|model.head_dim" },
  /* twice */
  { TINY "train.steps: 5\ntrain: {steps: 5}\n", "", "line 3: train.steps|second time|line 2" },
  { TINY "mesh:\n  dp: 2\n  dp_shard: 2\n", "", "line 3: mesh.dp|line 4: mesh.dp_shard|both set mesh.dp_shard" },
  { TINY TINY, "", "line 2: model|second time|line 1" },
  { TINY "fsdp_config: {fsdp_version: 2}\nfsdp_config: {fsdp_version: 2}\n", "", "line 3|fsdp_version|second time|line 2" },
  { TINY, "--train.steps 5 --train.steps 6", "--train.steps|twice|`5`|`6`" },
  { TINY, "--train-iters 5 --train.steps 6", "--train-iters and --train.steps both set train.steps" },
  { TINY, "--bf16 --train.dtype fp32", "--bf16 and --train.dtype both set train.dtype" },
  /* models */
  { "train.steps: 5\n", "", FILE_NAME " names no model" },
  { NULL, "", "names no model" },
  { "model: tinny\n", "", "line 1: model|`tinny`|nearest is tiny|llama2-13b" },
  { "model: ./none.yaml\n", "", "`./none.yaml`" },
  { "model: [tiny]\n", "", "line 1: model expects" },
  { "model: {dim: 64, layers: 4, heads: 8, vocab: 257}\n", "", "lacks model.ffn|base" },
  { "model: {name: tiny, layers: 8}\n", "", "lacks model.|base" },
  /* not YAML, or not ours */
  { TINY "train: {steps: 5\n", "", FILE_NAME " line |not YAML" },
  { TINY "\ttrain: 5\n", "", FILE_NAME " line 2|not YAML" },
  { "- a\n- b\n", "", "line 1: keys and values" },
  { TINY "---\n" TINY, "", "line 3|second document" },
  { TINY "? [a, b]\n: 5\n", "", "line 2|key" },
  { TINY "data.train: [{a: b}]\n", "", "line 2: data.train" },
  { "a: &a {b: *a}\n", "", FILE_NAME " line 1" },
  { "a: &a {b: 1, c: &c {d: 1}, <<: *c}\n", "", FILE_NAME " line 1: a.b" },
  /* other systems */
  { TINY "fsdp_config: {fsdp_sharding_stratgy: FULL_SHARD}\n", "",
    "line 2|fsdp_sharding_stratgy|nearest is fsdp_sharding_strategy" },
  { TINY "fsdp_config: {fsdp_sharding_strategy: FULL}\n", "", "line 2|fsdp_sharding_strategy|SHARD_GRAD_OP|`FULL`" },
  { TINY "fsdp_config: {fsdp_sharding_strategy: 5}\n", "", "fsdp_sharding_strategy 5|HYBRID_SHARD (4)" },
  { TINY "fsdp_config: {fsdp_auto_wrap_policy: SIZE_BASED_WRAP}\n", "", "SIZE_BASED_WRAP needs fsdp_min_num_params" },
  { TINY "fsdp_config: {fsdp_offload_params: maybe}\n", "", "fsdp_offload_params|true, false|`maybe`" },
  { TINY "fsdp_config: {fsdp_version: 2}\nmixed_precison: bf16\n", "", "line 3: mixed_precison|nearest is mixed_precision" },
  { TINY "fsdp_config: {fsdp_version: 2}\nmixed_precision: fp16\n", "", "mixed_precision fp16|bf16" },
  { TINY "fsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\nsharding.strategy: NO_SHARD\n", "",
    "fsdp_sharding_strategy|sharding.strategy|both" },
  { TINY "fsdp_config: 3\n", "", "fsdp_config is a section" },
  { TINY "mixed_precision: bf16\n", "", "line 2: mixed_precision|no such option" },
  { TINY, "--num-layers-per-virtual-pipeline-stage 2", "pipeline.schedule interleaved" },
  { TINY, "--fp16", "--fp16|bf16" },
  { TINY, "--sequence-parallel=false", "always on" },
  { TINY, "--context-parallel-size 2", "context parallelism" },
};

static void good_yaml (void)
{
  struct conf *c = load (NULL, "--model tiny");
  tap_ok (c->sharding.strategy == FULL_SHARD && !strcmp (c->sharding.wrap, "layer") && c->sharding.prefetch == 2
          && c->train.steps == 100
          && c->train.seq_len == 256 && c->train.dtype == DT_BF16 && c->optimizer.lr == 3e-4 && c->optimizer.beta2 == 0.95
          && c->run.overlap
          && c->mesh.tp == 0 && c->debug.nan_rank == -1 && c->train.max_bad_steps == 10 && c->schedule.type == LR_COSINE,
          "defaults");
  tap_ok (!strcmp (c->model, "tiny") && c->arch.dim == 64 && c->arch.head_dim == 8 && c->arch.kv_heads == 2, "a model by name");
  c = load ("model: tiny\ntrain: {steps: 200, seq_len: 64}\nmesh:\n  tp: 2\n  dp: 2\nrun.dir: runs/demo # comment\nsharding: {strategy: zero2}\n", "");
  tap_ok (c->train.steps == 200 && c->mesh.tp == 2 && c->mesh.dp_shard == 2 && !strcmp (c->run.dir, "runs/demo")
          && c->sharding.strategy == SHARD_GRAD_OP, "nested, flow, dotted keys");
  c = load ("train:\n  steps: 200\nmodel: tiny\n",
            "--train.steps 300 --run.overlap false --run.resume --eval.every=5 --train.seq-len 32");
  tap_ok (c->train.steps == 300 && !c->run.overlap && c->run.resume && c->eval.every == 5 && c->train.seq_len == 32,
          "the command line has the last word");
  c = load ("model: tiny\ndata: {train: [0.7:a.h5, '0.3:b c.h5'], valid: v.h5}\npipeline: {split: [3, 1]}\nmesh.pp: 2\n", "");
  tap_ok (!strcmp (c->data.train, "0.7:a.h5,0.3:b c.h5") && !strcmp (c->pipeline.split, "3,1"), "lists");
  c = load (TINY "train.steps: 1.5M\nrun.save_every: 2k\nschedule.warmup: 2000\n", "");
  tap_ok (c->train.steps == 1500000 && c->run.save_every == 2000, "counts with k and M");
  c = load ("", "--model tiny");
  tap_ok (c->arch.dim == 64, "an empty file");
  c = load ("model: tiny\ndata:\ntrain:\n  # nothing\n", "");
  tap_ok (c->arch.dim == 64, "empty sections");
  c = load (TINY "sharding: {cpu_offload: true, strategy: ddp, reduce_dtype: bfloat16}\nrecompute.mode: FULL\nrun: {overlap: no, deterministic: yes}\n", "");
  tap_ok (c->sharding.cpu_offload == OFFLOAD_PARAMS && c->sharding.strategy == NO_SHARD && c->sharding.reduce_dtype == DT_BF16
          && c->recompute.mode == RECOMPUTE_FULL && !c->run.overlap && c->run.deterministic == YES, "other words for a choice");
}

static void models (void)
{
  struct conf *c = load ("model: {base: tiny, layers: 8}\n", "--model.ffn 96");
  tap_ok (!strcmp (c->model, "tiny") && c->arch.layers == 8 && c->arch.ffn == 96 && c->arch.dim == 64, "a model changed");
  c = load ("model: {dim: 96, layers: 2, heads: 6, ffn: 128, vocab: 257, rope_scaling: {factor: 8, original: 512}}\n", "");
  tap_ok (!strcmp (c->model, "(mapping)") && c->arch.kv_heads == 6 && c->arch.head_dim == 16 && c->arch.rope_scaling.factor == 8
          && c->arch.rope_scaling.high == 4, "a model written out");
  c = load ("model: {base: qwen3-8b, layers: 2}\ntrain.seq_len: 9\n", "--model llama3.1-8b --model.layers 3");
  tap_ok (!c->arch.qk_norm && c->arch.layers == 3 && c->arch.rope_scaling.factor == 8 && c->arch.dim == 4096
          && c->arch.norm_eps == 1e-5,
          "another model on the command line replaces all of the file's");
  c = load (TINY,
            "--num-layers 2 --hidden-size 128 --num-attention-heads 16 --num-query-groups 4 --ffn-hidden-size 64 --vocab-size 300");
  tap_ok (c->arch.layers == 2 && c->arch.dim == 128 && c->arch.heads == 16 && c->arch.kv_heads == 4 && c->arch.ffn == 64
          && c->arch.vocab == 300
          && c->arch.head_dim == 8, "Megatron's names change the model");
  c = load (NULL, "--num-layers 2 --hidden-size 128 --num-attention-heads 16 --ffn-hidden-size 64 --vocab-size 300");
  tap_ok (!strcmp (c->model, "(mapping)") && c->arch.kv_heads == 16 && c->arch.head_dim == 8, "or make one");
  FILE *f = fopen ("t_conf.model.yaml", "w");
  fputs ("hidden_size: 32\nnum_hidden_layers: 1\nnum_attention_heads: 4\nintermediate_size: 64\nvocab_size: 99\ntie_word_embeddings: true\n", f);
  fclose (f);
  c = load ("model: t_conf.model.yaml\n", "");
  tap_ok (c->arch.dim == 32 && c->arch.vocab == 99 && c->arch.tied && !strcmp (c->model, "t_conf.model.yaml"),
          "a file with Hugging Face's keys");
  unlink ("t_conf.model.yaml");
}

static void put_file (const char *name, const char *text)
{
  FILE *f = fopen (name, "w");
  fputs (text, f);
  fclose (f);
}

static void places (void)
{
  struct conf c;
  struct err e = { 0 };
  if (system ("mkdir -p t_conf.tmp.d/models")) return;
  put_file ("t_conf.tmp.d/models/tiny.yaml", "{dim: 32, layers: 1, heads: 2, ffn: 8, vocab: 9}\n");
  put_file ("t_conf.tmp.d/run.yaml", "model: models/tiny.yaml\n");
  conf_default (&c);
  tap_ok (!conf_load (&c, "t_conf.tmp.d/run.yaml", 0, NULL, &e) && c.arch.dim == 32,
          "a model's path is also sought beside the run's file");
  setenv ("TESSERA_SHARE", "t_conf.tmp.d", 1);
  int64_t own = load (TINY, "")->arch.dim, ours = load ("model: demo\n", "")->arch.dim;
  unsetenv ("TESSERA_SHARE");
  tap_ok (own == 32 && ours == 192 && load (TINY, "")->arch.dim == 64,
          "TESSERA_SHARE comes first, the program's own models after");
  put_file ("t_conf.tmp.d/models/tiny.yaml", "dim: 32\nlayer: 1\n");
  refused ("model: t_conf.tmp.d/models/tiny.yaml\n", "",
           "t_conf.tmp.d/models/tiny.yaml line 2: model.layer|nearest is model.layers");
  put_file ("t_conf.tmp.d/models/tiny.yaml", "dim: 32\ndim: 33\n");
  refused ("model: t_conf.tmp.d/models/tiny.yaml\n", "", "tiny.yaml line 2: model.dim|second time");
  put_file ("t_conf.tmp.d/models/tiny.yaml", "base: demo\n");
  refused ("model: t_conf.tmp.d/models/tiny.yaml\n", "", "tiny.yaml line 1: model.base|stands alone");
  if (system ("rm -r t_conf.tmp.d")) return;
  tap_ok (conf_load (&c, "nowhere.yaml", 0, NULL, &e) == -1 && e.code == EXIT_USER
          && strstr (e.msg, "nowhere.yaml: No such file") != NULL, "no such file");
}

/* What loading says, stdout and stderr together, into OUT. */
static void heard (const char *yaml, const char *options, char out[static 4096])
{
  fflush (NULL);
  int keep[2] = { dup (1), dup (2) };
  FILE *f = fopen ("t_conf.tmp.out", "w+");
  dup2 (fileno (f), 1);
  dup2 (fileno (f), 2);
  say_level (SAY_INFO);
  load (yaml, options);
  say_level (SAY_ERROR);
  fflush (NULL);
  dup2 (keep[0], 1);
  dup2 (keep[1], 2);
  close (keep[0]);
  close (keep[1]);
  rewind (f);
  out[fread (out, 1, 4095, f)] = 0;
  fclose (f);
  unlink ("t_conf.tmp.out");
}

static void said (void)
{
  char out[4096];
  heard (TINY, "--train.seq_len 2048", out);
  tap_ok (!*out, "nothing to say of a plain file");
  heard (TINY, "--train.seq_len 2049", out);
  tap_ok (strstr (out, "warning: train.seq_len 2049") && strstr (out, "model.max_seq 2048") != NULL,
          "a sequence longer than the model's is warned of");
  heard (TINY "fsdp_config: {fsdp_use_orig_params: true, fsdp_offload_params: true, fsdp_state_dict_type: FULL_STATE_DICT}\n", "",
         out);
  tap_ok (strstr (out, "fsdp_offload_params -> sharding.cpu_offload params")
          && strstr (out, "without effect here: fsdp_use_orig_params\n")
          && strstr (out, "checkpoints are sharded") != NULL, "translations are said, and what has no effect");
  heard ("model: {base: tiny, layers: 8}\n", "--model demo", out);
  tap_ok (strstr (out, "line 1: model.base gives way to --model") != NULL, "and that a file's model gives way");
  heard (TINY, "--sequence-parallel", out);
  tap_ok (strstr (out, "sequence_parallel") != NULL, "and a flag that is always on");
}

static void megatron (void)
{
  struct conf *c = load (TINY,
                         "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 --data-parallel-size 4 --micro-batch-size 2 "
    "--global-batch-size 16 --seq-length 128 --train-iters 500 --lr 1e-3 --min-lr 1e-4 --lr-decay-style linear --lr-warmup-iters 10 "
    "--lr-decay-iters 400 --weight-decay 0.2 --adam-beta1 0.8 --adam-beta2 0.9 --adam-eps 1e-7 --clip-grad 0.5 --seed 7 "
    "--recompute-granularity full --save-interval 50 --eval-interval 20 --eval-iters 3 --bf16 --sequence-parallel --use-distributed-optimizer");
  tap_ok (c->mesh.tp == 8 && c->mesh.pp == 2 && c->mesh.dp_shard == 4 && c->train.micro_batch == 2 && c->train.global_batch == 16
          && c->train.seq_len == 128 && c->train.steps == 500, "Megatron: mesh and batch");
  tap_ok (c->optimizer.lr == 1e-3 && c->schedule.min_lr == 1e-4 && c->schedule.type == LR_LINEAR && c->schedule.warmup == 10
          && c->schedule.steps == 400 && c->optimizer.weight_decay == 0.2 && c->optimizer.beta1 == 0.8
          && c->optimizer.beta2 == 0.9
          && c->optimizer.eps == 1e-7 && c->optimizer.clip == 0.5, "Megatron: optimizer and schedule");
  tap_ok (c->train.seed == 7 && c->recompute.mode == RECOMPUTE_FULL && c->run.save_every == 50 && c->eval.every == 20
          && c->eval.batches == 3
          && c->train.dtype == DT_BF16 && c->sharding.strategy == SHARD_OPT, "Megatron: the rest");
  c = load (TINY, "--train.steps 5 --train.steps 5 --bf16 --train.dtype bf16 --untie-embeddings-and-output-weights");
  tap_ok (c->train.steps == 5 && !c->arch.tied, "saying the same twice is no contradiction");
}

static void accelerate (void)
{
  static const char article[] = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\ndebug: false\nmixed_precision: bf16\nnum_processes: 8\n"
    "fsdp_config:\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n"
    "  fsdp_sharding_strategy: SHARD_GRAD_OP\n  fsdp_backward_prefetch: BACKWARD_POST\n  fsdp_forward_prefetch: false\n"
    "  fsdp_offload_params: true\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n  fsdp_min_num_params: 1000000\n"
    "  fsdp_activation_checkpointing: true\nmain_process_ip: null\nrdzv_backend: static\n";
  struct conf *c = load (article, "--model tiny");
  tap_ok (c->sharding.strategy == SHARD_GRAD_OP && !strcmp (c->sharding.wrap, "layer") && c->sharding.prefetch == 0
          && c->sharding.cpu_offload == OFFLOAD_PARAMS && c->recompute.mode == RECOMPUTE_FULL && c->train.dtype == DT_BF16,
          "accelerate's file");
  c = load ("fsdp_config: {fsdp_auto_wrap_policy: SIZE_BASED_WRAP, fsdp_min_num_params: 1000000, fsdp_backward_prefetch: BACKWARD_PRE, "
            "fsdp_state_dict_type: FULL_STATE_DICT, fsdp_sharding_strategy: 4}\nmixed_precision: 'no'\nuse_cpu: true\nmodel: tiny\n", "");
  tap_ok (!strcmp (c->sharding.wrap, "size:1000000") && c->sharding.prefetch == 2 && c->sharding.strategy == HYBRID_SHARD
          && c->train.dtype == DT_F32 && !strcmp (c->run.device, "cpu"), "by size, by number, in one file with our keys");
  c = load (TINY "fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}\n", "");
  tap_ok (c->sharding.reshard == RESHARD_BACKWARD && c->sharding.strategy == FULL_SHARD,
          "version 2: reshard_after_forward false");
  c = load (TINY "fsdp_config: {fsdp_reshard_after_forward: NO_SHARD, fsdp_sharding_strategy: NO_SHARD}\n", "");
  tap_ok (c->sharding.strategy == NO_SHARD, "reshard_after_forward as a strategy's name");
  c = load (TINY "distributed_type: MULTI_GPU\n", "--fsdp_offload_params false --fsdp_auto_wrap_policy NO_WRAP");
  tap_ok (c->sharding.strategy == NO_SHARD && !strcmp (c->sharding.wrap, "model"), "MULTI_GPU is DDP; names on the command line");
}

static void settled (void)
{
  struct conf *c = load (TINY, "--train.steps 10");
  tap_ok (c->schedule.warmup == 1, "a short run has a short warm-up");
  c = load (TINY, "--train.steps 5000");
  tap_ok (c->schedule.warmup == 20 && c->schedule.min_lr == 3e-5, "a long run has 20 steps");
  c = load (TINY, "--train.steps 30 --schedule.warmup 25 --optimizer.lr 1e-5");
  tap_ok (c->schedule.warmup == 25 && c->schedule.min_lr == 1e-5 / 10, "what was given stays; min_lr follows lr");
  struct conf d = *c;
  struct err e;
  tap_ok (!load_on (&d, NULL, "--train.steps 100", &e) && d.schedule.warmup == 25, "and stays when more is loaded on top");
  c = load (TINY, "--schedule.type wsd --train.steps 50");
  tap_ok (c->schedule.decay == 5, "wsd's decay");
}

static int round_trip (const struct conf *c)
{
  struct conf d;
  struct err e;
  char *text = conf_text (c), out[2100];
  conf_default (&d);
  int good = !load_on (&d, text, "", &e) && !memcmp (c, &d, offsetof (struct conf, given));
  if (!good) fprintf (stderr, "# %s %s\n", e.msg, conf_differ (c, &d, out, sizeof out) ? out : "");
  char *again = conf_text (&d);
  good &= !strcmp (text, again);
  xfree (text);
  xfree (again);
  return good;
}

static void dumps (void)
{
  tap_ok (round_trip (load (TINY, "")), "the defaults read back to the bit");
  tap_ok (round_trip (load ("model: llama3.1-405b\noptimizer: {lr: 0.1234567890123456789, eps: 1e-310}\nrun.dir: \"a b: #\\\"\\\\ \\xe9\\t'\"\n"
                            "data.train: [\"0.5:- x\", y]\ndebug.dump: '~'\ndata.tokenizer: 'null'\nrun.max_minutes: 1e100\n",
                            "")),
          "odd numbers and texts read back");
  tap_ok (round_trip (load ("model: {base: qwen2.5-7b, init_std: 0.3}\nmodel.rope_theta: 1000001\n",
                            "--sharding.strategy HYBRID_SHARD "
                            "--mesh.dp_replicate 2 --mesh.order dp-tp-pp --pipeline.schedule interleaved --pipeline.chunks 2")),
          "a changed model reads back");
}

/* Another value than ROW has in C, as text: one that passes the checks. */
static void other_value (const struct row *r, const struct conf *c, char out[static STR])
{
  static const char *const special[][2] = { { "model.dim", "128" }, { "model.heads", "4" }, { "model.kv_heads", "4" },
                                            { "model.head_dim", "16" },
    { "model.rope_scaling.factor", "8" }, { "data.format", "u16" }, { "run.device", "cpu" }, { "mesh.order", "pp-tp-dp" },
    { "mesh.dp_replicate", "1" }, { "mesh.tp", "2" }, { "sharding.wrap", "model" }, { "recompute.keep", "norms" }, { "pipeline.chunks", "3" },
      { "pipeline.split", "4" }, { "run.profile", "10:12" }, { "data.skip", "3-7" },
    { "model.rope_scaling.high", "9" }, { "train.global_batch", "8" }, { "schedule.min_lr", "1e-5" },
      { "schedule.steps", "90" } };
  char all[256];
  row_get (r, c, out);
  for (int i = 0; i < LEN (special); i++) if (!strcmp (r->name, special[i][0])) { snprintf (out, STR, "%s",
      special[i][1]); return; }
  switch (r->type) {
  case T_INT: case T_COUNT: snprintf (out, STR, "%lld", atoll (out) + 1); break;
  case T_REAL: snprintf (out, STR, "%.17g", atof (out) * 1.0000001 + (atof (out) == 0)); break;
  case T_BOOL: strcpy (out, *out == 't' ? "false" : "true"); break;
  case T_ENUM:
    row_takes (r, all);
    strcpy (out, strtok (strcmp (out, "fp32") ? all : strchr (all, '|') + 1, "|"));
    break;
  default: strcat (out, "x");
  }
}

/* For each option: its own dump line reads back, the text's hash changes, conf_differ names it and nothing else. */
static void each_row (void)
{
  const struct conf base = *load ("model: {base: tiny, rope_scaling: {factor: 32, original: 64}}\nrun.deterministic: true\nsharding.reshard: step\n"
    "sharding.strategy: SHARD_OPT\nsharding.cpu_offload: params\npipeline: {schedule: interleaved, chunks: 2}\nrecompute.mode: full\nschedule.type: wsd\nrun.save_error: continue\n"
    "data.skip: 4\nspike: {action: skip, watch: loss}\ndebug.flip_kind: weight\n", "");
  char *text = conf_text (&base);
  int bad_rows = 0, model_keys = 0;
  for (int i = 1; i < conf_rows; i++) {
    const struct row *r = &conf_row[i];
    struct conf d = base;
    struct err e;
    char value[STR], option[2 * STR], word[STR], out[2 * STR + 200] = "";
    if (!strcmp (r->name, "pipeline.chunks") || !strcmp (r->name, "pipeline.split")) continue;
      /* bound to the mesh: tested above */
    other_value (r, &base, value);
    snprintf (option, sizeof option, "%s--%s=%s", strcmp (r->name, "optimizer.lr") ? "" : "--schedule.min_lr=3e-5 ", r->name,
              value);
    int rc = load_on (&d, NULL, option, &e);
    if (!strcmp (r->name, "pipeline.schedule")) rc = 0, d.pipeline.schedule = SCHED_GPIPE;
    char *now_ = conf_text (&d);
    snprintf (word, sizeof word, "%s ", r->name);
    int good = !rc && hash_bytes (text, strlen (text), 0) != hash_bytes (now_, strlen (now_), 0)
      && conf_differ (&base, &d, out, sizeof out)
               && !strncmp (out, word, strlen (word));
    struct conf back = d;
    char want[256];
    row_get (r, &base, value);
    good = good && !row_set (r, &back, value, true, want) && !conf_differ (&base, &back, out, sizeof out);
    if (!good) bad_rows++, fprintf (stderr, "# %s: %s %s\n", option, e.msg, out);
    model_keys += good && !strncmp (r->name, "model.", 6);
    xfree (now_);
  }
  xfree (text);
  tap_ok (!bad_rows, "each of %d options: changing it changes the text's hash, and it is named", conf_rows - 3);
  tap_ok (model_keys == 20, "among them all 20 keys of a model");
}

/* Each row and alias is spelled once; each row is in --help, in the man page and within the struct. */
static void table (void)
{
  int good = 1;
  char *help, *man, word[200];
  size_t n;
  FILE *f = open_memstream (&help, &n);
  conf_help (f);
  fclose (f);
  f = open_memstream (&man, &n);
  conf_man (f);
  fclose (f);
  for (int i = 0; i < conf_rows; i++) {
    const struct row *r = &conf_row[i];
    good &= row_find (r->name) == i && r->offset + r->size <= sizeof (struct conf) && strlen (r->aliases) < 200;
    snprintf (word, sizeof word, "--%s ", r->name);
    if (!strstr (help, word)) good = 0, fprintf (stderr, "# no help for %s\n", r->name);
    char aliases[200];
    strcpy (aliases, r->aliases);
    for (char *a = strtok (aliases, " "); a; a = strtok (NULL, " "))
      if (row_find (a) != i || foreign_find (a, true)) good = 0, fprintf (stderr, "# %s of %s is taken\n", a, r->name);
    for (int k = 0; k < i; k++) if (r->size && conf_row[k].offset + conf_row[k].size > r->offset
                                    && conf_row[k].offset < r->offset + r->size)
      good = 0, fprintf (stderr, "# %s and %s share memory\n", r->name, conf_row[k].name);
  }
  for (int i = 0; i < foreign_rows; i++)
    good &= foreign_find (foreign_table[i].key, true) == &foreign_table[i]
      && (!foreign_table[i].target || row_find (foreign_table[i].target) >= 0);
  tap_ok (good, "the table agrees with itself");
  int pages = 0;
  for (const char *s = man; (s = strstr (s, ".TP\n")); s++) pages++;
  tap_ok (pages == conf_rows + foreign_rows && !strstr (man, "\n'"), "and each option is in the man page");
  free (help);
  free (man);
}

int main (int argc, char **argv)
{
  MPI_Init (&argc, &argv);
  say_level (SAY_ERROR);
  table ();
  good_yaml ();
  models ();
  places ();
  said ();
  megatron ();
  accelerate ();
  settled ();
  dumps ();
  each_row ();
  for (int i = 0; i < LEN (bad); i++) refused (bad[i].yaml, bad[i].options, bad[i].words);
  tap_ok (base_live () == 0, "no memory left");
  tap_done ();
  MPI_Finalize ();
  return 0;
}
