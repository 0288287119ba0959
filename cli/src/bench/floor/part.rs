//! `convoke bench-part`: the processes that `bench` starts for its floors.

use std::io::{BufRead, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use convoke::Embedded;
use convoke_common::error::{Code, Error};
use tokio::time::Instant;

use super::quic;
use crate::bench::args::{FloorArgs, Helper};
use crate::commands::daemon::{Ready, stopped};
use crate::process::signals::Signals;
use crate::text::failure::Failure;
use crate::text::output;

/// The most bytes that are sent at once.
const MOST: usize = 1 << 30;

/// Runs a process of a floor until it is stopped.
pub async fn run(args: FloorArgs) -> Result<(), Failure> {
    let mut signals = Signals::hear()?;
    match (args.part, args.to) {
        (Helper::Relay, to) => {
            let (Some(to), Some(keys)) = (to, &args.keys) else {
                return Err(Failure::Usage("relay needs --to and --keys".into()));
            };
            let endpoint = quic::endpoint(keys, &args.name).await?;
            ready(endpoint.local_addr().to_string())?;
            tokio::select! {
                biased;
                done = stopped(&mut signals, args.attached) => done,
                done = quic::pass_on(&endpoint, to) => Ok(done?),
            }
        }
        (Helper::Tcp, None) => {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(io)?;
            ready(listener.local_addr().map_err(io)?.to_string())?;
            on_thread(move || {
                // The echo fails when the sender ends, which is how it stops.
                let _ = echo(&listener);
            })?;
            stopped(&mut signals, args.attached).await
        }
        (Helper::Tcp, Some(to)) => throw(to),
        (Helper::Idle, _) => {
            let cluster = Embedded::new(1).start().await?;
            ready(String::new())?;
            stopped(&mut signals, args.attached).await?;
            cluster.shutdown().await;
            Ok(())
        }
    }
}

fn ready(listen: String) -> Result<(), Failure> {
    let name = "part".into();
    output::json(&Ready { name, listen })
}

fn io(e: std::io::Error) -> Failure {
    Failure::io("cannot measure over TCP", &e)
}

fn on_thread(work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    #[allow(clippy::disallowed_methods, reason = "a binary provides threads")]
    let thread = std::thread::Builder::new()
        .name("convoke-echo".into())
        .spawn(work);
    thread.map_err(|e| Failure::io("cannot start a thread", &e))?;
    Ok(())
}

/// Sends back the messages that it receives. A header of two u64 states the size and the number of the messages after
/// it.
fn echo(listener: &TcpListener) -> std::io::Result<()> {
    let (mut peer, _) = listener.accept()?;
    peer.set_nodelay(true)?;
    let mut buffer = Vec::new();
    loop {
        let mut words = [[0; 8]; 2];
        for word in &mut words {
            peer.read_exact(word)?;
        }
        let [bytes, rounds] = words.map(u64::from_le_bytes);
        buffer.resize(usize::try_from(bytes).unwrap_or(MOST).min(MOST), 0);
        for _ in 0..rounds {
            peer.read_exact(&mut buffer)?;
            peer.write_all(&buffer)?;
        }
    }
}

/// For each line `BYTES ROUNDS` on stdin, sends that many bytes to and fro that often, and prints the seconds of one
/// direction in each round. Ends when the parent closes stdin.
fn throw(to: SocketAddr) -> Result<(), Failure> {
    let mut peer = TcpStream::connect(to).map_err(io)?;
    peer.set_nodelay(true).map_err(io)?;
    ready(String::new())?;
    let mut buffer = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(io)?;
        let bad = || Error::new(Code::InvalidArgument, format!("'{line}' asks for nothing"));
        let (bytes, rounds) = line.split_once(' ').ok_or_else(bad)?;
        let (bytes, rounds): (u64, u64) = match (bytes.parse(), rounds.parse()) {
            (Ok(bytes), Ok(rounds)) => (bytes, rounds),
            _ => return Err(bad().into()),
        };
        buffer.resize(usize::try_from(bytes).unwrap_or(MOST).min(MOST), 7);
        peer.write_all(&bytes.to_le_bytes()).map_err(io)?;
        peer.write_all(&rounds.to_le_bytes()).map_err(io)?;
        let mut times = Vec::new();
        for _ in 0..rounds {
            let start = Instant::now();
            peer.write_all(&buffer).map_err(io)?;
            peer.read_exact(&mut buffer).map_err(io)?;
            times.push(start.elapsed().as_secs_f64() / 2.);
        }
        output::json(&times)?;
    }
    Ok(())
}
