#!/usr/bin/env python3
"""One step of the program (peer_step) against transformers with the same weights and batch; TAP.

  peer_step.py DIR...     each made by peer_step; without torch or transformers: exit status 77
  peer_step.py --have     exit status 0 if both are here, else 77

On the GPU if torch sees one. Transformers computes in fp64 (its norms and angles in fp32) and, where the run was in bf16, also in bf16.
fp32: loss, gradient norm, logits, each gradient and the change of each weight by AdamW within 1e-4 of fp64 (relative L2).
bf16: logits and all gradients together no further from fp64 than 1.05 times PyTorch's own bf16, each gradient 1.5 times."""
import os
import sys

try:
    import torch
    import transformers
except ImportError:
    sys.exit(77)
import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import reference

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
points = []


def ok(good, text):
    points.append(bool(good))
    print(("" if good else "not ") + f"ok {len(points)} - {text}", flush=True)


def model_of(a, dtype, weights):
    family = "Qwen3" if a.qk_norm else "Qwen2" if a.qkv_bias else "Llama"
    given = dict(vocab_size=a.vocab, hidden_size=a.dim, intermediate_size=a.ffn, num_hidden_layers=a.layers, num_attention_heads=a.heads,
                 num_key_value_heads=a.kv_heads, head_dim=a.head_dim, rms_norm_eps=a.norm_eps, rope_theta=a.rope_theta,
                 tie_word_embeddings=a.tied, attention_bias=False, max_position_embeddings=4096)
    factor, low, high, original = a.scaling
    if factor:
        given["rope_scaling"] = dict(rope_type="llama3", factor=factor, low_freq_factor=low, high_freq_factor=high,
                                     original_max_position_embeddings=int(original), rope_theta=a.rope_theta)
    config = getattr(transformers, family + "Config")(**given)
    config._attn_implementation = "sdpa" if dtype == torch.bfloat16 else "eager"
    model = getattr(transformers, family + "ForCausalLM")(config).to(device)
    with torch.no_grad():
        own = dict(model.named_parameters())
        if set(own) != set(weights):
            raise SystemExit(f"other tensors: {sorted(set(own) ^ set(weights))[:4]}")
        model = model.to(dtype)
        for n, p in model.named_parameters():
            p.copy_(torch.from_numpy(weights[n]).to(device))
    return model


def tensors(folder, names, kind):
    flat, at, out = np.fromfile(os.path.join(folder, kind + ".f32"), np.float32), 0, {}
    for n, rows, cols in names:
        size = rows * max(cols, 1)
        out[n] = flat[at:at + size].reshape((rows, cols) if cols else (rows,))
        at += size
    assert at == flat.size
    return out


def forward_backward(model, ids, target):
    """Logits of the first sequence; loss and gradients of the mean over valid targets."""
    logits = model(input_ids=ids, use_cache=False).logits
    wide = logits.double() if logits.dtype == torch.float64 else logits.float()
    loss = torch.nn.functional.cross_entropy(wide.flatten(0, 1), target.flatten(), ignore_index=-1)
    loss.backward()
    return logits[0].detach().double().cpu().numpy(), loss.item(), {n: p.grad.double().cpu().numpy() for n, p in model.named_parameters()}


def adamw(model, c):
    o = c.optimizer
    params = list(model.parameters())
    norm = torch.nn.utils.clip_grad_norm_(params, o.clip if o.clip else 1e30).item()
    lr = reference.learning_rate(1, c.schedule.type, o.lr, c.schedule.warmup, c.schedule.steps, c.schedule.min_lr, c.schedule.decay)
    groups = [dict(params=[p for p in params if p.ndim > 1], weight_decay=o.weight_decay),
              dict(params=[p for p in params if p.ndim == 1], weight_decay=0.0)]
    torch.optim.AdamW(groups, lr=lr, betas=(o.beta1, o.beta2), eps=o.eps).step()
    return norm


def far(a, b):
    return float(np.linalg.norm(np.asarray(a, np.float64) - b) / max(np.linalg.norm(b), 1e-30))


def joined(x, names):
    return np.concatenate([np.asarray(x[n], np.float64).ravel() for n in names])


def judge(folder):
    c = reference.load_config(os.path.join(folder, "config.yaml"))
    names = [(n, int(r), int(k)) for n, r, k in (line.split() for line in open(os.path.join(folder, "tensors.txt")))]
    init, grad, final = (tensors(folder, names, k) for k in ("init", "grad", "final"))
    keys = [n for n, _, _ in names]
    seq = c.train.seq_len
    ids, target = (torch.from_numpy(np.fromfile(os.path.join(folder, k + ".i32"), np.int32).astype(np.int64)).view(-1, seq).to(device)
                   for k in ("ids", "target"))
    logits = np.fromfile(os.path.join(folder, "logits.f32"), np.float32).reshape(seq, -1)
    loss, norm = map(float, open(os.path.join(folder, "loss.txt")).read().split())
    name = os.path.basename(os.path.normpath(folder))
    exact = model_of(c.model, torch.float64, init)
    l64, loss64, g64 = forward_backward(exact, ids, target)
    if c.train.dtype == "bf16":
        lb, _, gb = forward_backward(model_of(c.model, torch.bfloat16, init), ids, target)
        ours, theirs = (joined({n: x[n] - g64[n] for n in keys}, keys) for x in (grad, gb))
        whole = np.linalg.norm(ours) / np.linalg.norm(theirs)
        worst = max((np.linalg.norm(grad[n] - g64[n]) / np.linalg.norm(gb[n] - g64[n]), n) for n in keys)
        out = np.linalg.norm(logits - l64) / np.linalg.norm(lb - l64)
        ok(whole <= 1.05 and out <= 1.05 and worst[0] <= 1.5, "%s: errors in units of PyTorch's bf16: gradients %.2f (at most %.2f, %s), logits %.2f" % (
            name, whole, worst[0], worst[1].replace("model.", ""), out))
        return
    worst = max((far(grad[n], g64[n]), n) for n in keys)
    norm64 = adamw(exact, c)
    after = {n: p.detach().double().cpu().numpy() for n, p in exact.named_parameters()}
    moved = max((far(final[n].astype(np.float64) - init[n], after[n] - init[n]), n) for n in keys)
    figures = far(logits, l64), abs(loss / loss64 - 1), abs(norm / norm64 - 1), worst[0], moved[0]
    ok(max(figures) <= 1e-4, "%s: logits %.1e, loss %.1e, norm %.1e, gradients %.1e, AdamW's step %.1e (%s)" % (
        name, *figures, moved[1].replace("model.", "")))


def main():
    if sys.argv[1:] == ["--have"]:
        return 0
    print(f"# transformers {transformers.__version__}, torch {torch.__version__} on {device}")
    for folder in sys.argv[1:]:
        try:
            judge(folder)
        except Exception as e:   # one model must not hide the others
            ok(False, f"{os.path.basename(folder)}: {type(e).__name__}: {e}")
    print(f"1..{len(points)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
