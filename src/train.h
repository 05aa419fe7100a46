/* train: `pretrain RUN.yaml [--option value ...]`, the training run. */
#ifndef TRAIN_H
#define TRAIN_H
int train_main (int argc, char **argv);    /* argv[0]: the program's name or the word train; returns the exit code */
#endif
