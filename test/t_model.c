/* The architecture as tables: published counts, cuts that tile, refusals with numbers. np: 1 */
#include "tap.h"
#include "conf.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct { const char *name; int64_t params, exact_max_seq; } published[] = {
  { "llama2-7b", 6738415616, 4096 }, { "llama2-13b", 13015864320, 4096 }, { "llama2-70b", 68976648192, 4096 },
  { "llama3.1-8b", 8030261248, 131072 }, { "llama3.1-70b", 70553706496, 131072 }, { "llama3.1-405b", 405853388800, 131072 },
  { "1b", 1235814400, 131072 }, { "qwen2.5-7b", 7615616512, 131072 }, { "qwen3-8b", 8190735360, 40960 },
  { "mistral-7b", 7248023552, 32768 }, { "mistral-7b-v0.1", 7241732096, 32768 }, { "b124m", 162220800, 0 },
  { "b7b", 6738415616, 0 }, { "b1.5b", 1498482688, 0 }, { "b8b-8l", 2795573248, 0 }, { "124m", 123551232, 2048 },
  { "b124m-4l", 105585408, 0 }, { "tiny", 0, 2048 }, { "demo", 0, 1024 },
};

/* A model's shape through the option table, as the program gets it. */
static struct arch preset (const char *name, struct err *e)
{
  struct conf c;
  char *argv[] = { "--model", (char *) name, "--train.seq_len", "64" };
  conf_default (&c);
  if (conf_load (&c, NULL, 4, argv, e)) fprintf (stderr, "# %s\n", e->msg);
  return c.arch;
}

static void counts (void)
{
  for (int i = 0; i < LEN (published); i++) {
    struct err e = { 0 };
    struct arch a = preset (published[i].name, &e);
    int64_t n = arch_params (&a);
    tap_ok (!e.msg[0] && (n == published[i].params || !published[i].params) && a.max_seq == published[i].exact_max_seq,
            "%s has %lld parameters",
            published[i].name, (long long) n);
  }
  struct err e = { 0 };
  struct arch a = preset ("demo", &e);
  tap_ok (arch_params (&a) == 2 * 257 * 192 + 192 + 6 * (2 * 192 + 2 * 192 * 192 + 2 * 64 * 192 + 3 * 192 * 512),
          "demo's by hand");
  a = preset ("1b", &e);
  tap_ok (a.rope_scaling.factor == 32 && a.rope_theta == 500000 && a.tied && a.head_dim == 64,
          "1b: rope scaling, tied, heads of 64");
  tap_ok (arch_matmul_params (&a) == 1235814400 - (2 * 16 + 1) * 2048, "N counts a tied head once, no norms");
  a = preset ("b124m", &e);
  tap_ok (arch_matmul_params (&a) == 162220800 - 50304 * 768 - 25 * 768, "and leaves an untied lookup table out");
  tap_ok (arch_flops_token (&a, 1024) == 6.0 * arch_matmul_params (&a) + 6.0 * 12 * 768 * 1024, "operations of a token");
  a = preset ("mistral-7b-v0.1", &e);
  tap_ok (arch_flops_token (&a, 4096) == 6.0 * arch_matmul_params (&a) + 6.0 * 32 * 4096 * 4096
          && arch_flops_token (&a, 8192) == 6.0 * arch_matmul_params (&a) + 12.0 * 32 * 4096 * (4096 - 1024),
            "a window takes some away");
}

/* How often each element of parameter ID is held over the ranks of TP: all the same number, which the parts say themselves. */
static int tiles (const struct arch *a, enum pid id, int tp)
{
  int64_t rows, cols;
  if (!param_shape (a, id, &rows, &cols)) return 1;
  int *held = calloc (rows * cols, sizeof *held), *reps = calloc (rows * cols, sizeof *reps), good = 1;
  for (int r = 0; r < tp; r++) {
    struct part p;
    param_part (a, id, r, tp, &p);
    good &= p.row0 >= 0 && p.row0 + p.rows <= rows && p.col0 >= 0 && p.col0 + p.cols <= cols && p.rep_rank >= 0
      && p.rep_rank < p.rep_size;
    if (id == P_EMBED || id == P_HEAD) good &= p.rows + p.pad == vocab_local (a, tp) && (p.rows + p.pad) % 8 == 0;
    else good &= p.pad == 0;
    for (int64_t i = p.row0; good && i < p.row0 + p.rows; i++)
      for (int64_t k = p.col0; k < p.col0 + p.cols; k++) {
        held[i * cols + k]++;
        reps[i * cols + k] |= 1 << p.rep_rank;
        good &= p.rep_size <= tp;
      }
  }
  struct part first;
  param_part (a, id, 0, tp, &first);
  for (int64_t i = 0; i < rows * cols; i++) good &= held[i] == first.rep_size && reps[i] == (1 << first.rep_size) - 1;
  free (held);
  free (reps);
  return good;
}

