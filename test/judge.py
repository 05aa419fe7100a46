#!/usr/bin/env python3
"""Runs of the program against the referee; TAP.

  judge.py TOKENS... -- RUN...

RUN is a run's folder with config.yaml, metrics.jsonl and the dump of debug.dump_step in dump/; TOKENS are the token files that
the configurations name, wherever these lie now. What is asked of a run follows from its configuration:

  fp32, dump_step 1   initial weights to the bit; each gradient of step 1; loss, norm and learning rate of every step
  fp32, a later one   from the weights that were dumped: each gradient, loss and norm of that step (biases are not 0 by then)
  bf16                each gradient's error against fp64 at most 1.5 times that of an ideal computation in bf16

Environment: JUDGE_TABLE=1 prints every tensor's figure."""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import reference as ref
from ref_ops import bf16, rms

# q and k of a trained model are worse conditioned: their gradients are differences of numbers that grow alike.
GRADIENT, LATER, METRIC, RATE, ROUNDING = 3e-6, 1e-5, 1e-5, 1e-12, 1.5
points = []


def ok(good, text):
    points.append(bool(good))
    print(("" if good else "not ") + f"ok {len(points)} - {text}", flush=True)


def load(run, kind, shapes):
    """What the program dumped; None if the names or sizes are not the model's."""
    folder = os.path.join(run, "dump", kind)
    if sorted(os.listdir(folder)) != sorted(n + ".f32" for n in shapes):
        return None
    out = {n: np.fromfile(os.path.join(folder, n + ".f32"), np.float32) for n in shapes}
    if any(x.size != np.prod(shapes[n][0]) for n, x in out.items()):
        return None
    return {n: x.reshape(shapes[n][0]) for n, x in out.items()}


def worst(pairs):
    return max(pairs, default=(np.inf, "nothing"))


def shown(what, pair):
    return "%s %.1e%s" % (what, pair[0], " (%s)" % pair[1].replace("model.", "") if pair[1] else "")


def table(rows):
    for value, name in sorted(rows) if os.environ.get("JUDGE_TABLE") else ():
        print("#   %8.2e %s" % (value, name))


def apart(ours, theirs, step, key):
    a, b = ours[key], theirs[step][key] if step in theirs else np.inf
    if not np.isfinite(a) and step in theirs:   # what is not a number is null in JSON
        return 0.0 if b is None and theirs[step]["skipped"] else np.inf
    return ref.apart(a, b) if b is not None else np.inf


def whole(name, c, trainer, dumped, metrics):
    """A run from the start."""
    init, grad = dumped
    same = all(trainer.p[n].astype(np.float32).tobytes() == w.tobytes() for n, w in init.items())
    far = dict(loss=[], grad_norm=[], lr=[])
    for step in range(1, c.train.steps + 1):
        record, grads = trainer.train_step()
        if step == 1:
            gradient = [(ref.apart(g, grad[n]), n) for n, g in grads.items()]
        for key in far:
            far[key].append((apart(record, metrics, step, key), ""))
    table(gradient)
    g, (l, n, r) = worst(gradient), (worst(far[k]) for k in far)
    ok(same and g[0] <= GRADIENT and l[0] <= METRIC and n[0] <= METRIC and r[0] <= RATE and len(metrics) == c.train.steps,
       "%s: weights %s, %s, %d steps: %s, %s, %s" % (name, "same" if same else "DIFFER", shown("gradient", g), len(metrics),
                                                    shown("loss", l), shown("norm", n), shown("lr", r)))


def single(name, c, trainer, dumped, metrics):
    """One step, from the weights before it."""
    init, grad = dumped
    step, still = c.debug.dump_step, [n for n, w in init.items() if w.ndim == 1 and ((w == 0) | (w == 1)).any()]
    trainer.p = {n: w.astype(np.float64) for n, w in init.items()}
    grads, loss, tokens = trainer.gradient(step)
    gradient = [(ref.apart(g, grad[n]), n) for n, g in grads.items()]
    table(gradient)
    record = dict(loss=loss, grad_norm=np.sqrt(sum(np.square(g).sum() for g in grads.values())))
    g, l, n = worst(gradient), apart(record, metrics, step, "loss"), apart(record, metrics, step, "grad_norm")
    ok(not still and g[0] <= LATER and l <= METRIC and n <= METRIC,
       "%s, step %d: %s, loss %.1e, norm %.1e%s" % (
           name, step, shown("gradient", g), l, n, f", UNMOVED {still}" if still else ""))


def rounded(name, c, trainer, dumped, metrics):
    """Errors of bf16 beside those that cannot be avoided."""
    init, grad = dumped
    trainer.p = {n: w.astype(np.float64) for n, w in init.items()}
    step = c.debug.dump_step
    exact, ideal = trainer.gradient(step)[0], trainer.gradient(step, bf16)[0]
    ratio = [(rms(grad[n] - exact[n]) / rms(ideal[n] - exact[n]), n) for n in exact]
    table(ratio)
    g = worst(ratio)
    ok(g[0] <= ROUNDING, "%s, step %d: %d gradients with %.2f to %.2f (%s) times the error of an ideal bf16, %.2f on average" % (
        name, step, len(ratio), min(ratio)[0], g[0], g[1], np.mean([v for v, _ in ratio])))


def judge(run, tokens):
    name = os.path.basename(run)
    try:
        c = ref.load_config(os.path.join(run, "config.yaml"))
        shapes = ref.parameters(c.model)
        dumped, metrics = [load(run, kind, shapes) for kind in ("init", "grad")], ref.metrics(run)
    except OSError as e:
        return ok(False, f"{name}: {e}")
    if None in dumped:
        return ok(False, f"{name}: the dump does not have the model's tensors")
    trainer = ref.Trainer(c, ref.Data(c, *tokens[os.path.basename(c.data.train)]))
    task = rounded if c.train.dtype == "bf16" else whole if c.debug.dump_step == 1 else single
    return task(name, c, trainer, dumped, metrics)


def main():
    at = sys.argv.index("--")
    tokens = {os.path.basename(p): ref.load_tokens(p) for p in sys.argv[1:at]}
    for run in sys.argv[at + 1:]:
        judge(run, tokens)
    print(f"1..{len(points)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
