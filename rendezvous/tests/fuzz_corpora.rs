//! A regression test for the fuzzer's corpora: no input panics, or takes more memory than its target states.

#[path = "../../fuzz/src/meter.rs"]
mod meter;

#[test]
fn corpora_are_within_their_budgets() {
    meter::replay(convoke_rendezvous::fuzzing::TARGETS);
}
