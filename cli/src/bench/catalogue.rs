//! The catalogue of measurements, and the choice of those that a run does.

use crate::text::failure::Failure;

/// The cluster that a measurement needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// No cluster: the measurement uses this process, or starts others itself.
    Alone,
    /// A cluster in this process.
    Embedded,
    /// A cluster of processes that this command started, since the measurement looks at the processes or this host.
    Local,
    /// Any cluster with at least this many workers.
    Cluster(usize),
    /// A cluster of processes that this command started, with exactly this many workers.
    Fan(u32),
}

/// A measurement; [`ALL`] has its name, unit and place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    NullChain,
    NullLayered,
    AddChain,
    Call,
    EagerAdd,
    EagerPrepared,
    RemoteFetch,
    RemotePipelined,
    CallsAtOnce,
    Step,
    StepsInFlight,
    Transfer4KiB,
    Transfer64MiB,
    TransferShared,
    ErrorToCaller,
    FanCpu,
    FanDatagrams,
    /// Planning a function of about this many nodes.
    Compile(usize),
    ColdStart,
    IdleCpu,
    IdleRss,
}

/// One entry of the catalogue.
#[derive(Debug, PartialEq, Eq)]
pub struct Bench {
    pub what: Subject,
    pub name: &'static str,
    /// The unit of the values. Rates, whose unit ends in `/s`, are better when higher; all others when lower.
    pub unit: &'static str,
    pub place: Setting,
}

const fn bench(what: Subject, name: &'static str, unit: &'static str, place: Setting) -> Bench {
    Bench {
        what,
        name,
        unit,
        place,
    }
}

/// All measurements except those of devices, in the order in which they are reported.
pub const ALL: [Bench; 30] = [
    bench(
        Subject::NullChain,
        "exec_null_chain",
        "ns/op",
        Setting::Embedded,
    ),
    bench(
        Subject::NullLayered,
        "exec_null_layered",
        "ns/op",
        Setting::Embedded,
    ),
    bench(
        Subject::AddChain,
        "exec_add_chain",
        "ns/op",
        Setting::Embedded,
    ),
    bench(Subject::Call, "call_local", "us", Setting::Embedded),
    bench(
        Subject::EagerAdd,
        "eager_add_local",
        "ns/op",
        Setting::Embedded,
    ),
    bench(
        Subject::EagerPrepared,
        "eager_add_prepared",
        "ns/op",
        Setting::Embedded,
    ),
    bench(
        Subject::RemoteFetch,
        "remote_add_fetch",
        "us",
        Setting::Cluster(1),
    ),
    bench(
        Subject::RemotePipelined,
        "remote_add_pipelined",
        "adds/s",
        Setting::Cluster(1),
    ),
    bench(
        Subject::CallsAtOnce,
        "calls_at_once",
        "calls/s",
        Setting::Cluster(1),
    ),
    bench(Subject::Step, "step_two_workers", "us", Setting::Cluster(2)),
    bench(
        Subject::StepsInFlight,
        "steps_in_flight",
        "steps/s",
        Setting::Cluster(2),
    ),
    bench(
        Subject::Transfer4KiB,
        "transfer_4KiB",
        "us",
        Setting::Cluster(2),
    ),
    bench(
        Subject::Transfer64MiB,
        "transfer_64MiB",
        "ms",
        Setting::Cluster(2),
    ),
    bench(
        Subject::TransferShared,
        "transfer_64MiB_shm",
        "ms",
        Setting::Local,
    ),
    bench(
        Subject::ErrorToCaller,
        "error_to_caller",
        "us",
        Setting::Cluster(2),
    ),
    bench(Subject::FanCpu, "fan_out_2_cpu", "us", Setting::Fan(2)),
    bench(Subject::FanCpu, "fan_out_4_cpu", "us", Setting::Fan(4)),
    bench(Subject::FanCpu, "fan_out_8_cpu", "us", Setting::Fan(8)),
    bench(Subject::FanCpu, "fan_out_16_cpu", "us", Setting::Fan(16)),
    bench(
        Subject::FanDatagrams,
        "fan_out_2_datagrams",
        "datagrams",
        Setting::Fan(2),
    ),
    bench(
        Subject::FanDatagrams,
        "fan_out_4_datagrams",
        "datagrams",
        Setting::Fan(4),
    ),
    bench(
        Subject::FanDatagrams,
        "fan_out_8_datagrams",
        "datagrams",
        Setting::Fan(8),
    ),
    bench(
        Subject::FanDatagrams,
        "fan_out_16_datagrams",
        "datagrams",
        Setting::Fan(16),
    ),
    bench(Subject::Compile(1_000), "compile_1k", "ms", Setting::Alone),
    bench(
        Subject::Compile(10_000),
        "compile_10k",
        "ms",
        Setting::Alone,
    ),
    bench(
        Subject::Compile(100_000),
        "compile_100k",
        "ms",
        Setting::Alone,
    ),
    bench(
        Subject::Compile(1_000_000),
        "compile_1m",
        "ms",
        Setting::Alone,
    ),
    bench(Subject::ColdStart, "cold_start", "ms", Setting::Alone),
    bench(Subject::IdleCpu, "idle_cpu", "%", Setting::Local),
    bench(Subject::IdleRss, "idle_rss", "MiB", Setting::Alone),
];

/// The numbers of workers that [`Setting::Fan`] is measured with.
pub const FANS: [u32; 4] = [2, 4, 8, 16];

