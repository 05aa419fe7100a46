/* tokenize: `pretrain tokenize`, text into a token file (tokens.h). With the byte tokenizer one process, no MPI; with a
   tokenizer of a library the ranks share the documents. */
#ifndef TOKENIZE_H
#define TOKENIZE_H

/* argv[0] is the command's own name. Prints; returns the exit code. The text is streamed: memory does not grow with it.

   The output is written as OUT.tmp, synced and renamed, so that a file of the right name is whole. /tokens is contiguous, so
   its size must be known first: inputs are read twice, and one that cannot be (a pipe, standard input) is spooled into a file
   without a name beside OUT. With --documents none the first reading is a look at the sizes. */
int tokenize_main (int argc, char **argv);
#endif
