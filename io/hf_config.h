/* hf_config: Hugging Face's config.json and our model, both ways, from one table. Every field of the file is mapped, known to say
   nothing about the mathematics, or refused by name; a field that is left out has the default that the `transformers` library gives
   its model_type. Offered: llama, mistral, qwen2, qwen3. No MPI; local. */
#ifndef HF_CONFIG_H
#define HF_CONFIG_H
#include "model.h"

struct hf_config {
  struct arch arch;
  char type[16];          /* model_type */
  char dtype[16];         /* torch_dtype (newer files: dtype) as written: bfloat16, float16, float32; empty if not said */
  int64_t bos, eos, pad;  /* token ids; -1: not said. Of several ends the first */
};

/* Is told each field of the file in turn: its name, its value as JSON, and what it means here. The strings are lent for the call. */
typedef void hf_tell (void *ctx, const char *field, const char *value, const char *meaning);

/* Read PATH: the file, or the folder in which config.json lies. TELL may be NULL. 0, or -1 with the sentence that names file and field. */
int hf_config_read (struct hf_config *h, const char *path, hf_tell *tell, void *ctx, struct err *e);

/* config.json of A as text to xfree, with the ids, the type of the numbers and the model_type that fits A (h->type is filled in;
   max_seq 0 becomes the model_type's own);
   NULL with the sentence if none does (qkv_bias with qk_norm). What is written reads back as the same arch. */
char *hf_config_text (struct hf_config *h, struct err *e);
#endif
