//! Entries of [`crate::fuzzing`] that need what is private here: both ends of arming a tripwire.

use std::io::Cursor;
use std::pin::pin;

use tokio::io::{duplex, join, sink};

use super::listener::name;
use super::tripwire::{Expected, NONCE, announce, answer};
use super::watched::Tripwires;
use crate::fuzzing::on_runtime;
use crate::world::TcpConnection;

fn boxed(tcp: impl TcpConnection + 'static) -> Box<dyn TcpConnection> {
    Box::new(tcp)
}

/// What the acceptor answers on the stream to a dialler whom TCP takes anywhere.
pub(crate) fn answers(bytes: &[u8]) -> bool {
    let (tcp, _theirs) = duplex(NONCE);
    let dial = Box::pin(async { Ok(boxed(tcp)) });
    let armed = announce(&[7; NONCE], sink(), bytes, dial);
    on_runtime(async { armed.await.is_some() })
}

/// What a dialler announces on the stream, and what connections to the TCP port show, a nonce each.
pub(crate) fn announced(bytes: &[u8]) -> bool {
    let table = Expected::default();
    let (tripwires, mut to_monitor) = Tripwires::new();
    let (stream, shown) = bytes.split_at(bytes.len().min(NONCE));
    on_runtime(async {
        let mut armed = pin!(answer(Some(&table), &tripwires, sink(), stream));
        // It waits for TCP, or has been refused and armed nothing.
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
