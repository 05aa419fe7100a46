"""The referee's own tests: gradients against finite differences, and laws that its parts must keep. Prints TAP."""
import os
import tempfile

import numpy as np

import reference as ref
import ref_ops as ops
import rng

points = []


def ok(good, what):
    points.append(good)
    print("ok" if good else "not ok", len(points), "-", what, flush=True)


BASE = dict(dim=16, layers=2, heads=4, kv_heads=2, ffn=24, vocab=29, init_std=0.3)
SCALED = dict(rope_theta=100.0, rope_scaling=dict(factor=8, low=1, high=4, original=16))
FAMILIES = {   # name: (model, with documents, with masked targets)
    "llama": ({}, False, False),
    "llama 3": (SCALED, False, True),
    "tied": (dict(tied=True), False, False),
    "qwen 2": (dict(qkv_bias=True, tied=True), False, False),
    "qwen 3": (dict(qk_norm=True, head_dim=6), False, False),
    "one kv head": (dict(kv_heads=1), False, False),
    "documents": ({}, True, False),
    "masks": ({}, False, True),
    "window": (dict(window=4), False, False),
    "all": (dict(qkv_bias=True, qk_norm=True, tied=True, window=5, **SCALED), True, True),
}
END = 7   # ends a document in these tests


def problem(model, documents, masks, seed=1, shape=(2, 13)):
    """arch, weights away from symmetry (biases and norms too), and a batch"""
    a = ref.configure({"model": {**BASE, **model}}).model
    r = np.random.default_rng(seed)
    weights = {n: w + 0.2 * r.standard_normal(w.shape) for n, w in ref.initial_weights(a, seed).items()}
    ids, target = r.integers(0, a.vocab, (2, *shape))
    if documents:
        ids[ids == END] = 0
        ids[:, [3, 4, 9]] = END
    if masks:
        target[r.random(shape) < 0.3] = -1
    return a, weights, (ids, target, ref.document_starts(ids, END) if documents else np.zeros_like(ids))


def slope(a, weights, batch, name, d, h=1e-4):
    """Derivative of the loss along d in tensor NAME: five points, error of order h^4"""
    def loss(s):
        return ref.Model(a, {**weights, name: weights[name] + s * h * d}).run(*batch)[0]
    return (8 * (loss(1) - loss(-1)) - (loss(2) - loss(-2))) / (12 * h)


def finite_differences():
    for label, family in FAMILIES.items():
        a, weights, batch = problem(*family)
        model = ref.Model(a, weights)
        model.run(*batch)
        r, worst = np.random.default_rng(2), (0.0, "")
        for name, g in model.g.items():
            for _ in range(2):
                d = r.standard_normal(g.shape)   # <g, d> is of the size of |g|
                error = abs(slope(a, weights, batch, name, d) - (g * d).sum()) / np.linalg.norm(g)
                worst = max(worst, (error, name))
        ok(worst[0] < 1e-6, "%s: %d tensors, worst relative error %.1e (%s)" % (label, len(model.g), *worst))


def attention_laws():
    a, w, (ids, target, doc) = problem({}, True, False)
    def logits(ids, doc, arch=a):
        model = ref.Model(arch, w)
        model.run(ids, target[:len(ids), :ids.shape[1]], doc)
        return model.logits
    whole, changed = logits(ids, doc), ids.copy()
    changed[:, 8] = (ids[:, 8] + 1) % END
    later = logits(changed, doc)
    same = (whole == later).all(-1)
    ok(same[:, :8].all() and not same[:, 8:10].any() and same[:, 10:].all(),
       "a token changes nothing before it, what follows in its document, and nothing in the next")
    part = logits(ids[:, 5:10], doc[:, 5:10] * 0)
    ok(abs(part - whole[:, 5:10]).max() < 1e-13, "a document inside a sequence is the document alone")
    ok(ref.document_starts(ids, END)[0].tolist() == [0, 0, 0, 0, 4, 5, 5, 5, 5, 5, 10, 10, 10],
       "the end token belongs to the document that it ends")
    seen = ops.visible(np.zeros((1, 6), int), 3)[0].sum(1)
    ok(seen.tolist() == [1, 2, 3, 3, 3, 3], "a window of 3 is 3 keys, the query's own with them")
    flat = logits(ids, doc * 0, ref.configure({"model": {**BASE, "window": 50}}).model)
    ok((flat == logits(ids, doc * 0)).all(), "a window longer than the sequence is none")


