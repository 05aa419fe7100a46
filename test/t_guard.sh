#!/bin/sh
# What guards a long run. Replicas: a bit flipped in the state of one rank is found and its rank named, on several meshes, in each kind of tensor; a good run has none. Spikes: an
# update left out, a rollback, the same on other meshes, resumed, and beside steps that are skipped for a NaN. Prints TAP.
set -u
program=$(cd "${builddir:-.}" && pwd)/src/pretrain
export OMP_NUM_THREADS=1 MPIEXEC_TIMEOUT=60
tmp=$(mktemp -d) && cd "$tmp" || exit 99
trap 'rm -rf "$tmp"' EXIT
n=0
ok () { n=$((n + 1)); if [ "$1" = "$2" ]; then echo "ok $n - $3"; else echo "not ok $n - $3"; echo "# '$1' is not '$2'"; sed 's/^/# /' said | tail -n 12; fi; }
run () { ranks=$1 dir=$2; shift 2; "${MPIEXEC:-mpiexec}" -n "$ranks" "$program" run.yaml --run.dir "$dir" "$@" >out 2>said </dev/null; rc=$?; }
losses () { sed -n 's/{"step":\([0-9]*\),"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/\1 \2 \3/p' "$1/metrics.jsonl"; }
code () { sed -n 's/.*"code": \([0-9]*\),.*/\1/p' "$1/exit.json"; }
says () { grep -c -- "$1" said | sed 's/^1$/yes/'; }

seq 1 3000 >text.txt
"$program" tokenize --tokenizer bytes text.txt a.h5 >said 2>&1 || { echo "Bail out! no tokens"; exit 1; }
cat >run.yaml <<'S'
model: {dim: 16, layers: 2, heads: 4, kv_heads: 2, ffn: 32, vocab: 257}
data: {train: a.h5}
run: {device: cpu, threads: 1, save_every: 0, log_every: 100}
eval: {batches: 0}
train: {seq_len: 16, micro_batch: 1, global_batch: 4, dtype: fp32, steps: 5}
optimizer: {lr: 3e-3}
schedule: {warmup: 2, steps: 40}
S

