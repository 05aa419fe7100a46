#!/usr/bin/env python3
# Published results against the planner:  b_plan.py [pretrain]      (build folder: src/pretrain)
# For each system one efficiency, a factor on all computing time (`system` of the machine file), is fitted on half of its rows so that the product of
# predicted / published is one over them; the other half is then predicted with it. Nothing else is fitted. All rows are shown, the misses too.
# Where a published configuration has what this program has not, the row says what stands for it.
# Which rows count: those whose micro-batch, cut, sharding, recomputation and schedule are published. The rest is shown with the factor of its own fit and never counted:
# a setting that is not known can be chosen until the error is small. "first seen" are rows whose translation and halves were written down, and committed, before
# the planner had been run on any of them; nothing was changed for them afterwards but what bench/RESULTS says. A row that the planner refuses is a miss.
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
    """Seq 4096, vocabulary 131,072, dp 48, distributed optimizer. --tp-comm-overlap. Micro-batch, virtual stages and recomputation are not published (README and images/ of
    NVIDIA/Megatron-LM since f2e5db402c; its issue 1571, where a user asks for them, has no answer), so these rows are shown only. What stands for them was chosen after misses
    were seen: without a pipeline 4 sequences at once, with one 1 sequence and a layer a virtual stage."""
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
# on Hopper reaches 318 forward and 264 backward TFLOP/s (measured on one H200 with PyTorch 2.11, backward with 5 products; 211 with 4 as in src/machine.h), on A100 the file's.
A100_IBM = ('a100-80g', 'nic: {name: RoCE 400 Gb/s a node, count: 8, bandwidth: 50 Gb/s, share: 0.9, latency: 6 us}')
H100_IBM = ('h100-sxm', 'nic: {name: RoCE 800 Gb/s a node, count: 8, bandwidth: 100 Gb/s, share: 0.9, latency: 6 us}',
            'attention: {forward: 318 TFLOP/s, backward: 211 TFLOP/s, head64: 0.9, half_seq: 256}')
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
] + [('Megatron core, H100', f'{n}, {48 * tp * pp} GPUs, tp {tp} pp {pp}', 'h100-sxm', rate(t, d, l), 'show', megatron(d, l, h, tp, pp, b)) for n, d, l, h, tp, pp, b, t in M]

# ---- rows first seen by the planner after this was written ----
# Rows of a table go alternately to the fit and to the prediction, in the table's order; of NVIDIA's recipes, whose rows differ in GPUs alone, the smaller model is fitted.

MPT_MODELS = {'125m': (768, 12, 12), '350m': (1024, 24, 16), '760m': (1536, 24, 12), '1b': (2048, 24, 16), '3b': (2560, 32, 20), '7b': (4096, 32, 32), '13b': (5120, 40, 40),
              '30b': (7168, 48, 56), '70b': (8192, 80, 64)}   # width, layers, heads: scripts/train/yamls/pretrain/mpt-*.yaml
# Attention: FlashAttention-2's paper, section 4.1, has it 1.3 to 2.5 times as fast as FlashAttention in Triton; 1.8, their mean, is taken.
FA2_H100, TRITON_H100 = [f'attention: {{forward: {318 / f:.0f} TFLOP/s, backward: {211 / f:.0f} TFLOP/s, head64: 0.9, half_seq: 256}}' for f in (1, 1.8)]
TRITON_A100 = f'attention: {{forward: {190 / 1.8:.0f} TFLOP/s, backward: {132 / 1.8:.0f} TFLOP/s, head64: 0.9, half_seq: 256}}'
A100_40 = ('gpu: {name: A100-SXM4-40GB, memory: 39.4 GiB, outside: 768 MiB, bandwidth: 1555 GB/s, stream: 0.85, launch: 3 us, units: 108, peak_bf16: 312 TFLOP/s,'
           ' peak_fp32: 19.5 TFLOP/s}')   # NVIDIA's data sheet of the 40 GB SXM card

def mpt(name, seq, gpus, each, batch, mode, cut, ac):
    """An MPT as a Llama: GELU of 4 h as SwiGLU of 8/3 h (the same parameters, FLOPs and forward bytes), LayerNorm and biases as RMSNorm, learned positions as RoPE
    (their seq x h parameters are missing), tied. Composer's PURE sends gradients in bf16, DEFAULT in fp32; it reduces in each micro-batch, as FULL_SHARD does.
    Eager PyTorch, torch 1.13 to 2.1."""
    dim, layers, heads = MPT_MODELS[name]
    wire = ' --sharding.grad_dtype bf16 --sharding.reduce_dtype bf16' if mode == 'PURE' else ''
    return (f'{gpt(dim, layers, heads, 50368, True)} --gpus {gpus} --train.seq_len {seq} --train.micro_batch {each} --train.global_batch {batch}'
            f' --sharding.strategy {cut} --recompute.mode {ac}{wire}')

