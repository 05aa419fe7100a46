/* conf_alias: Megatron's flags and accelerate's layout, as a table. Plain other names of an option stand in its own row. */
#include "conf_int.h"
#include <string.h>
#include <strings.h>

#define STRATEGY_MAP "FULL_SHARD=FULL_SHARD|SHARD_GRAD_OP=SHARD_GRAD_OP|NO_SHARD=NO_SHARD|HYBRID_SHARD=HYBRID_SHARD" \
  "|HYBRID_SHARD_ZERO2=!of the hybrid strategies HYBRID_SHARD is offered"
#define ANY "*="

const struct foreign foreign_table[] = {
  /* Megatron */
  { "bf16", "train.dtype", "true=bf16|false=", true },
  { "fp16", NULL, "true=!fp16 is not offered, bf16 is|false=", true },
  { "sequence_parallel", NULL, "true=|false=!sequence parallelism is always on with tensor parallelism", true },
  { "use_distributed_optimizer", "sharding.strategy", "true=SHARD_OPT|false=", true },
  { "deterministic_mode", "run.deterministic", "true=yes|false=no", true },
  { "tp_comm_overlap", "mesh.tp_overlap", "true=2|false=1", true },
  { "overlap_grad_reduce", "run.overlap", "true=true|false=false", true },
  { "overlap_param_gather", "run.overlap", "true=true|false=false", true },
  { "async_save", "run.save_async", "true=true|false=false", true },
  { "finetune", "load.weights_only", "true=true|false=false", true },
  { "untie_embeddings_and_output_weights", "model.tied", "true=false|false=true", true },
  { "add_qkv_bias", "model.qkv_bias", "true=true|false=false", true },
  { "qk_layernorm", "model.qk_norm", "true=true|false=false", true },
  { "swiglu", NULL, "true=|false=!the feed-forward part is SwiGLU", true },
  { "disable_bias_linear", NULL, "true=|false=!linear layers have no bias", true },
  { "group_query_attention", NULL, "true=|false=", true },
  { "use_flash_attn", NULL, "true=|false=", true },
  { "use_mcore_models", NULL, "true=|false=", true },
  { "normalization", NULL, "RMSNorm=" },
  { "position_embedding_type", NULL, "rope=" },
  { "num_layers_per_virtual_pipeline_stage", NULL, "*=!say pipeline.schedule interleaved and pipeline.chunks N instead, "
    "N being the layers of a stage divided by this number" },
  { "context_parallel_size", NULL, "1=|*=!context parallelism is not offered" },
  { "expert_model_parallel_size", NULL, "1=|*=!expert parallelism is not offered" },
  /* accelerate: fsdp_config */
  { "fsdp_sharding_strategy", "sharding.strategy", STRATEGY_MAP "|1=FULL_SHARD|2=SHARD_GRAD_OP|3=NO_SHARD|4=HYBRID_SHARD"
    "|5=!of the hybrid strategies HYBRID_SHARD (4) is offered" },
  { "fsdp_reshard_after_forward", NULL, "true=forward|false=backward|" STRATEGY_MAP },
  { "fsdp_auto_wrap_policy", "sharding.wrap", "TRANSFORMER_BASED_WRAP=layer|SIZE_BASED_WRAP=size:|NO_WRAP=model" },
  { "fsdp_min_num_params", NULL, ANY },
  { "fsdp_transformer_layer_cls_to_wrap", NULL, ANY },
  { "fsdp_backward_prefetch", "sharding.prefetch", "BACKWARD_PRE=|BACKWARD_POST=0|NO_PREFETCH=0" },
  { "fsdp_backward_prefetch_policy", "sharding.prefetch", "BACKWARD_PRE=|BACKWARD_POST=0|NO_PREFETCH=0" },
  { "fsdp_forward_prefetch", NULL, "true=|false=" },
  { "fsdp_offload_params", "sharding.cpu_offload", "true=params|false=none" },
  { "fsdp_state_dict_type", NULL,
    "SHARDED_STATE_DICT=|FULL_STATE_DICT=~checkpoints are sharded always; `pretrain export` writes whole "
    "tensors|LOCAL_STATE_DICT=~checkpoints are sharded always" },
  { "fsdp_activation_checkpointing", "recompute.mode", "true=full|false=none" },
  { "fsdp_use_orig_params", NULL, "true=|false=" },
  { "fsdp_sync_module_states", NULL, "true=|false=" },
  { "fsdp_cpu_ram_efficient_loading", NULL, "true=|false=" },
  { "fsdp_version", NULL, "1=|2=" },
  /* accelerate: the other keys of its file */
  { "distributed_type", "sharding.strategy", "FSDP=|NO=|MULTI_GPU=NO_SHARD|MULTI_CPU=NO_SHARD"
    "|DEEPSPEED=!of accelerate's kinds FSDP and MULTI_GPU are understood|MEGATRON_LM=!say Megatron's options on the command line",
    false, true },
  { "mixed_precision", "train.dtype", "no=fp32|bf16=bf16|fp8=fp8|fp16=!fp16 is not offered, bf16 is",
    false, true },
  { "use_cpu", "run.device", "true=cpu|false=", false, true },
  { "compute_environment", NULL, ANY, false, true },
  { "debug", NULL, "true=|false=", false, true },
  { "downcast_bf16", NULL, ANY, false, true },
  { "enable_cpu_affinity", NULL, ANY, false, true },
  { "gpu_ids", NULL, ANY, false, true },
  { "machine_rank", NULL, ANY, false, true },
  { "main_process_ip", NULL, ANY, false, true },
  { "main_process_port", NULL, ANY, false, true },
  { "main_training_function", NULL, ANY, false, true },
  { "num_machines", NULL, "*=~mpiexec or srun decides on how many ranks and nodes", false, true },
  { "num_processes", NULL, "*=~mpiexec or srun decides on how many ranks and nodes", false, true },
  { "parallelism_config.parallelism_config_dp_replicate_size", "mesh.dp_replicate", "*=$", false, true },
  { "parallelism_config.parallelism_config_dp_shard_size", "mesh.dp_shard", "*=$", false, true },
  { "parallelism_config.parallelism_config_tp_size", "mesh.tp", "*=$", false, true },
  { "parallelism_config.parallelism_config_cp_size", NULL, "1=|*=!context parallelism is not offered", false, true },
  { "parallelism_config.parallelism_config_cp_comm_strategy", NULL, ANY, false, true },
  { "rdzv_backend", NULL, ANY, false, true },
  { "same_network", NULL, ANY, false, true },
  { "tpu_env", NULL, ANY, false, true },
  { "tpu_use_cluster", NULL, ANY, false, true },
  { "tpu_use_sudo", NULL, ANY, false, true },
  { "dynamo_config.", NULL, ANY, false, true },
};
const int foreign_rows = LEN (foreign_table);

