//! Proves the checkers: every defect that is built in on demand is caught in some seed, by a checker that is meant to
//! catch it, and the same seed passes without the defect.
//!
//! `cargo test --release -p convoke-sims --features mutants --test mutants`
//!
//! The variable `CONVOKE_MUTANTS` chooses a part of the table: `0/3` is every third mutant, from the first. CI tries
//! one third, which follows from the commit.
//!
//! The scenario of a seed changes whenever scenarios are drawn in another way. So a mutant is tied to a kind of
//! scenario and not to seeds: the seeds that draw that kind are tried in order, up to a limit, until one kills the
//! mutant. A mutant that few seeds would kill has a scenario of its own, and one where simulation does not come has a
//! unit test, beside which `mutant_is_killed!` proves that it fails with the mutant. The printed table names the seed,
//! scenario or test that kills each mutant. To see what a mutant does to arbitrary seeds, run
//!
//! `CONVOKE_MUTANT=NAME cargo run --release -p convoke-sims --features mutants -- explore --seeds 100`

#![cfg(feature = "mutants")]

mod away;
mod hunt;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use convoke_sims::faults::{Fault, Harm, Row, StepState, Target, Trigger};
use convoke_sims::invariants::Invariants;
use convoke_sims::scenario::Scenario;

use hunt::{Mutant, Shows, Written, mutant, mutant_in, simulator};

const AGREEMENT: &str = "caller and participants agree";
const ATTEMPTS: &str = "a call is tried three times at most";
const BACK: &str = "everybody comes back";
const BUDGETS: &str = "budgets are kept";
const CANARY: &str = "a step succeeds after all is mended";
const CAUSE: &str = "the cause is the injected one";
const DEADLINES: &str = "a deadline is kept";
const DEADLY: &str = "a deadly node is refused";
const DELIVERY: &str = "a send meets one recv";
const DETECTION: &str = "a lost peer is noticed in time";
const ENDS: &str = "every call ends";
const FAIRNESS: &str = "compute is shared";
const GIVEN_UP: &str = "a call that is given up ends its step";
const KEEPING: &str = "the coordinator keeps what it is told";
const MUST: &str = "who can succeed does";
const ONE_LIFE: &str = "a step lives once";
const ORDER: &str = "membership and leases have an order";
const PROCESSES: &str = "processes live";
const QUEUES: &str = "queues are bounded";
const READY: &str = "the cluster gets ready";
const REST: &str = "nothing is left at rest";
const RESULTS: &str = "results equal a direct evaluation";
const REVOCATION: &str = "who is revoked is refused";
const STOP: &str = "processes stop";
const STOPS: &str = "an error stops everybody in time";
const UNDISTURBED: &str = "a step ends by the doing of its members";

fn anywhere(_: &Scenario) -> bool {
    true
}

fn where_a_call_is_given_up(s: &Scenario) -> bool {
    let mut calls = s.clients.iter().flat_map(|c| &c.calls);
    calls.any(|c| c.cancel.is_some() || c.deadline.is_some())
}

fn has(s: &Scenario, fault: impl Fn(&Fault, Row) -> bool) -> bool {
    s.faults.iter().any(|f| fault(f, f.harm.row(f.target)))
}

fn where_a_worker_has_a_device(s: &Scenario) -> bool {
    s.workers.iter().any(|w| w.simgpu)
}

fn where_a_worker_crashes(s: &Scenario) -> bool {
    has(s, |_, row| row == Row::CrashWorker)
}

fn where_a_worker_is_killed(s: &Scenario) -> bool {
    has(s, |f, row| row == Row::CrashWorker && f.harm == Harm::Crash)
}

fn where_the_coordinator_is_long_away(s: &Scenario) -> bool {
    let coordinator = |f: &Fault| match f.harm {
        Harm::Cut {
            from: Target::Coordinator,
        }
        | Harm::OneWay {
            to: Target::Coordinator,
        } => true,
        Harm::Cut { .. } | Harm::OneWay { .. } | Harm::Pause | Harm::Crash | Harm::PowerCut => {
            f.target == Target::Coordinator
        }
        _ => false,
    };
    has(s, |f, _| coordinator(f) && f.lasts > 3500)
}

fn where_a_client_crashes(s: &Scenario) -> bool {
    has(s, |_, row| row == Row::CrashClient)
}

/// The driver is not heard but still hears: if it heard nothing of a worker, QUIC's own timeout would make it give that
/// worker up nearly as soon.
fn where_a_driver_is_long_unheard(s: &Scenario) -> bool {
    let driver = |f: &Fault| matches!(f.target, Target::Client(_));
    let unheard = |f: &Fault| match f.harm {
        Harm::OneWay { to } => driver(f) && to != Target::Coordinator,
        _ => false,
    };
    s.faults.len() <= 2 && has(s, |f, _| unheard(f) && f.lasts > 3100)
}

