//! Fuzz target `eager`, whose entry and budget are in `convoke_rendezvous::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("eager", convoke_rendezvous::fuzzing::TARGETS);
