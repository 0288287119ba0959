//! Fuzz target `control`, whose entry and budget are in `convoke_common::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("control", convoke_common::fuzzing::TARGETS);
