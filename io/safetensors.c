#include "config.h"
#include "safetensors.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- a header --- */

static int int_of (json_t *v, int64_t *out)
{
  if (!json_is_integer (v) || json_integer_value (v) < 0) return -1;
  *out = json_integer_value (v);
  return 0;
}

/* One entry of the header into T; at is still counted from the end of the header. */
static int entry (struct st_tensor *t, const char *path, const char *name, json_t *v, int64_t data, struct err *e)
{
  json_t *dtype = json_object_get (v, "dtype"), *shape = json_object_get (v, "shape"), *span = json_object_get (v, "data_offsets");
  int64_t from, to, bytes;
  if (!json_is_string (dtype) || !json_is_array (shape) || json_array_size (span) != 2)
    return user_err (e, "%s: tensor %.200s has not dtype, shape and two data_offsets", path, name);
  t->type = wire_find (json_string_value (dtype));
  if (t->type == W_N) return user_err (e, "%s: tensor %.200s has the type %.40s, which is not known", path, name, json_string_value (dtype));
  if (json_array_size (shape) > ST_DIMS) return user_err (e, "%s: tensor %.200s has %zu dimensions", path, name, json_array_size (shape));
  t->ndim = (int) json_array_size (shape);
  t->count = 1;
  for (int i = 0; i < t->ndim; i++) {
    if (int_of (json_array_get (shape, (size_t) i), &t->shape[i])) return user_err (e, "%s: the shape of tensor %.200s is no list of sizes", path, name);
    if (__builtin_mul_overflow (t->count, t->shape[i], &t->count)) return user_err (e, "%s: tensor %.200s has more than 2^63 elements", path, name);
  }
  if (__builtin_mul_overflow (t->count, (int64_t) wire_row[t->type].bytes, &bytes)) return user_err (e, "%s: tensor %.200s has more than 2^63 bytes", path, name);
  if (int_of (json_array_get (span, 0), &from) || int_of (json_array_get (span, 1), &to) || from > to || to > data)
    return user_err (e, "%s: data_offsets of tensor %.200s do not lie in the %lld bytes of the file's data", path, name, (long long) data);
  if (to - from != bytes)
    return user_err (e, "%s: tensor %.200s has %lld bytes by its shape and type, and %lld by its data_offsets", path, name, (long long) bytes, (long long) (to - from));
  t->at = from;
  return 0;
}

static int by_place (const void *a, const void *b)
{
  const struct st_tensor *x = a, *y = b;
  if (x->at != y->at) return x->at < y->at ? -1 : 1;
  return (x->count > 0) - (y->count > 0);   /* empty ones lie before */
}

/* The tensors from FIRST on fill DATA bytes without holes and overlaps. */
static int fills (const struct st_tensor *t, int64_t n, const char *path, int64_t data, struct err *e)
{
  int64_t end = 0;
  for (int64_t i = 0; i < n; end = t[i].at + t[i].count * wire_row[t[i].type].bytes, i++) {
    if (t[i].at < end) return user_err (e, "%s: tensors %.200s and %.200s overlap", path, t[i - 1].name, t[i].name);
    if (t[i].at > end) return user_err (e, "%s: %lld bytes before tensor %.200s belong to no tensor", path, (long long) (t[i].at - end), t[i].name);
  }
  if (end < data) return user_err (e, "%s: the last %lld bytes belong to no tensor", path, (long long) (data - end));
  return 0;
}

int st_header (struct st *s, const char *path, int file, const char *json, int64_t n, int64_t file_bytes, struct err *e)
{
  json_error_t why;
  const char *name;
  json_t *v, *root = json_loadb (json, (size_t) n, JSON_REJECT_DUPLICATES, &why);
  if (!root) return user_err (e, "%s: its header is no JSON: %s at byte %d", path, why.text, why.position);
  int64_t first = s->n, data = file_bytes - 8 - n;
  int rc = json_is_object (root) ? 0 : user_err (e, "%s: its header is no JSON object", path);
  if (!rc) s->tensor = xrealloc (s->tensor, (size_t) (first + (int64_t) json_object_size (root) + 1) * sizeof *s->tensor, "safetensors");
  json_object_foreach (root, name, v) {
    if (rc || !strcmp (name, "__metadata__")) continue;
    struct st_tensor t = { .file = file };
    if ((rc = entry (&t, path, name, v, data, e))) continue;
    t.name = xstrdup (name, "safetensors");
    s->tensor[s->n++] = t;
  }
  json_decref (root);
  if (rc) return -1;
  if (s->n > first) qsort (s->tensor + first, (size_t) (s->n - first), sizeof *s->tensor, by_place);
  if (fills (s->tensor + first, s->n - first, path, data, e)) return -1;
  for (int64_t i = first; i < s->n; i++) s->tensor[i].at += 8 + n;
  return 0;
}

