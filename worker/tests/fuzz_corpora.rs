//! Regression tests for the fuzzer's finds: no input of a corpus causes a panic, or takes more memory than is stated.

#[path = "../../fuzz/src/meter.rs"]
mod meter;

#[test]
fn corpora_are_within_their_budgets() {
    meter::replay(convoke_worker::fuzzing::TARGETS);
}
