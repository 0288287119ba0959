//! See `convoke_common::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("tripwire", convoke_common::fuzzing::TARGETS);
