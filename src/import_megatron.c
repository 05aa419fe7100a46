/* import_megatron: Megatron-LM's flags as they stand in a launch script. Source: megatron/training/arguments.py, core 0.8 to 0.12. What conf_alias.c knows is
   taken from there; here is what only a plan or a whole script has. */
#include "config.h"
#include "import.h"
#include <stdlib.h>
#include <string.h>

enum { WORDS = 600 };

/* The words of a shell's command line: quotes, and line ends with a backslash. */
struct words { int n; char *at[WORDS]; char *room; };

static int split (struct words *w, const char *text, struct err *e)
{
  char *out = w->room = xalloc (strlen (text) + 2, "flags"), quote = 0;
  bool inside = false;
  for (const char *s = text; ; s++) {
    bool space = !quote && strchr (" \t\r\n", *s);   /* the zero byte too */
    if (!quote && *s == '\\' && (s[1] == '\n' || s[1] == ' ' || !s[1])) continue;
    if (*s == '$' && quote != '\'') return user_err (e, "--from-megatron: `%.30s` is the shell's variable: give the flags with its value", s);
    if (!*s && quote) return user_err (e, "--from-megatron: a quote does not end");
    if (space && inside) *out++ = 0, inside = false;
    if (!*s) return 0;
    if (space) continue;
    if (quote ? *s == quote : *s == '"' || *s == '\'') quote = quote ? 0 : *s;
    else if (*s == '\\' && quote != '\'' && s[1]) { s++; if (!inside) goto start; *out++ = *s; continue; }
    else {
    start:
      if (!inside) {
        if (w->n == WORDS) return user_err (e, "--from-megatron: more than %d words", WORDS);
        w->at[w->n++] = out;
        inside = true;
      }
      *out++ = *s;
    }
  }
}

static bool is_flag (const char *s) { return s[0] == '-' && s[1] == '-' && s[2]; }

/* Flags with their values, without the dashes; a launcher before the script says how many processes there are. */
static int read_flags (const char *text, struct settings *s, struct import *im, struct err *e)
{
  struct words w = { 0 };
  int rc = split (&w, text, e), first = 0;
  for (int i = 0; i < w.n; i++) {
    size_t n = strlen (w.at[i]);
    if (n > 3 && !strcmp (w.at[i] + n - 3, ".py")) first = i + 1;
  }
  int per_node = 0, nodes = 1;
  for (int i = 0; i + 1 < first; i++) {
    char *eq = strchr (w.at[i], '=');
    const char *v = eq ? eq + 1 : w.at[i + 1];
    size_t n = eq ? (size_t) (eq - w.at[i]) : strlen (w.at[i]);
    if (n > 2 && key_same ("nproc_per_node", w.at[i] + 2, n - 2)) per_node = atoi (v);
    if (n > 2 && key_same ("nnodes", w.at[i] + 2, n - 2)) nodes = atoi (v);
  }
  im->gpus = per_node * nodes;
  im->nodes = per_node ? nodes : 0;
  for (int i = first; i < w.n && !rc; i++) {
    char value[STR] = "", *eq = strchr (w.at[i], '=');
    if (!is_flag (w.at[i])) { rc = user_err (e, "--from-megatron: `%.100s` is no flag; flags look like --tensor-model-parallel-size 8", w.at[i]); break; }
    const char *key = w.at[i] + 2;
    if (eq) *eq = 0, snprintf (value, sizeof value, "%s", eq + 1);
    for (size_t at = 0; !eq && i + 1 < w.n && !is_flag (w.at[i + 1]); i++)
      at += (size_t) snprintf (value + at, at < sizeof value ? sizeof value - at : 0, "%s%s", at ? " " : "", w.at[i + 1]);
    settings_add (s, key, *value ? value : "true", 0);
  }
  xfree (w.room);
  return rc;
}

