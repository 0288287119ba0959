//! Keeps devices of different numerics profiles apart in plans, unless the caller mixes them.
//!
//! A plan that may use devices of one profile only, and is not told of which, is made for each profile of the cluster
//! in turn until one suffices: that whose workers are the fastest together comes first.

use std::borrow::Cow;
use std::collections::BTreeMap;

use convoke_common::rpc::{PlanOptions, Profiles};
use convoke_common::{Code, Error, Result};
use convoke_graph::graph::Function;

use super::options::{for_what_is_left, lacks_workers};
use crate::place::ClusterModel;
use crate::plan::{PlannedPrograms, plan};

/// The most profiles for which a plan is tried, the fastest first. Each try is a whole plan.
const MOST_TRIED: usize = 4;

/// Returns the workers whose devices may be used.
///
/// # Errors
/// `no_workers` where the plan asks for a profile that no worker's device has.
pub(super) fn permitted<'a>(
    cluster: &'a ClusterModel,
    profiles: &Profiles,
) -> Result<Cow<'a, ClusterModel>> {
    let Profiles::Profile(profile) = profiles else {
        return Ok(Cow::Borrowed(cluster));
    };
    if cluster.profile() == Some(profile) {
        return Ok(Cow::Borrowed(cluster));
    }
    let of = cluster.filtered(|w| *w.profile == **profile);
    if of.workers.is_empty() && !cluster.workers.is_empty() {
        let msg = format!("no device of the numerics profile {profile} is left");
        return Err(Error::new(Code::NoWorkers, msg).advise(
            "start a worker with such a device, or load the model anew: other devices compute it with other last bits",
        ));
    }
    Ok(Cow::Owned(of))
}

/// Plans `function` for workers whose devices may be used together.
pub(super) fn plan_apart(
    function: Function,
    cluster: &ClusterModel,
    options: &PlanOptions,
) -> Result<PlannedPrograms> {
    let together = options.profiles == Profiles::Mixed || cluster.profile().is_some();
    if together || cluster.workers.is_empty() {
        return plan(function, cluster, options);
    }
    let mut failed: Vec<Error> = vec![];
    for profile in fastest_first(cluster).into_iter().take(MOST_TRIED) {
        let of = cluster.filtered(|w| *w.profile == *profile);
        let options = for_what_is_left(options.clone(), &of)?;
        match plan(function.clone(), &of, &options) {
            Ok(planned) => return Ok(planned),
            Err(mut e) => {
                e.message = format!(
                    "{} (on devices of the numerics profile {profile})",
                    e.message
                );
                failed.push(e);
            }
        }
    }
    // Report first an error that may vanish as the cluster changes, because the caller waits for that.
    let main = failed.iter().position(|e| lacks_workers(e, options));
    let mut error = failed.remove(main.unwrap_or(0));
    error.attached.extend(failed);
    let mix = "let devices of different numerics profiles work together with --mix-profiles: the last bits of the \
               results then depend on which device computes what";
    let advice = match error.advice.is_empty() {
        true => mix.to_owned(),
        false => format!("{}; or {mix}", error.advice),
    };
    Err(error.advise(advice))
}

/// The profiles of a cluster's devices, that of the fastest workers first.
fn fastest_first(cluster: &ClusterModel) -> Vec<&str> {
    let mut speeds: BTreeMap<&str, f64> = BTreeMap::new();
    for worker in &cluster.workers {
        *speeds.entry(&worker.profile).or_default() += worker.device_speed.flops;
    }
    let mut profiles: Vec<(&str, f64)> = speeds.into_iter().collect();
    profiles.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    profiles.into_iter().map(|(profile, _)| profile).collect()
}

#[cfg(test)]
mod tests {
    use convoke_common::rpc::WorkerCount;

    use super::*;
    use crate::place::MemoryModel;
    use crate::testing::{cluster, options, parse};

