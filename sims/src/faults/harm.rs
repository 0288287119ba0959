//! What can go wrong.

use serde::{Deserialize, Serialize};

use crate::draw::Draw;
use crate::world::Host;

use super::Row;

/// Rows whose faults are drawn for one seed in some, beside all others: they need a member with a token of its own, or
/// concern the disks and calendars that the others do not touch.
pub const BESIDE: [Row; 6] = [
    Row::DiskFull,
    Row::DiskFails,
    Row::Revoke,
    Row::Days,
    Row::Hoard,
    Row::Flood,
];

/// The rows whose faults are drawn for any seed; a kernel's own error comes with the workload.
pub fn drawn() -> Vec<Row> {
    let drawn = Row::ALL.into_iter();
    let drawn = drawn.filter(|r| *r != Row::KernelError && !BESIDE.contains(r));
    drawn.collect()
}

/// The host that a fault strikes; numbers beyond what is there count modulo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Target {
    Coordinator,
    Worker(u16),
    Client(u16),
}

impl Target {
    /// The host, in a cluster of so many workers and clients.
    pub fn host(self, workers: usize, clients: usize) -> Host {
        let modulo = |i: u16, n: usize| i % u16::try_from(n.max(1)).unwrap_or(u16::MAX);
        match self {
            Target::Coordinator => Host::Coordinator,
            Target::Worker(i) => Host::Worker(modulo(i, workers)),
            Target::Client(i) => Host::Client(modulo(i, clients)),
        }
    }
}

/// What is done to it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Harm {
    /// Packets to and from it are lost, in a million.
    Loss(u32),
    /// Packets to and from it take up to this many milliseconds longer, all alike.
    Delay(u16),
    /// Packets to and from it overtake each other: each takes up to this many milliseconds longer.
    Reorder(u16),
    /// Packets to and from it arrive twice, in a million.
    Duplicate(u32),
    /// Packets to and from it arrive damaged, in a million.
    Corrupt(u32),
    /// It and `from` do not reach each other; `from` being the target itself: nobody.
    Cut { from: Target },
    /// Nothing it sends reaches `to`; `to` being the target itself: nobody.
    OneWay { to: Target },
    /// Its process is killed, and started again.
    Crash,
    /// Its power fails, and it is started again: unsynced writes are lost.
    PowerCut,
    /// Its process is stopped, and continued.
    Pause,
    /// Its kernels take this many times as long.
    Slow(u32),
    /// All of its memory is taken by something else.
    Memory,
    /// Its compute pool takes no job.
    Refuse,
    /// Its next kernels panic.
    Panic(u32),
    /// Its kernels do not return.
    Hang,
    /// Its calendar is off by this many seconds.
    Clock(i64),
    /// It sends frames that it may not send.
    Forge,
    /// Its disk takes nothing more.
    DiskFull,
    /// Its disk neither reads nor writes.
    DiskFails,
    /// The token that it has for itself is revoked; when that is over it is given another. Nothing where it has none.
    Revoke,
    /// All calendars go on by this many days, some at a time, and stay there.
    Days(u16),
    /// This client takes all the memory of the worker that its budget allows. Nothing where it has no token for itself.
    Hoard { by: u16 },
    /// This client keeps the worker busy, with many calls at a time. Nothing where it has no token for itself.
    Flood { by: u16 },
}

impl Harm {
    /// Whether packets are lost, late, doubled or damaged because of it.
    pub fn is_of_packets(self) -> bool {
        use Harm::{Corrupt, Delay, Duplicate, Loss, Reorder};
        matches!(
            self,
            Loss(_) | Delay(_) | Reorder(_) | Duplicate(_) | Corrupt(_)
        )
    }

    /// Where it stands in the table.
    pub fn row(self, target: Target) -> Row {
        match (self, target) {
            (Harm::Loss(_), _) => Row::Loss,
            (Harm::Delay(_), _) => Row::Delay,
            (Harm::Reorder(_), _) => Row::Reorder,
            (Harm::Duplicate(_), _) => Row::Duplicate,
            (Harm::Corrupt(_), _) => Row::Corrupt,
            (Harm::Cut { .. }, _) => Row::Cut,
            (Harm::OneWay { .. }, _) => Row::OneWay,
            (Harm::Crash | Harm::PowerCut, Target::Worker(_)) => Row::CrashWorker,
            (Harm::Crash | Harm::PowerCut, Target::Coordinator) => Row::CrashCoordinator,
            (Harm::Crash | Harm::PowerCut, Target::Client(_)) => Row::CrashClient,
            (Harm::Pause, _) => Row::Pause,
            (Harm::Slow(_), _) => Row::Slow,
            (Harm::Memory, _) => Row::OutOfMemory,
            (Harm::Refuse, _) => Row::Refuse,
            (Harm::Panic(_), _) => Row::Panic,
            (Harm::Hang, _) => Row::Hang,
            (Harm::Clock(_), _) => Row::Clock,
            (Harm::Forge, _) => Row::Forge,
            (Harm::DiskFull, _) => Row::DiskFull,
            (Harm::DiskFails, _) => Row::DiskFails,
            (Harm::Revoke, _) => Row::Revoke,
            (Harm::Days(_), _) => Row::Days,
            (Harm::Hoard { .. }, _) => Row::Hoard,
            (Harm::Flood { .. }, _) => Row::Flood,
        }
    }

