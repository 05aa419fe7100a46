#!/bin/sh
# What rank 0 has made is seen late by the others, as over NFS, and files cannot be locked: runs start, save, load and end with the losses of an undisturbed one; what is never
# seen is said, and so is a rank that sees other files under the same names. Prints TAP.
set -u
here=$(cd "${builddir:-.}" && pwd)
program=$here/src/pretrain fault=$here/test/fault.so ranks=$(cd "${srcdir:-..}" && pwd)/test/ranks.sh
export OMP_NUM_THREADS=1 MPIEXEC_TIMEOUT=60 program fault
tmp=$(mktemp -d) && cd "$tmp" || exit 99
trap 'rm -rf "$tmp"' EXIT
. "$ranks"
n=0
ok () { n=$((n + 1)); if [ "$1" = "$2" ]; then echo "ok $n - $3"; else echo "not ok $n - $3"; echo "# '$1' is not '$2'"; cat "$d.said" | cut -c -700 | sed 's/^/# /'; fi; }
run () { d=$1; shift; launch "$@"; wait $job; rc=$?; }
base= FLAGS= options=

run whole; whole=$(losses whole)
# half of it, then the rest from its checkpoint, each with such faults; the file left behind says that there were any
twice () {
  d=$1 FAULTS="FAULT_HOLD=$1.seen $2"; : >"$d.seen.go"
  run "$d" --train.steps 4; a=$rc; b=$([ -e "$d.seen" ] && echo disturbed); rm -f "$d.seen"
  run "$d"; b="$b $([ -e "$d.seen" ] && echo disturbed)"
  ok "$a $rc $b $(losses "$d")" "0 0 disturbed disturbed $whole" "$3"
}
twice late 'FAULT=path:2 FAULT_RANK=others FAULT_PATH=late/ FAULT_COUNT=4' "the run's folder and its files are seen late by all but rank 0"
twice locks 'FAULT=lock:37 FAULT_PATH=locks/' "no locks in the run's folder"
twice tokens 'FAULT=path:2 FAULT_RANK=others FAULT_PATH=a.h5 FAULT_COUNT=2' "the token file is seen late by all but rank 0"
FAULTS='FAULT=lock:37 FAULT_PATH=a.h5'; run unlocked
ok "$rc $(losses unlocked)" "0 $whole" "no locks where the token file is"
FAULTS='FAULT=path:2 FAULT_RANK=3 FAULT_PATH=a.h5'; run never
ok "$rc $(grep -c . never.said) $(grep -c '^pretrain: rank 3: cannot open a.h5: No such file' never.said)" "2 1 1" "a token file that one rank never sees: $(cat never.said)"

# ---- rank 3 works in another folder, whose files have the same names and sizes
FAULTS=
mkdir elsewhere; cp run.yaml elsewhere
apart () { "${MPIEXEC:-mpiexec}" -n 3 "$program" run.yaml --run.dir "$tmp/$d" "$@" : -wdir "$tmp/elsewhere" -n 1 "$program" run.yaml --run.dir "$tmp/$d" "$@" >$d.out 2>$d.said </dev/null; rc=$?; }
d=other; cp a.h5 b.h5; cp a.h5 elsewhere/b.h5; printf X | dd of=elsewhere/b.h5 bs=1 seek=9000 conv=notrunc 2>/dev/null
apart --data.train b.h5
ok "$rc $(grep -c . $d.said) $(grep -c '^pretrain: rank 3 differs in data: b.h5: ' $d.said) $(ls -d $d 2>/dev/null)" "2 1 1 " "a token that is another for one rank: $(cut -c -100 $d.said)"
cp a.h5 elsewhere; cp whole/checkpoints/*8.h5 c.h5; run seed --train.seed 7; cp seed/checkpoints/*8.h5 elsewhere/c.h5
d=other; apart --load.from c.h5
ok "$rc $(grep -c . $d.said) $(grep -c '^pretrain: rank 3: c.h5 is damaged: ' $d.said)" "4 1 1" "another checkpoint for one rank: $(cut -c -100 $d.said)"
printf 'dim: 16\nlayers: 2\nheads: 4\nkv_heads: 2\nffn: 32\nvocab: 257\n' >m.yaml; { cat m.yaml; echo 'norm_eps: 1e-3'; } >elsewhere/m.yaml
sed -i 's/^model:.*/model: m.yaml/' run.yaml; cp run.yaml elsewhere
apart
ok "$rc $(grep -c . $d.said) $(grep -c '^pretrain: rank 3 differs in configuration: model.norm_eps: ' $d.said)" "2 1 1" "another model file for one rank: $(cut -c -100 $d.said)"
echo "1..$n"
