//! The errors of a cluster whose memory does not hold a function. They say how much is needed, how much each worker
//! offers or has free, and what would help.

use convoke_common::{Code, Error};

use super::bytes::MOST_BYTES;
use super::cluster::{ClusterModel, WorkerModel};
use super::memory::{Holder, MemoryModel};
use super::search::{Charge, Scale, by_memory};
use super::work::Work;

/// How many workers a message lists by name before it says how many more there are.
const LISTED: usize = 8;
/// Most workers that the advice asks for.
const MOST_ADVISED: u32 = 256;

/// Offers below which the advice says what a worker process takes of its memory before it offers the rest: its base
/// footprint and the load buffer.
const TOLD_BELOW: u64 = 16 << 20;

/// Returns an error that explains why `work` does not fit `count` workers of `cluster`.
pub fn error(work: &Work, cluster: &ClusterModel, count: usize, in_flight: u32) -> Error {
    let mut read = vec![false; work.const_value.len()];
    for p in 0..work.positions() {
        work.weights
            .row(p)
            .iter()
            .for_each(|c| read[*c as usize] = true);
    }
    // Constants that are results and that no step reads are held whatever the worker runs.
    let results = work.const_results.iter().map(|c| *c as usize);
    let unread = results.filter(|c| !read[*c]).map(|c| work.const_bytes[c]);
    let unread = unread.fold(0, u64::saturating_add);
    let weights = read
        .iter()
        .zip(&work.const_bytes)
        .filter(|(read, _)| **read);
    let weights = weights.fold(unread, |sum, (_, b)| sum.saturating_add(*b));
    let scale = Scale::new(
        work,
        (0..work.positions() as u32).collect(),
        in_flight,
        Charge::Everything,
    );
    let activations = scale.largest_slack();
    let offers = cluster
        .workers
        .iter()
        .map(|w| format!("{} offers {}", w.name, both(w, |m| offer(m.usable()))));
    let steps = if in_flight > 1 {
        format!(" ({in_flight} steps at once)")
    } else {
        String::new()
    };
    let msg = format!(
        "the model needs {}: {} of weights and up to {} of tensors{steps}; {}",
        human(weights.saturating_add(activations)),
        human(weights),
        human(activations),
        listed(offers, ", ")
    );
    Error::new(Code::ClusterTooSmall, msg).advise(advice(&scale, unread, cluster, count))
}

/// Says `what` of the memory of a worker's host and, where the device has memory of its own, of that as well.
fn both(worker: &WorkerModel, what: impl Fn(&MemoryModel) -> String) -> String {
    let host = what(&worker.host);
    match &worker.device_memory {
        None => host,
        Some(own) => format!("{host}, and {} on its device {}", what(own), worker.device),
    }
}

/// How many holders of a worker's memory a message names.
const HOLDERS: usize = 3;

/// Returns an error that explains why a function does not fit what is free in `cluster`, although it would fit if
/// nothing were taken. `needs` has the names of the workers that it would then use, and the bytes that it would need of
/// the host of each, and of its device where that has memory of its own.
pub fn no_room<'a>(
    needs: impl Iterator<Item = (&'a str, u64, u64)>,
    cluster: &ClusterModel,
) -> Error {
    let needs: Vec<String> = needs
        .map(|(worker, host, device)| match device {
            0 => format!("{} of {worker}", human(host)),
            _ => format!(
                "{} of {worker} and {} of its device",
                human(host),
                human(device)
            ),
        })
        .collect();
    let holder = |h: &Holder| format!("token {} ({}) has {}", h.token, h.member, human(h.bytes));
    let room = |m: &MemoryModel| {
        let mut holders: Vec<String> = m.holders.iter().take(HOLDERS).map(holder).collect();
        match m.holders.len().saturating_sub(HOLDERS) {
            0 => {}
            more => holders.push(format!("and {more} more")),
        }
        let holders = match holders.is_empty() {
            true => String::new(),
            false => format!(" ({})", holders.join(", ")),
        };
        let (free, offered) = (offer(m.usable()), offer(m.offered));
        format!("{free} of {offered} free{holders}")
    };
    let room = cluster
        .workers
        .iter()
        .map(|w| format!("{} has {}", w.name, both(w, room)));
    let msg = format!(
        "the model does not fit the memory that is free: it needs {}; {}",
        listed(needs.into_iter(), ", "),
        listed(room, "; ")
    );
    Error::new(Code::OutOfMemory, msg).advise(
        "wait until memory is released (`--wait`), start more workers, or unload models that are no longer used",
    )
}

