//! Fuzz target `stream`, whose entry and budget are in `convoke_rendezvous::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("stream", convoke_rendezvous::fuzzing::TARGETS);
