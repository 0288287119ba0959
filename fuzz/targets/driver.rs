//! Fuzz target `driver`, whose entry and budget are in `convoke_rendezvous::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("driver", convoke_rendezvous::fuzzing::TARGETS);
