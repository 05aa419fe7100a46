/* import_torchtitan: TorchTitan's TOML. Sources: torchtitan/config/job_config.py and docs of 2024-2025; both the older names (training.batch_size,
   checkpoint.enable_checkpoint, experimental.*) and the newer. */
#include "config.h"
#include "import.h"
#include "toml.h"
#include <stdlib.h>
#include <string.h>

#define LOGS "logging: metrics.jsonl has a record each step"
#define FP8 "how fp8 is done: here all products of layers, a unit a tensor that is a power of two, weights gathered in bf16"
static const struct rule rules[] = {
  { "job.dump_folder", "run.dir", "*=$", "" },
  { "job.", NULL, "*=", "" },
  { "profiling.", NULL, "*=", "profiling: pretrain plan and metrics.jsonl show times by axis" },
  { "metrics.log_freq", "run.log_every", "*=$", "" },
  { "metrics.", NULL, "*=", LOGS },
  { "comm.", NULL, "*=", "waiting: run.watchdog" },
  { "fault_tolerance.enable", NULL, "false=|true=!TorchFT's replicas are not offered", "" },
  { "fault_tolerance.", NULL, "*=", "" },
  { "model.tokenizer_path", NULL, "*=", "data.tokenizer is of our own files" },
  { "model.hf_assets_path", NULL, "*=", "data.tokenizer is of our own files" },
  { "model.norm_type", NULL, "rmsnorm=|*=!RMSNorm is offered", "as it is here" },
  { "model.print_after_conversion", NULL, "*=", "" },
  { "optimizer.name", NULL, "AdamW=|*=!AdamW is offered", "as it is here" },
  { "optimizer.lr", "optimizer.lr", "*=$", "" },
  { "optimizer.eps", "optimizer.eps", "*=$", "" },
  { "optimizer.beta1", "optimizer.beta1", "*=$", "" },
  { "optimizer.beta2", "optimizer.beta2", "*=$", "" },
  { "optimizer.weight_decay", "optimizer.weight_decay", "*=$", "" },
  { "optimizer.implementation", NULL, "*=", "AdamW is one kernel here" },
  { "optimizer.fused", NULL, "*=", "AdamW is one kernel here" },
  { "optimizer.early_step_in_backward", NULL, "false=|true=!the optimizer steps after the norm of all gradients is known", "as it is here" },
  { "lr_scheduler.warmup_steps", "schedule.warmup", "*=$", "" },
  { "training.warmup_steps", "schedule.warmup", "*=$", "" },
  { "lr_scheduler.decay_type", "schedule.type", "linear=linear|cosine=cosine|sqrt=!linear and cosine are offered", "" },
  { "lr_scheduler.decay_ratio", NULL, "*=~schedule.type wsd with schedule.decay is this; a plan does not depend on it", "" },
  { "lr_scheduler.lr_min", NULL, "*=~a share of the peak; schedule.min_lr is a rate; a plan does not depend on it", "" },
  { "lr_scheduler.min_lr_factor", NULL, "*=~a share of the peak; schedule.min_lr is a rate; a plan does not depend on it", "" },
  { "training.seq_len", "train.seq_len", "*=$", "" },
  { "training.steps", "train.steps", "*=$", "" },
  { "training.max_norm", "optimizer.clip", "*=$", "" },
  { "training.seed", "train.seed", "*=$", "" },
  { "training.deterministic", "run.deterministic", "true=yes|false=auto", "" },
  { "training.dataset", NULL, "*=", "data.train names token files" },
  { "training.dataset_path", NULL, "*=", "data.train names token files" },
  { "training.compile", NULL, "*=", "kernels are compiled already" },
  { "training.gc_freq", NULL, "*=", "C has no collector" },
  { "training.gc_debug", NULL, "*=", "C has no collector" },
  { "training.enable_cpu_offload", "sharding.cpu_offload", "true=params|false=none", "" },
  { "training.mixed_precision_reduce", "sharding.reduce_dtype", "float32=fp32|bfloat16=bf16", "bfloat16 or float32 is expected" },
  { "training.dtype", NULL, "float32=|bfloat16=!masters are fp32 here", "as it is here" },
  { "training.fsdp_reshard_after_forward", "sharding.reshard", "default=auto|always=forward|never=backward", "" },
  { "parallelism.fsdp_reshard_after_forward", "sharding.reshard", "default=auto|always=forward|never=backward", "" },
  { "training.tensor_parallel_degree", "mesh.tp", "*=$", "" },
  { "parallelism.tensor_parallel_degree", "mesh.tp", "*=$", "" },
  { "parallelism.pipeline_parallel_degree", "mesh.pp", "*=$", "" },
  { "experimental.pipeline_parallel_degree", "mesh.pp", "*=$", "" },
  { "parallelism.context_parallel_degree", NULL, "1=|*=!context parallelism is not offered", "one: none" },
  { "experimental.context_parallel_degree", NULL, "1=|*=!context parallelism is not offered", "one: none" },
  { "parallelism.context_parallel_rotate_method", NULL, "*=", "" },
  { "parallelism.expert_parallel_degree", NULL, "1=|*=!expert parallelism is not offered", "one: none" },
  { "parallelism.expert_tensor_parallel_degree", NULL, "1=|*=!expert parallelism is not offered", "one: none" },
  { "parallelism.enable_async_tensor_parallel", "mesh.tp_overlap", "true=2|false=1", "in two parts" },
  { "experimental.enable_async_tensor_parallel", "mesh.tp_overlap", "true=2|false=1", "in two parts" },
  { "parallelism.disable_loss_parallel", NULL, "false=|true=!the loss is cut by vocabulary with tensor parallelism", "as it is here" },
  { "training.disable_loss_parallel", NULL, "false=|true=!the loss is cut by vocabulary with tensor parallelism", "as it is here" },
  { "parallelism.enable_compiled_autograd", NULL, "*=", "kernels are compiled already" },
  { "experimental.enable_compiled_autograd", NULL, "*=", "kernels are compiled already" },
  { "parallelism.pipeline_parallel_split_points", NULL, "=|*=~pipeline.split says layers of each stage, such as 20,20", "as even as can be" },
  { "parallelism.module_fqns_per_model_part", NULL, "=|*=!pipeline.split says layers of each stage, such as 20,20", "as even as can be" },
  { "checkpoint.interval", "run.save_every", "*=$", "" },
  { "checkpoint.keep_latest_k", "run.keep", "*=$", "" },
  { "checkpoint.", NULL, "*=", "checkpoints are written behind training always, whole and sharded" },
  { "compile.", NULL, "*=", "kernels are compiled already" },
  { "float8.", NULL, "*=", FP8 },
  { "quantize.linear.float8.", NULL, "*=", FP8 },
  { "quantize.", NULL, "*=!of the converters float8 is offered, as train.dtype fp8", "" },
  { "mx.", NULL, "*=!of the converters float8 is offered, as train.dtype fp8", "" },
  { "memory_estimation.", NULL, "*=", "this is what the plan does" },
  { "validation.freq", "eval.every", "*=$", "" },
  { "validation.", NULL, "*=", "" },
  { "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns", NULL, "*=", "" },
  { "activation_checkpoint.early_stop", NULL, "*=", "" },
  { "experimental.custom_import", NULL, "=|*=!the file brings code of its own", "none" },
  { "experimental.custom_args_module", NULL, "=|*=!the file brings code of its own", "none" },
};

