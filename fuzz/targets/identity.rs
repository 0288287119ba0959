//! Fuzz target `identity`, whose entry and budget are in `convoke_common::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("identity", convoke_common::fuzzing::TARGETS);
