//! Replays the fuzz corpora: no input may panic, or take more memory than its target's budget.

#[path = "../../fuzz/src/meter.rs"]
mod meter;

#[test]
fn corpora_are_within_their_budgets() {
    meter::replay(convoke_models::fuzzing::TARGETS);
}
