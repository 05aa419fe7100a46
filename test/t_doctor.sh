#!/bin/sh
# pretrain doctor --calibrate: a machine file of this machine that says where its figures are from, and that a plan can use. No figure is judged: others use this machine too.
srcdir=${srcdir:-.} builddir=${builddir:-.} n=0
pretrain=$PWD/$builddir/src/pretrain mpi=${MPIEXEC:-mpiexec}
TESSERA_SHARE=$(realpath "$srcdir/share"); export TESSERA_SHARE
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
ok () { n=$((n + 1)); if [ "$1" = 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; sed 's/^/# /' out | tail -n 15; fi; }
"$mpi" -n 2 "$pretrain" doctor --calibrate me.yaml --spread 10000 >out 2>&1; ok $? 'two ranks measure'
grep -q 'wrote me.yaml' out; ok $? 'and say where'
[ "$(grep -c '^  [a-z]*: "measured on' me.yaml)" -ge 4 ] && grep -q '^  nic: "not measured' me.yaml; ok $? 'each figure has its source, also what was not measured'
grep -q 'gpus: 2' me.yaml && grep -q '^device: cpu' me.yaml; ok $? 'a node of two cpu ranks'
grep -q '3 rounds: a figure differs by [0-9]* % between them (median), .* by [0-9]* %$' out && grep -q 'medians of 3 rounds, which differ by [0-9]* %' me.yaml
ok $? 'and how steady the figures are'
"$pretrain" doctor --calibrate no.yaml --spread 0 >out 2>&1; [ $? = 2 ] && [ ! -e no.yaml ] && grep -q 'something else runs here.*--spread [0-9]' out; ok $? 'no two rounds are the same: refused, nothing written'
"$pretrain" plan --model tiny --gpus 2 --machine ./me.yaml --mesh.tp 2 --train.seq_len 128 --train.global_batch 4 >out 2>&1; ok $? 'a plan takes it'
grep -q 'time (predicted)' out; ok $? 'and predicts a step'
"$pretrain" doctor --help >out 2>&1 && grep -q 'usage: ' out; ok $? 'help'
"$pretrain" doctor --no-such 1 >out 2>&1; [ $? = 2 ] && grep -q no-such out; ok $? "an option that there is not"
"$pretrain" doctor --calibrate x.yaml --device tpu >out 2>&1; [ $? = 2 ] && grep -q tpu out; ok $? 'an unknown device'
"$pretrain" doctor --calibrate x.yaml --spread much >out 2>&1; [ $? = 2 ] && grep -q 'spread is a percentage' out; ok $? 'a spread that is no number'
"$pretrain" doctor --calibrate no/such/x.yaml --spread 10000 >out 2>&1; [ $? = 2 ] && grep -q 'no/such/x.yaml' out; ok $? 'a file that cannot be written'
echo "1..$n"
