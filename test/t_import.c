/* Settings of other systems: what each line becomes, what is refused by name, what is left out. np: 1 */
#include "tap.h"
#include "import.h"
#include "toml.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_NAME "t_import.tmp"

static char said[32768];

static char *slurp (const char *name)
{
  static char text[8192];
  char path[512];
  snprintf (path, sizeof path, "%s/test/like/%s", getenv ("srcdir") ? getenv ("srcdir") : ".", name);
  FILE *f = fopen (path, "r");
  text[f ? fread (text, 1, sizeof text - 1, f) : 0] = 0;
  if (f) fclose (f);
  return text;
}

/* import_load with OPTION and the fixture (its text for Megatron), then MORE split at spaces. What is printed goes to said. */
static int load (struct conf *c, int *gpus, const char *option, const char *fixture, const char *more, struct err *e)
{
  char path[512], copy[512], *argv[40] = { (char *) option };
  int argc = 2;
  bool text = !strcmp (option, "--from-megatron");
  snprintf (path, sizeof path, "%s/test/like/%s", getenv ("srcdir") ? getenv ("srcdir") : ".", fixture);
  argv[1] = !text ? path : strchr (fixture, ' ') ? (char *) fixture : slurp (fixture);
  snprintf (copy, sizeof copy, "%s", more);
  for (char *w = strtok (copy, " "); w; w = strtok (NULL, " ")) argv[argc++] = w;
  *e = (struct err) { 0 };
  conf_default (c);
  FILE *f = fmemopen (said, sizeof said, "w");
  int rc = import_load (c, NULL, &argc, argv, gpus, f, e);
  fclose (f);
  if (rc && getenv ("VERBOSE")) fprintf (stderr, "# %s\n", e->msg);
  return rc;
}

/* All of WORDS, separated by |, are in TEXT. */
static bool has (const char *text, const char *words)
{
  char copy[1024];
  bool good = true;
  snprintf (copy, sizeof copy, "%s", words);
  for (char *w = strtok (copy, "|"); w; w = strtok (NULL, "|"))
    if (!strstr (text, w)) good = false, fprintf (stderr, "# lacks `%s`\n", w);
  if (!good) fprintf (stderr, "# %s\n", text);
  return good;
}

static void accelerate (void)
{
  struct conf c;
  struct err e;
  int gpus = 0;
  int rc = load (&c, &gpus, "--from-accelerate", "accelerate-fsdp.yaml", "--model llama2-7b", &e);
  tap_ok (!rc && c.sharding.strategy == FULL_SHARD && !strcmp (c.sharding.wrap, "layer") && c.recompute.mode == RECOMPUTE_FULL && c.train.dtype == DT_BF16
          && gpus == 16 && c.arch.layers == 32, "accelerate: FSDP %s", e.msg);
  tap_ok (has (said, "13 |fsdp_config.fsdp_sharding_strategy FULL_SHARD|sharding.strategy FULL_SHARD|num_processes 16|as many GPUs|machine_rank 0|no meaning"),
          "accelerate: a word about each line");
  int lines = 0;
  for (char *s = said; *s; s++) lines += *s == '\n';
  tap_ok (lines == 1 + 27, "accelerate: 27 settings, %d lines", lines);
  gpus = 32;
  rc = load (&c, &gpus, "--from-accelerate", "accelerate-fsdp2.yaml", "--model llama2-7b --sharding.reshard auto", &e);
  tap_ok (!rc && gpus == 32 && c.mesh.dp_shard == 4 && c.mesh.tp == 2 && c.sharding.reshard == RESHARD_AUTO, "accelerate: FSDP2; the user's own --gpus and options win %s", e.msg);
  gpus = 0;
  rc = load (&c, &gpus, "--from-accelerate", "accelerate-deepspeed.yaml", "--model llama2-7b", &e);
  tap_ok (rc && has (e.msg, "6 settings|deepspeed_config.zero_stage|sharding.strategy|mixed_precision|distributed_type"), "accelerate: DeepSpeed is refused by name");
  tap_ok (has (said, "!|fp16 is not offered"), "with all lines shown");
  rc = load (&c, &gpus, "--from-accelerate", "accelerate-fsdp.yaml", "", &e);
  tap_ok (rc && has (e.msg, "names no model"), "accelerate: a model is needed");
}

