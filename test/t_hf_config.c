/* config.json against the presets of share/models, which were written by hand from the same sources; refusals; the way back. np: 1 */
#include "tap.h"
#include "conf.h"
#include "hf_config.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_NAME "t_hf_config.tmp.json"

static struct arch preset (const char *name)
{
  struct conf c;
  struct err e = { 0 };
  char *argv[] = { "--model", (char *) name };
  conf_default (&c);
  if (conf_load (&c, NULL, 2, argv, &e)) fprintf (stderr, "# %s\n", e.msg);
  return c.arch;
}

static bool same (const struct arch *a, const struct arch *b)
{
  struct conf x, y;
  char out[256];
  memset (&x, 0, sizeof x);
  memset (&y, 0, sizeof y);
  x.arch = *a;
  y.arch = *b;
  const char *d = conf_differ (&x, &y, out, sizeof out);
  if (d) fprintf (stderr, "# %s\n", d);
  return !d;
}

static int told;
static void count (void *ctx, const char *field, const char *value, const char *meaning)
{
  (void) ctx;
  told += *field && *value && *meaning;
}

static void fixture (const char *file, const char *model)
{
  char path[512];
  struct hf_config h;
  struct err e = { 0 };
  snprintf (path, sizeof path, "%s/test/like/%s", getenv ("srcdir") ? getenv ("srcdir") : ".", file);
  struct arch a = preset (model);
  json_t *root = json_load_file (path, 0, NULL);
  told = 0;
  int rc = hf_config_read (&h, path, count, NULL, &e);
  if (rc) fprintf (stderr, "# %s\n", e.msg);
  tap_ok (!rc && same (&h.arch, &a), "%s is the preset %s", file, model);
  tap_ok (told >= (int) json_object_size (root), "%s: a word about each of its %zu fields", file, json_object_size (root));
  json_decref (root);
}

/* A small llama with the keys of EDIT put in, in JSON; "-key" takes one out. */
static int read_edited (const char *edit, struct hf_config *h, struct err *e)
{
  static const char base[] = "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":2,\"intermediate_size\":192,\"vocab_size\":257}";
  *e = (struct err) { 0 };
  FILE *f = fopen (FILE_NAME, "w");
  if (*edit == '{' || *edit == '-') {
    json_t *o = json_loads (base, 0, NULL), *p = *edit == '{' ? json_loads (edit, 0, NULL) : NULL;
    if (p) json_object_update (o, p);
    else json_object_del (o, edit + 1);
    json_dumpf (o, f, 0);
    json_decref (o);
    json_decref (p);
  } else fputs (edit, f);
  fclose (f);
  int rc = hf_config_read (h, FILE_NAME, NULL, NULL, e);
  unlink (FILE_NAME);
  return rc;
}

static const struct { const char *edit, *words; } bad[] = {
  { "{\"model_type\":\"gpt2\"}", "model_type \"gpt2\"|mistral" },
  { "{\"model_type\":\"qwen3_moe\"}", "model_type|qwen3" },
  { "-model_type", "lacks model_type" },
  { "-hidden_size", "lacks hidden_size" },
  { "-vocab_size", "lacks vocab_size" },
  { "{\"hidden_size\":\"64\"}", "hidden_size \"64\"|whole number" },
  { "{\"hidden_size\":null}", "lacks hidden_size" },
  { "{\"hidden_size\":68}", "hidden_size 68 is not a multiple of num_attention_heads 8" },
  { "{\"num_key_value_heads\":3}", "kv_heads 3" },
  { "{\"hidden_act\":\"gelu\"}", "hidden_act \"gelu\"|SwiGLU" },
  { "{\"attention_dropout\":0.1}", "attention_dropout 0.1|dropout" },
  { "{\"attention_bias\":true}", "attention_bias true|output projection" },
  { "{\"mlp_bias\":true}", "mlp_bias true" },
  { "{\"partial_rotary_factor\":0.5}", "partial_rotary_factor 0.5" },
  { "{\"sliding_window\":4096}", "sliding_window 4096|llama" },
  { "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.0}}", "rope_scaling|\"linear\"|llama3" },
  { "{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2.0}}", "\"yarn\"" },
  { "{\"rope_scaling\":{\"factor\":2.0}}", "rope_type" },
  { "{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0}}", "low_freq_factor" },
  { "{\"rope_scaling\":{\"rope_type\":\"llama3\",\"facter\":8.0}}", "rope_scaling.facter" },
  { "{\"rope_scaling\":8}", "rope_scaling 8" },
  { "{\"quantization_config\":{\"bits\":4}}", "quantization_config" },
  { "{\"auto_map\":{\"AutoModel\":\"x\"}}", "auto_map" },
  { "{\"architectures\":[\"LlamaForSequenceClassification\"]}", "architectures|ForCausalLM" },
  { "{\"num_experts\":8}", "num_experts 8|not known" },
  { "{\"model_type\":\"qwen2\",\"use_sliding_window\":true,\"sliding_window\":128,\"max_window_layers\":2}", "max_window_layers 2 of 4" },
  { "{\"model_type\":\"qwen2\",\"attention_bias\":false}", "attention_bias false" },
  { "{\"model_type\":\"qwen2\",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", "layer_types" },
  { "{\"tie_word_embeddings\":1}", "tie_word_embeddings 1" },
  { "{\"model_type\":\"llama\",\"model_type\":\"llama\"}", "duplicate" },
  { "{\"model_type\":\n\"llama\",}", FILE_NAME " line 2" },
  { "[1]", "keys and values" },
};

