#!/bin/sh
# A training step of b124m at 4 layers, 8 x 512 tokens, one rank, 2 threads: ours against PyTorch's on the CPU (2.6 or newer).
#   b_step.sh [fp32|bf16]          ROUNDS (3) and STEPS (4) as variables; TORCH: a python that has torch (default .venv/bin/python in the source)
# First both take the same weights and tokens through STEPS steps and must show the same losses and gradient norms. Then they run in turn; the first step
# of each run is left out, medians count. The peer is the fastest of its ways: eager and compiled; with bf16 also autocast and bf16 weights with fp32 masters.
# Ratios: tokens/s (wall time), and tokens for a second of processor time, which other work on the machine disturbs less.
type=${1:-fp32} rounds=${ROUNDS:-3} steps=${STEPS:-4}
src=$(cd "$(dirname "$0")/.." && pwd)
torch=${TORCH:-$src/.venv/bin/python}
pretrain=${PRETRAIN:-src/pretrain} model=$src/share/models/b124m-4l.yaml
"$torch" -c 'import torch, sys; sys.exit (tuple (map (int, torch.__version__.split ("+")[0].split (".")[:2])) < (2, 6))' 2>/dev/null ||
  { echo "b_step: skipped, no PyTorch 2.6 or newer (python -m venv .venv; .venv/bin/pip install torch numpy; or TORCH=/path/to/python)"; exit 77; }
dir=$(mktemp -d "${TMPDIR:-/tmp}/b_step.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
export OMP_NUM_THREADS=2 TORCHINDUCTOR_CACHE_DIR="$dir/inductor" THP_MEM_ALLOC_ENABLE=1 GLIBC_TUNABLES=glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=8000000000
"$torch" -c 'import numpy, sys; numpy.random.default_rng (1).integers (0, 50304, 8 * 512 + 1).astype ("<u2").tofile (sys.argv[1])' "$dir/tokens.u16" || exit 1
cat >"$dir/run.yaml" <<END
model: $model
data: {train: $dir/tokens.u16, format: u16, valid_fraction: 0}
run: {dir: $dir/run, device: cpu, threads: 2, resume: false}
train: {steps: $steps, seq_len: 512, micro_batch: 8, global_batch: 8, dtype: $type}
optimizer: {lr: 3e-4}
schedule: {type: constant, warmup: 0}
END

# ours FILE OPTION...: a run; appends "step loss norm seconds cpu" to FILE
ours () {
  file=$1; shift
  rm -rf "$dir/run"
  "$pretrain" "$dir/run.yaml" "$@" >"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }
  sed 's/.*"step":\([^,]*\),"loss":\([^,]*\),"grad_norm":\([^,]*\),.*"seconds":\([^,]*\),"cpu_s":\([^,]*\),.*/\1 \2 \3 \4 \5/' "$dir/run/metrics.jsonl" >>"$file"
  rm -rf "$dir/run"
}
# peer FILE TYPE[+]: the same; + is compiled
peer () {
  way=$2 flag=
  case $way in *+) way=${way%+} flag=--compile ;; esac
  "$torch" "$src/bench/peer_cpu.py" "$model" --init "$dir/dump/init" --tokens "$dir/tokens.u16" --steps "$steps" --type "$way" $flag >"$dir/out" 2>"$dir/log" ||
    { cat "$dir/log"; exit 1; }
  sed -n 's/^# //p' "$dir/out" >"$1.name"
  grep -v '^#' "$dir/out" >>"$1"
}
# median FILE COLUMN, without first steps
median () { awk -v c="$2" '$1 > 1 { print $c }' "$1" | sort -n | awk '{ x[NR] = $1 } END { print (x[int ((NR + 1) / 2)] + x[int (NR / 2) + 1]) / 2 }'; }

case $type in bf16) ways="autocast autocast+ bf16 bf16+" tol=2e-3 ;; *) ways="fp32 fp32+" tol=1e-4 ;; esac
ways=${WAYS:-$ways}

# ---- verify: losses and norms agree, step by step; what this costs the peer's caches is paid before the clock runs
ours "$dir/ours0" --debug.dump "$dir/dump"
for w in $ways; do
  peer "$dir/check.$w" "$w"
  awk -v tol=$tol 'NR == FNR { loss[$1] = $2; norm[$1] = $3; next }
    { d = ($2 - loss[$1]) / loss[$1]; e = ($3 - norm[$1]) / norm[$1]; if (d < 0) d = -d; if (e < 0) e = -e; if (d > tol || e > 20 * tol || !($1 in loss)) bad = 1; last = $2; n++ }
    END { exit bad || n < 2 || last > loss[1] - 0.3 }' "$dir/ours0" "$dir/check.$w" ||
    { echo "not ok: the peer ($w) and ours differ (step loss norm)"; cut -d' ' -f1-3 "$dir/ours0"; echo; cut -d' ' -f1-3 "$dir/check.$w"; exit 1; }
done
echo "ok: losses and norms of $steps steps agree ($ways)"

# ---- time
i=0
while [ $i -lt "$rounds" ]; do
  ours "$dir/ours"
  for w in $ways; do peer "$dir/peer.$w" "$w"; done
  i=$((i + 1))
done
tokens () { awk -v s="$1" 'BEGIN { printf "%.0f", 4096 / s }'; }
us=$(median "$dir/ours" 4) us_cpu=$(median "$dir/ours" 5) best= best_cpu=
echo "ours $type: $(tokens "$us") tokens/s, $us_cpu s of processor time a step"
for w in $ways; do
  t=$(median "$dir/peer.$w" 4) c=$(median "$dir/peer.$w" 5)
  echo "$(cat "$dir/peer.$w.name"): $(tokens "$t") tokens/s, $c s of processor time a step"
  best=$(printf '%s\n' $best "$t" | sort -g | head -1) best_cpu=$(printf '%s\n' $best_cpu "$c" | sort -g | head -1)
done
echo "$us $best $us_cpu $best_cpu" | awk -v t="$type" '{ printf "ratio %s ours / PyTorch: %.3f in tokens/s, %.3f by processor time\n", t, $2 / $1, $4 / $3 }'
