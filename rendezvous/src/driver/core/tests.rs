use convoke_common::actor::Core as _;

use super::*;

/// An event, or the passing of time.
enum Input {
    Event(Event),
    Wait(Duration),
}

impl From<Event> for Input {
    fn from(e: Event) -> Input {
        Input::Event(e)
    }
}

/// A core of the workers a, b and c, and a clock that tests move by hand.
struct Rig {
    core: Core,
    now: Instant,
}

fn rig() -> Rig {
    rig_of(&["a", "b", "c"])
}

fn rig_of(names: &[&str]) -> Rig {
    Rig {
        core: Core::new(names.iter().map(|n| (*n).to_owned()).collect()),
        now: Instant::now(),
    }
}

impl Rig {
    /// Applies an input, and returns the commands that follow.
    fn take(&mut self, input: Input) -> Vec<String> {
        match input {
            Input::Event(e) => self.core.apply(self.now, e),
            Input::Wait(d) => {
                self.now += d;
                // The core is not called before its timeout is due.
                if self.core.poll_timeout().is_some_and(|t| t <= self.now) {
                    self.core.handle_timeout(self.now);
                }
            }
        }
        let commands = self.core.commands().into_iter();
        commands.map(text).collect()
    }
}

fn text(c: Command) -> String {
    match c {
        Command::Start { n } => format!("start {n}"),
        Command::Abort { n, except, .. } => format!("abort {n} except {except:?}"),
        Command::Resolve { n, result: Ok(()) } => format!("ok {n}"),
        Command::Resolve { n, result: Err(e) } => {
            let also = |more: &Error| format!(" also {}", more.message);
            let also: String = e.attached.iter().map(also).collect();
            format!(
                "err {n} {}{also} stopped {}",
                e.message,
                e.stopped.join(" ")
            )
        }
        Command::Attach { n, error } => format!("attach {n} {}", error.message),
        Command::Retire { n } => format!("retire {n}"),
    }
}

#[track_caller]
fn check(inputs: Vec<Input>, want: &[&str]) -> Core {
    let mut rig = rig();
    let got: Vec<String> = inputs.into_iter().flat_map(|i| rig.take(i)).collect();
    assert_eq!(got, want);
    rig.core
}

fn begin() -> Input {
    Event::Begin { n: 0, results: 1 }.into()
}

fn again(n: u64) -> Input {
    Event::Begin { n, results: 1 }.into()
}

fn arrived() -> Input {
    Event::Arrived { n: 0 }.into()
}

fn done(from: u16) -> Input {
    Event::Done { n: 0, from }.into()
}

fn failed(from: u16, code: Code, m: &str) -> Input {
    reports(from, Error::new(code, m))
}

fn reports(from: u16, error: Error) -> Input {
    Event::Failed {
        n: 0,
        from: Some(from),
        error,
    }
    .into()
}

/// The caller ends the step.
fn cancelled() -> Input {
    let error = Error::new(Code::Cancelled, "dropped");
    let (n, from) = (0, None);
    Event::Failed { n, from, error }.into()
}

/// The driver's own link to a participant ended.
fn lost(peer: u16, name: &str) -> Input {
    let error = Error::lost(name, "it ended");
    Event::Lost { peer, error }.into()
}

/// A participant reports the loss of another one.
fn lost_by(from: u16, name: &str) -> Input {
    reports(from, Error::lost(name, "cut"))
}

fn wait(d: Duration) -> Input {
    Input::Wait(d)
}

fn unusable(core: &Core) -> Vec<ParticipantIx> {
    core.unusable().collect()
}

const MOMENT: Duration = Duration::from_millis(1);

#[test]
fn success_resolves_before_it_retires() {
    for inputs in [
        vec![begin(), done(0), arrived(), done(1), done(2)],
        vec![begin(), done(0), done(1), done(2), arrived()],
    ] {
        let core = check(inputs, &["start 0", "ok 0", "retire 0"]);
        assert_eq!(core.poll_timeout(), None);
    }
}

#[test]
fn the_first_primary_error_is_the_cause_and_later_ones_are_attached() {
    let core = check(
        vec![
            begin(),
            failed(1, Code::KernelFailed, "boom"),
            failed(0, Code::KernelFailed, "bang"),
            // Further reports about the same participants are nothing new.
            failed(1, Code::KernelFailed, "boom again"),
            lost_by(2, "b"),
            done(0),
            done(1),
            done(2),
        ],
        &[
            "start 0",
            "abort 0 except Some(1)",
            "err 0 boom stopped a c",
            "attach 0 bang",
            "retire 0",
        ],
    );
    // c cannot reach b any more, so another step would fail.
    assert!(core.broken().is_some());
}

