/* terminal: is someone looking? */
#ifndef TERMINAL_H
#define TERMINAL_H

/* Columns of the terminal that standard output goes to, directly or through an mpiexec of this host that this process descends from; 0: to none. Local. */
int terminal_width (void);
#endif
