//! The task that owns one end of a monitored connection: its core, its datagrams, its tripwire.

use std::sync::Arc;

use quinn::Side;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use super::core::{Command, Core, Event};
use super::datagram::Datagram;
use super::watched::{TripwireConnection, WatchedConnection};
use super::{BAD_DATAGRAM, DetectorState, Verdict, bounds, tripwire};
use crate::actor::Core as _;
use crate::mutant;
use crate::world::{BoxFuture, TcpConnection};

/// The byte that ends the tripwire of a process that lives.
const CLOSING: u8 = 1;

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
            return say_closing(&mut wire).await;
        };
        // The core checks the time with every event, so that a peer that sends without end holds up no timer.
        let event = tokio::select! {
            biased;
            _ = &mut closed => return say_closing(&mut wire).await,
            Some(TripwireConnection(tcp)) = matched.recv() => {
                wire = Some(tcp);
                Event::Armed
            }
            armed = some(&mut arming) => {
                arming = None;
                wire = armed;
                if wire.is_some() { Event::Armed } else { Event::Unarmed }
            }
            event = ended(&mut wire) => {
                wire = None;
                match mutant!("tripwire-ignored") {
                    true => Event::Tick,
                    false => event,
                }
            }
            received = connection.read_datagram() => match received {
                Err(_) => return say_closing(&mut wire).await,
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

/// Resolves when a tripwire ends, or the peer says that it closes the connection.
async fn ended(wire: &mut Option<Box<dyn TcpConnection>>) -> Event {
    match wire {
        Some(tcp) => match tcp.read(&mut [0]).await {
            // Nothing else is ever sent, so the byte's value is of no matter.
            Ok(1) => Event::Closing,
            // Every way in which TCP ends is the same hint.
            Ok(_) | Err(_) => Event::Tripped,
        },
        None => std::future::pending().await,
    }
}

/// Tells the peer that it is this process that ends the tripwire, so that the peer does not take it for dead.
async fn say_closing(wire: &mut Option<Box<dyn TcpConnection>>) {
    if let Some(tcp) = wire {
        // Nothing was sent since the nonce, so there is room unless TCP itself is stuck; then the peer learns it from
        // silence.
        let _ = timeout(bounds::PROBE_WAIT, tcp.write_all(&[CLOSING])).await;
    }
}
