//! Draws a scenario of a swarm: each seed has features and rates of its own, up to twelve workers and six clients, more
//! faults, and faults that last up to two minutes.

use super::Scenario;
use super::draw::{Rates, client, draw_devices, draw_workers, equip};
use crate::draw::Draw;
use crate::faults::{
    BESIDE, DISKS, Fault, Harm, OPERATIONS, Row, StepState, Target, Trigger, draw_harm, drawn,
};

/// Milliseconds: half of the faults last less, and none lasts more.
const LASTS: (u32, u32) = (1000, 120_000);

/// Milliseconds within which a process that crashes is started again at once.
const AT_ONCE: u64 = 50;

/// How many seeds in a hundred have a loop over tables, the MiB of each of their workers, and the number of the tables.
const TABLES: (u64, u32, u8) = (15, 48, 12);

/// How many workers a seed with tables has at least from its beginning: two hold the tables of one model, and the third the
/// models of other clients.
const FEWEST_FOR_TABLES: usize = 3;

/// Milliseconds after which a load is given up: half are given up earlier than the first.
const GIVEN_UP: (u32, u32) = (20, 1000);

/// The features of a seed: the faults that it has, and how often.
struct Mix {
    rows: Vec<(u64, Row)>,
    faults: u64,
    /// Percentage of faults that wait for a state of a step.
    aimed: u64,
    /// Percentage of crashes after which the process is started again at once.
    restarts: u64,
    rates: Rates,
}

impl Mix {
    fn draw(d: &mut Draw) -> Mix {
        let mut all = drawn();
        all.extend(BESIDE);
        all.extend(OPERATIONS);
        let some = d.pick(&[15, 35, 70]);
        let mut rows = vec![];
        for row in all {
            if d.chance(some) {
                rows.push((d.pick(&[1, 3, 9]), row));
            }
        }
        let mut disks = d.fork("disks");
        for row in DISKS {
            if disks.chance(some) {
                rows.push((disks.pick(&[1, 3, 9]), row));
            }
        }
        if rows.is_empty() {
            rows.push((1, Row::CrashWorker));
        }
        let mut often = || d.pick(&[0, 5, 20, 50]);
        let (eager, sprung) = (often(), often());
        let (deadline, cancel) = (often(), often());
        Mix {
            rows,
            faults: d.pick(&[0, 2, 4, 8]),
            aimed: d.pick(&[20, 50, 80]),
            restarts: d.pick(&[0, 30]),
            rates: Rates {
                busy: d.pick(&[4000, 10_000, 30_000]),
                calls: d.pick(&[6, 12, 24]),
                eager,
                sprung,
                deadline,
                cancel,
                retry: d.pick(&[50, 90, 100]),
            },
        }
    }
}

pub(super) fn scenario(seed: u64) -> Scenario {
    let root = Draw::new(seed).fork("swarm");
    let mix = Mix::draw(&mut root.fork("mix"));
    let mut d = root.fork("shape");
    let workers = d.range(2, 12);
    let clients = d.range(1, 5);
    let busy = mix.rates.busy;
    let mut s = Scenario {
        seed,
        workers: draw_workers(&mut root.fork("workers"), workers as usize, busy),
        clients: (0..clients)
            .map(|i| client(&mut root.fork(&format!("client {i}")), workers, &mix.rates))
            .collect(),
        faults: vec![],
    };
    // Each client has a connection to each worker, which takes memory there.
    for worker in &mut s.workers {
        worker.memory_mib *= 2;
    }
    draw_devices(&mut root.fork("devices"), &mut s.workers);
    draw_tables(&mut root.fork("tables"), &mut s);
    draw_given_up(&mut root.fork("given up"), &mut s);
    for i in 0..mix.faults {
        let mut d = root.fork(&format!("fault {i}"));
        let mut fault = fault(&mut d, &mix, workers);
        // Of the faults that need a client with a token of its own there is one.
        let needs_guest = |f: &Fault| {
            let of_client = matches!(
                (f.target, f.harm),
                (Target::Client(_), Harm::Revoke | Harm::Expire)
            );
            of_client || matches!(f.harm, Harm::Hoard { .. } | Harm::Flood { .. })
        };
        if needs_guest(&fault) && s.faults.iter().any(needs_guest) {
            continue;
        }
        // Two deadly nodes could not be told apart.
        let deadly = |f: &Fault| f.harm == Harm::Deadly;
        if deadly(&fault) && s.faults.iter().any(deadly) {
            continue;
        }
        equip(&root, &mut d, &mut s, &mut fault);
        s.faults.push(fault);
    }
    s
}

/// Gives the first client's first model, in some seeds, a loop over tables that fit no worker, so that workers drive the
/// loop's body over several. The tables are made by ops, and no call issues these one by one. Only seeds of which enough
/// workers are there from the beginning have one, since the model waits for none.
fn draw_tables(d: &mut Draw, s: &mut Scenario) {
    let there = s.workers.iter().filter(|w| w.joins == 0).count();
    if !d.chance(TABLES.0) || there < FEWEST_FOR_TABLES {
        return;
    }
    for worker in &mut s.workers {
        (worker.memory_mib, worker.kernel_ms) = (TABLES.1, 2);
    }
    let client = &mut s.clients[0];
    let model = &mut client.models[0];
    (model.workers, model.pin, model.spec.tables) = (None, None, TABLES.2);
    let calls = client.calls.iter_mut();
    calls.filter(|c| c.model == 0).for_each(|c| c.eager = None);
}

/// Has some clients give up their first load of a model.
fn draw_given_up(d: &mut Draw, s: &mut Scenario) {
    for model in s.clients.iter_mut().flat_map(|c| &mut c.models) {
        model.gives_up = d.chance(10).then(|| d.spread(GIVEN_UP.0, GIVEN_UP.1));
    }
}

fn fault(d: &mut Draw, mix: &Mix, workers: u64) -> Fault {
    let row = d.weighted(&mix.rows);
    let (target, harm, lasts) = draw_harm(row, d);
    let target = match target {
        Target::Worker(_) => Target::Worker(d.below(workers) as u16),
        target => target,
    };
    let spread = d.spread(LASTS.0, LASTS.1);
    let lasts = match harm {
        Harm::Days(_) => lasts,
        Harm::Crash | Harm::PowerCut if d.chance(mix.restarts) => d.range(1, AT_ONCE) as u32,
        _ => spread,
    };
    let after = d.below(mix.rates.busy.into()) as u32;
    let when = match d.chance(mix.aimed) {
        true => Trigger::On {
            state: d.pick(&StepState::ALL),
            nth: d.weighted(&[(4, 1), (2, 2), (1, 5)]),
            after,
            timer: None,
        },
        false => Trigger::At(after),
    };
    Fault {
        target,
        harm,
        when,
        lasts,
    }
}