/* Handled together below, so that no rule of their own is needed. */
static const char *const joint[] = { "model.name", "model.flavor", "model.converters", "training.mixed_precision_param", "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option",
  "parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree", "training.data_parallel_replicate_degree",
  "training.data_parallel_shard_degree", "training.data_parallel_degree", "training.batch_size", "training.local_batch_size", "training.global_batch_size",
  "parallelism.pipeline_parallel_microbatch_size", "parallelism.pipeline_parallel_schedule", "experimental.pipeline_parallel_schedule",
  "experimental.pipeline_parallel_microbatches", "parallelism.pipeline_parallel_layers_per_stage", "parallelism.pipeline_parallel_schedule_csv" };

struct titan { struct import *im; const struct settings *s; int64_t tp, pp, rep, shard, dp, layers; };   /* dp 0: not known */

static const struct setting *either (const struct settings *s, const char *a, const char *b)
{
  const struct setting *t = NULL;
  if (!import_value (s, a, &t) && b) import_value (s, b, &t);
  return t;
}

static int64_t number (const struct setting *t, int64_t def) { return t ? strtoll (t->value, NULL, 10) : def; }

static void set_number (struct titan *w, const struct setting *t, const char *key, int64_t v)
{
  char text[32];
  snprintf (text, sizeof text, "%lld", (long long) v);
  import_set (w->im, t, key, text);
}

