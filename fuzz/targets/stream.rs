//! See `convoke_rendezvous::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("stream", convoke_rendezvous::fuzzing::TARGETS);
