/* conf_table: the options, once, and how a row reads and writes its text. */
#include "conf_int.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define AT(m) offsetof (struct conf, m), sizeof (((struct conf *) 0)->m)
#define STRATEGIES "NO_SHARD/ddp|SHARD_OPT/zero1|SHARD_GRAD_OP/zero2|FULL_SHARD/zero3|HYBRID_SHARD"
#define FLOATS "fp32/float32/f32|bf16/bfloat16"
#define STR_ROW(name, m, def, unit, aliases, help, ...)   { name, T_STR, AT (m), def, unit, "", "", aliases, help, __VA_ARGS__ }
#define INT_ROW(name, m, def, unit, limit, aliases, help)   { name, T_INT, AT (m), def, unit, limit, "", aliases, help }
#define COUNT_ROW(name, m, def, unit, limit, aliases, help) { name, T_COUNT, AT (m), def, unit, limit, "", aliases, help }
#define REAL_ROW(name, m, def, unit, limit, aliases, help)  { name, T_REAL, AT (m), def, unit, limit, "", aliases, help }
#define BOOL_ROW(name, m, def, aliases, help)               { name, T_BOOL, AT (m), def, "", "", "", aliases, help }
#define ENUM_ROW(name, m, def, choices, aliases, help)      { name, T_ENUM, AT (m), def, "", "", choices, aliases, help }

_Static_assert (sizeof (enum strategy) == sizeof (int) && sizeof (enum dtype) == sizeof (int), "rows write enums as int");
_Static_assert (DT_F32 == 0 && DT_BF16 == 1, "FLOATS lists the types in this order");

