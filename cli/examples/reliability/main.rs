//! Long runs over real processes, whose results are in docs/RELIABILITY.md. `.ci/long` builds and starts them.
//!
//! ```text
//! reliability timings [ROUNDS [TEXT]]  measures how soon each fault with TEXT in its name is noticed and mended
//! reliability rows                     makes rows of that table from lines "fault, detection, recovery" on stdin
//! reliability false-alarm [MINUTES]    checks that no member of a cluster on a busy machine is given up
//! reliability partitions [ROUNDS]      checks that no step fails while the coordinator is cut off or stopped
//! reliability restarts [ROUNDS]        checks that loads succeed while workers are killed and started again
//! reliability memory [RESTARTS]        checks that the coordinator hardly grows over many restarts of a worker
//! reliability loops [ITERATIONS]       checks that loops which only issue ops stay as fast and as lean as they began
//! reliability network [SECONDS]        checks what steps carry over networks that delay, reorder and lose packets
//! reliability soak [MINUTES]           runs a mixed load while processes are killed
//! ```
//! The runs use the binary `convoke` that was built beside this example. The exit code is 1 if a promise is broken. The
//! processes that a run starts hold the other end of a pipe to it, so that they end with it, however it ends.

#![allow(clippy::unwrap_used, reason = "what fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "it measures real processes in real time"
)]

#[path = "../../src/process/allocator.rs"]
mod allocator;
#[path = "../../tests/common/mod.rs"]
mod common;
mod false_alarm;
mod faults;
mod load;
mod loops;
mod memory;
mod network;
mod partitions;
mod restarts;
mod rows;
mod soak;

use std::process::ExitCode;
use std::time::Duration;

#[tokio::main(flavor = "multi_thread")]
async fn main() -> ExitCode {
    // The command line does so too, and this process' memory is checked like that of the others.
    allocator::keep_nothing_large();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |default: u64| match arguments.get(1) {
        Some(text) => text.parse().ok(),
        None => Some(default),
    };
    let minutes = || number(10).map(|m| Duration::from_secs(60 * m));
    let what = arguments.first().map(String::as_str);
    let kept = match (what, number(20), minutes()) {
        (Some("timings"), Some(rounds), _) => {
            let only = arguments.get(2).map_or("", String::as_str);
            faults::time(rounds as usize, only).await
        }
        (Some("rows"), ..) => rows::from_stdin(),
        (Some("false-alarm"), _, Some(time)) => false_alarm::run(time).await,
        (Some("partitions"), Some(rounds), _) => partitions::run(rounds as u32).await,
        (Some("restarts"), Some(rounds), _) => restarts::run(rounds as u32).await,
        (Some("memory"), ..) => match number(1000) {
            Some(restarts) => tokio::task::block_in_place(|| memory::run(restarts as u32)),
            None => return usage(),
        },
        (Some("loops"), ..) => match number(1_000_000) {
            Some(iterations) => loops::run(iterations).await,
            None => return usage(),
        },
        (Some("network"), ..) => match number(10) {
            Some(seconds) => {
                tokio::task::block_in_place(|| network::run(Duration::from_secs(seconds)))
            }
            None => return usage(),
        },
        (Some("soak"), _, Some(time)) => soak::run(time).await,
        (Some(false_alarm::BURN), ..) => false_alarm::burn(),
        _ => return usage(),
    };
    ExitCode::from(u8::from(!kept))
}

fn usage() -> ExitCode {
    eprintln!(
        "timings [ROUNDS [TEXT]], rows, partitions [ROUNDS], restarts [ROUNDS], memory [RESTARTS], loops [ITERATIONS], \
         network [SECONDS], false-alarm [MINUTES] or soak [MINUTES]"
    );
    ExitCode::from(2)
}
