//! See `convoke_models::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("onnx", convoke_models::fuzzing::TARGETS);