    /// Whether packets are lost or late beyond what the transport mends unnoticed, so that peers may lose each other.
    pub fn separates(self) -> bool {
        match self {
            Harm::Loss(rate) | Harm::Corrupt(rate) => rate > MENDED,
            Harm::Delay(most) | Harm::Reorder(most) => most > 200,
            Harm::Cut { .. } | Harm::OneWay { .. } | Harm::Pause => true,
            Harm::Crash | Harm::PowerCut | Harm::Clock(_) => true,
            Harm::Duplicate(_) | Harm::Slow(_) | Harm::Memory | Harm::Refuse => false,
            Harm::Panic(_) | Harm::Forge => false,
            Harm::DiskFull | Harm::DiskFails | Harm::Days(_) => false,
            Harm::Hoard { .. } | Harm::Flood { .. } => false,
            // Its connections end.
            Harm::Revoke => true,
            // A worker that hangs is wedged, exits and comes back.
            Harm::Hang => true,
        }
    }
}

/// Days that pass at once, less than a certificate lives after its renewal is due, and milliseconds until the next do: members
/// look at the calendar each second.
pub const AT_ONCE: (u16, u32) = (2, 1500);

/// Milliseconds in which so many days pass.
fn days_last(days: u16) -> u32 {
    let (at_once, pause) = AT_ONCE;
    u32::from(days.div_ceil(at_once)) * pause
}

/// Packets in a million that may be lost without anybody noticing but by the delay. Of a tenth, each way, four echoes in a
/// row are lost now and then, which is what a peer that is gone looks like.
const MENDED: u32 = 50_000;

/// A random fault of one of the [`drawn`] rows, or of one [`BESIDE`] them: target, harm and how long it lasts.
pub fn draw(row: Row, d: &mut Draw) -> (Target, Harm, u32) {
    let worker = Target::Worker(d.below(8) as u16);
    let client = Target::Client(d.below(4) as u16);
    let anyone = d.weighted(&[(4, worker), (2, client), (1, Target::Coordinator)]);
    let peer = Target::Worker(d.below(8) as u16);
    let other = d.weighted(&[
        (2, anyone),
        (4, peer),
        (2, client),
        (1, Target::Coordinator),
    ]);
    let brief = d.range(5, 1500) as u32;
    let long = d.range(100, 6000) as u32;
    let either = d.pick(&[brief, long]);
    let crash = d.pick(&[Harm::Crash, Harm::PowerCut]);
    match row {
        Row::Loss => (
            anyone,
            Harm::Loss(d.pick(&[10_000, 100_000, 400_000])),
            long,
        ),
        Row::Delay => (anyone, Harm::Delay(d.pick(&[5, 50, 400])), long),
        Row::Reorder => (anyone, Harm::Reorder(d.pick(&[3, 20, 150])), long),
        Row::Duplicate => (anyone, Harm::Duplicate(d.pick(&[50_000, 500_000])), long),
        Row::Corrupt => (
            anyone,
            Harm::Corrupt(d.pick(&[10_000, 100_000, 300_000])),
            long,
        ),
        Row::Cut => (anyone, Harm::Cut { from: other }, either),
        Row::OneWay => (anyone, Harm::OneWay { to: other }, either),
        Row::CrashWorker => (worker, crash, either),
        Row::CrashCoordinator => (Target::Coordinator, crash, either),
        Row::CrashClient => (client, crash, brief),
        Row::Pause => (anyone, Harm::Pause, either),
        Row::Slow => (worker, Harm::Slow(d.pick(&[3, 20])), long),
        Row::OutOfMemory => (worker, Harm::Memory, either),
        Row::Refuse => (worker, Harm::Refuse, brief),
        Row::Hang => (worker, Harm::Hang, d.pick(&[200, 2000, 15_000])),
        Row::Clock => {
            let seconds = d.pick(&[-7200, -1800, 3600, 86_400, 20 * 86_400]);
            (anyone, Harm::Clock(seconds), long)
        }
        Row::Forge => (worker, Harm::Forge, brief),
        Row::DiskFull | Row::DiskFails => {
            let harm = match row {
                Row::DiskFull => Harm::DiskFull,
                _ => Harm::DiskFails,
            };
            (d.pick(&[Target::Coordinator, worker]), harm, long)
        }
        Row::Revoke => (d.pick(&[client, worker]), Harm::Revoke, long),
        Row::Days => {
            let days = d.pick(&[8, 14, 30]);
            (Target::Coordinator, Harm::Days(days), days_last(days))
        }
        Row::Hoard => (
            worker,
            Harm::Hoard {
                by: d.below(4) as u16,
            },
            long,
        ),
        Row::Flood => (
            worker,
            Harm::Flood {
                by: d.below(4) as u16,
            },
            long,
        ),
        // A kernel error is the workload's: a sprung trap.
        Row::Panic | Row::KernelError => (worker, Harm::Panic(d.range(1, 2) as u32), brief),
    }
}
