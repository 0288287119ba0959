//! The core's exact commands. Times are in milliseconds since the connection was made.

use super::Command::{Arm, Lose, Refuse};
use super::*;
use crate::actor::Core as _;
use crate::detection::bounds::{LOST, PROCESS_KILLED};

const DIALLER: bool = true;
const ACCEPTOR: bool = false;

struct Rig {
    core: Core,
    start: Instant,
}

fn heartbeat(counter: u64, seen: u64) -> Datagram {
    Datagram {
        kind: Kind::Heartbeat,
        counter,
        seen,
    }
}

fn probe(counter: u64, seen: u64) -> Datagram {
    Datagram {
        kind: Kind::Probe,
        counter,
        seen,
    }
}

fn beat(counter: u64, seen: u64) -> Command {
    Command::Send(heartbeat(counter, seen))
}

fn asks(counter: u64, seen: u64) -> Command {
    Command::Send(probe(counter, seen))
}

fn got(counter: u64, seen: u64) -> Event {
    Event::Datagram(heartbeat(counter, seen))
}

impl Rig {
    fn new(dials: bool) -> Rig {
        let start = Instant::now();
        let core = Core::new(start, dials);
        Rig { core, start }
    }

    /// A core that sent its first heartbeat and got its echo, and whose tripwire stands, at 0.
    fn armed(dials: bool) -> Rig {
        let mut rig = Rig::new(dials);
        rig.at(0, Event::Tick);
        rig.at(0, got(1, 1));
        rig.check(0, Event::Armed, &[]);
        rig
    }

    /// Applies an event, and returns the commands that follow.
    fn at(&mut self, ms: u64, event: Event) -> Vec<Command> {
        self.core
            .apply(self.start + Duration::from_millis(ms), event);
        self.core.commands()
    }

    #[track_caller]
    fn check(&mut self, ms: u64, event: Event, expected: &[Command]) {
        assert_eq!(self.at(ms, event), expected, "at {ms} ms, {event:?}");
    }

    #[track_caller]
    fn check_due(&self, ms: Option<u64>) {
        let due = self.core.poll_timeout().map(|due| due - self.start);
        assert_eq!(due, ms.map(Duration::from_millis));
    }

    /// Lets time pass up to `until`; `peer` answers each command, and timers fire `late`. Returns the commands with
    /// their times.
    fn run(
        &mut self,
        until: u64,
        late: u64,
        mut peer: impl FnMut(u64, Command) -> Option<Event>,
    ) -> Vec<(u64, Command)> {
        let mut all = vec![];
        while let Some(due) = self.core.poll_timeout() {
            let ms = (due - self.start).as_millis() as u64 + late;
            if ms > until {
                break;
            }
            let mut commands: VecDeque<_> = self.at(ms, Event::Tick).into();
            while let Some(command) = commands.pop_front() {
                all.push((ms, command));
                if let Some(event) = peer(ms, command) {
                    commands.extend(self.at(ms, event));
                }
            }
        }
        all
    }
}

/// A peer that echoes every datagram at once.
fn lively(_: u64, command: Command) -> Option<Event> {
    match command {
        Command::Send(datagram) => Some(got(datagram.counter, datagram.counter)),
        _ => None,
    }
}

fn dead(_: u64, _: Command) -> Option<Event> {
    None
}

fn verdict(all: &[(u64, Command)]) -> Option<(u64, Verdict)> {
    all.iter().find_map(|(ms, command)| match command {
        Lose(verdict) => Some((*ms, *verdict)),
        _ => None,
    })
}

#[test]
fn a_healthy_connection_costs_two_datagrams_a_second() {
    for dials in [DIALLER, ACCEPTOR] {
        let mut rig = Rig::armed(dials);
        let all = rig.run(10_000, 0, lively);
        let expected: Vec<_> = (1..=20u64).map(|i| (i * 500, beat(i + 1, i))).collect();
        assert_eq!(all, expected);
    }
}

