//! Tests of the core by itself: commands and events go in; ready ops, effects and reports come out.

mod device;
mod links;
mod random;
mod transfers;

use std::sync::Arc;

use convoke_common::actor::Core as _;
use convoke_common::error::{Code, Error};
use convoke_common::identity::Role;
use convoke_common::ids::Incarnation;
use convoke_graph::graph::Attrs;
use convoke_graph::{DType, Tensor};
use convoke_rendezvous::Peer;
use convoke_rendezvous::eager::wire::{Definition, Operand, Report};
use tokio::sync::mpsc;

use super::core::{Core, Effect, HandleOutcome, Id};
use super::prepared::PreparedOp;
use super::value::{DeviceValue, Value};
use crate::cpu::Outputs;

/// The peer that handles are sent to, so that the test learns their values.
const ASKED: u32 = 9;

fn prepared(op: &str, operands: &[DType], outputs: u8) -> Arc<PreparedOp> {
    let definition = Definition {
        index: 0,
        op: op.into(),
        attrs: Attrs::default(),
        operands: operands.iter().map(|d| Some(*d)).collect(),
        outputs,
        report: false,
        origin: 3,
    };
    Arc::new(PreparedOp::new(definition, None).unwrap())
}

fn peer(name: &str) -> Peer {
    Peer {
        role: Role::Worker,
        name: name.into(),
        incarnation: Incarnation(1),
    }
}

fn tensor(value: f32) -> Tensor {
    Tensor::scalar(value)
}

fn boom() -> Error {
    Error::new(Code::KernelFailed, "boom")
}

/// The tensor of a value in the host's memory.
fn on_host(value: Value) -> Tensor {
    match value {
        Value::Host(tensor) => tensor,
        Value::Device(value) => value.host().unwrap(),
    }
}

/// A core, and prepared ops with one and two operands.
struct Bench {
    core: Core,
    neg: Arc<PreparedOp>,
    add: Arc<PreparedOp>,
}

impl Bench {
    fn new() -> Bench {
        Bench {
            core: Core::default(),
            neg: prepared("Neg", &[DType::F32], 1),
            add: prepared("Add", &[DType::F32; 2], 1),
        }
    }

    /// Issues an op on one handle, or on two.
    fn run(&mut self, operands: &[Id]) -> Id {
        let op = [&self.neg, &self.add][operands.len() - 1].clone();
        let id = self.core.next();
        let operands = operands.iter().map(|id| Operand::Handle(*id)).collect();
        self.core.run(op, operands);
        id
    }

    fn literal(&mut self, value: f32) -> Id {
        let id = self.core.next();
        self.core.literal(tensor(value), 1);
        id
    }

    fn reserve(&mut self) -> Id {
        let id = self.core.next();
        self.core.reserve(2);
        id
    }

    fn finish(&mut self, id: Id, result: Result<Tensor, Error>) {
        let result = result.map(|t| Outputs::from_iter([t]));
        self.core.finished(id, &self.neg.clone(), result);
    }

    /// Takes the ready ops, in the order they are handed out.
    fn ready(&mut self) -> Vec<Id> {
        std::iter::from_fn(|| self.core.next_ready())
            .map(|r| r.first)
            .collect()
    }

    /// The value that a handle has resolved to; `None` while it is pending.
    fn asked(&mut self, id: Id) -> Option<HandleOutcome> {
        self.core.give(id, ASKED, id);
        self.told(id)
    }

    /// The value of a handle that was sent to [`ASKED`] before, if it has resolved by now.
    fn told(&mut self, id: Id) -> Option<HandleOutcome> {
        let effects = self.core.commands().into_iter();
        let told = effects.filter_map(|e| match e {
            Effect::Send {
                transfer, value, ..
            } => Some((transfer, Ok(on_host(value)))),
            Effect::Abort {
                transfer, error, ..
            } => Some((transfer, Err(error.error.clone()))),
            Effect::Step(then, settled) => {
                then(settled.map(on_host));
                None
            }
        });
        told.filter(|(n, _)| *n == id).map(|(_, s)| s).last()
    }

