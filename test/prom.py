"""A file for node_exporter's textfile collector: its format, and its values against metrics.jsonl. prom.py FILE METRICS [gpu]; prints TAP points without numbers."""
import json, re, sys, time
def ok(good, what): print('ok' if good else 'not ok', '-', what)
text = open(sys.argv[1]).read()
now = [json.loads(l) for l in open(sys.argv[2])]
name, label = r'[a-zA-Z_:][a-zA-Z0-9_:]*', r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
number = r'(?:[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|Inf)|NaN)'
sample = re.compile(rf'({name})(?:\{{({label}(?:,{label})*)?\}})? ({number})$')
families, seen, bad, last, value = {}, set(), [], None, {}
for l in text.split('\n')[:-1]:
    m = re.match(rf'# (HELP|TYPE) ({name}) (.+)$', l)
    if m:
        f = families.setdefault(m[2], {})
        if m[1] in f or 'sample' in f: bad.append(l)
        f[m[1]] = m[3]
        last = m[2]
        continue
    m = sample.match(l)
    if not m: bad.append(l); continue
    key = (m[1], m[2])
    if key in seen or m[1] != last: bad.append(l)   # each sample once, those of a family together
    seen.add(key)
    families.get(m[1], {})['sample'] = True
    value[key] = float(m[3])
ok(text.endswith('\n') and not bad, f'{len(value)} samples, every line by the format' + (f', but not {bad[0]}' if bad else ''))
ok(all(set(f) == {'HELP', 'TYPE', 'sample'} and f['TYPE'] in ('gauge', 'counter') for f in families.values()), 'each family has help, a type and samples')
ok(all((f['TYPE'] == 'counter') == n.endswith('_total') for n, f in families.items()), 'counters end in _total, and they alone')
def get(n, **kw):
    hits = [v for (m, l), v in value.items() if m == 'pretrain_' + n and all(f'{k}="{x}"' in (l or '') for k, x in kw.items())]
    return hits[0] if len(hits) == 1 else None
r = now[-1]
near = lambda x, y: x is not None and abs(x - y) <= 1e-12 * abs(y)
compared = [x['ranks'] for x in now if 'ranks' in x][-1]
ok(get('step') == r['step'] and near(get('loss'), r['loss']) and get('tokens_total') == r['tokens'] and near(get('part_seconds', part='backward'), r['parts']['backward_s'])
   and near(get('exposed_seconds', axis='dp_shard'), r['exposed']['dp_shard']) and near(get('comm_share'), compared['comm_share']), 'the values are those of the last record')
ok(near(get('slowest_rank_excess', rank=compared['slowest']), compared['excess']) and 0 <= time.time() - get('record_time_seconds') < 60, 'the slowest rank, and when it was written')
if len(sys.argv) < 4:
    ok('run="d/a \\"b\\""' in text and near(get('eval_loss'), [x['eval_loss'] for x in now if 'eval_loss' in x][-1]), 'labels are escaped; the last validation stands')
else:
    g = [x['gpus'] for x in now if 'gpus' in x]
    ok(len(g) == 2 and all(x['n'] == 2 and x['memory_used_max'] == 100 << 30 and abs(x['power_w'] - 2 * 612.345) < 1e-9 and x['clock_mhz_min'] == 1755 and x['memory_clock_mhz_min'] == 3201
       and x['temperature_c_max'] == 61 and x['throttle'] == ['power_cap', 'hardware_thermal'] for x in g), 'metrics.jsonl: memory, power, clocks, temperature, throttle reasons of both')
    ok(0.2 < g[-1]['utilization'] < 0.95 and 0.1 < g[-1]['idle'] < 0.7 and abs(g[-1]['utilization'] - 0.98 * (1 - g[-1]['idle'])) < 1e-9, f"utilisation {g[-1]['utilization']:.2f} is the mean of samples, {g[-1]['idle']:.2f} of them idle")
    ok(get('gpu_power_watts', rank=1) == 612.345 and get('gpu_clock_hertz', rank=0) == 1755e6 and get('gpu_throttled', rank=1, reason='power_cap') == 1
       and get('gpu_throttled', rank=1, reason='power_brake') == 0 and get('gpu_memory_used_bytes', rank=0) == 100 << 30, 'and for Prometheus, by rank')