#[test]
fn the_dialler_arms_at_once_and_the_acceptor_waits() {
    Rig::new(DIALLER).check(0, Event::Tick, &[beat(1, 0), Arm]);
    Rig::new(ACCEPTOR).check(0, Event::Tick, &[beat(1, 0)]);
}

#[test]
fn excused_silence_is_no_loss_and_a_dead_process_is() {
    let mut rig = Rig::new(DIALLER);
    rig.at(0, Event::Tick);
    rig.core.excuse_silence();
    assert_eq!(verdict(&rig.run(600_000, 0, dead)), None);
    rig.at(600_001, Event::Armed);
    rig.at(600_002, Event::Tripped);
    let (_, why) = verdict(&rig.run(601_000, 0, dead)).expect("lost");
    assert_eq!(why, Verdict::ProcessEnded);
}

#[test]
fn silence_is_loss_within_the_bound() {
    // The peer dies right after an echo, or right before one would be due.
    for last in [0u64, 499, 500, 999, 1000] {
        let mut rig = Rig::armed(DIALLER);
        let all = rig.run(60_000, 0, |ms, command| {
            (ms <= last).then(|| lively(ms, command)).flatten()
        });
        let (ms, why) = verdict(&all).expect("lost");
        assert_eq!(why, Verdict::NoAnswer);
        assert!(Duration::from_millis(ms - last) < LOST, "{ms} after {last}");
        rig.check_due(None);
        rig.check(ms + 1, got(9, 9), &[]);
    }
}

#[test]
fn a_one_way_cut_is_silence_to_both() {
    // All datagrams of this end are lost. The peer's heartbeats arrive, and echo the last counter that it received.
    let mut rig = Rig::armed(ACCEPTOR);
    let mut theirs = 1;
    let all = rig.run(60_000, 0, |_, command| {
        theirs += 1;
        matches!(command, Command::Send(_)).then_some(got(theirs, 1))
    });
    assert_eq!(verdict(&all), Some((2500, Verdict::NoAnswer)));
}

#[test]
fn a_peer_that_started_anew_is_silence() {
    // The peer's new process does not know the connection.
    let mut rig = Rig::armed(DIALLER);
    let all = rig.run(60_000, 0, dead);
    assert_eq!(verdict(&all), Some((2500, Verdict::NoAnswer)));
}

#[test]
fn a_killed_process_is_lost_after_three_probes() {
    for dials in [DIALLER, ACCEPTOR] {
        let mut rig = Rig::armed(dials);
        rig.check(700, Event::Tick, &[beat(2, 1)]);
        rig.check(801, Event::Tripped, &[asks(3, 1)]);
        rig.check_due(Some(851));
        rig.check(851, Event::Tick, &[asks(3, 1)]);
        rig.check(901, Event::Tick, &[asks(3, 1)]);
        rig.check(951, Event::Tick, &[Lose(Verdict::ProcessEnded)]);
        assert!(Duration::from_millis(951 - 801) * 2 <= PROCESS_KILLED);
    }
}

#[test]
fn a_peer_that_says_it_closes_is_lost_as_soon_and_is_not_called_dead() {
    for dials in [DIALLER, ACCEPTOR] {
        let mut rig = Rig::armed(dials);
        rig.check(100, Event::Closing, &[asks(2, 1)]);
        rig.check(150, Event::Tick, &[asks(2, 1)]);
        rig.check(200, Event::Tick, &[asks(2, 1)]);
        rig.check(250, Event::Tick, &[Lose(Verdict::GivenUp)]);

        // The last tripwire to end gives the reason.
        let mut rig = Rig::armed(dials);
        rig.check(100, Event::Tripped, &[asks(2, 1)]);
        rig.check(110, Event::Armed, &[]);
        rig.check(120, Event::Closing, &[]);
        rig.check(150, Event::Tick, &[asks(2, 1)]);
        rig.check(200, Event::Tick, &[asks(2, 1)]);
        rig.check(250, Event::Tick, &[Lose(Verdict::GivenUp)]);
    }
}

