#!/bin/sh
# pretrain report: the page of a run, of several, of a resumed, an empty, a torn, a long and a hostile one; its structure and its data, and where there is a Chromium what it draws. Prints TAP.
srcdir=${srcdir:-.} builddir=${builddir:-.} n=0
pretrain=$PWD/$builddir/src/pretrain mpi=${MPIEXEC:-mpiexec}
TESSERA_SHARE=$(realpath "$srcdir/share"); export TESSERA_SHARE
export OMP_NUM_THREADS=1 MPIEXEC_TIMEOUT=60
dir=$(mktemp -d) || exit 1
trap 'for i in 1 2 3 4 5; do rm -rf "$dir" 2>/dev/null && break; sleep 0.5; done' EXIT   # a browser that did not answer may still write while it ends
cd "$dir" || exit 1
ok () { n=$((n + 1)); if [ "$1" = 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; sed 's/^/# /' out | tail -n 15; fi; }
try () { what=$1; shift; "$@" >out 2>&1; ok $? "$what"; }

cat >page.py <<'P'
import json, math, re, sys, os, time
from html.parser import HTMLParser
what, path = sys.argv[1], sys.argv[2]

class Page(HTMLParser):
    void = {'meta', 'link', 'rect', 'circle', 'path', 'line'}
    def __init__(self):
        super().__init__(); self.open = []; self.tags = []; self.text = ''; self.script = []
    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.void: self.open.append(tag)
    def handle_startendtag(self, tag, attrs): self.tags.append((tag, dict(attrs)))
    def handle_endtag(self, tag):
        if tag in self.void: return
        assert self.open and self.open[-1] == tag, f'</{tag}> closes {self.open[-1:]}'
        self.open.pop()
    def handle_data(self, d):
        if self.open and self.open[-1] == 'script': self.script.append(d)
        elif not self.open or self.open[-1] != 'style': self.text += d
p = Page()
source = open(path, encoding='utf-8', errors='replace').read()
p.feed(source)
assert not p.open, p.open
names = [t for t, a in p.tags]
assert names.count('script') == 2 and names.count('style') == 1 and 'img' not in names and 'iframe' not in names, 'tags that are not ours'
for t, a in p.tags:
    for k, v in a.items():
        assert not k.startswith('on'), f'{t} has {k}'
        assert k not in ('src', 'href') or v == 'data:,', f'{t} fetches {v}'
for word in ('fetch(', 'XMLHttpRequest', '@import', 'url(', 'innerHTML'): assert word not in source, word
assert source.count('http') == source.count('http://www.w3.org/2000/svg'), 'an address'
assert '<' not in p.script[0] and '&' not in p.script[0], 'data that can leave their script'
d = json.loads(p.script[0])
r = d['runs'][0]
for x in d['runs']:
    assert len(x['step']) == len(x['tokens']) == len(x['hours']), 'lengths'
    for part in ('v', 'lo', 'hi'):
        for k, y in x[part].items(): assert len(y) == len(x['step']), k
    assert x['step'] == sorted(set(x['step'])), 'steps in order, each once'
assert not re.search(r'[0-9] us\b', p.text), 'us for microseconds'
def has(*words):
    for w in words: assert w in p.text, w + ' is not on the page'
if what == 'real':
    assert r['step'] == list(range(1, 9)) and len(r['eval']['step']) == 2, r['eval']
    assert [m['word'] for m in r['marks']] == ['resumed'] and r['marks'][0]['step'] == 4, r['marks']
    for k in ('loss', 'grad_norm', 'lr', 'tokens_per_s', 'seconds', 'forward_s', 'tp', 'dp_shard', 'comm_share', 'resident_peak'): assert k in r['v'], k
    first = [json.loads(l) for l in open(os.path.dirname(path) + '/metrics.jsonl')]
    assert all(abs(a - b['loss']) < 1e-4 for a, b in zip(r['v']['loss'], first)), 'losses'
    has('started on 4 ranks of 1 node: dp_shard 2, tp 2', 'resumed on 4 ranks of 2 nodes: dp_shard 2, tp 2', 'step_00000008.h5', 'as planned, to the byte', 'Memory of rank 0', 'activations', 'done')
    cells = sum(t == 'text' and a.get('class') == 'k' for t, a in p.tags)
    assert cells == 4, cells
    tp = sum(v['bytes'] for v in first[6]['comm']['tp'].values())   # a step without validation in it or before it
    has('%.3g kB' % (tp / 1e3) if tp >= 1e3 else '%d B' % tp)
elif what == 'two':
    assert len(d['runs']) == 2
    has('a', 'other', 'dp_shard 2, tp 2', 'dp_shard 2')
    assert sum(t == 'table' and a.get('class') == 'runs' for t, a in p.tags) == 1
    assert sum(t == 'span' and a.get('class') == 'swatch' for t, a in p.tags) == 2
elif what == 'torn': assert r['step'] == list(range(1, 6)); has('1 line of metrics.jsonl is no record')
elif what == 'again': assert r['step'] == list(range(1, 81)) and r['v']['loss'][49] == 2 and r['v']['loss'][9] == 1, r['v']['loss']; has('20 steps were done more than once')
elif what == 'empty': assert r['step'] == []; has('no steps yet')
elif what == 'bare': assert list(r['v']) == ['loss']; assert r['v']['loss'][1] is None; has('the configuration is not known')
elif what == 'long':
    assert os.path.getsize(path) < 400000, os.path.getsize(path)
    assert 100 < len(r['step']) <= 1000 and r['step'][-1] == 100000
    at = next(i for i, s in enumerate(r['step']) if s >= 54321)
    assert r['hi']['loss'][at] == 99 and max(r['hi']['loss']) == 99 and r['v']['loss'][at] < 10, 'the spike is kept, and does not take the place of the mean'
    at = next(i for i, s in enumerate(r['step']) if s >= 77777)
    assert r['lo']['loss'][at] == -5, 'the dip is kept'
elif what == 'hostile': has('</script><script>alert(1)</script>', '<img src=x onerror=alert(1)>&"', '</style><b>'); assert r['name'].startswith('<img src=x')
elif what == 'killed': has('killed without a word'); assert p.text.count(time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(1700000008))) == 2, 'the time of its last record, in the head and as that of its end'; assert 'still running' not in p.text and [m['word'] for m in r['marks']] == ['killed'], r['marks']
elif what == 'slower': has('200 ms, 66.7 %')   # of a step of the last launch, whose collectives these are
elif what == 'failed': has('ended with status 4, rank 2 on node7 during step 12: disk full'); assert [m['word'] for m in r['marks']] == ['skipped', 'failed']
elif what == 'spiked': has('step skipped: a spike of the loss', 'rolled back to step 10: step 12 was a spike', 'step skipped: the gradient was not finite'); assert [m['word'] for m in r['marks']] == ['skipped', 'skipped', 'rolled back']
P
cat >make.py <<'P'
import json, os
def run(name, records, end=None, config=None, tail=''):
    os.makedirs(name + '/checkpoints', exist_ok=True)
    with open(name + '/metrics.jsonl', 'w') as f:
        for r in records: f.write(json.dumps(r) + '\n')
        f.write(tail)
    if end: json.dump(end, open(name + '/exit.json', 'w'))
    if config: open(name + '/config.yaml', 'w').write(config)