static struct setting silent (const char *key) { return (struct setting) { (char *) key, "(left out)" }; }

static void take_model (struct titan *w)
{
  static const struct { const char *name, *flavor, *model; int64_t layers; } known[] = {
    { "llama3", "8B", "llama3.1-8b", 32 }, { "llama3", "70B", "llama3.1-70b", 80 }, { "llama3", "405B", "llama3.1-405b", 126 },
    { "qwen3", "8B", "qwen3-8b", 36 } };
  const struct setting *name = either (w->s, "model.name", NULL), *flavor = either (w->s, "model.flavor", NULL);
  if (w->im->model_told) {
    for (int i = 0; i < 2; i++) if (i ? flavor : name) import_say (w->im, NOTE_IDLE, i ? flavor : name, "another source names the model");
    return;
  }
  if (!name || !flavor) return;
  for (int i = 0; i < LEN (known); i++)
    if (!strcmp (name->value, known[i].name) && !strcmp (flavor->value, known[i].flavor)) {
      import_say (w->im, NOTE_IDLE, name, "with the flavor");
      import_set (w->im, flavor, "model", known[i].model);
      w->layers = known[i].layers;
      w->im->model_told = true;
      return;
    }
  import_say (w->im, NOTE_IDLE, name, "with the flavor");
  import_say (w->im, NOTE_BAD, flavor, "of TorchTitan's models llama3 8B, 70B, 405B and qwen3 8B are known here: say --model");
}

/* Axes of data parallelism, and with them the strategy. TorchTitan's mesh has pp outermost, then replicas, shards, tp. */
static void take_dp (struct titan *w)
{
  const struct setting *rep = either (w->s, "parallelism.data_parallel_replicate_degree", "training.data_parallel_replicate_degree");
  const struct setting *shard = either (w->s, "parallelism.data_parallel_shard_degree", "training.data_parallel_shard_degree");
  if (!shard) shard = either (w->s, "training.data_parallel_degree", NULL);
  struct setting none = silent ("parallelism.data_parallel_shard_degree"), order = silent ("the order of the mesh");
  w->rep = number (rep, 1);
  w->shard = number (shard, -1);
  if (rep) set_number (w, rep, "mesh.dp_replicate", w->rep);
  if (w->shard > 0) set_number (w, shard, "mesh.dp_shard", w->shard);
  else import_say (w->im, NOTE_IDLE, shard ? shard : &none, "mesh.dp_shard takes the ranks that remain");
  if (w->shard > 0) w->dp = w->rep * w->shard;
  else if (w->im->world) w->dp = w->im->world / (w->tp * w->pp);
  const char *strategy = w->shard == 1 ? "NO_SHARD" : w->rep > 1 ? "HYBRID_SHARD" : "FULL_SHARD";
  import_set (w->im, shard ? shard : &none, "sharding.strategy", strategy);
  import_set (w->im, &order, "mesh.order", "tp-dp-pp");
}

