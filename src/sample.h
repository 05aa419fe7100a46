/* sample: `pretrain sample RUN_DIR --prompt TEXT --tokens 200`, text from a run's newest checkpoint. */
#ifndef SAMPLE_H
#define SAMPLE_H
int sample_main (int argc, char **argv);   /* argv[0]: the word sample; returns the exit code */
#endif
