//! Replays the fuzz corpora: no input panics, or takes more memory than is stated.

#[path = "../../fuzz/src/meter.rs"]
mod meter;

#[test]
fn corpora_are_within_their_budgets() {
    meter::replay(convoke_coordinator::fuzzing::TARGETS);
}