    #[track_caller]
    fn check_value(&mut self, id: Id, want: f32) {
        let told = self.asked(id).unwrap_or_else(|| panic!("{id} is pending"));
        assert_eq!(told.unwrap().as_slice::<f32>().unwrap(), [want], "{id}");
    }

    #[track_caller]
    fn check_code(&mut self, id: Id, want: Code) {
        let told = self.asked(id).unwrap_or_else(|| panic!("{id} is pending"));
        assert_eq!(told.unwrap_err().code, want, "{id}");
    }

    /// The number of commands that made handles and have resolved since the last call, and the ops that failed by
    /// themselves.
    fn resolved(&mut self) -> (u64, Vec<Id>) {
        let (mut count, mut failed) = (0, vec![]);
        for report in self.core.reports() {
            match report {
                Report::Resolved(n) => count += n,
                Report::Failed { handle, .. } => failed.push(handle),
                _ => {}
            }
        }
        (count, failed)
    }
}

#[test]
fn ready_ops_leave_in_issue_order_and_waiting_ones_hold_up_nothing() {
    let mut b = Bench::new();
    let (x, late, later) = (b.literal(1.), b.reserve(), b.reserve());
    let first = b.run(&[x]);
    let waits = b.run(&[late, x]);
    let waits_longer = b.run(&[late, later]);
    let twice = b.run(&[later, later]);
    let last = b.run(&[x, x]);
    assert_eq!(b.ready(), [first, last]);
    assert!(b.core.fill(later, tensor(2.)));
    let issued_since = b.run(&[x]);
    assert_eq!(b.core.peek_ready().map(|r| r.first), Some(twice));
    assert!(b.core.fill(late, tensor(3.)));
    // The op that became ready last was issued first.
    assert_eq!(b.ready(), [waits, waits_longer, twice, issued_since]);
}

#[test]
fn an_op_has_its_operands_in_their_order() {
    let mut b = Bench::new();
    let (late, x) = (b.reserve(), b.literal(1.));
    b.core.run(
        b.add.clone(),
        [Operand::Handle(late), Operand::Handle(x)]
            .into_iter()
            .collect(),
    );
    b.core.fill(late, tensor(7.));
    let run = b.core.next_ready().unwrap();
    let values = run.inputs.iter().flatten().map(|t| t.as_slice::<f32>());
    assert_eq!(values.map(|v| v.unwrap()[0]).collect::<Vec<_>>(), [7., 1.]);
    assert_eq!(run.prepared.operands(), 2);
}

#[test]
fn poison_passes_through_a_long_chain_as_one_error() {
    const LONG: u64 = 100_000;
    let mut b = Bench::new();
    let (x, other) = (b.literal(1.), b.literal(5.));
    let mut chain = vec![b.run(&[x])];
    assert_eq!(b.ready(), chain);
    for _ in 0..LONG {
        let last = *chain.last().unwrap();
        chain.push(b.run(&[last]));
    }
    let independent = b.run(&[other]);
    b.finish(chain[0], Err(boom()));
    let root = b.asked(chain[0]).unwrap().unwrap_err();
    for id in chain.iter().step_by(997).chain(chain.last()) {
        let error = b.asked(*id).unwrap().unwrap_err();
        assert!(Arc::ptr_eq(&error, &root), "{id}");
    }
    assert_eq!(b.ready(), [independent]);
    b.finish(independent, Ok(tensor(-5.)));
    // An op that is issued on a failed handle fails at once, with the same error.
    let after = b.run(&[x, *chain.last().unwrap()]);
    assert!(Arc::ptr_eq(&b.asked(after).unwrap().unwrap_err(), &root));
    b.check_value(independent, -5.);
    assert_eq!(b.resolved(), (LONG + 5, vec![chain[0]]));
    for id in 0..b.core.next() {
        b.core.free(id);
    }
    assert_eq!(b.core.handles(), 0);
}