const struct row conf_row[] = {
  { "model", T_MODEL, 0, 0, "", "", "", "", "model.base",
    "a name in share/models, a path to such a file, or a mapping of model.* "
    "(with `base: NAME` to start from that model)" },
  STR_ROW ("model.name", model, "", "", "", "what to call the model; it chooses nothing"),
  INT_ROW ("model.dim", arch.dim, "0", "", ">0", "model.hidden_size hidden_size", "width of the residual stream"),
  INT_ROW ("model.layers", arch.layers, "0", "", ">0", "model.num_hidden_layers num_layers", "transformer layers"),
  INT_ROW ("model.heads", arch.heads, "0", "", ">0", "model.num_attention_heads num_attention_heads", "query heads"),
  INT_ROW ("model.kv_heads", arch.kv_heads, "0", "", ">=0", "model.num_key_value_heads num_query_groups",
           "key and value heads; 0: as many as query heads"),
  INT_ROW ("model.head_dim", arch.head_dim, "0", "", ">=0", "kv_channels", "width of a head, even; 0: dim / heads"),
  INT_ROW ("model.ffn", arch.ffn, "0", "", ">0", "model.intermediate_size ffn_hidden_size", "width of the SwiGLU"),
  INT_ROW ("model.vocab", arch.vocab, "0", "ids", ">0", "model.vocab_size vocab_size", "vocabulary"),
  BOOL_ROW ("model.tied", arch.tied, "false", "model.tie_word_embeddings", "the head uses the embedding's matrix"),
  BOOL_ROW ("model.qkv_bias", arch.qkv_bias, "false", "model.attention_bias", "bias on q, k and v (Qwen2)"),
  BOOL_ROW ("model.qk_norm", arch.qk_norm, "false", "", "RMSNorm on each head of q and k (Qwen3)"),
  REAL_ROW ("model.norm_eps", arch.norm_eps, "1e-5", "", ">0", "model.rms_norm_eps norm_epsilon", "epsilon of RMSNorm"),
  REAL_ROW ("model.rope_theta", arch.rope_theta, "10000", "", ">1", "rotary_base", "base of RoPE's wavelengths"),
  REAL_ROW ("model.rope_scaling.factor", arch.rope_scaling.factor, "0", "", ">=0", "rope_scaling_factor",
            "Llama 3's scaling of low frequencies; 0: none"),
  REAL_ROW ("model.rope_scaling.low", arch.rope_scaling.low, "1", "", ">0", "model.rope_scaling.low_freq_factor",
            "low_freq_factor of the scaling"),
  REAL_ROW ("model.rope_scaling.high", arch.rope_scaling.high, "4", "", ">0", "model.rope_scaling.high_freq_factor",
            "high_freq_factor of the scaling"),
  INT_ROW ("model.rope_scaling.original", arch.rope_scaling.original, "0", "tokens", ">=0",
           "model.rope_scaling.original_max_position_embeddings", "sequence length before the scaling"),
  INT_ROW ("model.max_seq", arch.max_seq, "0", "tokens", ">=0", "model.max_position_embeddings max_position_embeddings",
           "longest sequence that the model was made for; 0: any"),
  INT_ROW ("model.window", arch.window, "0", "tokens", ">=0", "model.sliding_window", "sliding window of attention; 0: none"),
  REAL_ROW ("model.init_std", arch.init_std, "0.02", "", ">0", "model.initializer_range init_method_std",
            "standard deviation of initial matrices"),

  STR_ROW ("data.train", data.train, "", "", "data_path train_data_path",
           "a token file, or a blend: a list of WEIGHT:PATH, or one string of them with commas", true),
  STR_ROW ("data.valid", data.valid, "", "", "valid_data_path", "the same for validation; empty: the tail of data.train", true),
  STR_ROW ("data.skip", data.skip, "", "batches", "", "global batches of training that are left out, from 1, such as 120-180,300", true),
  REAL_ROW ("data.valid_fraction", data.valid_fraction, "0.05", "", "[0,1)", "",
            "tail of data.train kept for validation when data.valid is empty or the same file"),
  STR_ROW ("data.tokenizer", data.tokenizer, "bytes", "", "tokenizer_model", "bytes, or a path to a tokenizer"),
  { "data.format", T_STR, AT (data.format), "auto", "", "", "auto|hdf5|megatron|u16|u32", "", "format of the token files" },
  BOOL_ROW ("data.document_mask", data.document_mask, "false", "reset_attention_mask",
            "attention and positions stop at document ends"),

  STR_ROW ("run.dir", run.dir, "runs/default", "", "save", "folder of the run: checkpoints, metrics, configuration"),
  BOOL_ROW ("run.save", run.save, "true", "", "checkpoints; false: none at all, for a run that only measures"),
  COUNT_ROW ("run.save_every", run.save_every, "100", "steps", ">=0", "save_interval", "checkpoint interval; 0: only at the end"),
  INT_ROW ("run.keep", run.keep, "2", "", ">=0", "", "newest checkpoints kept; 0: all"),
  { "run.device", T_STR, AT (run.device), "auto", "", "", "auto|cpu|cuda|sim", "", "what computes" },
  STR_ROW ("run.machine", run.machine, "", "", "", "a name in share/machines or a path: times are predicted by it and compared at the end"),
  ENUM_ROW ("run.deterministic", run.deterministic, "auto", "no/false/off|yes/true/on|auto", "",
            "the same bits each time (always on for cpu)"),
  BOOL_ROW ("run.overlap", run.overlap, "true", "", "communication beside computation; false: the same order, with waits"),
  INT_ROW ("run.threads", run.threads, "0", "", ">=0", "", "compute threads a rank; 0: cores of the node / its ranks"),
  COUNT_ROW ("run.log_every", run.log_every, "10", "steps", ">0", "log_interval", "steps between progress lines"),
  ENUM_ROW ("run.progress", run.progress, "auto", "line|log|auto", "", "line: one that is drawn over itself; log: a line each log_every steps; auto: line on a terminal"),
  STR_ROW ("run.profile", run.profile, "", "steps", "profile",
           "FIRST:LAST, such as 10:12: what all ranks did in these steps, as RUN_DIR/profile_10-12.json for Perfetto"),
  BOOL_ROW ("run.tensorboard", run.tensorboard, "true", "", "event files for TensorBoard in RUN_DIR/tensorboard"),
  STR_ROW ("run.prometheus", run.prometheus, "metrics.prom", "", "",
           "text file for Prometheus's node_exporter, each log_every steps: a path, or a name in run.dir; empty: none"),
  BOOL_ROW ("run.resume", run.resume, "true", "", "go on from the newest good checkpoint in run.dir"),
  REAL_ROW ("run.watchdog", run.watchdog, "600", "seconds", ">=0", "",
            "without progress for so long a rank ends the job; 0: never"),
  REAL_ROW ("run.max_minutes", run.max_minutes, "0", "minutes", ">=0", "exit_duration_in_mins",
            "stop with a checkpoint after so long; 0: never"),
  BOOL_ROW ("run.save_async", run.save_async, "true", "",
            "write checkpoints behind training, from a copy of the state in host memory"),
  ENUM_ROW ("run.save_moments", run.save_moments, "fp32", FLOATS, "",
            "type of AdamW's moments in checkpoints; bf16: two thirds of the bytes, and resuming changes the last digits"),
  ENUM_ROW ("run.save_error", run.save_error, "stop", "stop|continue", "",
            "when a checkpoint cannot be written; the last one always stops"),
  COUNT_ROW ("run.replica_check_steps", run.replica_check_steps, "0", "steps", ">=0", "",
             "compare the bits of what several ranks hold every so many steps, and before a save; 0: never"),
  INT_ROW ("run.stripe_count", run.stripe_count, "0", "", ">=0", "",
           "storage targets of a checkpoint on Lustre; 0: as the folder says"),
  COUNT_ROW ("run.stripe_size", run.stripe_size, "0", "bytes", ">=0", "", "bytes of a stripe on Lustre; 0: as the folder says"),

  STR_ROW ("load.from", load.from, "", "", "load",
           "where a run without checkpoints of its own begins: a checkpoint, or a run's folder for its newest"),
  BOOL_ROW ("load.weights_only", load.weights_only, "false", "",
            "take only the weights from load.from: step 0 and fresh moments"),
  BOOL_ROW ("load.fallback", load.fallback, "true", "", "when the newest checkpoint is damaged, take the one before; false: stop"),

  INT_ROW ("mesh.dp_replicate", mesh.dp_replicate, "0", "ranks", ">=0", "",
           "replicas of the sharded group (HYBRID_SHARD, NO_SHARD)"),
  INT_ROW ("mesh.dp_shard", mesh.dp_shard, "0", "ranks", ">=0", "mesh.dp data_parallel_size",
           "data parallel ranks that share the model's state; 0: those that remain"),
  INT_ROW ("mesh.pp", mesh.pp, "0", "ranks", ">=0", "pipeline_model_parallel_size", "pipeline stages"),
  INT_ROW ("mesh.tp", mesh.tp, "0", "ranks", ">=0", "tensor_model_parallel_size", "tensor parallel ranks"),
  STR_ROW ("mesh.order", mesh.order, "tp-pp-dp", "", "", "axes, the fastest first"),
  BOOL_ROW ("mesh.tp_across_nodes", mesh.tp_across_nodes, "false", "", "let a tp group span nodes"),
  INT_ROW ("mesh.tp_overlap", mesh.tp_overlap, "1", "parts", "[1,16]", "",
           "parts in which activations travel over tp, products of one beside the next; 1: none"),

  ENUM_ROW ("sharding.strategy", sharding.strategy, "FULL_SHARD", STRATEGIES, "", "what is cut over dp_shard"),
  STR_ROW ("sharding.wrap", sharding.wrap, "layer", "", "", "what is gathered at once: layer, model or size:PARAMETERS"),
  INT_ROW ("sharding.prefetch", sharding.prefetch, "2", "units", ">=0", "", "units gathered ahead, forward and backward"),
  ENUM_ROW ("sharding.reduce_dtype", sharding.reduce_dtype, "fp32", FLOATS, "", "type in which gradients travel"),
  ENUM_ROW ("sharding.grad_dtype", sharding.grad_dtype, "fp32", FLOATS, "", "type in which gradients are kept"),
  ENUM_ROW ("sharding.reshard", sharding.reshard, "auto", "auto|forward|backward|step", "",
            "after what gathered weights are let go"),
  ENUM_ROW ("sharding.cpu_offload", sharding.cpu_offload, "none", "none/false/no|optimizer|params/true/yes", "",
            "what lives in host memory"),

  ENUM_ROW ("pipeline.schedule", pipeline.schedule, "1f1b", "gpipe|1f1b|interleaved|zbh1/zb-h1", "",
            "order of forward and backward"),
  INT_ROW ("pipeline.chunks", pipeline.chunks, "1", "", ">0", "", "model chunks a stage (interleaved)"),
  STR_ROW ("pipeline.split", pipeline.split, "", "layers", "", "layers of each stage, such as 5,3; empty: as even as can be",
           true),

  ENUM_ROW ("recompute.mode", recompute.mode, "none", "none/false|selective|full/true|auto", "recompute_granularity",
            "activations computed again in the backward pass; auto: the fastest that fits, by layer"),
  STR_ROW ("recompute.keep", recompute.keep, "gate_up,qkv,attention,residual", "", "",
           "what selective keeps: of norms, swiglu, gate_up, qkv, attention and residual", true),
  INT_ROW ("recompute.every", recompute.every, "1", "layers", ">0", "", "each n-th layer is recomputed"),

  COUNT_ROW ("train.steps", train.steps, "100", "steps", ">0", "train_iters", "optimizer steps"),
  INT_ROW ("train.seq_len", train.seq_len, "256", "tokens", ">0", "seq_length", "length of a sequence"),
  INT_ROW ("train.micro_batch", train.micro_batch, "1", "sequences", ">0", "micro_batch_size",
           "sequences computed at once by a rank"),
  INT_ROW ("train.global_batch", train.global_batch, "0", "sequences", ">=0", "global_batch_size",
           "sequences a step; 0: micro_batch x dp"),
  ENUM_ROW ("train.dtype", train.precision, "bf16", FLOATS "|fp8", "",
            "type of the computation; fp8: bf16 with the layers' products in 8 bits; masters are fp32 always"),
  INT_ROW ("train.seed", train.seed, "1", "", ">=0", "seed", "of the initial weights and the order of the data"),
  INT_ROW ("train.max_bad_steps", train.max_bad_steps, "10", "steps", ">0", "",
           "steps in a row skipped for NaN or infinity that end the run (exit 5)"),
  COUNT_ROW ("train.loss_chunk", train.loss_chunk, "0", "tokens", ">=0", "",
             "tokens whose logits exist at once; 0: by the vocabulary"),

  REAL_ROW ("optimizer.lr", optimizer.lr, "3e-4", "", ">=0", "optimizer.learning_rate lr learning_rate", "peak learning rate"),
  REAL_ROW ("optimizer.beta1", optimizer.beta1, "0.9", "", "[0,1)", "adam_beta1", "decay of AdamW's first moment"),
  REAL_ROW ("optimizer.beta2", optimizer.beta2, "0.95", "", "[0,1)", "adam_beta2", "decay of AdamW's second moment"),
  REAL_ROW ("optimizer.eps", optimizer.eps, "1e-8", "", ">0", "adam_eps", "AdamW's epsilon"),
  REAL_ROW ("optimizer.weight_decay", optimizer.weight_decay, "0.1", "", ">=0", "weight_decay",
            "decay of matrices, not norms and biases"),
  REAL_ROW ("optimizer.clip", optimizer.clip, "1.0", "", ">=0", "clip_grad", "largest global gradient norm; 0: no clipping"),

  ENUM_ROW ("schedule.type", schedule.type, "cosine", "constant|linear|cosine|wsd", "lr_decay_style",
            "shape of the learning rate"),
  COUNT_ROW ("schedule.warmup", schedule.warmup, "20", "steps", ">=0", "lr_warmup_iters",
             "linear warm-up; left out: 20, or a tenth of the steps where that is less"),
  REAL_ROW ("schedule.min_lr", schedule.min_lr, "3e-5", "", ">=0", "min_lr",
            "last learning rate; left out: a tenth of optimizer.lr"),
  COUNT_ROW ("schedule.steps", schedule.steps, "0", "steps", ">=0", "lr_decay_iters", "length of the schedule; 0: train.steps"),
  COUNT_ROW ("schedule.decay", schedule.decay, "0", "steps", ">=0", "lr_wsd_decay_iters", "wsd: the last steps; 0: a tenth"),

  COUNT_ROW ("eval.every", eval.every, "0", "steps", ">=0", "eval_interval", "steps between validations; 0: only at the end"),
  INT_ROW ("eval.batches", eval.batches, "8", "batches", ">=0", "eval_iters", "global batches of a validation; 0: no validation"),

  ENUM_ROW ("spike.action", spike.action, "none", "none/false|skip|rollback", "",
            "on a spike of loss or gradient norm: leave the update out, or go back to the last checkpoint and leave the data out"),
  ENUM_ROW ("spike.watch", spike.watch, "both", "both|loss|grad_norm", "", "whose spikes"),
  REAL_ROW ("spike.zscore", spike.zscore, "6", "", ">0", "", "a spike is so many standard deviations above the mean of the window"),
  INT_ROW ("spike.window", spike.window, "128", "steps", ">0", "", "steps that mean and deviation are taken of; none is a spike before it is full"),
  INT_ROW ("spike.max", spike.max, "3", "", ">=0", "", "spikes within as many batches as the window that are put up with; one more ends the run (exit 5)"),

  STR_ROW ("debug.dump", debug.dump, "", "", "", "folder for the weights before a step and its gradients, raw fp32"),
  INT_ROW ("debug.dump_step", debug.dump_step, "1", "", ">0", "", "which step"),
  REAL_ROW ("debug.comm_delay_ms", debug.comm_delay_ms, "0", "ms", ">=0", "", "each collective, and on the cpu device each copy beside computation, takes at least so long"),
  COUNT_ROW ("debug.comm_chunk", debug.comm_chunk, "0", "elements", ">=0", "", "collectives are cut below so many; 0: 2^30"),
  BOOL_ROW ("debug.sync_send", debug.sync_send, "false", "", "point-to-point by synchronous sends"),
  BOOL_ROW ("debug.shared_gpu", debug.shared_gpu, "false", "", "several ranks may use one GPU"),
  BOOL_ROW ("debug.verbose", debug.verbose, "false", "", "tell more, such as which attention is taken"),
  BOOL_ROW ("debug.op_times", debug.op_times, "false", "", "say at the end what each operation took on the GPU"),
  REAL_ROW ("debug.clock_skew", debug.clock_skew, "0", "seconds", ">=0", "", "set the clocks of nodes apart by so much, for profiles"),
  STR_ROW ("debug.gpu", debug.gpu, "", "", "", "PCI address of a GPU to watch, whatever computes"),
  INT_ROW ("debug.slow_rank", debug.slow_rank, "-1", "", ">=-1", "", "this rank waits before each step, as if its data were slow; -1: none"),
  REAL_ROW ("debug.slow_ms", debug.slow_ms, "100", "ms", ">=0", "", "so long"),
  INT_ROW ("debug.nan_rank", debug.nan_rank, "-1", "", ">=-1", "", "put a NaN into this rank's gradient; -1: never"),
  INT_ROW ("debug.nan_step", debug.nan_step, "-1", "", ">=-1", "", "at this step"),
  INT_ROW ("debug.flip_rank", debug.flip_rank, "-1", "", ">=-1", "", "flip a bit of what this rank holds in common with others; -1: never"),
  INT_ROW ("debug.flip_step", debug.flip_step, "-1", "", ">=-1", "", "after this step"),
  ENUM_ROW ("debug.flip_kind", debug.flip_kind, "master", "master|exp_avg|exp_avg_sq|weight", "", "of which tensor of a parameter"),
  STR_ROW ("debug.flip_tensor", debug.flip_tensor, "", "", "", "of the first parameter whose name begins so"),
  INT_ROW ("debug.spike_batch", debug.spike_batch, "-1", "", ">=-1", "", "the targets of this global batch, from 1, are all one rare token; -1: of none"),
};
const int conf_rows = LEN (conf_row);

