# Shared by `oracles` and `exports`, which compare models with the references in their inputs files; source it after lib.sh.
# Reads: convoke (the binary), devices, runs (numbers of workers and threads, as 3-2), sampled (more of them, of which two are taken for
# each model; may be empty), seed (a number that decides which), only (names; empty means all), results (a folder it may replace).
# Sets: passed, failed, compared (counts).

rm -rf "$results"; mkdir -p "$results"
passed=0 failed=0 compared=0
fail() { failed=$((failed + 1)); echo "  FAILED $*"; }

split_is_real='(.workers | length) == $n and all(.workers[]; .nodes > 0) and ($n == 1 or .cut_edges > 0)'
verified='.verify.bits_equal and (.verify.expected | length) > 0
  and all(.verify.expected[]; .ok or .max_abs_err <= $allowed * .max_abs)'
worst_error='[.verify.expected[] | if .max_abs > 0 then .max_abs_err / .max_abs else .max_abs_err end] | max'

one_run() { # DIR NAME N T DEVICE: runs, checks; leaves the JSON in $results and appends its digests to $digests
  local log=$results/$2-$3-$4-$5 bound=() allowed=0 numerics=standard
  [ ! -e "$1/model.safetensors" ] || bound=(--weights "$1/model.safetensors")
  # A folder may say that its model is compared more loosely than the command does, which then fails with results.
  [ ! -e "$1/tolerance" ] || allowed=$(cat "$1/tolerance")
  # Or that its products are of codes, as in ONNX Runtime.
  [ ! -e "$1/numerics" ] || numerics=$(cat "$1/numerics")
  if ! timeout 300 "$convoke" run "$1/model.onnx" --inputs "$1/test.npz" "${bound[@]}" \
    --local "$3" --threads "$4" --device "$5" --numerics "$numerics" --verify --json >"$log.json" 2>"$log.log" \
    && { [ "$allowed" = 0 ] || ! jq -e .outputs "$log.json" >/dev/null; }; then
    fail "$2 on $3 workers, $4 threads, $5: $(tail -n 3 "$log.log")"
  elif ! jq -e --argjson n "$3" "$split_is_real" "$log.json" >/dev/null; then
    fail "$2 on $3 workers, $4 threads: not split ($(jq -c '[.workers[].nodes], .cut_edges' "$log.json" | tr '\n' ' '))"
  elif ! jq -e --argjson allowed "$allowed" "$verified" "$log.json" >/dev/null; then
    fail "$2 on $3 workers, $4 threads: $(jq -c .verify "$log.json")"
  else
    passed=$((passed + 1))
  fi
  digests+=$(jq -ecS '[.outputs[] | [.name, .dtype, .shape, .digest]]' "$log.json" 2>/dev/null || echo none)$'\n'
}

# taken_for NAME: two neighbours of those in `sampled`, from one that follows from the model and the seed.
taken_for() {
  local all=($sampled) first
  [ ${#all[@]} -gt 0 ] || return 0
  first=$(($(cksum <<<"$1 $seed" | cut -d ' ' -f 1) % ${#all[@]}))
  echo "${all[first]} ${all[(first + 1) % ${#all[@]}]}"
}

one_model() { # DIR NAME
  local digests='' start=$SECONDS run d distinct error bits
  for d in $devices; do for run in $runs $(taken_for "$2"); do
    one_run "$1" "$2" "${run%-*}" "${run#*-}" "$d"
  done; done
  distinct=$(sort -u <<<"${digests%$'\n'}" | wc -l)
  if [ "$distinct" = 1 ] && [[ $digests != *none* ]]; then
    passed=$((passed + 1)) bits=same
  else
    fail "$2: results differ or are missing" && bits=differ
  fi
  error=$(jq -rs "[.[] | $worst_error] | max // \"nan\"" "$results/$2"-*.json 2>/dev/null || echo nan)
  printf '%-28s %12.2e %9s %6ss\n' "$2" "$error" "$bits" "$((SECONDS - start))"
}

# counted DIR NAME: a model by itself; what it says, then its counts, go to a file of its own.
counted() {
  passed=0 failed=0
  one_model "$1" "$2"
  echo "$passed $failed"
} >"$results/$2.out"

# compare_models FOLDER...: two at a time, since most of them leave half of the machine idle.
compare_models() {
  local names=() directory name good bad
  for directory in "$@"; do
    directory=${directory%/} name=${directory##*/}
    [ -e "$directory/test.npz" ] && [ "$name" != big ] || continue
    [ ${#only[@]} = 0 ] || [[ " ${only[*]} " == *" $name "* ]] || continue
    [ "$(jobs -rp | wc -l)" -lt 2 ] || wait -n
    counted "$directory" "$name" &
    names+=("$name") compared=$((compared + 1))
  done
  wait
  printf '%-28s %12s %9s %7s\n' model 'worst error' bits time
  for name in "${names[@]}"; do
    head -n -1 "$results/$name.out"
    read -r good bad < <(tail -n 1 "$results/$name.out")
    passed=$((passed + good)) failed=$((failed + bad))
  done
}