#[test]
fn an_op_whose_operands_fail_one_after_the_other_fails_once() {
    let mut b = Bench::new();
    let (p, q) = (b.reserve(), b.reserve());
    let both = b.run(&[p, q]);
    // Another op has the entry by the time the second operand fails.
    b.core.abandon(p);
    let x = b.reserve();
    let another = b.run(&[x]);
    b.core.abandon(q);
    b.core.fill(x, tensor(1.));
    assert_eq!(b.ready(), [another]);
    b.check_code(both, Code::Cancelled);
    assert_eq!(b.resolved().0, 4);
}

#[test]
fn several_outputs_resolve_together_and_count_as_one() {
    let mut b = Bench::new();
    let top = prepared("TopK", &[DType::F32, DType::I64], 2);
    let x = b.literal(1.);
    let run = |b: &mut Bench| {
        let first = b.core.next();
        let k = Tensor::from_slice(&[1], &[1i64]).unwrap();
        let operands = [Operand::Handle(x), Operand::Value(k)];
        b.core.run(top.clone(), operands.into_iter().collect());
        first
    };
    let (good, bad) = (run(&mut b), run(&mut b));
    assert_eq!((bad - good, b.core.next() - bad), (2, 2));
    assert_eq!(b.ready(), [good, bad]);
    let dependent = b.run(&[good + 1, bad + 1]);
    let made = Outputs::from_iter([tensor(1.), tensor(2.)]);
    b.core.finished(good, &top, Ok(made));
    b.core.finished(bad, &top, Err(boom()));
    b.check_value(good + 1, 2.);
    for id in [bad, bad + 1, dependent] {
        b.check_code(id, Code::KernelFailed);
    }
    assert_eq!(b.resolved(), (4, vec![bad]));
}

#[test]
fn what_cannot_run_is_a_failed_handle() {
    let mut b = Bench::new();
    let refused = b.core.next();
    let error = Error::new(Code::UnsupportedOp, "no kernel");
    let error = b.core.failure(error);
    b.core.refuse(1, 2, error);
    assert_eq!(b.core.next(), refused + 2);
    let after = b.run(&[refused + 1]);
    for id in [refused, refused + 1, after] {
        b.check_code(id, Code::UnsupportedOp);
    }
    assert_eq!(b.resolved(), (2, vec![refused]));
    // An op on a handle that does not exist fails at once.
    let stranger = b.run(&[1000]);
    b.check_code(stranger, Code::NotFound);
    b.check_code(1000, Code::NotFound);
}

#[test]
fn failures_that_are_told_besides_are_bounded() {
    let mut b = Bench::new();
    let x = b.literal(1.);
    let told = |b: &mut Bench| {
        let runs: Vec<Id> = (0..1000).map(|_| b.run(&[x])).collect();
        b.ready();
        runs.iter().for_each(|id| b.finish(*id, Err(boom())));
        b.check_code(runs[999], Code::KernelFailed);
        b.resolved().1.len()
    };
    let first = told(&mut b);
    assert!((1..1000).contains(&first));
    assert_eq!(told(&mut b), first);
}

#[test]
fn an_error_counts_once_however_many_handles_have_it() {
    let mut b = Bench::new();
    let base = b.core.footprint();
    let long = Error::new(Code::UnsupportedOp, "x".repeat(100_000));
    let error = b.core.failure(long);
    let first = b.core.next();
    for _ in 0..100 {
        b.core.refuse(1, 10, error.clone());
    }
    drop(error);
    let reported = b.core.footprint();
    drop(b.core.reports());
    let kept = b.core.footprint();
    assert!(reported > kept + 10_000, "reports have copies");
    let handles = kept - base - 1000 * 256;
    assert!((1000..10_000).contains(&handles), "{handles}");
    (first..first + 1000).for_each(|id| b.core.free(id));
    assert_eq!(b.core.footprint(), base);
}

#[test]
fn a_tensor_counts_until_its_link_has_let_go_of_it() {
    let mut b = Bench::new();
    let x = b.literal(1.);
    let late = b.run(&[x]);
    b.ready();
    let base = b.core.footprint();
    for transfer in 0..1000 {
        b.core.give(x, 1, transfer);
        b.core.give(late, 1, 1000 + transfer);
    }
    assert!(b.core.footprint() >= base + 2000 * 64);
    b.finish(late, Ok(tensor(2.)));
    drop(b.core.reports());
    let sending = b.core.commands();
    assert!(b.core.footprint() >= base + 2000 * 256);
    drop(sending);
    assert_eq!(b.core.footprint(), base);
}

