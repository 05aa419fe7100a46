"""A run on a terminal, alone and under mpiexec: terminal.py MPIEXEC PROGRAM, in the folder of run.yaml; prints TAP points without numbers."""
import fcntl, os, pty, re, struct, subprocess, sys, termios
def ok(good, what): print('ok' if good else 'not ok', '-', what)
def run(args, out=None):
    main, sub = pty.openpty()
    fcntl.ioctl(sub, termios.TIOCSWINSZ, struct.pack('HHHH', 40, 72, 0, 0))
    p = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=out or sub, stderr=subprocess.STDOUT if out is None else sub, start_new_session=True)
    os.close(sub)
    text = b''
    while True:
        try: part = os.read(main, 65536)
        except OSError: break
        if not part: break
        text += part
    os.close(main)
    return p.wait(), text.decode()
mpiexec, prog = sys.argv[1:]
more = ['--train.steps', '40', '--eval.batches', '0', '--run.save', 'false', '--debug.slow_rank', '0', '--debug.slow_ms', '20']
for name, args in (('alone', [prog, 'run.yaml', '--run.dir', 'y1']), ('under mpiexec', [mpiexec, '-n', '2', prog, 'run.yaml', '--run.dir', 'y2'])):
    rc, text = run(args + more)
    drawn = re.findall('\r(step[^\r\n]*?)\033\\[K', text)
    ok(rc == 0 and len(drawn) >= 2 and all(len(l) < 72 for l in drawn), f'{name}: the line is drawn {len(drawn)} times, within the terminal')
    ok(all(re.match(r'step +\d+/40  loss [0-9.]+  \d+ tokens/s  mem [0-9.]+ .iB  left \d:\d\d$', l) for l in drawn), f'{name}: step, loss, tokens/s, memory, time left: {drawn[-1] if drawn else ""}')
    ok(re.search(r'\r\033\[Kstep 40/40  loss .*left 0:00', text), f'{name}: the last stays, whole')
with open('piped', 'w') as f: rc, _ = run([mpiexec, '-n', '2', prog, 'run.yaml', '--run.dir', 'y3'] + more, out=f)
ok(rc == 0 and '\r' not in open('piped').read(), 'mpiexec into a file from a terminal: plain lines')
