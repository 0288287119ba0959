//! Random commands and events, compared with a model of a session.

use std::collections::BTreeMap;

use super::*;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        all.get(self.below(all.len())).cloned()
    }

    /// Removes a random element.
    fn out<T>(&mut self, all: &mut Vec<T>) -> Option<T> {
        let at = self.below(all.len());
        (at < all.len()).then(|| all.swap_remove(at))
    }
}

/// The value that a handle has to resolve to.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Open,
    Value,
    Failed,
}

#[derive(Default)]
struct Model {
    fates: BTreeMap<Id, Fate>,
    operands: BTreeMap<Id, Vec<Id>>,
    /// Handles that the client has not dropped.
    kept: Vec<Id>,
    running: Vec<Id>,
    reserved: Vec<Id>,
    /// Transfers that were announced and have not ended, with their handles.
    announced: Vec<(u64, Id)>,
    /// Transfers that came before their announcement, with whether they failed.
    early: Vec<(u64, bool)>,
    transfers: u64,
    /// Handles that were sent to [`ASKED`], in this order, with how often each was told.
    asked: Vec<(Id, u32)>,
    resolved: u64,
    last_ready: BTreeMap<Id, ()>,
}

impl Model {
    /// Decides the fate of a handle, and of every op that fails with it.
    fn decide(&mut self, id: Id, fate: Fate) {
        assert_eq!(self.fates[&id], Fate::Open);
        self.fates.insert(id, fate);
        if fate == Fate::Failed {
            // Operands come before the ops that read them.
            for (op, operands) in self.operands.range(id..) {
                let failed = operands.iter().any(|o| self.fates[o] == Fate::Failed);
                if failed && self.fates[op] == Fate::Open {
                    self.fates.insert(*op, Fate::Failed);
                }
            }
        }
    }

    fn launchable(&self, id: Id) -> bool {
        let operands = &self.operands[&id];
        operands.iter().all(|o| self.fates[o] == Fate::Value)
    }
}

struct Run {
    bench: Bench,
    model: Model,
    random: Random,
}

impl Run {
    fn made(&mut self, id: Id, fate: Fate) {
        self.model.fates.insert(id, Fate::Open);
        self.model.kept.push(id);
        if fate != Fate::Open {
            self.model.decide(id, fate);
        }
    }

    fn step(&mut self) {
        let w1 = peer("w1");
        let choice = self.random.below(16);
        let (b, m, r) = (&mut self.bench, &mut self.model, &mut self.random);
        match choice {
            0 => {
                let id = b.literal(1.);
                self.made(id, Fate::Value);
            }
            1 => {
                let id = b.reserve();
                m.reserved.push(id);
                self.made(id, Fate::Open);
            }
            2..=5 => {
                let count = 1 + r.below(2);
                let operands: Vec<Id> = (0..count).filter_map(|_| r.of(&m.kept)).collect();
                if operands.is_empty() {
                    return;
                }
                let id = b.run(&operands);
                let failed = operands.iter().any(|o| m.fates[o] == Fate::Failed);
                m.operands.insert(id, operands);
                self.made(id, if failed { Fate::Failed } else { Fate::Open });
            }
            6 => {
                // The transfer is announced now, or comes early.
                let n = m.transfers;
                m.transfers += 1;
                // Transfers are announced in the order of their numbers.
                if r.below(2) == 0 || !m.early.is_empty() {
                    let fails = r.below(3) == 0;
                    let result = if fails { Err(boom()) } else { Ok(tensor(3.)) };
                    b.core.end(&w1, n, result);
                    m.early.push((n, fails));
                } else {
                    self.take(n);
                }
            }
            7 => {
                if !m.early.is_empty() {
                    let (n, fails) = m.early.remove(0);
                    let id = self.take(n);
                    self.model.announced.retain(|(t, _)| *t != n);
                    let fate = if fails { Fate::Failed } else { Fate::Value };
                    self.model.decide(id, fate);
                }
            }
            8 => {
                if let Some((n, id)) = r.out(&mut m.announced) {
                    let fails = r.below(4) == 0;
                    match fails {
                        true if r.below(2) == 0 => b.core.fail(n, boom()),
                        true => b.core.end(&w1, n, Err(boom())),
                        false => b.core.end(&w1, n, Ok(tensor(3.))),
                    }
                    m.decide(id, if fails { Fate::Failed } else { Fate::Value });
                }
            }
            9 => {
                if let Some(id) = r.out(&mut m.reserved) {
                    if r.below(3) == 0 {
                        b.core.abandon(id);
                        m.kept.retain(|k| *k != id);
                        m.decide(id, Fate::Failed);
                    } else {
                        assert!(b.core.fill(id, tensor(2.)));
                        m.decide(id, Fate::Value);
                    }
                }
            }
            10 | 11 => {
                if let Some(id) = r.out(&mut m.kept) {
                    b.core.free(id);
                }
            }
            12 => {
                if let Some(id) = r.of(&m.kept) {
                    b.core.give(id, ASKED, m.asked.len() as u64);
                    m.asked.push((id, 0));
                }
            }
            13 => self.launch(),
            _ => self.finish(),
        }
        self.effects();
    }

