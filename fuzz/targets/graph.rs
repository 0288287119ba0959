//! See `convoke_common::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("graph", convoke_common::fuzzing::TARGETS);
