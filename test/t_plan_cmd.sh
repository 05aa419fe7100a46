#!/bin/sh
# pretrain plan on the command line: codes and sentences. Prints TAP.
TESSERA_SHARE=$(cd "$srcdir/share" && pwd); export TESSERA_SHARE
out=$(mktemp -d) || exit 99
trap 'rm -rf "$out"' EXIT
n=0
plan () { "$builddir/src/pretrain" plan "$@" > "$out/o" 2> "$out/e"; }
check () {  # check CODE WORD TITLE, after plan
  code=$?
  n=$((n + 1))
  if [ $code -eq $1 ] && cat "$out/o" "$out/e" | grep -q -- "$2"; then echo "ok $n - $3"
  else echo "not ok $n - $3 (code $code)"; sed 's/^/# /' "$out/e"; fi
}
plan --model llama2-7b --gpus 8 --machine a100-80g-ib200 --mesh.tp 2; check 0 'fits' 'a plan'
plan --model llama2-7b --gpus=8 --machine=a100-80g-ib200 --train.seq_len 4096; check 0 'search: ' 'with nothing said of the cut it is searched'
plan --model llama2-7b --gpus 8 --machine a100-80g-ib200 --mesh.tp 8 --train.micro_batch 64 --train.global_batch 64; check 2 'does not fit' 'what does not fit ends with 2'
plan --model llama2-7b --gpus 8; check 2 '--machine' 'no machine'
plan --model llama2-7b --machine a100-80g-ib200; check 2 '--gpus 64' 'no GPUs'
plan --model llama2-7b --gpus 0 --machine a100-80g-ib200; check 2 'expects a number of GPUs' 'zero GPUs'
plan --model llama2-7b --gpus 8 --machine a100-80g-ib20; check 2 'ib200' 'an unknown machine: the nearest is named'
plan --model llama2-7b --gpus 8 --machine a100-80g-ib200 --mesh.pt 2; check 2 'mesh.pp\|mesh.tp' 'an unknown option: the nearest is named'
plan --model llama2-7b --gpus 8 --machine a100-80g-ib200 --mesh.tp 6; check 2 'heads' 'tp 6'
plan --model llama2-7b --gpus 8 --machine a100-80g-ib200 --mesh.tp 3 --mesh.pp 3; check 2 'heads\|ranks' 'axes that do not make the world'
printf 'name: x\ngpu: {name: y, memory: 80 parsecs}\n' > "$out/m.yaml"
plan --model llama2-7b --gpus 8 --machine "$out/m.yaml"; check 2 'm.yaml line 2: gpu.memory expects bytes' 'a machine file with a wrong unit: file, line and key'
plan --help; check 0 'memory ledger' 'help'
n=$((n + 1))
[ "$(wc -l < "$out/o")" -le 40 ] && echo "ok $n - help is one screen" || echo "not ok $n - help is one screen"
echo "1..$n"
