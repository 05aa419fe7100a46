#!/bin/sh
# pretrain doctor: what it says of this launch, with faults provoked; and of runs, each row of the trouble-shooting table with a run that has the symptom. Prints TAP.
set -u
here=$(cd "${builddir:-.}" && pwd)
program=$here/src/pretrain
export OMP_NUM_THREADS=1 MPIEXEC_TIMEOUT=60
tmp=$(mktemp -d) && cd "$tmp" || exit 99
trap 'umount "$tmp/small" 2>/dev/null; rm -rf "$tmp"' EXIT
n=0
ok () { n=$((n + 1)); if [ "$1" = "$2" ]; then echo "ok $n - $3"; else echo "not ok $n - $3"; echo "# '$1' is not '$2'"; cat said out | sed 's/^/# /' | tail -n 12; fi; }
skip () { n=$((n + 1)); echo "ok $n - $1 # SKIP $2"; }
launch () { ranks=$1; shift; "${MPIEXEC:-mpiexec}" -n "$ranks" "$@" >out 2>said </dev/null; rc=$?; }
doctor () { "$program" doctor "$@" >out 2>said </dev/null; rc=$?; }
# This launch, again while others keep the disk busy: that is found, rightly.
calm () { i=0; while launch "$@"; [ $i -lt 5 ] && [ "$(wrong 'MB/s with sync')" != 0 ]; do echo "# the disk is busy"; sleep 2; i=$((i + 1)); done; }
wrong () { grep '^wrong:' out | grep -c -- "$1"; }
lines () { grep -c '^wrong:' out; }
advice () { grep -A 1 -- "$1" out | grep -c -- "^   do: .*$2"; }

# ---- this launch
calm 2 "$program" doctor
ok "$rc $(lines) $(grep -c '^ranks  *2 on 1 node$' out) $(grep -c '^MPI  *MPICH.*threads: ' out) $(grep -c '^link  *inside a node: [0-9.]* GB/s' out) $(grep -c '^disk .*with sync, file locks: yes' out)" \
   "0 0 1 1 1 1" "a good launch: ranks, MPI, a link, a disk, and nothing is wrong"
calm 1 "$program" doctor
ok "$rc $(grep -c '^note:  this is one rank alone' out)" "0 1" "one rank alone: a note, as of N singletons"
if [ "$(getconf _NPROCESSORS_ONLN)" -gt 1 ]; then
  core=$(taskset -pc $$ | sed 's/.*: //; s/[,-].*//')
  calm 2 taskset -c "$core" "$program" doctor
  ok "$rc $(wrong 'ranks of node 0 .* may only use 1 of its') $(advice 'may only use' 'bind-to core')" "2 1 1" "all ranks on one core"
else skip "all ranks on one core" "there is one"; fi
calm 2 env OMP_NUM_THREADS=$((4 * $(getconf _NPROCESSORS_ONLN))) "$program" doctor
ok "$rc $(wrong 'OMP_NUM_THREADS makes') $(advice OMP_NUM_THREADS 'unset')" "2 1 1" "more threads than cores"
calm 4 env MPIR_CVAR_NUM_CLIQUES=2 "$program" doctor --model tiny --mesh.tp 4
ok "$rc $(wrong 'the tp group of ranks 0-3 spans node 0') $(advice 'tp group' 'mesh.tp at most the ranks of a node') $(grep -c '^link  *between nodes' out)" "2 1 1 1" "tp over nodes"
calm 4 env MPIR_CVAR_NUM_CLIQUES=2 "$program" doctor --model tiny --mesh.tp 2 --mesh.order dp-tp-pp
ok "$rc $(lines)" "0 0" "tp inside of nodes is none"
calm 2 "$program" doctor --dir "$tmp/no/such"
ok "$rc $(wrong 'no/such cannot be written')" "2 1" "a folder that cannot be written"
mkdir checkpoints
calm 2 env LD_PRELOAD="$here/test/fault.so" FAULT=flock:37 "$program" doctor --dir "$tmp/checkpoints"
ok "$rc $(wrong 'has no file locks: No locks available') $(advice 'file locks' 'flock')" "2 1 1" "a file system without locks"
launch 2 env LD_PRELOAD="$here/test/fault.so" FAULT=fsync:0 FAULT_US=2000000 "$program" doctor --dir "$tmp/checkpoints"
ok "$rc $(wrong 'MB/s with sync: a checkpoint of a model of 1e9 parameters') $(advice 'with sync:' 'run.dir')" "2 1 1" "a slow disk"
mkdir small
if mount -t tmpfs -o size=32m none small 2>/dev/null; then
  calm 2 env UCX_POSIX_DIR="$tmp/small" "$program" doctor
  ok "$rc $(wrong "$tmp/small of host .* MPI takes 4.4 MB a rank") $(advice 'MPI takes' 'shm-size')" "2 1 1" "little shared memory"
