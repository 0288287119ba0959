//! What a lease has for each of its steps in flight: slots, and the table in which they are found.

pub mod slot;
pub mod table;
// These are no module of `table.rs`, since the models of `tests/models` compile that file over the checker's
// primitives.
#[cfg(test)]
mod table_tests;