conf = 'model: {dim: 16, layers: 2, heads: 4, kv_heads: 2, ffn: 32, vocab: 257}\ntrain: {steps: 80}\nmesh: {dp_shard: 2, pp: 1, tp: 1, dp_replicate: 1}\n'
rec = lambda s, loss=1.0, skipped=False, **more: dict(step=s, loss=loss, grad_norm=1.0, lr=1e-3, tokens=s * 32, tokens_per_s=1000.0, mfu=None, seconds=0.03, time=1700000000 + s, skipped=skipped, **more)
run('torn', [rec(s) for s in range(1, 6)], config=conf, tail='{"step":6,"loss":1.2,"gr')
run('again', [rec(s) for s in range(1, 61)] + [rec(s, 2.0) for s in range(41, 81)], config=conf)
run('empty', [], config=conf)
run('bare', [dict(step=1, loss=1.0), dict(step=2, loss=None), dict(step=3, loss=2.0)])
run('long', [rec(s, 99 if s == 54321 else -5 if s == 77777 else 2.0 + s % 7 / 10) for s in range(1, 100001)], config=conf)
run('<img src=x onerror=alert(1)>&"\'', [rec(1), rec(2)], dict(code=4, reason='</script><script>alert(1)</script>', step=2, rank=0, host='</title>', phase='<b>', time=1700000009), conf.replace('{dim', '{name: "</style><b>", dim'))
run('failed', [rec(s) for s in range(1, 12)] + [dict(rec(12), skipped=True)], dict(code=4, reason='disk full', step=12, rank=2, host='node7', phase='step 12', time=1700000100), conf)
run('spiked', [rec(s, skipped=s in (5, 7)) if s != 5 else dict(rec(5, skipped=True), spike=dict(action='skip', step=5, batch=5)) for s in range(1, 11)]
    + [dict(rec(11), spike=dict(action='rollback', step=12, batch=12, back_to=10)), rec(12)], config=conf)
