/* base: what every module stands on: messages, the three kinds of error, counted host memory, exact integers, a clock.

   Three kinds of error, three words:
     assert_ (x)     our bug; checked in --enable-debug builds only
     must (x, ...)   the world fails under us (system call, HDF5, malloc): says rank, host, file:line and cause, ends the job, exit 4
     user_err (...)  the user asked for something impossible: the function returns -1 with a sentence in struct err;
                     the caller makes all ranks agree (mesh_agree) and rank 0 prints it once, exit 2. */
#ifndef BASE_H
#define BASE_H
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>

/* The exit codes of the program; README lists them. */
enum { EXIT_DONE = 0, EXIT_USER = 2, EXIT_STOPPED = 3, EXIT_WORLD = 4, EXIT_DIVERGED = 5 };

/* A sentence for the user, made by the function that found the mistake, printed by the one that owns the terminal. */
struct err {
  int  code;       /* exit code, EXIT_USER if left 0 */
  char msg[1800];  /* one sentence, lower case, no newline */
};
/* Fill E (when not NULL) and return -1, so that `return user_err (e, "...")` reads well. Keeps the first message. */
int user_err (struct err *e, const char *fmt, ...) __attribute__ ((format (printf, 2, 3)));
int world_err (struct err *e, const char *fmt, ...) __attribute__ ((format (printf, 2, 3))); /* the same, code EXIT_WORLD */

/* Who speaks. Set once after MPI_Init; before that rank 0 of 1. abort_fn ends the job (MPI_Abort); NULL: _exit. */
/* FN is told the sentence with which the process is about to end, once; NULL: nobody. It may be called from any thread. */
void base_last_words (void (*fn) (int code, const char *sentence));
void base_rank (int rank, int size, void (*abort_fn) (int code));
/* FN runs in a process that ends by a failure, after all is said: it gives up what would keep the process or its peers. From any thread, in bounded time. NULL: nothing. */
void base_give_up (void (*fn) (void));
int  base_rank_get (void);
const char *base_host (void);               /* this host's short name; static storage */
void base_phase (const char *phase);        /* what this rank is doing now ("load", "step 12"...): named when it dies; copied */
#define PHASE_FINALIZE "MPI_Finalize"
const char *base_phase_get (void);
enum { BASE_PHASE = 128 };
void base_phase_at (char *text);            /* from now on it is kept in TEXT [BASE_PHASE], which others may read; borrowed. NULL: as at first */

/* Levels: error = the run ends or is wrong; warn = the run goes on but not as asked; info = what a user wants to see of a
   healthy run (fits a screen); debug = for us. */
enum say { SAY_ERROR, SAY_WARN, SAY_INFO, SAY_DEBUG };
void say_level (enum say max);
void say (enum say level, const char *fmt, ...) __attribute__ ((format (printf, 2, 3)));      /* rank 0 only; stderr for error and warn, stdout else */
void say_all (enum say level, const char *fmt, ...) __attribute__ ((format (printf, 2, 3)));  /* each rank, with its number; stderr */

/* A line of rank 0's on a terminal of WIDTH columns that the next one is drawn over; whatever else is said takes its place. NULL: it stays, and is ended. */
void say_progress (const char *line, int width);

/* The world failed: print one line with rank, host, phase, place and cause; end the job with CODE. Never returns. */
_Noreturn void die_at (const char *file, int line, int code, const char *fmt, ...) __attribute__ ((format (printf, 4, 5)));
#define die(...) die_at (__FILE__, __LINE__, EXIT_WORLD, __VA_ARGS__)
#define must(x, ...) do { if (!(x)) die (__VA_ARGS__); } while (0)
#ifdef DEBUG
#define assert_(x) do { if (!(x)) die ("internal check failed: %s", #x); } while (0)
#else
#define assert_(x) ((void) sizeof (x))
#endif

/* Counted host memory, for bookkeeping and never for tensors (those live in arenas of a device). TAG is a static string.
   Out of memory ends the job. xfree (NULL) is legal. base_live () is the number of live blocks: zero at a clean exit. */
void *xalloc (size_t bytes, const char *tag);                 /* zeroed */
void *xrealloc (void *p, size_t bytes, const char *tag);      /* new bytes are not zeroed */
char *xstrdup (const char *s, const char *tag);
char *xprintf (const char *fmt, ...) __attribute__ ((format (printf, 1, 2)));  /* malloc'd string, counted; xfree it */
void  xfree (void *p);
int64_t base_live (void);
int64_t base_live_bytes (void);

#define LEN(a) ((int) (sizeof (a) / sizeof *(a)))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

static inline int64_t ceil_div (int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t round_up (int64_t a, int64_t b) { return ceil_div (a, b) * b; }
int64_t mul_exact (int64_t a, int64_t b);   /* a*b, or the job ends: a product over 2^63 is a bug upstream */

double now (void);                           /* monotonic seconds */
uint64_t hash_bytes (const void *p, size_t n, uint64_t seed);   /* XXH3-64: for comparing, not for security */
void bytes_text (int64_t bytes, char out[static 24]);           /* "1.50 GiB" */
void count_text (int64_t n, char out[static 24]);               /* "162.2M" */
/* The beginning of a file as text; its length, 0 where it cannot be read. These two are system calls only, no heap. */
size_t file_text (const char *path, char *text, size_t size);
/* The number after KEY in a file of "Key: value kB" lines or (KEY empty) the number that the file is; -1 if there is none. */
int64_t file_number (const char *path, const char *key);
#endif