bool key_same (const char *a, const char *b, size_t n_b)
{
  size_t i = 0;
  for (; a[i] && i < n_b; i++)
    if (a[i] != b[i] && !((a[i] == '-' || a[i] == '_') && (b[i] == '-' || b[i] == '_'))) return false;
  return !a[i] && i == n_b;
}

int row_find (const char *key)
{
  for (int i = 0; i < conf_rows; i++) {
    if (key_same (key, conf_row[i].name, strlen (conf_row[i].name))) return i;
    for (const char *s = conf_row[i].aliases; *s; ) {
      size_t n = strcspn (s, " ");
      if (key_same (key, s, n)) return i;
      s += n + (s[n] == ' ');
    }
  }
  return -1;
}

static bool within (const char *limit, double v)
{
  char *end;
  if (!*limit) return true;
  if (*limit == '>') return limit[1] == '=' ? v >= strtod (limit + 2, NULL) : v > strtod (limit + 1, NULL);
  double lo = strtod (limit + 1, &end), hi = strtod (end + 1, &end);
  return v >= lo && (*end == ')' ? v < hi : v <= hi);
}

/* The index of TEXT among CHOICES "A/alias|B", any case; -1 if none. */
static int choice (const char *choices, const char *text)
{
  int index = 0;
  for (const char *s = choices; *s; ) {
    size_t n = strcspn (s, "/|");
    if (strlen (text) == n && !strncasecmp (s, text, n)) return index;
    index += s[n] == '|';
    s += n + (s[n] != 0);
  }
  return -1;
}

