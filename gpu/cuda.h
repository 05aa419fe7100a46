/* cuda: inside of the cuda device, shared by its C files. No MPI call, no symbol of the program: everything of ours comes through H (src/host.h). */
#ifndef GPU_CUDA_H
#define GPU_CUDA_H
#include <cuda_runtime_api.h>
#include <cublasLt.h>
#include <nccl.h>
#include "host.h"
#include "kernels.h"

extern const struct host *H;

struct queue {
  struct dev *dev;
  enum queue_kind kind;
  cudaStream_t s;
  void *work;                 /* borrowed */
  int64_t work_bytes;
  const char *name;
  struct coll_stat *last;     /* figures of the last collective issued, and its group's name */
  const char *last_name;
  struct queue *next;         /* of the device's */
};
struct event { cudaEvent_t e; struct coll_stat *after; const char *name; };   /* after: what a compute queue that waits for it waits for, and its group's name */
struct group {
  struct group_head head;     /* first: dev.h */
  struct dev *dev;
  ncclComm_t comm;
  const char *doing;          /* the last call, for the one who looks for what failed */
  void *stage;
  int64_t stage_bytes;
  /* The last collectives: an event behind each, and its number (dev.issued). [first, last) are not known to be done. */
  cudaEvent_t mark[COLL_NOTES];
  int64_t number[COLL_NOTES], first, last;
};

enum { MAX_GROUPS = 64 };
struct cuda {                 /* dev->impl */
  int gpu;
  cublasLtHandle_t lt;
  struct group *groups[MAX_GROUPS];   /* open ones, for their errors */
  int n_groups;
  struct spans *spans;        /* of collectives, waits for them, and phases */
  enum step_phase phase;           /* of the compute queue */
  struct times *times;        /* debug.op_times */
  struct queue *queues;
};

/* The world failed: a sentence with the library's own words, and the job ends. */
#define MUST(ok, ...) do { if (!(ok)) H->die_at (__FILE__, __LINE__, EXIT_WORLD, __VA_ARGS__); } while (0)
#define CU(x) do { cudaError_t e_ = (x); MUST (e_ == cudaSuccess, "CUDA: %s: %s", #x, cudaGetErrorString (e_)); } while (0)
#define LT(x) do { cublasStatus_t e_ = (x); MUST (e_ == CUBLAS_STATUS_SUCCESS, "cuBLASLt: %s: %s", #x, cublasLtGetStatusString (e_)); } while (0)
#define NC(x) do { ncclResult_t e_ = (x); MUST (e_ == ncclSuccess || e_ == ncclInProgress, "NCCL: %s: %s (%s)", #x, ncclGetErrorString (e_), ncclGetLastError (NULL)); } while (0)

typedef void op_fn (struct dev *d, struct queue *q, const struct op *o);
op_fn cuda_gemm, cuda_gemm_fp8, cuda_attn, cuda_attn_bwd, cuda_coll;
/* Products' algorithms (algo.c). A shape is a word that says all that a choice depends on. */
enum { ALGO_SHAPE = 112 };
bool algo_in_use (void);              /* else the first that cuBLASLt offers is taken, until all ranks have one table */
bool algo_known (const char *shape, cublasLtMatmulAlgo_t *out);
void algo_keep (const char *shape, const cublasLtMatmulAlgo_t *algo);
void algo_close (void);
char *cuda_tuned (struct dev *d);
void cuda_tune (struct dev *d, const char *text, bool use);

void gemm_close (void);

void times_open (struct cuda *c);
void times_close (struct cuda *c);       /* prints them */
void times_begin (struct times *t, struct queue *q, const struct op *o);
void times_end (struct times *t, struct queue *q);

void spans_open (struct cuda *c);
void spans_close (struct cuda *c);
/* What Q does between the two is a span: its seconds are added to *TO and *ALSO (NULL: to none), and it is in a trace as ABOUT says. */
int64_t spans_begin (struct cuda *c, struct queue *q, double *to, double *also, const struct dev_span *about);
void spans_end (struct cuda *c, struct queue *q, int64_t span);
void spans_read (struct dev *d);         /* adds what is over to the figures */
void range_begin (const char *name);     /* ranges of the host's thread that NVIDIA's profilers show (ranges.c) */
void range_end (void);
void spans_forget (struct dev *d);       /* before a group is closed */
void cuda_phase (struct dev *d, struct queue *q, enum step_phase p, int32_t tag);
void cuda_trace (struct dev *d, bool on);

struct group *cuda_group_open (struct dev *d, const struct group_spec *s);
void cuda_group_close (struct dev *d, struct group *g);
void nccl_check (struct dev *d);      /* asynchronous errors of all groups end the job; what is done is written down in dev.done */
void nccl_mark (struct dev *d, struct group *g, struct queue *q);   /* all of G's collectives so far are on Q */

#ifdef HAVE_CUDNN
/* cuDNN's fused attention; false where it does not offer this shape (then ours is used). */
bool cudnn_attn (struct dev *d, struct queue *q, const struct op_attn *o);
bool cudnn_attn_bwd (struct dev *d, struct queue *q, const struct op_attn_bwd *o);
#endif
#endif
