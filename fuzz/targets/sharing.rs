//! Fuzz target `sharing`, whose entry and budget are in `convoke_rendezvous::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("sharing", convoke_rendezvous::fuzzing::TARGETS);
