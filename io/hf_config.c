#include "config.h"
#include "hf_config.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What a model_type means where its file is silent: defaults of transformers' configuration classes and what its code does always. */
static const struct type {
  const char *name, *causal;
  int64_t kv_heads, head_dim, window, max_seq;   /* kv_heads, head_dim 0: from the number of heads, as in ours */
  bool qkv_bias, qk_norm;
} type_table[] = {
  { "llama",   "LlamaForCausalLM",   0,  0,   0,    2048 },
  { "mistral", "MistralForCausalLM", 8,  0,   4096, 131072 },
  { "qwen2",   "Qwen2ForCausalLM",   32, 0,   0,    32768, .qkv_bias = true },
  { "qwen3",   "Qwen3ForCausalLM",   32, 128, 0,    32768, .qk_norm = true },
};

struct reader {
  struct hf_config *h;
  const struct type *type;
  const char *path;
  hf_tell *tell;
  void *ctx;
  bool use_window, says_use;       /* use_sliding_window */
  int64_t full_layers;             /* max_window_layers; -1: not said */
  int64_t given_window;            /* sliding_window; -1: not said */
  enum { MIX_NONE, MIX_FULL, MIX_SLIDING } layers;   /* layer_types */
  const char *rope;                /* rope_type, lent from the document; NULL: none */
  struct err *e;
};

struct field;
typedef int take (struct reader *r, const struct field *f, const char *name, const json_t *v);
struct field {
  const char *name;
  take *take;
  size_t offset;            /* in struct hf_config */
  const char *ours, *only;  /* ours: what it means here. only: values that are understood, as JSON, separated by | */
};

static char *text_of (const json_t *v) { return json_dumps (v, JSON_ENCODE_ANY | JSON_COMPACT); }

static void tell (struct reader *r, const char *name, const json_t *v, const char *meaning)
{
  if (!r->tell) return;
  char *text = text_of (v);
  r->tell (r->ctx, name, text ? text : "", meaning);
  free (text);
}

/* "config.json: rope_theta "x": WHY". */
static int refuse (struct reader *r, const char *name, const json_t *v, const char *why)
{
  char *text = text_of (v);
  user_err (r->e, "%s: %s %.200s: %s", r->path, name, text ? text : "", why);
  free (text);
  return -1;
}

/* A whole number; null leaves the default. */
static int take_int (struct reader *r, const struct field *f, const char *name, const json_t *v)
{
  char meaning[160];
  if (json_is_null (v)) return tell (r, name, v, "left out, so as the model_type has it"), 0;
  if (!json_is_integer (v)) return refuse (r, name, v, "a whole number is expected");
  *(int64_t *) ((char *) r->h + f->offset) = json_integer_value (v);
  snprintf (meaning, sizeof meaning, "%s %lld", f->ours, (long long) json_integer_value (v));
  return tell (r, name, v, meaning), 0;
}

static int take_real (struct reader *r, const struct field *f, const char *name, const json_t *v)
{
  char meaning[160];
  if (json_is_null (v)) return tell (r, name, v, "left out, so as the model_type has it"), 0;
  if (!json_is_number (v)) return refuse (r, name, v, "a number is expected");
  *(double *) ((char *) r->h + f->offset) = json_number_value (v);
  snprintf (meaning, sizeof meaning, "%s %g", f->ours, json_number_value (v));
  return tell (r, name, v, meaning), 0;
}

static int take_bool (struct reader *r, const struct field *f, const char *name, const json_t *v)
{
  char meaning[160];
  if (!json_is_boolean (v)) return refuse (r, name, v, "true or false is expected");
  *(bool *) ((char *) r->h + f->offset) = json_is_true (v);
  snprintf (meaning, sizeof meaning, "%s %s", f->ours, json_is_true (v) ? "true" : "false");
  return tell (r, name, v, meaning), 0;
}

/* A token's id, or a list of which the first counts. */
static int take_id (struct reader *r, const struct field *f, const char *name, const json_t *v)
{
  const json_t *one = json_is_array (v) ? json_array_get (v, 0) : v;
  if (one && !json_is_null (one) && !json_is_integer (one)) return refuse (r, name, v, "a token's id is expected");
  *(int64_t *) ((char *) r->h + f->offset) = json_is_integer (one) ? json_integer_value (one) : -1;
  return tell (r, name, v, f->ours), 0;
}

