//! Draws a scenario from its seed.

use super::{CallSpec, ClientSpec, ModelUse, Scenario, WorkerSpec};
use crate::draw::Draw;
use crate::eager::CallMode;
use crate::faults::{BESIDE, Fault, Harm, StepState, Target, Trigger, draw_harm, drawn};
use crate::workload::{AXIS_BOUND, ModelSpec};

/// Milliseconds within which calls begin and faults strike.
pub const BUSY: u32 = 4000;

/// How often calls are of a kind, in percent, and how many a client makes.
pub(super) struct Rates {
    pub busy: u32,
    pub calls: u64,
    pub eager: u64,
    pub sprung: u64,
    pub deadline: u64,
    pub cancel: u64,
    pub retry: u64,
}

const RATES: Rates = Rates {
    busy: BUSY,
    calls: 8,
    eager: 20,
    sprung: 30,
    deadline: 15,
    cancel: 15,
    retry: 75,
};

pub(super) fn scenario(seed: u64) -> Scenario {
    let root = Draw::new(seed).fork("scenario");
    let mut d = root.fork("shape");
    let workers = d.range(2, 6) as usize;
    let clients = d.weighted(&[(4, 1), (3, 2), (2, 3)]);
    // One seed in ten has no fault: its calls may only succeed, or fail by what the workload itself causes.
    let faults = match d.below(10) {
        0 => 0,
        1..=3 => 1,
        4..=6 => 2,
        _ => d.range(3, 5) as usize,
    };
    let rest = workers as u64;
    let mut scenario = Scenario {
        seed,
        workers: draw_workers(&mut root.fork("workers"), workers, BUSY),
        clients: (0..clients)
            .map(|i| client(&mut root.fork(&format!("client {i}")), rest, &RATES))
            .collect(),
        faults: (0..faults)
            .map(|i| fault(&mut root.fork(&format!("fault {i}"))))
            .collect(),
    };
    draw_devices(&mut root.fork("devices"), &mut scenario.workers);
    if faults > 0 {
        beside(&root, &mut scenario);
    }
    scenario
}

/// Adds, for some seeds, one of the faults in [`BESIDE`], in place of the other faults or with them, and the members
/// with a token of their own that it needs.
fn beside(root: &Draw, s: &mut Scenario) {
    let mut d = root.fork("beside");
    if !d.chance(35) {
        return;
    }
    if d.chance(60) {
        s.faults.clear();
    }
    let row = d.pick(&BESIDE);
    let (target, harm, lasts) = draw_harm(row, &mut d);
    // These faults strike early, while there are steps, since most of them last long.
    let after = d.below(u64::from(BUSY) / 2) as u32;
    let when = match d.chance(50) {
        true => Trigger::On {
            state: d.pick(&StepState::ALL),
            nth: 1,
            after,
            timer: None,
        },
        false => Trigger::At(after),
    };
    let mut fault = Fault {
        target,
        harm,
        when,
        lasts,
    };
    equip(root, &mut d, s, &mut fault);
    if matches!(fault.harm, Harm::Days(_)) && d.chance(50) {
        // A member is away for longer than its certificate lives.
        let worker = Target::Worker(d.below(s.workers.len() as u64) as u16);
        let away = d.pick(&[worker, Target::Client(0)]);
        s.faults.push(Fault {
            target: away,
            harm: Harm::Cut {
                from: Target::Coordinator,
            },
            when: Trigger::At(0),
            lasts: lasts + d.range(BUSY.into(), 2 * u64::from(BUSY)) as u32,
        });
    }
    s.faults.push(fault);
}

/// What a token of a client's own allows on each worker at least: the windows of its connections take up to 2.4 MiB, and a
/// client whose models do not fit beside them fails for no fault.
const GUEST_MIB: u64 = 8;

/// Adds the member with a token of its own that a fault needs, and makes it the fault's.
pub(super) fn equip(root: &Draw, d: &mut Draw, s: &mut Scenario, fault: &mut Fault) {
    let workers = s.workers.len() as u64;
    let guest = s.clients.len() as u16;
    match (&mut fault.target, &mut fault.harm) {
        (Target::Worker(i), Harm::Revoke | Harm::Expire) => {
            s.workers[usize::from(*i) % workers as usize].own = true;
        }
        (Target::Client(by), Harm::Revoke | Harm::Expire)
        | (_, Harm::Hoard { by } | Harm::Flood { by }) => {
            *by = guest;
            let least = s.workers.iter().map(|w| u64::from(w.memory_mib)).min();
            let enough = (100 * GUEST_MIB).div_ceil(least.unwrap_or(GUEST_MIB).max(1));
            let own = Some(d.range(10, 30).max(enough).min(100) as u8);
            let spec = client(&mut root.fork("guest"), workers, &RATES);
            s.clients.push(ClientSpec { own, ..spec });
        }
        _ => {}
    }
}

