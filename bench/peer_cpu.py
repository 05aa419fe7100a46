#!/usr/bin/env python3
"""The peer of b_step.sh: the same Llama in PyTorch on the CPU, from the same initial weights and on the same tokens.

  peer_cpu.py MODEL.yaml --init DIR --tokens FILE.u16 --steps N [--batch 8] [--seq 512] [--type fp32|autocast|bf16] [--compile] [--threads 2]

DIR holds the initial weights as pretrain's debug.dump writes them. The batch of each step is the first BATCH windows of the file, so that the order in which
pretrain takes them does not matter. Prints a line a step: step, loss, gradient norm, seconds, CPU seconds. Types: fp32; autocast: fp32 weights, bf16 where
torch.autocast says so; bf16: bf16 weights and gradients with fp32 masters that the optimizer updates."""
import argparse
import os
import sys
import time


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("--init", required=True)
    p.add_argument("--tokens", required=True)
    p.add_argument("--steps", type=int, required=True)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--seq", type=int, default=512)
    p.add_argument("--lr", type=float, default=3e-4)
    p.add_argument("--type", default="fp32", choices=["fp32", "autocast", "bf16"])
    p.add_argument("--compile", action="store_true")
    p.add_argument("--threads", type=int, default=2)
    return p.parse_args()


ARGS = arguments()
os.environ["OMP_NUM_THREADS"] = str(ARGS.threads)
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Block(nn.Module):
    def __init__(self, dim, heads, ffn):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.norm1, self.norm2 = Norm(dim), Norm(dim)
        self.qkv, self.o = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.gate_up, self.down = nn.Linear(dim, 2 * ffn, bias=False), nn.Linear(ffn, dim, bias=False)

    def forward(self, x, cos, sin):
        b, t, d = x.shape
        q, k, v = (y.transpose(1, 2) for y in self.qkv(self.norm1(x)).view(b, t, 3 * self.heads, self.head_dim).chunk(3, 2))
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.embed = nn.Embedding(m["vocab"], m["dim"])
        self.layers = nn.ModuleList(Block(m["dim"], m["heads"], m["ffn"]) for _ in range(m["layers"]))
        self.norm, self.head = Norm(m["dim"]), nn.Linear(m["dim"], m["vocab"], bias=False)

    def forward(self, ids, target, cos, sin):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.cross_entropy(self.head(self.norm(x)).view(-1, self.head.out_features).float(), target.view(-1))


def model_file(path):
    rows = (line.split("#")[0].split(":") for line in open(path) if ":" in line.split("#")[0])
    return {k.strip(): float(v) if "." in v or "e" in v else int(v) for k, v in rows}


def load(model, m):
    def get(name, *shape):
        return torch.from_numpy(np.fromfile(os.path.join(ARGS.init, name + ".f32"), "<f4").reshape(shape).copy())

    d, f, v = m["dim"], m["ffn"], m["vocab"]
    with torch.no_grad():
        model.embed.weight.copy_(get("model.embed_tokens.weight", v, d))
        model.head.weight.copy_(get("lm_head.weight", v, d))
        for i, b in enumerate(model.layers):
            at = f"model.layers.{i}."
            b.qkv.weight.copy_(torch.cat([get(at + f"self_attn.{x}_proj.weight", d, d) for x in "qkv"]))
            b.o.weight.copy_(get(at + "self_attn.o_proj.weight", d, d))
            b.gate_up.weight.copy_(torch.cat([get(at + f"mlp.{x}_proj.weight", f, d) for x in ("gate", "up")]))
            b.down.weight.copy_(get(at + "mlp.down_proj.weight", d, f))


class Masters:
    """fp32 copies of bf16 weights: gradients are widened into them, the weights are rounded from them."""

    def __init__(self, params):
        self.params = params
        self.masters = [p.detach().float() for p in params]
        for m in self.masters:
            m.grad = torch.zeros_like(m)

    def before(self):
        for p, m in zip(self.params, self.masters):
            m.grad.copy_(p.grad)

    def after(self):
        with torch.no_grad():
            for p, m in zip(self.params, self.masters):
                p.copy_(m)


def main():
    torch.set_num_threads(ARGS.threads)
    m = model_file(ARGS.model)
    model = Llama(m)
    load(model, m)
    params, masters = list(model.parameters()), None
    if ARGS.type == "bf16":
        weights = [p.detach().clone() for p in params]
        model.bfloat16()
        params = list(model.parameters())
        masters = Masters(params)
        for w, x in zip(weights, masters.masters):
            x.copy_(w)
    trained = masters.masters if masters else params
    groups = [dict(params=[p for p in trained if p.dim() > 1], weight_decay=0.1), dict(params=[p for p in trained if p.dim() == 1], weight_decay=0.0)]
    opt = torch.optim.AdamW(groups, lr=ARGS.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)
    hd, t = m["dim"] // m["heads"], ARGS.seq
    freq = torch.outer(torch.arange(t, dtype=torch.float64), float(m["rope_theta"]) ** (-torch.arange(0, hd, 2, dtype=torch.float64) / hd))
    freq = torch.cat((freq, freq), -1)
    cos, sin = freq.cos().to(params[0].dtype), freq.sin().to(params[0].dtype)
    tokens = torch.from_numpy(np.fromfile(ARGS.tokens, "<u2").astype(np.int64))
    ids = torch.stack([tokens[i * t:i * t + t] for i in range(ARGS.batch)])
    target = torch.stack([tokens[i * t + 1:i * t + t + 1] for i in range(ARGS.batch)])
    run = torch.compile(model) if ARGS.compile else model
    print(f"# PyTorch {torch.__version__}, {ARGS.type}, {'compiled' if ARGS.compile else 'eager'}, {torch.get_num_threads()} threads, "
          f"{sum(p.numel() for p in params)} parameters", flush=True)
    for step in range(1, ARGS.steps + 1):
        began, cpu = time.perf_counter(), time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=ARGS.type == "autocast"):
            loss = run(ids, target, cos, sin)
        loss.backward()
        if masters:
            masters.before()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        opt.step()
        if masters:
            masters.after()
        model.zero_grad(set_to_none=True)
        value = loss.item()
        print(step, f"{value:.6f} {norm.item():.6f} {time.perf_counter() - began:.4f} {time.process_time() - cpu:.4f}", flush=True)


sys.exit(main())
