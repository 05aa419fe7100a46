#!/usr/bin/env python3
# Published results against the planner:  b_plan.py [pretrain]      (build folder: src/pretrain)
# For each system one efficiency, a factor on all computing time (`system` of the machine file), is fitted on half of its rows so that the product of
# predicted / published is one over them; the other half is then predicted with it. Nothing else is fitted. All rows are shown, the misses too.
# Where a published configuration has what this program has not, the row says what stands for it.
import math, os, re, subprocess, sys, tempfile

pretrain = sys.argv[1] if len(sys.argv) > 1 else 'src/pretrain'
share = os.environ.get('TESSERA_SHARE') or os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'share')
os.environ['TESSERA_SHARE'] = share

def gpt(dim, layers, heads, vocab, tied=False):
    """A GPT as a Llama of the same parameters: 4 h of GELU is 8/3 h of SwiGLU."""
    return (f'--model.dim {dim} --model.layers {layers} --model.heads {heads} --model.ffn {round(dim * 8 / 3 / 64) * 64} --model.vocab {vocab}'
            f' --model.tied {str(tied).lower()}')

SAC = '--recompute.mode selective --recompute.keep qkv,attention,residual'   # TorchTitan's "op": every second product is done again, attention is kept
def titan(model, seq, each, gpus, ac): return f'--model {model} --gpus {gpus} --train.seq_len {seq} --train.micro_batch {each} --train.global_batch {each * gpus} {ac}'
LAYER, FULL, NONE = '--recompute.mode full --recompute.every 2', '--recompute.mode full', '--recompute.mode none'

def fms(model, gpus, each, ac, nodes=0):
    """bf16 gradients on the wire (its policies/mixed_precision.py). 7B and 13B: HYBRID_SHARD over nodes, the rest FULL_SHARD (its docs/configurations.md)."""
    cut = f'--mesh.dp_replicate {nodes} --sharding.strategy HYBRID_SHARD' if nodes else '--sharding.strategy FULL_SHARD'
    return (f'{model} --gpus {gpus} --train.seq_len 4096 --train.micro_batch {each} --train.global_batch {each * gpus} {ac} {cut}'
            ' --sharding.grad_dtype bf16 --sharding.reduce_dtype bf16')

def megatron(dim, layers, heads, tp, pp, batch):
    """Seq 4096, vocabulary 131,072, dp 48, distributed optimizer. --tp-comm-overlap. Micro-batch and virtual stages are not published; one rule for all rows: without
    a pipeline the 4 sequences of a data rank at once, which fit, with one 1 sequence and a layer a virtual stage (23 layers a stage, 119B, cannot be cut otherwise)."""
    each = layers // pp
    chunks = each if pp > 1 else 1
    cut = f'--pipeline.schedule interleaved --pipeline.chunks {chunks}' if chunks > 1 else ''
    return (f'{gpt(dim, layers, heads, 131072)} --gpus {48 * tp * pp} --mesh.tp {tp} --mesh.pp {pp} --mesh.order tp-dp-pp --sharding.strategy SHARD_OPT'
            f' --train.seq_len 4096 --train.micro_batch {4 if pp == 1 else 1} --train.global_batch {batch} {cut} --mesh.tp_overlap 2')

def rate(tflops, dim, layers, vocab=131072, seq=4096):
    """Megatron's teraFLOP/s a GPU to tokens/s: 72 L h^2 + 12 L h s + 6 V h a token, all pairs of attention counted."""
    return tflops * 1e12 / (72 * layers * dim ** 2 + 12 * layers * dim * seq + 6 * vocab * dim)

M = [('1.7B', 2048, 24, 16, 1, 1, 192, 408.8), ('7.1B', 4096, 30, 32, 2, 1, 192, 465.9), ('16B', 6144, 32, 48, 4, 1, 192, 489.1), ('32B', 7168, 48, 56, 8, 1, 192, 459.6),
     ('70B', 8192, 84, 64, 8, 2, 384, 419.7), ('119B', 10240, 92, 80, 8, 4, 768, 420.5), ('177B', 12288, 96, 96, 8, 6, 1152, 432.8), ('314B', 16384, 96, 128, 8, 8, 1536, 474.4),
     ('462B', 18432, 112, 144, 8, 16, 3072, 459.9)]
LLMC = '--train.seq_len 1024 --sharding.strategy SHARD_OPT --sharding.grad_dtype bf16 --sharding.reduce_dtype bf16 '
CODE34 = '--model.dim 8192 --model.layers 48 --model.heads 64 --model.kv_heads 8 --model.ffn 22016 --model.vocab 32000'
# Machine files with other lines where a cluster's are published. fms-fsdp's README: 400 and 800 Gb/s of Ethernet a node, not a GPU; its attention is FlashAttention-2 (PyTorch's), which
# on Hopper reaches 318 forward and 264 backward TFLOP/s (measured on one H200 with PyTorch 2.11), on A100 what the file says.
A100_IBM = ('a100-80g', 'nic: {name: RoCE 400 Gb/s a node, count: 8, bandwidth: 50 Gb/s, share: 0.9, latency: 6 us}')
H100_IBM = ('h100-sxm', 'nic: {name: RoCE 800 Gb/s a node, count: 8, bandwidth: 100 Gb/s, share: 0.9, latency: 6 us}',
            'attention: {forward: 318 TFLOP/s, backward: 264 TFLOP/s, head64: 0.9, half_seq: 256}')