#define DATA "of the data: data.* names token files"
#define LOGS "logging: metrics.jsonl has a record each step"
#define FP8 "how units are found: here a power of two a tensor, from its own maximum"
#define KERNELS "kernels are fused already"
static const struct rule rules[] = {
  { "accumulate_allreduce_grads_in_fp32", "sharding.reduce_dtype", "true=fp32", "" },
  { "grad_reduce_in_bf16", "sharding.reduce_dtype", "true=bf16", "" },
  { "attention_softmax_in_fp32", NULL, "*=", "as it is here" },
  { "apply_query_key_layer_scaling", NULL, "true=!a trick for fp16", "" },
  { "attention_dropout", NULL, "0=|0.0=|*=!dropout is not offered", "none, as it is here" },
  { "hidden_dropout", NULL, "0=|0.0=|*=!dropout is not offered", "none, as it is here" },
  { "optimizer", NULL, "adam=|*=!AdamW is offered", "AdamW, as it is here" },
  { "use_rotary_position_embeddings", NULL, "*=", "as it is here" },
  { "use_rope", NULL, "*=", "as it is here" },
  { "no_position_embedding", NULL, "*=", "as it is here: RoPE" },
  { "rotary_percent", NULL, "1=|1.0=|*=!RoPE turns whole heads here", "as it is here" },
  { "rotary_seq_len_interpolation_factor", NULL, "1=|*=!of the ways to stretch RoPE Llama 3's is offered", "none" },
  { "use_rope_scaling", "model.rope_scaling.factor", "true=8", "" },
  { "squared_relu", NULL, "true=!the feed-forward part is SwiGLU", "" },
  { "openai_gelu", NULL, "true=!the feed-forward part is SwiGLU", "" },
  { "num_experts", NULL, "*=!mixtures of experts are not offered", "" },
  { "fp8_format", "train.dtype", "hybrid=fp8|e4m3=fp8", "hybrid or e4m3 is expected" },
  { "fp8_hybrid", "train.dtype", "true=fp8", "" },
  { "fp8_e4m3", "train.dtype", "true=fp8", "" },
  { "fp8_param_gather", NULL, "*=!weights are gathered in bf16", "" },
  { "fp8_", NULL, "*=", FP8 },
  { "recompute_activations", "recompute.mode", "true=selective", "" },
  { "recompute_method", NULL, "uniform=|block=!recompute.every N is offered: each N-th layer", "each layer alone" },
  { "recompute_num_layers", NULL, "1=|*=~each layer is recomputed alone here: its input is kept", "each layer alone" },
  { "recompute_modules", NULL, "core_attn=|*=!recompute.mode selective does attention again", "as it is here" },
  { "distribute_saved_activations", NULL, "true=!saved inputs are not cut over tp", "" },
  { "no_clone_scatter_output_in_embedding", NULL, "*=", "" },
  { "tp_comm_overlap", "mesh.tp_overlap", "true=2", "in two parts: what a collective needs to begin costs more than smaller ones hide" },
  { "use_tp_pp_dp_mapping", "mesh.order", "true=tp-pp-dp", "" },
  { "use_torch_fsdp2", "sharding.strategy", "true=FULL_SHARD", "" },
  { "use_megatron_fsdp", "sharding.strategy", "true=FULL_SHARD", "" },
  { "use_custom_fsdp", "sharding.strategy", "true=FULL_SHARD", "" },
  { "data_parallel_sharding_strategy", "sharding.strategy", "no_shard=NO_SHARD|optim=SHARD_OPT|optim_grads=SHARD_GRAD_OP|optim_grads_params=FULL_SHARD", "" },
  { "num_distributed_optimizer_instances", NULL, "1=|*=!replicas of a sharded optimizer: say sharding.strategy HYBRID_SHARD and mesh.dp_replicate", "one, as it is here" },
  { "ddp_bucket_size", NULL, "*=", "a unit is a layer here" },
  { "overlap_p2p_communication", NULL, "*=", "sends run beside computation always" },
  { "no_overlap_p2p_communication", NULL, "*=", "sends run beside computation always" },
  { "align_grad_reduce", NULL, "*=", "" },
  { "delay_grad_reduce", NULL, "*=", "" },
  { "cpu_offloading", NULL, "*=!activations are not offloaded", "" },
  { "optimizer_cpu_offload", "sharding.cpu_offload", "true=optimizer", "" },
  { "rampup_batch_size", NULL, "*=!the batch does not grow during a run here", "" },
  { "train_samples", NULL, "*=!say --train-iters: steps are counted here", "" },
  { "lr_decay_samples", NULL, "*=!say --lr-decay-iters: steps are counted here", "" },
  { "lr_warmup_samples", NULL, "*=!say --lr-warmup-iters: steps are counted here", "" },
  { "lr_warmup_fraction", NULL, "*=~schedule.warmup counts steps; a plan does not depend on it", "" },
  { "lr_decay_style", "schedule.type", "linear=linear|cosine=cosine|constant=constant|WSD=wsd", "" },
  { "lr_wsd_decay_style", NULL, "*=", "wsd's last steps are linear here" },
  { "override_opt_param_scheduler", NULL, "*=", "" },
  { "use_checkpoint_opt_param_scheduler", NULL, "*=", "" },
  { "padded_vocab_size", "model.vocab", "*=$", "" },
  { "make_vocab_size_divisible_by", NULL, "*=", "the vocabulary is padded inside, never outside" },
  { "transformer_impl", NULL, "*=", KERNELS },
  { "use_legacy_models", NULL, "*=", KERNELS },
  { "no_masked_softmax_fusion", NULL, "*=", KERNELS },
  { "no_bias_gelu_fusion", NULL, "*=", KERNELS },
  { "no_bias_swiglu_fusion", NULL, "*=", KERNELS },
  { "no_bias_dropout_fusion", NULL, "*=", KERNELS },
  { "no_rope_fusion", NULL, "*=", KERNELS },
  { "no_gradient_accumulation_fusion", NULL, "*=", KERNELS },
  { "no_persist_layer_norm", NULL, "*=", KERNELS },
  { "cross_entropy_loss_fusion", NULL, "*=", KERNELS },
  { "enable_cuda_graph", NULL, "*=", "steps are captured where the device can" },
  { "cuda_graph", NULL, "*=", "steps are captured where the device can" },
  { "bias_swiglu_fusion", NULL, "*=", KERNELS },
  { "attention_backend", NULL, "*=", KERNELS },
  { "manual_gc", NULL, "*=", "C has no collector" },
  { "manual_gc_interval", NULL, "*=", "C has no collector" },
  { "empty_unused_memory_level", NULL, "*=", "memory is allocated once" },
  { "use_cpu_initialization", NULL, "*=", "initial weights are the same on every device" },
  { "data_parallel_random_init", NULL, "*=", "initial weights are the same on every rank" },
  { "distributed_backend", NULL, "nccl=|gloo=|*=", "" },
  { "distributed_timeout_minutes", NULL, "*=", "run.watchdog counts seconds without progress" },
  { "exit_signal_handler", NULL, "*=", "SIGTERM saves and leaves always" },
  { "exit_interval", NULL, "*=", "train.steps and run.max_minutes end a run" },
  { "load", NULL, "*=", "a run resumes from run.dir" },
  { "finetune", NULL, "*=", "" }, { "no_load_optim", NULL, "*=", "" }, { "no_load_rng", NULL, "*=", "" },
  { "no_save_optim", NULL, "*=", "" }, { "no_save_rng", NULL, "*=", "" }, { "use_dist_ckpt", NULL, "*=", "checkpoints are sharded always" },
  { "dist_ckpt_", NULL, "*=", "checkpoints are sharded always" }, { "ckpt_", NULL, "*=", "checkpoints are sharded always" },
  { "use_checkpoint_args", NULL, "*=", "" }, { "auto_detect_ckpt_format", NULL, "*=", "" }, { "async_save", NULL, "*=", "saving runs behind training always" },
  { "split", NULL, "*=", DATA }, { "data_path", NULL, "*=", DATA }, { "train_data_path", NULL, "*=", DATA }, { "valid_data_path", NULL, "*=", DATA },
  { "test_data_path", NULL, "*=", DATA }, { "data_cache_path", NULL, "*=", DATA }, { "data_impl", NULL, "*=", DATA }, { "mock_data", NULL, "*=", DATA },
  { "vocab_file", NULL, "*=", DATA }, { "merge_file", NULL, "*=", DATA }, { "tokenizer_type", NULL, "*=", DATA }, { "tokenizer_model", NULL, "*=", DATA },
  { "num_workers", NULL, "*=", DATA }, { "dataloader_type", NULL, "*=", DATA }, { "no_mmap_bin_files", NULL, "*=", DATA },
  { "no_create_attention_mask_in_dataloader", NULL, "*=", DATA }, { "num_dataset_builder_threads", NULL, "*=", DATA }, { "eod_mask_loss", NULL, "*=", DATA },
  { "reset_position_ids", NULL, "*=", "data.document_mask does both" },
  { "tensorboard_", NULL, "*=", LOGS }, { "wandb_", NULL, "*=", LOGS }, { "log_", NULL, "*=", LOGS }, { "timing_log_", NULL, "*=", LOGS },
  { "no_check_for_nan_in_loss_and_grad", NULL, "*=", "a step whose gradient is not finite is skipped" },
  { "one_logger", NULL, "*=", LOGS }, { "no_one_logger", NULL, "*=", LOGS }, { "profile", NULL, "*=", LOGS }, { "profile_", NULL, "*=", LOGS },
  { "use_pytorch_profiler", NULL, "*=", LOGS }, { "local_rank", NULL, "*=", "" }, { "test_mode", NULL, "*=", "" },
};

