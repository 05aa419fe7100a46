"""Event files of RUN against its metrics.jsonl, as TAP points without numbers.
  events.py own RUN           by a reader of ours: lengths, checksums and fields of every record
  events.py tensorboard RUN   by TensorBoard's own"""
import glob, json, math, os, struct, sys

def crc32c(data):
    c = 0xffffffff
    for b in data:
        c ^= b
        for _ in range(8): c = (c >> 1) ^ (0x82f63b78 if c & 1 else 0)
    return c ^ 0xffffffff
assert crc32c(b'123456789') == 0xe3069283   # the check value of the catalogue of CRCs
def masked(data):
    c = crc32c(data)
    return (((c >> 15) | (c << 17)) + 0xa282ead8) & 0xffffffff

def records(path):
    data, at = open(path, 'rb').read(), 0
    while at < len(data):
        n, = struct.unpack_from('<Q', data, at)
        body = data[at + 12:at + 12 + n]
        good = len(body) == n and struct.unpack_from('<I', data, at + 8)[0] == masked(data[at:at + 8]) and struct.unpack_from('<I', data, at + 12 + n)[0] == masked(body)
        if not good: raise ValueError(f'{path}: a record at byte {at} has a wrong checksum')
        yield body
        at += 16 + n

def varint(b, at):
    v = shift = 0
    while True:
        v |= (b[at] & 127) << shift
        shift += 7
        at += 1
        if b[at - 1] < 128: return v, at

def fields(b):
    at = 0
    while at < len(b):
        key, at = varint(b, at)
        wire = key & 7
        if wire == 0: v, at = varint(b, at)
        elif wire == 1: v, at = struct.unpack_from('<d', b, at)[0], at + 8
        elif wire == 5: v, at = struct.unpack_from('<f', b, at)[0], at + 4
        elif wire == 2:
            n, at = varint(b, at)
            v, at = b[at:at + n], at + n
        else: raise ValueError(f'wire type {wire}')
        yield key >> 3, v

def f32(x): return struct.unpack('<f', struct.pack('<f', x))[0]
def ok(good, what): print('ok' if good else 'not ok', '-', what)

run = sys.argv[2]
now = [json.loads(l) for l in open(run + '/metrics.jsonl')]
want = {'train/loss': {r['step']: r['loss'] for r in now}, 'train/grad_norm': {r['step']: r['grad_norm'] for r in now}, 'train/lr': {r['step']: r['lr'] for r in now},
        'speed/step_s': {r['step']: r['seconds'] for r in now}, 'valid/loss': {r['step']: r['eval_loss'] for r in now if 'eval_loss' in r},
        'time/backward': {r['step']: r['parts']['backward_s'] for r in now}, 'exposed/dp_shard': {r['step']: r['exposed']['dp_shard'] for r in now},
        'speed/comm_share': {r['step']: r['comm_share'] for r in now}}
steps = [r['step'] for r in now]

def same(got, want): return sorted(got) == sorted(want) and all(got[s] == f32(want[s]) for s in want)

if sys.argv[1] == 'own':
    files = sorted(glob.glob(run + '/tensorboard/events.out.tfevents.*'), key=os.path.getmtime)
    ok(len(files) == 2, 'an event file for each launch')
    got, starts, walls = {}, [], []
    for path in files:
        for i, body in enumerate(records(path)):
            e = dict(fields(body))
            walls.append(e[1])
            if i == 0: version = e.get(3)
            elif 7 in e: starts.append((e[2], dict(fields(e[7]))))
            for _, v in fields(e.get(5, b'')):
                v = dict(fields(v))
                got.setdefault(v[1].decode(), {})[e[2]] = v[2]
    ok(version == b'brain.Event:2' and starts == [(1, {1: 1}), (5, {1: 1})], 'checksums hold; version first, then where the session starts')
    ok(walls == sorted(walls), 'times go on')
    for tag in want: ok(same(got.get(tag, {}), want[tag]), f'{tag} is that of metrics.jsonl, steps {sorted(got.get(tag, {}))}')
    ok(sum(len(v) for v in got.values()) > 15 * len(steps), f'{len(got)} scalars')
else:
    import tensorboard
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    a = EventAccumulator(run + '/tensorboard', size_guidance={'scalars': 0})
    a.Reload()
    ok(set(want) <= set(a.Tags()['scalars']), f'TensorBoard {tensorboard.__version__} reads the tags')
    for tag in want:
        e = a.Scalars(tag)
        ok([x.step for x in e] == sorted(want[tag]) and all(x.value == f32(want[tag][x.step]) for x in e), f'{tag}: steps {[x.step for x in e]}, the older launch is cut at step 5')
