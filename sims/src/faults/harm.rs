//! The kinds of harm that a fault may do, and how they are drawn.

use serde::{Deserialize, Serialize};

use crate::draw::Draw;
use crate::world::Host;

use super::Row;

/// Rows whose faults are drawn for some seeds only, beside the others or in place of them: they need a member with a
/// token of its own, or concern the disks and calendars that the other faults do not touch.
pub const BESIDE: [Row; 6] = [
    Row::DiskFull,
    Row::DiskFails,
    Row::Revoke,
    Row::Days,
    Row::Hoard,
    Row::Flood,
];

/// Rows that only seeds of swarms draw: what an operator does, or has to mend.
pub const OPERATIONS: [Row; 4] = [Row::Drain, Row::Forget, Row::Deadly, Row::Expire];

/// Rows of disks that neither fill up nor fail, which also only seeds of swarms draw.
pub const DISKS: [Row; 2] = [Row::DiskSlow, Row::DiskFlips];

/// Whether only seeds of swarms draw faults of this row.
pub fn is_of_swarms(row: Row) -> bool {
    OPERATIONS.contains(&row) || DISKS.contains(&row)
}

/// The rows whose faults are drawn for any seed. Errors of kernels come with the workload instead.
pub fn drawn() -> Vec<Row> {
    let other = |r: &Row| *r == Row::KernelError || BESIDE.contains(r) || is_of_swarms(*r);
    Row::ALL.into_iter().filter(|r| !other(r)).collect()
}

/// The host that a fault strikes; numbers are taken modulo the number of workers or clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Target {
    Coordinator,
    Worker(u16),
    Client(u16),
}

impl Target {
    /// The host that this means in a cluster of `workers` workers and `clients` clients.
    pub fn host(self, workers: usize, clients: usize) -> Host {
        let modulo = |i: u16, n: usize| i % u16::try_from(n.max(1)).unwrap_or(u16::MAX);
        match self {
            Target::Coordinator => Host::Coordinator,
            Target::Worker(i) => Host::Worker(modulo(i, workers)),
            Target::Client(i) => Host::Client(modulo(i, clients)),
        }
    }
}

/// What a fault does to its target.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Harm {
    /// Packets from and to the target are lost, this many in a million.
    Loss(u32),
    /// Packets from and to the target are delayed by this many milliseconds, all alike.
    Delay(u16),
    /// Packets from and to the target overtake each other: each is delayed by up to this many milliseconds.
    Reorder(u16),
    /// Packets from and to the target arrive twice, this many in a million.
    Duplicate(u32),
    /// Packets from and to the target arrive damaged, this many in a million.
    Corrupt(u32),
    /// The target and `from` do not reach each other. If both are the same host, it reaches nobody.
    Cut { from: Target },
    /// Nothing that the target sends reaches `to`. If both are the same host, its packets reach nobody.
    OneWay { to: Target },
    /// The target's process is killed, and later started again.
    Crash,
    /// The target's power fails, and the target is later started again: unsynced writes are lost.
    PowerCut,
    /// The target's process is stopped, and later continued.
    Pause,
    /// The target's kernels take this many times as long.
    Slow(u32),
    /// All of the target's free memory is taken by something else.
    Memory,
    /// The target's compute pool accepts no job.
    Refuse,
    /// The target's next kernels panic; this many launches do.
    Panic(u32),
    /// The target's kernels do not return.
    Hang,
    /// The target's calendar is off by this many seconds.
    Clock(i64),
    /// The target sends frames that it may not send.
    Forge,
    /// The target's disk is full.
    DiskFull,
    /// The target's disk fails all reads and writes.
    DiskFails,
    /// Each job at the target's disk takes up to this many milliseconds more.
    DiskSlow(u16),
    /// The target's disk gives a wrong bit in this many of a million reads.
    DiskFlips(u32),
    /// The target's own token is revoked, and replaced by another when the fault is over. Nothing happens if the target
    /// has no token of its own.
    Revoke,
    /// All calendars advance by this many days, some at a time, and stay there.
    Days(u16),
    /// The client `by` takes all the memory of the target worker that its budget allows. Nothing happens if the client
    /// has no token of its own.
    Hoard { by: u16 },
    /// The client `by` keeps the target worker busy with many calls at a time. Nothing happens if the client has no
    /// token of its own.
    Flood { by: u16 },
    /// The target worker is taken out of service: it finishes its steps and ends. When the fault is over it is asked back,
    /// and its process is started again.
    Drain,
    /// The target worker's process is killed, and its name is forgotten as soon as the coordinator allows it. When the fault
    /// is over, the process is started again.
    Forget,
    /// The next node that the target worker runs ends its process, and from then on that of every worker that runs it. When
    /// the fault is over, the node's quarantine is lifted.
    Deadly,
    /// The target gets a token of its own that expires while the target is at work, and another one when the fault is over.
    /// Nothing happens if the target has no token of its own.
    Expire,
}