def mpt_machine(table, name):
    """Network: 200 Gb/s a card by the headings of the A100 tables; not said for H100: the file's 400 (8 GPUs are one node). Attention: sweep.py says flash or triton for
    each model of the large table, submit_benchmarks.py defaulted to triton when the others were run (b2a43a147 and before)."""
    if table == 'a100-80g': return 'a100-80g', TRITON_A100
    if table == 'a100-40g': return 'a100-80g', TRITON_A100, A100_40
    return 'h100-sxm', FA2_H100 if table == 'h100-large' and name not in ('13b', '30b') else TRITON_H100

def mpt_rows():
    title = {'h100-large': 'MPT, H100, 128 to 512 GPUs', 'h100': 'MPT, H100', 'a100-80g': 'MPT, A100 80 GB', 'a100-40g': 'MPT, A100 40 GB'}
    count = {}
    for line in open(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'rows_mpt.txt')):
        if line.startswith('#'): continue
        table, name, seq, gpus, each, _, batch, mode, cut, ac, published = line.split()
        i = count[table] = count.get(table, 0) + 1
        yield (title[table], f'{name}, {gpus} GPUs, {each} x {seq}, {ac}{"" if cut == "FULL_SHARD" else ", " + cut}', mpt_machine(table, name), int(published),
               'fit' if i % 2 else 'predict', mpt(name, seq, gpus, each, batch, mode, cut, ac))

# Megatron 2021 (arXiv 2104.04473, table 1; examples/academic_paper_scripts/sc21/run_table_1.sh of NVIDIA/Megatron-LM has micro-batches and virtual stages): name, width, layers,
# heads, tp, pp, micro-batch, batch, layers a virtual stage, GPUs, teraFLOP/s a GPU (images/cases_april2021.png, before f2e5db402c).
SC21 = [('1.7B', 2304, 24, 24, 1, 1, 16, 512, 0, 32, 137), ('3.6B', 3072, 30, 32, 2, 1, 16, 512, 0, 64, 138), ('7.5B', 4096, 36, 32, 4, 1, 16, 512, 0, 128, 142),
        ('18B', 6144, 40, 48, 8, 1, 8, 1024, 0, 256, 135), ('39B', 8192, 48, 64, 8, 2, 4, 1536, 0, 512, 138), ('76B', 10240, 60, 80, 8, 4, 2, 1792, 5, 1024, 140),
        ('145B', 12288, 80, 96, 8, 8, 2, 2304, 5, 1536, 148), ('310B', 16384, 96, 128, 8, 16, 1, 2160, 3, 1920, 155), ('530B', 20480, 105, 128, 8, 35, 1, 2520, 1, 2520, 163),
        ('1T', 25600, 128, 160, 8, 64, 1, 3072, 0, 3072, 163)]
# Its attention is not fused. For each pair of tokens and head of 128, all pairs: two products (75 and 218 TFLOP/s by the file's formula), scale-mask-softmax (4 bytes)
# and dropout (5) at 1,733 GB/s are 9.8 ps; backward four products, dropout (5) and softmax (6) 13.3 ps. Over the visible half: 256 FLOP and 512.
SC21_MACHINE = ('a100-80g', 'attention: {forward: 26 TFLOP/s, backward: 38.6 TFLOP/s, head64: 1, half_seq: 1}')

def sc21(dim, layers, heads, tp, pp, each, batch, virtual, gpus):
    """fp16, full recomputation, no distributed optimizer, gradients travel in 16 bits; tp without sequence parallelism sends as much as ours with it."""
    cut = f'--pipeline.schedule interleaved --pipeline.chunks {layers // pp // virtual}' if virtual else ''
    return (f'{gpt(dim, layers, heads, 51200, True)} --gpus {gpus} --mesh.tp {tp} --mesh.pp {pp} --mesh.order tp-dp-pp --sharding.strategy NO_SHARD --sharding.grad_dtype bf16'
            f' --sharding.reduce_dtype bf16 --recompute.mode full --train.seq_len 2048 --train.micro_batch {each} --train.global_batch {batch} {cut}')

