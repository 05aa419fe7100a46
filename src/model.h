/* model: the architecture as tables. Pure: no MPI, no device, no tensors.

   A model is a sequence of blocks: the embedding (block 0), `layers` transformer layers (1 .. layers) and the head (layers + 1: final
   norm and output matrix). A block's parameters are rows of one table, cut by tensor parallelism as the row says. */
#ifndef MODEL_H
#define MODEL_H
#include <stddef.h>
#include "base.h"

struct arch {
  int64_t dim;            /* width of the residual stream */
  int64_t layers;
  int64_t heads;          /* query heads */
  int64_t kv_heads;
  int64_t head_dim;       /* any even size; dim / heads if left out */
  int64_t ffn;            /* width of the SwiGLU */
  int64_t vocab;
  bool    tied;           /* the head uses the embedding's matrix */
  bool    qkv_bias;       /* Qwen2 */
  bool    qk_norm;        /* Qwen3: RMSNorm of each head of q and k, before RoPE */
  double  norm_eps;
  double  rope_theta;
  struct {                /* Llama 3's scaling of low frequencies; factor 0 = none */
    double factor, low, high;   /* low_freq_factor, high_freq_factor */
    int64_t original;           /* original_max_position_embeddings */
  } rope_scaling;
  int64_t max_seq;        /* longest sequence the model was made for; 0 = any */
  int64_t window;         /* sliding window of attention in tokens; 0 = none (Mistral 7B v0.1 has 4096) */
  double  init_std;       /* of matrices; those that write to the residual stream have init_std / sqrt (2 layers) */
};

enum cut {          /* how tp cuts a parameter [rows, cols] */
  CUT_NONE,         /* replicated over tp; its gradient is a partial sum to be reduced over tp */
  CUT_ROWS,         /* output features: column parallel in Megatron's words */
  CUT_COLS,         /* input features: row parallel */
  CUT_KV,           /* rows by KV head; replicated where kv_heads < tp */
  CUT_VOCAB,        /* rows by vocabulary, padded inside: vocab_local () rows a rank, a multiple of 8 */
};

enum init { INIT_NORMAL, INIT_RESIDUAL, INIT_ONE, INIT_ZERO };

/* The parameters that a block can have. Order is the order in the flat unit: what is replicated over tp first, then matrices, q k v adjacent
   and gate up adjacent so that one GEMM serves them. */
enum pid {
  P_NORM1, P_NORM2, P_QNORM, P_KNORM, P_Q, P_K, P_V, P_QB, P_KB, P_VB, P_O, P_GATE, P_UP, P_DOWN,   /* layer */
  P_EMBED,                                                                                          /* embedding */
  P_NORM, P_HEAD,                                                                                   /* head */
  P_N
};

struct param_row {
  enum pid    id;
  const char *name;       /* Hugging Face's: "model.layers.%d.self_attn.q_proj.weight" */
  enum cut    cut;
  enum init   init;
  bool        decay;      /* weight decay applies: matrices, not norms and biases */
  bool        packed;     /* follows the row before without padding (one GEMM with it) */
};
extern const struct param_row param_table[P_N];

/* Global shape of parameter ID in A as [rows, cols]; false if A has no such parameter (bias, qk norm, head when tied). A 1-D parameter of n
   elements is [n, 1], always: so a bias is cut by rows together with the matrix whose rows it belongs to. */
bool param_shape (const struct arch *a, enum pid id, int64_t *rows, int64_t *cols);
/* 1 or 2: the number of dimensions of the tensor for other tools. */
int  param_ndim (enum pid id);
/* Which parameters block B (0 .. layers + 1) has: fills ids[P_N], returns the count. A tied head has only its norm. */
int  block_params (const struct arch *a, int64_t block, enum pid ids[P_N]);
/* Global name of parameter ID of BLOCK. */
void param_name (const struct arch *a, int64_t block, enum pid id, char out[static 96]);

int64_t arch_params (const struct arch *a);          /* all parameters, counted once, no padding */
int64_t arch_matmul_params (const struct arch *a);   /* N of MFU: matrices with the head (also a tied one), without the lookup table */
double  arch_flops_token (const struct arch *a, int64_t seq);   /* 6 N + 6 L d T, d = heads x head_dim (causal attention); less with a window */

/* Rank R of T's part of parameter ID: rows [row0, row0 + rows) x cols [col0, col0 + cols) of the global matrix; `pad` more rows follow locally that
   are no part of it (vocabulary). rep_size ranks hold this same part (KV heads; tp for CUT_NONE), of which this is rep_rank-th. */
struct part { int64_t row0, rows, col0, cols, pad; int rep_rank, rep_size; };
void param_part (const struct arch *a, enum pid id, int tp_rank, int tp, struct part *p);

int64_t vocab_local (const struct arch *a, int tp);   /* rows of the padded vocabulary a rank: ceil (vocab / tp) rounded up to a multiple of 8;
                                                        the last ranks may hold few rows of the true vocabulary, or none */

/* Can A be cut by tp T? 0, or -1 with the numbers in the sentence (heads, ffn; kv heads unless one divides the other). */
int arch_check_tp (const struct arch *a, int tp, struct err *e);
/* Are A's own numbers possible? (positive, head_dim even, heads a multiple of kv_heads, ...) */
int arch_check (const struct arch *a, struct err *e);
/* Layers of each of PP x CHUNKS virtual stages into n[]: SPLIT "5,3" as given or, empty, as even as can be (earlier stages get the rest).
   Every stage needs a layer. */
int arch_split (const struct arch *a, int stages, const char *split, int64_t *n, struct err *e);
#endif
