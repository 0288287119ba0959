#!/usr/bin/env bash
# Checks the CUDA device on a machine with a GPU, which needs NVIDIA's driver, NVRTC, and Python with onnx, onnxruntime and
# PyTorch; what is missing there is said in the table. Nothing is built or fetched.
#
#   worker/cuda-check.sh BUNDLE [PART...]      parts: tests cases models split faults speed decoder kernels; all by default
#
# BUNDLE is a folder that worker/cuda-bundle.sh writes. Logs come into $OUT, or into a new folder. The parts are
#   tests     the device's queue and kernels beside the CPU's kernels (worker/cuda/tests)
#   cases     ONNX's own cases, alone and fed from another worker on the same GPU
#   models    models beside ONNX Runtime on the CPU
#   split     models over one, two and three workers on the one GPU: the same bits
#   faults    two workers that are processes on the one GPU, of which one is killed while steps run
#   speed     models beside PyTorch on the same card, which also needs timm and transformers
#   decoder   a decoder of a billion parameters beside PyTorch's
#   kernels   how long each launch takes, by ncu
set -uo pipefail
cd "$(dirname "$0")/.."
bundle=$(realpath "$1"); shift
parts=("$@"); [ ${#parts[@]} -gt 0 ] || parts=(tests cases models split faults speed decoder kernels)
out=${OUT:-$(mktemp -d)}
work=$(mktemp -d)
python=${PYTHON:-python3}
export XDG_CACHE_HOME=$work/cache; mkdir -p "$XDG_CACHE_HOME"
: > "$out/table"

line() { printf '%-34s %s\n' "$1" "$2" | tee -a "$out/table"; }
wants() { [[ " ${parts[*]} " == *" $1 "* ]]; }

for file in "$bundle"/*.xz; do
  case $file in
    *.tar.xz) tar -C "$work" -xf "$file" & ;;
    *) { xz -dc "$file" > "$work/$(basename "$file" .xz)"; chmod +x "$work/$(basename "$file" .xz)"; } & ;;
  esac
done
wait
# NVRTC is found in CUDA's folder, or among Python's packages.
if ! ldconfig -p | grep -q libnvrtc.so; then
  found=$(find /usr/local/cuda*/lib64 "$("$python" -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null)" -name 'libnvrtc.so.1*' 2>/dev/null | head -1)
  export LD_LIBRARY_PATH=$(dirname "$found"):${LD_LIBRARY_PATH:-}
fi
line card "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>&1 | head -1)"
convoke=$work/convoke

if wants tests; then
  CONVOKE_TEST_GPU=0 timeout 150 "$work/cuda_device" --skip documented > "$out/tests.log" 2>&1
  line "tests of the device" "$(grep '^test result' "$out/tests.log" || tail -1 "$out/tests.log")"
  grep -E '^test .*FAILED|^error|panicked' "$out/tests.log" | head -20
fi
if wants cases; then
  timeout 150 "$work/convoke-conformance" --device cuda:0 --expected conformance/expected_failures.txt --cases "$work/cases" > "$out/cases.log" 2>&1
  line "ONNX's cases" "$(grep -iE 'right' "$out/cases.log" | tail -1)"
fi
made() { # a model of make_oracles.py by name
  [ -d "$work/models/$1" ] || "$python" -W ignore fixtures/make_oracles.py "$work/models" --only "$1" > "$work/made.log" 2>&1 || line "$1" "not made: $(tail -1 "$work/made.log")"
}
half() {
  [ -d "$work/models/$1_f16" ] || (cd fixtures; "$python" -W ignore - "$work/models/$1" "$work/models/$1_f16" <<'P'
import sys, numpy as np, onnx
from oracles import halves
with np.load(sys.argv[1] + "/test.npz") as arrays:
    feeds = {n: arrays[n] for n in arrays.files if not n.startswith("expected/")}
halves.write(sys.argv[2], onnx.load(sys.argv[1] + "/model.onnx"), "f16", feeds)
P
  ) > "$work/made.log" 2>&1 || line "$1_f16" "not made: $(tail -1 "$work/made.log")"
}
run() { # label, model, flags
  local label=$1 model=$2; shift 2
  [ -d "$work/models/$model" ] || return
  if timeout 60 "$convoke" run "$work/models/$model/model.onnx" --inputs "$work/models/$model/test.npz" "$@" --json > "$work/run.json" 2> "$work/run.err"; then
    line "$label" "$("$python" -c '
import json, sys
r = json.load(open(sys.argv[1]))
checks = [f"{c["name"]} {"ok" if c["ok"] else "WRONG"} {c["max_abs_err"]:.2e} of {c["max_abs"]:.3g}" for c in (r.get("verify") or {}).get("expected", [])]
print(f"p50 {r["step_ms"]["p50"]:.3f} ms, loaded in {r["load_ms"] / 1e3:.1f} s", *checks, "nodes", [w["nodes"] for w in r["workers"]], *r["warnings"])' "$work/run.json" 2>&1 | cut -c1-150)"
  else
    line "$label" "failed: $(head -c 600 "$work/run.json" "$work/run.err" | tr '\n' ' ')"
  fi
}
if wants models || wants split || wants faults || wants kernels; then
  for model in resnet50 minilm_shape mobilenet_v2_f16 mini_transformer_f16 mini_transformer_bf16 gpt2_tiny vit_tiny efficientnet; do made $model & done; wait
  half resnet50 & half minilm_shape & wait
fi
if wants models; then
  for model in resnet50 minilm_shape gpt2_tiny vit_tiny efficientnet mobilenet_v2_f16 mini_transformer_f16 mini_transformer_bf16 resnet50_f16 minilm_shape_f16; do
    run "$model" $model --local 1 --device cuda:0 --verify --steps 20 --in-flight 1
  done
fi
if wants split; then
  for n in 1 2 3; do
    for model in resnet50 minilm_shape_f16; do
      run "$model on $n workers" $model --local $n --device cuda:0 --outputs "$work/$model-$n.npz" --steps 3
      [ $n = 1 ] || line "$model, $n workers" "$(cmp "$work/$model-1.npz" "$work/$model-$n.npz" > /dev/null && echo same bits || echo OTHER BITS)"
    done
  done
fi
if wants faults && [ -d "$work/models/resnet50" ]; then
  "$convoke" up --workers 2 --device cuda:0 --listen 127.0.0.1:7171 --json > "$work/up.json" 2> "$work/up.err" & up=$!
  for _ in $(seq 100); do grep -q client_token_file "$work/up.json" && break; sleep 0.1; done
  token=$("$python" -c 'import json,sys; print(json.loads(open(sys.argv[1]).readline())["client_token_file"])' "$work/up.json")
  timeout 60 "$convoke" run "$work/models/resnet50/model.onnx" --inputs "$work/models/resnet50/test.npz" --connect 127.0.0.1:7171 --token-file "$token" \
    --workers 2 --steps 1000 --verify --json > "$work/faults.json" 2> "$work/faults.err" & run=$!
  # The worker is killed once the card works for the run.
  for _ in $(seq 200); do
    busy=$(nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits); [ "${busy:-0}" -gt 10 ] && break; sleep 0.1
  done
  sleep 0.5
  pkill -9 -f -- '--join 127.0.0.1:7171.*--name w1'
  wait $run; rc=$?
  line "kill -9 of a worker in 1,000 steps" "rc $rc $("$python" -c '
import json, sys
r = json.load(open(sys.argv[1]))
if "steps" not in r: print(json.dumps(r)[:400]); sys.exit()
print(r["steps"], "steps, right:", [c["ok"] for c in r["verify"]["expected"]], "attempts:", json.dumps(r["attempts"])[:300])' "$work/faults.json" 2>&1 | tail -1)"
  kill $up; wait $up
fi
if wants speed; then
  timeout 120 "$python" -W ignore fixtures/bench/accelerator.py "$work/bench" --convoke "$convoke" --big > "$out/speed.log" 2> "$out/speed.err" || line "speed" "failed: $(tail -2 "$out/speed.err")"
  grep '|' "$out/speed.log" | tee -a "$out/table"
fi
if wants decoder; then
  timeout 150 "$python" -W ignore fixtures/bench/accelerator.py "$work/bench" --convoke "$convoke" --steps 20 --decoder > "$out/decoder.log" 2> "$out/decoder.err" || line "decoder" "failed: $(tail -2 "$out/decoder.err")"
  grep '^| decoder' "$out/decoder.log" | tee -a "$out/table"
fi
if wants kernels; then
  for model in resnet50 resnet50_f16 minilm_shape_f16; do
    timeout 60 ncu --clock-control none --metrics gpu__time_duration.sum --csv "$convoke" run "$work/models/$model/model.onnx" --inputs "$work/models/$model/test.npz" --local 1 --device cuda:0 --steps 1 > "$out/ncu_$model.csv" 2>&1
    line "kernels of $model" "$("$python" -c '
import csv, sys
lines = open(sys.argv[1]).read().splitlines()
first = next(i for i, line in enumerate(lines) if line.startswith("\"ID\""))
rows = list(csv.DictReader(lines[first:]))
print(len(rows), "launches,", round(sum(float(r["Metric Value"].replace(",", "")) for r in rows) / 1e6, 3), "ms")' "$out/ncu_$model.csv" 2>&1 | tail -1)"
  done
fi
