//! The task that owns one end of a monitored connection: its core, its datagrams, its tripwire.

use std::sync::Arc;

use quinn::Side;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::core::{Command, Core, Event};
use super::datagram::Datagram;
use super::watched::{TripwireConnection, WatchedConnection};
use super::{BAD_DATAGRAM, DetectorState, Verdict, bounds, tripwire};
use crate::mutant;
use crate::world::{BoxFuture, TcpConnection};

/// Runs until the connection ends, because the peer is lost or for another reason.
pub(super) async fn run(
    shared: Arc<DetectorState>,
    watched: WatchedConnection,
    mut matched: mpsc::Receiver<TripwireConnection>,
) {
    let connection = watched.connection();
    let dials = connection.side() == Side::Client;
    let mut core = Core::new(Instant::now(), dials);
    if shared.world.net.is_one_process() {
        core.excuse_silence();
    }
    let mut arming: Option<BoxFuture<'static, Option<Box<dyn TcpConnection>>>> = None;
    let mut wire: Option<Box<dyn TcpConnection>> = None;
    let mut told = false;
    let closed = connection.closed();
    tokio::pin!(closed);
    core.apply(Instant::now(), Event::Tick);
    loop {
        while let Some(command) = core.next_command() {
            match command {
                // A datagram that cannot be sent will not be echoed, which the core notices.
                Command::Send(datagram) => drop(connection.send_datagram(datagram.encode())),
                Command::Arm => {
                    let arm = tripwire::arm(shared.world.clone(), connection.clone());
                    arming = Some(Box::pin(arm));
                }
                Command::Refuse => shared.refused.count(BAD_DATAGRAM),
                Command::Lose(Verdict::NoAnswer) if mutant!("silence-ignored") => {}
                Command::Lose(verdict) => watched.lose(verdict),
            }
        }
        let Some(due) = core.poll_timeout() else {
            return;
        };
        // The core checks the time with every event, so that a peer that sends without end holds up no timer.
        let event = tokio::select! {
            biased;
            _ = &mut closed => return,
            Some(TripwireConnection(tcp)) = matched.recv() => {
                wire = Some(tcp);
                Event::Armed
            }
            armed = some(&mut arming) => {
                arming = None;
                wire = armed;
                if wire.is_some() { Event::Armed } else { Event::Unarmed }
            }
            () = ended(&mut wire) => {
                wire = None;
                match mutant!("tripwire-ignored") {
                    true => Event::Tick,
                    false => Event::Tripped,
                }
            }
            received = connection.read_datagram() => match received {
                Err(_) => return,
                Ok(bytes) => match Datagram::decode(&bytes) {
                    Some(datagram) => Event::Datagram(datagram),
                    None => {
                        shared.refused.count(BAD_DATAGRAM);
                        Event::Tick
                    }
                },
            },
            () = sleep_until(due) => Event::Tick,
        };
        watched.set_armed(wire.is_some());
        if event == Event::Unarmed && !std::mem::replace(&mut told, true) {
            tracing::info!(
                peer = %connection.remote_address(),
                "TCP does not reach it: the end of its process will be noticed within {:?} instead of {:?}",
                bounds::LOST,
                bounds::PROCESS_KILLED
            );
        }
        core.apply(Instant::now(), event);
    }
}

/// Awaits a future, or waits for ever if there is none.
async fn some<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Resolves when a tripwire ends. Nothing may be sent on a tripwire, so a received byte ends it too.
async fn ended(wire: &mut Option<Box<dyn TcpConnection>>) {
    match wire {
        // Every way in which the connection ends is the same hint.
        Some(tcp) => drop(tcp.read(&mut [0]).await),
        None => std::future::pending().await,
    }
}
