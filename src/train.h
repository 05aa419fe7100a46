/* train: `pretrain RUN.yaml [--option value ...]`, the training run. */
#ifndef TRAIN_H
#define TRAIN_H
int train_main (int argc, char **argv);    /* argv without the program's name; returns the exit code */
#endif
