#!/bin/sh
# The planner's page, trace and batch script: well-formed, with as many cells as GPUs, time-lines that do not overlap, and a configuration that plans the same again.
srcdir=${srcdir:-.} builddir=${builddir:-.} n=0
pretrain=$PWD/$builddir/src/pretrain
TESSERA_SHARE=$(realpath "$srcdir/share"); export TESSERA_SHARE
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
ok () { n=$((n + 1)); if [ "$1" = 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; sed 's/^/# /' "$dir/out" | tail -n 15; fi; }
try () { what=$1; shift; "$@" >"$dir/out" 2>&1; ok $? "$what"; }
cd "$dir" || exit 1

cat >check.py <<'P'
import json, re, sys
import xml.etree.ElementTree as E
kind, path = sys.argv[1], sys.argv[2]
def up(root, e):
    return [d for d in root.iter('div') if e in list(d)]
if kind == 'page':
    cells, bars, outside = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:]
    text = open(path, encoding='utf-8').read()
    root = E.fromstring(text.replace('<!DOCTYPE html>', ''))
    assert 'http' not in text and '<script' not in text, 'something is fetched or run'
    assert "name='viewport'" in text and not re.search('[0-9] us<', text), 'narrow windows, microseconds'
    assert all(any('wide' in d.get('class', '') for d in up(root, e)) for e in root.iter('table') if e.get('class') == 'choices'), 'a table that cannot be moved in a narrow window'
    svg = [e for e in root.iter('svg')]
    k = [t for t in root.iter('text') if t.get('class') == 'k']
    assert len(k) == cells, f'{len(k)} cells'
    assert len({t.text for t in k}) == cells, 'two cells have the same coordinates'
    assert sum(t.get('class') == 'i' for t in root.iter('rect')) == bars, 'rows of the time-line'
    for e in root.iter('rect'):
        assert float(e.get('width')) >= 0 and float(e.get('height')) >= 0, E.tostring(e)
    for s in svg:   # nothing is drawn outside of its picture
        w, h = map(float, s.get('viewBox').split()[2:])
        for e in s.iter('rect'):
            x, y = float(e.get('x')), float(e.get('y'))
            assert -1 <= x and x + float(e.get('width')) <= w + 1 and -1 <= y and y + float(e.get('height')) <= h + 1, E.tostring(e)
    for o in outside:
        assert o in text, o + ' is not on the page'
elif kind == 'trace':
    ev = json.load(open(path))['traceEvents']
    named = {(e['pid'], e['tid']) for e in ev if e['name'] == 'thread_name'}
    last = {}
    for e in sorted((e for e in ev if e['ph'] == 'X'), key=lambda e: e['ts']):
        assert (e['pid'], e['tid']) in named, 'a thread without a name'
        assert e['dur'] >= 0 and e['ts'] >= 0
        if e['tid'] == 0:
            assert e['ts'] >= last.get(e['pid'], 0) - 1e-3, f'stage {e["pid"]} computes two things at {e["ts"]}'
            last[e['pid']] = e['ts'] + e['dur']
    assert len(last) == int(sys.argv[3]), f'{len(last)} stages'
elif kind == 'script':
    text = open(path).read()
    get = lambda o: int(re.search(r'^#SBATCH --%s=(\d+)$' % o, text, re.M).group(1))
    gpus, each = int(sys.argv[3]), int(sys.argv[4])
    assert get('ntasks') == gpus and get('ntasks-per-node') == each and get('nodes') * each == gpus and get('gpus-per-node') == each
    assert 'mpiexec -n $SLURM_NTASKS ${SLURM_NTASKS_PER_NODE:+-ppn $SLURM_NTASKS_PER_NODE} ' in text
P

