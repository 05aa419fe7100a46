#!/bin/sh
# Hugging Face and FULL: models in, the same logits as transformers', out again to the byte; what is told of files that are not right. Prints TAP.
# With transformers and torch in ${HF_PYTHON:-python3} they judge, else what they said once (hf.py).
case $builddir in /*) ;; *) builddir=$PWD/$builddir ;; esac
case $srcdir in /*) ;; *) srcdir=$PWD/$srcdir ;; esac
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
MPIEXEC_TIMEOUT=${MPIEXEC_TIMEOUT:-120}; export MPIEXEC_TIMEOUT
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1; export OMP_NUM_THREADS HF_HUB_OFFLINE
python=${PYTHON:-/usr/bin/python3} judge=${HF_PYTHON:-python3}
"$python" -c 'import numpy, h5py' 2>/dev/null || { echo '1..0 # SKIP no NumPy or h5py'; exit 0; }
with=$("$judge" "$srcdir/test/hf.py" with 2>/dev/null)
case $with in transformers*) ;; *) judge=$python with="no transformers: what it said once" ;; esac
n=0
ok () { n=$((n + 1)); if [ "$1" -eq 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; tail -n 12 out err | sed 's/^/# /'; fi; }
run () { ranks=$1; shift; "${MPIEXEC:-mpiexec}" -n "$ranks" "$builddir/src/pretrain" "$@" >out 2>err; }
hf () { "$python" "$srcdir/test/hf.py" "$@" 2>>err; }
cd "$dir" || exit 99
: >out; : >err

ids=$(hf ids)
names=$("$judge" "$srcdir/test/hf.py" make "$dir" 2>>err); ok $? "five models ($with)"
np=1 pairs=
for m in $names; do
  run $np import "$m" --from hf --run.dir "r/$m" --train.seq_len 32; rc=$?
  [ $rc -eq 0 ] && run 2 sample "r/$m" --ids "$ids" --logits "r/$m.f32" --run.device cpu; rc=$?
  said=$(hf near "r/$m.f32" "$m/logits.f32") && [ $rc -eq 0 ]; ok $? "$m: imported on $np ranks: $said"
  run $((4 - np)) export "r/$m" --to hf "o/$m" --shard_size 120k; rc=$?
  said=$(hf same "$m" "o/$m") && [ $rc -eq 0 ]; ok $? "$m: exported on $((4 - np)) ranks: $said"
  np=$((3 - np)) pairs="$pairs $m:o/$m"
done
case $with in
  transformers*) said=$("$judge" "$srcdir/test/hf.py" reload $pairs 2>>err); ok $? "transformers loads them, equal to the byte: $said" ;;
  *) ok 0 "transformers loads them # SKIP $with" ;;
esac
[ -e o/qwen3/model.safetensors.index.json ] && [ ! -e o/llama/model.safetensors.tmp ]; ok $? "a large model in several files with an index, nothing else left"
run 2 import bf16 --from hf --run.dir r/bf16 && run 2 export r/bf16 --to hf o/bf16
said=$(hf same bf16 o/bf16); ok $? "bf16 as it was: $said"
run 1 export r/llama --to hf o/half --dtype fp16 && grep -q '"torch_dtype": "float16"' o/half/config.json; ok $? "fp16 on request"
run 1 export r/llama --to hf o/llama; [ $? -eq 2 ] && grep -q 'is there already' err; ok $? "weights that are there are not written over"
run 1 import llama --from hf --run.dir r/llama; [ $? -eq 2 ] && grep -q 'has checkpoints already' err; ok $? "nor is a run"

# A run goes on from it, on another mesh.
"$python" -c 'import sys; sys.stdout.buffer.write(bytes(i * 7 % 128 for i in range(5000)))' >t.txt
"$builddir/src/pretrain" tokenize t.txt t.h5 >out 2>&1
"$python" - <<X
import h5py
with h5py.File("t.h5", "r+") as f:
    f.attrs["vocab"] = 131
    f.attrs["eod"] = 130
    f["tokens"][f["tokens"][:] == 256] = 130
X
if [ $? -eq 0 ]; then
  cat >run.yaml <<X
model: r/llama/model.yaml
data: {train: t.h5}
run: {dir: r/llama, device: cpu, save_every: 2, keep: 0}
mesh: {tp: 2, pp: 1, dp_shard: 1}
train: {steps: 2, seq_len: 32, micro_batch: 2, global_batch: 2, dtype: fp32}
eval: {batches: 0}
X
  run 2 run.yaml; rc=$?; grep -q "step 0" out || rc=1
  [ $rc -eq 0 ] && [ -e r/llama/checkpoints/step_00000002.h5 ]; ok $? "a run trains on from the import, tp 2"
  run 3 export r/llama --to full full.h5; ok $? "FULL on 3 ranks: $(cat out)"
  run 2 import full.h5 --from full --run.dir r/again; ok $? "and back on 2"
  run 1 export r/again --to full again.h5 && h5diff full.h5 again.h5 /param /param >out 2>&1 && h5diff full.h5 again.h5 /exp_avg /exp_avg >>out 2>&1 && h5diff full.h5 again.h5 /exp_avg_sq /exp_avg_sq >>out 2>&1
  ok $? "h5diff finds no difference in weights and moments"
  "$python" - <<X
import h5py, sys
a, b = h5py.File("full.h5"), h5py.File("again.h5")
sys.exit(any(a.attrs[k] != b.attrs[k] for k in ("step", "tokens", "updates")) or a.attrs["step"] != 2 or not abs(a["exp_avg_sq/model.norm.weight"][:]).max() > 0)
X
  ok $? "step, tokens, updates and moments came along"
  # Mixed up: the sentence says which is which and what to run.
  run 1 import full.h5 --from hf --run.dir r/x; [ $? -eq 2 ] && grep -q 'is a FULL state dict.*pretrain import full.h5 --from full' err; ok $? "FULL given as hf: $(cat err)"
  run 1 import r/llama/checkpoints/step_00000002.h5 --from full --run.dir r/x; [ $? -eq 2 ] && grep -q 'is a SHARDED checkpoint.*pretrain export' err; ok $? "SHARDED given as FULL: $(cat err)"
  run 1 import llama --from full --run.dir r/x; [ $? -eq 2 ] && grep -q 'is a Hugging Face folder.*--from hf' err; ok $? "hf given as FULL: $(cat err)"
  run 1 export full.h5 --to hf o/x; [ $? -eq 2 ] && grep -q 'is a FULL state dict.*import' err; ok $? "FULL given to export: $(cat err)"
  mkdir -p r/mixed/checkpoints && cp full.h5 r/mixed/checkpoints/step_00000002.h5
  run 1 verify full.h5; [ $? -eq 2 ] && grep -q 'FULL' err; ok $? "FULL given to verify: $(cat err)"
fi

# Files that are not right: all of it is told, and nothing is made.
"$python" - <<X
exec(open("$srcdir/test/hf.py").read().split("what, args =")[0])
import shutil
c = MODELS["llama"]
w = weights(c)
def case(name, w, c=c):
    os.makedirs(name); json.dump(c, open(name + "/config.json", "w")); put_safetensors(name + "/model.safetensors", w)
x = dict(w)
del x["model.norm.weight"], x["model.layers.1.mlp.up_proj.weight"]
x["model.layers.0.mlp.extra.weight"] = w["model.norm.weight"]
x["model.layers.0.self_attn.k_proj.weight"] = np.ascontiguousarray(w["model.layers.0.self_attn.k_proj.weight"].T)
case("wrong", x)
case("untied", dict(weights(MODELS["llama-tied"]), **{"lm_head.weight": w["lm_head.weight"]}), MODELS["llama-tied"])
case("twice", dict(weights(MODELS["llama-tied"]), **{"lm_head.weight": weights(MODELS["llama-tied"])["model.embed_tokens.weight"]}), MODELS["llama-tied"])
case("unknown", w, dict(c, new_trick=1))
shutil.copytree("qwen3", "torn") if os.path.exists("qwen3/model.safetensors.index.json") else case("torn", w)
name = sorted(f for f in os.listdir("torn") if f.endswith(".safetensors"))[-1]
data = open("torn/" + name, "rb").read()
open("torn/" + name, "wb").write(data[:-1])
X
run 2 import wrong --from hf --run.dir r/wrong; rc=$?
[ $rc -eq 2 ] && grep -q 'model.norm.weight is missing' err && grep -q 'layers.1.mlp.up_proj.weight is missing' err && grep -q 'extra.weight is not in the model' err &&
  grep -q 'k_proj.weight is F32 \[64, 32\], the model has \[32, 64\]' err && grep -q '2 tensors missing, 1 unexpected, 1 of another shape' err && [ ! -e r/wrong ]
ok $? "missing, unexpected and turned tensors are all named"
run 1 import untied --from hf --run.dir r/untied; [ $? -eq 2 ] && grep -q 'lm_head.weight is there and differs' err; ok $? "a head that a tied model must not have"
run 1 import twice --from hf --run.dir r/twice; ok $? "the embedding once more as the head of a tied model is no harm"
run 1 import unknown --from hf --run.dir r/unknown; [ $? -eq 2 ] && grep -q new_trick err; ok $? "an unknown field of config.json: $(cat err)"
run 2 import torn --from hf --run.dir r/torn; [ $? -eq 2 ] && grep -q 'safetensors' err && [ ! -e r/torn ]; ok $? "a torn file: $(cat err)"
run 1 import llama --from hg; [ $? -eq 2 ] && grep -q 'hf or full' err; ok $? "an unknown --from"
run 1 export r/llama --to hf; [ $? -eq 2 ] && grep -q 'and where' err; ok $? "--to without a place"
echo "1..$n"