# system, row, machine, published tokens/s a GPU, use (fit, predict, show), options
ROWS = [
  ('TorchTitan 2024, 64 A100', '8B, 8192, selective layer', 'a100-80g', 2904, 'fit', titan('llama3.1-8b', 8192, 1, 64, LAYER)),
  ('TorchTitan 2024, 64 A100', '8B, 8192, selective op', 'a100-80g', 2973, 'predict', titan('llama3.1-8b', 8192, 1, 64, SAC)),
  ('TorchTitan 2024, 64 A100', '70B, 8192, full', 'a100-80g', 331, 'fit', titan('llama3.1-70b', 8192, 1, 64, FULL)),
  ('TorchTitan 2024, 64 A100', '13B, 4096 x 2, none', 'a100-80g', 2162, 'predict', titan('llama2-13b', 4096, 2, 64, NONE)),
  ('TorchTitan 2024, 64 A100', '13B, 4096 x 2, selective layer', 'a100-80g', 1914, 'fit', titan('llama2-13b', 4096, 2, 64, LAYER)),
  ('TorchTitan 2024, 64 A100', '13B, 4096 x 2, selective op', 'a100-80g', 1904, 'predict', titan('llama2-13b', 4096, 2, 64, SAC)),
  ('TorchTitan 2024, 64 A100', '70B, 4096, selective op', 'a100-80g', 355, 'fit', titan('llama2-70b', 4096, 1, 64, SAC)),
  ('TorchTitan 2024, 64 A100', '70B, 4096 x 2, full', 'a100-80g', 353, 'predict', titan('llama2-70b', 4096, 2, 64, FULL)),
  ('TorchTitan 12/2024, H100 500 W', '8B, 8 GPUs, compiled', 'h100-hbm2e', 6667, 'fit', titan('llama3.1-8b', 8192, 2, 8, SAC)),
  ('TorchTitan 12/2024, H100 500 W', '8B, 128 GPUs, compiled', 'h100-hbm2e', 6514, 'predict', titan('llama3.1-8b', 8192, 2, 128, SAC)),
  ('TorchTitan 12/2024, H100 500 W', '8B, 8 GPUs, eager', 'h100-hbm2e', 5762, 'show', titan('llama3.1-8b', 8192, 2, 8, SAC)),
  ('TorchTitan 12/2024, H100 500 W', '8B, 128 GPUs, eager', 'h100-hbm2e', 5605, 'show', titan('llama3.1-8b', 8192, 2, 128, SAC)),
  ('NVIDIA NeMo', '8B, 8 H100, 8192 (tp 2 for cp 2)', 'h100-sxm', 10153, 'fit',
   '--model llama3.1-8b --gpus 8 --mesh.tp 2 --sharding.strategy SHARD_OPT --train.seq_len 8192 --train.micro_batch 1 --train.global_batch 128'),
  ('NVIDIA NeMo', '70B, 64 H100, 8192 (tp 8 for tp 4 x cp 2)', 'h100-sxm', 1113, 'predict',
   '--model llama3.1-70b --gpus 64 --mesh.tp 8 --mesh.pp 4 --sharding.strategy SHARD_OPT --pipeline.schedule interleaved --pipeline.chunks 5 --train.seq_len 8192'
   ' --train.micro_batch 1 --train.global_batch 128'),
  ('llm.c', '124M, one H200 (measured by us)', 'h200', 470000, 'fit', LLMC + gpt(768, 12, 12, 50304, True) + ' --gpus 1 --train.micro_batch 32 --train.global_batch 32'),
  ('llm.c', '1558M, 8 H100, 16 x 1024', 'h100-sxm', 381400 / 8, 'predict', LLMC + gpt(1600, 48, 25, 50304, True) + ' --gpus 8 --train.micro_batch 16 --train.global_batch 1024'),
  ('fms-fsdp 2/2024, eager, A100', '7B, 2 x 4096, HSDP', A100_IBM, 3760, 'fit', fms('--model llama2-7b', 128, 2, NONE, 16)),
  ('fms-fsdp 2/2024, eager, A100', '13B, 1 x 4096, HSDP', A100_IBM, 1700, 'predict', fms('--model llama2-13b', 128, 1, NONE, 16)),
  ('fms-fsdp 2/2024, eager, A100', '34B, 8 x 4096, full', A100_IBM, 772, 'fit', fms(CODE34, 128, 8, FULL)),
  ('fms-fsdp 2/2024, eager, A100', '70B, 6 x 4096, full', A100_IBM, 380, 'predict', fms('--model llama2-70b', 128, 6, FULL)),
  ('fms-fsdp, compiled, A100', '7B, 128, 2 x 4096, HSDP', A100_IBM, 4550, 'fit', fms('--model llama2-7b', 128, 2, NONE, 16)),
  ('fms-fsdp, compiled, A100', '13B, 128, 2 x 4096, selective layer', A100_IBM, 2150, 'predict', fms('--model llama2-13b', 128, 2, LAYER)),
  ('fms-fsdp, compiled, A100', '34B, 128, 2 x 4096, full', A100_IBM, 820, 'fit', fms(CODE34, 128, 2, FULL)),
  ('fms-fsdp, compiled, A100', '70B, 128, 2 x 4096, full', A100_IBM, 410, 'predict', fms('--model llama2-70b', 128, 2, FULL)),
  ('fms-fsdp, compiled, H100', '7B, 96, 2 x 4096, HSDP', H100_IBM, 9600, 'fit', fms('--model llama2-7b', 96, 2, NONE, 12)),
  ('fms-fsdp, compiled, H100', '13B, 96, 2 x 4096, selective layer', H100_IBM, 4850, 'predict', fms('--model llama2-13b', 96, 2, LAYER)),
  ('fms-fsdp, compiled, H100', '34B, 96, 2 x 4096, full', H100_IBM, 1830, 'fit', fms(CODE34, 96, 2, FULL)),
  ('fms-fsdp, compiled, H100', '70B, 96, 2 x 4096, full', H100_IBM, 890, 'predict', fms('--model llama2-70b', 96, 2, FULL)),
] + [('Megatron core, H100', f'{n}, {48 * tp * pp} GPUs, tp {tp} pp {pp}', 'h100-sxm', rate(t, d, l), 'predict' if i % 2 else 'fit', megatron(d, l, h, tp, pp, b))
     for i, (n, d, l, h, tp, pp, b, t) in enumerate(M)]

