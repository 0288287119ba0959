//! Fuzz target `preface`, whose entry and budget are in `convoke_common::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("preface", convoke_common::fuzzing::TARGETS);
