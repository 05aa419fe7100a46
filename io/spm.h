/* spm: SentencePiece's C++ library behind C functions. spm.cc is compiled where the library is. */
#ifndef SPM_H
#define SPM_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
/* NULL and the library's words in WHY. */
void   *spm_load (const char *path, char *why, int size);
void    spm_free (void *m);
int     spm_pieces (const void *m);
int     spm_eos (const void *m);                        /* -1: none */
int     spm_piece (const void *m, const char *piece);   /* its id; -1: there is none */
/* Ids of N bytes: their number, *ids malloc'd; -1 and WHY. */
int64_t spm_encode (const void *m, const char *text, int64_t n, int32_t **ids, char *why, int size);
/* Text of IDS: its length, *text malloc'd; -1. */
int64_t spm_decode (const void *m, const int32_t *ids, int64_t n, char **text);
#ifdef __cplusplus
}
#endif
#endif