static int take_word (struct reader *r, const struct field *f, const char *name, const json_t *v)
{
  if (json_is_null (v)) return tell (r, name, v, "left out"), 0;
  if (!json_is_string (v)) return refuse (r, name, v, "a word is expected");
  snprintf ((char *) r->h + f->offset, 16, "%s", json_string_value (v));
  return tell (r, name, v, f->ours), 0;
}

/* Only one of the values in f->only is what this program does; 0.0 is 0. */
static int must_be (struct reader *r, const struct field *f, const char *name, const json_t *v)
{
  char *text = json_is_real (v) ? NULL : text_of (v), number[32];
  if (!text) snprintf (number, sizeof number, "%.17g", json_number_value (v));
  const char *is = text ? text : number;
  bool good = false;
  for (const char *s = f->only; *s && !good; s += strcspn (s, "|"), s += *s == '|')
    good = strlen (is) == strcspn (s, "|") && !strncmp (s, is, strlen (is));
  free (text);
  if (!good) return refuse (r, name, v, f->ours);
  return tell (r, name, v, "as it is here"), 0;
}

static int idle (struct reader *r, const struct field *f, const char *name, const json_t *v)
{
  return tell (r, name, v, *f->ours ? f->ours : "of generation or the library; no effect here"), 0;
}

/* transformers gives a Llama or Qwen3 with attention_bias a bias on the output projection too; Qwen2 always has the three. */
static int take_bias (struct reader *r, const struct field *f, const char *name, const json_t *v)
{
  (void) f;
  if (!json_is_boolean (v)) return refuse (r, name, v, "true or false is expected");
  if (r->type->qkv_bias && json_is_false (v)) return refuse (r, name, v, "a qwen2 has a bias on q, k and v");
  if (!r->type->qkv_bias && json_is_true (v))
    return refuse (r, name, v, "this puts a bias on the output projection of attention too, which is not offered");
  return tell (r, name, v, r->type->qkv_bias ? "model.qkv_bias true" : "model.qkv_bias false"), 0;
}

static int take_causal (struct reader *r, const struct field *f, const char *name, const json_t *v)
{
  (void) f;
  const char *one = json_string_value (json_array_get (v, 0));
  if (json_array_size (v) != 1 || !one || strcmp (one, r->type->causal))
    return refuse (r, name, v, "a model that predicts the next token (...ForCausalLM) of the model_type is expected");
  return tell (r, name, v, "as it is here"), 0;
}

static int take_window (struct reader *r, const struct field *f, const char *name, const json_t *v)
{
  (void) f;
  if (!json_is_null (v) && !json_is_integer (v)) return refuse (r, name, v, "a whole number is expected");
  r->given_window = json_is_integer (v) ? json_integer_value (v) : 0;
  return tell (r, name, v, "model.window, where it is used"), 0;
}

static int take_use_window (struct reader *r, const struct field *f, const char *name, const json_t *v)
{
  (void) f;
  if (!json_is_boolean (v)) return refuse (r, name, v, "true or false is expected");
  r->use_window = json_is_true (v);
  r->says_use = true;
  return tell (r, name, v, r->use_window ? "sliding_window counts" : "sliding_window does not count"), 0;
}

static int take_full_layers (struct reader *r, const struct field *f, const char *name, const json_t *v)
{
  (void) f;
  if (!json_is_integer (v)) return refuse (r, name, v, "a whole number is expected");
  r->full_layers = json_integer_value (v);
  return tell (r, name, v, "the layers below it have no window"), 0;
}

static int take_layer_types (struct reader *r, const struct field *f, const char *name, const json_t *v)
{
  (void) f;
  size_t i, full = 0, sliding = 0;
  json_t *one;
  json_array_foreach (v, i, one) {
    const char *s = json_is_string (one) ? json_string_value (one) : "";
    full += !strcmp (s, "full_attention");
    sliding += !strcmp (s, "sliding_attention");
  }
  if (json_is_null (v)) return tell (r, name, v, "left out"), 0;
  if (!i || (full != i && sliding != i)) return refuse (r, name, v, "all layers alike are expected: full_attention or sliding_attention");
  r->layers = full ? MIX_FULL : MIX_SLIDING;
  return tell (r, name, v, full ? "model.window 0" : "sliding_window counts in all layers"), 0;
}