fn where_frames_are_forged(s: &Scenario) -> bool {
    has(s, |_, row| row == Row::Forge)
}

fn where_a_kernel_hangs_for_long(s: &Scenario) -> bool {
    has(s, |f, row| row == Row::Hang && f.lasts > 6000)
}

fn where_an_install_fails(s: &Scenario) -> bool {
    let fails = |row| matches!(row, Row::OutOfMemory | Row::Refuse | Row::CrashWorker);
    let state = StepState::Prepare;
    has(s, |f, row| {
        fails(row) && matches!(f.when, Trigger::On { state: at, .. } if at == state)
    })
}

fn where_a_disk_of_the_coordinator_is_of_no_use(s: &Scenario) -> bool {
    has(s, |f, row| {
        let disk = matches!(row, Row::DiskFull | Row::DiskFails);
        disk && f.target == Target::Coordinator
    })
}

fn where_a_client_is_revoked(s: &Scenario) -> bool {
    let client = |f: &Fault| matches!(f.target, Target::Client(_));
    has(s, |f, row| {
        row == Row::Revoke && client(f) && f.lasts > 2000
    })
}

fn where_weeks_pass(s: &Scenario) -> bool {
    has(s, |_, row| row == Row::Days)
}

fn where_memory_is_hoarded(s: &Scenario) -> bool {
    has(s, |_, row| row == Row::Hoard)
}

fn where_compute_is_flooded(s: &Scenario) -> bool {
    has(s, |_, row| row == Row::Flood)
}

/// A client that calls a model over three workers all the time is cut off from the coordinator.
fn a_client_is_long_away() -> Scenario {
    away::scenario(
        Target::Client(0),
        Harm::Cut {
            from: Target::Coordinator,
        },
        300,
        7_000,
    )
}

/// A worker is stopped for less than a peer's silence may last.
fn a_worker_is_briefly_stopped() -> Scenario {
    away::scenario(Target::Worker(1), Harm::Pause, 1_000, 850)
}

/// A worker is stopped for so long that a lease which it has a part in is released meanwhile.
fn a_worker_is_long_stopped() -> Scenario {
    away::scenario(Target::Worker(1), Harm::Pause, 1_000, 9_000)
}

/// A model runs on one worker, and each worker that it runs on is killed as soon as it is at work.
fn every_worker_of_a_call_is_lost() -> Scenario {
    let mut s = away::scenario(Target::Worker(0), Harm::Crash, 0, 9_000);
    let client = &mut s.clients[0];
    client.models[0].workers = Some(1);
    client.calls.truncate(1);
    client.calls[0].retry = true;
    s.workers = vec![s.workers[0].clone(); 5];
    let fault = |i: u16| Fault {
        target: Target::Worker(i),
        when: Trigger::On {
            state: StepState::Waiting,
            nth: 1,
            after: 0,
            timer: None,
        },
        ..s.faults[0].clone()
    };
    s.faults = (0..5).map(fault).collect();
    s
}

/// A node of a model over two workers ends each process that runs it, and the model is called all the time.
fn a_node_ends_its_workers() -> Scenario {
    let mut s = away::scenario(Target::Worker(0), Harm::Deadly, 300, 20_000);
    let client = &mut s.clients[0];
    client.models[0].workers = Some(2);
    client.calls.iter_mut().for_each(|c| c.retry = true);
    s.workers.truncate(2);
    s
}