/* The first spelling of choice INDEX. */
static void choice_name (const char *choices, int index, char *out, size_t size)
{
  for (; index && *choices; choices++) index -= *choices == '|';
  snprintf (out, size, "%.*s", (int) strcspn (choices, "/|"), choices);
}

static bool parse_int (const char *text, bool suffix, int64_t *v)
{
  static const struct { const char *name; int64_t by; } scale[] = { { "", 1 }, { "k", 1000 }, { "M", 1000000 },
    { "G", 1000000000 } };
  char *end;
  const char *digits = text + (*text == '-');
  if (*digits < '0' || *digits > '9') return false;
  if (*digits == '0' && digits[1] >= '0' && digits[1] <= '9') return false;   /* 010: eight or ten? */
  errno = 0;
  *v = strtoll (text, &end, 10);
  if (errno) return false;
  for (int i = 0; i < (suffix ? LEN (scale) : 1); i++)
    if (!strcmp (end, scale[i].name)) return !__builtin_mul_overflow (*v, scale[i].by, v);
  if (!suffix || *end != '.' || text[strspn (text, "0123456789.-")] == 'e') return false;
  double x = strtod (text, &end);   /* 1.5M: what comes out must be whole */
  for (int i = 1; i < LEN (scale); i++)
    if (!strcmp (end, scale[i].name) && fabs (x) < 1e6) {
      *v = llround (x * (double) scale[i].by);
      return fabs (x * (double) scale[i].by - (double) *v) < 1e-3;
    }
  return false;
}