/// The help text that lists the names of all measurements.
pub fn names() -> String {
    let names: Vec<&str> = ALL.iter().map(|b| b.name).collect();
    format!(
        "Measurements: {}, and of each device device_NAME_matmul. With --connect those of a cluster.",
        names.join(", ")
    )
}

/// The name of the measurement of the device with this name.
pub fn of_device(device: &str) -> String {
    format!("device_{device}_matmul")
}

/// The measurements that a run does.
#[derive(Debug)]
pub struct Selection {
    /// The wanted entries of the catalogue, in the order of [`ALL`].
    pub benches: Vec<&'static Bench>,
    /// Names of the wanted measurements of devices; `None` means those of all devices.
    devices: Option<Vec<String>>,
}

impl Selection {
    /// Chooses all measurements that can be done, or those of them that `only` names. With `connects` they must fit a
    /// cluster that runs already; otherwise this command starts clusters. Fails if `only` names any other.
    pub fn of(only: &[String], connects: bool) -> Result<Selection, Failure> {
        let here = |b: &&Bench| !connects || matches!(b.place, Setting::Cluster(_));
        let benches: Vec<&'static Bench> = ALL.iter().filter(here).collect();
        if only.is_empty() {
            let devices = None;
            return Ok(Selection { benches, devices });
        }
        let is_devices = |name: &str| {
            let inner = name.strip_prefix("device_");
            inner.is_some_and(|n| n.ends_with("_matmul"))
        };
        let unknown =
            |name: &&String| !is_devices(name) && benches.iter().all(|b| b.name != **name);
        if let Some(name) = only.iter().find(unknown) {
            let mut names: Vec<&str> = benches.iter().map(|b| b.name).collect();
            names.push("device_NAME_matmul");
            let elsewhere = ALL.iter().any(|b| b.name == name);
            let why = match elsewhere {
                true => format!("'{name}' is not measured with --connect"),
                false => format!("there is no measurement '{name}'"),
            };
            let msg = format!("{why}; there are: {}", names.join(", "));
            return Err(Failure::Usage(msg));
        }
        let named = |b: &&Bench| only.iter().any(|name| name == b.name);
        let devices = only.iter().filter(|name| is_devices(name)).cloned();
        Ok(Selection {
            devices: Some(devices.collect()),
            benches: benches.into_iter().filter(named).collect(),
        })
    }

    /// The wanted measurements at the places for which `place` holds.
    pub fn at(&self, place: impl Fn(Setting) -> bool) -> Vec<&'static Bench> {
        let there = self.benches.iter().filter(|b| place(b.place));
        there.copied().collect()
    }

    /// Whether any device's measurement is wanted.
    pub fn any_device(&self) -> bool {
        self.devices.as_ref().is_none_or(|names| !names.is_empty())
    }

    /// Returns those of the devices `there` whose measurement is wanted. Fails if a wanted device does not exist.
    pub fn devices(&self, there: &[String]) -> Result<Vec<String>, Failure> {
        let Some(wanted) = &self.devices else {
            return Ok(there.to_vec());
        };
        let names: Vec<String> = there.iter().map(|d| of_device(d)).collect();
        if let Some(name) = wanted.iter().find(|w| !names.contains(w)) {
            let msg = format!(
                "no device has the measurement '{name}'; there are: {}",
                names.join(", ")
            );
            return Err(Failure::Usage(msg));
        }
        let named = |d: &&String| wanted.contains(&of_device(d));
        Ok(there.iter().filter(named).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(w: &Selection) -> Vec<&'static str> {
        w.benches.iter().map(|b| b.name).collect()
    }

    #[test]
    fn names_are_wanted_once_and_in_order() {
        let only = ["idle_rss", "call_local", "idle_rss"].map(String::from);
        let wanted = Selection::of(&only, false).unwrap();
        assert_eq!(names(&wanted), ["call_local", "idle_rss"]);
        assert!(!wanted.any_device());
        assert_eq!(Selection::of(&[], false).unwrap().benches.len(), ALL.len());
    }

    #[test]
    fn what_needs_a_cluster_of_its_own_is_refused_elsewhere() {
        let all = Selection::of(&[], true).unwrap();
        assert_eq!(names(&all).len(), 8);
        let of_own = Selection::of(&["cold_start".into()], true).unwrap_err();
        let text = format!("{of_own:?}");
        assert!(text.contains("not measured with --connect"), "{text}");
        let unknown = Selection::of(&["cold".into()], false).unwrap_err();
        let text = format!("{unknown:?}");
        assert!(text.contains("cold_start, idle_cpu"), "{text}");
    }

    #[test]
    fn every_width_is_measured() {
        let there = |b: &Bench| !matches!(b.place, Setting::Fan(n) if !FANS.contains(&n));
        assert!(ALL.iter().all(there));
    }

    #[test]
    fn devices_are_named_with_their_worker() {
        let there = ["w0/cpu:0".to_owned(), "w1/cpu:0".to_owned()];
        let only = ["device_w1/cpu:0_matmul".to_owned()];
        let wanted = Selection::of(&only, true).unwrap();
        assert_eq!(wanted.devices(&there).unwrap(), there[1..]);
        assert!(wanted.devices(&there[..1]).is_err());
        let all = Selection::of(&[], true).unwrap();
        assert_eq!(all.devices(&there).unwrap(), there);
    }
}