static void torchtitan (void)
{
  struct conf c;
  struct err e;
  int gpus = 0;
  int rc = load (&c, &gpus, "--from-torchtitan", "torchtitan-llama3-8b.toml", "", &e);
  tap_ok (!rc && c.arch.layers == 32 && c.arch.vocab == 128256 && c.sharding.strategy == FULL_SHARD && c.train.seq_len == 8192 && c.train.micro_batch == 1
          && c.train.global_batch == 0 && c.recompute.mode == RECOMPUTE_SELECTIVE && c.mesh.dp_shard == 0 && c.mesh.tp == 1 && gpus == 0
          && !strcmp (c.mesh.order, "tp-dp-pp") && c.schedule.type == LR_LINEAR, "torchtitan: 8B %s", e.msg);
  tap_ok (has (said, "41   parallelism.tensor_parallel_degree 1|mesh.tp 1|training.compile false|kernels are compiled already|lr_scheduler.decay_type (left out)"),
          "torchtitan: lines, idle ones, and defaults that differ");
  rc = load (&c, &gpus, "--from-torchtitan", "torchtitan-llama3-70b-3d.toml", "", &e);
  tap_ok (!rc && gpus == 64 && c.arch.layers == 80 && c.mesh.pp == 2 && c.mesh.tp == 8 && c.mesh.dp_shard == 4 && c.pipeline.schedule == SCHED_INTERLEAVED
          && c.pipeline.chunks == 2 && c.train.micro_batch == 1 && c.train.global_batch == 64 && c.recompute.mode == RECOMPUTE_FULL && c.recompute.every == 1,
          "torchtitan: 70B in three dimensions %s", e.msg);
  gpus = 0;
  rc = load (&c, &gpus, "--from-torchtitan", "torchtitan-llama3-405b-cp.toml", "", &e);
  tap_ok (rc && has (e.msg, "2 settings|context_parallel_degree|tensor_paralel_degree") && has (said, "model.converters float8|train.dtype fp8|filter_fqns output,router"),
          "torchtitan: what cannot be had is named, all of it");
  rc = load (&c, &gpus, "--from-torchtitan", "torchtitan-llama3-8b.toml", "--model tiny --train.seq_len 128", &e);
  tap_ok (!rc && c.arch.layers == 4 && c.train.seq_len == 128, "torchtitan: --model and options win %s", e.msg);
}

static void megatron (void)
{
  struct conf c;
  struct err e;
  int gpus = 0;
  int rc = load (&c, &gpus, "--from-megatron", "megatron-llama2-70b.txt", "", &e);
  tap_ok (!rc && gpus == 64 && c.arch.layers == 80 && c.arch.kv_heads == 8 && c.arch.ffn == 28672 && c.mesh.tp == 8 && c.mesh.pp == 2 && c.train.global_batch == 512
          && c.pipeline.schedule == SCHED_INTERLEAVED && c.pipeline.chunks == 4 && c.sharding.strategy == SHARD_OPT && c.recompute.mode == RECOMPUTE_FULL
          && !c.arch.tied && c.train.dtype == DT_BF16 && !strcmp (c.run.dir, "checkpoints/llama2-70b") && !strcmp (c.mesh.order, "tp-dp-pp"), "megatron: 70B %s", e.msg);
  tap_ok (has (said, "data-path my long name_text_document|tensor-model-parallel-size 8|mesh.tp 8|pipeline.chunks 4|(left out)"), "megatron: a word about each flag");
  gpus = 0;
  rc = load (&c, &gpus, "--from-megatron", "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 --data-parallel-size 4", "--model llama2-70b", &e);
  tap_ok (!rc && gpus == 64 && c.mesh.dp_shard == 4 && c.sharding.strategy == NO_SHARD && c.train.dtype == DT_F32, "megatron: the article's three flags %s", e.msg);
  rc = load (&c, &gpus, "--from-megatron", "--bf16 --fp8-format hybrid --fp8-amax-history-len 1024", "--model llama2-7b", &e);
  tap_ok (!rc && c.train.precision == PREC_FP8, "megatron: fp8 beside bf16 %s", e.msg);
  rc = load (&c, &gpus, "--from-megatron", "megatron-gpt3.txt", "", &e);
  tap_ok (rc && has (e.msg, "10 settings|context-parallel-size|fp16|num-experts|frobnicate|swiglu|normalization|disable_bias_linear"), "megatron: a GPT-3 is refused, each reason named");
  rc = load (&c, &gpus, "--from-megatron", "--tensor-model-parallel-size $TP --bf16", "--model tiny", &e);
  tap_ok (rc && has (e.msg, "$TP|shell's variable"), "megatron: a variable is not guessed");
  rc = load (&c, &gpus, "--from-megatron", "--tensor-model-parallel-size 2 --tensor-model-parallel-size 4", "--model tiny", &e);
  tap_ok (rc && has (e.msg, "given twice|`2`|`4`"), "megatron: twice");
  rc = load (&c, &gpus, "--from-megatron", "--data-path 'open --bf16", "--model tiny", &e);
  tap_ok (rc && has (e.msg, "a quote does not end"), "megatron: an open quote");
}

