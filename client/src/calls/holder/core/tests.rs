use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use convoke_common::actor::Core as _;
use convoke_common::ids::Incarnation;
use convoke_graph::program::Axes;
use tokio::time::Instant;

use super::*;

/// A lease of this number, for sizes up to a bound.
#[derive(Debug, Clone)]
struct Lease {
    number: u32,
    bound: i64,
    broken: Rc<Cell<bool>>,
}

impl InstalledLease for Lease {
    fn holds(&self, sizes: &Bindings) -> bool {
        !self.is_broken() && sizes.values().all(|size| *size <= self.bound)
    }

    fn is_broken(&self) -> bool {
        self.broken.get()
    }
}

fn lease(number: u32, bound: i64) -> Lease {
    let broken = Rc::default();
    Lease {
        number,
        bound,
        broken,
    }
}

/// What the lease of this number leaves to the next one.
fn left_by(number: u32) -> Predecessor {
    Predecessor {
        axes: Axes {
            bounds: vec![("n".into(), number.into())],
        },
        unusable: vec![],
    }
}

fn sizes(size: i64) -> Bindings {
    Bindings::from_iter([("n".into(), size)])
}

fn of_size(size: i64) -> Request {
    Request {
        sizes: sizes(size),
        ..Request::default()
    }
}

/// A core, and its callers by their names.
#[derive(Default)]
struct Rig {
    core: Core<Lease, &'static str, &'static str>,
    ids: BTreeMap<&'static str, CallerId>,
}

impl Rig {
    fn newcomer(&mut self, name: &'static str) -> CallerId {
        let id = self.core.newcomer();
        self.ids.insert(name, id);
        id
    }

    fn asks_for(&mut self, caller: &'static str, request: Request) {
        let id = self.newcomer(caller);
        self.core.apply(Event::Asked {
            id,
            request,
            caller,
        });
    }

    fn asks(&mut self, caller: &'static str, size: i64) {
        self.asks_for(caller, of_size(size));
    }

    fn unloads(&mut self, caller: &'static str) {
        let id = self.newcomer(caller);
        self.core.apply(Event::Unloaded { id, caller });
    }

    fn leaves(&mut self, name: &str) {
        let id = self.ids[name];
        self.core.apply(Event::Left { id });
    }

    fn planned(&mut self, name: &str, outcome: Result<Lease, &'static str>) {
        let id = self.ids[name];
        self.core.apply(Event::Planned { id, outcome });
    }

    fn released(&mut self, name: &str, outcome: Result<Predecessor, &'static str>) {
        let id = self.ids[name];
        self.core.apply(Event::Released { id, outcome });
    }

    /// Compares the commands since the last check, each in words.
    #[track_caller]
    fn check(&mut self, expected: &[&str]) {
        let commands = self.core.commands().into_iter();
        let words: Vec<String> = commands.map(in_words).collect();
        assert_eq!(words, expected);
    }

    /// A core with a live lease, number 1, for sizes up to `bound`, which nobody calls.
    fn live(bound: i64) -> (Rig, Lease) {
        let mut rig = Rig::default();
        let first = lease(1, bound);
        rig.asks("first", 1);
        rig.planned("first", Ok(first.clone()));
        rig.leaves("first");
        rig.check(&["first: plan", "first: call 1"]);
        (rig, first)
    }
}

fn in_words(command: Command<Lease, &'static str, &'static str>) -> String {
    let (caller, order) = match command {
        Command::Discard(lease) => return format!("drop {}", lease.number),
        Command::Tell(caller, order) => (caller, order),
    };
    let what = match order {
        Order::Task(Task::Release(lease)) => format!("release {}", lease.number),
        Order::Task(Task::Plan(after)) => match after.axes.bounds.first() {
            None => "plan".into(),
            Some((_, number)) => format!("plan after {number}"),
        },
        Order::Answer(Ok(lease)) => format!("call {}", lease.number),
        Order::Answer(Err(Refusal::Failed(why))) => format!("failed, {why}"),
        Order::Answer(Err(Refusal::Unloaded)) => "unloaded".into(),
    };
    format!("{caller}: {what}")
}

