//! Scenarios that aim at one cell of the table fault × step state, for the cells that seeds seldom meet.

use super::{Scenario, draw};
use crate::draw::Draw;
use crate::faults::{Fault, Row, StepState, Target, Trigger, draw_harm};
use crate::workload::Trap;

/// Milliseconds that an aimed fault lasts at least: it may strike before the step that it is to meet.
const LASTS: u32 = 500;

/// The scenario with this number that aims at a cell: of all faults it has one, of this row, which strikes as soon as its
/// host has a step in this state.
pub(super) fn scenario(row: Row, state: StepState, number: u64) -> Scenario {
    let root = Draw::new(number).fork("aimed");
    let mut s = Scenario::draw(number);
    s.faults.clear();
    for worker in &mut s.workers {
        (worker.joins, worker.leaves) = (0, None);
    }
    if state == StepState::Abort || row == Row::KernelError {
        all_fail(&mut s);
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
        },
        lasts: lasts.max(LASTS),
    };
    draw::equip(&root, &mut d, &mut s, &mut fault);
    s.faults.push(fault);
    s
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
                let s = Scenario::aimed(row, state, 5);
                assert_eq!(s, Scenario::aimed(row, state, 5));
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
}