    fn take(&mut self, n: u64) -> Id {
        let id = self.bench.core.next();
        self.bench.core.take(peer("w1"), n, DType::F32, None, 1);
        self.made(id, Fate::Open);
        self.model.announced.push((n, id));
        id
    }

    fn launch(&mut self) {
        let ready = self.bench.ready();
        assert!(ready.is_sorted(), "{ready:?}");
        for id in &ready {
            assert!(self.model.launchable(*id), "{id}");
            let again = self.model.last_ready.insert(*id, ());
            assert!(again.is_none(), "{id} is ready twice");
        }
        // No op that may run is left behind.
        for id in self.model.operands.keys() {
            let left = self.model.fates[id] == Fate::Open
                && self.model.launchable(*id)
                && !self.model.last_ready.contains_key(id);
            assert!(!left, "{id} is not handed out");
        }
        self.model.running.extend(ready);
    }

    fn finish(&mut self) {
        let (m, r) = (&mut self.model, &mut self.random);
        if let Some(id) = r.out(&mut m.running) {
            let fails = r.below(6) == 0;
            m.decide(id, if fails { Fate::Failed } else { Fate::Value });
            let result = if fails { Err(boom()) } else { Ok(tensor(5.)) };
            self.bench.finish(id, result);
        }
    }

    /// Checks that only resolved handles were told, with the right results.
    fn effects(&mut self) {
        for effect in self.bench.core.commands() {
            let (asked, is) = match effect {
                Effect::Send { transfer, .. } => (transfer, Fate::Value),
                Effect::Abort { transfer, .. } => (transfer, Fate::Failed),
                Effect::Step(..) => panic!("no step asked"),
            };
            let (id, told) = &mut self.model.asked[asked as usize];
            assert_eq!(self.model.fates[id], is, "{id}");
            *told += 1;
        }
        let (resolved, _) = self.bench.resolved();
        self.model.resolved += resolved;
        let decided = self.model.fates.values().filter(|f| **f != Fate::Open);
        assert_eq!(self.model.resolved, decided.count() as u64);
        let told = self.model.asked.iter();
        for (id, told) in told {
            let decided = self.model.fates[id] != Fate::Open;
            assert_eq!(*told, u32::from(decided), "{id}");
        }
    }

    /// Ends everything, and drops every handle.
    fn end(mut self) {
        self.bench
            .core
            .lost(&peer("w1"), &Error::lost("w1", "gone"));
        for (_, id) in std::mem::take(&mut self.model.announced) {
            self.model.decide(id, Fate::Failed);
        }
        for id in std::mem::take(&mut self.model.reserved) {
            assert!(self.bench.core.fill(id, tensor(2.)));
            self.model.decide(id, Fate::Value);
        }
        loop {
            self.launch();
            if self.model.running.is_empty() {
                break;
            }
            self.finish();
            self.effects();
        }
        self.effects();
        assert!(self.model.fates.values().all(|f| *f != Fate::Open));
        assert_eq!(self.bench.core.handles(), self.model.kept.len());
        for id in std::mem::take(&mut self.model.kept) {
            self.bench.core.free(id);
        }
        assert_eq!(self.bench.core.handles(), 0);
        assert!(self.bench.core.held().is_empty());
    }
}

#[test]
fn every_handle_resolves_once_and_nothing_is_left() {
    for seed in 0..300 {
        let mut run = Run {
            bench: Bench::new(),
            model: Model::default(),
            random: Random(seed),
        };
        let steps = 20 + run.random.below(400);
        (0..steps).for_each(|_| run.step());
        run.end();
    }
}