static void cuts (void)
{
  static const int tp[] = { 1, 2, 3, 4, 8 };
  struct arch a = { .dim = 24, .layers = 2, .heads = 24, .kv_heads = 2, .head_dim = 4, .ffn = 48, .vocab = 101, .qkv_bias = true,
                    .qk_norm = true,
                    .norm_eps = 1e-5, .rope_theta = 1e4, .init_std = 0.02 };
  for (int i = 0; i < LEN (tp); i++) {
    int good = 1, n = 0;
    for (a.kv_heads = 1; a.kv_heads <= 24; a.kv_heads++) {
      if (24 % a.kv_heads || (tp[i] % a.kv_heads && a.kv_heads % tp[i])) continue;
      good &= arch_check (&a, NULL) == 0 && arch_check_tp (&a, tp[i], NULL) == 0;
      for (int id = 0; id < P_N; id++) good &= tiles (&a, id, tp[i]);
      n++;
    }
    tap_ok (good && n > 4, "tp %d, %d numbers of kv heads: parts tile every parameter", tp[i], n);
  }
  a.kv_heads = 2;
  int good = 1;
  for (int r = 0; r < 8; r++) {     /* the KV head that a rank's query heads need is the one it holds */
    struct part q, k;
    param_part (&a, P_Q, r, 8, &q);
    param_part (&a, P_K, r, 8, &k);
    good &= k.rows == 4 && q.row0 / 4 / (24 / 2) == k.row0 / 4 && (q.row0 + q.rows - 1) / 4 / (24 / 2) == k.row0 / 4
      && k.rep_rank == r % 4;
  }
  tap_ok (good, "query heads find their KV head on their own rank");
  a.vocab = 20;
  struct part p;
  param_part (&a, P_EMBED, 7, 8, &p);
  tap_ok (p.rows == 0 && p.pad == 8 && p.row0 == 20, "the last ranks may hold no row of the vocabulary");
}

static void blocks (void)
{
  struct err e = { 0 };
  struct arch a = preset ("tiny", &e);
  enum pid ids[P_N];
  char name[96];
  tap_ok (block_params (&a, 0, ids) == 1 && ids[0] == P_EMBED && block_params (&a, 1, ids) == 9 && block_params (&a, 5, ids) == 2
          && ids[1] == P_HEAD, "blocks of a plain model");
  a.tied = a.qkv_bias = a.qk_norm = true;
  tap_ok (block_params (&a, 4, ids) == 14 && block_params (&a, 5, ids) == 1 && ids[0] == P_NORM,
          "with everything; a tied head has only its norm");
  int64_t sum = 0, rows, cols;
  for (int b = 0; b <= 5; b++)
    for (int i = 0, n = block_params (&a, b, ids); i < n; i++) if (param_shape (&a, ids[i], &rows, &cols)) sum += rows * cols;
  tap_ok (sum == arch_params (&a), "blocks add up to the model");
  static const char *const want[P_N] = { "input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.q_norm.weight",
    "self_attn.k_norm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
      "self_attn.q_proj.bias",
    "self_attn.k_proj.bias", "self_attn.v_proj.bias", "self_attn.o_proj.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight",
    "mlp.down_proj.weight", "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight" };
  int good = 1;
  for (int id = 0; id < P_N; id++) {
    param_name (&a, 3, id, name);
    const char *head = "model.layers.2.";
    size_t n = id < P_EMBED ? strlen (head) : 0;
    good &= !strncmp (name, head, n) && !strcmp (name + n, want[id]);
  }
  tap_ok (good, "names are Hugging Face's; block 3 is layer 2 to others");
  good = 1;
  for (int id = 0; id < P_N; id++) good &= param_table[id].id == (enum pid) id && param_table[id].decay == (param_ndim (id) == 2);
  tap_ok (good, "matrices decay, norms and biases do not");
  tap_ok (param_table[P_O].init == INIT_RESIDUAL && param_table[P_DOWN].init == INIT_RESIDUAL
          && param_table[P_Q].init == INIT_NORMAL,
          "what writes to the residual stream starts smaller");
}

