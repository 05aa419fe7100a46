#!/bin/sh
# 64 ranks of the tiny model, dp 4 x pp 2 x tp 8, 20 steps, from mpiexec to exit with the checkpoint at the end: under 2 minutes on 2 cores.
#   b_64.sh [option ...]     options of pretrain are passed on
src=$(cd "$(dirname "$0")/.." && pwd)
pretrain=${PRETRAIN:-src/pretrain} mpiexec=${MPIEXEC:-mpiexec.mpich}
dir=$(mktemp -d "${TMPDIR:-/tmp}/b_64.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
# 200 kB of bytes as tokens: enough windows for 20 x 32 of 256
awk 'BEGIN { for (i = 0; i < 30000; i++) printf "%d ", i % 977 }' >"$dir/text"
"$pretrain" tokenize --tokenizer bytes "$dir/text" "$dir/text.h5" >/dev/null || exit 1
cat >"$dir/run.yaml" <<END
model: $src/share/models/tiny.yaml
data: {train: $dir/text.h5}
run: {dir: $dir/run, device: cpu, resume: false, log_every: 1}
mesh: {dp_shard: 4, pp: 2, tp: 8}
train: {steps: 20, micro_batch: 4, global_batch: 32}
END
set -- "$pretrain" "$dir/run.yaml" "$@"
began=$(date +%s.%N)
"$mpiexec" -n 64 "$@" 2>&1 | while IFS= read -r line; do echo "$(date +%s.%N) $line"; done >"$dir/log"
ended=$(date +%s.%N)
step () { awk -v what="$1" '$0 ~ what { print $1; exit }' "$dir/log"; }
[ -n "$(step "step 20/20")" ] && [ -e "$dir/run/checkpoints/step_00000020.h5" ] || { cat "$dir/log"; echo "not ok: no end, or no checkpoint"; exit 1; }
for at in mesh: "step  1/20" "step 20/20" "checkpoint of"; do echo "$at" "$(step "$at")"; done |
  awk -v began="$began" -v ended="$ended" '{ t[NR] = $NF - began } END { printf "mesh shown at %.1f s, step 1 done at %.1f, step 20 at %.1f, checkpoint at %.1f, ended at %.1f s\n", t[1], t[2], t[3], t[4], ended - began }'
