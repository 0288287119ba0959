//! See `convoke_models::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("tensor", convoke_models::fuzzing::TARGETS);