#[test]
fn first_calls_at_the_same_time_plan_once() {
    let mut rig = Rig::default();
    assert!(rig.core.enter(&sizes(1)).is_none());
    rig.asks("a", 1);
    rig.asks("b", 2);
    rig.asks("c", 1);
    rig.check(&["a: plan"]);
    assert!(rig.core.lease().is_none());
    rig.planned("a", Ok(lease(1, 2)));
    rig.check(&["a: call 1", "b: call 1", "c: call 1"]);
    // From now on calls are served at once.
    let (_, served) = rig.core.enter(&sizes(2)).unwrap();
    assert_eq!(served.number, 1);
    rig.asks("d", 2);
    rig.check(&["d: call 1"]);
}

#[test]
fn a_failed_plan_is_told_to_all_that_waited_for_it_and_is_tried_anew() {
    let mut rig = Rig::default();
    rig.asks("a", 1);
    for caller in ["b", "c", "d"] {
        rig.asks(caller, 1);
    }
    // They asked while the plan was being made, and what it met may be over: it is tried anew, once for all of them.
    rig.planned("a", Err("no workers"));
    rig.check(&["a: plan", "a: failed, no workers", "b: plan"]);
    rig.asks("e", 1);
    rig.planned("b", Err("no memory"));
    rig.check(&[
        "c: failed, no memory",
        "d: failed, no memory",
        "b: failed, no memory",
        "e: plan",
    ]);
    rig.asks("a", 1);
    rig.planned("e", Ok(lease(1, 1)));
    rig.check(&["e: call 1", "a: call 1"]);
}

#[test]
fn a_failure_is_told_only_to_those_that_would_have_met_it() {
    let now = Instant::now();
    let at = |seconds| Some(now + Duration::from_secs(seconds));
    let until = |deadline| Request {
        deadline,
        ..of_size(2)
    };
    let avoiding = Request {
        avoid: vec![("w0".into(), Incarnation(1))],
        ..until(at(5))
    };
    let mut rig = Rig::default();
    rig.asks("first", 1);
    rig.asks_for("turn", until(at(5)));
    rig.asks_for("same", until(at(5)));
    rig.asks_for("sooner", until(at(4)));
    rig.asks_for("later", until(at(6)));
    rig.asks_for("whenever", until(None));
    rig.asks_for("avoiding", avoiding);
    rig.asks_for("smaller", of_size(1));
    rig.planned("first", Err("boom"));
    rig.check(&["first: plan", "first: failed, boom", "turn: plan"]);
    rig.planned("turn", Err("boom"));
    rig.check(&[
        "same: failed, boom",
        "sooner: failed, boom",
        "turn: failed, boom",
        "later: plan",
    ]);
    for (caller, next) in [
        ("later", "whenever: plan"),
        ("whenever", "avoiding: plan"),
        ("avoiding", "smaller: plan"),
    ] {
        rig.planned(caller, Err("boom"));
        rig.check(&[&format!("{caller}: failed, boom"), next]);
    }
}

#[test]
fn a_call_beyond_the_bounds_waits_for_the_calls_within_them() {
    let (mut rig, _) = Rig::live(8);
    let (running, _) = rig.core.enter(&sizes(8)).unwrap();
    rig.asks("within", 3);
    rig.check(&["within: call 1"]);
    rig.asks("beyond", 9);
    // Nobody overtakes the call that waits.
    assert!(rig.core.enter(&sizes(1)).is_none());
    rig.asks("small", 1);
    rig.asks("far beyond", 40);
    rig.check(&[]);
    assert_eq!(rig.core.lease().unwrap().number, 1);
    rig.core.apply(Event::Left { id: running });
    rig.check(&[]);
    rig.leaves("within");
    rig.check(&["beyond: release 1"]);
    rig.released("beyond", Ok(left_by(1)));
    rig.check(&["drop 1", "beyond: plan after 1"]);
    rig.planned("beyond", Ok(lease(2, 18)));
    // The lease grows again once the calls of this one have ended.
    rig.check(&["beyond: call 2", "small: call 2"]);
    rig.leaves("small");
    rig.check(&[]);
    rig.leaves("beyond");
    rig.check(&["far beyond: release 2"]);
}