static void refusals (void)
{
  struct hf_config h;
  struct err e;
  for (int i = 0; i < LEN (bad); i++) {
    bool raw = strstr (bad[i].words, "duplicate") || strstr (bad[i].words, " line ");
    char text[400], copy[200];
    snprintf (text, sizeof text, "%s%s", raw ? " " : "", bad[i].edit);
    int good = read_edited (text, &h, &e) == -1 && e.code == EXIT_USER && strstr (e.msg, FILE_NAME);
    snprintf (copy, sizeof copy, "%s", bad[i].words);
    for (char *w = strtok (copy, "|"); w; w = strtok (NULL, "|")) good &= strstr (e.msg, w) != NULL;
    if (!good) fprintf (stderr, "# `%s` is not `%s`\n", e.msg, bad[i].words);
    for (char *s = text; *s; s++) if (*s == '\n' || *s == '#') *s = ' ';
    tap_ok (good, "refused: %s", text);
  }
  e = (struct err) { 0 };
  tap_ok (hf_config_read (&h, "no/such/folder", NULL, NULL, &e) == -1 && strstr (e.msg, "no/such/folder"), "a file that is not there");
}

/* What transformers does where the file is silent. */
static void defaults (void)
{
  struct hf_config h;
  struct err e;
  tap_ok (!read_edited ("{}", &h, &e) && h.arch.norm_eps == 1e-6 && h.arch.rope_theta == 10000 && h.arch.max_seq == 2048
          && !h.arch.tied && h.arch.head_dim == 8 && h.bos == -1, "a silent llama");
  tap_ok (!read_edited ("{\"num_key_value_heads\":null}", &h, &e) && h.arch.kv_heads == 8, "null is left out");
  tap_ok (!read_edited ("{\"model_type\":\"mistral\"}", &h, &e) && h.arch.window == 4096, "a silent mistral has a window of 4096");
  tap_ok (!read_edited ("{\"model_type\":\"mistral\",\"sliding_window\":null}", &h, &e) && h.arch.window == 0, "and null takes it away");
  tap_ok (!read_edited ("{\"model_type\":\"qwen3\"}", &h, &e) && h.arch.head_dim == 128 && h.arch.qk_norm && !h.arch.qkv_bias,
          "a silent qwen3 has heads of 128");
  tap_ok (!read_edited ("{\"model_type\":\"qwen2\",\"sliding_window\":128}", &h, &e) && h.arch.window == 0 && h.arch.qkv_bias,
          "a qwen2 does not use its window unless it says so");
  tap_ok (!read_edited ("{\"model_type\":\"qwen2\",\"sliding_window\":128,\"use_sliding_window\":true,\"max_window_layers\":0}", &h, &e)
          && h.arch.window == 128, "in all layers from 0 on");
  tap_ok (!read_edited ("{\"eos_token_id\":[5,6],\"pad_token_id\":null,\"dtype\":\"bfloat16\"}", &h, &e) && h.eos == 5 && h.pad == -1
          && !strcmp (h.dtype, "bfloat16"), "ids and type");
}

static void way_back (const char *model, const char *type)
{
  struct hf_config h = { .arch = preset (model), .bos = 1, .eos = 2, .pad = -1, .dtype = "bfloat16" }, back;
  struct err e = { 0 };
  char *text = hf_config_text (&h, &e);
  FILE *f = fopen (FILE_NAME, "w");
  fputs (text ? text : "", f);
  fclose (f);
  int rc = hf_config_read (&back, FILE_NAME, NULL, NULL, &e);
  unlink (FILE_NAME);
  if (rc) fprintf (stderr, "# %s\n", e.msg);
  if (!h.arch.max_seq) h.arch.max_seq = back.arch.max_seq;
  tap_ok (!rc && same (&h.arch, &back.arch) && back.eos == 2 && back.pad == -1 && !strcmp (back.type, type),
          "%s as a %s, and back", model, type);
  xfree (text);
}

int main (int argc, char **argv)
{
  MPI_Init (&argc, &argv);
  say_level (SAY_WARN);
  fixture ("llama-3.2-1b.json", "1b");
  fixture ("llama-2-70b.json", "llama2-70b");
  fixture ("llama-3.1-8b-v5.json", "llama3.1-8b");
  fixture ("mistral-7b-v0.1.json", "mistral-7b-v0.1");
  fixture ("qwen2.5-7b.json", "qwen2.5-7b");
  fixture ("qwen3-8b.json", "qwen3-8b");
  refusals ();
  defaults ();
  way_back ("1b", "llama");
  way_back ("llama2-13b", "llama");
  way_back ("tiny", "llama");
  way_back ("mistral-7b-v0.1", "mistral");
  way_back ("qwen2.5-7b", "qwen2");
  way_back ("qwen3-8b", "qwen3");
  struct hf_config both = { .arch = preset ("qwen3-8b") };
  struct err e = { 0 };
  both.arch.qkv_bias = true;
  tap_ok (!hf_config_text (&both, &e) && strstr (e.msg, "qk_norm"), "bias and norm together have no model_type");
  tap_done ();
  MPI_Finalize ();
}
