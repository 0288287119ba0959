//! Fuzz target `memory`, whose entry and budget are in `convoke_common::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("memory", convoke_common::fuzzing::TARGETS);