static void hugging_face (void)
{
  struct conf c;
  struct err e;
  int gpus = 0;
  int rc = load (&c, &gpus, "--from-hf", "llama-2-70b.json", "--mesh.tp 8", &e);
  tap_ok (!rc && c.arch.layers == 80 && c.arch.kv_heads == 8 && c.mesh.tp == 8, "hf: 70B %s", e.msg);
  tap_ok (has (said, "hidden_size 8192|model.dim 8192|use_cache true"), "hf: a word about each field");
  char two[512];
  snprintf (two, sizeof two, "--from-hf %s/test/like/qwen3-8b.json", getenv ("srcdir") ? getenv ("srcdir") : ".");
  rc = load (&c, &gpus, "--from-accelerate", "accelerate-fsdp.yaml", two, &e);
  tap_ok (!rc && c.arch.qk_norm && c.recompute.mode == RECOMPUTE_FULL, "hf and accelerate together %s", e.msg);
  rc = load (&c, &gpus, "--from-torchtitan", "torchtitan-llama3-8b.toml", two, &e);
  tap_ok (!rc && c.arch.qk_norm && c.train.seq_len == 8192, "hf and torchtitan: the model is hf's %s", e.msg);
}

static const struct { const char *text, *words; } bad_toml[] = {
  { "a = 1\nb = {c = 1}\n", "line 2|braces" }, { "[[a]]\n", "line 1|double brackets" }, { "a = \"\"\"x\"\"\"\n", "several lines" },
  { "a = 2024-01-01\n", "dates" }, { "a = 1 2\n", "nothing may follow" }, { "a = \n", "value is expected" }, { "a = [1, [2]]\n", "lists of lists" },
  { "a = \"x\n", "does not end" }, { "[a\n", "] is expected" }, { "a.b = 1\n[a]\nb = 2\n", "second time|line 1" }, { "= 1\n", "key is expected" },
  { "a = [1 2]\n", "comma" }, { "a = yes\n", "`yes`" }, { "a = \"\\q\"\n", "escape" }, { "[a] b = 1\n", "nothing may follow" } };

static void toml (void)
{
  struct settings s = { 0 };
  struct err e = { 0 };
  FILE *f = fopen (FILE_NAME, "w");
  fputs ("a = 1_000 # one\r\n\"b c\" = 'x\\y'\n\n[d.e]\nf = [ 'p', # q\n  \"r,\\t\", 3 ]\ng.h = true\ni = +1.5e-3", f);
  fclose (f);
  int rc = toml_settings (&s, FILE_NAME, &e);
  if (rc) fprintf (stderr, "# %s\n", e.msg);
  tap_ok (!rc && s.n == 5 && !strcmp (s.at[0].value, "1000") && !strcmp (s.at[1].key, "b c") && !strcmp (s.at[1].value, "x\\y")
          && !strcmp (s.at[2].key, "d.e.f") && !strcmp (s.at[2].value, "p,r,\t,3") && s.at[2].list && s.at[2].line == 5 && !strcmp (s.at[3].key, "d.e.g.h")
          && s.at[3].line == 7 && !strcmp (s.at[4].value, "1.5e-3"), "toml: what is understood");
  settings_free (&s);
  for (int i = 0; i < LEN (bad_toml); i++) {
    f = fopen (FILE_NAME, "w");
    fputs (bad_toml[i].text, f);
    fclose (f);
    e = (struct err) { 0 };
    s = (struct settings) { 0 };
    rc = toml_settings (&s, FILE_NAME, &e);
    tap_ok (rc == -1 && has (e.msg, FILE_NAME) && has (e.msg, bad_toml[i].words), "toml refused: %s", bad_toml[i].words);
    settings_free (&s);
  }
  unlink (FILE_NAME);
}

int main (int argc, char **argv)
{
  MPI_Init (&argc, &argv);
  say_level (SAY_WARN);
  accelerate ();
  torchtitan ();
  megatron ();
  hugging_face ();
  toml ();
  tap_ok (base_live () == 0, "nothing is left behind: %lld blocks", (long long) base_live ());
  tap_done ();
  MPI_Finalize ();
}
