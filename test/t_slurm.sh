#!/bin/bash
# share/slurm/cpu.sbatch in a real Slurm on this machine (test/slurm.sh), 4 ranks on 2 of its nodes, started by mpiexec and by srun: cancelled, preempted, out of time,
# requeued, each saves, goes back into the queue where it should, and comes to the losses of a run that was not disturbed. A rank that is killed ends the job. srun
# without PMI gets a sentence. Prints TAP; skips with a word where Slurm cannot be started.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -u
program=$(cd "${builddir:-.}" && pwd)/src/pretrain
src=$(cd "${srcdir:-..}" && pwd)
export OMP_NUM_THREADS=1 PRETRAIN=$program
unset ${!SLURM*} 2>/dev/null
tmp=$(mktemp -d) && cd "$tmp" || exit 99
down () { bash "$src/test/slurm.sh" down "$tmp/slurm"; rm -rf "$tmp"; }
if ! why=$(bash "$src/test/slurm.sh" up "$tmp/slurm" 14 2>&1); then echo "1..0 # SKIP no Slurm: $(tail -n 1 <<<"$why")"; rm -rf "$tmp"; exit 0; fi
trap down EXIT
export SLURM_CONF=$tmp/slurm/slurm.conf
fault= n=0
. "$src/test/ranks.sh"
mv rank.sh unused
ok () { n=$((n + 1)); if [ "$1" = "$2" ]; then echo "ok $n - $3"; else echo "not ok $n - $3"; echo "# '$1' is not '$2'"; tail -n 15 "$d.out" | cut -c -300 | sed 's/^/# /'; fi; }
srun="srun --mpi=pmi2 -K1 --cpu-bind=cores"   # as the script says

# submit NAME [LAUNCH] SBATCH-OPTIONS -- OPTIONS: leaves the job's number in NAME.id
submit () {
  d=$1 LAUNCH=$2; shift 2
  opts=(); while [ "$1" != -- ]; do opts+=("$1"); shift; done; shift
  [ -n "$LAUNCH" ] && export LAUNCH || unset LAUNCH
  sbatch --parsable --nodes=2 --ntasks-per-node=2 --cpus-per-task=1 --mem=10 --time=10 --output="$d.out" "${opts[@]}" "$src/share/slurm/cpu.sbatch" run.yaml --run.dir "$d" "$@" >"$d.id" 2>"$d.sbatch" || cat "$d.sbatch"
}
field () { scontrol show job -o "$(cat "$1.id")" | sed -n "s/.* $2=\([^ ]*\) .*/\1/p"; }
over () { case $(field "$1" JobState) in COMPLETED|CANCELLED|FAILED|TIMEOUT|PREEMPTED|NODE_FAIL) ;; *) false;; esac; }
# Wait, a minute at most, until a command succeeds.
soon () { for ((t = 0; t < 240; t++)); do eval "$1" && return; sleep 0.25; done; }
running () { soon "[ \"\$(cat $1/metrics.jsonl 2>/dev/null | wc -l)\" -ge $2 ]"; }
slow='--debug.comm_delay_ms 30'

"${MPIEXEC:-mpiexec}" -n 4 "$program" run.yaml --run.dir whole >whole.out 2>&1
whole=$(losses whole)

submit mpi '' --; submit srun "$srun" --
submit singles 'srun --mpi=none' --
submit cancel_mpi '' -- $slow; submit cancel_srun "$srun" -- $slow
for d in cancel_mpi cancel_srun; do running $d 1; scancel "$(cat $d.id)"; done
submit preempt_mpi '' --nodelist=n10,n11 -- $slow; submit preempt_srun "$srun" --nodelist=n12,n13 -- $slow
running preempt_srun 1; running preempt_mpi 1
sbatch --parsable --exclusive --partition=high --nodelist=n10,n11,n12,n13 --nodes=4 --time=10 --output=high.out --wrap 'sleep 1' >high.id
submit requeue_mpi '' -- $slow
running requeue_mpi 1; scontrol requeue "$(cat requeue_mpi.id)"

soon 'over mpi && over srun'
for d in mpi srun; do
  ok "$(field $d JobState) $(grep -c '^pretrain: status 0, restart 0$' $d.out) $(losses $d)" "COMPLETED 1 $whole" "$d: the losses of mpiexec outside of Slurm"
  ok "$(grep -c '^ranks of a node: 2 on .*, 1 compute thread each$' $d.out) $(grep -c '^  node 1 ' $d.out)" "1 1" "$d: 2 nodes, their ranks, cores and threads are told"
