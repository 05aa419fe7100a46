#!/bin/sh
# Checkpoints from outside: killed saves, the command that verifies, HDF5's own tools, the reader in Python. Prints TAP.
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
MPIEXEC_TIMEOUT=${MPIEXEC_TIMEOUT:-60}; export MPIEXEC_TIMEOUT
ckpt=$builddir/test/t_ckpt python=${PYTHON:-/usr/bin/python3}
n=0
ok () { n=$((n + 1)); if [ "$1" -eq 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; fi; }
save () { "${MPIEXEC:-mpiexec}" -n 2 "$ckpt" --save "$dir/run" "$@" >"$dir/out" 2>"$dir/err"; }

# One rank, then all ranks, killed at random moments of many saves: the next launch finds all that was said to be saved, and it is whole. KILLS of each (make bigcheck: 20).
mkdir "$dir/run"
said=0 bad=0 kills=${KILLS:-4}
us () { od -An -N4 -tu4 /dev/urandom | awk '{ print 10000 + $1 % 400000 }'; }
for who in one all; do
  for i in $(seq "$kills"); do
    at=$(us) victim=$((i % 2))
    [ $who = all ] && victim=-1
    save 1000000 $victim "$at"
    found=$(sed -n 's/^found //p' "$dir/out")
    # killed before it had looked: nothing was found, nothing is said
    if [ -n "$found" ] && [ "$found" -lt "$said" ] || grep -q '^pretrain: rank' "$dir/err"; then bad=1; echo "# $who at $at us: found $found, said $said"; sed 's/^/# /' "$dir/err"; fi
    last=$(sed -n 's/^saved //p' "$dir/out" | tail -n 1); said=${last:-$said}
  done
done
save 0; found=$(sed -n 's/^found //p' "$dir/out")
[ "${found:--1}" -ge "$said" ] && [ "$said" -gt 0 ] && [ $bad -eq 0 ]
ok $? "$kills kills of one rank and $kills of all in the midst of saves, $said steps saved, none lost"
save 2; rc=$?
ok $rc "and the next save needs no help"
ok "$(ls "$dir/run/checkpoints" | grep -vc '^step_[0-9]*\.h5$')" "which leaves checkpoints only"
good=$(ls "$dir"/run/checkpoints/step_*.h5 | tail -n 1)

"$ckpt" --verify "$good" >"$dir/out" 2>&1; rc=$?
grep -q 'is good: step' "$dir/out" || rc=1
ok $rc "verify: $(sed "s|$dir||" "$dir/out")"
cp "$good" "$dir/bad.h5"
size=$(wc -c <"$good")
printf 'XXXX' | dd of="$dir/bad.h5" bs=1 seek=$((size / 2)) conv=notrunc 2>/dev/null
"$ckpt" --verify "$good" "$dir/bad.h5" >"$dir/out" 2>&1; rc=$?
grep -q 'bad.h5 is damaged' "$dir/out" && [ $rc -eq 4 ]; ok $? "a damaged one: $(sed -n "s|$dir||;2p" "$dir/out")"
"$ckpt" --verify "$dir/none.h5" >"$dir/out" 2>&1; rc=$?
[ $rc -eq 2 ]; ok $? "no such file: exit code 2"

# Many ranks: a dataset of each, and each element where it belongs (loaded and compared by as many, then by 3). make bigcheck: 64.
many=16; [ "$kills" -gt 4 ] && many=64
mkdir "$dir/many"
go () { OMP_NUM_THREADS=1 "${MPIEXEC:-mpiexec}" -n "$1" "$ckpt" --save "$dir/many" "$2" >"$dir/out" 2>"$dir/err"; }
go $many 1 && go $many 0 && grep -q '^found 1' "$dir/out" && go 3 0 && grep -q '^found 1' "$dir/out"
ok $? "$many ranks: each finds its own, and 3 ranks all of it"

if command -v h5dump >/dev/null; then
  h5dump -H "$good" >"$dir/out" 2>&1; rc=$?
  [ "$(grep -c 'DATASET "rank0000[01]"' "$dir/out")" -eq 6 ] || rc=1
  ok $rc "h5dump -H lists a dataset of each rank and kind"
  ok "$(h5dump -d /index/tensors "$good" | grep -c 'q_proj.weight' | sed 's/^4$/0/')" "and the table names the tensors"
else
  ok 0 "h5dump # SKIP not installed"
fi
if "$python" -c 'import h5py, numpy' 2>/dev/null; then
  out=$("$python" "$srcdir/test/t_ckpt.py" "$srcdir/share/doc/read_checkpoint.py" "$good" 2>&1); ok $? "the reader in Python: $(echo "$out" | tail -n 1)"
  "$python" "$srcdir/share/doc/read_checkpoint.py" "$good" --npz "$dir/w.npz" && "$python" -c "import numpy, sys; sys.exit(numpy.load('$dir/w.npz')['model.norm.weight'].shape != (20,))"
  ok $? "its .npz of all weights"
else
  ok 0 "Python # SKIP no h5py"
fi
echo "1..$n"
