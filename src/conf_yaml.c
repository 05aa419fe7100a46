/* conf_yaml: a YAML file as a list of settings with lines. Any nesting and dotted keys come out the same. */
#include "conf_int.h"
#include <errno.h>
#include <string.h>
#include <yaml.h>

struct reader { struct settings *s; yaml_document_t *doc; const char *name; struct err *e; };

#define LINE(n) ((int) (n)->start_mark.line + 1)
enum { DEEPEST = 8, MOST = 1000 };   /* anchors could make a small file endless */

static const char *text_of (const yaml_node_t *n) { return (const char *) n->data.scalar.value; }

/* A scalar without NUL bytes inside? */
static bool whole_text (const yaml_node_t *n) { return strlen (text_of (n)) == n->data.scalar.length; }

static bool is_null (const yaml_node_t *n)
{
  const char *t = text_of (n);
  return n->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && (!*t || !strcmp (t, "~") || !strcmp (t, "null"));
}

/* Join the items of list N with commas into OUT. */
static int join (struct reader *r, const char *key, const yaml_node_t *n, char out[static STR])
{
  size_t at = 0;
  out[0] = 0;
  for (yaml_node_item_t *i = n->data.sequence.items.start; i < n->data.sequence.items.top; i++) {
    const yaml_node_t *item = yaml_document_get_node (r->doc, *i);
    if (item->type != YAML_SCALAR_NODE || !whole_text (item))
      return user_err (r->e, "%s line %d: %s: a list of plain values is expected", r->name, LINE (item), key);
    at += snprintf (out + at, STR - at, "%s%s", at ? "," : "", text_of (item));
    if (at >= STR) return user_err (r->e, "%s line %d: %s: the list is longer than %d characters", r->name, LINE (item), key,
                                    STR - 1);
  }
  return 0;
}

static int read_map (struct reader *r, const char *prefix, const yaml_node_t *map, int depth);

static int read_value (struct reader *r, const char *key, const yaml_node_t *k, const yaml_node_t *v, int depth)
{
  char joined[STR], below[300];
  if (r->s->n >= MOST) return user_err (r->e, "%s line %d: more than %d values", r->name, LINE (k), MOST);
  switch (v->type) {
  case YAML_SCALAR_NODE:
    if (!whole_text (v)) return user_err (r->e, "%s line %d: %s: a zero byte in the value", r->name, LINE (v), key);
    settings_add (r->s, key, text_of (v), LINE (k))->null = is_null (v);
    return 0;
  case YAML_SEQUENCE_NODE:
    if (join (r, key, v, joined)) return -1;
    settings_add (r->s, key, joined, LINE (k))->list = true;
    return 0;
  case YAML_MAPPING_NODE:
    if (strlen (key) > 250) return user_err (r->e, "%s line %d: the key %.40s... is too long", r->name, LINE (k), key);
    snprintf (below, sizeof below, "%s.", key);
    return read_map (r, below, v, depth + 1);
  default:
    return user_err (r->e, "%s line %d: %s: not a value", r->name, LINE (k), key);
  }
}

static int read_map (struct reader *r, const char *prefix, const yaml_node_t *map, int depth)
{
  if (depth > DEEPEST) return user_err (r->e, "%s line %d: nested more than %d deep", r->name, LINE (map), DEEPEST);
  for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top; p++) {
    const yaml_node_t *k = yaml_document_get_node (r->doc, p->key), *v = yaml_document_get_node (r->doc, p->value);
    char key[400];
    if (k->type != YAML_SCALAR_NODE || !*text_of (k) || !whole_text (k) || strlen (text_of (k)) > 100)
      return user_err (r->e, "%s line %d: a key must be a short word", r->name, LINE (k));
    snprintf (key, sizeof key, "%s%s", prefix, text_of (k));
    if (read_value (r, key, k, v, depth)) return -1;
  }
  return 0;
}

static int read_document (struct reader *r, const char *prefix)
{
  yaml_node_t *root = yaml_document_get_root_node (r->doc);
  if (!root) return 0;
  if (root->type == YAML_SCALAR_NODE && !*text_of (root)) return 0;
  if (root->type != YAML_MAPPING_NODE)
    return user_err (r->e, "%s line %d: keys and values are expected, such as `train: {steps: 100}`", r->name, LINE (root));
  return read_map (r, prefix, root, 1);
}

static int read_stream (struct reader *r, yaml_parser_t *p, const char *prefix)
{
  for (int n = 0; ; n++) {
    yaml_document_t doc;
    if (!yaml_parser_load (p, &doc))
      return user_err (r->e, "%s line %d: not YAML: %s%s%s", r->name, (int) p->problem_mark.line + 1,
                       p->context ? p->context : "", p->context ? ": " : "", p->problem ? p->problem : "unreadable");
    r->doc = &doc;
    bool end = !yaml_document_get_root_node (&doc);
    int rc = 0;
    if (!end && n) rc = user_err (r->e, "%s line %d: a second document; one is expected", r->name,
                                  LINE (yaml_document_get_root_node (&doc)));
    else rc = read_document (r, prefix);
    yaml_document_delete (&doc);
    if (rc || end) return rc;
  }
}

int yaml_settings (struct settings *s, const char *path, const char *prefix, struct err *e)
{
  const char *slash = strrchr (path, '/');
  s->path = path;
  snprintf (s->source, sizeof s->source, "%s", slash && strlen (path) >= 100 ? slash + 1 : path);
  FILE *f = fopen (path, "rb");
  if (!f) return user_err (e, "cannot open %s: %s", path, strerror (errno));
  int first = fgetc (f), why = errno;
  if (first == EOF && ferror (f)) {   /* a folder can be opened */
    fclose (f);
    return user_err (e, "cannot read %s: %s", path, strerror (why));
  }
  ungetc (first, f);
  yaml_parser_t p;
  must (yaml_parser_initialize (&p), "libyaml: no memory");
  yaml_parser_set_input_file (&p, f);
  struct reader r = { .s = s, .name = s->source, .e = e };
  int rc = read_stream (&r, &p, prefix);
  yaml_parser_delete (&p);
  fclose (f);
  return rc;
}
