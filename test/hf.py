#!/usr/bin/env python3
"""Small models in Hugging Face's form for t_hf.sh. With transformers and torch the models, the files and the logits are theirs; without, this program writes the same files and the
logits are those that transformers gave once (test/like/hf_logits.npz; `hf.py keep FILE` makes it anew).

  hf.py make DIR            DIR/NAME/config.json, safetensors, logits.f32 and ids for each model; prints their names
  hf.py near A.f32 B.f32    the largest difference is at most 1e-4
  hf.py same DIR DIR        the same tensors, to the byte; the same fields of config.json that both have
  hf.py reload DIR:DIR ...  transformers loads the second of each pair, and has the tensors of the first
  hf.py ids                 the ids that the logits follow"""
import copy
import json
import os
import struct
import sys

import numpy as np

torch = transformers = None


def judge():
    """transformers, where it is there; it takes long to load."""
    global torch, transformers
    try:
        import torch
        import transformers
    except ImportError:
        transformers = None
    return transformers


VOCAB, N = 131, 24
IDS = [(i * 37 + 11) % VOCAB for i in range(N)]
BASE = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
            rms_norm_eps=1e-5, initializer_range=0.02, hidden_act="silu", attention_dropout=0.0)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
MODELS = {
    "llama": dict(BASE, model_type="llama", architectures=["LlamaForCausalLM"], rope_theta=500000.0, rope_scaling=LLAMA3, tie_word_embeddings=False, head_dim=16),
    "llama-tied": dict(BASE, model_type="llama", architectures=["LlamaForCausalLM"], rope_theta=10000.0, tie_word_embeddings=True, head_dim=16),
    "mistral": dict(BASE, model_type="mistral", architectures=["MistralForCausalLM"], rope_theta=10000.0, sliding_window=9, tie_word_embeddings=False, head_dim=16),
    "qwen2": dict(BASE, model_type="qwen2", architectures=["Qwen2ForCausalLM"], rope_theta=1000000.0, tie_word_embeddings=True, use_sliding_window=False),
    "qwen3": dict(BASE, model_type="qwen3", architectures=["Qwen3ForCausalLM"], rope_theta=1000000.0, tie_word_embeddings=False, head_dim=32, num_key_value_heads=1),
}


def shapes(c):
    d, f, v = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    hd = c.get("head_dim", d // c["num_attention_heads"])
    q, kv = c["num_attention_heads"] * hd, c["num_key_value_heads"] * hd
    out = {"model.embed_tokens.weight": (v, d)}
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        out.update({p + "input_layernorm.weight": (d,), p + "post_attention_layernorm.weight": (d,), p + "self_attn.q_proj.weight": (q, d), p + "self_attn.k_proj.weight": (kv, d),
                    p + "self_attn.v_proj.weight": (kv, d), p + "self_attn.o_proj.weight": (d, q), p + "mlp.gate_proj.weight": (f, d), p + "mlp.up_proj.weight": (f, d),
                    p + "mlp.down_proj.weight": (d, f)})
        if c["model_type"] == "qwen2":
            out.update({p + "self_attn.q_proj.bias": (q,), p + "self_attn.k_proj.bias": (kv,), p + "self_attn.v_proj.bias": (kv,)})
        if c["model_type"] == "qwen3":
            out.update({p + "self_attn.q_norm.weight": (hd,), p + "self_attn.k_norm.weight": (hd,)})
    out["model.norm.weight"] = (d,)
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = (v, d)
    return out


def weights(c):
    """From a formula, so that no library's generator matters: a hash of the tensor's number and the element's."""
    w = {}
    for t, (name, shape) in enumerate(shapes(c).items()):
        x = np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64((t + 1) << 32)
        for k in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9):
            x = (x ^ (x >> np.uint64(29))) * np.uint64(k)
        u = ((x >> np.uint64(40)).astype(np.float64) / 2**23 - 1) * 0.5
        w[name] = (u + (1 if "norm" in name else 0)).astype(np.float32).reshape(shape)
    return w


