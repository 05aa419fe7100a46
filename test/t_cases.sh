#!/bin/sh
# Faults of other systems, tried on the program itself: ranks that differ, ranks that die, stops, full disks, odd options. Each must end in
# bounded time with the right exit code and one sentence. Prints TAP.
set -u
program=$(cd "${builddir:-.}" && pwd)/src/pretrain
python=${PYTHON:-/usr/bin/python3}
export OMP_NUM_THREADS=1 MPIEXEC_TIMEOUT=60 program
tmp=$(mktemp -d) && cd "$tmp" || exit 99
trap 'rm -rf "$tmp"' EXIT
n=0
ok () { n=$((n + 1)); if [ "$1" = "$2" ]; then echo "ok $n - $3"; else echo "not ok $n - $3"; echo "# '$1' is not '$2'"; sed 's/^/# /' said | tail -n 12; fi; }
skip () { n=$((n + 1)); echo "ok $n - $1 # SKIP $2"; }
mpi () { "${MPIEXEC:-mpiexec}" "$@" >out 2>said </dev/null; rc=$?; }
run () { ranks=$1 dir=$2; shift 2; mpi -n "$ranks" "$program" run.yaml --run.dir "$dir" "$@"; }
# Each rank leaves its process id in pid.NAME.RANK.
cat >launch.sh <<'S'
echo $$ >"pid.$1.$PMI_RANK"; shift; exec "$program" "$@"
S
start () { name=$1; shift; ( "${MPIEXEC:-mpiexec}" $flags -n 4 sh launch.sh "$name" run.yaml --run.dir "$name" "$@" >"$name.out" 2>"$name.said" </dev/null; echo $? >"$name.rc" ) & }
until_step () { i=0; while [ $i -lt 600 ] && [ "$(cat "$1/metrics.jsonl" 2>/dev/null | wc -l)" -lt "$2" ]; do sleep 0.1; i=$((i + 1)); done; }
ended () { i=0; while [ ! -s "$1.rc" ] && [ $i -lt 600 ]; do sleep 0.1; i=$((i + 1)); done; }
steps () { sed -n 's/.*"step":\([0-9]*\),.*/\1/p' "$1/metrics.jsonl" | tr '\n' ' '; }
losses () { sed -n 's/.*"loss":\([^,]*\),.*/\1/p' "$1/metrics.jsonl" | tr '\n' ' '; }
code () { sed -n 's/.*"code": \([0-9]*\),.*/\1/p' "$1/exit.json"; }
says () { grep -c -- "$1" said | sed 's/^1$/yes/'; }
lines () { grep -c . said; }

seq 1 3000 >text.txt
seq 5 3004 >other.txt
mkdir elsewhere empty
"$program" tokenize --tokenizer bytes text.txt a.h5 >said 2>&1 && "$program" tokenize --tokenizer bytes other.txt elsewhere/a.h5 >said 2>&1 ||
  { echo "Bail out! no tokens"; exit 1; }
cat >run.yaml <<'S'
model: {dim: 16, layers: 2, heads: 4, kv_heads: 2, ffn: 32, vocab: 257}
data: {train: a.h5}
run: {device: cpu, threads: 1, save_every: 0, log_every: 100}
eval: {batches: 0}
train: {seq_len: 16, micro_batch: 1, global_batch: 4, dtype: fp32, steps: 5}
schedule: {warmup: 2, steps: 40}
S
sed 's/seq_len: 16/seq_len: 32/' run.yaml >longer.yaml
sed 's/steps: 5}/steps: 5, lerning_rate: 1}/' run.yaml >typo.yaml
cp run.yaml longer.yaml elsewhere; cp run.yaml empty

# ---- a rank that dies, and one that stands still: these wait for the watchdog while the rest goes on
flags=
start killed --train.steps 100000 --run.save_every 1 --run.watchdog 30
flags=-disable-auto-cleanup
start frozen --train.steps 100000 --run.watchdog 4
until_step killed 3; kill -KILL "$(cat pid.killed.1)"
until_step frozen 3; kill -STOP "$(cat pid.frozen.2)"