pub(super) fn draw_workers(d: &mut Draw, count: usize, busy: u32) -> Vec<WorkerSpec> {
    let mut all: Vec<WorkerSpec> = (0..count)
        .map(|_| WorkerSpec {
            memory_mib: d.pick(&[24, 48, 96]),
            kernel_ms: d.weighted(&[(4, 2), (3, 8), (1, 40)]),
            joins: 0,
            leaves: None,
            own: false,
            simgpu: false,
        })
        .collect();
    if d.chance(25) {
        let late = d.below(count as u64) as usize;
        all[late].joins = d.range(1, u64::from(busy)) as u32;
    }
    // At least two workers stay.
    if count > 2 && d.chance(20) {
        let leaver = d.below(count as u64) as usize;
        let from = all[leaver].joins + 1000;
        all[leaver].leaves = Some(d.range(u64::from(from), u64::from(from + busy)) as u32);
    }
    all
}

/// Gives some workers, or all, a simulated GPU in some seeds.
pub(super) fn draw_devices(d: &mut Draw, workers: &mut [WorkerSpec]) {
    if !d.chance(30) {
        return;
    }
    let all = d.chance(30);
    for worker in workers {
        worker.simgpu = all || d.chance(50);
    }
}

pub(super) fn client(d: &mut Draw, workers: u64, rates: &Rates) -> ClientSpec {
    let models: Vec<ModelUse> = (0..d.weighted(&[(3, 1), (2, 2)]))
        .map(|_| ModelUse {
            spec: ModelSpec::draw(d),
            at: match d.chance(70) {
                true => 0,
                false => d.range(1, 1500) as u32,
            },
            workers: d.chance(75).then(|| d.range(1, workers.min(4)) as u32),
            pin: d
                .chance(10)
                .then(|| (d.below(64) as u32, d.below(workers) as u16)),
            in_flight: d.range(1, 4) as u32,
            gives_up: None,
        })
        .collect();
    let mut calls: Vec<CallSpec> = (0..d.range(2, rates.calls))
        .map(|_| call(d, models.len() as u64, rates))
        .collect();
    for c in &mut calls {
        // Only a model that has a trap can fall into it.
        c.sprung &= models[c.model].spec.trap.is_some();
    }
    calls.sort_by_key(|c| c.at);
    ClientSpec {
        models,
        calls,
        own: None,
    }
}

fn call(d: &mut Draw, models: u64, rates: &Rates) -> CallSpec {
    // Bursts fill the window, while faults meet single calls alone.
    let at = match d.chance(40) {
        true => d.pick(&[0, 500, 1200, 2500]),
        false => d.below(u64::from(rates.busy)) as u32,
    };
    let eager = d.chance(rates.eager).then(|| {
        let seed = d.word();
        let how = match seed % 2 {
            0 => CallMode::Issued,
            _ => CallMode::Traced,
        };
        (how, seed)
    });
    CallSpec {
        eager,
        at,
        model: d.below(models) as usize,
        inputs: d.word(),
        axis: d.range(1, AXIS_BOUND as u64) as i64,
        sprung: d.chance(rates.sprung),
        deadline: d
            .chance(rates.deadline)
            .then(|| d.pick(&[5, 60, 800, 5000]))
            .filter(|_| eager.is_none()),
        cancel: d.chance(rates.cancel).then(|| d.range(0, 200) as u32),
        retry: d.chance(rates.retry) && eager.is_none(),
    }
}

fn fault(d: &mut Draw) -> Fault {
    let row = d.pick(&drawn());
    let (target, harm, lasts) = draw_harm(row, d);
    let after = d.below(u64::from(BUSY)) as u32;
    let when = match d.chance(80) {
        true => {
            let state = d.pick(&StepState::ALL);
            // Most models are installed at the very beginning.
            let early = state == StepState::Prepare && d.chance(60);
            Trigger::On {
                state,
                nth: d.weighted(&[(4, 1), (2, 2), (1, 5)]),
                after: if early { 0 } else { after },
                timer: None,
            }
        }
        false => Trigger::At(after),
    };
    Fault {
        target,
        harm,
        when,
        lasts,
    }
}
