/* linear: the three products of a linear layer y = x w^T (+ bias): forward, by input, by weight. In the compute type, or where geom.fp8 says so in 8 bits (op.h: codes and units).

   In 8 bits weights and activations are E4M3, gradients of outputs E5M2: their values span more binades than E4M3 has. (With
   E4M3 for them too the worst tensor of `tiny` is 0.087 from bf16's gradient instead of 0.11, relative L2, and the losses of 20 steps are as near: 3.4e-4, 3.5e-4. That is not worth the range.)
   Each tensor has a unit from its own largest element, found just before it is rounded ("current scaling"): no state lasts from one use to the next, so checkpoints
   keep nothing of it, and what is computed twice is the same twice. Hopper multiplies only along the fastest dimension of both operands, so codes are needed as they lie (x and dy by input)
   and turned (x and dy by weight); one pass makes both. What is kept of an activation for its backward is the turned codes, not its bf16 form.

   Every rank takes the unit of the operand that it multiplies, of its own part where tp cuts the tensor: the unit goes into that rank's product, so sums over ranks need no common one, and a
   unit is a power of two, so what a value rounds to does not depend on the part that it is in (op.h says the exception). */
#ifndef LINEAR_H
#define LINEAR_H
#include "layer.h"

/* An activation [n, width] as products read it. In 8 bits also: where its turned codes [width, n] are, NULL if none are wanted, and s, F32 [8]: largest and unit (op_quant). */
struct operand { const void *x; int64_t width; void *turned; float *s; };

/* y [n, out] = x w^T (+ bias where matrix ID has one). In 8 bits leaves x.s, and x.turned where wanted. */
void linear (struct blocks *b, struct operand x, const struct weights *w, enum pid id, void *y, int64_t out);
/* The same of ROWS tokens from ROW0 on (in 8 bits: all tokens). */
struct rows { int64_t row0, rows; };
void linear_rows (struct blocks *b, struct operand x, const struct weights *w, enum pid id, void *y, int64_t out, struct rows r);
/* x.turned from x.x again; x.s is as linear left it. */
void linear_turn (struct blocks *b, struct operand x);

/* Take up dy [n, width], the gradient of an output, for the calls below of PART: they read the one taken up last. */
void linear_grad (struct blocks *b, const void *dy, int64_t width, enum part_of part);
/* dx [n, in] = dy w */
void linear_input (struct blocks *b, const void *dy, int64_t width, const struct weights *w, enum pid id, void *dx, int64_t in);
void linear_input_rows (struct blocks *b, const void *dy, int64_t width, const struct weights *w, enum pid id, void *dx, int64_t in, struct rows r);
/* Gradient of matrix ID [width, x.width] (+)= dy^T x */
void linear_weight (struct blocks *b, const void *dy, int64_t width, struct operand x, const struct weights *w, enum pid id);
#endif
