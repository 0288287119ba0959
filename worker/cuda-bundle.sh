#!/usr/bin/env bash
# Writes what worker/cuda-check.sh needs into a folder: the product, the conformance runner and the device's tests, stripped and
# compressed, and ONNX's cases. The machine with the GPU needs this repository's files beside it, and no Rust.
#
#   worker/cuda-bundle.sh FOLDER
set -euo pipefail
folder=$(realpath -m "$1")
cd "$(dirname "$0")/.."
. .ci/lib.sh
mkdir -p "$folder"
cargo build --release --workspace --bin convoke --bin convoke-conformance
tests=$(cargo test --release --workspace --features convoke-cuda/emulated --test cuda_device --no-run --message-format=json 2>/dev/null |
  grep '"name":"cuda_device"' | grep -o '"executable":"[^"]*"' | cut -d'"' -f4)
target=${CARGO_TARGET_DIR:-target}/release
strip -o "$folder/convoke" "$target/convoke"
strip -o "$folder/convoke-conformance" "$target/convoke-conformance"
strip -o "$folder/cuda_device" "$tests"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$(oracle_python)" -W ignore conformance/generate_cases.py "$scratch/cases"
tar -C "$scratch" -cJf "$folder/cases.tar.xz" cases
xz -f -T0 "$folder/convoke" "$folder/convoke-conformance" "$folder/cuda_device"
du -sh "$folder"