    /// Two workers `w0` and `w1` of profile "slow", and `w2` of profile "fast", with this many bytes of memory each.
    fn mixed(memory: [u64; 3]) -> ClusterModel {
        let mut all = cluster(3, 64 << 20);
        for (worker, memory) in all.workers.iter_mut().zip(memory) {
            let fast = worker.name == "w2";
            worker.profile = ["slow", "fast"][usize::from(fast)].into();
            worker.device_speed.flops = [1e9, 1e12][usize::from(fast)];
            worker.host = MemoryModel::idle(memory);
        }
        all
    }

    fn net() -> Function {
        parse(
            "param x: f32[4, 256]
             weight a: f32[256, 256]
             weight b: f32[256, 256]
             y = MatMul(x, a)
             z = MatMul(y, b)
             result z",
        )
    }

    const ROOM: u64 = 64 << 20;

    /// The workers and profiles of the plan that is made.
    fn check(memory: [u64; 3], workers: WorkerCount, profiles: Profiles, want: &[(&str, &str)]) {
        let f = net();
        let options = PlanOptions {
            profiles,
            ..options(&f, workers)
        };
        let planned = plan_apart(f, &mixed(memory), &options).unwrap();
        let parts = planned.summary.parts.iter();
        let parts: Vec<(&str, &str)> = parts.map(|p| (&*p.name, &*p.profile)).collect();
        assert_eq!(parts, want);
        for (program, (_, profile)) in planned.programs.iter().zip(want) {
            assert_eq!(program.program().profile, *profile);
        }
    }

    #[test]
    fn one_plan_has_one_profile() {
        let auto = WorkerCount::Auto;
        check([ROOM; 3], auto, Profiles::Uniform, &[("w2", "fast")]);
        // The fast one has no room, or there are too few of them.
        let slow = [("w0", "slow"), ("w1", "slow")];
        check([ROOM, ROOM, 1000], auto, Profiles::Uniform, &slow[..1]);
        let half = [1 << 19, 1 << 19, 1 << 19];
        check(half, WorkerCount::Exactly(2), Profiles::Uniform, &slow);
    }

    #[test]
    fn profiles_mix_where_the_caller_says_so() {
        let f = net();
        let mut asked = options(&f, WorkerCount::Exactly(2));
        asked.pins = vec![("y".into(), "w0".into()), ("z".into(), "w2".into())];
        let refused = plan_apart(f.clone(), &mixed([ROOM; 3]), &asked).unwrap_err();
        assert!(refused.advice.contains("--mix-profiles"), "{refused}");
        asked.profiles = Profiles::Mixed;
        let planned = plan_apart(f, &mixed([ROOM; 3]), &asked).unwrap();
        let profiles: Vec<&str> = planned
            .programs
            .iter()
            .map(|p| &*p.program().profile)
            .collect();
        assert_eq!(profiles, ["slow", "fast"]);
    }

    #[test]
    fn fewer_workers_of_a_profile_suffice_where_one_is_avoided() {
        let f = net();
        let mut asked = options(&f, WorkerCount::Exactly(2));
        let left = mixed([ROOM; 3]).filtered(|w| w.name != "w1");
        assert!(plan_apart(f.clone(), &left, &asked).is_err());
        asked.avoid = vec![("w1".into(), left.workers[0].incarnation)];
        let planned = plan_apart(f, &left, &asked).unwrap();
        assert_eq!(planned.summary.parts.len(), 1);
    }

    #[test]
    fn a_profile_that_nobody_has_is_named() {
        let all = mixed([ROOM; 3]);
        let of = |profile: &str| permitted(&all, &Profiles::Profile(profile.into()));
        assert_eq!(of("slow").unwrap().workers.len(), 2);
        let missing = of("other").err().unwrap();
        assert_eq!(missing.code, Code::NoWorkers);
        assert!(
            missing.message.contains("profile other is left"),
            "{missing}"
        );
    }
}
