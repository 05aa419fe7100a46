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
plan --model llama2-7b --gpus 16 --machine a100-80g-ib200 --mesh.dp_shard 2 --mesh.pp 2 --mesh.tp 2
check 2 '= 8, but there are 16 ranks: start 8, leave mesh.dp_shard out, or give sharding.strategy HYBRID_SHARD for 2 replicas' 'a mesh smaller than the world, and no replicas asked for'
printf 'name: x\ngpu: {name: y, memory: 80 parsecs}\n' > "$out/m.yaml"
plan --model llama2-7b --gpus 8 --machine "$out/m.yaml"; check 2 'm.yaml line 2: gpu.memory expects bytes' 'a machine file with a wrong unit: file, line and key'
plan --help; check 0 'memory ledger' 'help'
n=$((n + 1))
[ "$(wc -l < "$out/o")" -le 40 ] && echo "ok $n - help is one screen" || echo "not ok $n - help is one screen"
# a run beside its plan
cat > "$out/cpu.yaml" <<'END'
name: this-cpu
device: cpu
gpu: {name: cores, memory: 4 GB, bandwidth: 10 GB/s, peak_bf16: 20 GFLOP/s, peak_fp32: 20 GFLOP/s}
attention: {forward: 10 GFLOP/s, backward: 10 GFLOP/s}
node: {gpus: 8, nvlink: 1 GB/s}
nic: {bandwidth: 10 Gb/s}
END
seq 20000 > "$out/text" && "$builddir/src/pretrain" tokenize --tokenizer bytes "$out/text" "$out/c.h5" > /dev/null 2>&1
${MPIEXEC:-mpiexec} -n 4 "$builddir/src/pretrain" train --model tiny --data.train "$out/c.h5" --run.dir "$out/run" --run.machine "$out/cpu.yaml" --run.threads 1 --train.steps 6 \
  --train.seq_len 64 --mesh.dp_shard 2 --mesh.pp 2 --train.global_batch 8 --eval.every 3 --eval.batches 1 > "$out/o" 2> "$out/e"
check 0 'as planned to the byte, and so are the bytes of 5 steps' 'a run says that memory and bytes are as planned'
grep -q 'time of a step .*s .*s .*%' "$out/o"; check 0 'time of a step' '... and how long a step was planned to take and took'
[ "$(grep -c '"agrees":true' "$out/run/metrics.jsonl")" -eq 6 ]; check 0 '' '... and metrics.jsonl has it, each step'
${MPIEXEC:-mpiexec} -n 2 "$builddir/src/pretrain" train --model llama3.1-70b --data.train "$out/c.h5" --run.dir "$out/run2" --train.steps 1 --train.seq_len 64 > "$out/o" 2> "$out/e"
check 2 'are too many; it needs .* ranks at least' 'a run that does not fit says what would'
echo "1..$n"
