//! Targets for bytes that a peer can send before it is known, or unreliably: greetings, first bytes of streams, and
//! datagrams.

use super::target::{MemoryBound, Target, choose};
use crate::detection::datagram::Datagram;
use crate::rpc::StreamKind;
use crate::world::hello;

pub(super) const TARGET: Target = Target {
    name: "preface",
    budget: MemoryBound {
        fixed: 4 << 10,
        factor: 4,
    },
    entry: |input| choose(DECODERS, input),
};

const DECODERS: &[fn(&[u8]) -> bool] = &[greeting, stream_kind, datagram];

fn greeting(bytes: &[u8]) -> bool {
    let Ok(greeting) = bytes.try_into() else {
        return false;
    };
    match hello::check(greeting, hello::PROTOCOL_VERSION) {
        Ok(()) => true,
        Err(error) => error.to_string().is_empty(),
    }
}

fn stream_kind(bytes: &[u8]) -> bool {
    matches!(bytes, [byte] if StreamKind::from_byte(*byte).is_some())
}

fn datagram(bytes: &[u8]) -> bool {
    Datagram::decode(bytes).is_some_and(|d| d.encode() == bytes)
}
