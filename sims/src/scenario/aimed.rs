//! Scenarios that aim at one cell of the table fault × step state, or timer × fault × step state, for the cells that seeds
//! seldom meet.

use convoke_common::detection::timer::TimerKind;

use super::{Scenario, draw};
use crate::draw::Draw;
use crate::faults::{Fault, Harm, Row, StepState, Target, Trigger, draw_harm};
use crate::workload::Trap;

/// Milliseconds that an aimed fault lasts at least: it may strike before the step that it is to meet.
const LASTS: u32 = 500;

/// The scenario with this number that aims at a cell. Its last fault is one of this row, which strikes as soon as its host
/// has a step in this state, while the timer runs where the cell has one. Where faults arm that timer, these come before
/// it; there are no others. Kernel errors come from what is computed: for them there is no fault of the row.
pub(super) fn scenario(
    row: Row,
    state: StepState,
    timer: Option<TimerKind>,
    number: u64,
) -> Scenario {
    let root = Draw::new(number).fork("aimed");
    let mut s = Scenario::draw(number);
    s.faults.clear();
    for worker in &mut s.workers {
        (worker.joins, worker.leaves) = (0, None);
    }
    if state == StepState::Abort || row == Row::KernelError {
        all_fail(&mut s);
    }
    if let Some(timer) = timer {
        arm(timer, &mut root.fork("arm"), &mut s);
    }
    if row == Row::KernelError {
        return s;
    }
    let mut d = root.fork("fault");
    let (target, harm, lasts) = draw_harm(row, &mut d);
    // Workers have every state, and install.
    let target = match target {
        Target::Client(_) if ![Row::CrashClient, Row::Revoke, Row::Expire].contains(&row) => {
            Target::Worker(d.below(s.workers.len() as u64) as u16)
        }
        target => target,
    };
    let mut fault = Fault {
        target,
        harm,
        when: Trigger::On {
            state,
            nth: 1,
            after: 0,
            timer,
        },
        lasts: lasts.max(LASTS),
    };
    draw::equip(&root, &mut d, &mut s, &mut fault);
    s.faults.push(fault);
    s
}

/// Makes timers of this kind run: by faults that strike when there are steps, or by what the calls ask for.
fn arm(timer: TimerKind, d: &mut Draw, s: &mut Scenario) {
    let workers = s.workers.len() as u64;
    let first = d.below(workers) as u16;
    let (one, other) = (Target::Worker(first), Target::Worker(first + 1));
    let client = Target::Client(d.below(s.clients.len() as u64) as u16);
    let crash = |target, lasts| (target, Harm::Crash, lasts);
    let cut = (one, Harm::Cut { from: other }, 3500);
    let hang = (one, Harm::Hang, 3000);
    let harms = match timer {
        TimerKind::Silence => vec![],
        TimerKind::Probe => vec![crash(one, 100), crash(client, 100), crash(other, 100)],
        TimerKind::Cause => vec![cut, crash(one, 200)],
        TimerKind::Losses => vec![(one, Harm::Pause, 3000), crash(other, 200)],
        TimerKind::Quiesce | TimerKind::Wedge => vec![hang],
        TimerKind::Deadline => vec![],
        TimerKind::Return => vec![crash(client, 100), crash(Target::Coordinator, 1500)],
        TimerKind::Drain => vec![(one, Harm::Slow(20), 6000), (one, Harm::Drain, 6000)],
    };
    let calls = s.clients.iter_mut().flat_map(|c| &mut c.calls);
    for call in calls.filter(|call| call.eager.is_none()) {
        match timer {
            TimerKind::Deadline => call.deadline = Some(d.pick(&[800, 5000])),
            TimerKind::Quiesce | TimerKind::Wedge if d.chance(50) => call.cancel = Some(60),
            _ => {}
        }
    }
    for (target, harm, lasts) in harms {
        let when = Trigger::On {
            state: d.pick(&[StepState::Prepare, StepState::Waiting, StepState::Filling]),
            nth: d.weighted(&[(2, 1), (1, 3)]),
            after: d.pick(&[0, 300, 1000]),
            timer: None,
        };
        s.faults.push(Fault {
            target,
            harm,
            when,
            lasts,
        });
    }
}

/// Makes every call of models with a trap fall into it, and gives one to models without. Nobody gives a call up before.
fn all_fail(s: &mut Scenario) {
    for client in &mut s.clients {
        for model in &mut client.models {
            model.spec.trap.get_or_insert(Trap::Divide);
        }
        for call in &mut client.calls {
            call.sprung = true;
            (call.deadline, call.cancel, call.eager) = (None, None, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_can_be_aimed_at() {
        for row in Row::ALL {
            for state in StepState::ALL {
                let s = Scenario::aimed(row, state, None, 5);
                assert_eq!(s, Scenario::aimed(row, state, None, 5));
                let of_row = |f: &&Fault| f.harm.row(f.target) == row;
                let aimed = s.faults.iter().filter(of_row).count();
                assert_eq!(
                    aimed,
                    usize::from(row != Row::KernelError),
                    "{row:?}: {s:?}"
                );
                let own = s.clients.iter().any(|c| c.own.is_some());
                assert!(own || !matches!(row, Row::Hoard | Row::Flood), "{row:?}");
            }
        }
    }

    #[test]
    fn a_cell_with_a_timer_has_what_arms_it_before_the_fault() {
        for timer in TimerKind::ALL {
            let s = Scenario::aimed(Row::Forge, StepState::Start, Some(timer), 5);
            let (last, before) = s.faults.split_last().unwrap();
            assert_eq!(last.harm, Harm::Forge);
            assert!(matches!(last.when, Trigger::On { timer: Some(t), .. } if t == timer));
            let bare = matches!(timer, TimerKind::Silence | TimerKind::Deadline);
            assert_eq!(before.is_empty(), bare, "{timer:?}");
            if timer == TimerKind::Deadline {
                let calls = s.clients.iter().flat_map(|c| &c.calls);
                let mut of_models = calls.filter(|c| c.eager.is_none());
                assert!(of_models.all(|c| c.deadline.is_some()), "{s:?}");
            }
        }
    }
}