/* Rules whose key ends in _ stand for all that begins so. */
static bool by_rule (struct import *im, const struct setting *t)
{
  for (int i = 0; i < LEN (rules); i++) {
    size_t n = strlen (rules[i].key);
    struct setting cut = *t;
    char key[64];
    if (rules[i].key[n - 1] == '_') {
      if (strlen (t->key) <= n || !key_same (rules[i].key, t->key, n)) continue;
      if (row_find (t->key) >= 0) continue;
      struct rule whole = rules[i];
      snprintf (key, sizeof key, "%.60s", t->key);
      whole.key = key;
      return import_rule (im, &cut, &whole, 1);
    }
    if (key_same (t->key, rules[i].key, n)) return import_rule (im, t, &rules[i], 1);
  }
  return false;
}

static int64_t number (const struct settings *s, const char *key, int64_t def)
{
  const char *v = import_value (s, key, NULL);
  return v ? strtoll (v, NULL, 10) : def;
}

static bool on (const struct settings *s, const char *key)
{
  const char *v = import_value (s, key, NULL);
  return v && !strcmp (v, "true");
}

static void one (struct import *im, const struct settings *s, const struct setting *t)
{
  const char *target;
  char ours[256];
  struct err why = { 0 };
  int row;
  const struct foreign *f;
  if (key_same (t->key, "num_layers_per_virtual_pipeline_stage", 37) || key_same (t->key, "num_virtual_stages_per_pipeline_rank", 36)) {
    int64_t pp = number (s, "pipeline_model_parallel_size", 1), layers = number (s, "num_layers", 0), n = strtoll (t->value, NULL, 10);
    bool count = strstr (t->key, "stages") != NULL;
    if (!count && !layers) { import_say (im, NOTE_BAD, t, "the number of layers is not among the flags: say --pipeline.chunks, layers of a rank / this"); return; }
    snprintf (ours, sizeof ours, "%lld", (long long) (count ? n : MAX (1, layers / MAX (1, pp * MAX (1, n)))));
    if (strcmp (ours, "1")) settings_add (&im->set, "pipeline.schedule", "interleaved", 0);
    import_set (im, t, "pipeline.chunks", ours);
  } else if (key_same (t->key, "bf16", 4) && (import_value (s, "fp8_format", NULL) || on (s, "fp8_hybrid") || on (s, "fp8_e4m3")))
    import_say (im, NOTE_IDLE, t, "train.dtype fp8 is bf16 with the layers' products in 8 bits");
  else if (by_rule (im, t)) return;
  else if ((f = foreign_find (t->key, false)) && row_find (t->key) < 0) {
    if (foreign_meaning (s, t, f, &target, ours, &why)) import_say (im, NOTE_BAD, t, "%s", strrchr (why.msg, ':') ? strrchr (why.msg, ':') + 2 : why.msg);
    else if (*ours == '~' || !*ours) import_say (im, NOTE_IDLE, t, "%s", *ours ? ours + 1 : "as it is here");
    else import_set (im, t, target, ours);
  } else if ((row = row_find (t->key)) > 0) import_set (im, t, conf_row[row].name, t->value);
  else import_say (im, NOTE_BAD, t, "not a flag of Megatron that is known here");
}