else skip "little shared memory" "no folder can be mounted here"; fi
mkdir bin; cp "$program" bin/pretrain; cp "$here/test/fake_cuda.so" bin/cuda.so
calm 2 env FAKE_GPUS=0:a,0:a bin/pretrain doctor --device cuda
ok "$rc $(wrong 'would all use the GPU') $(advice 'would all use' 'CUDA_VISIBLE_DEVICES')" "2 1 1" "all ranks on one GPU"
ok "$(grep -c '^NCCL  *NCCL 1.2.3 (fake)$' out)" 1 "the libraries of the GPU's device are told"
launch 2 "$program" doctor --device cpu
ok "$rc $(grep -c "^NCCL  *not \(there: this build is without CUDA\|opened: no GPU is in use\)$" out)" "0 1" "or that there are none"
# a rank that lacks what the others have: once each a hang
echo 'model: tiny' >here.yaml
launch 2 env LD_PRELOAD="$here/test/fault.so" FAULT=path:2 FAULT_RANK=1 FAULT_PATH=here.yaml "$program" doctor here.yaml
ok "$rc $(grep -c . said) $(grep -c '^pretrain: rank 1: doctor: here.yaml: No such file' said)" "2 1 1" "a file of options that one rank does not see: $(cat said)"
# ranks that see a driver, in a /dev of their own
own_dev () {
  unshare -m sh -c 'mkdir dev && mount -t tmpfs none dev && mkdir dev/shm && mount --bind /dev/shm dev/shm && cp -a /dev/null /dev/zero /dev/random /dev/urandom dev/ && ln -s /proc/self/fd dev/fd &&
    touch dev/nvidiactl && mount --rbind dev /dev || exit 99; exec "$@"' sh "$@"
}
if own_dev true 2>/dev/null; then
  rmdir dev
  own_dev "${MPIEXEC:-mpiexec}" -n 2 env LD_PRELOAD="$here/test/fault.so" FAULT=access:2 FAULT_RANK=1 FAULT_PATH=nvidiactl FAKE_GPUS=0:a,0:b bin/pretrain doctor >out 2>said </dev/null; rc=$?
  ok "$rc $(wrong 'host .* has no NVIDIA driver (/dev/nvidiactl is missing), others have')" "2 1" "a node without the driver that others have"
else skip "a node without the driver that others have" "no /dev of its own can be made here"; fi

# ---- runs
seq 1 9000 >text.txt
"$program" tokenize --tokenizer bytes text.txt a.h5 >said 2>&1 || { echo "Bail out! no tokens"; exit 1; }
cat >run.yaml <<'S'
model: {dim: 32, layers: 4, heads: 4, kv_heads: 2, ffn: 64, vocab: 257}
data: {train: a.h5}
run: {device: cpu, threads: 1, save_every: 0, log_every: 100}
eval: {batches: 0}
train: {seq_len: 32, micro_batch: 2, global_batch: 8, dtype: fp32, steps: 12}
schedule: {warmup: 2}
S
run () { ranks=$1 dir=$2; shift 2; launch "$ranks" "$program" run.yaml --run.dir "$dir" "$@"; }

