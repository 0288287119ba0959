//! Fuzz target `graph`, whose entry and budget are in `convoke_common::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("graph", convoke_common::fuzzing::TARGETS);