def machine(m):
    name, lines = (m[0], m[1:]) if isinstance(m, tuple) else (m, ())
    text = open(f'{share}/machines/{name}.yaml').read()
    for line in lines: text = re.sub(rf'(?m)^{line.split(":")[0]}:.*$', line, text)
    return text

def plan(row, factor, known={}):
    key = (row[1], row[2], round(factor, 6))
    if key not in known:
        with tempfile.NamedTemporaryFile('w', suffix='.yaml') as f:
            f.write(machine(row[2]) + f'\nsystem: {factor:.6f}\n')
            f.flush()
            out = subprocess.run([pretrain, 'plan', '--machine', f.name] + row[5].split(), capture_output=True, text=True)
        m = re.search(r'tokens/s, ([0-9,]+) a GPU', out.stdout)
        if not m: sys.exit(f'b_plan: {row[0]}, {row[1]}: {out.stderr}')
        memory = re.search(r'  total +([0-9.]+ .B)', out.stdout).group(1)
        known[key] = float(m.group(1).replace(',', '')), memory + (' !' if 'does NOT fit' in out.stdout else '')
    return known[key]

def fit(rows):
    """The factor at which predicted / published is one in the mean: secant steps on logarithms."""
    mean = lambda x: sum(math.log(plan(r, math.exp(x))[0] / r[3]) for r in rows) / len(rows)
    a, b = 0.0, 0.2
    ya, yb = mean(a), mean(b)
    for _ in range(6):
        if abs(yb - ya) < 1e-9 or abs(yb) < 1e-4: break
        a, b, ya = b, b - yb * (b - a) / (yb - ya), yb
        yb = mean(b)
    return math.exp(b)

print(f'{"":44}{"published":>11}{"plain":>10}{"error":>8}{"fitted":>10}{"error":>8}   use       memory a GPU (! does not fit)')
bad = held = 0
for system in dict.fromkeys(r[0] for r in ROWS):
    rows = [r for r in ROWS if r[0] == system]
    factor = fit([r for r in rows if r[4] == 'fit'])
    print(f'{system}: computing takes {factor:.3f} times what the machine file says')
    for r in rows:
        plain, (fitted, memory) = plan(r, 1.0)[0], plan(r, factor)
        error = fitted / r[3] - 1
        if r[4] == 'predict': held += 1; bad += abs(error) > 0.15
        miss = ' MISS' if r[4] == 'predict' and abs(error) > 0.15 else ''
        print(f'  {r[1]:42}{r[3]:11,.0f}{plain:10,.0f}{100 * (plain / r[3] - 1):+7.1f}%{fitted:10,.0f}{100 * error:+7.1f}%   {r[4]:8}  {memory}{miss}')
print(f'{held - bad} of {held} predicted rows within 15 %')