# ---- replicas. By mesh: ranks, kind, first letters of the tensor, rank whose bit is flipped, what is said; options
part='\(master weights\|first moments\|second moments\|weights\), [0-9]* elements'
while read -r ranks kind tensor rank who options; do
  rm -rf d
  run "$ranks" d --run.replica_check_steps 2 --run.save_every 1 --debug.flip_rank "$rank" --debug.flip_step 3 --debug.flip_kind "$kind" --debug.flip_tensor "$tensor" $options
  who=$(echo "$who" | tr _ ' ')
  ok "$rc $(code d) $(says "replica check after step 3, step 2 was good: $who.*($tensor[^,]*, $part") $(ls d/checkpoints | tr '\n' ' ')" "4 4 yes step_00000001.h5 step_00000002.h5 " \
     "$kind of $tensor, $ranks ranks, $options: $(sed 's/.*good: //; s/: memory or.*//' said)"
done <<'S'
4 master model.layers.1.mlp.down 2 rank_2_on_host_[^_,]*_holds_other_bits_than_the_3_ranks --sharding.strategy NO_SHARD
3 exp_avg model.embed 0 rank_0_on_host_[^_,]*_holds_other_bits_than_the_2_ranks --sharding.strategy NO_SHARD --train.global_batch 3
4 exp_avg_sq model.norm 3 rank_3_on_host_[^_,]*_holds_other_bits_than_the_3_ranks --mesh.tp 4 --mesh.dp_shard 1
4 master model.layers.0.self_attn.k_proj 1 rank_0_on_host_[^_,]*_and_rank_1_on_host_[^_,]*_hold_different_bits --mesh.tp 4 --mesh.dp_shard 1
4 weight model.layers.0.mlp.down 3 rank_1_on_host_[^_,]*_and_rank_3_on_host_[^_,]*_hold_different_bits --mesh.dp_replicate 2 --sharding.strategy HYBRID_SHARD --sharding.reshard step --train.dtype bf16
4 weight model.layers.0.input 1 rank_1_on_host_[^_,]*_holds_other_bits_than_the_2_ranks --mesh.tp 2 --mesh.dp_replicate 2 --mesh.dp_shard 1 --sharding.strategy NO_SHARD --train.dtype bf16
4 exp_avg model.embed 2 rank_0_on_host_[^_,]*_and_rank_2_on_host_[^_,]*_hold_different_bits --mesh.tp 2 --mesh.pp 2 --model.tied true
2 exp_avg_sq model.layers.1.post 1 rank_0_on_host_[^_,]*_and_rank_1_on_host_[^_,]*_hold_different_bits --sharding.strategy NO_SHARD --sharding.cpu_offload optimizer --train.dtype bf16
S
while read -r ranks options; do
  rm -rf d
  run "$ranks" d --run.replica_check_steps 1 --run.save_every 2 $options
  ok "$rc $(code d)" "0 0" "nothing is found in a good run: $options"
done <<'S'
4 --mesh.tp 2 --mesh.dp_shard 2 --sharding.strategy SHARD_GRAD_OP --train.dtype bf16
4 --mesh.dp_replicate 2 --mesh.dp_shard 2 --sharding.strategy HYBRID_SHARD --sharding.cpu_offload params
4 --mesh.tp 2 --mesh.pp 2 --model.tied true --debug.nan_rank 1 --debug.nan_step 3 --train.dtype bf16
4 --mesh.tp 4 --sharding.strategy SHARD_OPT --pipeline.schedule zbh1 --run.save_async false
S

# ---- spikes
spike='--spike.window 6 --spike.zscore 4 --debug.spike_batch 12' to='--train.steps 18 --run.save_every 5'
run 4 plain $spike $to
ok "$rc $(grep -c '"skipped":true\|"spike"' plain/metrics.jsonl)" "0 0" "off by default"
run 4 skip $spike $to --spike.action skip; a=$(says 'step 12 is a spike: loss [0-9.]* (')
ok "$rc $(grep '"skipped":true' skip/metrics.jsonl | grep -c '"step":12,.*"spike":{"action":"skip","step":12,"batch":12') $a $(losses skip | head -n 11 | cmp - /dev/stdin 2>&1 <<X
$(losses plain | head -n 11)
X
)" "0 1 yes " "skip: the update of a spike is left out, recorded and said"
run 4 back $spike $to --spike.action rollback; a=$(says 'back to back/checkpoints/step_00000010.h5; batches 11 to 12 are left out')
run 4 asked $spike $to --data.skip 11-12
ok "$rc $a $(grep -c '"step":11,.*"spike":{"action":"rollback","step":12,"batch":12,.*"back_to":10}' back/metrics.jsonl) $(losses back | wc -l)" "0 yes 1 18" "rollback: to the last checkpoint, recorded and said"
ok "$(losses back)" "$(losses asked)" "then the losses are those of a run that was told to leave these batches out"
run 4 two $spike --spike.action rollback --train.steps 14 --run.save_every 5
a=$rc; run 4 two $spike $to --spike.action rollback
ok "$a$rc $(losses two)" "00 $(losses back)" "resumed after it: the same losses, the batches stay out"
mkdir stop; run 4 stop $spike --spike.action rollback --train.steps 11 --run.save_every 5; a=$rc; run 4 stop $spike $to --spike.action rollback
ok "$a$rc $(losses stop)" "00 $(losses back)" "stopped between checkpoint and spike, and resumed: the window is that of the checkpoint, it goes back as far"

# the same decisions on every mesh, beside a skipped NaN: losses to 1e-5
while read -r ranks options; do
  for a in skip rollback; do
    rm -rf d
    run "$ranks" d $spike $to --spike.action $a --debug.nan_rank 0 --debug.nan_step 9 $options
    [ -e nan.$a ] || losses d >nan.$a
    ok "$rc $(losses d | paste -d ' ' - nan.$a | awk '{ d = $2 - $5; e = $5 * 1e-5; bad += $1 != $4 || d > e || d < -e } END { print NR, bad + 0 }') $(grep -c '"spike":{"action":"'$a'","step":12,"batch":12,' d/metrics.jsonl) $(grep -c '"skipped":true' d/metrics.jsonl) $(says 'step 9 skipped: the gradient is not finite (1 in a row)')" \
       "0 18 0 1 $(if [ $a = skip ]; then echo 2; else echo 1; fi) yes" "$a beside a NaN, $ranks ranks: $options"
  done
done <<'S'
1 --train.micro_batch 2
4 --mesh.dp_shard 2 --mesh.pp 2 --train.micro_batch 1
4 --mesh.tp 2 --mesh.dp_shard 2 --sharding.strategy SHARD_OPT --run.save_async false
2 --mesh.dp_shard 2 --sharding.cpu_offload params
2 --mesh.pp 2 --sharding.cpu_offload optimizer --pipeline.schedule zbh1
S

run 2 much $spike $to --spike.action rollback --spike.max 0
ok "$rc $(code much) $(says 'diverged: 1 spikes of the loss within 6 batches are more than spike.max 0')" "5 5 yes" "more than spike.max: exit 5"
run 2 none $spike --spike.action rollback --train.steps 18
ok "$rc $(says 'there is no checkpoint to go back to') $(losses none | wc -l)" "0 yes 18" "no checkpoint to go back to: the update is left out"
run 2 d --data.skip 7-3
ok "$rc $(says 'data.skip expects global batches') $(grep -c . said)" "2 yes 1" "data.skip that is no list: $(cat said)"
echo "1..$n"