#[test]
fn a_lease_with_a_lost_worker_is_replaced_at_once() {
    let (mut rig, first) = Rig::live(8);
    rig.asks("running", 1);
    first.broken.set(true);
    assert!(rig.core.enter(&sizes(1)).is_none());
    rig.asks("a", 1);
    rig.asks("b", 1);
    rig.check(&["running: call 1", "a: release 1"]);
    rig.released("a", Ok(left_by(1)));
    rig.check(&["drop 1", "a: plan after 1"]);
    // The call on the old lease ends late, and counts for none of the new one's.
    rig.leaves("running");
    rig.planned("a", Ok(lease(2, 8)));
    rig.leaves("a");
    rig.leaves("b");
    rig.check(&["a: call 2", "b: call 2"]);
    rig.asks("large", 9);
    rig.check(&["large: release 2"]);
}

#[test]
fn without_the_coordinator_the_old_lease_is_kept_until_it_can_be_released() {
    let (mut rig, first) = Rig::live(8);
    first.broken.set(true);
    rig.asks("a", 1);
    rig.asks("b", 1);
    rig.asks("c", 2);
    rig.check(&["a: release 1"]);
    rig.released("a", Err("the coordinator is away"));
    rig.check(&["a: failed, the coordinator is away", "b: release 1"]);
    // It comes back during the turn of the second, and goes away while that one plans.
    rig.released("b", Ok(left_by(1)));
    rig.planned("b", Err("the coordinator is away"));
    rig.check(&[
        "drop 1",
        "b: plan after 1",
        "b: failed, the coordinator is away",
        "c: plan",
    ]);
    assert!(rig.core.lease().is_none());
    rig.planned("c", Ok(lease(2, 8)));
    rig.asks("a", 1);
    rig.check(&["c: call 2", "a: call 2"]);
}

#[test]
fn a_caller_that_leaves_while_it_plans_passes_its_turn_on() {
    let mut rig = Rig::default();
    rig.asks("a", 1);
    rig.asks("b", 1);
    rig.asks("c", 1);
    rig.leaves("a");
    rig.check(&["a: plan", "b: plan"]);
    // What it had installed by then is of no use.
    rig.planned("a", Ok(lease(1, 1)));
    rig.check(&["drop 1"]);
    rig.leaves("c");
    rig.planned("b", Ok(lease(2, 1)));
    rig.check(&["b: call 2"]);
    // Where nobody waits, the next call begins anew.
    let mut rig = Rig::default();
    rig.asks("a", 1);
    rig.leaves("a");
    rig.check(&["a: plan"]);
    rig.asks("b", 1);
    rig.check(&["b: plan"]);
}

#[test]
fn a_turn_is_passed_on_at_the_point_that_it_has_reached() {
    let (mut rig, _) = Rig::live(8);
    rig.asks("running", 1);
    rig.asks("a", 9);
    rig.asks("b", 9);
    rig.check(&["running: call 1"]);
    // The next one waits for the same calls.
    rig.leaves("a");
    rig.check(&[]);
    rig.asks("c", 9);
    rig.leaves("running");
    rig.check(&["b: release 1"]);
    rig.leaves("b");
    rig.check(&["c: release 1"]);
    rig.asks("d", 1);
    rig.released("c", Ok(left_by(1)));
    rig.leaves("c");
    rig.check(&["drop 1", "c: plan after 1", "d: plan after 1"]);
    // Nobody needs to know of the old lease any more once nobody is left who would have replaced it.
    rig.leaves("d");
    rig.asks("e", 1);
    rig.check(&["e: plan"]);
}

#[test]
fn calls_within_the_bounds_go_on_where_nobody_replaces_the_lease_after_all() {
    let (mut rig, _) = Rig::live(8);
    rig.asks("running", 1);
    rig.asks("beyond", 9);
    rig.asks("small", 1);
    rig.leaves("beyond");
    rig.check(&["running: call 1", "small: call 1"]);
    assert!(rig.core.enter(&sizes(1)).is_some());
}

#[test]
fn a_permit_that_was_granted_and_not_taken_is_given_back() {
    let mut rig = Rig::default();
    rig.asks("a", 1);
    rig.asks("b", 1);
    rig.planned("a", Ok(lease(1, 1)));
    rig.asks("large", 2);
    rig.leaves("a");
    rig.check(&["a: plan", "a: call 1", "b: call 1"]);
    // It gave up before it heard of the answer.
    rig.leaves("b");
    rig.check(&["large: release 1"]);
}