# ---- ranks that differ
own="run.yaml --run.dir d"
mpi -n 3 "$program" $own : -n 1 "$program" longer.yaml --run.dir d
ok "$rc $(lines) $(says 'rank 3 differs in configuration: train.seq_len: 32 vs 16 on rank 0')" "2 1 yes" "one rank with another configuration file"
mpi -n 3 "$program" $own : -n 1 "$program" $own --train.seed 2
ok "$rc $(lines) $(says 'rank 3 differs in configuration: train.seed: 2 vs 1')" "2 1 yes" "one rank with another seed"
cp "$program" p2 && echo x >>p2
mpi -n 3 "$program" $own : -n 1 ./p2 $own
ok "$rc $(lines) $(says 'rank 3 differs in binary')" "2 1 yes" "one rank with another binary"
mpi -n 3 "$program" $own : -wdir "$tmp/elsewhere" -n 1 "$program" $own
ok "$rc $(lines) $(says 'rank 3 differs in data: a.h5')" "2 1 yes" "one rank that sees other tokens under the same name"
mpi -n 3 "$program" $own : -wdir "$tmp/empty" -n 1 "$program" $own
ok "$rc $(lines) $(says 'rank 3: cannot open a.h5: No such file')" "2 1 yes" "one rank that does not see the tokens"
mpi -n 3 "$program" $own : -n 1 "$program" typo.yaml --run.dir d
ok "$rc $(lines) $(says 'rank 3: typo.yaml line 5: train.lerning_rate')" "2 1 yes" "one rank whose file has a typing error"
mpi -n 4 "$program" typo.yaml --run.dir d
ok "$rc $(lines) $(says '^pretrain: typo.yaml line 5: train.lerning_rate: there is no such option; the nearest is')" "2 1 yes" "all have it: said once"
ok "$(ls -d d 2>&1 | grep -c 'No such')" 1 "and nothing was made for any of them"

# ---- the launch
env SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4 "$program" run.yaml --run.dir d >out 2>said; rc=$?
ok "$rc $(lines) $(says 'srun started 4 processes')" "2 1 yes" "srun that started 4 single programs"
run 2 threads --run.threads 0
ok "$rc $(grep -c 'ranks of a node: 2 on [0-9]* cores*, 1 compute thread each' out)" "0 1" "ranks of the node and their threads are printed"
unset OMP_NUM_THREADS
run 2 default --run.threads 0
run 2 three --run.threads 3
export OMP_NUM_THREADS=1
ok "$(losses default)$(losses three)" "$(losses threads)$(losses threads)" "default threads and 3: the same losses"
run 2 d --run.threads 300
ok "$rc $(lines)" "2 1" "more threads than can be: refused"

# ---- what the model and the data cannot
run 4 d --model.heads 12 --model.kv_heads 3 --model.head_dim 2 --mesh.tp 4
ok "$rc $(lines) $(says 'kv_heads 3.*tp 4')" "2 1 yes" "3 KV heads by tp 4: $(cat said)"
"$python" -c "
import array
ids = array.array('H', [i % 257 for i in range(2000)])
ids[1000] = 262
open('bad.u16', 'wb').write(ids.tobytes())"
run 1 d --data.train bad.u16 --train.steps 100; one="$rc $(sed 's/rank [0-9]*: //' said)"
run 4 d --data.train bad.u16 --train.steps 100 --mesh.tp 4; four="$rc $(sed 's/rank [0-9]*: //' said)"
ok "$one" "$four" "an id outside the vocabulary: the same on 1 rank and tp 4"
ok "$rc $(lines) $(says 'bad.u16.*262.*byte 2000.*257')" "2 1 yes" "with file, id, offset and vocabulary: $(cat said)"
run 1 d --data.train bad.u16 --model.vocab 70000
ok "$rc $(lines) $(says 'bad.u16')" "2 1 yes" "a vocabulary of 70000 and 16 bits: $(cat said)"
for f in 8 32; do run 1 rope$f --model.rope_scaling.factor $f --model.rope_scaling.original 4 --train.steps 1; done
ok "$rc $([ "$(losses rope8)" = "$(losses rope32)" ] && echo same || echo other)" "0 other" "rope_scaling.factor reaches the model"
seq 1 19 >few.txt; "$program" tokenize --tokenizer bytes few.txt few.h5 >said 2>&1   # 50 tokens: 3 sequences and a rest
run 4 few --data.train few.h5 --data.valid_fraction 0
ok "$rc $(steps few)" "0 1 2 3 4 5 " "fewer sequences than ranks, and a rest: all ranks do all steps"
run 4 d --data.train few.h5 --train.seq_len 64
ok "$rc $(lines) $(says 'few.h5: its [0-9]* tokens are fewer than one sample of 64')" "2 1 yes" "not one sequence: said"
act () { run 1 "$1" --recompute.mode "$1" --train.steps 1; sed -n 's/.*"activations":\([0-9]*\).*/\1/p' "$1/metrics.jsonl"; }
a=$(act none) b=$(act selective) c=$(act full)
ok "$([ "$a" -gt "$b" ] && [ "$b" -gt "$c" ] && echo falls) $(losses none)" "falls $(losses full)" "recomputation: activations of $a, $b, $c bytes, the same loss"
run 2 valid --eval.batches 9 --eval.every 2 --data.valid_fraction 0.001 --train.global_batch 512
ok "$rc $(grep -c '"eval_loss":5\.' valid/metrics.jsonl)" "0 3" "validation on less than a batch"

