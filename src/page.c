#include "config.h"
#include "page.h"
#include "plan.h"
#include <math.h>
#include <string.h>

void page_put (FILE *f, const char *s)
{
  for (; *s; s++) {
    unsigned char c = (unsigned char) *s;
    if (c == '&') fputs ("&amp;", f);
    else if (c == '<') fputs ("&lt;", f);
    else if (c == '>') fputs ("&gt;", f);
    else if (c == '"') fputs ("&quot;", f);
    else fputc (c < 32 || c == 127 ? ' ' : c, f);
  }
}

void page_cell (FILE *f, bool number, const char *s)
{
  fputs (number ? "<td class='n'>" : "<td>", f);
  page_put (f, s);
  fputs ("</td>", f);
}

void page_heads (FILE *f, const char *words)
{
  fputs ("<tr>", f);
  for (const char *s = words; *s; s += strcspn (s, "|"), s += *s == '|') {
    bool number = *s == '#';
    fprintf (f, "<th%s>%.*s</th>", number ? " class='n'" : "", (int) strcspn (s, "|") - number, s + number);
  }
  fputs ("</tr>\n", f);
}

const char *page_grouped (double v, char out[static 64])
{
  char digits[48];
  int n = snprintf (digits, sizeof digits, "%.0f", v), at = 0;
  for (int i = 0; i < n; i++) {
    out[at++] = digits[i];
    if (i + 1 < n && (n - 1 - i) % 3 == 0 && digits[i] != '-') out[at++] = ',';
  }
  out[at] = 0;
  return out;
}

const char *page_seconds (double s, char out[static 24])
{
  if (s == 0) return strcpy (out, "0");
  if (s >= 1e-3) return plan_seconds (s, out);
  snprintf (out, 24, "%.3g \xc2\xb5s", 1e6 * s);
  return out;
}

const char *page_on (const char *fill)
{
  unsigned rgb = 0;
  double light = 0;
  static const double weight[3] = { 0.2126, 0.7152, 0.0722 };
  sscanf (fill, "#%x", &rgb);
  for (int i = 0; i < 3; i++) {
    double c = (rgb >> (16 - 8 * i) & 255) / 255.0;
    light += weight[i] * (c <= 0.04045 ? c / 12.92 : pow ((c + 0.055) / 1.055, 2.4));
  }
  return light > 0.217 ? "#1b2631" : "#fff";
}

const char *const page_ink[INKS] = { "#c0392b", "#7d3c98", "#1f6fb2", "#138d75", "#707b7c" };

void page_tile (FILE *f, const char *value, const char *what, const char *mood)
{
  fprintf (f, "<div><b class='%s'>", mood);
  page_put (f, value);
  fputs ("</b><span>", f);
  page_put (f, what);
  fputs ("</span></div>", f);
}

const char page_style[] =
  "@page{size:A3 portrait;margin:9mm}body{font:14px/1.4 'DejaVu Sans',Helvetica,Arial,sans-serif;color:#1b2631;margin:18px auto;max-width:1320px;padding:0 18px}"
  "h1{font-size:25px;margin:0 0 2px}h2{font-size:17px;margin:22px 0 4px;border-bottom:2px solid #1b2631;padding-bottom:2px}h3{font-size:13.5px;margin:12px 0 4px}p{margin:4px 0 8px}"
  "svg{display:block;width:100%;height:auto}td svg{display:inline-block;width:34px;vertical-align:middle}section{break-inside:avoid}"
  "table{border-collapse:collapse;font-size:13px;margin:4px 0 10px}th{text-align:left;border-bottom:1px solid #1b2631;padding:2px 14px 2px 0}td{padding:2px 14px 2px 0;border-bottom:1px solid #e1e5e8}"
  "th.n,td.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}tr.off td{color:#6c757d}tr.sum td{font-weight:bold;border-top:1px solid #1b2631}"
  ".tiles{display:flex;flex-wrap:wrap;gap:10px;margin:10px 0}.tiles div{border:1px solid #ccd3d8;border-radius:6px;padding:6px 14px;min-width:112px}.tiles b{display:block;font-size:20px}.tiles span{font-size:12px;color:#566573}"
  ".good{color:#1e8449}.bad{color:#c0392b}.key span{margin-right:16px;white-space:nowrap;font-size:13px}.key i{display:inline-block;width:14px;height:12px;margin-right:5px;vertical-align:-1px}"
  ".l{fill:none;stroke-width:3}.t{fill:none;stroke-width:1.2}.c{stroke:#5d6d7e;stroke-width:1}.b{fill:#f2f4f5;stroke:#d5dade}.m{stroke:#aab7b8;stroke-width:.6}"
  "text{font-family:'DejaVu Sans',Helvetica,Arial,sans-serif;fill:#1b2631}.k{font-size:14px;text-anchor:middle;font-weight:bold}.r{font-size:11px;text-anchor:middle;fill:#566573}"
  ".e{font-size:11px;text-anchor:end;fill:#566573}.h{font-size:14px}.s{font-size:12.5px}.w{font-size:12px;text-anchor:middle;font-weight:bold}.q{font-size:11px;text-anchor:middle}"
  ".a{font-size:13px;font-weight:bold;text-anchor:start;paint-order:stroke;stroke:#fff;stroke-width:5px;stroke-linejoin:round}.p{font-size:13px;font-weight:bold;text-anchor:middle}.x{stroke:#d5dade}.g{stroke:#fff;stroke-width:.6}.i{fill:#fff;stroke:#aab7b8}"
  ".two{display:flex;gap:34px;flex-wrap:wrap;align-items:flex-start}footer{font-size:12px;color:#566573;margin-top:16px;border-top:1px solid #ccd3d8;padding-top:6px}"
  ".wide{overflow-x:auto}@media(max-width:700px){body{padding:0 10px;margin-top:10px}h1{font-size:21px}.tiles{gap:7px}.tiles div{padding:5px 10px;min-width:92px;flex:1}.tiles b{font-size:17px}"
  ".wide:not(.grid)>svg{min-width:720px}.choices td:first-child{min-width:180px}.choices td:last-child{min-width:140px}.two>div{min-width:0;max-width:100%;overflow-x:auto}}"
  "@media print{body{margin:0;max-width:none;zoom:.74}h2{margin-top:14px}}";