#[test]
fn an_unload_ends_the_plan_that_is_being_made() {
    let mut rig = Rig::default();
    rig.asks("a", 1);
    rig.asks("b", 1);
    rig.unloads("u");
    rig.check(&["a: plan", "b: unloaded", "a: unloaded"]);
    // A call that comes meanwhile is planned after the unload.
    rig.asks("c", 1);
    rig.leaves("a");
    rig.check(&["u: unloaded", "c: plan"]);
    rig.leaves("u");
    rig.planned("c", Ok(lease(1, 1)));
    rig.check(&["c: call 1"]);
}

#[test]
fn a_lease_that_was_installed_when_the_function_is_unloaded_is_released() {
    let mut rig = Rig::default();
    rig.asks("a", 1);
    rig.unloads("u");
    rig.unloads("v");
    rig.planned("a", Ok(lease(1, 1)));
    rig.check(&["a: plan", "a: unloaded", "u: release 1"]);
    rig.leaves("a");
    assert!(rig.core.lease().is_none());
    rig.asks("b", 1);
    rig.check(&[]);
    rig.leaves("u");
    rig.check(&["v: unloaded", "b: plan"]);
}

#[test]
fn an_unload_waits_for_no_call() {
    let (mut rig, _) = Rig::live(8);
    rig.asks("running", 1);
    rig.asks("beyond", 9);
    rig.asks("small", 1);
    rig.unloads("u");
    rig.check(&[
        "running: call 1",
        "small: unloaded",
        "beyond: unloaded",
        "u: release 1",
    ]);
    rig.leaves("beyond");
    rig.leaves("running");
    rig.leaves("u");
    rig.asks("next", 1);
    rig.check(&["next: plan"]);
}

#[test]
fn an_unload_takes_over_from_whoever_releases_the_lease() {
    for outcome in [Ok(left_by(1)), Err("the coordinator is away")] {
        let (mut rig, first) = Rig::live(8);
        first.broken.set(true);
        rig.asks("a", 1);
        rig.unloads("u");
        rig.check(&["a: release 1", "a: unloaded"]);
        let away = outcome.is_err();
        rig.released("a", outcome);
        match away {
            true => rig.check(&["u: release 1"]),
            false => rig.check(&["drop 1", "u: unloaded"]),
        }
        rig.leaves("a");
        rig.check(&[]);
    }
}

#[test]
fn each_call_that_entered_keeps_the_lease() {
    let (mut rig, _) = Rig::live(8);
    let entered = [1, 8].map(|size| rig.core.enter(&sizes(size)).unwrap().0);
    rig.asks("within", 3);
    rig.asks("beyond", 9);
    rig.leaves("within");
    rig.check(&["within: call 1"]);
    rig.core.apply(Event::Left { id: entered[0] });
    rig.check(&[]);
    rig.core.apply(Event::Left { id: entered[1] });
    rig.check(&["beyond: release 1"]);
}

#[test]
fn a_call_after_an_unload_knows_of_no_lease_before_it() {
    for planned in [false, true] {
        let (mut rig, _) = Rig::live(8);
        rig.asks("beyond", 9);
        rig.released("beyond", Ok(left_by(1)));
        rig.check(&["beyond: release 1", "drop 1", "beyond: plan after 1"]);
        rig.unloads("u");
        rig.asks("c", 1);
        rig.check(&["beyond: unloaded"]);
        if planned {
            rig.planned("beyond", Ok(lease(2, 9)));
            rig.check(&["u: release 2"]);
            rig.leaves("u");
            rig.check(&["c: plan"]);
        } else {
            rig.leaves("beyond");
            rig.check(&["u: unloaded", "c: plan"]);
        }
    }
}

#[test]
fn the_outcome_of_a_turn_that_is_over_changes_nothing() {
    let mut rig = Rig::default();
    rig.asks("a", 1);
    rig.leaves("a");
    rig.asks("b", 1);
    rig.planned("a", Err("boom"));
    rig.check(&["a: plan", "b: plan"]);
    rig.planned("b", Ok(lease(1, 1)));
    rig.leaves("b");
    rig.asks("c", 2);
    rig.leaves("c");
    rig.asks("d", 2);
    rig.released("c", Ok(left_by(1)));
    rig.check(&["b: call 1", "c: release 1", "d: release 1"]);
}