static int take_rope (struct reader *r, const struct field *f, const char *name, const json_t *v);
static int take_rope_type (struct reader *r, const struct field *f, const char *name, const json_t *v);

#define A(m) offsetof (struct hf_config, arch.m)
#define H(m) offsetof (struct hf_config, m)
static const struct field field_table[] = {
  { "architectures", take_causal },
  { "hidden_size", take_int, A (dim), "model.dim" },
  { "num_hidden_layers", take_int, A (layers), "model.layers" },
  { "num_attention_heads", take_int, A (heads), "model.heads" },
  { "num_key_value_heads", take_int, A (kv_heads), "model.kv_heads" },
  { "head_dim", take_int, A (head_dim), "model.head_dim" },
  { "intermediate_size", take_int, A (ffn), "model.ffn" },
  { "vocab_size", take_int, A (vocab), "model.vocab" },
  { "tie_word_embeddings", take_bool, A (tied), "model.tied" },
  { "rms_norm_eps", take_real, A (norm_eps), "model.norm_eps" },
  { "max_position_embeddings", take_int, A (max_seq), "model.max_seq" },
  { "initializer_range", take_real, A (init_std), "model.init_std" },
  { "rope_theta", take_real, A (rope_theta), "model.rope_theta" },
  { "rope_scaling", take_rope, 0, "" },
  { "rope_parameters", take_rope, 0, "" },
  { "attention_bias", take_bias },
  { "sliding_window", take_window },
  { "use_sliding_window", take_use_window },
  { "max_window_layers", take_full_layers },
  { "layer_types", take_layer_types },
  { "bos_token_id", take_id, H (bos), "the id that begins a text" },
  { "eos_token_id", take_id, H (eos), "the id that ends a text (of several the first)" },
  { "pad_token_id", take_id, H (pad), "the id that fills up; sequences are packed here" },
  { "torch_dtype", take_word, H (dtype), "the type of the checkpoint's numbers; train.dtype says what computes" },
  { "dtype", take_word, H (dtype), "the type of the checkpoint's numbers; train.dtype says what computes" },
  /* what this program does, and nothing else */
  { "hidden_act", must_be, 0, "the feed-forward part is SwiGLU: silu is offered", "\"silu\"|\"swish\"" },
  { "attention_dropout", must_be, 0, "dropout is not offered", "0|null" },
  { "hidden_dropout", must_be, 0, "dropout is not offered", "0|null" },
  { "embd_pdrop", must_be, 0, "dropout is not offered", "0|null" },
  { "resid_pdrop", must_be, 0, "dropout is not offered", "0|null" },
  { "mlp_bias", must_be, 0, "a bias in the feed-forward part is not offered", "false|null" },
  { "partial_rotary_factor", must_be, 0, "RoPE turns whole heads here", "1|null" },
  { "use_mrope", must_be, 0, "RoPE over several axes is not offered", "false|null" },
  { "is_decoder", must_be, 0, "decoders are offered, without cross-attention", "true|false|null" },
  { "is_encoder_decoder", must_be, 0, "an encoder is not offered", "false|null" },
  { "add_cross_attention", must_be, 0, "cross-attention is not offered", "false|null" },
  { "pruned_heads", must_be, 0, "pruned heads are not offered", "{}|null" },
  { "tie_encoder_decoder", must_be, 0, "an encoder is not offered", "false|null" },
  { "quantization_config", must_be, 0, "quantised weights are not offered", "null" },
  { "auto_map", must_be, 0, "the model brings code of its own, which this program cannot know", "null" },
  { "num_nextn_predict_layers", must_be, 0, "heads for further tokens are not offered", "0|null" },
  /* what the mathematics does not see */
  { "pretraining_tp", idle, 0, "how a sum was once split; the same sum" },
  { "use_cache", idle, 0, "" }, { "transformers_version", idle, 0, "" }, { "_name_or_path", idle, 0, "" },
  { "_commit_hash", idle, 0, "" }, { "_attn_implementation", idle, 0, "" }, { "_attn_implementation_autoset", idle, 0, "" },
  { "attn_implementation", idle, 0, "" }, { "tokenizer_class", idle, 0, "" }, { "torchscript", idle, 0, "" },
  { "return_dict", idle, 0, "" }, { "output_attentions", idle, 0, "" }, { "output_hidden_states", idle, 0, "" },
  { "use_bfloat16", idle, 0, "" }, { "chunk_size_feed_forward", idle, 0, "" }, { "cross_attention_hidden_size", idle, 0, "" },
  { "id2label", idle, 0, "" }, { "label2id", idle, 0, "" }, { "problem_type", idle, 0, "" }, { "finetuning_task", idle, 0, "" },
  { "task_specific_params", idle, 0, "" }, { "decoder_start_token_id", idle, 0, "" }, { "sep_token_id", idle, 0, "" },
  { "prefix", idle, 0, "" }, { "suppress_tokens", idle, 0, "" }, { "bad_words_ids", idle, 0, "" },
  { "max_length", idle, 0, "" }, { "min_length", idle, 0, "" }, { "do_sample", idle, 0, "" }, { "early_stopping", idle, 0, "" },
  { "num_beams", idle, 0, "" }, { "num_beam_groups", idle, 0, "" }, { "diversity_penalty", idle, 0, "" },
  { "temperature", idle, 0, "" }, { "top_k", idle, 0, "" }, { "top_p", idle, 0, "" }, { "typical_p", idle, 0, "" },
  { "repetition_penalty", idle, 0, "" }, { "length_penalty", idle, 0, "" }, { "no_repeat_ngram_size", idle, 0, "" },
  { "encoder_no_repeat_ngram_size", idle, 0, "" }, { "exponential_decay_length_penalty", idle, 0, "" },
  { "forced_bos_token_id", idle, 0, "" }, { "forced_eos_token_id", idle, 0, "" }, { "begin_suppress_tokens", idle, 0, "" },
  { "num_return_sequences", idle, 0, "" }, { "output_scores", idle, 0, "" }, { "return_dict_in_generate", idle, 0, "" },
  { "remove_invalid_values", idle, 0, "" }, { "tf_legacy_loss", idle, 0, "" }, { "model_type", idle, 0, "the family" },
};

