//! The defects that the fuzzer found stay fixed: no input of a corpus panics, or takes more memory than its target
//! allows.

#[path = "../../fuzz/src/meter.rs"]
mod meter;

#[test]
fn corpora_are_within_their_budgets() {
    meter::replay(convoke_common::fuzzing::TARGETS);
}
