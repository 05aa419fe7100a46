#!/bin/sh
# The cases of checkpoints that count, one line of JSON each and beneath it what was reached and what is asked: 2 GB on 2 and on 8 ranks, files in the page cache and not; 16 MB on 64.
#   b_ckpt.sh [FOLDER [MB [ROUNDS]]]     FOLDER: on the disk that counts, with room for MB; memory: 5 times MB
dir=${1:-${TMPDIR:-/tmp}} mb=${2:-2048} rounds=${3:-11}
bench=${BENCH:-bench/b_ckpt} mpiexec=${MPIEXEC:-mpiexec.mpich}
dir=$(mktemp -d "$dir/b_ckpt.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
OMP_NUM_THREADS=1; export OMP_NUM_THREADS
# aim LINE NAME=AT_LEAST ...
aim () {
  line=$1; shift
  echo "$line"
  for a; do
    echo "$line" | awk -v name="${a%=*}" -v want="${a#*=}" '
      function of (name,  v) { v = $0; return sub (".*\"" name "\": ", "", v) ? v + 0 : 0 }
      { v = of(name); best = name; sub ("_ratio", "_best", best); b = best == name ? 0 : of(best); low = want >= 0; if (!v) next
        printf "  %-13s %.3f%s, %s %s%s\n", name, v, b ? sprintf (" (fastest %.3f)", b) : "", low ? "at least" : "at most", low ? want : -want, (low ? v >= want : v <= -want) ? "" : "   MISSED" }'
  done
}
for n in 2 8; do
  for reads in warm cold; do
    line=$("$mpiexec" -n $n "$bench" "$dir" "$mb" "$rounds" $reads 2>"$dir/err" | grep '"bench"') || { cat "$dir/err"; exit 1; }
    aim "$line" write_ratio=0.9 save_ratio=0.85 bytes_ratio=-1.02 load_ratio=0.9 other_ratio=0.5 narrow_ratio=0.5
  done
done
line=$("$mpiexec" -n 64 "$bench" "$dir" 16 3 2>"$dir/err" | grep '"bench"') || { cat "$dir/err"; exit 1; }
aim "$line" save_s=-5
