//! A coordinator, two workers and a client in one process, each on a network thread of its own, and what the
//! benchmarks make of times.

#![allow(dead_code, reason = "each benchmark uses a part")]

pub mod relay;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use convoke::{Cluster, Token};
use convoke_common::identity::Role;
use convoke_common::world::{NoCompute, World};
use convoke_coordinator::{Coordinator, CoordinatorConfig};
use convoke_worker::{Threads, Worker, WorkerConfig};

/// Longest wait for anything.
pub const WAIT: Duration = Duration::from_secs(10);
/// Listens where the system chooses.
pub const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Steps per measured turn.
pub const TURN: usize = 100;

pub fn world() -> World {
    // Nothing computes here; workers bring their own threads.
    World::real(Arc::new(NoCompute))
}

pub fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

/// Runs `work`, which never ends, on a network thread of its own; returns what it tells first.
pub fn on_thread<T: Send + 'static, F: Future<Output = ()>>(
    work: impl FnOnce(mpsc::Sender<T>) -> F + Send + 'static,
) -> T {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || runtime().block_on(work(tell)));
    told.recv_timeout(WAIT).unwrap()
}

/// Coordinator, two workers and this client, each on its own network thread.
pub fn cluster() -> (Cluster, tokio::runtime::Runtime) {
    let (address, worker_token, client_token) = on_thread(|tell| async move {
        let volatile = CoordinatorConfig {
            listen: ANY,
            state_dir: None,
            run_dir: None,
            token_dir: None,
        };
        let c = Coordinator::start(world(), volatile).await.unwrap();
        let worker = c.create_token(Role::Worker, None).await.unwrap();
        let client = c.create_token(Role::Client, None).await.unwrap();
        tell.send((c.addr().to_string(), worker, client)).unwrap();
        std::future::pending().await
    });
    for i in 0..2 {
        let (join, token) = (address.clone(), worker_token.clone());
        on_thread(move |tell| async move {
            let name = format!("w{i}");
            let pool = Threads::start(&name, 1).unwrap();
            let world = World {
                compute: Arc::new(pool.clone()),
                ..world()
            };
            let config = WorkerConfig {
                name: Some(name),
                join,
                token,
                state_dir: None,
                cache_dir: None,
                cache_bytes: 0,
                artifact_root: None,
                memory: 1 << 30,
                sharers: 1,
                listen: ANY,
                advertise: None,
                host: "bench".into(),
                black_box: None,
            };
            let _running = Worker::start(world, config, Some(&pool)).await.unwrap();
            tell.send(()).unwrap();
            std::future::pending().await
        });
    }
    let caller = runtime();
    let token: Token = client_token.to_string().parse().unwrap();
    let cluster = caller.block_on(convoke::connect(&address, token)).unwrap();
    (cluster, caller)
}

/// p50 and p99 in microseconds.
pub fn quantiles(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort();
    let at = |q: f64| times[(times.len() as f64 * q) as usize].as_secs_f64() * 1e6;
    (at(0.5), at(0.99))
}
