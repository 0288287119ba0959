//! Fuzz target `tensor`, whose entry and budget are in `convoke_models::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("tensor", convoke_models::fuzzing::TARGETS);