/* What a script that describes a model leaves to Megatron's defaults: those of a GPT-2, which this program does not have. */
static void silent_model (struct import *im, const struct settings *s)
{
  static const struct { const char *flag, *why; } need[] = {
    { "swiglu", "left out, this is GELU in Megatron: the feed-forward part is SwiGLU here" },
    { "normalization", "left out, this is LayerNorm in Megatron: RMSNorm is offered" },
    { "position_embedding_type", "left out, positions are learned in Megatron: RoPE is offered" },
    { "disable_bias_linear", "left out, linear layers have a bias in Megatron: here they have none" },
    { "attention_dropout", "left out, this is 0.1 in Megatron: dropout is not offered" },
    { "hidden_dropout", "left out, this is 0.1 in Megatron: dropout is not offered" } };
  for (int i = 0; i < LEN (need); i++) {
    struct setting t = { (char *) need[i].flag, "" };
    bool rope = i == 2 && (on (s, "use_rotary_position_embeddings") || on (s, "use_rope"));
    if (!import_value (s, need[i].flag, NULL) && !rope) import_say (im, NOTE_BAD, &t, "%s", need[i].why);
  }
  struct setting tied = { "untie_embeddings_and_output_weights", "(left out)" }, ffn = { "ffn_hidden_size", "(left out)" };
  int64_t dim = number (s, "hidden_size", 0);
  char text[32];
  if (!import_value (s, tied.key, NULL)) import_set (im, &tied, "model.tied", "true");
  snprintf (text, sizeof text, "%lld", (long long) (dim * 4 * 2 / 3 / 64 * 64));   /* what Megatron makes of a SwiGLU */
  if (!import_value (s, ffn.key, NULL) && dim) import_set (im, &ffn, "model.ffn", text);
  if (!import_value (s, "vocab_size", NULL) && !import_value (s, "padded_vocab_size", NULL)) {
    struct setting vocab = { "vocab_size", "(left out)" };
    import_say (im, NOTE_IDLE, &vocab, "comes from the tokenizer in Megatron: say --model.vocab N");
  }
}