/* Inside of rope_scaling and rope_parameters. */
static const struct field rope_table[] = {
  { "rope_type", take_rope_type },
  { "type", take_rope_type },
  { "rope_theta", take_real, A (rope_theta), "model.rope_theta" },
  { "factor", take_real, A (rope_scaling.factor), "model.rope_scaling.factor" },
  { "low_freq_factor", take_real, A (rope_scaling.low), "model.rope_scaling.low" },
  { "high_freq_factor", take_real, A (rope_scaling.high), "model.rope_scaling.high" },
  { "original_max_position_embeddings", take_int, A (rope_scaling.original), "model.rope_scaling.original" },
  { "partial_rotary_factor", must_be, 0, "RoPE turns whole heads here", "1|null" },
};

static const struct field *find (const struct field *table, int n, const char *name)
{
  for (int i = 0; i < n; i++) if (!strcmp (table[i].name, name)) return &table[i];
  return NULL;
}

static int take_rope_type (struct reader *r, const struct field *f, const char *name, const json_t *v)
{
  (void) f;
  const char *s = json_is_string (v) ? json_string_value (v) : "";
  if (strcmp (s, "llama3") && strcmp (s, "default"))
    return refuse (r, name, v, "of the ways to stretch RoPE llama3 is offered, and default, which is none");
  if (r->rope && strcmp (r->rope, s)) return refuse (r, name, v, "the file names another kind of scaling too");
  r->rope = s;
  return tell (r, name, v, strcmp (s, "llama3") ? "no scaling" : "Llama 3's scaling"), 0;
}

static int take_rope (struct reader *r, const struct field *f, const char *name, const json_t *v)
{
  (void) f;
  const char *key;
  json_t *one;
  if (json_is_null (v)) return tell (r, name, v, "model.rope_scaling.factor 0"), 0;
  if (!json_is_object (v)) return refuse (r, name, v, "keys and values are expected");
  json_object_foreach ((json_t *) v, key, one) {
    char full[160];
    const struct field *g = find (rope_table, LEN (rope_table), key);
    snprintf (full, sizeof full, "%s.%.100s", name, key);
    if (!g) return refuse (r, full, one, "this field is not known");
    if (g->take (r, g, full, one)) return -1;
  }
  if (!r->rope && json_object_get (v, "factor")) return refuse (r, name, v, "a factor needs its rope_type");
  return 0;
}