# ---- values that are not finite
run 4 nan --debug.nan_rank 2 --debug.nan_step 2
ok "$rc $(steps nan)$(grep '"skipped":true' nan/metrics.jsonl | grep -c '"step":2,') $(grep -c '"skipped":true' nan/metrics.jsonl) $(says 'step 2 skipped')" "0 1 2 3 4 5 1 1 yes" \
   "a NaN on one rank: that step is skipped and counted"
run 2 diverged --optimizer.lr 1e30 --schedule.type constant --schedule.warmup 1 --train.steps 100 --train.max_bad_steps 3
ok "$rc $(code diverged) $(steps diverged)$(says 'diverged: 3 steps in a row')" "5 5 1 2 3 4 yes" "3 such steps in a row: exit 5"

# ---- stops, and going on
run 4 whole --train.steps 30
mkdir parts; touch parts/stop
run 4 parts --train.steps 30; a=$rc$(code parts)
run 4 parts --train.steps 30 --run.max_minutes 0.00001; a=$a$rc$(code parts)
flags=
start parts --train.steps 30 --debug.comm_delay_ms 40
until_step parts 4; for r in 3 3 0; do kill -TERM "$(cat pid.parts.$r)"; done; ended parts   # as a batch system and a launcher do together
a=$a$(cat parts.rc)$(code parts)
run 4 parts --train.steps 30; a=$a$rc$(code parts)
ok "$a $(losses parts)" "33333300 $(losses whole)" "the file stop, max_minutes and SIGTERM: exit 3, and the losses of a run that was not stopped"
run 2 parts --train.steps 30
ok "$rc $(grep -c 'nothing to do' out) $(code parts)" "0 1 0" "a finished run started again, on other ranks"
run 2 parts --train.steps 30 --model.dim 32
ok "$rc $(lines) $(says 'another model') $(code parts)" "2 1 yes 2" "another model on it"
run 2 parts --train.steps 30 --run.resume false
ok "$rc $(lines) $(says 'parts holds checkpoints up to step 30')" "2 1 yes" "a run anew on it"
run 4 parts --train.steps 32
newest=$(ls parts/checkpoints/*32.h5)
printf 'XXXX' | dd of="$newest" bs=1 seek=$(($(wc -c <"$newest") / 2)) conv=notrunc 2>/dev/null
run 4 parts --train.steps 33
ok "$rc $(says 'step_00000032.h5') $(grep -c 'resumed at step 30' out)" "0 yes 1" "a damaged checkpoint: the one before, and a warning"

"$program" verify parts/checkpoints/*33.h5 "$newest" >out 2>said; rc=$?
ok "$rc $(grep -c '33.h5 is good: step 33' out) $(cat out said | grep -c '32.h5 is damaged')" "4 1 1" "pretrain verify tells the good one from the damaged"
"$program" sample parts --prompt 12 --tokens 4 >out 2>said </dev/null; rc=$?
ok "$rc $(head -n 1 out | cut -c 1-2)" "0 12" "pretrain sample: text from the run"

flags=
start twice --train.steps 100000 --run.watchdog 30
until_step twice 2
run 2 twice
ok "$rc $(lines) $(says "twice is in use by process $(cat pid.twice.0) on host")" "2 1 yes" "a second launch in the same folder: $(cat said)"
touch twice/stop; ended twice
ok "$(cat twice.rc) $(code twice)" "3 3" "which does no harm to the first"

# ---- folders that cannot be written
run 2 a.h5/d
ok "$rc $(lines) $(says 'cannot make the folder a.h5/d')" "2 1 yes" "run.dir below a file"
run 2 ""
ok "$rc $(lines) $(says 'run.dir')" "2 1 yes" "run.dir of no name"
mkdir pipe; mkfifo pipe/metrics.jsonl
run 2 pipe
ok "$rc $(lines) $(says 'metrics.jsonl is no regular file')" "4 1 yes" "metrics.jsonl is a pipe"
mkdir disk
if unshare -rm sh -c 'mount -t tmpfs -o size=450k none disk' 2>/dev/null; then
  unshare -rm sh -c 'mount -t tmpfs -o size=450k none disk; '"${MPIEXEC:-mpiexec} -n 2 $program"' run.yaml --run.dir disk --run.save_every 1 --run.keep 0 >out 2>said; echo $? >rc
    ls disk/checkpoints >list; cat disk/exit.json >left; '"${MPIEXEC:-mpiexec} -n 2 $program"' run.yaml --run.dir disk --train.steps 2 >out2 2>&1'
  ok "$(cat rc) $(lines) $(says 'no room for the checkpoint') $(tr '\n' ' ' <list)$(grep -c '"code": 4' left) $(grep -c 'resumed at step 2' out2)" \
     "4 1 yes step_00000001.h5 step_00000002.h5 1 1" "a full disk: exit 4, the good checkpoints stay"
else
  skip "a full disk" "no file system of one's own"
fi

# ---- odd options: exit code, ranks, options
while read -r want ranks options; do
  rm -rf odd
  run "$ranks" odd --train.steps 2 $options
  ok "$rc $(if [ $rc != 0 ]; then lines; else steps odd; fi)" "$(if [ "$want" != 0 ]; then echo "$want 1"; else echo "0 1 2 "; fi)" "exit $want: $options"
done <<'S'
0 4 --sharding.wrap model --mesh.pp 2 --mesh.tp 2 --model.tied true --pipeline.schedule zbh1
0 2 --mesh.pp 2 --pipeline.schedule interleaved --pipeline.chunks 2 --model.layers 5
2 3 --mesh.pp 3 --pipeline.schedule interleaved --pipeline.chunks 2 --model.layers 7
2 4 --mesh.tp 4 --train.seq_len 15
0 4 --mesh.tp 4 --train.seq_len 1 --train.micro_batch 4
0 2 --train.seq_len 1 --sharding.prefetch 100
0 4 --mesh.pp 2 --sharding.prefetch 100 --sharding.wrap size:500
2 2 --model.vocab 3
2 4 --model.heads 1 --model.kv_heads 1 --mesh.tp 4
0 2 --model.heads 1 --model.kv_heads 1 --model.dim 1 --model.head_dim 2 --model.ffn 1
2 2 --train.global_batch 1 --train.micro_batch 2
2 4 --train.global_batch 2
0 4 --train.loss_chunk 1 --mesh.tp 4
0 2 --run.save_every 1 --run.keep 0
0 2 --debug.comm_chunk 7
2 2 --train.micro_batch 2000000000 --train.global_batch 4000000000
2 2 --model.dim 2000000000
2 2 --run.device nonsense
S
run 2 odd --train.steps 0
ok "$rc $(lines)" "2 1" "no steps"

# ---- the two of the beginning
ended killed; ended frozen
cp killed.said said
ok "$([ "$(cat killed.rc)" != 0 ] && echo nonzero) $(code killed)" "nonzero 4" "kill -9 of a rank: exit status $(cat killed.rc), and exit.json"
at=$(steps killed | wc -w)
run 4 killed --train.steps $((at + 2))
ok "$rc $(steps killed | wc -w) $(code killed)" "0 $((at + 2)) 0" "and the next launch goes on"
cp frozen.said said
ok "$([ "$(cat frozen.rc)" != 0 ] && echo nonzero) $(code frozen) $(grep -c 'rank 2, process [0-9]* on host [^ ,]*, stands still' frozen/exit.json)" "nonzero 4 1" \
   "SIGSTOP of a rank: the watchdog names it and ends all, without help of the launcher"
echo "1..$n"