static bool parse_real (const char *text, double *v)
{
  char *end;
  if (!*text || text[strspn (text, "0123456789.eE+-")]) return false;   /* no inf, nan, hexadecimal */
  errno = 0;
  *v = strtod (text, &end);
  return end != text && !*end && isfinite (*v) && !(errno == ERANGE && *v == 0);
}

static void expected (const struct row *r, char want[static 256])
{
  static const char *const noun[] = { [T_MODEL] = "a name or a path", [T_STR] = "text", [T_INT] = "a whole number",
    [T_COUNT] = "a whole number (k, M and G may follow)", [T_REAL] = "a number", [T_BOOL] = "true or false" };
  if (*r->choices) {
    char all[256];
    row_takes (r, all);
    snprintf (want, 256, "one of %.200s", all);
  } else if (*r->limit) {
    snprintf (want, 256, *r->limit == '>' ? "%s %s" : "%s in %s", noun[r->type], r->limit);
  } else snprintf (want, 256, "%s", noun[r->type]);
}

/* Is S well-formed UTF-8? Other bytes could not be written to a YAML file and read back. */
static bool is_utf8 (const char *s)
{
  for (const unsigned char *p = (const unsigned char *) s; *p; ) {
    int more = *p < 0x80 ? 0 : *p >= 0xc2 && *p < 0xe0 ? 1 : *p >= 0xe0 && *p < 0xf0 ? 2 : *p >= 0xf0 && *p < 0xf5 ? 3 : -1;
    uint32_t u = more == 2 ? *p & 15u : *p & 7u;
    if (more < 0) return false;
    for (p++; more; more--, p++) {
      if ((*p & 0xc0) != 0x80) return false;
      u = u << 6 | (*p & 63u);
    }
    if ((p - (const unsigned char *) s) >= 3 && u >= 0xd800 && u < 0xe000) return false;
  }
  return true;
}

