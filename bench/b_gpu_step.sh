#!/bin/sh
# Training steps on GPUs, the shapes of bench/RESULTS: tokens/s, and in turn those of a peer in PyTorch.
#   b_gpu_step.sh        one GPU, each case
#   b_gpu_step.sh N      N GPUs: every strategy, tp, pp; a GPU's tokens/s against one GPU that does a GPU's share
# PEER=bench/peer_gpu.py is run in turn with ours: PEER CONFIG SEQUENCES LENGTH RECOMPUTE STEPS prints a JSON record with tok_s; on N GPUs under torchrun, beside FULL_SHARD.
# Each run is verified before it counts: finite losses, the first near ln (vocabulary), and on N GPUs the first loss of one GPU's run with the same sequences to 2e-3. The first
# three steps are left out, the median counts. Random tokens, AdamW with fp32 masters, clipping, the loss read each step; run.save false. Variables: PRETRAIN, MPIEXEC, PYTHON
# (with numpy), STEPS (10), DEVICE (cuda), CASES (a line each: name model vocabulary sequences length peer's-config peer's-sequences peer's-recompute [options]).
gpus=${1:-1} steps=${STEPS:-10} device=${DEVICE:-cuda}
src=$(cd "$(dirname "$0")/.." && pwd)
pretrain=${PRETRAIN:-$(ls "$src/src/pretrain" "$src/build/src/pretrain" 2>/dev/null | head -n 1)} mpiexec=${MPIEXEC:-mpiexec} python=${PYTHON:-python3}
cases=${CASES:-"b124m b124m 50304 32 1024 gpt124m 32 0
b1.5b b1.5b 128256 8 4096 l1b 8 0 --run.deterministic false
b8b-8l b8b-8l 128256 4 4096 l8b_8l 4 0 --run.deterministic false
b8b-8l-fp8 b8b-8l 128256 4 4096 - - - --run.deterministic false --train.dtype fp8
b7b b7b 32000 3 4096 l7b 6 1 --sharding.grad_dtype bf16 --recompute.mode auto
b7b-fp32 b7b 32000 3 4096 - - - --recompute.mode auto"}
dir=$(mktemp -d "${TMPDIR:-/tmp}/b_gpu.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM

# ours RANKS NAME MODEL VOCABULARY A_RANK GLOBAL LENGTH OPTION...: a run; prints "tokens/s first-loss", or a sentence and fails
ours () {
  ranks=$1 name=$2 model=$3 vocab=$4 micro=$5 global=$6 length=$7; shift 7
  tokens=$dir/$vocab.u32 run=$dir/$name
  [ -f "$tokens" ] || "$python" -c 'import numpy, sys; numpy.random.default_rng (1).integers (0, int (sys.argv[1]), 6000000).astype ("<u4").tofile (sys.argv[2])' "$vocab" "$tokens" || return 1
  $mpiexec -n "$ranks" "$pretrain" --model "$model" --data.train "$tokens" --data.format u32 --data.valid_fraction 0 --eval.batches 0 --run.dir "$run" --run.device "$device" \
    --run.save false --run.resume false --train.steps "$steps" --train.seq_len "$length" --train.micro_batch "$micro" --train.global_batch "$global" --schedule.warmup 2 "$@" \
    >"$dir/log" 2>&1 || { grep . "$dir/log" | tail -n 1; return 1; }
  "$python" - "$run/metrics.jsonl" "$vocab" <<'END'
import json, math, sys
r = [json.loads (l) for l in open (sys.argv[1])]
s = sorted (x["seconds"] for x in r[3:])
if not all (math.isfinite (x["loss"]) for x in r) or abs (r[0]["loss"] - math.log (int (sys.argv[2]))) > 1.5:
    sys.exit ("losses are wrong: " + " ".join (str (x["loss"]) for x in r))
print ("%.0f %.6f" % (r[-1]["tokens"] / r[-1]["step"] / s[len (s) // 2], r[0]["loss"]))
END
}

# peer LAUNCHER...: the peer's tokens/s over all GPUs, nothing if it cannot say
peer () {
  if [ -z "${PEER-}" ] || [ "$config" = - ]; then return; fi
  "$@" "$PEER" "$config" "$sequences" "$length" "$again" "$steps" 2>"$dir/peer" </dev/null | sed -n 's/.*"tok_s": \([0-9]*\).*/\1/p'
}

one_gpu () {
  printf '%s\n' "$cases" | while read -r name model vocab batch length config sequences again options; do
    if ! got=$(ours 1 "$name" "$model" "$vocab" "$batch" "$batch" "$length" $options </dev/null); then printf '%-12s not ok: %s\n' "$name" "$got"; continue; fi
    echo "$name $batch $length ${got% *} $(peer "$python")" | awk '{ printf "%-12s %3d x %d  ours %7d tokens/s", $1, $2, $3, $4; if ($5) printf "  PyTorch %7d  ratio %.3f", $5, $4 / $5; print "" }'
  done
}

# many NAME OPTION...: all GPUs with the sequences of a GPU's share each, the rate of one beside it
many () {
  way=$1 micro=$2; shift 2
  if ! got=$(ours "$gpus" "$name-$way" "$model" "$vocab" "$micro" $((batch * gpus)) "$length" $options "$@" </dev/null); then printf '%-24s not ok: %s\n' "$name $way" "$got"; return; fi
  echo "$name $way $gpus $got $alone $check" | awk '{ d = $5 - $7; if (d < 0) d = -d
    printf "%-10s %-16s %7d tokens/s, %6d a GPU, %.3f of one GPU  %s\n", $1, $2, $4, $4 / $3, $4 / $3 / $6, d < 2e-3 ? "ok" : "not ok: first loss " $5 " is not " $7 }'
}

several () {
  printf '%s\n' "$cases" | grep -v fp8 | while read -r name model vocab batch length config sequences again options; do
    got=$(ours 1 "$name-one" "$model" "$vocab" "$batch" "$batch" "$length" $options </dev/null) || { printf '%-12s not ok: %s\n' "$name" "$got"; continue; }
    alone=${got% *}
    got=$(steps=4; ours 1 "$name-check" "$model" "$vocab" "$batch" $((batch * gpus)) "$length" $options </dev/null) || { printf '%-12s not ok: %s\n' "$name" "$got"; continue; }
    check=${got#* }
    many ddp "$batch" --sharding.strategy NO_SHARD --mesh.dp_replicate "$gpus"
    many zero1 "$batch" --sharding.strategy SHARD_OPT
    many zero2 "$batch" --sharding.strategy SHARD_GRAD_OP
    many full_shard "$batch" --sharding.strategy FULL_SHARD
    echo "$name $gpus $(peer "$python" -m torch.distributed.run --nproc-per-node "$gpus" --master-port 29541) $alone" | awk 'NF == 4 {
      printf "%-10s %-16s %7d tokens/s, %6d a GPU, %.3f of ours on one GPU\n", $1, "PyTorch FSDP2", $3, $3 / $2, $3 / $2 / $4 }'
    many full_shard-bf16 "$batch" --sharding.strategy FULL_SHARD --sharding.reduce_dtype bf16
    many "tp$gpus" $((batch * gpus)) --mesh.tp "$gpus"
    many "pp$gpus" $(((batch + 1) / 2)) --mesh.pp "$gpus"
  done
}

if [ "$gpus" = 1 ]; then one_gpu; else several; fi
