# The cases that .ci/oracles compares the importer by; source it after lib.sh, with `python` set.
# Sets: cases, random, contrib, quantised (the folders that make_cases fills).

hash_of() { cat "$@" | sha256sum | cut -c1-12; }

# The wheel of onnx has its cases as code.
onnx_version=$("$python" -c 'import onnx; print(onnx.__version__)')
cases=$cache/cases-$onnx_version-$(hash_of conformance/generate_cases.py)
random=$cache/random-$onnx_version-$(hash_of fixtures/requirements.txt conformance/generate_*.py)
contrib=$cache/contrib-$(hash_of fixtures/requirements.txt conformance/*.py)
quantised=$cache/quantised-$(hash_of fixtures/requirements.txt conformance/*.py)

# write_cases FOLDER GENERATOR: writes test cases to files, once per version of what they are made of.
write_cases() {
  local kind=${1##*/} lock
  exec {lock}>"$cache/${kind%%-*}.lock"
  flock "$lock"
  if [ ! -e "$1/complete" ]; then
    find "$cache" -maxdepth 1 -name "${kind%%-*}-*" -exec rm -rf {} +
    "$python" -W ignore "conformance/$2" "$1"
    touch "$1/complete"
  fi
  exec {lock}>&-
}

make_cases() {
  local jobs=() job
  write_cases "$cases" generate_cases.py & jobs+=($!)
  write_cases "$random" generate_random_cases.py & jobs+=($!)
  write_cases "$contrib" generate_contrib_cases.py & jobs+=($!)
  write_cases "$quantised" generate_quantised_cases.py & jobs+=($!)
  for job in "${jobs[@]}"; do wait "$job"; done
}