#[test]
fn a_dropped_handle_is_there_while_it_is_needed() {
    let mut b = Bench::new();
    let x = b.literal(1.);
    let (y, late) = (b.run(&[x]), b.reserve());
    let z = b.run(&[y, late]);
    b.core.give(y, ASKED, y);
    // x has its tensor, the op of y is ready, and the reserved handle waits to be filled.
    [x, y, late].into_iter().for_each(|id| b.core.free(id));
    assert_eq!(b.core.handles(), 3);
    assert_eq!(b.ready(), [y]);
    b.finish(y, Ok(tensor(-1.)));
    assert_eq!(b.core.handles(), 2);
    assert_eq!(b.told(y).unwrap().unwrap().as_slice(), Ok(&[-1f32][..]));
    assert!(b.core.fill(late, tensor(2.)));
    assert_eq!((b.core.handles(), b.ready()), (1, vec![z]));
    b.finish(z, Ok(tensor(1.)));
    b.core.free(z);
    b.core.free(z);
    assert_eq!(b.core.handles(), 0);
    assert_eq!(b.resolved().0, 4);
    b.check_code(z, Code::NotFound);
}

#[test]
fn what_came_for_a_session_before_this_one_is_let_go() {
    let mut b = Bench::new();
    let mut held = b.core.foreseen(&peer("w1"), 0).unwrap();
    assert!(held.try_recv().is_err());
    b.core.take(peer("w2"), 3, DType::F32, None, 1);
    assert_eq!(
        held.try_recv(),
        Err(tokio::sync::oneshot::error::TryRecvError::Closed)
    );
    assert!(b.core.foreseen(&peer("w1"), 0).is_none());
}

#[test]
fn two_steps_may_want_a_handle_that_is_not_made_yet() {
    let mut b = Bench::new();
    let ahead = b.core.next();
    let (tell, told) = std::sync::mpsc::channel();
    for _ in 0..2 {
        let tell = tell.clone();
        let then = Box::new(move |settled: HandleOutcome| tell.send(settled.is_ok()).unwrap());
        b.core.lend(ahead, false, then);
    }
    assert_eq!(b.literal(1.), ahead);
    for effect in b.core.commands() {
        let Effect::Step(then, settled) = effect else {
            panic!("not a step's");
        };
        then(settled.map(on_host));
    }
    drop(tell);
    assert_eq!(told.iter().collect::<Vec<_>>(), [true, true]);
}

#[test]
fn numbers_of_a_lost_session_are_nobodys() {
    let mut b = Bench::new();
    let (tell, told) = std::sync::mpsc::channel();
    for id in [3, 5] {
        let tell = tell.clone();
        let then =
            Box::new(move |settled: HandleOutcome| tell.send((id, settled.is_ok())).unwrap());
        b.core.lend(id, false, then);
    }
    b.core.begin(5).unwrap();
    assert!(b.core.begin(9).is_err());
    assert_eq!(b.literal(1.), 5);
    for effect in b.core.commands() {
        let Effect::Step(then, settled) = effect else {
            panic!("not a step's");
        };
        then(settled.map(on_host));
    }
    drop(tell);
    assert_eq!(told.iter().collect::<Vec<_>>(), [(3, false), (5, true)]);
    b.check_code(3, Code::NotFound);
}

#[test]
fn a_session_has_so_many_handles() {
    let mut core = Core::default();
    let many = || {
        core.refuse(1, 255, core.failure(boom()));
        drop(core.reports());
        core.check_bounds()
    };
    let e = std::iter::repeat_with(many)
        .take(5000)
        .find_map(Result::err);
    assert_eq!(e.unwrap().code, Code::ProtocolViolation);
}

