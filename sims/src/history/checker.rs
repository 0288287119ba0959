//! Decides whether a history of operations on one register is linearizable.
//!
//! A history is linearizable where each operation can be given one moment between its begin and its end, so that a
//! register that takes the operations in the order of these moments answers as they were answered. The search is that of
//! Wing and Gong, with the memory of visited configurations that Lowe added and with his choice of when to look: an
//! operation is placed no sooner than an answer asks for it. What is remembered at any time is therefore the set of
//! configurations that explain all answers so far, and the first answer that leaves none is the violation.
//!
//! Invariants
//! 1. A configuration names only operations that have begun and not ended, so its size follows from how many operations
//!    overlap, and not from the length of the history.
//! 2. No configuration is visited twice for the same answer, and no more than `MOST` are visited.

use std::collections::BTreeSet;

/// Most configurations that are visited for one answer. Registers of members and leases need some hundred.
const MOST: usize = 1 << 15;

/// A register: what it may hold, and what each operation does to it.
pub trait Register {
    type State: Clone + Ord;
    type Op;

    /// What the register holds before the first operation.
    fn start(&self) -> Self::State;

    /// Returns what the register may hold after an operation; nothing where the operation, with the answer that it had,
    /// is impossible in this state.
    fn apply(&self, state: &Self::State, op: &Self::Op) -> Vec<Self::State>;

    /// Returns what this state may turn into by itself.
    fn drift(&self, state: &Self::State) -> Vec<Self::State>;
}

/// Until when an operation may have taken effect. Moments are counted by whoever records the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It was answered at this moment, so it has taken effect.
    Answered(u64),
    /// Its outcome is unknown, and from this moment on it has no effect any more.
    Expires(u64),
    /// Its outcome is unknown, and it may take effect at any later moment, or never.
    Never,
}

/// One operation on a register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation<O> {
    pub op: O,
    pub begun: u64,
    pub end: End,
    /// Whether it may take effect again and again, as what a process repeats while it lives. Such an operation is never
    /// answered.
    pub repeats: bool,
}

/// Why a history was not found linearizable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// No order of the operations explains the answer to this one, given all earlier answers.
    Unexplained(usize),
    /// Too many operations overlap with this one for a decision.
    Undecided(usize),
}

/// The operations that overlap with the present moment and have taken effect, in order of their numbers, and what the
/// register holds.
type Configuration<S> = (Vec<usize>, S);

/// Checks a history of operations on one register.
pub fn check<R: Register>(register: &R, operations: &[Operation<R::Op>]) -> Result<(), Flaw> {
    let begins = operations.iter().enumerate().map(|(i, o)| (o.begun, 0, i));
    let ends = operations
        .iter()
        .enumerate()
        .filter_map(|(i, o)| match o.end {
            End::Answered(at) | End::Expires(at) => Some((at, 1, i)),
            End::Never => None,
        });
    // Operations that meet in one moment overlap: begins come first.
    let mut moments: Vec<(u64, u8, usize)> = begins.chain(ends).collect();
    moments.sort_unstable();
    let mut search = Search {
        register,
        operations,
        open: BTreeSet::new(),
        explained: [(vec![], register.start())].into(),
    };
    for (_, kind, i) in moments {
        match kind {
            0 => drop(search.open.insert(i)),
            _ => search.end(i)?,
        }
    }
    Ok(())
}

struct Search<'a, R: Register> {
    register: &'a R,
    operations: &'a [Operation<R::Op>],
    /// Operations that have begun and not ended.
    open: BTreeSet<usize>,
    /// The configurations that explain all answers so far.
    explained: BTreeSet<Configuration<R::State>>,
}