/* All fields that concern the window, once they are read. */
static int settle_window (struct reader *r)
{
  struct arch *a = &r->h->arch;
  bool qwen = !strncmp (r->type->name, "qwen", 4), llama = !strcmp (r->type->name, "llama");
  int64_t w = r->given_window >= 0 ? r->given_window : r->type->window;
  if (llama && (w || r->layers == MIX_SLIDING))
    return user_err (r->e, "%s: sliding_window %lld: a llama has none", r->path, (long long) w);
  if (qwen && !r->use_window) w = 0;
  if (!qwen && r->says_use && !r->use_window) w = 0;
  if (r->layers == MIX_FULL) w = 0;
  if (r->layers == MIX_SLIDING && !w) return user_err (r->e, "%s: layer_types sliding_attention needs sliding_window", r->path);
  if (qwen && w && r->layers == MIX_NONE) {
    int64_t full = r->full_layers >= 0 ? r->full_layers : 28;
    if (full >= a->layers) w = 0;
    else if (full > 0)
      return user_err (r->e, "%s: max_window_layers %lld of %lld layers: a window in some layers is not offered", r->path,
                       (long long) full, (long long) a->layers);
  }
  a->window = w;
  return 0;
}

static int settle (struct reader *r)
{
  struct arch *a = &r->h->arch;
  const struct { const char *name; int64_t v; } need[] = { { "hidden_size", a->dim }, { "num_hidden_layers", a->layers },
    { "num_attention_heads", a->heads }, { "intermediate_size", a->ffn }, { "vocab_size", a->vocab } };
  for (int i = 0; i < LEN (need); i++)
    if (!need[i].v) return user_err (r->e, "%s lacks %s", r->path, need[i].name);
  if (!a->kv_heads) a->kv_heads = a->heads;
  if (!a->head_dim) {
    if (a->dim % a->heads)
      return user_err (r->e, "%s: hidden_size %lld is not a multiple of num_attention_heads %lld and there is no head_dim", r->path,
                       (long long) a->dim, (long long) a->heads);
    a->head_dim = a->dim / a->heads;
  }
  bool llama3 = r->rope && !strcmp (r->rope, "llama3");
  if (llama3 && (!a->rope_scaling.factor || !a->rope_scaling.low || !a->rope_scaling.high || !a->rope_scaling.original))
    return user_err (r->e, "%s: rope_type llama3 needs factor, low_freq_factor, high_freq_factor and "
                     "original_max_position_embeddings", r->path);
  if (!llama3) a->rope_scaling.factor = a->rope_scaling.original = 0;
  if (!llama3) a->rope_scaling.low = 1, a->rope_scaling.high = 4;
  if (settle_window (r)) return -1;
  struct err why = { 0 };
  return arch_check (a, &why) ? user_err (r->e, "%s: %s", r->path, why.msg) : 0;
}

static int read_type (struct reader *r, const json_t *root)
{
  const json_t *v = json_object_get (root, "model_type");
  if (!v) return user_err (r->e, "%s lacks model_type: is it a model's config.json?", r->path);
  for (int i = 0; i < LEN (type_table) && !r->type; i++)
    if (json_is_string (v) && !strcmp (json_string_value (v), type_table[i].name)) r->type = &type_table[i];
  if (!r->type) return refuse (r, "model_type", v, "llama, mistral, qwen2 and qwen3 are offered");
  const struct type *t = r->type;
  snprintf (r->h->type, sizeof r->h->type, "%s", t->name);
  r->h->arch = (struct arch) { .kv_heads = t->kv_heads, .head_dim = t->head_dim, .qkv_bias = t->qkv_bias, .qk_norm = t->qk_norm,
    .norm_eps = 1e-6, .rope_theta = 10000, .rope_scaling = { 0 }, .max_seq = t->max_seq, .init_std = 0.02 };
  return 0;
}

static int read_root (struct reader *r, json_t *root)
{
  const char *key;
  json_t *v;
  if (!json_is_object (root)) return user_err (r->e, "%s: keys and values are expected", r->path);
  if (read_type (r, root)) return -1;
  json_object_foreach (root, key, v) {
    const struct field *f = find (field_table, LEN (field_table), key);
    if (!f) return refuse (r, key, v, "this field is not known; if it changes nothing in the mathematics, take it out");
    if (f->take (r, f, key, v)) return -1;
  }
  return settle (r);
}

