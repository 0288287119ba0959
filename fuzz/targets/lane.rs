//! Fuzz target `lane`, whose entry and budget are in `convoke_rendezvous::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("lane", convoke_rendezvous::fuzzing::TARGETS);
