//! Fuzz target `safetensors`, whose entry and budget are in `convoke_models::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("safetensors", convoke_models::fuzzing::TARGETS);