int hf_config_read (struct hf_config *h, const char *path, hf_tell *tell, void *ctx, struct err *e)
{
  char file[1200];
  struct stat s;
  bool folder = !stat (path, &s) && S_ISDIR (s.st_mode);
  snprintf (file, sizeof file, "%.1100s%s", path, folder ? "/config.json" : "");
  *h = (struct hf_config) { .bos = -1, .eos = -1, .pad = -1 };
  json_error_t je;
  json_t *root = json_load_file (file, JSON_REJECT_DUPLICATES, &je);
  if (!root && je.line > 0) return user_err (e, "%s line %d: not JSON: %s", file, je.line, je.text);
  if (!root) return user_err (e, "%s", je.text);
  struct reader r = { .h = h, .path = file, .tell = tell, .ctx = ctx, .full_layers = -1, .given_window = -1, .e = e };
  int rc = read_root (&r, root);
  json_decref (root);
  return rc;
}

static const struct type *type_of (const struct arch *a)
{
  for (int i = 0; i < LEN (type_table); i++) {
    const struct type *t = &type_table[i];
    if (t->qkv_bias == a->qkv_bias && t->qk_norm == a->qk_norm && (!t->window == !a->window || a->qkv_bias || a->qk_norm)) return t;
  }
  return NULL;
}

static json_t *rope_scaling (const struct arch *a)
{
  if (!a->rope_scaling.factor) return json_null ();
  return json_pack ("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor", a->rope_scaling.factor,
                    "low_freq_factor", a->rope_scaling.low, "high_freq_factor", a->rope_scaling.high,
                    "original_max_position_embeddings", (json_int_t) a->rope_scaling.original);
}

static void put_window (json_t *o, const struct arch *a, const struct type *t)
{
  if (!strcmp (t->name, "llama")) return;
  json_object_set_new (o, "sliding_window", a->window ? json_integer (a->window) : json_null ());
  if (!t->qkv_bias && !t->qk_norm) return;
  json_object_set_new (o, "use_sliding_window", json_boolean (a->window > 0));
  json_object_set_new (o, "max_window_layers", json_integer (a->window ? 0 : a->layers));
}

static void put_id (json_t *o, const char *key, int64_t id) { if (id >= 0) json_object_set_new (o, key, json_integer (id)); }

char *hf_config_text (struct hf_config *h, struct err *e)
{
  const struct arch *a = &h->arch;
  const struct type *t = type_of (a);
  if (!t) return user_err (e, "Hugging Face has no model of llama's family with qkv_bias and qk_norm"), NULL;
  snprintf (h->type, sizeof h->type, "%s", t->name);
  json_t *o = json_pack ("{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:b, s:f, s:f, s:f, s:o, s:f, s:b}",
    "architectures", t->causal, "model_type", t->name, "hidden_size", (json_int_t) a->dim,
    "num_hidden_layers", (json_int_t) a->layers, "num_attention_heads", (json_int_t) a->heads,
    "num_key_value_heads", (json_int_t) a->kv_heads, "head_dim", (json_int_t) a->head_dim,
    "intermediate_size", (json_int_t) a->ffn, "vocab_size", (json_int_t) a->vocab,
    "max_position_embeddings", (json_int_t) (a->max_seq ? a->max_seq : t->max_seq), "hidden_act", "silu",
    "tie_word_embeddings", (int) a->tied, "rms_norm_eps", a->norm_eps, "initializer_range", a->init_std,
    "rope_theta", a->rope_theta, "rope_scaling", rope_scaling (a), "attention_dropout", 0.0, "use_cache", 1);
  must (o, "out of host memory for config.json");
  if (!t->qkv_bias) json_object_set_new (o, "attention_bias", json_false ());
  put_window (o, a, t);
  put_id (o, "bos_token_id", h->bos);
  put_id (o, "eos_token_id", h->eos);
  put_id (o, "pad_token_id", h->pad);
  if (*h->dtype) json_object_set_new (o, "torch_dtype", json_string (h->dtype));
  char *text = json_dumps (o, JSON_INDENT (2)), *copy;
  must (text, "out of host memory for config.json");
  copy = xprintf ("%s\n", text);
  free (text);
  json_decref (o);
  return copy;
}