static void refused (const char *what, int rc, struct err *e, const char *words)
{
  char copy[400];
  int good = rc == -1 && e->code == EXIT_USER;
  snprintf (copy, sizeof copy, "%s", words);
  for (char *w = strtok (copy, "|"); w; w = strtok (NULL, "|")) good &= strstr (e->msg, w) != NULL;
  if (!good) fprintf (stderr, "# `%s` lacks one of `%s`\n", e->msg, words);
  tap_ok (good, "refused: %s", what);
  *e = (struct err) { 0 };
}

static void refusals (void)
{
  struct err e = { 0 };
  const struct arch good = preset ("tiny", &e);
  struct arch a = good;
  a.kv_heads = 4, a.heads = 12, a.ffn = 96;
  refused ("tp 5", arch_check_tp (&a, 5, &e), &e, "model.heads 12|mesh.tp 5|1, 2, 4 or 12");
  a.heads = 24, a.kv_heads = 3;
  refused ("3 kv heads at tp 4", arch_check_tp (&a, 4, &e), &e, "model.kv_heads 3|mesh.tp 4|1, 3, 6, 12 or 24");
  a = good, a.ffn = 100;
  refused ("ffn 100 at tp 8", arch_check_tp (&a, 8, &e), &e, "model.ffn 100|mesh.tp 8|1, 2 or 4");
  refused ("tp 0", arch_check_tp (&a, 0, &e), &e, "0");
  static const struct { const char *what; size_t at; int64_t v; const char *words; } bad[] = {
    { "no layers", offsetof (struct arch, layers), 0, "model.layers is 0" },
    { "odd heads", offsetof (struct arch, head_dim), 9, "model.head_dim is 9|even" },
    { "3 kv heads of 8", offsetof (struct arch, kv_heads), 3, "model.heads 8|model.kv_heads 3" },
    { "negative vocabulary", offsetof (struct arch, vocab), -1, "model.vocab is -1" },
    { "2^31 wide", offsetof (struct arch, ffn), INT64_C (1) << 31, "model.ffn is 2147483648" },
    { "a negative window", offsetof (struct arch, window), -4, "model.window is -4" },
    { "too many layers", offsetof (struct arch, layers), (INT64_C (1) << 31) - 1, "" },
  };
  for (int i = 0; i < LEN (bad); i++) {
    a = good;
    *(int64_t *) ((char *) &a + bad[i].at) = bad[i].v;
    if (i == LEN (bad) - 1) a.dim = a.ffn = (INT64_C (1) << 31) - 1;
    refused (bad[i].what, arch_check (&a, &e), &e, bad[i].words);
  }
  a = good, a.rope_scaling.factor = 8;
  refused ("scaling without its length", arch_check (&a, &e), &e, "model.rope_scaling.original is 0");
  a.rope_scaling.original = 8192, a.rope_scaling.high = a.rope_scaling.low;
  refused ("scaling with low = high", arch_check (&a, &e), &e, "low 1|high 1");
  a = good, a.norm_eps = NAN;
  refused ("norm_eps nan", arch_check (&a, &e), &e, "norm_eps");
}

static void splits (void)
{
  struct err e = { 0 };
  struct arch a = preset ("tiny", &e);
  int64_t n[16];
  a.layers = 10;
  tap_ok (!arch_split (&a, 4, "", n, &e) && n[0] == 3 && n[1] == 3 && n[2] == 2 && n[3] == 2, "10 layers on 4 stages");
  tap_ok (!arch_split (&a, 3, "5,3,2", n, &e) && n[0] == 5 && n[1] == 3 && n[2] == 2, "as given");
  tap_ok (!arch_split (&a, 1, NULL, n, &e) && n[0] == 10, "one stage");
  refused ("a sum that is not the model's", arch_split (&a, 3, "5,3,3", n, &e), &e, "5,3,3|11 layers|has 10");
  refused ("too few stages", arch_split (&a, 3, "5,5", n, &e), &e, "2 stages|has 3");
  refused ("too many", arch_split (&a, 1, "5,5", n, &e), &e, "2 stages|has 1");
  refused ("a stage without layers", arch_split (&a, 3, "5,0,5", n, &e), &e, "5,0,5|stage 1");
  refused ("words", arch_split (&a, 2, "5,x", n, &e), &e, "5,x");
  refused ("a comma at the end", arch_split (&a, 2, "5,5,", n, &e), &e, "5,5,");
  refused ("11 stages", arch_split (&a, 11, "", n, &e), &e, "model.layers 10|11 stages");
}

int main (int argc, char **argv)
{
  MPI_Init (&argc, &argv);
  counts ();
  blocks ();
  cuts ();
  splits ();
  refusals ();
  tap_ok (base_live () == 0, "no memory left");
  tap_done ();
  MPI_Finalize ();
  return 0;
}