run('killed', [rec(s) for s in range(1, 9)], dict(code=4, reason='still running, or ended without a word', step=0, rank=0, host='x', phase='data', time=1700000000), conf)
open('killed/.lock', 'w').write('process 1 on host ' + os.uname().nodename.split('.')[0] + '\n')
lap = lambda after: dict(after=after, ranks=2, nodes=1, tp=2, pp=1, dp_shard=1, dp_replicate=1)
tp = lambda s: dict(comm={'tp': {'all-gather': dict(calls=4, bytes=4000, busy_s=s, exposed_s=s)}})
run('slower', [dict(rec(s), **tp(0.01), **({'launch': lap(0)} if s == 1 else {})) for s in range(1, 21)] + [dict(dict(rec(s), **tp(0.2), **({'launch': lap(20)} if s == 21 else {})), seconds=0.3) for s in range(21, 26)], config=conf)
os.makedirs('nothing', exist_ok=True)
P
python3 make.py
seq 1 3000 >text.txt
"$pretrain" tokenize --tokenizer bytes text.txt a.h5 >out 2>&1 || { echo "Bail out! no tokens"; exit 1; }
cat >run.yaml <<'S'
model: {dim: 16, layers: 2, heads: 4, kv_heads: 2, ffn: 32, vocab: 257}
data: {train: a.h5}
run: {device: cpu, threads: 1, save_every: 4, log_every: 2}
eval: {every: 4, batches: 1}
train: {seq_len: 16, micro_batch: 1, global_batch: 2, dtype: fp32}
schedule: {warmup: 2, steps: 40}
S
{ "$mpi" -n 4 "$pretrain" run.yaml --run.dir a --mesh.dp_shard 2 --mesh.tp 2 --train.steps 4
  MPIR_CVAR_NUM_CLIQUES=2 "$mpi" -n 4 "$pretrain" run.yaml --run.dir a --mesh.dp_shard 2 --mesh.tp 2 --mesh.order dp-tp-pp --mesh.tp_across_nodes true --train.steps 8
  "$mpi" -n 2 "$pretrain" run.yaml --run.dir other --mesh.dp_shard 2 --train.steps 8; } >out 2>&1
ok $? 'three launches'
try 'a run that was resumed: written' "$pretrain" report a
try 'and complete' python3 page.py real a/report.html
try 'two runs of different meshes' "$pretrain" report a other/ --output two.html
try 'in one page' python3 page.py two two.html
for w in torn again empty bare long failed spiked killed slower; do
  try "$w: written" "$pretrain" report $w --output=$w.html
  try "$w: as it should be" python3 page.py $w $w.html
done
try 'a hostile name: written' "$pretrain" report '<img src=x onerror=alert(1)>&"'"'" --output hostile.html
try 'is text and nothing else' python3 page.py hostile hostile.html

user () { what=$1 word=$2; shift 2; "$pretrain" report "$@" >out 2>&1; [ $? = 2 ] && grep -q -- "$word" out && [ "$(grep -c . out)" = 1 ]; ok $? "$what: status 2 and one sentence"; }
user 'no folder' 'no/such' no/such
user 'a folder without a run' 'nothing of a run' nothing
user 'a file' 'no folder of a run' run.yaml
user 'no argument' 'name the folder'
user 'an unknown option' 'frobnicate' a --frobnicate
user 'a page that cannot be written' 'no/such/x.html' a --output no/such/x.html
ls a/*.tmp no 2>/dev/null; [ ! -e "$(echo a/report.html.*)" ]; ok $? 'nothing is left behind'
"$pretrain" report --help >out 2>&1 && grep -q '^usage: ' out; ok $? 'help'

# ---- in a browser
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
drawn () {   # drawn PAGE CHARTS LINES
  TMPDIR=$dir timeout -k 2 20 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$dir/home" --enable-logging=stderr --window-size=1200,900 --dump-dom "file://$dir/$1" >dom 2>out
  case $? in 124|137) n=$((n + 1)); echo "ok $n - Chromium draws $1 # SKIP it does not answer"; return ;; esac
  got="$(sed -n 's/.*data-drawn="\([0-9]*\)".*/\1/p' dom | head -n 1) $(grep -o 'class="line"' dom | grep -c .) $(grep -c 'CONSOLE' out)"
  echo "# $got" >>out
  [ "$got" = "$2 $3 0" ]; ok $? "Chromium draws $1: charts, curves, words on the console: $got"
}
if [ -n "$browser" ]; then
  drawn a/report.html 8 8
  drawn two.html 9 16
  drawn long.html 4 5
  drawn empty.html 0 0
  drawn hostile.html 4 4
else n=$((n + 1)); echo "ok $n - pages in a browser # SKIP no Chromium"; fi
echo "1..$n"