impl<R: Register> Search<'_, R> {
    /// Keeps the configurations in which this operation has taken effect, where it was answered, or may have.
    fn end(&mut self, ended: usize) -> Result<(), Flaw> {
        let optional = !matches!(self.operations[ended].end, End::Answered(_));
        let repeats = self.operations[ended].repeats;
        let mut explained = BTreeSet::new();
        if optional {
            explained.extend(
                self.explained
                    .iter()
                    .filter(|c| !c.0.contains(&ended))
                    .cloned(),
            );
        }
        let mut visited = BTreeSet::new();
        let mut next: Vec<_> = std::mem::take(&mut self.explained).into_iter().collect();
        while let Some(configuration) = next.pop() {
            if !visited.insert(configuration.clone()) {
                continue;
            }
            if visited.len() > MOST {
                return Err(Flaw::Undecided(ended));
            }
            let (placed, state) = &configuration;
            if placed.contains(&ended) {
                let others = placed.iter().copied().filter(|i| *i != ended).collect();
                explained.insert((others, state.clone()));
                continue;
            }
            if repeats {
                explained.insert(configuration.clone());
            }
            for drifted in self.register.drift(state) {
                next.push((placed.clone(), drifted));
            }
            for i in self.open.iter().filter(|i| !placed.contains(i)) {
                let operation = &self.operations[*i];
                let optional = !matches!(operation.end, End::Answered(_));
                for after in self.register.apply(state, &operation.op) {
                    // What changes nothing, and need not have taken effect, explains nothing.
                    if optional && after == *state {
                        continue;
                    }
                    let mut placed = placed.clone();
                    if !operation.repeats {
                        let at = placed.partition_point(|other| other < i);
                        placed.insert(at, *i);
                    }
                    next.push((placed, after));
                }
            }
        }
        self.open.remove(&ended);
        self.explained = explained;
        match self.explained.is_empty() {
            true => Err(Flaw::Unexplained(ended)),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A register of one number that drops to 0 by itself where `leaks` says so.
    struct Number {
        leaks: bool,
    }

    #[derive(Debug, Clone, Copy)]
    enum Op {
        Write(u8),
        Read(u8),
    }

    impl Register for Number {
        type State = u8;
        type Op = Op;

        fn start(&self) -> u8 {
            0
        }

        fn apply(&self, state: &u8, op: &Op) -> Vec<u8> {
            match op {
                Op::Write(value) => vec![*value],
                Op::Read(value) if value == state => vec![*state],
                Op::Read(_) => vec![],
            }
        }

        fn drift(&self, _: &u8) -> Vec<u8> {
            if self.leaks { vec![0] } else { vec![] }
        }
    }

    fn operation(op: Op, begun: u64, end: End) -> Operation<Op> {
        Operation {
            op,
            begun,
            end,
            repeats: false,
        }
    }

    fn write(value: u8, begun: u64, ended: u64) -> Operation<Op> {
        operation(Op::Write(value), begun, End::Answered(ended))
    }

    fn read(value: u8, begun: u64, ended: u64) -> Operation<Op> {
        operation(Op::Read(value), begun, End::Answered(ended))
    }

    /// Checks a history of a number that does not leak. `flaw` is the index of the answer that nothing explains.
    #[track_caller]
    fn check_history(operations: &[Operation<Op>], flaw: Option<usize>) {
        let expected = flaw.map_or(Ok(()), |i| Err(Flaw::Unexplained(i)));
        assert_eq!(check(&Number { leaks: false }, operations), expected);
    }

    #[test]
    fn operations_one_after_the_other_are_in_their_order() {
        check_history(&[], None);
        check_history(&[write(1, 0, 1), read(1, 2, 3)], None);
        check_history(&[write(1, 0, 1), read(0, 2, 3)], Some(1));
        check_history(&[write(1, 0, 1), write(2, 2, 3), read(1, 4, 5)], Some(2));
    }

    #[test]
    fn operations_that_overlap_are_in_any_order() {
        check_history(&[write(1, 0, 9), read(0, 1, 2), read(1, 3, 4)], None);
        check_history(&[write(1, 0, 2), read(0, 2, 3)], None);
        check_history(&[write(1, 0, 9), write(2, 0, 9), read(1, 10, 11)], None);
        check_history(&[write(1, 0, 9), write(2, 0, 9), read(3, 10, 11)], Some(2));
    }

    #[test]
    fn reads_never_go_backwards() {
        check_history(&[write(1, 0, 9), read(1, 1, 2), read(0, 3, 4)], Some(2));
        let two = [
            write(1, 0, 9),
            write(2, 0, 9),
            read(1, 1, 2),
            read(2, 3, 4),
            read(1, 5, 6),
        ];
        check_history(&two[..4], None);
        check_history(&two, Some(4));
    }

    #[test]
    fn what_was_never_answered_takes_effect_late_or_never() {
        let unknown = operation(Op::Write(1), 0, End::Never);
        let late = [unknown.clone(), read(0, 1, 2), read(1, 90, 91)];
        check_history(&late, None);
        check_history(&[unknown.clone(), read(0, 90, 91)], None);
        check_history(&[unknown, read(1, 1, 2), read(0, 3, 4)], Some(2));
    }

    #[test]
    fn what_has_expired_has_no_effect_any_more() {
        let expires = operation(Op::Write(1), 0, End::Expires(5));
        check_history(&[expires.clone(), read(0, 1, 2), read(0, 6, 7)], None);
        check_history(&[expires.clone(), read(0, 1, 2), read(1, 6, 7)], None);
        let late = [expires, read(0, 6, 7), read(1, 8, 9)];
        check_history(&late, Some(2));
    }

    #[test]
    fn what_repeats_takes_effect_again_and_again() {
        let twice = |end| {
            let again = Operation {
                repeats: true,
                ..operation(Op::Write(1), 0, end)
            };
            let reads = [read(1, 1, 2), read(0, 5, 6), read(1, 7, 8)];
            let writes = write(0, 3, 4);
            [vec![again, writes], reads.to_vec()].concat()
        };
        check_history(&twice(End::Never), None);
        check_history(&twice(End::Expires(9)), None);
        check_history(&twice(End::Expires(4)), Some(4));
        // It may have been repeated up to the moment at which it expires.
        let last = [&twice(End::Expires(7))[..], &[read(0, 9, 10)]].concat();
        check_history(&last, Some(5));
    }

    #[test]
    fn a_state_may_change_by_itself_where_the_register_says_so() {
        let lost = [write(1, 0, 1), read(1, 2, 3), read(0, 4, 5)];
        check_history(&lost, Some(2));
        assert_eq!(check(&Number { leaks: true }, &lost), Ok(()));
        let back = [&lost[..], &[read(1, 6, 7)]].concat();
        let flaw = Err(Flaw::Unexplained(3));
        assert_eq!(check(&Number { leaks: true }, &back), flaw);
    }

    #[test]
    fn many_overlapping_operations_are_decided_or_given_up() {
        let writes = |n: u8| (0..n).map(|i| write(i, 0, 1_000));
        let reads = (0..200).map(|i| read(3, 1 + i, 1 + i));
        let history: Vec<_> = writes(6).chain(reads).collect();
        check_history(&history, None);
        let history: Vec<_> = writes(40).chain([read(99, 1, 2)]).collect();
        let flaw = Err(Flaw::Undecided(40));
        assert_eq!(check(&Number { leaks: false }, &history), flaw);
    }

    /// Compares the search with one that tries every order, on small random histories.
    #[test]
    fn the_search_agrees_with_one_that_tries_every_order() {
        let mut draw = crate::draw::Draw::new(7);
        let mut flawed = 0;
        for _ in 0..2_000 {
            let history: Vec<_> = (0..6)
                .map(|_| {
                    let begun = draw.below(8);
                    let value = draw.below(3) as u8;
                    let op = [Op::Write(value), Op::Read(value)][draw.below(2) as usize];
                    operation(op, begun, End::Answered(begun + draw.below(6)))
                })
                .collect();
            let found = check(&Number { leaks: false }, &history).is_ok();
            assert_eq!(found, tries_every_order(&history, &[], 0), "{history:?}");
            flawed += u32::from(!found);
        }
        assert!((200..1_800).contains(&flawed), "{flawed} of 2,000");
    }

    fn tries_every_order(history: &[Operation<Op>], placed: &[usize], state: u8) -> bool {
        let ended = |o: &Operation<Op>| match o.end {
            End::Answered(at) => at,
            _ => u64::MAX,
        };
        let left: Vec<usize> = (0..history.len()).filter(|i| !placed.contains(i)).collect();
        let may_be_next = |i: usize| left.iter().all(|j| ended(&history[*j]) >= history[i].begun);
        left.is_empty()
            || left.iter().filter(|i| may_be_next(**i)).any(|i| {
                let after = Number { leaks: false }.apply(&state, &history[*i].op);
                let placed = [placed, &[*i]].concat();
                after
                    .into_iter()
                    .any(|s| tries_every_order(history, &placed, s))
            })
    }
}
