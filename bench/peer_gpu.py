#!/usr/bin/env python3
"""The peer of b_gpu_step.sh: Llama's shape in PyTorch on GPUs, as people train it: FSDP2 (fully_shard) in bf16 with fp32 masters and reductions, torch.compile a layer, cuDNN's
attention where it is offered, fused AdamW, clipping, the loss read each step.

  peer_gpu.py CONFIG SEQUENCES LENGTH RECOMPUTE STEPS                                     one GPU
  torchrun --nproc-per-node N peer_gpu.py CONFIG SEQUENCES LENGTH RECOMPUTE STEPS         N GPUs, SEQUENCES each

Random tokens, fixed seed. RECOMPUTE 1: each layer's activations are made again. Prints one JSON record: tok_s over all GPUs (the median step, the first three left out), peak GiB,
parameters, the first and the last loss."""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

SHAPES = {  # width, layers, heads, KV heads, MLP width, vocabulary
    "gpt124m": (768, 12, 12, 12, 2048, 50304),
    "l1b": (2048, 16, 32, 8, 8192, 128256),
    "l7b": (4096, 32, 32, 32, 11008, 32000),
    "l8b_8l": (4096, 8, 32, 8, 14336, 128256),
    "tiny": (64, 2, 4, 2, 128, 320),
}


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-5)


def rotate(x, cos, sin):
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, width, heads, kv_heads, mlp):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.norm1, self.norm2 = Norm(width), Norm(width)
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.size, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 2 * mlp, bias=False)
        self.down = nn.Linear(mlp, width, bias=False)

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (-1, self.size))
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=2)
        q, k, v = (t.transpose(1, 2) for t in (rotate(q, cos, sin), rotate(k, cos, sin), v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        gate, up = self.up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Head(nn.Module):
    def __init__(self, width, vocabulary):
        super().__init__()
        self.norm, self.out = Norm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x, target):
        return F.cross_entropy(self.out(self.norm(x)).float().flatten(0, 1), target.flatten())


class Model(nn.Module):
    def __init__(self, shape, recompute):
        super().__init__()
        width, layers, heads, kv_heads, mlp, vocabulary = shape
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads, kv_heads, mlp) for _ in range(layers))
        self.head = Head(width, vocabulary)
        self.recompute = recompute

    def forward(self, tokens, target, cos, sin):
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, cos, sin, use_reentrant=False) if self.recompute else layer(x, cos, sin)
        return self.head(x, target)


def build(shape, recompute, device):
    with torch.device(device):
        model = Model(shape, recompute)
    for p in model.parameters():
        if p.dim() > 1:
            nn.init.normal_(p, 0, 0.02)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for i, layer in enumerate(model.layers):
        if device == "cuda":
            model.layers[i] = torch.compile(layer)
        fully_shard(model.layers[i], mp_policy=policy)
    if device == "cuda":
        model.head = torch.compile(model.head)
    fully_shard(model, mp_policy=policy)
    return model


def main():
    name, sequences, length, recompute, steps = sys.argv[1], *map(int, sys.argv[2:6])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for k, v in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29533"}.items():
        os.environ.setdefault(k, v)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    torch.manual_seed(0)   # the same weights on each rank before they are shared out
    model = build(SHAPES[name], bool(recompute), device)
    torch.manual_seed(1 + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    half = SHAPES[name][0] // SHAPES[name][2] // 2
    angle = torch.outer(torch.arange(length, device=device), 500000.0 ** -(torch.arange(half, device=device) / half))[None, :, None]
    cos, sin = angle.cos(), angle.sin()
    seconds, losses = [], []
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], set_priority=True):
        for _ in range(steps):
            x = torch.randint(SHAPES[name][5], (sequences, length + 1), device=device)
            dist.barrier()
            wait()
            start = time.perf_counter()
            loss = model(x[:, :-1].contiguous(), x[:, 1:].contiguous(), cos, sin)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            wait()
            seconds.append(time.perf_counter() - start)
    if rank == 0:
        peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0
        print(json.dumps({"config": name, "gpus": ranks, "tok_s": round(ranks * sequences * length / statistics.median(seconds[3:])), "peak_gib": round(peak, 1),
                          "params": sum(p.numel() for p in model.parameters()), "loss": [round(losses[0], 4), round(losses[-1], 4)]}), flush=True)
    dist.destroy_process_group()


main()