const MUTANTS: [Mutant; 54] = [
    mutant(
        "abandoned-install",
        "an install that failed is not undone at the workers that had finished",
        &[REST],
        where_an_install_fails,
    ),
    mutant(
        "abort-skips-slot",
        "an abort leaves a slot open, and a late tensor is taken",
        &[ONE_LIFE],
        anywhere,
    ),
    mutant(
        "abort-skips-worker",
        "the driver's abort skips a participant",
        &[STOPS],
        where_a_call_is_given_up,
    ),
    mutant_in(
        "attempts-unheeded",
        "a call is tried a fourth time",
        &[ATTEMPTS],
        Shows::In(
            "every worker of a call is lost",
            every_worker_of_a_call_is_lost,
        ),
    ),
    mutant(
        "away-for-long",
        "the coordinator keeps what a client that vanished had for five times as long",
        &[REST],
        where_a_client_crashes,
    ),
    mutant_in(
        "away-is-gone",
        "the coordinator ends the leases of a client that it lost",
        &[UNDISTURBED],
        Shows::In("a client is long away", a_client_is_long_away),
    ),
    mutant(
        "cancel-not-forwarded",
        "a call that is dropped leaves its step running",
        &[GIVEN_UP],
        where_a_call_is_given_up,
    ),
    mutant(
        "cause-renamed",
        "the driver takes every failure for another than its participant reported",
        &[AGREEMENT],
        anywhere,
    ),
    mutant(
        "charge-outlives-user",
        "whoever has used shared weights stays charged for them",
        &[REST],
        anywhere,
    ),
    mutant(
        "constants-merged",
        "constants of one type are taken for one",
        &[RESULTS],
        anywhere,
    ),
    mutant(
        "deadline-dropped",
        "a call outlives its deadline",
        &[DEADLINES],
        where_a_call_is_given_up,
    ),
    mutant(
        "dropped-untold",
        "a worker that lost its driver does not tell the coordinator that it dropped the lease",
        &[REST],
        where_a_client_crashes,
    ),
    mutant(
        "duplicate-delivered",
        "a slot that was emptied is filled again",
        &[DELIVERY],
        where_frames_are_forged,
    ),
    mutant(
        "event-wait-skipped",
        "a copy from a device does not wait for the launch that makes what it copies",
        &[CAUSE],
        where_a_worker_has_a_device,
    ),
    mutant(
        "fan-out-once",
        "a value goes to the first of its receivers only",
        &[ENDS],
        anywhere,
    ),
    mutant_in(
        "former-incarnation-granted",
        "a plan is granted to a worker that was restarted since it was made",
        &[],
        Shows::UnitTest(
            "coordinator/src/membership/tests/plans.rs",
            "a_plan_is_for_the_workers_it_was_made_for",
        ),
    ),
    mutant(
        "former-incarnation-listed",
        "the status lists a worker's former process in place of the present one",
        &[ORDER],
        where_a_worker_crashes,
    ),
    mutant_in(
        "former-session-served",
        "what a client sends over a new link goes to the session of its former one",
        &[],
        Shows::UnitTest(
            "worker/src/eager/tests/links.rs",
            "a_client_that_is_back_on_another_link_has_a_session_of_its_own_there",
        ),
    ),
    mutant_in(
        "given-up-unheeded",
        "a lease that its driver gave up under way is granted all the same",
        &[],
        Shows::UnitTest(
            "coordinator/src/membership/tests/plans.rs",
            "what_a_plan_was_granted_ends_when_its_driver_gives_it_up",
        ),
    ),
    mutant(
        "join-unanswered",
        "whoever joins has no answer",
        &[READY],
        anywhere,
    ),
    mutant_in(
        "late-timer-counts",
        "a process that was stopped takes its own silence for that of its peers",
        &[],
        Shows::UnitTest(
            "common/src/detection/core/tests.rs",
            "a_process_that_was_stopped_starts_its_windows_anew",
        ),
    ),
    mutant(
        "lost-keep-their-names",
        "a worker that was lost finds its name taken when it returns",
        &[BACK],
        where_a_worker_crashes,
    ),
    mutant(
        "lost-link-untold",
        "leases are not told that a link ended",
        &[ENDS, STOPS, DETECTION],
        where_a_worker_crashes,
    ),
    mutant(
        "nobody-charged",
        "what a worker reserves for a client is charged to nobody",
        &[BUDGETS],
        anywhere,
    ),
    mutant(
        "plans-outlive-clients",
        "the coordinator keeps the plans of clients that have gone",
        &[REST],
        anywhere,
    ),
    mutant(
        "product-off",
        "the kernel of a product gives numbers whose last bit is wrong",
        &[RESULTS],
        anywhere,
    ),
    mutant(
        "programs-merged",
        "a worker takes any program that it has for the one that it is to install",
        &[RESULTS, ENDS, CAUSE],
        anywhere,
    ),
    mutant_in(
        "quarantine-unheeded",
        "a node that ended two processes is planned and installed again",
        &[DEADLY],
        Shows::In("a node ends its workers", a_node_ends_its_workers),
    ),
    mutant_in(
        "quarantine-unheeded-on-install",
        "a node that was quarantined since it was planned is installed",
        &[],
        Shows::UnitTest(
            "coordinator/src/membership/tests/plans.rs",
            "a_plan_of_a_node_that_was_quarantined_since_is_not_installed",
        ),
    ),
    mutant(
        "quiesce-lost",
        "a step that is aborted under a kernel never says that it is done",
        &[STOPS],
        anywhere,
    ),
    mutant(
        "release-keeps-memory",
        "a lease that is released keeps its memory",
        &[REST],
        anywhere,
    ),
    mutant(
        "release-not-owed",
        "a lease whose release the coordinator missed is never released",
        &[REST],
        where_the_coordinator_is_long_away,
    ),
    mutant_in(
        "release-outrun",
        "a worker forgets that a lease was released while it installed it",
        &[],
        Shows::UnitTest(
            "worker/src/node/holdings/tests.rs",
            "a_lease_that_is_released_during_its_install_is_not_held",
        ),
    ),
    mutant(
        "release-unconfirmed",
        "the coordinator forgets that a worker confirmed a release",
        &[REST],
        anywhere,
    ),
    mutant_in(
        "release-unheeded",
        "the coordinator confirms a release and leaves it to the workers to drop the lease",
        &[ORDER],
        Shows::In("a worker is long stopped", a_worker_is_long_stopped),
    ),
    mutant(
        "released-twice",
        "what a token gives back is struck off twice",
        &[BUDGETS],
        where_memory_is_hoarded,
    ),
    mutant(
        "renewal-skipped",
        "certificates are not renewed",
        &[CANARY, CAUSE, BACK],
        where_weeks_pass,
    ),
    mutant(
        "revoked-stay",
        "a worker does not end the connections of whoever is revoked",
        &[REVOCATION],
        where_a_client_is_revoked,
    ),
    mutant(
        "sent-still-counted",
        "what a link has let go of still counts as waiting",
        &[QUEUES],
        anywhere,
    ),
    mutant(
        "served-by-arrival",
        "compute serves jobs as they came, whoever's they are",
        &[FAIRNESS],
        where_compute_is_flooded,
    ),
    mutant(
        "served-stream-stays",
        "a worker's task that serves a stream does not end with it",
        &[REST],
        anywhere,
    ),
    mutant_in(
        "silence-hastened",
        "a peer that is silent for a moment is given up",
        &[MUST],
        Shows::In("a worker is briefly stopped", a_worker_is_briefly_stopped),
    ),
    mutant(
        "silence-ignored",
        "a peer that echoes nothing is not given up",
        &[DETECTION],
        where_a_driver_is_long_unheard,
    ),
    mutant(
        "slot-reused-early",
        "a window entry is used again before the step in it has quiesced",
        &[ONE_LIFE],
        anywhere,
    ),
    mutant_in(
        "staging-buffer-lost",
        "a staging buffer stays lent when its tensor is refused during the copy",
        &[],
        Shows::UnitTest(
            "rendezvous/src/sharing/staging_tests.rs",
            "a_buffer_whose_tensor_is_refused_during_the_copy_is_free_again",
        ),
    ),
    mutant(
        "store-stays-closed",
        "the coordinator's state is not opened again after an error",
        &[KEEPING],
        where_a_disk_of_the_coordinator_is_of_no_use,
    ),
    mutant(
        "stranger-panics",
        "a frame of somebody who takes no part panics",
        &[PROCESSES],
        where_frames_are_forged,
    ),
    mutant(
        "tasks-not-stopped",
        "tasks outlive the process that started them",
        &[STOP],
        anywhere,
    ),
    mutant(
        "tripwire-ignored",
        "the end of a process is noticed as late as its silence",
        &[DETECTION],
        where_a_worker_is_killed,
    ),
    mutant(
        "wedge-unnoticed",
        "a kernel that does not return goes unnoticed",
        &[STOPS],
        where_a_kernel_hangs_for_long,
    ),
    mutant(
        "wedged-once-unused-forever",
        "a worker whose former process was wedged is in no plan",
        &[CANARY],
        where_a_kernel_hangs_for_long,
    ),
    mutant(
        "wrong-node-blamed",
        "a failure names the node before the one that failed",
        &[CAUSE],
        anywhere,
    ),
    mutant(
        "wrong-slot",
        "a tensor goes to the slot beside its own",
        &[DELIVERY],
        anywhere,
    ),
    mutant(
        "wrong-worker-blamed",
        "a failure names the first worker, whichever it was",
        &[CAUSE],
        anywhere,
    ),
];