/* Defaults of Megatron that differ from ours and matter to a plan. */
static void silent_rest (struct import *im, const struct settings *s)
{
  struct setting t = { "the order of the mesh", "(left out)" };
  if (!on (s, "use_tp_pp_dp_mapping")) import_set (im, &t, "mesh.order", "tp-dp-pp");
  t.key = "use_distributed_optimizer";
  bool sharded = on (s, "use_distributed_optimizer") || on (s, "use_torch_fsdp2") || on (s, "use_megatron_fsdp") || on (s, "use_custom_fsdp")
    || import_value (s, "data_parallel_sharding_strategy", NULL);
  if (!sharded) import_set (im, &t, "sharding.strategy", "NO_SHARD");
  t.key = "bf16";
  if (!on (s, "bf16") && !on (s, "fp16")) import_set (im, &t, "train.dtype", "fp32");
  static const char *const axis[] = { "tensor_model_parallel_size", "pipeline_model_parallel_size" }, *const row[] = { "mesh.tp", "mesh.pp" };
  for (int i = 0; i < 2; i++) {
    t.key = (char *) axis[i];
    if (!import_value (s, axis[i], NULL)) import_set (im, &t, row[i], "1");
  }
  t.key = "sequence_parallel";
  if (number (s, "tensor_model_parallel_size", 1) > 1 && !import_value (s, "sequence_parallel", NULL))
    import_say (im, NOTE_IDLE, &t, "on here with tensor parallelism always: less memory, the same bytes");
}

int import_megatron (struct import *im, const char *flags, struct err *e)
{
  struct settings s = { .source = "--from-megatron" };
  snprintf (im->set.source, sizeof im->set.source, "--from-megatron");
  int rc = read_flags (flags, &s, im, e);
  for (int i = 0; i < s.n && !rc; i++)
    for (int k = 0; k < i && !rc; k++)
      if (key_same (s.at[i].key, s.at[k].key, strlen (s.at[k].key)) && strcmp (s.at[i].value, s.at[k].value))
        rc = user_err (e, "--from-megatron: --%.80s is given twice, as `%.60s` and as `%.60s`", s.at[i].key, s.at[k].value, s.at[i].value);
  for (int i = 0; i < s.n && !rc; i++) one (im, &s, &s.at[i]);
  if (!rc && import_value (&s, "num_layers", NULL)) {
    im->model_told = true;
    silent_model (im, &s);
  }
  if (!rc) silent_rest (im, &s);
  int64_t tp = number (&s, "tensor_model_parallel_size", 1), pp = number (&s, "pipeline_model_parallel_size", 1), dp = number (&s, "data_parallel_size", 0);
  if (!im->gpus && dp > 0 && tp > 0 && pp > 0) im->gpus = (int) (tp * pp * dp);
  settings_free (&s);
  return rc ? rc : import_refuse (im, e);
}
