#!/usr/bin/env python3
"""The referee: training of Llama-like models in NumPy fp64, each gradient by hand, from the formulas and not from the program.

  reference.py CONFIG --tokens FILE --steps N --out DIR [--ideal]
      CONFIG  a run's effective configuration (RUN_DIR/config.yaml) or JSON with the same keys
      FILE    .npy (1-D), or .h5 with /tokens and perhaps /mask
      DIR     gets metrics.jsonl (step, loss, grad_norm, lr, valid tokens, skipped) and, row-major and global, as raw fp32 files
              named by the tensor: init/ (initial weights), grad/ (mean gradient of step 1 before clipping), final/ (weights after
              the last step); --ideal: ideal/, that gradient with weights and each operation's outputs rounded to bf16
  reference.py --compare REFERENCE_DIR OTHER_DIR     how far init/, grad/ and metrics.jsonl of OTHER are from those of REFERENCE
  reference.py --selftest                            TAP

Loss and gradients are sums over the valid tokens of the whole batch divided by their number. The gradient norm is that of all
parameters, tied ones once, before clipping. A step whose gradients are not finite, or without a valid token, changes nothing and
is no update for AdamW; the learning rate goes on with the step."""
import argparse
import json
import os
import sys
from types import SimpleNamespace as Record

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import rng
from ref_ops import (adamw, attention, bf16, clip_scale, cross_entropy, embed, learning_rate, linear, rmsnorm, rope,
                     rope_frequencies, swiglu, visible)

# Used where the configuration says nothing, as in the program; a run's effective configuration says everything.
DEFAULTS = {
    "model": dict(head_dim=0, kv_heads=0, tied=False, qkv_bias=False, qk_norm=False, norm_eps=1e-5, rope_theta=1e4,
                  rope_scaling={}, window=0, init_std=0.02),
    "data": dict(train="", valid="", valid_fraction=0.05, document_mask=False),
    "train": dict(steps=100, seq_len=256, seed=1, micro_batch=1, global_batch=0, dtype="fp32"),
    "optimizer": dict(lr=3e-4, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=1.0),
    "schedule": dict(type="cosine", warmup=None, min_lr=None, steps=0, decay=0),
    "debug": dict(nan_step=-1, dump_step=1),
}


# ---- configuration: the part of YAML that a dump uses (nested and {inline} mappings of scalars); no package is needed ----

def scalar(text):
    text = text.strip()
    if text[:1] in "\"'" and text[-1:] == text[:1] and len(text) > 1:
        return json.loads(text) if text[0] == '"' else text[1:-1].replace("''", "'")
    if text.startswith("{"):
        return inline(text)
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return "" if text in ("~", "null") else text


def cut(text, mark):
    """TEXT up to each MARK that is outside quotes and brackets."""
    parts, depth, quote = [""], 0, ""
    for c in text:
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        depth += 0 if quote else (c in "{[") - (c in "}]")
        if c == mark and not quote and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def inline(text):
    pairs = (cut(item, ":") for item in cut(text.strip()[1:-1], ",") if item.strip())
    return {scalar(p[0]): scalar(":".join(p[1:])) for p in pairs}


def parse_yaml(text):
    root = {}
    stack = [(-1, root)]
    for line in text.splitlines():
        line = cut(line, "#")[0].rstrip()
        if not line.strip() or line.startswith(("---", "%")):
            continue
        depth = len(line) - len(line.lstrip())
        name, *rest = cut(line.strip(), ":")
        value = ":".join(rest).strip()
        while stack[-1][0] >= depth:
            stack.pop()
        here = stack[-1][1]
        here[scalar(name)] = scalar(value) if value else {}
        if not value:
            stack.append((depth, here[scalar(name)]))
    return root


def load_config(path):
    with open(path) as f:
        text = f.read()
    given = json.loads(text) if path.endswith(".json") else parse_yaml(text)
    return configure(given)