static int by_name (const void *a, const void *b) { return strcmp (((const struct st_tensor *) a)->name, ((const struct st_tensor *) b)->name); }

int st_sort (struct st *s, struct err *e)
{
  if (s->n) qsort (s->tensor, (size_t) s->n, sizeof *s->tensor, by_name);
  for (int64_t i = 1; i < s->n; i++) {
    const struct st_tensor *a = &s->tensor[i - 1], *b = &s->tensor[i];
    if (!strcmp (a->name, b->name)) return user_err (e, "tensor %.200s is in %s and in %s", a->name, s->path[MIN (a->file, b->file)], s->path[MAX (a->file, b->file)]);
  }
  return 0;
}

const struct st_tensor *st_find (const struct st *s, const char *name)
{
  struct st_tensor key = { .name = (char *) name };
  return s->n ? bsearch (&key, s->tensor, (size_t) s->n, sizeof key, by_name) : NULL;
}

/* --- files --- */

static int add_path (struct st *s, char *path)
{
  s->path = xrealloc (s->path, (size_t) (s->files + 1) * sizeof *s->path, "safetensors");
  s->fd = xrealloc (s->fd, (size_t) (s->files + 1) * sizeof *s->fd, "safetensors");
  s->path[s->files] = path;
  s->fd[s->files] = -1;
  return s->files++;
}

/* File PATH, which S takes over, with its header. */
static int open_file (struct st *s, char *path, struct err *e)
{
  struct stat st;
  uint64_t n = 0;
  int file = add_path (s, path), fd = s->fd[file] = open (path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || fstat (fd, &st)) return user_err (e, "cannot open %s: %s", path, strerror (errno));
  if (!S_ISREG (st.st_mode)) return user_err (e, "%s is no file", path);
  if (pread (fd, &n, 8, 0) != 8) return user_err (e, "%s has %lld bytes: too short for a safetensors file", path, (long long) st.st_size);
  if (n < 2 || n > ST_HEADER || (int64_t) n > st.st_size - 8)
    return user_err (e, "%s is no safetensors file, or cut off: it says that its header has %llu bytes, the file has %lld%s", path, (unsigned long long) n,
                     (long long) st.st_size, n > ST_HEADER ? " (at most 32 MiB of header are read)" : "");
  char *json = xalloc ((size_t) n, "safetensors");
  int rc = 0;
  if (pread (fd, json, (size_t) n, 8) != (ssize_t) n) rc = world_err (e, "cannot read the header of %s: %s", path, strerror (errno));
  else if (json[0] != '{') rc = user_err (e, "%s is no safetensors file: its header does not begin with {", path);
  else rc = st_header (s, path, file, json, (int64_t) n, st.st_size, e);
  xfree (json);
  return rc;
}

/* A list for a sentence: the first few names, all counted. */
struct names { char text[600]; size_t used; int64_t n, shown; };

static void add_name (struct names *l, const char *name)
{
  if (l->n++ < 4 && l->used + strlen (name) + 4 < sizeof l->text)
    l->used += (size_t) snprintf (l->text + l->used, sizeof l->text - l->used, "%s%s", l->shown++ ? ", " : "", name);
}

/* The index promises these tensors in these files: no more, no fewer. */
static int check_map (struct st *s, json_t *map, const char *index, struct err *e)
{
  struct names lack = { .n = 0 }, more = { .n = 0 };
  const char *name;
  json_t *v;
  json_object_foreach (map, name, v) {
    const struct st_tensor *t = st_find (s, name);
    if (!t || strcmp (strrchr (s->path[t->file], '/') + 1, json_string_value (v))) add_name (&lack, name);
  }
  for (int64_t i = 0; i < s->n; i++)
    if (!json_object_get (map, s->tensor[i].name)) add_name (&more, s->tensor[i].name);
  if (!lack.n && !more.n) return 0;
  return user_err (e, "%s and its files disagree:%s%s (%lld)%s%s (%lld)", index, lack.n ? " promised and not there: " : "", lack.text, (long long) lack.n,
                   more.n ? "; there and not promised: " : "", more.text, (long long) more.n);
}

