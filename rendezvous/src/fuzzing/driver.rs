//! A driver of two workers, and the frames that it takes from them while calls are under way.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use convoke_common::world::{NoCompute, World};
use convoke_graph::graph::TensorType;
use convoke_graph::program::{DriverProgram, DriverSlot, Fetch, FetchFrom};
use convoke_graph::{DType, Dim};
use tokio::task::yield_now;

use super::{LEASE, axes, frame, participants, peer, pool, worker};
use crate::driver::Driver;
use crate::{Hub, Link};

/// The number of steps that may be in flight.
const WINDOW: u32 = 2;

/// A call whose step binds the only axis to 3.
type Call<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A program whose slot 0 comes from the first worker, f32[2], and slot 1 from the other, i64[n].
fn program() -> DriverProgram {
    let types = [
        TensorType::fixed(DType::F32, &[2]),
        TensorType::new(DType::I64, vec![Dim::sym("n")]),
    ];
    let fetch = |(from, ty): (u16, &TensorType)| Fetch {
        name: from.to_string(),
        ty: ty.clone(),
        from: FetchFrom::Worker {
            from,
            slot: u32::from(from),
        },
    };
    DriverProgram {
        feeds: vec![],
        fetches: (0..).zip(&types).map(fetch).collect(),
        slots: (0..)
            .zip(types.clone())
            .map(|(from, ty)| DriverSlot { from, ty })
            .collect(),
    }
}

/// The hub of the driver, and the hubs of its two workers.
fn hubs() -> Option<(Arc<Hub>, [Arc<Hub>; 2])> {
    let hub = Hub::new(peer(2));
    let workers = [worker(0, vec![])?, worker(1, vec![])?];
    workers.iter().for_each(|w| Link::join_local(&hub, w));
    Some((hub, workers))
}

fn driver(hub: &Arc<Hub>) -> Option<Arc<Driver>> {
    let world = World::real(Arc::new(NoCompute));
    let links = vec![hub.link(&peer(0))?, hub.link(&peer(1))?];
    Some(Driver::new(
        &world,
        hub.clone(),
        LEASE,
        participants(),
        program(),
        axes(),
        WINDOW,
        links,
        pool()?,
    ))
}

/// The calls that are made in turn: one that needs all results, and a partial one.
const CALLS: [fn(&Driver) -> Call<'_>; 2] = [
    |driver| {
        let call = driver.call(vec![], vec![3], None);
        Box::pin(async { drop(std::hint::black_box(call.await)) })
    },
    |driver| {
        let call = driver.call_partial(vec![], vec![3], None);
        Box::pin(async { drop(std::hint::black_box(call.await)) })
    },
];

fn resolved(call: &mut Call<'_>) -> bool {
    let mut nobody = Context::from_waker(Waker::noop());
    let polled = call.as_mut().poll(&mut nobody);
    polled.is_ready()
}

/// Ends the link to a worker.
fn lose(hub: &Hub, worker: usize) {
    if let Some(link) = hub.link(&peer(worker)) {
        link.close("it ended");
        hub.link_lost(&link, "it ended");
    }
}

/// Applies one turn of the input: `0 or 1 | a frame of that worker`, or `2 or 3`, which ends the link to a worker.
/// Returns the rest of the input.
fn turn<'a>(hub: &Hub, input: &'a [u8]) -> Option<&'a [u8]> {
    let (what, rest) = input.split_first()?;
    let worker = usize::from(what % 2);
    match what {
        0 | 1 => Some(frame(hub, &peer(worker), rest)?.1),
        2 | 3 => {
            lose(hub, worker);
            Some(rest)
        }
        _ => None,
    }
}

/// Applies turns while as many calls are under way as the window has room for. Each call resolves, at the latest when
/// the driver is closed.
pub(super) async fn entry(mut input: &[u8]) -> bool {
    let Some((hub, _workers)) = hubs() else {
        return false;
    };
    let Some(driver) = driver(&hub) else {
        return false;
    };
    let mut calls = CALLS.map(|call| call(&driver));
    loop {
        for (waiting, call) in calls.iter_mut().zip(CALLS) {
            if resolved(waiting) {
                *waiting = call(&driver);
            }
        }
        // The timers run now; tokio also lets no task poll for ever.
        yield_now().await;
        match turn(&hub, input) {
            Some(rest) => input = rest,
            None => break,
        }
    }
    driver.close();
    let mut calls = Vec::from(calls);
    // A call may wait for another one that is about to begin.
    for _ in 0..WINDOW {
        calls.retain_mut(|call| !resolved(call));
    }
    assert!(calls.is_empty(), "a call outlives its driver");
    input.is_empty()
}