#[test]
fn a_forged_reset_kills_nothing_and_the_tripwire_is_armed_again() {
    let mut rig = Rig::armed(DIALLER);
    rig.check(100, Event::Tripped, &[asks(2, 1)]);
    // A heartbeat that the peer sent before the probe proves nothing.
    rig.check(110, got(2, 1), &[]);
    rig.check(150, Event::Tick, &[asks(2, 2)]);
    rig.check(170, got(2, 2), &[]);
    // This is the first pause.
    rig.check_due(Some(270));
    rig.check(270, Event::Tick, &[Arm]);
    rig.check(280, Event::Armed, &[]);

    let mut rig = Rig::armed(ACCEPTOR);
    rig.check(100, Event::Tripped, &[asks(2, 1)]);
    rig.check(110, got(2, 2), &[]);
    rig.check_due(Some(500));
    rig.check(300, Event::Armed, &[]);
}

#[test]
fn tripwires_that_keep_ending_are_dialled_ever_less_often() {
    let mut rig = Rig::armed(DIALLER);
    let mut arms = vec![];
    rig.at(0, Event::Tripped);
    rig.run(60_000, 0, |ms, command| {
        if command == Arm {
            arms.push(ms);
            return Some(Event::Unarmed);
        }
        lively(ms, command)
    });
    let pauses: Vec<u64> = arms.windows(2).map(|w| w[1] - w[0]).collect();
    let expected = [
        200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000, 10_000,
    ];
    assert_eq!(pauses, expected[..pauses.len()]);
    assert!(pauses.len() > 8);
}

#[test]
fn a_tripwire_that_stood_long_is_dialled_again_soon() {
    let mut rig = Rig::armed(DIALLER);
    rig.core.pause = REARM.1;
    rig.run(9_000, 0, lively);
    rig.at(9_100, Event::Tripped);
    rig.at(9_100, got(100, rig.core.counter));
    rig.check_due(Some(9_500));
    let Tripwire::Down { at: Some(at) } = rig.core.tripwire else {
        panic!("{:?}", rig.core.tripwire);
    };
    assert_eq!(at - rig.start, Duration::from_millis(9_100) + REARM.1);

    let mut rig = Rig::armed(DIALLER);
    rig.core.pause = REARM.1;
    rig.run(10_000, 0, lively);
    rig.at(10_100, Event::Tripped);
    rig.at(10_100, got(100, rig.core.counter));
    rig.check_due(Some(10_200));
}

#[test]
fn a_process_that_was_stopped_starts_its_windows_anew() {
    // The end's own timer, due at 500, fires after ten seconds: only a new heartbeat is sent.
    let mut rig = Rig::new(ACCEPTOR);
    rig.check(0, Event::Tick, &[beat(1, 0)]);
    rig.check(10_000, Event::Tick, &[beat(2, 0)]);
    // The peer gets the whole bound of silence again.
    let all = rig.run(60_000, 0, dead);
    assert_eq!(verdict(&all), Some((12_000, Verdict::NoAnswer)));

    // The same holds if the late timer is that of the tripwire.
    let mut rig = Rig::new(DIALLER);
    rig.check(0, Event::Tick, &[beat(1, 0), Arm]);
    rig.check(0, Event::Unarmed, &[]);
    rig.check(1101, Event::Tick, &[beat(2, 0), Arm]);
    let all = rig.run(60_000, 0, dead);
    assert_eq!(verdict(&all), Some((3101, Verdict::NoAnswer)));

    // A datagram that is delivered before the timer makes no difference.
    let mut rig = Rig::new(ACCEPTOR);
    rig.check(0, Event::Tick, &[beat(1, 0)]);
    rig.check(10_000, got(1, 0), &[beat(2, 1)]);

    // The end of a tripwire, or a probe in flight, makes no difference either.
    let mut rig = Rig::armed(DIALLER);
    rig.check(100, Event::Tripped, &[asks(2, 1)]);
    rig.check(10_000, Event::Tick, &[asks(2, 1), beat(3, 1)]);
    for ms in [10_050, 10_100] {
        rig.check(ms, Event::Tick, &[asks(2, 1)]);
    }
    rig.check(10_150, Event::Tick, &[Lose(Verdict::ProcessEnded)]);
}