run 1 one --run.save_every 4; a=$rc; doctor one
ok "$a $rc $(lines) $(grep -c '^one: 12 steps, done' out)" "0 0 0 1" "a good run: nothing is wrong"
run 1 large --model llama2-70b --model.vocab 32000; a=$rc; doctor large
ok "$a $rc $(lines) $(wrong 'out of memory before the first step: .*do not fit') $(advice 'out of memory' 'recompute.mode full.*more ranks')" "2 2 1 1 1" "out of memory before the first step"
run 2 two --train.steps 16 --debug.comm_delay_ms 4; a=$rc; doctor one two
ok "$a $rc $(wrong 'throughput falls with more ranks: [0-9]* tokens/s on 1 ranks (one), [0-9]* on 2 (two).*waits most for dp_shard') $(advice 'throughput falls' 'HYBRID_SHARD')" "0 2 1 1" "throughput that falls with more ranks"
ok "$(wrong 'in each step computation stands still for communication, [0-9]* % of the time, most of it for dp_shard') $(advice 'stands still for communication' 'HYBRID_SHARD')" "1 1" \
   "computation that stands still again and again"
for k in head middle; do
  rm -rf bad; cp -R one bad; f=bad/checkpoints/step_00000012.h5
  if [ $k = head ]; then dd if=/dev/zero of=$f bs=64 count=1 conv=notrunc 2>/dev/null; else dd if=/dev/zero of=$f bs=1 count=0 seek=$(($(wc -c <$f) / 2)) 2>/dev/null; fi
  doctor bad
  ok "$rc $(wrong 'a checkpoint does not load: bad/checkpoints/step_00000012.h5') $(advice 'does not load' 'pretrain verify.*goes on from the one before it (step 8)')" "2 1 1" "a checkpoint that does not load, $k"
done
run 2 hot --optimizer.lr 30 --optimizer.clip 0 --train.steps 40; a=$rc; doctor hot
ok "$a $rc $(wrong 'the loss diverges: from [0-9.]* around step [0-9]* it has risen to .*peak learning rate 30') $(advice 'loss diverges' 'a smaller optimizer.lr.*optimizer.clip 1.0 (it is off)')" "0 2 1 1" "a loss that diverges"
run 2 nan --debug.nan_rank 0 --debug.nan_step 3 --train.max_bad_steps 1; a=$rc; doctor nan
ok "$a $rc $(wrong 'the loss diverges: diverged: 1 steps in a row')" "5 2 1" "one that is not finite"

# ---- killed without a word: exit.json as it is while a run goes on, and who holds the folder
cp -R one dead
echo '{"code": 4, "reason": "still running, or ended without a word: killed (kill -9, no memory left, a lost node)", "step": 0, "rank": 0, "host": "x", "phase": "step 12", "time": 1700000000}' >dead/exit.json
rm dead/checkpoints/step_00000012.h5
doctor dead
ok "$rc $(grep -c '^dead: 12 steps, killed$' out) $(wrong 'it was killed after step 12 without a word') $(advice 'it was killed' 'the checkpoint of step 8, and does 4 steps again')" "2 1 1 1" "a run that was killed"
python3 -c '
import fcntl, subprocess, sys
f = open("dead/.lock", "r+"); fcntl.lockf(f, fcntl.LOCK_EX)
sys.exit(subprocess.call(sys.argv[1:]))' "$program" doctor dead >out 2>said; rc=$?
ok "$rc $(grep -c '^dead: 12 steps, it runs$' out) $(grep -c 'killed' out)" "0 1 0" "one that runs: its folder is held"
echo 'process 7 on host elsewhere' >dead/.lock
doctor dead
ok "$rc $(lines) $(grep -c '^note:  if it runs no more it was killed after step 12' out)" "0 0 1" "one of another host, whose locks are perhaps not seen here: a note"
if [ "$(getconf _NPROCESSORS_ONLN)" -gt 1 ]; then
  taskset -c "$core" "${MPIEXEC:-mpiexec}" -n 2 "$program" run.yaml --run.dir crowd --train.steps 40 --debug.comm_delay_ms 8 >out 2>said </dev/null; a=$?; doctor crowd
  ok "$a $rc $(lines) $(grep -c '^note:  in each step ranks wait.*2 of them share 1 core: most of it is for a turn' out)" "0 0 0 1" "more ranks than cores: the waits say nothing of the mesh"
fi

doctor one/metrics.jsonl; a=$rc; doctor no.such
ok "$a $rc $(grep -c 'no.such' said)" "2 2 1" "what is no folder of a run: $(cat said)"
echo "1..$n"
