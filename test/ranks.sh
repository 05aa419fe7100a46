# For tests that disturb 4 ranks in a phase of their run; sourced in a folder of one's own, with $program and $fault set. $d is the run's folder, by which all else is named.

seq 1 3000 >text.txt
"$program" tokenize --tokenizer bytes text.txt a.h5 >said 2>&1 || { echo "Bail out! no tokens"; exit 1; }
cat >run.yaml <<'S'
model: {dim: 16, layers: 2, heads: 4, kv_heads: 2, ffn: 32, vocab: 257}
data: {train: a.h5}
run: {device: cpu, threads: 1, save_every: 4, keep: 0, log_every: 100, watchdog: 30}
eval: {batches: 0}
mesh: {dp_shard: 2, tp: 2}
train: {seq_len: 16, micro_batch: 1, global_batch: 2, dtype: fp32, steps: 8}
schedule: {warmup: 2, steps: 40}
S
# Each rank leaves its process id in DIR.pid.RANK; the faults are the program's alone.
cat >rank.sh <<'S'
echo $$ >"$1.pid.$PMI_RANK.new"; mv "$1.pid.$PMI_RANK.new" "$1.pid.$PMI_RANK"
[ -z "${LIMIT:-}" ] || [ "$PMI_RANK" != 2 ] || eval "$LIMIT"
exec env LD_PRELOAD="$fault" $FAULTS "$program" run.yaml --run.dir "$@"
S
FAULTS= LIMIT=; export FAULTS LIMIT
# launch OPTIONS: in the background, with what phase set; job is the launcher
launch () { "${MPIEXEC:-mpiexec}" ${FLAGS:-} -n 4 sh rank.sh $d $options "$@" >$d.out 2>$d.said </dev/null & job=$!; }

# By step, the last record of each.
losses () { sed -n 's/{"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' "$1/metrics.jsonl" $(ls "$1"/metrics.old.jsonl 2>/dev/null) | sort -n -k 1,1 -u | cut -d ' ' -f 2 | tr '\n' ' '; }
has () { ls "$1/checkpoints" | sed 's/step_0*\([0-9]\)/\1/; s/\.h5//' | tr '\n' ' '; }
code () { sed -n 's/^{"code": \([0-9]*\),.*/\1/p' "$1/exit.json"; }
# Wait at most 10 s until a command succeeds.
until_so () { tries=0; while [ $tries -lt 200 ] && ! eval "$1"; do sleep 0.05; tries=$((tries + 1)); done; }
# Does rank $1 hear signals? Handlers are there from the first lines of main on.
hears () { [ -s "$d.pid.$1" ] && mask=$(sed -n 's/^SigCgt:[^0-9a-f]*[0-9a-f]*\(....\)$/\1/p' "/proc/$(cat "$d.pid.$1")/status" 2>/dev/null) && [ -n "$mask" ] && [ $((0x$mask & 0x200)) != 0 ]; }
steps_of () { [ "$(cat $d/metrics.jsonl 2>/dev/null | wc -l)" -ge "$1" ]; }

# What slows the ranks in a phase (FAULTS, options), when it has come (until), the last step that a run which is asked to stop then may have done (most).
saving='ls $d/checkpoints/*4.h5.tmp >/dev/null 2>&1'
phase () {
  FAULTS= options= base= until= most=
  case $1 in
    start) until='hears 0 && hears 1 && hears 2 && hears 3' most=1 ;;
    load)  FAULTS='FAULT=pread:0 FAULT_US=20000' base=yes until='hears 0 && hears 3 && sleep 0.4' most=2 ;;
    step)  options='--debug.comm_delay_ms 25' until='steps_of 2 && sleep 0.1' most=3 ;;
    evaluation) options='--eval.every 2 --eval.batches 100000 --debug.comm_delay_ms 5' until='steps_of 1 && sleep 0.4' most=2 ;;
    save)  FAULTS='FAULT=pwrite:0 FAULT_US=50000' options='--run.save_async false' until=$saving most=5 ;;
    save_behind) FAULTS='FAULT=pwrite:0 FAULT_US=50000' options='--debug.comm_delay_ms 10' until=$saving most=6 ;;
    wait_for_a_rank) FAULTS='FAULT=fsync:0 FAULT_US=400000 FAULT_RANK=0' options='--run.save_async false' until="$saving && sleep 0.1" most=5 ;;
  esac
}