#[test]
fn attached_errors_are_bounded() {
    let names: Vec<String> = (0..100).map(|i| format!("w{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut rig = rig_of(&names);
    rig.take(begin());
    rig.take(failed(0, Code::KernelFailed, "boom"));
    let attached = (1..100).flat_map(|i| rig.take(failed(i, Code::KernelFailed, "bang")));
    assert_eq!(attached.count(), MOST_ATTACHED);
    assert_eq!(rig.take(failed(0, Code::KernelFailed, "again")), [""; 0]);
    let mut rig = rig_of(&names);
    rig.take(begin());
    let told: String = (0..100)
        .flat_map(|i| rig.take(lost(i, names[usize::from(i)])))
        .collect();
    assert_eq!(told.matches("also").count(), MOST_ATTACHED);
    assert_eq!(rig.core.broken().unwrap().attached.len(), MOST_ATTACHED);
    // A step that begins with all of these losses gets no further ones.
    let told = rig.take(again(1)).concat();
    assert_eq!(told.matches("also").count(), MOST_ATTACHED);
    let bang = |n, from| Event::Failed {
        n,
        from: Some(from),
        error: Error::new(Code::KernelFailed, "bang"),
    };
    assert_eq!(rig.take(bang(1, 50).into()), [""; 0]);
    // The caller's own end of a step is about no participant.
    let mut rig = rig_of(&names);
    rig.take(begin());
    rig.take(cancelled());
    let attached = (0..100).flat_map(|i| rig.take(failed(i, Code::KernelFailed, "bang")));
    assert_eq!(attached.count(), MOST_ATTACHED);
}

#[test]
fn closing_a_broken_lease_repeats_nothing() {
    let mut rig = rig();
    for input in [begin(), lost(1, "b"), lost(2, "c")] {
        rig.take(input);
    }
    let known = rig.core.broken().unwrap();
    assert_eq!(known.attached.len(), 1);
    let closed = || Event::Closed {
        error: known.clone(),
    };
    for _ in 0..2 {
        rig.take(closed().into());
        assert_eq!(rig.core.broken().as_ref(), Some(&known));
    }
}

#[test]
fn a_lease_that_a_participants_loss_broke_says_who_lost_whom() {
    let told = |inputs: Vec<Input>| {
        let mut rig = rig();
        for input in inputs {
            rig.take(input);
        }
        rig.core.broken().map(|e| e.message)
    };
    let by_c = Some("c lost contact with b: cut".to_owned());
    assert_eq!(told(vec![begin(), lost_by(2, "b")]), by_c);
    // A participant that the driver itself has lost is reported as lost, even where somebody else reported it first.
    let own = Some("lost contact with b: it ended".to_owned());
    assert_eq!(told(vec![begin(), lost(1, "b"), lost_by(2, "b")]), own);
    assert_eq!(told(vec![begin(), lost_by(2, "b"), lost(1, "b")]), own);
}

#[test]
fn who_failed_while_losses_are_collected_has_not_been_stopped() {
    check(
        vec![
            begin(),
            lost(1, "b"),
            failed(2, Code::KernelFailed, "bang"),
            done(2),
            done(0),
        ],
        &[
            "start 0",
            "abort 0 except Some(1)",
            "err 0 lost contact with b: it ended also bang stopped a",
            "retire 0",
        ],
    );
}

#[test]
fn what_the_driver_sees_itself_waits_only_for_who_is_silent() {
    let told = "err 0 lost contact with b: it ended stopped a c";
    // The report of a peer and the driver's own observation agree, whichever comes first.
    for (inputs, except) in [
        (vec![lost(1, "b")], 1),
        (vec![lost_by(0, "b"), lost_by(2, "b"), lost(1, "b")], 0),
        (vec![lost(1, "b"), lost_by(0, "b")], 1),
    ] {
        let start = "start 0".to_owned();
        let abort = format!("abort 0 except Some({except})");
        let mut rig = rig();
        let begun = [begin()].into_iter().chain(inputs);
        let got: Vec<String> = begun.flat_map(|i| rig.take(i)).collect();
        assert_eq!(got, [start, abort]);
        assert_eq!(unusable(&rig.core), [1]);
        assert_eq!(rig.take(done(0)), [""; 0]);
        assert_eq!(rig.take(done(2)), [told, "retire 0"]);
    }
    // A participant that does not answer delays the error by the grace.
    let silence = || {
        vec![
            begin(),
            lost(1, "b"),
            done(0),
            wait(LOSS_GRACE - MOMENT),
            wait(MOMENT),
        ]
    };
    check(silence(), &["start 0", "abort 0 except Some(1)", told]);
    let mut early = silence();
    early.pop();
    check(early, &["start 0", "abort 0 except Some(1)"]);
}

#[test]
fn participants_that_die_together_are_told_together() {
    let both = "err 0 lost contact with b: it ended also lost contact with c: it ended stopped a";
    let died = || vec![begin(), lost(1, "b"), wait(LOSS_GRACE - MOMENT)];
    let want = ["start 0", "abort 0 except Some(1)"];
    // One that lives says that it has stopped, before or after the second loss.
    let mut inputs = died();
    inputs.extend([done(0), lost(2, "c"), lost_by(0, "c")]);
    check(inputs, &[&want[..], &[both, "retire 0"]].concat());
    let mut inputs = died();
    inputs.extend([lost(2, "c"), done(0)]);
    let core = check(inputs, &[&want[..], &[both, "retire 0"]].concat());
    let broken = core.broken().unwrap();
    let workers = [&broken, &broken.attached[0]].map(|e| e.site.as_ref().unwrap().worker.clone());
    assert_eq!(workers, ["b", "c"].map(|w| Some(w.to_owned())));
    // A second loss that is known later is attached where the caller has not taken the error yet.
    let mut inputs = died();
    inputs.extend([wait(MOMENT), lost(2, "c")]);
    check(
        inputs,
        &[
            &want[..],
            &[
                "err 0 lost contact with b: it ended stopped a c",
                "attach 0 lost contact with c: it ended",
            ],
        ]
        .concat(),
    );
    // A step that begins afterwards tells of both, and waits for nobody.
    let mut inputs = died();
    inputs.extend([lost(2, "c"), again(1)]);
    let later = "err 1 lost contact with b: it ended also lost contact with c: it ended stopped a";
    check(
        inputs,
        &[&want[..], &["start 1", "abort 1 except None", later]].concat(),
    );
    // The caller's own end of the step ends the wait.
    let mut inputs = died();
    let error = Error::new(Code::DeadlineExceeded, "late");
    inputs.push(
        Event::Failed {
            n: 0,
            from: None,
            error,
        }
        .into(),
    );
    check(
        inputs,
        &[
            &want[..],
            &["err 0 lost contact with b: it ended stopped a c"],
        ]
        .concat(),
    );
}

#[test]
fn a_consequence_waits_for_its_cause_no_longer_than_needed() {
    // A primary error arrives in time.
    let core = check(
        vec![
            begin(),
            lost_by(0, "b"),
            failed(1, Code::WorkerLeaving, "b is leaving"),
        ],
        &[
            "start 0",
            "abort 0 except Some(0)",
            "err 0 b is leaving stopped a c",
        ],
    );
    assert_eq!(unusable(&core), [1]);
    // All participants have quiesced.
    let core = check(
        vec![begin(), lost_by(0, "b"), done(0), done(1), done(2)],
        &[
            "start 0",
            "abort 0 except Some(0)",
            "err 0 a lost contact with b: cut stopped a c",
            "retire 0",
        ],
    );
    assert_eq!(unusable(&core), [1]);
    // Two participants blame each other.
    check(
        vec![begin(), lost_by(0, "b"), lost_by(1, "a")],
        &[
            "start 0",
            "abort 0 except Some(0)",
            "err 0 a lost contact with b: cut stopped a c",
        ],
    );
    // No other participant reports anything, and the driver sees nothing wrong.
    let silence = || {
        vec![
            begin(),
            lost_by(0, "b"),
            done(0),
            wait(CAUSE_BOUND - MOMENT),
        ]
    };
    let core = check(silence(), &["start 0", "abort 0 except Some(0)"]);
    assert!(unusable(&core).is_empty());
    let mut inputs = silence();
    inputs.push(wait(MOMENT));
    check(
        inputs,
        &[
            "start 0",
            "abort 0 except Some(0)",
            "err 0 a lost contact with b: cut stopped a c",
        ],
    );
}

#[test]
fn many_that_fail_at_once_are_one_cause() {
    let core = check(
        vec![
            begin(),
            lost_by(0, "b"),
            lost(1, "b"),
            lost(2, "c"),
            done(0),
        ],
        &[
            "start 0",
            "abort 0 except Some(0)",
            "err 0 lost contact with b: it ended also lost contact with c: it ended stopped a",
            "retire 0",
        ],
    );
    assert_eq!(unusable(&core), [1, 2]);
}

#[test]
fn a_lost_participant_ends_later_steps_too() {
    check(
        vec![
            begin(),
            lost(1, "b"),
            done(0),
            done(2),
            again(1),
            Event::Done { n: 1, from: 0 }.into(),
            Event::Done { n: 1, from: 2 }.into(),
        ],
        &[
            "start 0",
            "abort 0 except Some(1)",
            "err 0 lost contact with b: it ended stopped a c",
            "retire 0",
            "start 1",
            "abort 1 except None",
            "err 1 lost contact with b: it ended stopped a c",
            "retire 1",
        ],
    );
}

#[test]
fn a_step_on_a_lease_that_a_peer_cannot_use_waits_for_the_cause_as_well() {
    let mut inputs = vec![begin(), lost_by(0, "b"), done(0), done(1), done(2)];
    inputs.extend([again(1), lost(1, "b"), wait(LOSS_GRACE)]);
    check(
        inputs,
        &[
            "start 0",
            "abort 0 except Some(0)",
            "err 0 a lost contact with b: cut stopped a c",
            "retire 0",
            "start 1",
            "abort 1 except None",
            "err 1 lost contact with b: it ended stopped a c",
        ],
    );
}

#[test]
fn a_dropped_lease_ends_every_step_and_those_to_come() {
    let core = check(
        vec![
            begin(),
            again(1),
            failed(1, Code::LeaseRetired, "gone"),
            done(0),
            done(2),
            Event::Done { n: 1, from: 0 }.into(),
            Event::Done { n: 1, from: 2 }.into(),
        ],
        &[
            "start 0",
            "start 1",
            "abort 0 except Some(1)",
            "abort 1 except Some(1)",
            "err 0 b no longer holds the lease stopped a c",
            "retire 0",
            "err 1 b no longer holds the lease stopped a c",
            "retire 1",
        ],
    );
    // The worker is alive, and can serve another lease.
    assert!(unusable(&core).is_empty());
    // The participant dropped the lease because another one is gone, which is the cause.
    check(
        vec![
            begin(),
            failed(1, Code::LeaseRetired, "gone"),
            lost(2, "c"),
            done(0),
        ],
        &[
            "start 0",
            "abort 0 except Some(1)",
            "err 0 lost contact with c: it ended stopped a b",
            "retire 0",
        ],
    );
}

#[test]
fn a_closed_lease_ends_every_step_and_those_to_come() {
    let error = Error::new(Code::LeaseRetired, "gone");
    check(
        vec![begin(), Event::Closed { error }.into(), again(1)],
        &[
            "start 0",
            "abort 0 except None",
            "err 0 gone stopped a b c",
            "start 1",
            "abort 1 except None",
            "err 1 gone stopped a b c",
        ],
    );
}

#[test]
fn a_closed_lease_waits_no_longer_for_who_does_not_quiesce_a_success() {
    let error = Error::new(Code::LeaseRetired, "gone");
    check(
        vec![
            begin(),
            arrived(),
            done(0),
            done(1),
            Event::Closed { error }.into(),
            wait(QUIESCE_BOUND - MOMENT),
            wait(MOMENT),
        ],
        &["start 0", "ok 0", "retire 0"],
    );
}

#[test]
fn a_wedged_participant_is_the_cause_and_is_not_waited_for() {
    let core = check(
        vec![
            begin(),
            failed(1, Code::Wedged, "b is wedged"),
            done(0),
            done(2),
        ],
        &[
            "start 0",
            "abort 0 except Some(1)",
            "err 0 b is wedged stopped a c",
            "retire 0",
        ],
    );
    assert_eq!(unusable(&core), [1]);
    assert_eq!(core.broken().unwrap().code, Code::Wedged);
}

#[test]
fn who_does_not_quiesce_is_given_up() {
    let cancelled = || {
        vec![
            begin(),
            cancelled(),
            done(0),
            done(2),
            wait(QUIESCE_BOUND - MOMENT),
        ]
    };
    let want = [
        "start 0",
        "abort 0 except None",
        "err 0 dropped stopped a b c",
    ];
    let core = check(cancelled(), &want);
    assert!(core.broken().is_none());
    assert_eq!(core.unfinished(0), [1]);
    let mut inputs = cancelled();
    inputs.push(wait(MOMENT));
    let also = ["attach 0 b did not stop a step that ended", "retire 0"];
    let core = check(inputs, &[&want[..], &also[..]].concat());
    let broken = core.broken().unwrap();
    assert_eq!(
        (broken.code, broken.site.as_ref().unwrap().worker.as_deref()),
        (Code::Wedged, Some("b"))
    );
    assert_eq!(unusable(&core), [1]);
    assert_eq!(core.poll_timeout(), None);
}

#[test]
fn a_healthy_step_has_no_timer() {
    let core = check(vec![begin(), done(0)], &["start 0"]);
    assert_eq!(core.poll_timeout(), None);
}
