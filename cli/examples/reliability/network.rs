//! Measures what steps carry over networks that delay, reorder and lose packets: real processes on hosts of their own.

#[path = "network/hosts.rs"]
mod hosts;
#[path = "network/switch.rs"]
mod switch;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use convoke::{CallOptions, HostTensor as Tensor, Retry, Token};

use self::hosts::Network;
use self::switch::{Bottleneck, Impairment};
use crate::common::cluster::{COORDINATOR_PORT, Processes};
use crate::common::functions::tanh_chain;

/// The elements of the tensor that a step passes from the driver to a worker, on to another one, and back: 2 MiB.
const SIZE: usize = 512 << 10;
const STEP_BYTES: f64 = (3 * SIZE * 4) as f64;
const WORKERS: usize = 2;

const MS: Duration = Duration::from_millis(1);

/// A network, and what it has to carry.
struct Profile {
    name: &'static str,
    impairment: Impairment,
    /// The least part of the goodput of another profile.
    floor: Option<(f64, &'static str)>,
}

fn profiles() -> Vec<Profile> {
    let clean = Impairment::default();
    let far = Impairment {
        delay: 15 * MS,
        ..clean
    };
    let row = |name, impairment, floor| Profile {
        name,
        impairment,
        floor,
    };
    vec![
        row("clean", clean, None),
        row(
            "1 % lost",
            Impairment {
                lost_of_thousand: 10,
                ..clean
            },
            Some((0.4, "clean")),
        ),
        row(
            "0 to 5 ms",
            Impairment {
                jitter: 5 * MS,
                ..clean
            },
            None,
        ),
        row("15 ms", far, None),
        row(
            "15 to 17 ms",
            Impairment {
                jitter: 2 * MS,
                ..far
            },
            Some((0.25, "15 ms")),
        ),
        row(
            "15 to 20 ms",
            Impairment {
                jitter: 5 * MS,
                ..far
            },
            Some((0.25, "15 ms")),
        ),
        row(
            "15 ms, 1 % lost",
            Impairment {
                lost_of_thousand: 10,
                ..far
            },
            Some((0.25, "15 ms")),
        ),
        row(
            "15 ms, 25 MB/s, queue of 20 ms",
            Impairment {
                bottleneck: Some(Bottleneck {
                    bytes_per_second: 25_000_000,
                    queue: 20 * MS,
                }),
                ..far
            },
            None,
        ),
    ]
}

/// Runs steps for `time` over each network; returns whether each carried what it has to.
pub fn run(time: Duration) -> bool {
    let mut carried = BTreeMap::new();
    let mut kept = true;
    println!("| network | steps/s | MB/s | part of | floor |\n|---|---|---|---|---|");
    for profile in profiles() {
        let network = match Network::make(1 + WORKERS, profile.impairment) {
            Ok(network) => network,
            Err(e) => {
                println!(
                    "there can be no hosts on this machine ({e}): this needs /dev/net/tun, the command `ip`, and the rights of root, \
                     or those that `unshare --user --map-root-user` gives"
                );
                return false;
            }
        };
        let steps = steps_per_second(&network, time);
        let (mut part, mut floor) = (String::new(), String::new());
        if let Some((least, of)) = profile.floor {
            let of_other = steps / carried[of];
            (part, floor) = (format!("{of_other:.2} of {of}"), format!("{least}"));
            kept &= of_other >= least;
        }
        println!(
            "| {} | {steps:.1} | {:.1} | {part} | {floor} |",
            profile.name,
            steps * STEP_BYTES / 1e6
        );
        carried.insert(profile.name, steps);
    }
    kept
}

fn steps_per_second(network: &Network, time: Duration) -> f64 {
    let mut processes = Processes::prepare("network", "1GiB");
    let home = &network.hosts[0];
    processes.address = format!("{}:{COORDINATOR_PORT}", home.address);
    home.run(|| processes.start_coordinator());
    for (i, host) in network.hosts[1..].iter().enumerate() {
        processes.block_shared_memory(i);
        host.run(|| processes.add_worker_at(&format!("{}:0", host.address)));
    }
    let (address, token) = (&processes.address, processes.client_token());
    home.run(|| {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(measure(address, &token, time))
    })
}

async fn measure(address: &str, token: &str, time: Duration) -> f64 {
    let token = Token::from_file(token).unwrap();
    let cluster = convoke::connect(address, token).await.unwrap();
    let load = cluster.load_function(tanh_chain(&[SIZE], WORKERS), vec![]);
    let load = load
        .workers(WORKERS as u32)
        .pin("Tanh_1", "w0")
        .pin("Tanh_2", "w1");
    let model = load.await.unwrap();
    let x = Tensor::from_slice(&[SIZE], &vec![0.5f32; SIZE]).unwrap();
    let options = CallOptions {
        retry: Retry::Off,
        ..CallOptions::default()
    };
    let mut steps = 0;
    let begun = Instant::now();
    while begun.elapsed() < time {
        model.call_with([("x", x.clone())], options).await.unwrap();
        steps += 1;
    }
    let took = begun.elapsed();
    cluster.shutdown().await;
    f64::from(steps) / took.as_secs_f64()
}