/// Joins the first texts, and counts the others.
fn listed(all: impl Iterator<Item = String>, between: &str) -> String {
    let mut all: Vec<String> = all.collect();
    let hidden = all.len().saturating_sub(LISTED);
    all.truncate(LISTED);
    if hidden > 0 {
        all.push(format!("and {hidden} more"));
    }
    all.join(between)
}

/// The least memory of each with which `count` workers hold everything, to within 1/64.
fn least_memory(scale: &Scale<'_>, count: u32) -> u64 {
    let (mut low, mut high) = (0u64, 1u64 << 62);
    while high - low > (high >> 6).max(1) {
        let middle = low + (high - low) / 2;
        match scale.workers_of(middle).is_some_and(|n| n <= count) {
            true => high = middle,
            false => low = middle,
        }
    }
    high
}

/// Returns what helps where workers do not hold the nodes that are pinned on them; `None` where all of them do.
/// `pinned` has the index of a worker for each position.
pub fn pinned_advice(
    work: &Work,
    cluster: &ClusterModel,
    pinned: &[u16],
    in_flight: u32,
) -> Option<String> {
    let (mut told, mut short) = (vec![], vec![]);
    for (i, worker) in cluster.workers.iter().enumerate() {
        let own = |p: &u32| usize::from(pinned[*p as usize]) == i;
        let own: Vec<u32> = (0..work.positions() as u32).filter(own).collect();
        if own.is_empty() {
            continue;
        }
        // A device that runs none of them reserves nothing.
        let on_device = own.iter().any(|p| worker.on_device.runs(*p as usize));
        let least = least_memory(&Scale::new(work, own, in_flight, Charge::Everything), 1);
        let (free, unfilled) = match on_device {
            true => (worker.free(), worker.unfilled()),
            false => (worker.host.usable(), 0),
        };
        let least = least.saturating_add(unfilled);
        if least > free {
            told.push(format!("{} {}", worker.name, human(least)));
            short.push(on_device && worker.is_short_of_device_memory());
        }
    }
    (!told.is_empty()).then(|| {
        format!(
            "for the nodes pinned on them, these workers must offer: {} (raise {} there, or pin fewer nodes)",
            listed(told.into_iter(), ", "),
            flag(short)
        )
    })
}

/// The flag that gives workers more of the memory that they are short of. For each worker it is given whether that is the
/// memory of its device.
fn flag(workers: impl IntoIterator<Item = bool>) -> &'static str {
    let (mut host, mut own) = (false, false);
    for short in workers {
        host |= !short;
        own |= short;
    }
    match (host, own) {
        (_, false) => "--memory",
        (false, true) => "--device-memory",
        (true, true) => "--memory, or --device-memory where the device has less",
    }
}

/// Returns the words for `count` workers that offer `memory` each.
fn workers(count: u64, memory: &str) -> String {
    match count {
        1 => format!("1 worker that offers {memory}"),
        _ => format!("{count} workers that offer {memory} each"),
    }
}