def configure(given):
    """Mappings as the program's configuration has them into records, with what follows from other values filled in."""
    c = Record(**{s: Record(**{**d, **(given.get(s) or {})}) for s, d in DEFAULTS.items()})
    a, t, s = c.model, c.train, c.schedule
    a.kv_heads = a.kv_heads or a.heads
    a.head_dim = a.head_dim or a.dim // a.heads
    scaling = {"low": 1, "high": 4, **(a.rope_scaling or {})}
    a.scaling = [float(scaling.get(k, 0)) for k in ("factor", "low", "high", "original")]
    t.global_batch = t.global_batch or t.micro_batch
    s.steps = s.steps or t.steps
    s.warmup = min(20, s.steps // 10) if s.warmup is None else s.warmup
    s.min_lr = c.optimizer.lr / 10 if s.min_lr is None else s.min_lr
    s.decay = s.decay or s.steps // 10
    return c


# ---- model ----

def parameters(a):
    """Name -> (shape, standard deviation or, for vectors, the constant) in the order of the model."""
    q, kv, out = a.heads * a.head_dim, a.kv_heads * a.head_dim, a.init_std / np.sqrt(2.0 * a.layers)
    p = {"model.embed_tokens.weight": ((a.vocab, a.dim), a.init_std)}
    for i in range(a.layers):
        rows = {"input_layernorm.weight": ((a.dim,), 1.0), "post_attention_layernorm.weight": ((a.dim,), 1.0)}
        for x, n in (("q", q), ("k", kv), ("v", kv)):
            rows[f"self_attn.{x}_proj.weight"] = ((n, a.dim), a.init_std)
            if a.qkv_bias:
                rows[f"self_attn.{x}_proj.bias"] = ((n,), 0.0)
            if a.qk_norm and x != "v":
                rows[f"self_attn.{x}_norm.weight"] = ((a.head_dim,), 1.0)
        rows["self_attn.o_proj.weight"] = ((a.dim, q), out)
        rows["mlp.gate_proj.weight"] = rows["mlp.up_proj.weight"] = ((a.ffn, a.dim), a.init_std)
        rows["mlp.down_proj.weight"] = ((a.dim, a.ffn), out)
        p.update({f"model.layers.{i}.{k}": v for k, v in rows.items()})
    p["model.norm.weight"] = ((a.dim,), 1.0)
    if not a.tied:
        p["lm_head.weight"] = ((a.vocab, a.dim), a.init_std)
    return p


def initial_weights(a, seed):
    """fp32, to the bit as the program makes them."""
    return {n: rng.weights(seed, n, s, x) if len(s) > 1 else np.full(s, x, np.float32) for n, (s, x) in parameters(a).items()}


class Model:
    """Forward and backward of a batch. r rounds weights, activations and their gradients where a program stores them."""

    def __init__(self, arch, weights, r=lambda x: x):
        self.a, self.r = arch, r
        self.w = {n: r(w) for n, w in weights.items()}
        self.g = {n: np.zeros(w.shape) for n, w in weights.items()}
        self.freq = rope_frequencies(arch.head_dim, arch.rope_theta, arch.scaling)

    def take(self, name, gradient):
        self.g[name] += gradient

    def project(self, x, name):
        """A linear map NAME of x, rounded; back adds to the weight's gradient and returns dx unrounded, for the caller to sum."""
        y, raw = linear(x, self.w[name + ".weight"], self.w.get(name + ".bias"))

        def back(dy):
            dx, dw, db = raw(dy)
            self.take(name + ".weight", dw)
            if name + ".bias" in self.w:
                self.take(name + ".bias", db)
            return dx
        return self.r(y), back

    def norm(self, x, name):
        y, raw = rmsnorm(x, self.w[name], self.a.norm_eps)

        def back(dy):
            dx, dw = raw(dy)
            self.take(name, dw)
            return dx
        return self.r(y), back

    def head_vectors(self, h, name, kind, heads):
        """q or k of all heads: projection, norm if the model has it, rotation."""
        r = self.r
        x, project = self.project(h, f"{name}.{kind}_proj")
        x = x.reshape(*h.shape[:2], heads, self.a.head_dim)
        norm = r
        if self.a.qk_norm:
            x, norm_back = self.norm(x, f"{name}.{kind}_norm.weight")
            norm = lambda d: r(norm_back(d))
        x, turn = rope(x, self.position, self.freq)
        return r(x), lambda d: project(norm(r(turn(d)[0])).reshape(*h.shape[:2], -1))

    def attend(self, h, name):
        """h [batch, seq, dim] -> attention's contribution to the residual stream"""
        a, r, rows = self.a, self.r, h.shape[:2]
        q, q_back = self.head_vectors(h, name, "q", a.heads)
        k, k_back = self.head_vectors(h, name, "k", a.kv_heads)
        v, v_back = self.project(h, f"{name}.v_proj")
        o, attention_back = attention(q, k, v.reshape(*rows, a.kv_heads, a.head_dim), self.sees)
        y, o_back = self.project(r(o).reshape(*rows, -1), f"{name}.o_proj")

        def back(dy):
            dq, dk, dv = attention_back(r(o_back(dy)).reshape(o.shape))
            return r(q_back(r(dq)) + k_back(r(dk)) + v_back(r(dv).reshape(*rows, -1)))
        return y, back

    def mlp(self, h, name):
        r = self.r
        gate, gate_back = self.project(h, f"{name}.gate_proj")
        up, up_back = self.project(h, f"{name}.up_proj")
        x, swiglu_back = swiglu(gate, up)
        y, down_back = self.project(r(x), f"{name}.down_proj")

        def back(dy):
            d_gate, d_up = swiglu_back(r(down_back(dy)))
            return r(gate_back(r(d_gate)) + up_back(r(d_up)))
        return y, back

    def residual(self, x, part, norm_name, name):
        """x + part (norm (x))"""
        h, norm_back = self.norm(x, norm_name)
        y, part_back = part(h, name)
        return self.r(x + y), lambda dx: self.r(norm_back(part_back(dx)) + dx)

    def run(self, ids, target, doc):
        """ids, target (-1: not in the loss), doc (place of the first token of each token's document): all [batch, seq].
        Adds the gradient of the sum of losses to g; returns that sum and the number of valid tokens."""
        a, r = self.a, self.r
        self.position = np.arange(ids.shape[1]) - doc
        self.sees = visible(doc, a.window)
        x, embed_back = embed(ids, self.w["model.embed_tokens.weight"])
        backs = []
        for i in range(a.layers):
            name = f"model.layers.{i}."
            for part, norm, label in ((self.attend, "input_layernorm.weight", "self_attn"),
                                      (self.mlp, "post_attention_layernorm.weight", "mlp")):
                x, back = self.residual(x, part, name + norm, name + label)
                backs.append(back)
        h, norm_back = self.norm(x, "model.norm.weight")
        head = "model.embed_tokens" if a.tied else "lm_head"
        logits, head_back = self.project(h, head)
        loss, loss_back = cross_entropy(logits, target)
        dx = r(norm_back(r(head_back(r(loss_back()[0])))))
        for back in reversed(backs):
            dx = back(dx)
        self.take("model.embed_tokens.weight", embed_back(dx)[0])
        self.logits = logits
        return loss, int((target >= 0).sum())


# ---- data ----

def load_tokens(path):
    """tokens, mask (or None), id that ends a document"""
    if path.endswith(".npy"):
        return np.load(path), None, 256
    import h5py
    with h5py.File(path) as f:
        end = int(f.attrs.get("eod", 256))
        return f["tokens"][:], f["mask"][:] if "mask" in f else None, end


def document_starts(ids, end):
    """For each token of [batch, seq] the place of its document's first token: after the last END strictly before it."""
    place = np.arange(ids.shape[1])
    after = np.zeros_like(ids)
    after[:, 1:] = np.where(ids[:, :-1] == end, place[1:], 0)
    return np.maximum.accumulate(after, axis=1)


class Data:
    """Window i is the seq + 1 tokens from i * seq on; n = those that the tail for validation leaves. Sample j of the run is window
    permute (seed, j / n, j % n)."""

    def __init__(self, c, tokens, mask=None, end=256):
        self.tokens, self.mask, self.end, self.by_document = tokens.astype(np.int64), mask, end, c.data.document_mask
        self.seq, self.seed = c.train.seq_len, c.train.seed
        kept = c.data.valid_fraction if c.data.valid in ("", c.data.train) else 0.0
        self.n = int((1 - kept) * ((len(tokens) - 1) // self.seq))

    def batch(self, first, count):
        """ids, target, doc of the samples first .. first + count - 1 of the run"""
        at = [rng.permute(self.seed, j // self.n, j % self.n, self.n) * self.seq for j in range(first, first + count)]
        place = np.array(at)[:, None] + np.arange(self.seq)
        ids, target = self.tokens[place], self.tokens[place + 1]
        if self.mask is not None:
            target = np.where(self.mask[place + 1] != 0, target, -1)
        return ids, target, document_starts(ids, self.end) if self.by_document else np.zeros_like(ids)


# ---- training ----

class Trainer:
    def __init__(self, c, data, weights=None):
        weights = initial_weights(c.model, c.train.seed) if weights is None else weights
        self.c, self.data, self.updates, self.step = c, data, 0, 0
        self.p = {n: w.astype(np.float64) for n, w in weights.items()}
        self.m = {n: np.zeros(w.shape) for n, w in weights.items()}
        self.v = {n: np.zeros(w.shape) for n, w in weights.items()}

    def gradient(self, step, r=lambda x: x):
        """Mean gradient and loss over the valid tokens of a step's whole batch, taken micro_batch sequences at a time."""
        t = self.c.train
        model, loss, tokens = Model(self.c.model, self.p, r), 0.0, 0
        for k in range(0, t.global_batch, t.micro_batch):
            count = min(t.micro_batch, t.global_batch - k)
            part, valid = model.run(*self.data.batch((step - 1) * t.global_batch + k, count))
            loss, tokens = loss + part, tokens + valid
        return {n: g / max(tokens, 1) for n, g in model.g.items()}, loss / max(tokens, 1), tokens

    def apply(self, grads, step, tokens):
        """Clip and update; what the metrics say of it."""
        o, s = self.c.optimizer, self.c.schedule
        norm = np.sqrt(sum(np.square(g).sum() for g in grads.values()))
        lr = learning_rate(step, s.type, o.lr, s.warmup, s.steps, s.min_lr, s.decay)
        skip = not np.isfinite(norm) or tokens == 0
        if not skip:
            self.updates += 1
            scale = clip_scale(norm, o.clip)
            for n, p in self.p.items():
                decay = o.weight_decay if p.ndim > 1 else 0.0
                adamw(p, grads[n] * scale, self.m[n], self.v[n], self.updates, lr, o.beta1, o.beta2, o.eps, decay)
        return dict(grad_norm=float(norm), lr=float(lr), skipped=bool(skip))

    def train_step(self):
        self.step += 1
        grads, loss, tokens = self.gradient(self.step)
        if self.step == self.c.debug.nan_step:
            grads["model.norm.weight"][0] = np.nan
        return dict(step=self.step, loss=float(loss), valid=tokens, **self.apply(grads, self.step, tokens)), grads


def dump(folder, tensors):
    os.makedirs(folder, exist_ok=True)
    for name, x in tensors.items():
        np.asarray(x, np.float32).tofile(os.path.join(folder, name + ".f32"))


def run(args):
    c = load_config(args.config)
    if args.steps:   # the schedule still ends where the configuration says
        c.train.steps = args.steps
    trainer = Trainer(c, Data(c, *load_tokens(args.tokens)))
    dump(os.path.join(args.out, "init"), trainer.p)
    if args.ideal:
        dump(os.path.join(args.out, "ideal"), trainer.gradient(1, bf16)[0])
    with open(os.path.join(args.out, "metrics.jsonl"), "w") as f:
        for step in range(1, c.train.steps + 1):
            record, grads = trainer.train_step()
            print(json.dumps(record), file=f, flush=True)
            if step == 1:
                dump(os.path.join(args.out, "grad"), grads)
    dump(os.path.join(args.out, "final"), trainer.p)


# ---- comparison ----

def metrics(folder):
    with open(os.path.join(folder, "metrics.jsonl")) as f:
        records = [json.loads(line) for line in f if line.strip()]
    return {r["step"]: r for r in records if "loss" in r and "step" in r}


def apart(a, b):
    """|a - b| / |a|; infinite if either is not finite or their shapes differ"""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    error = np.linalg.norm(a - b) / max(np.linalg.norm(a), 1e-30) if a.shape == b.shape else np.inf
    return float(error) if np.isfinite(error) else np.inf


def compare(reference, other):
    """Lines "what value": initial weights that differ in a bit, worst relative errors of gradients (L2), loss, norm, lr."""
    def names(folder, kind):
        return sorted(os.listdir(os.path.join(folder, kind)))

    def load(folder, kind, name):
        return np.fromfile(os.path.join(folder, kind, name), np.float32)
    for kind in ("init", "grad"):
        if differ := set(names(reference, kind)) ^ set(names(other, kind)):
            sys.exit(f"{kind}: only one has {sorted(differ)[:5]}")
    pairs = {kind: [(load(reference, kind, n), load(other, kind, n), n) for n in names(reference, kind)]
             for kind in ("init", "grad")}
    print("init_differ", sum(a.tobytes() != b.tobytes() for a, b, _ in pairs["init"]))
    print("grad %.3g %s" % max((apart(a, b), n) for a, b, n in pairs["grad"]))
    ours, theirs = metrics(reference), metrics(other)
    both = sorted(ours.keys() & theirs.keys())
    print("steps", len(both), "of", len(ours))
    for key in ("loss", "grad_norm", "lr"):
        print(key, "%.3g" % max((apart(ours[s][key], theirs[s][key]) for s in both), default=np.inf))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("config", nargs="?")
    p.add_argument("--tokens")
    p.add_argument("--steps", type=int, default=0)
    p.add_argument("--out")
    p.add_argument("--ideal", action="store_true")
    p.add_argument("--compare", nargs=2, metavar=("REFERENCE", "OTHER"))
    p.add_argument("--selftest", action="store_true")
    args = p.parse_args()
    if args.selftest:
        import ref_selftest
        return ref_selftest.main()
    if args.compare:
        return compare(*args.compare)
    if not (args.config and args.tokens and args.out):
        p.error("needs CONFIG, --tokens and --out")
    return run(args)


if __name__ == "__main__":
    sys.exit(main())
