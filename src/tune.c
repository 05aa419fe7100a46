#include "config.h"
#include "tune.h"
#include "wait.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void file_name (const struct job *j, char *path, size_t size) { snprintf (path, size, "%s/gemm.txt", j->c.run.dir); }

/* A file's text, or NULL. */
static char *slurp (const char *path)
{
  FILE *f = fopen (path, "r");
  long n = -1;
  if (f && !fseek (f, 0, SEEK_END)) n = ftell (f), rewind (f);
  char *t = n > 0 ? xalloc ((size_t) n + 1, "gemm table") : NULL;
  if (t && fread (t, 1, (size_t) n, f) != (size_t) n) xfree (t), t = NULL;
  if (f) fclose (f);
  return t;
}

void tune_load (struct job *j, bool use)
{
  char path[STR + 16];
  file_name (j, path, sizeof path);
  char *text = mesh_share_text (&j->m, j->m.rank ? NULL : slurp (path));
  j->d.ops->tune (&j->d, text, use);
  xfree (text);
}

/* All ranks' texts, one after the other with a 0 between, on rank 0. */
static char *collect (const struct job *j, char *mine, int *total)
{
  int size = j->m.size, n = mine ? (int) strlen (mine) + 1 : 0, *len = xalloc ((size_t) size * sizeof *len, "gemm table"), *at = xalloc ((size_t) size * sizeof *at, "gemm table");
  MPI_Request q;
  MPI_Igather (&n, 1, MPI_INT, len, 1, MPI_INT, 0, j->m.world, &q);
  wait_all (1, &q);
  int64_t sum = 0;
  for (int r = 0; r < size && !j->m.rank; r++) {
    at[r] = (int) sum;
    sum += len[r];
    must (sum <= INT32_MAX, "the ranks' tables of measured products have more than %lld bytes", (long long) sum);
  }
  *total = (int) sum;
  char *all = xalloc ((size_t) *total + 1, "gemm table");
  MPI_Igatherv (mine, n, MPI_CHAR, all, len, at, MPI_CHAR, 0, j->m.world, &q);
  wait_all (1, &q);
  xfree (len);
  xfree (at);
  return all;
}

/* Is there a line of TEXT that begins with LINE's shape (up to its colon)? */
static bool has_shape (const char *text, const char *line)
{
  size_t n = strcspn (line, ":\n") + 1;
  for (const char *at = text; at && *at; at = strchr (at, '\n'), at = at ? at + 1 : NULL)
    if (!strncmp (at, line, n)) return true;
  return false;
}

/* Of MINE what BASE, a text of the same title, lacks, under the title; NULL: nothing. Frees MINE. */
static char *lacking (char *mine, const char *base)
{
  size_t title = strcspn (base, "\n") + 1, at = title;
  if (mine && !strncmp (mine, base, title))
    for (size_t n, i = title; mine[i]; i += n) {
      const char *line = mine + i;
      n = strcspn (line, "\n") + 1;
      if (has_shape (base, line)) continue;
      memmove (mine + at, line, n);
      at += n;
    }
  if (at > title) return mine[at] = 0, mine;
  xfree (mine);
  return NULL;
}

/* The first text's title and each shape once. Texts of another title are of other hardware: left out. */
static char *merge (const char *all, int total)
{
  char *out = xalloc ((size_t) total + 1, "gemm table");
  size_t at = 0, title = 0;
  for (const char *t = all; t < all + total; t += strlen (t) + 1) {
    const char *line = strchr (t, '\n');
    if (!at) {
      at = title = (size_t) (line - t) + 1;
      memcpy (out, t, at);
    }
    if (strncmp (out, t, title)) continue;
    for (line++; *line; line += strcspn (line, "\n") + 1) {
      size_t n = strcspn (line, "\n") + 1;
      if (has_shape (out, line)) continue;
      memcpy (out + at, line, n);
      out[at += n] = 0;
    }
  }
  return out;
}

static void keep (const struct job *j, const char *text)
{
  char path[STR + 16], temp[STR + 24];
  file_name (j, path, sizeof path);
  snprintf (temp, sizeof temp, "%s.tmp", path);
  char *old = slurp (path);
  if (!old || strcmp (old, text)) {
    FILE *f = fopen (temp, "w");
    bool bad = !f || fputs (text, f) < 0;
    if ((f && fclose (f)) || bad || rename (temp, path)) {
      say (SAY_WARN, "%s cannot be written: a run that goes on from here may have other bits", path);
      unlink (temp);
    }
  }
  xfree (old);
}

void tune_share (struct job *j)
{
  MPI_Request q;
  char *mine = j->d.ops->tuned (&j->d);
  int have = mine != NULL, any, total;
  MPI_Iallreduce (&have, &any, 1, MPI_INT, MPI_MAX, j->m.world, &q);
  wait_all (1, &q);
  if (!any) return;
  char *base = mesh_share_text (&j->m, j->m.rank || !mine ? NULL : xstrdup (mine, "gemm table"));
  if (base && j->m.rank) mine = lacking (mine, base);   /* ranks find the same, all but a few: rank 0 need not hold all of it */
  xfree (base);
  char *all = collect (j, mine, &total), *text = j->m.rank ? NULL : merge (all, total);
  xfree (mine);
  xfree (all);
  if (text) keep (j, text);
  text = mesh_share_text (&j->m, text);
  j->d.ops->tune (&j->d, text, true);
  xfree (text);
}