def sc21_rate(tflops, dim, layers):
    """Its teraFLOP/s (eq. 3) to tokens/s: 96 l h^2 (1 + s / 6 h + V / 16 l h) a token, the recomputed forward counted."""
    return tflops * 1e12 / (96 * layers * dim ** 2 * (1 + 2048 / (6 * dim) + 51200 / (16 * layers * dim)))

# NVIDIA's recipes (github.com/NVIDIA/dgxc-benchmarking): nemotron/README_15b.md, README_340b.md, configure.sh and yaml files of v24.11 (35a9aec), nemotron/README.md
# and launch.sh of v25.04.01 (85380ff; recipes nemotron4_*.py of NVIDIA/NeMo). H100, bf16, cp 1, distributed optimizer, gradients in bf16, tp communication overlapped.
# Seconds a step by GPUs.
NEMOTRON = {'15b': '--model.dim 6144 --model.layers 32 --model.heads 48 --model.kv_heads 8 --model.ffn 16384 --model.vocab 256000 --model.tied false',
            '340b': '--model.dim 18432 --model.layers 96 --model.heads 96 --model.kv_heads 8 --model.ffn 49152 --model.vocab 256000 --model.tied false'}
RECIPES = [('24.11', '15b', 4, 1, 4, 0, '', {16: 2.83, 32: 2.86, 64: 2.86, 128: 2.89, 256: 2.88, 512: 2.92, 1024: 2.92, 2048: 2.96}),
           ('24.11', '340b', 8, 8, 1, 12, 'attention', {128: 4.61, 256: 4.67, 512: 4.7, 1024: 4.73, 2048: 4.84}),   # selective recomputation: attention alone
           ('25.04.01', '15b', 2, 1, 2, 0, '', {16: 2.66, 32: 2.66, 64: 2.67, 128: 2.67, 256: 2.68, 512: 2.71, 1024: 2.74, 2048: 2.78}),
           ('25.04.01', '340b', 8, 8, 1, 12, '', {256: 4.36, 512: 4.39, 1024: 4.41, 2048: 4.43})]

def recipe_rows():
    """Squared ReLU of 4 h as SwiGLU of 8/3 h. cuDNN's attention (the file's) but for 340b of v24.11 (NVTE_FUSED_ATTN=0: FlashAttention-2)."""
    for version, name, tp, pp, each, chunks, again, steps in RECIPES:
        for gpus, seconds in steps.items():
            batch = gpus * 4 if name == '15b' else gpus // 4
            options = (f'{NEMOTRON[name]} --gpus {gpus} --mesh.tp {tp} --mesh.pp {pp} --mesh.order tp-dp-pp --mesh.tp_overlap 2 --sharding.strategy SHARD_OPT'
                       f' --sharding.grad_dtype bf16 --sharding.reduce_dtype bf16 --train.seq_len 4096 --train.micro_batch {each} --train.global_batch {batch}')
            if chunks: options += f' --pipeline.schedule interleaved --pipeline.chunks {chunks}'
            if again: options += ' --recompute.mode selective --recompute.keep norms,swiglu,gate_up,qkv,residual'
            yield (f'NVIDIA recipes {version}, Nemotron-4', f'{name}, {gpus} GPUs, tp {tp} pp {pp}', ('h100-sxm', FA2_H100) if again else 'h100-sxm', batch * 4096 / seconds / gpus,
                   'fit' if name == '15b' else 'predict', options)

def titan_tp(model, gpus, each, ac, parts):
    return (f'--model {model} --gpus {gpus} --train.seq_len 8192 --train.micro_batch {each} --train.global_batch {each * gpus // 8} {ac} --mesh.tp 8'
            f' --mesh.tp_overlap {parts}')