def rope_laws():
    f = ops.rope_frequencies(64, 5e5, (8, 1, 4, 8192))
    plain = ops.rope_frequencies(64, 5e5)
    wave = 2 * np.pi / plain
    between = (wave > 2048) & (wave < 8192)
    smooth = (8192 / wave - 1) / 3   # as the model's authors write it
    ok((f[wave < 2048] == plain[wave < 2048]).all() and np.allclose(f[wave > 8192] * 8, plain[wave > 8192], 1e-14)
       and np.allclose(f[between], ((1 - smooth) * plain / 8 + smooth * plain)[between], 1e-14) and between.sum() > 1,
       "three regions of scaled frequencies")
    ok(np.ptp([ops.rope_frequencies(64, 5e5, (x, 1, 4, 8192)) @ np.ones(32) for x in (8, 32)]) > 0, "the factor matters")
    x = np.zeros((1, 4096, 1, 2))
    x[..., 0] = 1
    y, back = ops.rope(x, np.arange(4096)[None], np.ones(1))
    ok(abs(y[0, 4095, 0] - (-0.0660, -0.9978)).max() < 1e-4 and abs(back(y)[0] - x).max() < 1e-12,
       "cos (4095) is -0.0660, and back is the inverse")
    r = np.random.default_rng(3)
    q, k = r.standard_normal((2, 1, 1, 1, 8))
    freq, dot = ops.rope_frequencies(8, 1e4), []
    for at in (0, 1000):
        dot.append((ops.rope(q, np.array([[at + 5]]), freq)[0] * ops.rope(k, np.array([[at]]), freq)[0]).sum())
    ok(abs(dot[0] - dot[1]) < 1e-12, "scores depend on the distance alone")


def loss_laws():
    r = np.random.default_rng(4)
    z, target = r.standard_normal((12, 9)), r.integers(0, 9, 12)
    loss, back = ops.cross_entropy(z, target)
    ok(abs(back()[0].sum(-1)).max() < 1e-14 and abs(ops.cross_entropy(z + 1000, target)[0] - loss) < 1e-10,
       "rows of the gradient sum to 0; a shift changes nothing")
    c, data = tiny(train=dict(global_batch=6, micro_batch=6), mask=True)
    trainer = ref.Trainer(c, data)
    whole, loss, tokens = trainer.gradient(1)
    errors = []
    for size in (1, 2, 4):
        c.train.micro_batch = size
        parts, same, n = trainer.gradient(1)
        errors += [abs(same - loss) / loss] + [ref.apart(whole[x], parts[x]) for x in whole]
        ok(n == tokens, f"{n} valid tokens with micro-batches of {size}")
    ok(max(errors) < 1e-12, "how the batch is cut changes nothing, though sequences have unequal counts")


