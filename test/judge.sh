# What t_referee.sh and t_bf16.sh share; they set `dtype` and define cases (), which prints "name ranks options".
# TEST_DEVICE=cuda: on the GPU, the cases of one rank, in bf16 at sizes that its fast kernels take.
set -u
program=$(cd "${builddir:-.}" && pwd)/src/pretrain
here=$(cd "$srcdir/test" && pwd)
python=${PYTHON:-/usr/bin/python3}
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MPIEXEC_TIMEOUT=120
tmp=$(mktemp -d) && cd "$tmp" || exit 99
trap 'rm -rf "$tmp"' EXIT
bail () { echo "Bail out! $*"; exit 1; }

# Sentences, each a line: text that can be learnt and, with documents, ends often.
awk 'BEGIN {
  n = split ("the king said unto him and lord of house israel went out day land that was in for all people", w, " ")
  x = 7
  for (i = 0; i < 800; i++) {
    x = (x * 1103515245 + 12345) % 2147483648
    words = 2 + int (x / 65536) % 12
    for (j = 0; j < words; j++) { x = (x * 1103515245 + 12345) % 2147483648; printf "%s ", w[1 + int (x / 65536) % n] }
    print "."
  } }' >text.txt
"$program" tokenize --tokenizer bytes text.txt plain.h5 >log 2>&1 || bail "$(cat log)"
"$program" tokenize --tokenizer bytes --documents lines text.txt lines.h5 >log 2>&1 || bail "$(cat log)"
# Parts without loss, of all sizes: whole windows too, so that the valid tokens of ranks and micro-batches differ much.
"$python" - <<'X' || bail "masks"
import h5py, numpy, shutil
shutil.copy ("lines.h5", "mask.h5")
with h5py.File ("mask.h5", "r+") as f:
    n = len (f["tokens"])
    i = numpy.arange (n)
    f["mask"] = (((i * 2654435761 >> 9) % 4 != 0) & (i // 67 % 3 != 1)).astype ("u1")
X

device=${TEST_DEVICE:-cpu} sizes="dim: 64, layers: 2, heads: 4, kv_heads: 2, ffn: 160" seq_len=64
if [ "$device$dtype" = cudabf16 ]; then sizes="dim: 256, layers: 2, heads: 4, kv_heads: 2, ffn: 512" seq_len=128; fi
cat >common.yaml <<X
model: {$sizes, vocab: 257}
data: {train: plain.h5}
run: {device: $device, threads: 1, save_every: 0, log_every: 100}
eval: {batches: 0}
train: {steps: 20, seq_len: $seq_len, micro_batch: 2, global_batch: 4, dtype: $dtype, seed: 11}
optimizer: {lr: 1e-3, clip: 1.0}
schedule: {warmup: 3, min_lr: 1e-4}
X

# All cases, or with ONLY=WORD those with WORD in their name; then the judge.
run_cases () {
  runs=
  while read -r name ranks options; do
    case $name in *${ONLY:-}*) ;; *) continue;; esac
    if [ "$device" != cpu ] && [ "$ranks" != 1 ]; then continue; fi
    "${MPIEXEC:-mpiexec}" -n "$ranks" "$program" common.yaml --run.dir "$name" --debug.dump "$name/dump" $options \
      >log 2>&1 </dev/null ||
      sed "s/^/# $name: /" log
    runs="$runs $name"
  done <<X
$(cases)
X
  "$python" "$here/judge.py" plain.h5 lines.h5 mask.h5 -- $runs
}