#[test]
fn values_that_decide_sizes_decide_how_long_it_takes() {
    let expand = prepared("Expand", &[DType::F32, DType::I64], 1);
    let to = |n: i64| {
        let shape = Tensor::from_slice(&[1], &[n]).unwrap();
        expand.seen(&[Some(&tensor(1.)), Some(&shape)]).predicted
    };
    assert!(to(8) < to(1 << 30));
    assert!(to(1 << 30) > to(8));
}

#[test]
fn what_is_held_is_known_by_origin() {
    let mut b = Bench::new();
    let x = b.literal(1.);
    b.run(&[x]);
    b.reserve();
    let held: Vec<_> = b.core.held().into_iter().collect();
    assert_eq!(held, [(1, (1, 4)), (2, (1, 0)), (3, (1, 0))]);
}

#[test]
fn a_reserved_handle_is_filled_or_abandoned_once() {
    let mut b = Bench::new();
    let filled = b.reserve();
    let abandoned = b.reserve();
    let after = b.run(&[abandoned]);
    assert!(b.core.fill(filled, tensor(1.)));
    assert!(!b.core.fill(filled, tensor(2.)));
    b.check_value(filled, 1.);
    b.core.abandon(abandoned);
    b.check_code(after, Code::Cancelled);
    // An abandoned handle is dropped, even where it was filled before.
    assert!(!b.core.fill(abandoned, tensor(2.)));
    b.core.abandon(filled);
    b.check_code(filled, Code::NotFound);
    b.core.abandon(filled);
    assert_eq!((b.core.handles(), b.resolved().0), (1, 3));
    // A step's tensor may come before the session's command makes the handle: it waits for the handle.
    let ahead = b.core.next();
    assert!(b.core.fill(ahead, tensor(3.)));
    assert!(!b.core.fill(ahead, tensor(3.)));
    assert_eq!(b.reserve(), ahead);
    b.check_value(ahead, 3.);
}

/// Lends a handle to a step; the channel gives what the step receives.
fn lend(b: &mut Bench, id: Id, donate: bool) -> mpsc::UnboundedReceiver<HandleOutcome> {
    let (tell, told) = mpsc::unbounded_channel();
    b.core
        .lend(id, donate, Box::new(move |s| drop(tell.send(s))));
    told
}

#[test]
fn a_step_is_told_once_whether_it_asks_before_or_after() {
    let check = |donate: bool, before: bool, fails: bool| {
        let mut b = Bench::new();
        let x = b.literal(1.);
        let id = b.run(&[x]);
        b.core.free(x);
        b.ready();
        let waiting = before.then(|| lend(&mut b, id, donate));
        b.finish(id, if fails { Err(boom()) } else { Ok(tensor(4.)) });
        let mut told = waiting.unwrap_or_else(|| lend(&mut b, id, donate));
        b.told(id);
        let got = told.try_recv().unwrap();
        assert_eq!(got.is_err(), fails, "{donate} {before}");
        assert!(told.try_recv().is_err());
        assert_eq!(b.core.handles(), usize::from(!donate), "{donate} {before}");
        if let Ok(mut t) = got {
            // A donated tensor belongs to the step alone.
            assert_eq!(t.bytes_mut().is_some(), donate, "{before}");
        }
    };
    for bits in 0..8 {
        check(bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
    }
    let mut b = Bench::new();
    // A handle can be lent before it is made, too.
    let ahead = b.core.next();
    let mut told = lend(&mut b, ahead, false);
    assert!(told.try_recv().is_err());
    assert_eq!(b.literal(1.), ahead);
    b.told(ahead);
    assert!(told.try_recv().unwrap().is_ok());
}

#[test]
fn a_donated_tensor_reaches_those_that_asked_before() {
    let mut b = Bench::new();
    let id = b.reserve();
    let reader = b.run(&[id]);
    let mut lent = lend(&mut b, id, true);
    assert!(b.core.fill(id, tensor(4.)));
    b.told(id);
    let mut given = lent.try_recv().unwrap().unwrap();
    assert!(given.bytes_mut().is_none(), "an earlier op still reads it");
    assert_eq!(b.ready(), [reader]);
    assert!(given.bytes_mut().is_some());
    b.check_code(id, Code::NotFound);
}