T6 = 'TorchTitan 6/2025, H100 500 W, tp 8'   # benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md, the bf16 rows; async tp: mesh.tp_overlap 2
FIRST_SEEN = [
  (T6, '70B, 256 GPUs, 16 x 8192, full', 'h100-hbm2e', 597.3, 'fit', titan_tp('llama3.1-70b', 256, 16, FULL, 1)),
  (T6, '70B, 256 GPUs, async tp', 'h100-hbm2e', 652.4, 'predict', titan_tp('llama3.1-70b', 256, 16, FULL, 2)),
  (T6, '8B, 64 GPUs, 12 x 8192, selective op', 'h100-hbm2e', 4378, 'fit', titan_tp('llama3.1-8b', 64, 12, SAC, 1)),
  (T6, '8B, 64 GPUs, async tp', 'h100-hbm2e', 4809.4, 'predict', titan_tp('llama3.1-8b', 64, 12, SAC, 2)),
] + list(recipe_rows()) + [('Megatron 2021, A100', f'{n}, {gpus} GPUs, tp {tp} pp {pp}', SC21_MACHINE, sc21_rate(t, d, l), 'predict' if i % 2 else 'fit',
     sc21(d, l, h, tp, pp, each, b, v, gpus)) for i, (n, d, l, h, tp, pp, each, b, v, gpus, t) in enumerate(SC21)] + list(mpt_rows())

def machine(m):
    name, lines = (m[0], m[1:]) if isinstance(m, tuple) else (m, ())
    text = open(f'{share}/machines/{name}.yaml').read()
    for line in lines: text = re.sub(rf'(?m)^{line.split(":")[0]}:.*$', line, text)
    return text

def plan(row, factor, known={}):
    """Planned tokens/s a GPU (None if refused) and memory."""
    key = (row[2], row[5], round(factor, 6))
    if key not in known:
        with tempfile.NamedTemporaryFile('w', suffix='.yaml') as f:
            f.write(machine(row[2]) + f'\nsystem: {factor:.6f}\n')
            f.flush()
            out = subprocess.run([pretrain, 'plan', '--machine', f.name] + row[5].split(), capture_output=True, text=True)
        m = re.search(r'tokens/s, ([0-9,]+) a GPU', out.stdout)
        memory = re.search(r'  total +([0-9.]+ .B)', out.stdout)
        known[key] = ((float(m.group(1).replace(',', '')), memory.group(1) + (' !' if 'does NOT fit' in out.stdout else '')) if m
                      else (None, 'refused: ' + out.stderr.strip()[:120]))
    return known[key]

def fit(rows):
    """The factor at which predicted / published is one in the mean: secant steps on logarithms."""
    rows = [r for r in rows if plan(r, 1.0)[0]]
    mean = lambda x: sum(math.log(plan(r, math.exp(x))[0] / r[3]) for r in rows) / len(rows)
    a, b = 0.0, 0.2
    ya, yb = mean(a), mean(b)
    for _ in range(6):
        if abs(yb - ya) < 1e-9 or abs(yb) < 1e-4: break
        a, b, ya = b, b - yb * (b - a) / (yb - ya), yb
        yb = mean(b)
    return math.exp(b)

def show(rows):
    """Print each system of `rows`; gives the errors of its predicted rows (None: refused)."""
    errors = []
    for system in dict.fromkeys(r[0] for r in rows):
        mine = [r for r in rows if r[0] == system]
        factor = fit([r for r in mine if r[4] == 'fit'] or mine)
        print(f'{system}: computing takes {factor:.3f} times what the machine file says{"" if any(r[4] != "show" for r in mine) else " (its own rows: no prediction)"}')
        here = []
        for r in mine:
            plain, (fitted, memory) = plan(r, 1.0)[0], plan(r, factor)
            error = fitted / r[3] - 1 if fitted else None
            if r[4] == 'predict': here.append(error)
            miss = ' MISS' if r[4] == 'predict' and (error is None or abs(error) > 0.15) else ''
            if not fitted: print(f'  {r[1]:46}{r[3]:11,.0f}   {r[4]:8}  {memory}{miss}')
            else: print(f'  {r[1]:46}{r[3]:11,.0f}{plain:10,.0f}{100 * (plain / r[3] - 1):+7.1f}%{fitted:10,.0f}{100 * error:+7.1f}%   {r[4]:8}  {memory}{miss}')
        if len(here) > 2: print(f'  {count(here)}')
        errors += here
    return errors

def count(errors):
    known = sorted(abs(e) for e in errors if e is not None)
    return f'{sum(e <= 0.15 for e in known)} of {len(errors)} predicted rows within 15 %, half of them within {100 * known[len(known) // 2]:.1f} %'

print(f'{"":48}{"published":>11}{"plain":>10}{"error":>8}{"fitted":>10}{"error":>8}   use       memory a GPU (! does not fit)')
before = show(ROWS)
print('---- rows first seen: their translation was committed before the planner was run on them ----')
first = show(FIRST_SEEN)
print(f'rows first seen: {count(first)}')
print(f'rows of before: {count(before)}')