/// Returns the part of the table that is tried, and the number of parts. The variable `CONVOKE_MUTANTS` names them:
/// `0/3` is every third mutant, from the first. Without it the whole table is tried.
fn sample() -> (usize, usize) {
    let Ok(text) = std::env::var("CONVOKE_MUTANTS") else {
        return (0, 1);
    };
    let parts = text.split_once('/').and_then(|(part, parts)| {
        let (part, parts) = (part.parse().ok()?, parts.parse().ok()?);
        (part < parts).then_some((part, parts))
    });
    parts.unwrap_or_else(|| panic!("CONVOKE_MUTANTS is PART/PARTS, as in 0/3, not {text}"))
}

#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "the seeds of several mutants run at once, each in a process of its own"
)]
fn every_mutant_is_caught() {
    let (part, parts) = sample();
    let chosen: Vec<&Mutant> = MUTANTS.iter().skip(part).step_by(parts).collect();
    assert!(!chosen.is_empty(), "part {part} of {parts} has no mutant");
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(|| {
                while let Some(mutant) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = mutant.hunt();
                    results.lock().expect("no panic").push(result);
                }
            });
        }
    });
    let mut results = results.into_inner().expect("no panic");
    results.sort();
    let (caught, alive): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    println!("| mutant | defect | caught by | scenario | tried |\n|---|---|---|---:|---:|");
    caught
        .into_iter()
        .flatten()
        .for_each(|line| println!("{line}"));
    let alive: Vec<String> = alive.into_iter().filter_map(Result::err).collect();
    assert!(alive.is_empty(), "{}", alive.join("\n"));
}