plan () { "$pretrain" plan "$@"; }
try '8 GPUs' plan --model llama2-7b --gpus 8 --machine a100-80g --page p8.html --trace t8.json
try 'the page of 8' python3 check.py page p8.html 8 1 'dp 8' 'NVLink, inside a node' 'Memory of a GPU'
try 'the trace of 8' python3 check.py trace t8.json 1
try '64 GPUs' plan --model llama2-70b --gpus 64 --machine a100-80g --mesh.tp 8 --mesh.pp 2 --recompute.mode full --train.global_batch 64 --page p64.html --trace t64.json --emit sbatch --name a70b
grep -q '^  node 2     d  (1,0,0)' out && grep -q '^  node 1   p |  (0,1,0)' out && [ "$(grep -c 'a GPU sends .* a step in .* are waited for' out)" = 3 ]
ok $? 'the text draws pp and dp beside the nodes, and says link and bytes of each axis'
try 'the page of 64' python3 check.py page p64.html 64 2 'tp 8' 'pp 2' 'dp 4' '(3,1,7)' 'InfiniBand 200 Gb/s, shared by 8 groups'
try 'the trace of 64' python3 check.py trace t64.json 2
try '4,096 GPUs' plan --model llama3.1-405b --gpus 4096 --machine h100-ib400 --mesh.tp 8 --mesh.pp 16 --recompute.mode full --train.global_batch 256 --page p4096.html
try 'the page of 4,096 shows the first nodes and a map' python3 check.py page p4096.html 64 16 'all 512 nodes' '504 more nodes'
try 'replicas' plan --model llama2-7b --gpus 32 --machine h100-25gbe --mesh.dp_replicate 4 --sharding.strategy HYBRID_SHARD --page pr.html
try 'the page of replicas' python3 check.py page pr.html 32 1 'repl 4' 'shard 8' '(3,7,0,0)' 'Ethernet 25 Gb/s'
try 'one GPU' plan --model b124m --gpus 1 --machine h200 --page p1.html
try 'the page of one' python3 check.py page p1.html 1 1
try 'a name that is markup' plan --model tiny --model.name '<b>&"x' --gpus 2 --machine h200 --page px.html
try 'is escaped' python3 check.py page px.html 2 1 '&lt;b&gt;&amp;&quot;x'

try 'sbatch: sh can read it' sh -n a70b.sbatch
if command -v shellcheck >/dev/null; then try 'sbatch: shellcheck has nothing to say' shellcheck a70b.sbatch; fi
common () { sed -n '/^# ---- from here on/,$p' "$1"; }
slurm=$(realpath "$OLDPWD/$srcdir/share/slurm")
common a70b.sbatch >c.a70b; common "$slurm/cpu.sbatch" >c.cpu; common "$slurm/node.sbatch" >c.node; common "$slurm/nodes.sbatch" >c.nodes
[ "$(wc -l <c.cpu)" -gt 20 ] && cmp c.cpu c.a70b && cmp c.cpu c.node && cmp c.cpu c.nodes; ok $? 'sbatch: the rest of it is that of the scripts in share/slurm'
try 'sbatch: GPUs and nodes agree' python3 check.py script a70b.sbatch 64 8
plan --model llama2-70b --gpus 64 --machine a100-80g --mesh.tp 8 --mesh.pp 2 --recompute.mode full --train.global_batch 64 >first 2>&1
plan a70b.yaml --gpus 64 --machine a100-80g >second 2>&1
try 'yaml: plans the same again' cmp first second
try 'yaml: names model and mesh' grep -q '^model: llama2-70b' a70b.yaml
try 'a smaller job' plan --model tiny --gpus 4 --machine h200 --train.seq_len 64 --emit sbatch --name small
try 'has one node of 4' python3 check.py script small.sbatch 4 4
plan --model tiny --gpus 4 --machine h200 --emit slurm >out 2>&1; [ $? = 2 ] && grep -q 'knows sbatch' out; ok $? 'another kind is refused'
plan --model tiny --gpus 4 --machine h200 --emit sbatch --name 'a;b' >out 2>&1; [ $? = 2 ] && grep -q 'a;b' out; ok $? 'a name for the shell is refused'
plan --model tiny --gpus 4 --machine h200 --page no/such/p.html >out 2>&1; [ $? = 2 ] && grep -q 'no/such/p.html' out; ok $? 'a file that cannot be written is named'

like=$(realpath "$OLDPWD/$srcdir/test/like")
try '--from-accelerate' plan --from-accelerate "$like/accelerate-fsdp.yaml" --model llama2-7b --machine a100-80g
grep -q 'on 16 x A100' out && grep -q 'fsdp_sharding_strategy FULL_SHARD' out; ok $? 'plans its 16 GPUs, and says what each line means'
try '--from-torchtitan' plan --from-torchtitan "$like/torchtitan-llama3-8b.toml" --gpus 8 --machine h100-hbm2e
try '--from-megatron' plan --from-megatron "$(cat "$like/megatron-llama2-70b.txt")" --machine h100
grep -q 'on 64 x H100' out; ok $? 'plans its 64 GPUs'
try '--from-hf' plan --from-hf "$like/qwen3-8b.json" --gpus 8 --machine h200
plan --from-megatron "$(cat "$like/megatron-gpt3.txt")" --gpus 8 --machine h100 >out 2>&1; [ $? = 2 ] && grep -q 'frobnicate' out; ok $? 'what cannot be had ends with status 2'
echo "1..$n"
