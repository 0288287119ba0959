//! Runs each measurement in its place, with the cluster and the floor that it needs.

use std::path::Path;

use convoke::{Cluster, Device, Tensor};
use convoke_common::error::Error;

use super::catalogue::{Bench, What, of_device};
use super::floor::{Relay, Tcp};
use super::report::{Beside, Measured};
use super::turns::Samples;
use super::{cold, compile, devices, eager, exec, fan, remote, steps, transfers};
use crate::args::LogArgs;
use crate::children::Process;
use crate::failure::Failure;

/// The error of a measurement that is asked for in a place where it cannot be done.
fn misplaced(bench: &Bench) -> Failure {
    Error::internal(format!("{} is measured elsewhere", bench.name)).into()
}

/// Does a measurement that needs no cluster, with files in `folder`.
pub async fn alone(
    bench: &Bench,
    folder: &Path,
    log: &LogArgs,
    rounds: u32,
) -> Result<Measured, Failure> {
    Ok(match bench.what {
        What::ColdStart => {
            let both = cold::starts(folder, rounds).await?;
            Measured::beside(bench, &both, Some(cold::FLOOR))
        }
        What::IdleRss => Measured::alone(bench, &cold::memory(log).await?),
        What::Compile(nodes) => Measured::alone(bench, &compile::compile(nodes, rounds).await?),
        _ => return Err(misplaced(bench)),
    })
}

/// Does a measurement of an embedded worker, on which `x` is a handle of the value 1.
pub async fn embedded(
    bench: &Bench,
    cluster: &Cluster,
    x: &Tensor,
    rounds: u32,
) -> Result<Measured, Failure> {
    let alone = |samples: Samples| Ok(Measured::alone(bench, &samples));
    let calls = |both| Ok(Measured::beside(bench, &both, Some(exec::FLOOR)));
    let beside = |both| Ok(Measured::beside(bench, &both, Some(eager::FLOOR)));
    match bench.what {
        What::NullChain => calls(exec::null_chain(cluster, x, rounds).await?),
        What::NullLayered => calls(exec::null_layered(cluster, x, rounds).await?),
        What::AddChain => beside(exec::add_chain(cluster, x, rounds).await?),
        What::Call => alone(eager::calls(cluster, x, rounds).await?),
        What::EagerAdd => beside(eager::adds(x, rounds).await?),
        What::EagerPrepared => beside(eager::prepared(x, rounds).await?),
        _ => Err(misplaced(bench)),
    }
}

/// What is known only of a cluster that this command started: its processes, and what floors beside it need.
pub struct Own<'a> {
    pub processes: &'a [Process],
    /// The folder for the keys of floors.
    pub folder: &'a Path,
    pub log: &'a LogArgs,
}

/// Does a measurement of steps over all workers of a cluster; `workers` has a device of each.
pub async fn fan(
    bench: &Bench,
    cluster: &Cluster,
    workers: &[Device],
    own: &Own<'_>,
    rounds: u32,
) -> Result<Measured, Failure> {
    let samples = match bench.what {
        What::FanCpu => fan::cpu(cluster, workers, own.processes, rounds).await?,
        What::FanDatagrams => fan::datagrams(cluster, workers, rounds).await?,
        _ => return Err(misplaced(bench)),
    };
    Ok(Measured::alone(bench, &samples))
}

/// A cluster of worker processes.
pub struct Remote<'a> {
    pub cluster: &'a Cluster,
    /// A device of each worker.
    pub workers: Vec<Device>,
    pub own: Option<Own<'a>>,
    pub rounds: u32,
}

impl Remote<'_> {
    /// The first `N` workers. The catalogue states that many for each measurement, so too few are an internal error.
    fn first<const N: usize>(&self) -> Result<[&Device; N], Failure> {
        let few = || Error::internal("a measurement has too few workers");
        let first = self.workers.first_chunk::<N>().ok_or_else(few)?;
        Ok(first.each_ref())
    }

    async fn relay(&self, parties: &[&str]) -> Result<Option<Relay>, Failure> {
        match &self.own {
            Some(own) => Ok(Some(Relay::start(parties, own.folder, own.log).await?)),
            None => Ok(None),
        }
    }

    /// Does a measurement of the cluster.
    pub async fn measure(&self, bench: &Bench) -> Result<Measured, Failure> {
        let (cluster, rounds) = (self.cluster, self.rounds);
        let alone = |samples: Samples| Ok(Measured::alone(bench, &samples));
        match bench.what {
            What::IdleCpu => match &self.own {
                Some(own) => alone(cold::busy(own.processes, rounds).await?),
                None => Err(misplaced(bench)),
            },
            What::RemoteFetch => {
                let ([device], relay) = (self.first()?, self.relay(&["a"]).await?);
                let both = remote::fetches(&device.put(1f32)?, relay.as_ref(), rounds).await?;
                Ok(relayed(bench, both, relay, remote::PING_PONG).await)
            }
            What::RemotePipelined => {
                let [device] = self.first()?;
                alone(remote::pipelined(&device.put(1f32)?, rounds).await?)
            }
            What::Step => {
                let (two, relay) = (self.first()?, self.relay(&["a", "b"]).await?);
                let workers = two.map(Device::worker);
                let both = steps::steps(cluster, workers, relay.as_ref(), rounds).await?;
                Ok(relayed(bench, both, relay, steps::RELAY).await)
            }
            What::StepsInFlight => {
                let workers = self.first()?.map(Device::worker);
                alone(steps::in_flight(cluster, workers, rounds).await?)
            }
            What::ErrorToCaller => {
                let workers = self.first()?.map(Device::worker);
                alone(steps::errors(cluster, workers, rounds).await?)
            }
            What::Transfer4KiB => self.transfer(bench, &transfers::SMALL).await,
            What::TransferShared => {
                let workers = self.first()?.map(Device::worker);
                let both = transfers::lent(cluster, workers, rounds).await?;
                Ok(Measured::beside(bench, &both, Some(transfers::COPY)))
            }
            What::Transfer64MiB => self.transfer(bench, &transfers::LARGE).await,
            _ => Err(misplaced(bench)),
        }
    }

    async fn transfer(&self, bench: &Bench, size: &transfers::Size) -> Result<Measured, Failure> {
        let mut tcp = match &self.own {
            Some(own) => Some(Tcp::start(own.log).await?),
            None => None,
        };
        let two = self.first()?;
        let both = transfers::moves(size, two, tcp.as_mut(), self.rounds).await?;
        let beside = tcp.is_some().then_some(size.floor);
        if let Some(tcp) = tcp {
            tcp.end().await;
        }
        Ok(Measured::beside(bench, &both, beside))
    }

    /// Does the measurement of a device.
    pub async fn device(&self, device: &Device) -> Result<Measured, Failure> {
        let samples = devices::products(device, self.rounds).await?;
        let name = of_device(&device.name());
        Ok(Measured::named(name, "GFLOP/s", &samples))
    }
}

/// Makes the result of a measurement beside a relay, and ends the relay.
async fn relayed(
    bench: &Bench,
    both: (Samples, Samples),
    relay: Option<Relay>,
    floor: Beside,
) -> Measured {
    let beside = relay.is_some().then_some(floor);
    if let Some(relay) = relay {
        relay.end().await;
    }
    Measured::beside(bench, &both, beside)
}