#define FSDP_CONFIG "fsdp_config."

const struct foreign *foreign_find (const char *key, bool layout)
{
  if (!strncmp (key, FSDP_CONFIG, strlen (FSDP_CONFIG))) key += strlen (FSDP_CONFIG);
  for (int i = 0; i < foreign_rows; i++) {
    const struct foreign *f = &foreign_table[i];
    size_t n = strlen (f->key);
    if (f->layout && !layout) continue;
    if (key_same (key, f->key, n) || (f->key[n - 1] == '.' && !strncmp (key, f->key, n))) return f;
  }
  return NULL;
}

static bool has_layout (const struct settings *s)
{
  for (int i = 0; i < s->n; i++)
    if (!strncmp (s->at[i].key, FSDP_CONFIG, strlen (FSDP_CONFIG)) || !strcmp (s->at[i].key, "compute_environment")
        || !strcmp (s->at[i].key, "distributed_type")) return true;
  return false;
}

/* What MAP makes of VALUE, into OUT; false if it has no such value. */
bool foreign_lookup (const char *map, const char *value, char *out, size_t size)
{
  for (const char *s = map; *s; s += strcspn (s, "|"), s += *s == '|') {
    size_t n = strcspn (s, "=");
    if (!(strlen (value) == n && !strncasecmp (s, value, n)) && !(n == 1 && *s == '*')) continue;
    size_t m = strcspn (s + n + 1, "|");
    bool same = m == 1 && s[n + 1] == '$';
    snprintf (out, size, "%.*s", same ? 200 : (int) m, same ? value : s + n + 1);
    return true;
  }
  return false;
}

/* "A, B, C": the values of MAP that are not refused. */
static void choices (const char *map, char *out, size_t size)
{
  size_t at = 0;
  out[0] = 0;
  for (const char *s = map; *s && at < size; s += strcspn (s, "|"), s += *s == '|') {
    size_t n = strcspn (s, "=");
    if (s[n + 1] != '!') at += snprintf (out + at, size - at, "%s%.*s", at ? ", " : "", (int) n, s);
  }
}

struct notes { char set[1200], idle[1200], more[400]; };

