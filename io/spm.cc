// spm: the only file in C++, because SentencePiece has no other interface. Nothing is thrown across it.
#include "spm.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sentencepiece_processor.h>
#include <string>
#include <vector>

using sentencepiece::SentencePieceProcessor;

static const SentencePieceProcessor *of (const void *m) { return static_cast<const SentencePieceProcessor *> (m); }

void *spm_load (const char *path, char *why, int size)
{
  try {
    auto *p = new SentencePieceProcessor;
    const auto status = p->Load (path);
    if (status.ok ()) return p;
    std::snprintf (why, size, "%s", status.ToString ().c_str ());
    delete p;
  } catch (const std::exception &x) { std::snprintf (why, size, "%s", x.what ()); }
  return nullptr;
}

void spm_free (void *m) { delete static_cast<SentencePieceProcessor *> (m); }
int spm_pieces (const void *m) { return of (m)->GetPieceSize (); }
int spm_eos (const void *m) { return of (m)->eos_id (); }

int spm_piece (const void *m, const char *piece)
{
  int id = of (m)->PieceToId (piece);
  return id == of (m)->unk_id () && std::strcmp (of (m)->IdToPiece (id).c_str (), piece) ? -1 : id;
}

int64_t spm_encode (const void *m, const char *text, int64_t n, int32_t **ids, char *why, int size)
{
  try {
    std::vector<int> v;
    const auto status = of (m)->Encode (absl::string_view (text, n), &v);
    if (!status.ok ()) return std::snprintf (why, size, "%s", status.ToString ().c_str ()), -1;
    *ids = static_cast<int32_t *> (std::malloc ((v.size () + 1) * sizeof (int32_t)));
    if (!*ids) return std::snprintf (why, size, "out of memory"), -1;
    for (size_t i = 0; i < v.size (); i++) (*ids)[i] = v[i];
    return static_cast<int64_t> (v.size ());
  } catch (const std::exception &x) { return std::snprintf (why, size, "%s", x.what ()), -1; }
}

int64_t spm_decode (const void *m, const int32_t *ids, int64_t n, char **text)
{
  try {
    std::vector<int> v;
    for (int64_t i = 0; i < n; i++) if (ids[i] >= 0 && ids[i] < of (m)->GetPieceSize ()) v.push_back (ids[i]);
    std::string s;
    if (!of (m)->Decode (v, &s).ok ()) return -1;
    *text = static_cast<char *> (std::malloc (s.size () + 1));
    if (!*text) return -1;
    std::memcpy (*text, s.data (), s.size ());
    return static_cast<int64_t> (s.size ());
  } catch (const std::exception &) { return -1; }
}
