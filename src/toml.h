/* toml: the part of TOML that settings files use: comments, [section] headers (dotted ones too), key = value with strings in one line, whole numbers,
   numbers, true and false, and lists of these. What else TOML has (tables in braces or double brackets, strings over several lines, dates) is refused with
   its line. No C library of it is packaged where this program is. */
#ifndef TOML_H
#define TOML_H
#include "conf_int.h"

/* Append PATH's values as section.key, in text: lists joined with commas, underscores of numbers left out. 0, or -1 with the sentence. */
int toml_settings (struct settings *s, const char *path, struct err *e);
#endif