static void note (char *to, size_t size, const char *sep, const char *fmt, ...) __attribute__ ((format (printf, 4, 5)));
static void note (char *to, size_t size, const char *sep, const char *fmt, ...)
{
  char text[512];
  va_list ap;
  va_start (ap, fmt);
  vsnprintf (text, sizeof text, fmt, ap);
  va_end (ap);
  if (strstr (to, text)) return;
  size_t at = strlen (to);
  snprintf (to + at, size - at, "%s%s", at ? sep : "", text);
}

static const struct setting *sought (const struct settings *s, const char *key)
{
  for (int i = 0; i < s->n; i++)
    if (foreign_find (s->at[i].key, true) && !strcmp (foreign_find (s->at[i].key, true)->key, key)) return &s->at[i];
  return NULL;
}

/* The two rules that a row cannot say: the number of SIZE_BASED_WRAP, and which option fsdp_reshard_after_forward means. */
static int special (const struct settings *s, const struct setting *t, const struct foreign *f, char *ours, size_t size,
                    const char **target, struct err *e)
{
  char where[512];
  if (!strcmp (ours, "size:")) {
    const struct setting *least = sought (s, "fsdp_min_num_params");
    if (!least) return user_err (e, "%s: SIZE_BASED_WRAP needs fsdp_min_num_params", setting_where (s, t, where));
    snprintf (ours, size, "size:%s", least->value);
  }
  if (!strcmp (f->key, "fsdp_reshard_after_forward"))
    *target = strchr (ours, '_') ? "sharding.strategy" : "sharding.reshard";
  return 0;
}

int foreign_meaning (const struct settings *s, const struct setting *t, const struct foreign *f, const char **target, char ours[static 256], struct err *e)
{
  char where[512], all[512];
  setting_where (s, t, where);
  *target = f->target;
  if (!foreign_lookup (f->map, t->value, ours, 256))
    return choices (f->map, all, sizeof all), user_err (e, "%s expects one of %s, not `%.200s`", where, all, t->value);
  if (*ours == '!') return user_err (e, "%s %.200s: %s", where, t->value, ours + 1);
  return special (s, t, f, ours, 256, target, e);
}

static int translate_one (const struct settings *s, const struct setting *t, const struct foreign *f, struct settings *out,
                          struct notes *notes, struct err *e)
{
  char ours[256];
  const char *target;
  if (t->null) return 0;
  if (foreign_meaning (s, t, f, &target, ours, e)) return -1;
  if (*ours == '~') note (notes->more, sizeof notes->more, "; ", "%s", ours + 1);
  else if (*ours) {
    settings_add (out, target, ours, t->line)->from = f->key;
    note (notes->set, sizeof notes->set, ", ", "%s -> %s %s", f->key, target, ours);
  } else if (strcmp (f->key, "fsdp_min_num_params") || !strstr (notes->set, "size:"))
    note (notes->idle, sizeof notes->idle, ", ", "%s", f->key);
  return 0;
}

static void say_notes (const struct settings *s, const struct notes *n)
{
  const char *source = *s->source ? s->source : "command line";
  if (*n->set) say (SAY_INFO, "%s: %s", source, n->set);
  if (*n->idle) say (SAY_INFO, "%s: accepted, without effect here: %s", source, n->idle);
  if (*n->more) say (SAY_INFO, "%s: %s", source, n->more);
}

/* Foreign keys that set no row may not be given twice either. */
static int check_again (const struct settings *s, int i, const struct foreign *f, struct err *e)
{
  char where[512];
  if (f->key[strlen (f->key) - 1] == '.') return 0;
  for (int k = 0; k < i; k++)
    if (foreign_find (s->at[k].key, true) == f && (*s->source || strcmp (s->at[k].value, s->at[i].value)))
      return user_err (e, "%s is given a second time, first at line %d", setting_where (s, &s->at[i], where), s->at[k].line);
  return 0;
}

int foreign_translate (struct settings *s, struct err *e)
{
  struct settings out = { 0 };
  struct notes notes = { 0 };
  bool layout = has_layout (s);
  int rc = 0;
  memcpy (out.source, s->source, sizeof out.source);
  out.path = s->path;
  out.layout = layout;
  for (int i = 0; i < s->n && !rc; i++) {
    struct setting *t = &s->at[i];
    const struct foreign *f = row_find (t->key) < 0 ? foreign_find (t->key, layout) : NULL;
    if (f) {
      rc = check_again (s, i, f, e);
      if (!rc) rc = translate_one (s, t, f, &out, &notes, e);
    } else {
      struct setting *copy = settings_add (&out, t->key, t->value, t->line);
      copy->list = t->list;
      copy->null = t->null;
      copy->from = t->from;
    }
  }
  if (!rc) say_notes (s, &notes);
  settings_free (s);
  *s = out;
  return rc;
}