/// The numbers of workers that would hold everything, with `unread` bytes more on one of them.
fn advice(scale: &Scale<'_>, unread: u64, cluster: &ClusterModel, count: usize) -> String {
    let unfilled = cluster.workers.iter().map(WorkerModel::unfilled).max();
    let unread = unread.saturating_add(unfilled.unwrap_or(0));
    let order = by_memory(cluster);
    let largest = order.first().map_or(0, |i| cluster.workers[*i].free());
    let smallest = order
        .iter()
        .take(count)
        .map(|i| cluster.workers[*i].free())
        .min()
        .unwrap_or(0);
    let mut ways = Vec::new();
    let mut fewest = None;
    for memory in [smallest, largest] {
        let room = memory.checked_sub(unread);
        let n = room.and_then(|room| scale.workers_of(room));
        let n = n.filter(|n| *n <= MOST_ADVISED);
        // Skip an alternative with the same number of workers and more memory.
        if let Some(n) = n.filter(|n| fewest != Some(*n)) {
            let least = least_memory(scale, n).saturating_add(unread);
            ways.push(workers(n.into(), &human(least.min(memory))));
            fewest = Some(n);
        }
    }
    let high = least_memory(scale, u32::try_from(count.max(1)).unwrap_or(u32::MAX));
    let high = high.saturating_add(unread);
    // Mention the memory that a process takes for itself only where the offer is small; there it explains the offer.
    let workers_short = cluster
        .workers
        .iter()
        .map(WorkerModel::is_short_of_device_memory);
    let flag = flag(workers_short);
    let own = match largest < TOLD_BELOW && flag == "--memory" {
        true => ", of which a worker process takes 30 to 40 MiB for itself",
        false => "",
    };
    let enough = workers(count as u64, &human(high));
    ways.push(format!("{enough} (raise {flag}{own})"));
    format!("what would fit: {}", ways.join("; or "))
}

/// Formats bytes that are needed, rounded up to a readable unit.
pub fn human(bytes: u64) -> String {
    rounded(bytes, f64::ceil)
}

/// Formats bytes that are there, rounded down, so that they never look like enough where they are not.
fn offer(bytes: u64) -> String {
    rounded(bytes, f64::floor)
}

fn rounded(bytes: u64, round: fn(f64) -> f64) -> String {
    let (unit, name) = match bytes {
        b if b >= MOST_BYTES => return format!("more than {}", rounded(MOST_BYTES - 1, round)),
        b if b >= 1 << 40 => (1u64 << 40, "TiB"),
        b if b >= 1 << 30 => (1 << 30, "GiB"),
        b if b >= 1 << 20 => (1 << 20, "MiB"),
        b if b >= 1 << 10 => (1 << 10, "KiB"),
        b => return format!("{b} B"),
    };
    let value = bytes as f64 / unit as f64;
    if value < 100.0 {
        format!("{:.1} {name}", round(value * 10.0) / 10.0)
    } else {
        format!("{:.0} {name}", round(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::cluster;

    #[test]
    fn memory_is_given_by_the_flag_of_the_one_that_is_short() {
        let check = |devices: &[Option<u64>], want: &str| {
            let mut all = cluster(devices.len(), 64);
            for (worker, own) in all.workers.iter_mut().zip(devices) {
                worker.device_memory = own.map(MemoryModel::idle);
            }
            let short = all
                .workers
                .iter()
                .map(WorkerModel::is_short_of_device_memory);
            assert_eq!(flag(short), want, "{devices:?}");
        };
        check(&[], "--memory");
        check(&[None, None], "--memory");
        check(&[Some(63), Some(1)], "--device-memory");
        check(&[Some(64), Some(100), None], "--memory");
        check(
            &[None, Some(63)],
            "--memory, or --device-memory where the device has less",
        );
    }

    #[test]
    fn needs_are_rounded_up_and_offers_down() {
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human((1 << 20) + 1), "1.1 MiB");
        assert_eq!(human(200 << 40), "200 TiB");
        assert_eq!(offer((2 << 30) - 1), "1.9 GiB");
        assert_eq!(offer(1 << 30), "1.0 GiB");
        assert_eq!(human(2 * MOST_BYTES), "more than 65536 TiB");
    }
}