static void take_batch (struct titan *w)
{
  const struct setting *local = either (w->s, "training.local_batch_size", "training.batch_size");
  const struct setting *global = either (w->s, "training.global_batch_size", NULL);
  const struct setting *micro = either (w->s, "parallelism.pipeline_parallel_microbatch_size", NULL);
  const struct setting *parts = either (w->s, "experimental.pipeline_parallel_microbatches", NULL);
  struct setting none = silent ("training.local_batch_size");
  if (!local) local = &none;
  int64_t b = number (local == &none ? NULL : local, 8), m = b;
  if (w->pp > 1) m = parts ? b / MAX (number (parts, 1), 1) : number (micro, 1);
  if (micro && w->pp == 1) import_say (w->im, NOTE_IDLE, micro, "no meaning without a pipeline");
  set_number (w, micro && w->pp > 1 ? micro : parts && w->pp > 1 ? parts : local, "train.micro_batch", MAX (m, 1));
  int64_t g = number (global, -1);
  if (g > 0) set_number (w, global, "train.global_batch", g);
  else if (w->dp) set_number (w, global ? global : local, "train.global_batch", b * w->dp);
  else if (m == b) import_say (w->im, NOTE_IDLE, global ? global : local, "train.global_batch is micro_batch x dp");
  else import_say (w->im, NOTE_BAD, global ? global : local, "the global batch follows from the number of GPUs: say --gpus");
}

/* Layers recomputed: "selective" by op keeps what attention and the larger products made; by a number n every n-th layer is recomputed whole. */
static void take_recompute (struct titan *w)
{
  const struct setting *mode = either (w->s, "activation_checkpoint.mode", NULL), *option = either (w->s, "activation_checkpoint.selective_ac_option", NULL);
  struct setting none = silent ("activation_checkpoint.mode"), by_two = silent ("activation_checkpoint.selective_ac_option");
  bool selective = !mode || !strcmp (mode->value, "selective");
  if (!mode) mode = &none;
  if (!selective && option) import_say (w->im, NOTE_IDLE, option, "counts with mode selective only");
  if (!strcmp (mode->value, "none") || !strcmp (mode->value, "full")) { import_set (w->im, mode, "recompute.mode", mode->value); return; }
  if (!selective) { import_say (w->im, NOTE_BAD, mode, "none, selective or full is expected"); return; }
  if (!option) option = &by_two;
  int64_t every = option == &by_two ? 2 : number (option, 0);
  if (every > 0) {
    import_set (w->im, mode, "recompute.mode", "full");
    set_number (w, option, "recompute.every", every);
  } else {
    import_set (w->im, mode, "recompute.mode", "selective");
    import_say (w->im, NOTE_IDLE, option, "TorchTitan does every second product again and keeps attention; see recompute.keep");
  }
}

static void take_schedule (struct titan *w)
{
  static const struct { const char *name, *ours; bool chunks; } known[] = {
    { "1F1B", "1f1b" }, { "GPipe", "gpipe" }, { "Interleaved1F1B", "interleaved", true } };
  const struct setting *t = either (w->s, "parallelism.pipeline_parallel_schedule", "experimental.pipeline_parallel_schedule");
  const struct setting *layers = either (w->s, "parallelism.pipeline_parallel_layers_per_stage", NULL);
  const struct setting *csv = either (w->s, "parallelism.pipeline_parallel_schedule_csv", NULL);
  struct setting two = silent ("parallelism.pipeline_parallel_layers_per_stage");
  int i = 0;
  if (csv && *csv->value) import_say (w->im, NOTE_BAD, csv, "schedules from a file are not offered");
  if (w->pp == 1) {
    if (t) import_say (w->im, NOTE_IDLE, t, "no meaning without a pipeline");
    if (layers) import_say (w->im, NOTE_IDLE, layers, "no meaning without a pipeline");
    return;
  }
  while (t && i < LEN (known) && strcmp (t->value, known[i].name)) i++;
  if (i == LEN (known)) { import_say (w->im, NOTE_BAD, t, "1F1B, GPipe and Interleaved1F1B are offered"); return; }
  if (t) import_set (w->im, t, "pipeline.schedule", known[i].ours);
  if (t && known[i].chunks) {
    int64_t n = layers ? number (layers, 1) : 0, chunks = 2;
    if (layers && !w->layers) { import_say (w->im, NOTE_BAD, layers, "say pipeline.chunks: layers of a rank / this, once the model is known"); return; }
    if (layers) chunks = MAX (ceil_div (w->layers, MAX (n, 1) * w->pp), 1);
    set_number (w, layers ? layers : &two, "pipeline.chunks", chunks);
  } else if (layers) import_say (w->im, NOTE_IDLE, layers, "one stretch of layers a stage");
}