static bool has_path (const struct st *s, const char *name)
{
  for (int i = 0; i < s->files; i++) if (!strcmp (strrchr (s->path[i], '/') + 1, name)) return true;
  return false;
}

static int open_map (struct st *s, const char *dir, json_t *map, const char *index, struct err *e)
{
  const char *name;
  json_t *v;
  if (!json_is_object (map) || !json_object_size (map)) return user_err (e, "%s has no weight_map", index);
  json_object_foreach (map, name, v) {
    const char *file = json_string_value (v);
    if (!file || !*file || strchr (file, '/')) return user_err (e, "%s: weight_map gives tensor %.200s no file beside it", index, name);
    if (!has_path (s, file) && open_file (s, xprintf ("%s/%s", dir, file), e)) return -1;
  }
  return st_sort (s, e) || check_map (s, map, index, e) ? -1 : 0;
}

static int open_index (struct st *s, const char *dir, const char *index, struct err *e)
{
  json_error_t why;
  struct stat st;
  if (!stat (index, &st) && st.st_size > 4 * (int64_t) ST_HEADER) return user_err (e, "%s has %lld bytes: too large to be believed", index, (long long) st.st_size);
  json_t *root = json_load_file (index, JSON_REJECT_DUPLICATES, &why);
  if (!root) return user_err (e, "%s: line %d: %s", index, why.line, why.text);
  int rc = open_map (s, dir, json_object_get (root, "weight_map"), index, e);
  json_decref (root);
  return rc;
}

static int open_folder (struct st *s, const char *dir, struct err *e)
{
  char *index = xprintf ("%s/model.safetensors.index.json", dir), *one = xprintf ("%s/model.safetensors", dir);
  int rc;
  if (!access (index, F_OK)) rc = open_index (s, dir, index, e);
  else if (!access (one, F_OK)) rc = open_file (s, xstrdup (one, "safetensors"), e) || st_sort (s, e) ? -1 : 0;
  else rc = user_err (e, "%s has neither model.safetensors nor model.safetensors.index.json", dir);
  xfree (index);
  xfree (one);
  return rc;
}

int st_open (struct st *s, const char *path, struct err *e)
{
  struct stat st;
  *s = (struct st) { 0 };
  if (stat (path, &st)) return user_err (e, "cannot open %s: %s", path, strerror (errno));
  int rc = S_ISDIR (st.st_mode) ? open_folder (s, path, e) : open_file (s, xstrdup (path, "safetensors"), e) || st_sort (s, e) ? -1 : 0;
  if (rc) st_close (s);
  return rc;
}

void st_close (struct st *s)
{
  for (int64_t i = 0; i < s->n; i++) xfree (s->tensor[i].name);
  for (int i = 0; i < s->files; i++) {
    if (s->fd[i] >= 0) close (s->fd[i]);
    xfree (s->path[i]);
  }
  xfree (s->tensor);
  xfree (s->path);
  xfree (s->fd);
  *s = (struct st) { 0 };
}

/* --- writing --- */

static int64_t bytes_of (const struct st_tensor *t) { return t->count * wire_row[t->type].bytes; }

/* The header of file F as text of a multiple of 8 bytes; data_offsets follow from the order. xfree it. */
static char *header_text (const struct st *s, int f)
{
  int64_t at = 0;
  json_t *root = json_pack ("{s:{s:s}}", "__metadata__", "format", "pt");
  for (int64_t i = 0; i < s->n; i++) {
    const struct st_tensor *t = &s->tensor[i];
    if (t->file != f) continue;
    json_t *shape = json_array ();
    for (int k = 0; k < t->ndim; k++) json_array_append_new (shape, json_integer (t->shape[k]));
    json_object_set_new (root, t->name, json_pack ("{s:s, s:o, s:[I, I]}", "dtype", wire_row[t->type].name, "shape", shape, "data_offsets", (json_int_t) at,
                                                   (json_int_t) (at + bytes_of (t))));
    at += bytes_of (t);
  }
  char *text = json_dumps (root, JSON_COMPACT);
  must (text, "out of host memory");
  char *padded = xprintf ("%s%*s", text, (int) (-strlen (text) & 7), "");
  free (text);
  json_decref (root);
  return padded;
}

