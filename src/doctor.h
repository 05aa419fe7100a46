/* doctor: what this launch looks like and what it can do. So far: --calibrate, which measures and writes a machine file for the planner. */
#ifndef DOCTOR_H
#define DOCTOR_H
int doctor_main (int argc, char **argv);
#endif