def put_safetensors(path, w):
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for n, x in w.items():
        head[n] = {"dtype": {"float32": "F32", "uint16": "BF16"}[x.dtype.name], "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(x.tobytes() for x in w.values()))


def get_safetensors(folder):
    index = os.path.join(folder, "model.safetensors.index.json")
    files = sorted(set(json.load(open(index))["weight_map"].values())) if os.path.exists(index) else ["model.safetensors"]
    out = {}
    for name in files:
        data = open(os.path.join(folder, name), "rb").read()
        n = struct.unpack("<Q", data[:8])[0]
        for k, t in json.loads(data[8:8 + n]).items():
            if k != "__metadata__":
                out[k] = (t["dtype"], tuple(t["shape"]), data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
    return out


def model_of(c, w):
    c = copy.deepcopy(c)   # the library writes into what it is given
    kind = c.pop("architectures")[0]
    cls = getattr(transformers, kind)
    model = cls(cls.config_class(**{k: v for k, v in c.items() if k != "model_type"})).float().eval()
    missing, unexpected = model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in w.items()}, strict=False)
    assert not unexpected and all(m == "lm_head.weight" for m in missing), (missing, unexpected)
    return model


def logits_of(model):
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0].float().numpy()


def make(folder):
    here = os.path.dirname(os.path.abspath(__file__))
    kept = np.load(os.path.join(here, "like", "hf_logits.npz"))
    judge()
    for name, c in MODELS.items():
        d = os.path.join(folder, name)
        os.makedirs(d)
        w = weights(c)
        if transformers:
            model = model_of(c, w)
            model.save_pretrained(d, max_shard_size="150KB" if name == "qwen3" else "5GB")
            logits_of(model).tofile(os.path.join(d, "logits.f32"))
        else:
            json.dump(dict(c, torch_dtype="float32"), open(os.path.join(d, "config.json"), "w"))
            put_safetensors(os.path.join(d, "model.safetensors"), w)
            kept[name].astype(np.float32).tofile(os.path.join(d, "logits.f32"))
        print(name)
    d = os.path.join(folder, "bf16")
    os.makedirs(d)
    c = MODELS["llama"]
    json.dump(dict(c, torch_dtype="bfloat16"), open(os.path.join(d, "config.json"), "w"))
    put_safetensors(os.path.join(d, "model.safetensors"), {k: (v.view(np.uint32) >> 16).astype(np.uint16) for k, v in weights(c).items()})


def near(a, b):
    x, y = np.fromfile(a, np.float32), np.fromfile(b, np.float32)
    far = float(np.abs(x - y).max()) if x.size == y.size and x.size else float("inf")
    print(f"largest difference {far:.2g} of logits up to {float(np.abs(y).max()):.2g}")
    return far <= 1e-4


def same(a, b):
    x, y = get_safetensors(a), get_safetensors(b)
    bad = [k for k in set(x) | set(y) if x.get(k) != y.get(k)]
    c, d = (json.load(open(os.path.join(f, "config.json"))) for f in (a, b))
    unused = {"transformers_version"} | ({"max_window_layers"} if not c.get("use_sliding_window") else set())
    for k in set(c) & set(d) - unused:
        bad += [f"{k} {c[k]} {d[k]}"] if c[k] != d[k] else []
    print(f"{len(x)} tensors" + (", different: " + ", ".join(sorted(bad)) if bad else ""))
    return not bad


def reload(*pairs):
    judge()
    bad = []
    for pair in pairs:
        a, b = pair.split(":")
        x = get_safetensors(a)
        for k, t in transformers.AutoModelForCausalLM.from_pretrained(b).float().state_dict().items():
            bad += [] if t.numpy().tobytes() == x[k if k in x else "model.embed_tokens.weight"][2] else [f"{b}: {k}"]
    print(", ".join(bad) or f"{len(pairs)} models")
    return not bad


def keep(path):
    judge()
    np.savez_compressed(path, **{n: logits_of(model_of(c, weights(c))) for n, c in MODELS.items()})


what, args = sys.argv[1], sys.argv[2:]
if what == "ids":
    print(",".join(map(str, IDS)))
elif what == "with":
    judge()
    print(f"transformers {transformers.__version__}" if transformers else "no transformers: kept logits")
else:
    sys.exit(0 if {"make": make, "near": near, "same": same, "reload": reload, "keep": keep}[what](*args) in (None, True) else 1)
