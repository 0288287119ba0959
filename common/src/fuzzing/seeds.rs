//! Corpus inputs with valid messages of each kind.

#[path = "../../../fuzz/src/seed.rs"]
mod seed;

mod control;
mod graph;
mod identity;
mod memory;

use super::TARGETS;
use crate::detection::datagram::{Datagram, Kind};
use crate::rpc::StreamKind;
use crate::world::hello;
use seed::Seed;

/// An input that chooses `decoder` for `bytes`.
fn chosen(decoder: u8, bytes: &[u8]) -> Vec<u8> {
    [&[decoder], bytes].concat()
}

fn preface() -> Vec<Seed> {
    let datagram = Datagram {
        kind: Kind::Probe,
        counter: 7,
        seen: 6,
    };
    let seed = |name: &str, input| ("preface", name.to_owned(), input);
    vec![
        seed(
            "greeting",
            chosen(0, &hello::encode(hello::PROTOCOL_VERSION)),
        ),
        seed("stream", chosen(1, &[StreamKind::Tripwire as u8])),
        seed("datagram", chosen(2, &datagram.encode())),
    ]
}

fn tripwire() -> Vec<Seed> {
    let shown = |nonces: &[u8]| nonces.iter().flat_map(|n| [*n; 16]).collect::<Vec<_>>();
    let seed = |name: &str, input| ("tripwire", name.to_owned(), input);
    vec![
        seed("answers", chosen(0, &[1, 2])),
        seed("announced", chosen(1, &shown(&[7, 7]))),
        seed("after-a-stranger", chosen(1, &shown(&[7, 8, 7, 7]))),
    ]
}

#[test]
fn seeds_are_of_the_current_formats() {
    let entries: Vec<_> = TARGETS.iter().map(|t| (t.name, t.entry)).collect();
    let seeds = [
        control::seeds(),
        graph::seeds(),
        identity::seeds(),
        memory::seeds(),
        preface(),
        tripwire(),
    ];
    seed::check(&entries, seeds.concat());
}