done

# ---- cancelled: saved, and not queued again; submitted again it goes on
soon 'over cancel_mpi && over cancel_srun'
for d in cancel_mpi cancel_srun; do
  soon "[ \"\$(code $d)\" = 3 ]"
  ok "$(field $d JobState) $(code $d) $(has $d | grep -c '^[1-7] $') $(grep -c '^pretrain: status' $d.out)" "CANCELLED 3 1 1" "$d: scancel after a few steps: saved at step $(has $d), not queued again"
done
for d in cancel_mpi cancel_srun; do submit $d "$srun" --; done

# ---- killed: -K1 ends the step, and the job is not queued again
PRETRAIN=$tmp/nowhere/pretrain submit nowhere '' --
submit killed "$srun" -- $slow; running killed 2
pid=$(pgrep -f -n "$program run.yaml --run.dir killed") && kill -KILL "$pid"
soon 'over killed'; d=killed
ok "$(field killed JobState) $(code killed) $(grep -c '^pretrain: status 137, restart 0$' killed.out)" "FAILED 4 1" "a rank killed under srun -K1: $(grep 'pretrain: status' killed.out)"

soon 'over singles'; d=singles
ok "$(field singles JobState) $(grep -c 'srun started 4 processes, but each of them is a single program.*launch with srun --mpi=pmi2, or with mpiexec' singles.out) $(grep -c '^pretrain: status 2,' singles.out) $(ls -d singles 2>/dev/null)" \
   "FAILED 1 1 " "srun without PMI: one sentence, status 2, and no folder"

ok "$(grep -c 'pretrain doctor RUN_DIR says' killed.out mpi.out | tr '\n' ' ')" "killed.out:1 mpi.out:0 " "and the script says what to do"
soon 'over nowhere'; d=nowhere
ok "$(field nowhere JobState) $(cut -d: -f-2 nowhere.out)" "FAILED pretrain: there is no program $tmp/nowhere/pretrain on the PATH of $(hostname)" "no program: one sentence"

# ---- what went back into the queue by itself
for d in preempt_mpi preempt_srun requeue_mpi; do
  soon "over $d"
  ok "$(field $d JobState) $(field $d Restarts) $(grep -c '^pretrain: status 0, restart 1$' $d.out) $(losses $d)" "COMPLETED 1 1 $whole" \
     "$d: $(grep -m 1 -o 'after step [0-9]*' $d.out || echo 'killed'), requeued, $(grep -m 1 'resumed at' $d.out || echo 'from the start'), the losses of a run that was not disturbed"
done
for d in cancel_mpi cancel_srun; do soon "over $d"; ok "$(field $d JobState) $(losses $d)" "COMPLETED $whole" "$d, submitted again: the losses of a run that was not cancelled"; done
for d in preempt_mpi preempt_srun; do ok "$(grep -c 'stopped on request' $d.out)" 1 "$d had saved first"; done

# ---- out of time: Slurm looks at limits every 30 s; make bigcheck waits for it
if [ -n "${SOAK:-}" ]; then
  submit time_mpi '' --time=1 --signal=B:USR1@50 -- --debug.comm_delay_ms 150; submit time_srun "$srun" --time=1 --signal=B:USR1@50 -- --debug.comm_delay_ms 150
  submit end "" --time=1 --signal=B:URG@1 -- --debug.comm_delay_ms 150 --train.steps 16
  for d in time_mpi time_srun; do
    soon "grep -qs 'pretrain: status' $d.out"
    first=$(grep -m 1 'pretrain: status' $d.out)
    soon "[ \"\$(field $d JobState)\" = PENDING ]"; scontrol update JobId="$(cat $d.id)" TimeLimit=10
    soon "over $d"; soon "over $d"
    ok "$first $(field $d JobState) $(losses $d)" "pretrain: status 3, restart 0 COMPLETED $whole" "$d: saved before the limit, queued again, the same losses"
  done
  d=end; soon "grep -qs 'pretrain: status' end.out" || soon "grep -qs 'pretrain: status' end.out"
  ok "$(grep -m 1 'pretrain: status' end.out) $(grep -c 'nearly over' end.out)" "pretrain: status 3, restart 0 1" "no signal, but the end of the job's time: saved and stopped before it"
  scancel "$(cat end.id)"
fi
echo "1..$n"