static int set_text (const struct row *r, char *out, const char *text, char want[static 256])
{
  if (strlen (text) >= r->size) return snprintf (want, 256, "at most %zu characters", r->size - 1), -1;
  if (!is_utf8 (text)) return snprintf (want, 256, "text in UTF-8"), -1;
  if (*r->choices && choice (r->choices, text) < 0) return expected (r, want), -1;
  memset (out, 0, r->size);
  strcpy (out, text);
  return 0;
}

int row_set (const struct row *r, struct conf *c, const char *text, bool limits, char want[static 256])
{
  void *at = (char *) c + r->offset;
  int64_t whole = 0;
  double real = 0;
  int index = 0;
  bool good = true;
  switch (r->type) {
  case T_MODEL: break;
  case T_STR: return set_text (r, at, text, want);
  case T_INT: case T_COUNT: good = parse_int (text, r->type == T_COUNT, &whole); real = (double) whole; break;
  case T_REAL: good = parse_real (text, &real); break;
  case T_BOOL: index = choice ("false/no/off|true/yes/on", text); break;
  case T_ENUM: index = choice (r->choices, text); break;
  }
  if (!good || index < 0 || (limits && !within (r->limit, real))) return expected (r, want), -1;
  if (r->type == T_INT || r->type == T_COUNT) *(int64_t *) at = whole;
  if (r->type == T_REAL) *(double *) at = real;
  if (r->type == T_BOOL) *(bool *) at = index;
  if (r->type == T_ENUM) *(int *) at = index;
  return 0;
}

