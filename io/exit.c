/* exit.json: why the run ended, in plain system calls and without allocation, so that a watchdog thread can leave word. */
#include "config.h"
#include "metrics.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Length of the UTF-8 sequence at S, 0 if it is none. */
static int utf8 (const char *s)
{
  /* first byte from, to; second byte from, to; length: no overlong forms, no surrogates, nothing over 10ffff */
  static const unsigned char form[][5] = {
    { 0x00, 0x7f, 0x00, 0xff, 1 }, { 0xc2, 0xdf, 0x80, 0xbf, 2 }, { 0xe0, 0xe0, 0xa0, 0xbf, 3 }, { 0xe1, 0xec, 0x80, 0xbf, 3 },
    { 0xed, 0xed, 0x80, 0x9f, 3 }, { 0xee, 0xef, 0x80, 0xbf, 3 }, { 0xf0, 0xf0, 0x90, 0xbf, 4 }, { 0xf1, 0xf3, 0x80, 0xbf, 4 },
    { 0xf4, 0xf4, 0x80, 0x8f, 4 },
  };
  const unsigned char *u = (const unsigned char *) s, *f = NULL;
  for (int i = 0; i < LEN (form) && !f; i++)
    if (u[0] >= form[i][0] && u[0] <= form[i][1]) f = form[i];
  if (!f || u[1] < f[2] || u[1] > f[3]) return 0;
  for (int i = 2; i < f[4]; i++)
    if ((u[i] & 0xc0) != 0x80) return 0;
  return f[4];
}

/* S as the inside of a JSON string; bytes that are no text become question marks. */
static void escape (const char *s, char *out, size_t size)
{
  size_t at = 0;
  for (int n; *s && at + 8 < size; s += n) {
    if (!(n = utf8 (s))) out[at++] = '?', n = 1;
    else if (*s == '"' || *s == '\\') out[at++] = '\\', out[at++] = *s;
    else if ((unsigned char) *s < 32) at += snprintf (out + at, size - at, "\\u%04x", *s);
    else memcpy (out + at, s, n), at += n;
  }
  out[at] = 0;
}

static int write_whole (const char *path, const char *text, size_t n)
{
  int fd = open (path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return -1;
  int bad = write (fd, text, n) != (ssize_t) n;
  return close (fd) || bad ? -1 : 0;
}

/* What stands in the file while the run goes on, so that one whose processes are all killed has left word too. */
#define RUNNING "still running, or ended without a word: killed (kill -9, no memory left, a lost node)"

static bool says_running (const char *path)
{
  char text[256] = "";
  int fd = open (path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool is = read (fd, text, sizeof text - 1) > 0 && strstr (text, RUNNING);
  close (fd);
  return is;
}

/* The last word of the run while a new launch is not yet through its start. */
static void name_old (const char *dir, char out[static 1200]) { snprintf (out, 1200, "%s/exit.old.json", dir); }

/* TMP becomes PATH unless a reason is there: then 1. Where there are no hard links, a rename: then the last word stands. */
static int publish (const char *tmp, const char *path)
{
  int rc = link (tmp, path);
  if (rc && (errno != EEXIST || says_running (path))) return rename (tmp, path);
  unlink (tmp);
  return rc ? 1 : 0;
}

static void sync_path (const char *path)
{
  int fd = open (path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  fsync (fd);
  close (fd);
}

void exit_sync (const char *dir)
{
  char path[1200];
  snprintf (path, sizeof path, "%s/exit.json", dir);
  sync_path (path);
  sync_path (dir);
}

int exit_said (const char *dir)
{
  char path[1200], text[256] = "";
  int code;
  snprintf (path, sizeof path, "%s/exit.json", dir);
  int fd = open (path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  bool is = read (fd, text, sizeof text - 1) > 0 && !strstr (text, RUNNING) && sscanf (text, "{\"code\": %d", &code) == 1;
  close (fd);
  return is ? code : -1;
}

int exit_begin (const char *dir, bool keep)
{
  char path[1200], old[1200];
  snprintf (path, sizeof path, "%s/exit.json", dir);
  name_old (dir, old);
  if (keep && access (old, F_OK)) rename (path, old);
  unlink (path);   /* a refused launch's, where the older word is kept already */
  return exit_write (dir, EXIT_WORLD, RUNNING, 0);
}

void exit_stands (const char *dir)
{
  char old[1200];
  name_old (dir, old);
  unlink (old);
}

int exit_write (const char *dir, int code, const char *reason, int64_t step)
{
  int rc = exit_tell (dir, code, reason, step);
  if (rc >= 0) exit_sync (dir);
  return rc;
}

int exit_tell (const char *dir, int code, const char *reason, int64_t step)
{
  static atomic_int tries;   /* the main thread and the watchdog's may speak at once */
  char path[1200], tmp[1200], why[4096], phase[512], text[6000];
  escape (reason, why, sizeof why);
  escape (base_phase_get (), phase, sizeof phase);
  int n = snprintf (text, sizeof text,
                    "{\"code\": %d, \"reason\": \"%s\", \"step\": %" PRId64 ", \"rank\": %d, \"host\": \"%s\", "
                    "\"phase\": \"%s\", \"time\": %" PRId64 "}\n",
                    code, why, step, base_rank_get (), base_host (), phase, (int64_t) time (NULL));
  snprintf (path, sizeof path, "%s/exit.json", dir);
  snprintf (tmp, sizeof tmp, "%s/exit.json.%d.%d.tmp", dir, base_rank_get (), atomic_fetch_add (&tries, 1));
  int rc = write_whole (tmp, text, (size_t) n) ? -1 : publish (tmp, path);
  if (rc < 0) unlink (tmp);
  return rc;
}