void st_layout (struct st *s, const char *dir, int64_t limit)
{
  int64_t used = 0, files = 1;
  for (int64_t i = 0; i < s->n; i++) {
    int64_t b = bytes_of (&s->tensor[i]);
    if (used && used + b > limit) files++, used = 0;
    s->tensor[i].file = (int) files - 1;
    used += b;
  }
  for (int64_t f = 1; f <= files; f++)
    add_path (s, files == 1 ? xprintf ("%s/model.safetensors", dir) : xprintf ("%s/model-%05lld-of-%05lld.safetensors", dir, (long long) f, (long long) files));
  for (int f = 0; f < s->files; f++) {
    char *text = header_text (s, f);
    int64_t at = 8 + (int64_t) strlen (text);
    xfree (text);
    for (int64_t i = 0; i < s->n; i++)
      if (s->tensor[i].file == f) s->tensor[i].at = at, at += bytes_of (&s->tensor[i]);
  }
}

static int create_file (const struct st *s, int f, struct err *e)
{
  char *tmp = xprintf ("%s.tmp", s->path[f]), *text = header_text (s, f);
  uint64_t n = strlen (text);
  int64_t size = 8 + (int64_t) n;
  for (int64_t i = 0; i < s->n; i++) if (s->tensor[i].file == f) size += bytes_of (&s->tensor[i]);
  int rc = 0, fd = open (tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) rc = world_err (e, "cannot create %s: %s", tmp, strerror (errno));
  else if (ftruncate (fd, size) || (fallocate (fd, 0, 0, size) && errno != EOPNOTSUPP && errno != ENOSYS))
    rc = world_err (e, "cannot reserve %lld bytes for %s: %s", (long long) size, tmp, strerror (errno));
  else if (pwrite (fd, &n, 8, 0) != 8 || pwrite (fd, text, n, 8) != (ssize_t) n) rc = world_err (e, "cannot write %s: %s", tmp, strerror (errno));
  if (fd >= 0 && close (fd) && !rc) rc = world_err (e, "cannot write %s: %s", tmp, strerror (errno));
  xfree (tmp);
  xfree (text);
  return rc;
}

int st_create (const struct st *s, struct err *e)
{
  for (int f = 0; f < s->files; f++) if (create_file (s, f, e)) return -1;
  return 0;
}

int st_reopen (struct st *s, struct err *e)
{
  for (int f = 0; f < s->files; f++) {
    char *tmp = xprintf ("%s.tmp", s->path[f]);
    s->fd[f] = open (tmp, O_WRONLY | O_CLOEXEC);
    int bad = s->fd[f] < 0 ? world_err (e, "cannot open %s: %s", tmp, strerror (errno)) : 0;
    xfree (tmp);
    if (bad) return -1;
  }
  return 0;
}

static int write_index (const struct st *s, const char *dir, struct err *e)
{
  int64_t sum = 0;
  json_t *map = json_object ();
  for (int64_t i = 0; i < s->n; i++) {
    sum += bytes_of (&s->tensor[i]);
    json_object_set_new (map, s->tensor[i].name, json_string (strrchr (s->path[s->tensor[i].file], '/') + 1));
  }
  json_t *root = json_pack ("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t) sum, "weight_map", map);
  char *path = xprintf ("%s/model.safetensors.index.json", dir);
  int rc = json_dump_file (root, path, JSON_INDENT (2)) ? world_err (e, "cannot write %s: %s", path, strerror (errno)) : 0;
  json_decref (root);
  xfree (path);
  return rc;
}

int st_finish (const struct st *s, const char *dir, struct err *e)
{
  for (int f = 0; f < s->files; f++) {
    char *tmp = xprintf ("%s.tmp", s->path[f]);
    int fd = open (tmp, O_RDONLY | O_CLOEXEC), bad = fd < 0 || fsync (fd);
    if (fd >= 0) close (fd);
    if (bad || rename (tmp, s->path[f])) bad = world_err (e, "cannot finish %s: %s", s->path[f], strerror (errno));
    xfree (tmp);
    if (bad) return -1;
  }
  return s->files > 1 ? write_index (s, dir, e) : 0;
}

void st_remove (const struct st *s)
{
  for (int f = 0; f < s->files; f++) {
    char *tmp = xprintf ("%s.tmp", s->path[f]);
    unlink (tmp);
    xfree (tmp);
  }
}