void row_get (const struct row *r, const struct conf *c, char out[static STR])
{
  const void *at = (const char *) c + r->offset;
  out[0] = 0;
  switch (r->type) {
  case T_MODEL: break;
  case T_STR: snprintf (out, STR, "%s", (const char *) at); break;
  case T_INT: case T_COUNT: snprintf (out, STR, "%lld", (long long) *(const int64_t *) at); break;
  case T_BOOL: snprintf (out, STR, "%s", *(const bool *) at ? "true" : "false"); break;
  case T_ENUM: choice_name (r->choices, *(const int *) at, out, STR); break;
  case T_REAL:
    for (int digits = 6; digits <= 17; digits++) {
      snprintf (out, STR, "%.*g", digits, *(const double *) at);
      if (strtod (out, NULL) == *(const double *) at) break;
    }
  }
}

bool row_optional (const struct row *r)
{
  char want[256];
  struct conf scratch;
  return r->type == T_MODEL ? false : !row_set (r, &scratch, r->def, true, want);
}

void row_takes (const struct row *r, char out[static 256])
{
  static const char *const noun[] = { [T_MODEL] = "NAME", [T_STR] = "TEXT", [T_INT] = "N", [T_COUNT] = "N", [T_REAL] = "X",
    [T_BOOL] = "true|false" };
  size_t at = 0;
  if (!*r->choices) snprintf (out, 256, "%s", noun[r->type]);
  for (const char *s = r->choices; *s; s += strcspn (s, "|"), s += *s == '|')
    at += snprintf (out + at, 200 - at, "%s%.*s", at ? "|" : "", (int) strcspn (s, "/|"), s);
}