def optimizer_laws():
    c, data = tiny(model=dict(qkv_bias=True), optimizer=dict(lr=0.1), schedule=dict(type="constant", warmup=0))
    trainer = ref.Trainer(c, data)
    trainer.p = {n: p + 0.5 for n, p in trainer.p.items()}
    before = {n: p.copy() for n, p in trainer.p.items()}
    for step in range(1, 11):
        trainer.apply({n: 0 * p for n, p in trainer.p.items()}, step, 1)
    ok(all((abs(p / before[n] - 0.904382) < 5e-7).all() if n.endswith(("proj.weight", "tokens.weight", "head.weight"))
           else (p == before[n]).all() for n, p in trainer.p.items()),
       "ten steps without gradient: matrices x 0.904382, norms and biases as they were")
    p = np.zeros(1)
    ops.adamw(p, np.array([-3e-3]), np.zeros(1), np.zeros(1), 1, 0.1, 0.9, 0.95, 1e-8, 0.0)
    ok(abs(p[0] - 0.1) < 1e-6, "the first step has the length of the learning rate")
    ok(ops.clip_scale(2.0, 0.5) == 0.25 and ops.clip_scale(0.4, 0.5) == 1 and ops.clip_scale(9.0, 0) == 1, "clipping")
    lr = lambda kind, **k: [ops.learning_rate(s, kind, 1e-3, 10, 50, **k) for s in range(1, 61)]
    ok(all(np.allclose(lr(k)[:10], np.arange(1, 11) * 1e-4, 1e-12) for k in ("constant", "linear", "cosine", "wsd")),
       "warm-up of 10: 1e-4 .. 1e-3")
    line, cosine, wsd = lr("linear", min_lr=1e-4), lr("cosine", min_lr=1e-4), lr("wsd", min_lr=1e-4, decay=8)
    ok(np.allclose([line[29], cosine[29], wsd[41], wsd[45], lr("constant")[59]], [5.5e-4, 5.5e-4, 1e-3, 5.5e-4, 1e-3]),
       "half-way values")
    ok(all(np.allclose(x[49:], 1e-4) and max(x) == 1e-3 for x in (line, cosine, wsd)), "the end is min_lr from step `steps` on")


def tiny(train={}, model={}, mask=False, **sections):
    c = ref.configure(dict(model={**BASE, "init_std": 0.02, **model}, train=dict(seq_len=16, **train),
                           **{"data": dict(valid_fraction=0.0), "schedule": dict(warmup=2, steps=20), **sections}))
    r = np.random.default_rng(5)
    tokens = np.cumsum(r.integers(1, 3, 900)) % BASE["vocab"]
    return c, ref.Data(c, tokens, (r.random(900) < r.random(900)).astype(np.uint8) if mask else None, END)


def training_laws():
    c, data = tiny(train=dict(steps=20, global_batch=4, micro_batch=4), optimizer=dict(lr=1e-2))
    trainer = ref.Trainer(c, data)
    losses = [trainer.train_step()[0]["loss"] for _ in range(20)]
    ok(losses[0] > 3.3 and losses[-1] < 0.75 * losses[0], "20 steps bring the loss from %.2f to %.2f" % (losses[0], losses[-1]))
    c, data = tiny(train=dict(global_batch=2, micro_batch=2), debug=dict(nan_step=2))
    trainer = ref.Trainer(c, data)
    trainer.train_step()
    before = {n: p.copy() for n, p in trainer.p.items()}
    record = trainer.train_step()[0]
    ok(record["skipped"] and trainer.updates == 1 and all((before[n] == p).all() for n, p in trainer.p.items()),
       "a step with a NaN changes nothing")
    ok(not trainer.train_step()[0]["skipped"] and trainer.updates == 2, "and the next goes on")
    seen = np.concatenate([data.batch(j, 1)[0] for j in range(2 * data.n)])
    first = {tuple(s) for s in seen[:data.n]}
    ok(data.n == 899 // 16 and first == {tuple(s) for s in seen[data.n:]} and (seen[:data.n] != seen[data.n:]).any(),
       "each epoch has each window once, in another order")
    c.data.document_mask, c.train.seq_len = True, 10
    tail = np.array([1, 1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1])
    ids, target, doc = ref.Data(c, np.array([5, END, 6, 8, END, 9, 1, 2, 3, 4, 11, 12, 13]), tail, END).batch(0, 1)
    ok(ids.tolist() == [[5, END, 6, 8, END, 9, 1, 2, 3, 4]] and target.tolist() == [[END, -1, 8, END, -1, 1, 2, 3, -1, 11]]
       and doc.tolist() == [[0, 0, 2, 2, 2, 5, 5, 5, 5, 5]], "a sample: targets are the next tokens, and the mask is theirs")
    c.data.valid_fraction, c.train.seq_len = 0.1, 16
    ok(ref.Data(c, np.arange(901) % 29).n == 50, "the last windows are kept for validation")
    w = ref.initial_weights(c.model, 1)
    ok(abs(w["model.layers.0.mlp.down_proj.weight"].std() / 0.01 - 1) < 0.1 and abs(w["lm_head.weight"].std() / 0.02 - 1) < 0.1,
       "initial deviations")


