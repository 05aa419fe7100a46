/* convert: `pretrain import` and `pretrain export`: checkpoints from and to FULL state dicts and Hugging Face folders. Collective: under mpiexec each rank moves its share of
   every tensor; with one process it does all. Memory: the staging of a save or load (some 8 MiB a rank), whatever the model's size. Exit codes as everywhere. */
#ifndef CONVERT_H
#define CONVERT_H
int import_main (int argc, char **argv);   /* argv[0] is the command's word */
int export_main (int argc, char **argv);
#endif
