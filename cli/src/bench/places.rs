//! Runs each measurement in its place, with the cluster and the floor that it needs.

use std::path::Path;

use convoke::{Cluster, Device, Tensor};
use convoke_common::error::Error;

use super::catalogue::{Bench, Subject, of_device};
use super::floor::{Relay, Tcp};
use super::measure::{cold, compile, devices, eager, exec, fan, remote, steps, transfers};
use super::report::{Baseline, Measurement};
use super::turns::Samples;
use crate::args::LogArgs;
use crate::process::children::Process;
use crate::text::failure::Failure;

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
) -> Result<Measurement, Failure> {
    Ok(match bench.what {
        Subject::ColdStart => {
            let both = cold::starts(folder, rounds).await?;
            Measurement::beside(bench, &both, Some(cold::FLOOR))
        }
        Subject::IdleRss => Measurement::alone(bench, &cold::memory(log).await?),
        Subject::Compile(nodes) => {
            Measurement::alone(bench, &compile::compile(nodes, rounds).await?)
        }
        _ => return Err(misplaced(bench)),
    })
}

/// Does a measurement of an embedded worker, on which `x` is a handle of the value 1.
pub async fn embedded(
    bench: &Bench,
    cluster: &Cluster,
    x: &Tensor,
    rounds: u32,
) -> Result<Measurement, Failure> {
    let alone = |samples: Samples| Ok(Measurement::alone(bench, &samples));
    let calls = |both| Ok(Measurement::beside(bench, &both, Some(exec::FLOOR)));
    let beside = |both| Ok(Measurement::beside(bench, &both, Some(eager::FLOOR)));
    match bench.what {
        Subject::NullChain => calls(exec::null_chain(cluster, x, rounds).await?),
        Subject::NullLayered => calls(exec::null_layered(cluster, x, rounds).await?),
        Subject::AddChain => beside(exec::add_chain(cluster, x, rounds).await?),
        Subject::Call => alone(eager::calls(cluster, x, rounds).await?),
        Subject::EagerAdd => beside(eager::adds(x, rounds).await?),
        Subject::EagerPrepared => beside(eager::prepared(x, rounds).await?),
        _ => Err(misplaced(bench)),
    }
}

/// A cluster that this command started itself: its processes, and what the floors need that run beside it.
pub struct OwnCluster<'a> {
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
    own: &OwnCluster<'_>,
    rounds: u32,
) -> Result<Measurement, Failure> {
    let samples = match bench.what {
        Subject::FanCpu => fan::cpu(cluster, workers, own.processes, rounds).await?,
        Subject::FanDatagrams => fan::datagrams(cluster, workers, rounds).await?,
        _ => return Err(misplaced(bench)),
    };
    Ok(Measurement::alone(bench, &samples))
}

/// A cluster of worker processes.
pub struct RemoteCluster<'a> {
    pub cluster: &'a Cluster,
    /// A device of each worker.
    pub workers: Vec<Device>,
    pub own: Option<OwnCluster<'a>>,
    pub rounds: u32,
}

impl RemoteCluster<'_> {
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
    pub async fn measure(&self, bench: &Bench) -> Result<Measurement, Failure> {
        let (cluster, rounds) = (self.cluster, self.rounds);
        let alone = |samples: Samples| Ok(Measurement::alone(bench, &samples));
        match bench.what {
            Subject::IdleCpu => match &self.own {
                Some(own) => alone(cold::busy(own.processes, rounds).await?),
                None => Err(misplaced(bench)),
            },
            Subject::RemoteFetch => {
                let ([device], relay) = (self.first()?, self.relay(&["a"]).await?);
                let both = remote::fetches(&device.put(1f32)?, relay.as_ref(), rounds).await?;
                Ok(relayed(bench, both, relay, remote::PING_PONG).await)
            }
            Subject::RemotePipelined => {
                let [device] = self.first()?;
                alone(remote::pipelined(&device.put(1f32)?, rounds).await?)
            }
            Subject::CallsAtOnce => {
                let [device] = self.first()?;
                let both = remote::calls_at_once(cluster, device, rounds).await?;
                Ok(Measurement::beside(bench, &both, Some(remote::ONE_BY_ONE)))
            }
            Subject::Step => {
                let (two, relay) = (self.first()?, self.relay(&["a", "b"]).await?);
                let workers = two.map(Device::worker);
                let both = steps::steps(cluster, workers, relay.as_ref(), rounds).await?;
                Ok(relayed(bench, both, relay, steps::RELAY).await)
            }
            Subject::StepsInFlight => {
                let workers = self.first()?.map(Device::worker);
                alone(steps::in_flight(cluster, workers, rounds).await?)
            }
            Subject::ErrorToCaller => {
                let workers = self.first()?.map(Device::worker);
                alone(steps::errors(cluster, workers, rounds).await?)
            }
            Subject::Transfer4KiB => self.transfer(bench, &transfers::SMALL).await,
            Subject::TransferShared => {
                let workers = self.first()?.map(Device::worker);
                let both = transfers::lent(cluster, workers, rounds).await?;
                Ok(Measurement::beside(bench, &both, Some(transfers::COPY)))
            }
            Subject::Transfer64MiB => self.transfer(bench, &transfers::LARGE).await,
            _ => Err(misplaced(bench)),
        }
    }

    async fn transfer(
        &self,
        bench: &Bench,
        size: &transfers::Size,
    ) -> Result<Measurement, Failure> {
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
        Ok(Measurement::beside(bench, &both, beside))
    }

    /// Does the measurement of a device.
    pub async fn device(&self, device: &Device) -> Result<Measurement, Failure> {
        let samples = devices::products(device, self.rounds).await?;
        let name = of_device(&device.name());
        Ok(Measurement::named(name, "GFLOP/s", &samples))
    }
}

/// Makes the result of a measurement beside a relay, and ends the relay.
async fn relayed(
    bench: &Bench,
    both: (Samples, Samples),
    relay: Option<Relay>,
    floor: Baseline,
) -> Measurement {
    let beside = relay.is_some().then_some(floor);
    if let Some(relay) = relay {
        relay.end().await;
    }
    Measurement::beside(bench, &both, beside)
}