impl Harm {
    /// Whether this harm makes packets lost, late, doubled or damaged.
    pub fn is_of_packets(self) -> bool {
        use Harm::{Corrupt, Delay, Duplicate, Loss, Reorder};
        matches!(
            self,
            Loss(_) | Delay(_) | Reorder(_) | Duplicate(_) | Corrupt(_)
        )
    }

    /// Whether this harm ends the target's process at once.
    pub fn kills(self) -> bool {
        matches!(self, Harm::Crash | Harm::PowerCut | Harm::Forget)
    }

    /// Whether this harm takes nobody from anybody: it slows work down, or keeps a disk from what steps do not need. A
    /// handshake that it meets takes longer, and succeeds.
    pub fn is_mild(self) -> bool {
        match self {
            Harm::Duplicate(_) | Harm::Slow(_) => true,
            Harm::DiskFull | Harm::DiskFails => true,
            Harm::DiskSlow(_) | Harm::DiskFlips(_) => true,
            Harm::Delay(most) | Harm::Reorder(most) => most <= 50,
            Harm::Loss(rate) => rate <= 10_000,
            _ => false,
        }
    }

    /// The row of the table that this harm is counted in.
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
            (Harm::DiskSlow(_), _) => Row::DiskSlow,
            (Harm::DiskFlips(_), _) => Row::DiskFlips,
            (Harm::Revoke, _) => Row::Revoke,
            (Harm::Days(_), _) => Row::Days,
            (Harm::Hoard { .. }, _) => Row::Hoard,
            (Harm::Flood { .. }, _) => Row::Flood,
            (Harm::Drain, _) => Row::Drain,
            (Harm::Forget, _) => Row::Forget,
            (Harm::Deadly, _) => Row::Deadly,
            (Harm::Expire, _) => Row::Expire,
        }
    }

    /// Whether packets are lost or late beyond what the transport mends unnoticed, so that peers may lose each other.
    pub fn separates(self) -> bool {
        match self {
            Harm::Loss(rate) | Harm::Corrupt(rate) => rate > MENDED,
            Harm::Delay(most) | Harm::Reorder(most) => most > 200,
            Harm::Cut { .. } | Harm::OneWay { .. } | Harm::Pause => true,
            Harm::Crash | Harm::PowerCut | Harm::Forget | Harm::Clock(_) => true,
            Harm::Duplicate(_) | Harm::Slow(_) | Harm::Memory | Harm::Refuse => false,
            Harm::Panic(_) | Harm::Forge => false,
            Harm::DiskFull | Harm::DiskFails | Harm::Days(_) => false,
            Harm::DiskSlow(_) | Harm::DiskFlips(_) => false,
            Harm::Hoard { .. } | Harm::Flood { .. } => false,
            // Revocation ends the connections of the member, which is started anew with another token.
            Harm::Revoke | Harm::Expire => true,
            // A worker that hangs is wedged, exits and comes back.
            Harm::Hang => true,
            // A worker that is drained ends and comes back, and so do those that a node ends.
            Harm::Drain | Harm::Deadly => true,
        }
    }
}

/// The number of days that pass at once, and the milliseconds until the next days pass. It is less than the time for
/// which a certificate still lives once its renewal is due, and members look at the calendar each second.
pub const AT_ONCE: (u16, u32) = (2, 1500);

/// The milliseconds that it takes to let this many days pass.
fn days_last(days: u16) -> u32 {
    let (at_once, pause) = AT_ONCE;
    u32::from(days.div_ceil(at_once)) * pause
}

/// The rate of lost packets, in a million, up to which only a delay is noticed. At a tenth in each direction, four
/// echoes in a row are lost now and then, which looks like a peer that is gone.
const MENDED: u32 = 50_000;

/// Draws a fault of one of the [`drawn`] rows, or of one in [`BESIDE`], [`OPERATIONS`] or [`DISKS`]: its target, its
/// harm, and the milliseconds that it lasts.
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
        Row::DiskSlow | Row::DiskFlips => {
            let harm = match row {
                Row::DiskSlow => Harm::DiskSlow(d.pick(&[20, 200, 1000])),
                _ => Harm::DiskFlips(d.pick(&[10_000, 200_000])),
            };
            // Nothing is promised of a coordinator whose state is read with wrong bits.
            let target = match row {
                Row::DiskSlow => d.pick(&[Target::Coordinator, worker]),
                _ => worker,
            };
            (target, harm, long)
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
        Row::Drain => (worker, Harm::Drain, long),
        Row::Forget => (worker, Harm::Forget, long),
        Row::Deadly => (worker, Harm::Deadly, long),
        Row::Expire => (d.pick(&[client, worker]), Harm::Expire, long),
        // Errors of kernels come from the workload, as sprung traps; `drawn` leaves that row out.
        Row::Panic | Row::KernelError => (worker, Harm::Panic(d.range(1, 2) as u32), brief),
    }
}
