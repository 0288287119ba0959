//! Entries of [`crate::fuzzing`] that need private items of this module: both ends of arming a tripwire.

use std::io::Cursor;
use std::pin::pin;

use tokio::io::{duplex, join, sink};

use super::listener::name;
use super::tripwire::{ExpectedNonces, NONCE, announce, answer};
use super::watched::Tripwires;
use crate::fuzzing::target::on_runtime;
use crate::world::TcpConnection;

fn boxed(tcp: impl TcpConnection + 'static) -> Box<dyn TcpConnection> {
    Box::new(tcp)
}

/// The bytes are an acceptor's answers on the stream; the dialler's TCP connection always succeeds.
pub(crate) fn answers(bytes: &[u8]) -> bool {
    let (tcp, _theirs) = duplex(NONCE);
    let dial = Box::pin(async { Ok(boxed(tcp)) });
    let armed = announce(&[7; NONCE], sink(), bytes, dial);
    on_runtime(async { armed.await.is_some() })
}

/// The bytes are what a dialler announces on the stream, and then what connections to the TCP port show, one nonce
/// each.
pub(crate) fn announced(bytes: &[u8]) -> bool {
    let table = ExpectedNonces::default();
    let (tripwires, mut to_monitor) = Tripwires::new();
    let (stream, shown) = bytes.split_at(bytes.len().min(NONCE));
    on_runtime(async {
        let mut armed = pin!(answer(Some(&table), &tripwires, sink(), stream));
        // The acceptor now waits for TCP, unless it refused the announcement and armed nothing.
        if futures::poll!(&mut armed).is_ready() {
            return false;
        }
        for nonce in shown.chunks(NONCE) {
            let tcp = join(Cursor::new(nonce.to_vec()), sink());
            name(Some(&table), boxed(tcp)).await;
        }
        futures::poll!(armed).is_ready() && to_monitor.try_recv().is_ok()
    })
}
