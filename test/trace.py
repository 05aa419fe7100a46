"""A trace of run.profile as TAP points without numbers: trace.py FILE METRICS FIRST LAST RANKS NODES F B OPT, the last three how many actions of these kinds a step has on each rank."""
import collections, json, sys
def ok(good, what): print('ok' if good else 'not ok', '-', what)
trace, metrics = json.load(open(sys.argv[1])), [json.loads(l) for l in open(sys.argv[2])]
first, last, ranks, nodes, *acts = map(int, sys.argv[3:])
events, about = trace['traceEvents'], trace['otherData']
steps = list(range(first, last + 1))
ok((about['first_step'], about['last_step'], about['ranks'], about['nodes']) == (first, last, ranks, nodes), f"steps {first} to {last} of {ranks} ranks on {nodes} nodes")
spans = [e for e in events if e['ph'] == 'X']
named = {(e['pid'], e['tid']): e['args']['name'] for e in events if e['name'] == 'thread_name'}
procs = {e['pid']: e['args']['name'] for e in events if e['name'] == 'process_name'}
ok({e['pid'] for e in spans} == set(range(ranks)) == set(procs) and all(procs[r].startswith(f'rank {r} on ') and ': dp ' in procs[r] for r in procs), f'ranks are named: {procs[0]}')
ok({(e['pid'], e['tid']) for e in spans} == set(named) and all({'host', 'compute'} <= {n for (p, t), n in named.items() if p == r} for r in procs), 'queues are named: ' + ', '.join(sorted(set(named.values()))))
lanes = collections.defaultdict(list)
for e in spans: lanes[e['pid'], e['tid']].append((e['ts'], e['ts'] + e['dur'], e))
bad = 0
for l in lanes.values():
    stack = []
    for a, b, e in sorted(l, key=lambda x: (x[0], -x[1])):
        while stack and stack[-1] <= a + 0.0015: stack.pop()   # a nanosecond of rounding
        bad += bool(stack) and b > stack[-1] + 0.0015
        stack.append(b)
ok(not bad, f'{len(spans)} spans nest on their threads')
ok(all(e['dur'] >= 0 for e in spans) and -1 <= min(e['ts'] for e in spans if e['pid'] == 0) < 1e6, 'none is negative, rank 0 begins at 0')
step = {(e['pid'], int(e['name'].split()[1])): (e['ts'], e['ts'] + e['dur']) for e in spans if e['name'].startswith('step ') and e['cat'] == 'host'}
ok(set(step) == {(r, s) for r in range(ranks) for s in steps}, 'each step on each rank')
near = about['device_error_us'] + 0.01   # host and device of a rank
slack = 2 * (about['clock_error_us'] + about['device_error_us']) + 0.01
ok(all(max(step[r, s][0] for r in range(ranks)) < min(step[r, s][1] for r in range(ranks)) + slack for s in steps), 'at one time')
want = ['F'] * acts[0] + ['B'] * acts[1] + ['OPT'] * acts[2]
def kinds(r, s):
    a, b = step[r, s]
    return [e['name'].split()[0] for e in spans if e['pid'] == r and e['cat'] == 'phase' and a - near <= e['ts'] and e['ts'] + e['dur'] <= b + near]
ok(all(sorted(kinds(r, s)) == sorted(want) for r in range(ranks) for s in steps), f'the actions of a step: {" ".join(kinds(0, first))}')
inside = [e for e in spans if e['cat'] in ('operation', 'wait') and named[e['pid'], e['tid']] == 'compute']
phases = collections.defaultdict(list)
for e in spans:
    if e['cat'] == 'phase': phases[e['pid']].append((e['ts'], e['ts'] + e['dur']))
held = sum(any(a - 0.01 <= e['ts'] and e['ts'] + e['dur'] <= b + 0.01 for a, b in phases[e['pid']]) for e in inside)
ok(held > 0.9 * len(inside), f'{held} of {len(inside)} operations and waits of compute queues lie in an action')
groups = collections.defaultdict(list)
for e in spans:
    if e['cat'] == 'collective' and e['name'] not in ('send', 'receive'): groups[e['name'], e['args']['group'], e['args']['number']].append(e)
whole = {k: v for k, v in groups.items() if len(v) == v[0]['args']['ranks'] == len({e['pid'] for e in v})}
ok(len(whole) == len(groups) and (whole or ranks == 1), f'{len(groups)} collectives are on all their ranks')
off = ranks == 1 and [0] or [min(e['ts'] + e['dur'] for e in v) - max(e['ts'] for e in v) for v in whole.values()]
ok(min(off) > -slack, f"each overlaps on all of them (clocks agree to {about['clock_error_us']:.1f} us), the least by {min(off):.1f} us")
sent = collections.Counter(e['name'] for e in spans if e['cat'] == 'collective')
ok(sent['send'] == sent['receive'], f"{sent['send']} sends, as many received")
for axis in {g for r in metrics for g in r['comm']}:
    here = sum(e['args']['bytes'] for e in spans if e['pid'] == 0 and e['cat'] == 'collective' and e['args']['group'].startswith(axis + ' of rank'))
    told = sum(k['bytes'] for r in metrics if first <= r['step'] <= last for k in r['comm'].get(axis, {}).values())
    ok(here == told, f'{axis}: {here} bytes of rank 0, as metrics.jsonl has them')
