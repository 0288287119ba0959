//! Fuzz target `onnx`, whose entry and budget are in `convoke_models::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("onnx", convoke_models::fuzzing::TARGETS);
