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
# Wait until a command succeeds; after 40 s it is said that it did not.
until_so () { tries=0; until eval "$1"; do sleep 0.05; tries=$((tries + 1)); [ $tries -lt 800 ] || { echo "# waited in vain for: $1"; break; }; done; }
# Does rank $1 hear signals? Handlers are there from the first lines of main on.
hears () { [ -s "$d.pid.$1" ] && mask=$(sed -n 's/^SigCgt:[^0-9a-f]*[0-9a-f]*\(....\)$/\1/p' "/proc/$(cat "$d.pid.$1")/status" 2>/dev/null) && [ -n "$mask" ] && [ $((0x$mask & 0x200)) != 0 ]; }
steps_of () { [ "$(cat $d/metrics.jsonl 2>/dev/null | wc -l)" -ge "$1" ]; }

held () { [ -e $d.held ]; }
heard () { [ -e $d.heard ]; }

# How a run comes to stand in a phase, or to stay in it (FAULTS, options; base: it goes on from a checkpoint), when it is there (until), and the last step that a run which is asked
# to stop then may have done (most; none: that of the next record but one). No phase is left before go, or is over within seconds.
phase () {
  FAULTS="FAULT_HEARD=$d.heard" options= base= until=held most=
  hold="FAULT_HOLD=$d.held FAULT_RANK=2"
  case $1 in
    start) FAULTS="$FAULTS $hold FAULT=fopen:0 FAULT_PATH=run.yaml" until='held && hears 0 && hears 1 && hears 3' most=0 ;;
    load)  FAULTS="$FAULTS $hold FAULT=pread:0" base=yes most=2 ;;
    step)  options='--debug.comm_delay_ms 40' until='steps_of 2 && sleep 0.1' ;;
    # rank 0 looks for the file stop at the start, after each step and in each pass of an evaluation
    evaluation) FAULTS="$FAULTS FAULT_HOLD=$d.held FAULT_RANK=0 FAULT=access:0 FAULT_PATH=/stop FAULT_AFTER=4" options='--eval.every 2 --eval.batches 100000' most=2 ;;
    save)  FAULTS="$FAULTS $hold FAULT=pwrite:0" options='--run.save_async false' most=5 ;;
    save_behind) FAULTS="$FAULTS $hold FAULT=pwrite:0" options='--debug.comm_delay_ms 30' base=yes ;;
    wait_for_a_rank) FAULTS="$FAULTS FAULT_HOLD=$d.held FAULT=fsync:0 FAULT_RANK=0" options='--run.save_async false' until='held && sleep 0.1' most=5 ;;
  esac
}
# Let what is held go on.
go () { : >$d.held.go; }