#[test]
fn exploring_tells_of_a_seed_that_fails_shrinks_it_and_how_to_replay_it() {
    let (none, mutant) = ("no-mutant", "constants-merged");
    let seeds = ["explore", "--seeds", "6"];
    let (code, text) = simulator(none, &seeds);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("0 of 6 runs failed"), "{text}");

    let (code, text) = simulator(mutant, &seeds);
    assert_eq!(code, Some(1), "{text}");
    let after = |mark: &str| {
        text.split_once(mark)
            .and_then(|(_, rest)| rest.lines().next())
    };
    let seed = after("convoke-sims -- replay --kind plain --seed ").expect("how to replay it");
    let shrunk = after("shrunken, for replay --scenario FILE: ").expect("a smaller one");

    let replay = ["replay", "--seed", seed];
    assert_eq!(simulator(none, &replay).0, Some(0));
    assert_eq!(simulator(mutant, &replay).0, Some(1));

    let smaller: Scenario = serde_json::from_str(shrunk).expect("a scenario");
    let seed = seed.parse().expect("a number");
    assert!(smaller.calls() < Scenario::draw(seed).calls(), "{shrunk}");
    let written = Written::new("shrunken", shrunk);
    let (again, text) = simulator(mutant, &written.replay());
    assert_eq!(again, Some(1), "{text}");
}

/// Collects the names of the mutants that are built into the source files below a folder.
fn built_in(folder: &Path, found: &mut Vec<String>) {
    let mut entries: Vec<_> = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|e| e.expect("an entry").path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            built_in(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("mutant.rs") {
            let text = std::fs::read_to_string(&path).expect("text");
            let names = text.split("mutant!(\"").skip(1);
            let names: Vec<&str> = names.filter_map(|t| t.split('"').next()).collect();
            assert!(names.len() <= 2, "{}: {names:?}", path.display());
            found.extend(names.into_iter().map(str::to_owned));
        }
    }
}

#[test]
fn the_table_has_every_mutant_once() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    for part in ["common", "rendezvous", "worker", "coordinator", "client"] {
        built_in(&root.join(part).join("src"), &mut found);
    }
    found.sort();
    let named: Vec<&str> = MUTANTS.iter().map(|m| m.name).collect();
    assert_eq!(found, named);
    for mutant in &MUTANTS {
        if let Shows::UnitTest(file, test) = mutant.shows {
            let text = std::fs::read_to_string(root.join(file)).expect(file);
            let call = "mutant_is_killed!(";
            let mut proofs = text.match_indices(call);
            let proves = |(at, _): (usize, &str)| {
                let (before, proof) = (&text[..at], &text[at + call.len()..]);
                let (given, _) = proof.split_once(')').expect("a call of the macro");
                let words: Vec<&str> = given.split_whitespace().collect();
                // Nothing would run the proof if its function were no test.
                let function = before.rsplit_once("\nfn ").map_or("", |(head, _)| head);
                let is_test = function.ends_with("\n#[test]");
                is_test && words == [format!("\"{}\",", mutant.name).as_str(), test]
            };
            assert!(proofs.any(proves), "{file}: {test}");
        }
    }
}

#[test]
fn every_checker_has_a_mutant() {
    let caught_by: BTreeSet<&str> = MUTANTS.iter().flat_map(|m| m.caught_by).copied().collect();
    let checkers: BTreeSet<&str> = Invariants::default().names().into_iter().collect();
    assert_eq!(caught_by, checkers);
}