def rounding():
    x = np.array([1.0, 1 + 2**-8, 1 + 2**-7, 1 + 3 * 2**-8, -2.5, 0.0, np.inf, np.nan])
    ok(np.array_equal(ops.bf16(x), [1, 1, 1 + 2**-7, 1 + 2**-6, -2.5, 0, np.inf, np.nan], equal_nan=True),
       "ties of bf16 go to even")
    r = np.random.default_rng(6)
    three = ops.ideal(ops.linear, r.standard_normal((64, 32)), r.standard_normal((16, 32)))[:3]
    errors = [e / ops.rms(exact) for exact, _, e in three]
    ok(all(5e-4 < e < 5e-3 for e in errors), "bf16 costs a GEMM " + ", ".join("%.1e" % e for e in errors))
    a, w, batch = problem({}, False, False)
    exact, rounded = ref.Model(a, w), ref.Model(a, w, ops.bf16)
    exact.run(*batch), rounded.run(*batch)
    errors = [ref.apart(exact.g[n], rounded.g[n]) for n in w]
    ok(1e-3 < min(errors) and max(errors) < 0.1, "and a model's gradients %.1e to %.1e" % (min(errors), max(errors)))


def files():
    text = """# a run
model: {dim: 16, layers: 2, heads: 4, kv_heads: 2, ffn: 24, vocab: 29, rope_scaling: {factor: 8, original: 64}}
data:
  train: "a: #b.h5"  # comment
  document_mask: true
train:
  seq_len: 16
  seed: 3
schedule: {type: wsd}
optimizer:
    lr: 1e-3
"""
    c = ref.configure(ref.parse_yaml(text))
    ok(c.model.scaling == [8, 1, 4, 64] and c.data.train == "a: #b.h5" and c.data.document_mask is True and c.optimizer.lr == 1e-3
       and c.schedule.type == "wsd" and c.train.seed == 3 and c.schedule.min_lr == 1e-4, "a configuration is read")
    with tempfile.TemporaryDirectory() as d:
        at = lambda n: os.path.join(d, n)
        with open(at("c.yaml"), "w") as f:
            f.write(text)
        np.save(at("t.npy"), np.arange(400) % 29)
        for out in "ab":
            ref.run(ref.argparse.Namespace(config=at("c.yaml"), tokens=at("t.npy"), steps=2, out=at(out), ideal=out == "a"))
        w = np.fromfile(at("a/init/model.layers.1.mlp.up_proj.weight.f32"), np.float32)
        ok((w == rng.weights(3, "model.layers.1.mlp.up_proj.weight", (24, 16), 0.02).ravel()).all(), "initial weights are dumped")
        ok(ref.metrics(at("a")) == ref.metrics(at("b")) and ref.metrics(at("a"))[2]["lr"] == 2e-4,
           "metrics are written, the same each time")
        ok([len(os.listdir(at(f"a/{k}"))) for k in ("grad", "ideal", "final")] == [21] * 3, "and gradients")


def main():
    for test in (finite_differences, attention_laws, rope_laws, loss_laws, optimizer_laws, training_laws, rounding, files):
        test()
    print(f"1..{len(points)}")
    return 0 if all(points) else 1