/* The type of the products: the parameters' type on the wire, and the float8 converter on top. */
static void take_type (struct titan *w)
{
  const struct setting *type = either (w->s, "training.mixed_precision_param", NULL), *conv = either (w->s, "model.converters", NULL);
  struct setting none = silent ("training.mixed_precision_param");
  bool fp8 = conv && !strcmp (conv->value, "float8"), plain = !type || !strcmp (type->value, "bfloat16");
  if (conv && *conv->value && !fp8) import_say (w->im, NOTE_BAD, conv, "of the converters float8 is offered, as train.dtype fp8");
  if (conv && !*conv->value) import_say (w->im, NOTE_IDLE, conv, "none");
  if (fp8) import_set (w->im, conv, "train.dtype", "fp8");
  if (fp8 && type) import_say (w->im, plain ? NOTE_IDLE : NOTE_BAD, type, "train.dtype fp8 is bf16 with the layers' products in 8 bits");
  if (fp8) return;
  if (!plain && strcmp (type->value, "float32")) import_say (w->im, NOTE_BAD, type, "bfloat16 or float32 is expected");
  else import_set (w->im, type ? type : &none, "train.dtype", plain ? "bf16" : "fp32");
}

/* What TorchTitan's classes say where the file is silent and our default differs. */
static void take_silent (struct titan *w)
{
  static const struct { const char *key, *row, *value; } def[] = {
    { "training.seq_len", "train.seq_len", "2048" }, { "lr_scheduler.decay_type", "schedule.type", "linear" } };
  for (int i = 0; i < LEN (def); i++) {
    struct setting none = silent (def[i].key);
    if (!import_value (w->s, def[i].key, NULL)) import_set (w->im, &none, def[i].row, def[i].value);
  }
}

int import_torchtitan (struct import *im, const char *path, struct err *e)
{
  struct settings s = { 0 };
  int rc = toml_settings (&s, path, e);
  snprintf (im->set.source, sizeof im->set.source, "%s", s.source);
  struct titan w = { .im = im, .s = &s };
  w.tp = MAX (number (either (&s, "parallelism.tensor_parallel_degree", "training.tensor_parallel_degree"), 1), 1);
  w.pp = MAX (number (either (&s, "parallelism.pipeline_parallel_degree", "experimental.pipeline_parallel_degree"), 1), 1);
  for (int i = 0; i < s.n && !rc; i++) {
    bool later = false;
    for (int k = 0; k < LEN (joint); k++) later |= !strcmp (s.at[i].key, joint[k]);
    if (!later && !import_rule (im, &s.at[i], rules, LEN (rules)))
      import_say (im, NOTE_BAD, &s.at[i], "not a setting of TorchTitan that is known here");
  }
  if (!rc) {
    take_model (&w);
    take_dp (&w);
    take_batch (&w);
    take_recompute (&w);
    take_schedule (&w);
    take_type (&w);
    take_silent (&w);
    if (w.shard > 0) im->gpus = (int) (w.dp * w.tp * w.pp);
  }
  settings_free (&s);
  return rc ? rc : import_refuse (im, e);
}