#[test]
fn a_timer_that_is_late_by_less_loses_no_healthy_peer() {
    for late in [0, 100, 500, 900, 1000] {
        let mut rig = Rig::armed(DIALLER);
        let all = rig.run(600_000, late, lively);
        assert_eq!(verdict(&all), None, "{late} ms late");
    }
}

#[test]
fn probes_count_only_where_their_timers_are_on_time() {
    let mut rig = Rig::armed(DIALLER);
    rig.check(100, Event::Tripped, &[asks(2, 1)]);
    rig.check(150, Event::Tick, &[asks(2, 1)]);
    // The probes due at 200 and at 301 are late, and do not count.
    rig.check(251, Event::Tick, &[asks(2, 1)]);
    rig.check(352, Event::Tick, &[asks(2, 1)]);
    rig.check(402, Event::Tick, &[asks(2, 1)]);
    rig.check(452, Event::Tick, &[Lose(Verdict::ProcessEnded)]);
}

#[test]
fn probes_are_answered_at_once_but_not_without_end() {
    let mut rig = Rig::armed(ACCEPTOR);
    for i in 0..u64::from(ANSWERS) {
        let asked = Event::Datagram(probe(2 + i, 1));
        rig.check(10, asked, &[beat(1, 2 + i)]);
    }
    rig.check(20, Event::Datagram(probe(90, 1)), &[Refuse]);
    rig.check(500, Event::Tick, &[beat(2, 90)]);
    rig.check(510, Event::Datagram(probe(91, 2)), &[beat(2, 91)]);
}

#[test]
fn an_echo_of_what_was_never_sent_is_refused() {
    let mut rig = Rig::new(ACCEPTOR);
    rig.check(0, Event::Tick, &[beat(1, 0)]);
    rig.check(1, got(7, 2), &[Refuse]);
    rig.check(1, got(7, u64::MAX), &[Refuse]);
    // The datagram proves no life: the first heartbeat is still not echoed.
    let all = rig.run(60_000, 0, dead);
    assert_eq!(verdict(&all), Some((2000, Verdict::NoAnswer)));
    // Counters at the end of the range do no harm.
    let mut rig = Rig::armed(ACCEPTOR);
    rig.check(1, got(u64::MAX, 1), &[]);
    rig.check(500, Event::Tick, &[beat(2, u64::MAX)]);
}

#[test]
fn old_datagrams_take_nothing_back() {
    let mut rig = Rig::armed(ACCEPTOR);
    rig.check(500, Event::Tick, &[beat(2, 1)]);
    rig.check(510, got(3, 2), &[]);
    rig.check(520, got(2, 1), &[]);
    rig.check(1000, Event::Tick, &[beat(3, 3)]);
}

#[test]
fn what_is_kept_is_bounded() {
    let mut rig = Rig::armed(DIALLER);
    let mut most = 0;
    for ms in 0..100_000 {
        let event = match ms % 4 {
            0 => Event::Tripped,
            1 => Event::Datagram(probe(ms, 0)),
            2 => Event::Armed,
            _ => got(ms, rig.core.counter),
        };
        rig.at(ms, event);
        most = most.max(rig.core.unechoed.len());
    }
    assert!(most <= 5, "{most}");
    assert!(!rig.core.lost);
}

#[test]
fn a_timer_that_counts_although_it_is_late_is_noticed() {
    crate::mutant_is_killed!(
        "late-timer-counts",
        a_process_that_was_stopped_starts_its_windows_anew
    );
}
