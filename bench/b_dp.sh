#!/bin/sh
# 2 ranks of 1 thread (dp 2, FULL_SHARD) against 1 rank of 2 threads: b124m at 4 layers, 8 x 512 tokens a step in all, in turn. Aim: 0.9 or more of its tokens/s.
#   b_dp.sh [fp32|bf16] [option ...]       ROUNDS (3) and STEPS (4) as variables
# First the losses of both must agree; the first step of a run is left out, medians count. Communication that was not hidden is shown beside it.
type=${1:-fp32} rounds=${ROUNDS:-3} steps=${STEPS:-4}
[ $# -gt 0 ] && shift
src=$(cd "$(dirname "$0")/.." && pwd)
pretrain=${PRETRAIN:-src/pretrain} mpiexec=${MPIEXEC:-mpiexec.mpich}
dir=$(mktemp -d "${TMPDIR:-/tmp}/b_dp.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
unset OMP_NUM_THREADS
# ids below 50304 as little-endian 16-bit words: both bytes printable or control, the high one at most 0xc3
LC_ALL=C awk 'BEGIN { srand (1); for (i = 0; i < 4097; i++) printf "\\%03o\\%03o", int (rand () * 256), int (rand () * 196) }' | xargs printf >"$dir/tokens.u16"
cat >"$dir/run.yaml" <<END
model: $src/share/models/b124m-4l.yaml
data: {train: $dir/tokens.u16, format: u16, valid_fraction: 0}
run: {dir: $dir/run, device: cpu, resume: false}
train: {steps: $steps, seq_len: 512, global_batch: 8, dtype: $type}
schedule: {type: constant, warmup: 0}
END

# run FILE RANKS OPTION...: appends "step loss seconds exposed-gather exposed-scatter cpu" of rank 0
run () {
  file=$1 n=$2; shift 2
  rm -rf "$dir/run"
  "$mpiexec" -n "$n" "$pretrain" "$dir/run.yaml" --run.threads $((2 / n)) --train.micro_batch $((8 / n)) "$@" >"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }
  awk 'function get (s, key,   a) { if (!index (s, "\"" key "\":")) return 0; a = substr (s, index (s, "\"" key "\":") + length (key) + 3); return a + 0 }
    { g = index ($0, "\"all-gather\""); s = index ($0, "\"reduce-scatter\"")
      print get ($0, "step"), get ($0, "loss"), get ($0, "seconds"), g ? get (substr ($0, g), "exposed_s") : 0, s ? get (substr ($0, s), "exposed_s") : 0, get ($0, "cpu_s") }' "$dir/run/metrics.jsonl" >>"$file"
  rm -rf "$dir/run"
}
median () { awk -v c="$2" '$1 > 1 { print $c }' "$1" | sort -n | awk '{ x[NR] = $1 } END { print (x[int ((NR + 1) / 2)] + x[int (NR / 2) + 1]) / 2 }'; }

i=0
while [ $i -lt "$rounds" ]; do
  run "$dir/one" 1 "$@"
  run "$dir/two" 2 --mesh.dp_shard 2 --sharding.strategy FULL_SHARD "$@"
  i=$((i + 1))
done
awk 'NR == FNR { loss[$1] = $2; next } { d = ($2 - loss[$1]) / loss[$1]; if (d > 1e-3 || d < -1e-3) bad = 1 } END { exit bad || !NR }' "$dir/one" "$dir/two" ||
  { echo "not ok: losses differ"; paste "$dir/one" "$dir/two"; exit 1; }
echo "$(median "$dir/one" 3) $(median "$dir/two" 3) $(median "$dir/two" 4) $(median "$dir/two" 5) $(median "$dir/one" 6) $(median "$dir/two" 6)" | awk -v t="$type" '{
  printf "1 rank x 2 threads: %.0f tokens/s (%.2f s of processor time a step); 2 ranks x 1 thread: %.0f (%.2f s a rank); exposed: gather %.3f s, scatter %.3f s of %.2f\n", 4096 / $1, $5, 4096 / $2, $6, $3, $4, $2
  printf "ratio %s 2 ranks / 1 rank: %.3f in tokens/s, %.3f by processor time\n", t, $1 / $2, $5 / (2 * $6) }'
