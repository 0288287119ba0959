//! Memory that several tokens use at once, such as the weights of a model that several clients have loaded.
//!
//! ```text
//! SharedReservation ── counted once by the ledger, for no token
//!   ├─ Charge of token a ── counted in full for a, however many charges a has
//!   └─ Charge of token b ── counted in full for b
//! ```
//!
//! Invariants
//! 1. A token with any charge is charged for all of the bytes, once.
//! 2. While there is no charge, the bytes count for a purpose of unused memory, such as [`Purpose::UnusedWeights`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convoke_graph::block::MemoryAccount;
use convoke_graph::tensor::Tensor;

use super::{Ledger, Purpose, Reservation};
use crate::error::Result;
use crate::identity::TokenId;
use crate::mutant;

/// A tensor with the shared reservation of its memory.
#[derive(Debug, Clone)]
pub struct SharedTensor {
    pub tensor: Tensor,
    pub reservation: SharedReservation,
}

/// Bytes that are reserved once for all who use them; clones are the same reservation.
#[derive(Debug, Clone)]
pub struct SharedReservation(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// The reservation, which has no owner.
    reservation: Reservation,
    /// The purpose of the bytes while anybody uses them.
    purpose: Purpose,
    /// The purpose that they are counted under while nobody uses them.
    unused: Purpose,
    /// The number of charges, by token; the ledger's process itself has none.
    charges: BTreeMap<Option<TokenId>, usize>,
    /// The position in the order in which shared reservations have lost their last charge.
    unused_since: u64,
}

/// The owner's payment for shared memory, which ends when this is dropped.
#[derive(Debug)]
pub struct Charge {
    shared: SharedReservation,
    ledger: Ledger,
}

impl MemoryAccount for Charge {}

fn token(ledger: &Ledger) -> Option<TokenId> {
    ledger.owner().map(|owner| owner.token.clone())
}

impl SharedReservation {
    /// Makes a reservation shared. Its former owner is the first to be charged for it.
    pub(super) fn of(mut reservation: Reservation, unused: Purpose) -> (SharedReservation, Charge) {
        let purpose = reservation.purpose;
        let nobody = Ledger {
            owner: None,
            ..reservation.ledger.clone()
        };
        // The owner's entry in the books stays as it is: it now stands for the charge.
        let ledger = std::mem::replace(&mut reservation.ledger, nobody);
        let shared = SharedReservation(Arc::new(Mutex::new(State {
            reservation,
            purpose,
            unused,
            charges: [(token(&ledger), 1)].into(),
            unused_since: 0,
        })));
        let charge = Charge {
            shared: shared.clone(),
            ledger,
        };
        (shared, charge)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges the owner of `ledger`, which is the reservation's ledger. Fails where that exceeds what the owner may
    /// have.
    pub fn charge(&self, ledger: &Ledger) -> Result<Charge> {
        let mut state = self.state();
        let (purpose, bytes) = (state.purpose, state.reservation.bytes);
        let count = state.charges.get(&token(ledger)).copied().unwrap_or(0);
        if let Some(owner) = ledger.owner()
            && count == 0
        {
            let mut b = ledger.books();
            b.afford(owner, bytes, &ledger.place.name)?;
            b.charge(owner, purpose, bytes);
        }
        if state.charges.is_empty() {
            state.reservation.becomes(purpose);
        }
        state.charges.insert(token(ledger), count + 1);
        Ok(Charge {
            shared: self.clone(),
            ledger: ledger.clone(),
        })
    }

    /// Keeps the bytes in use, on behalf of no token.
    pub(super) fn hold(&self) -> Charge {
        let mut state = self.state();
        if state.charges.is_empty() {
            let purpose = state.purpose;
            state.reservation.becomes(purpose);
        }
        *state.charges.entry(None).or_default() += 1;
        Charge {
            shared: self.clone(),
            ledger: state.reservation.ledger.clone(),
        }
    }

    /// Whether the bytes are reserved in this ledger.
    pub(super) fn is_of(&self, ledger: &Ledger) -> bool {
        self.state().reservation.ledger.is(ledger)
    }

    /// The size in bytes.
    pub fn bytes(&self) -> u64 {
        self.state().reservation.bytes
    }

    /// The number of charges.
    pub fn users(&self) -> usize {
        self.state().charges.values().sum()
    }

    /// The position in the order in which shared reservations of a ledger have lost their last charge; `None` while
    /// there is a charge.
    pub fn unused_since(&self) -> Option<u64> {
        let state = self.state();
        state.charges.is_empty().then_some(state.unused_since)
    }
}

impl Charge {
    /// The reservation that is paid for.
    pub fn reservation(&self) -> &SharedReservation {
        &self.shared
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        let of = token(&self.ledger);
        let count = state.charges.get(&of).copied().unwrap_or(0);
        if mutant!("charge-outlives-user") {
            return;
        }
        if count > 1 {
            state.charges.insert(of, count - 1);
            return;
        }
        state.charges.remove(&of);
        let (purpose, bytes) = (state.purpose, state.reservation.bytes);
        {
            let mut b = self.ledger.books();
            if let Some(owner) = self.ledger.owner() {
                b.discharge(owner, purpose, bytes);
            }
            if !state.charges.is_empty() {
                return;
            }
            b.disuses += 1;
            state.unused_since = b.disuses;
        }
        let unused = state.unused;
        state.reservation.becomes(unused);
        drop(state);
        // Memory that nobody uses is as good as free.
        self.ledger.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use convoke_graph::DType;

    use super::*;
    use crate::error::Code;
    use crate::memory::{Owner, Pool, Reclaim};

    fn pool(l: &Ledger, token: &str, limit: u64) -> Pool {
        let owner = Owner {
            token: token.parse().unwrap(),
            member: format!("client-of-{token}"),
            limit,
        };
        Pool::new(&l.of(owner), Purpose::Weights, 0).unwrap()
    }

    /// What a ledger counts as weights, as unused weights, and for its tokens.
    fn counted(l: &Ledger) -> (u64, u64, Vec<u64>) {
        let used = l.used();
        let of = |purpose| used.get(&purpose).copied().unwrap_or(0);
        let tokens = l.holdings().iter().map(|h| h.total()).collect();
        (of(Purpose::Weights), of(Purpose::UnusedWeights), tokens)
    }

    /// Shares a tensor of `len` bytes between two tokens.
    fn check(len: u64) {
        let l = Ledger::new("w0", 4 << 20);
        let (a, b) = (pool(&l, "aaaa", 1 << 20), pool(&l, "bbbb", 1 << 20));
        let poor = pool(&l, "cccc", len - 1);
        let made = a.tensor(DType::U8, &[len as usize]).unwrap();
        let (shared, first) = a.share(&made).unwrap();
        drop(made);
        assert_eq!(counted(&l), (len, 0, vec![len]));
        let second = b.charge(&shared.reservation).unwrap();
        let again = b.charge(&shared.reservation).unwrap();
        assert_eq!(counted(&l), (len, 0, vec![len; 2]));
        assert_eq!(shared.reservation.users(), 3);
        let e = poor.charge(&shared.reservation).unwrap_err();
        assert_eq!(e.code, Code::OutOfMemory);
        assert!(e.message.contains("token cccc"), "{e}");
        drop((first, again));
        assert_eq!(counted(&l), (len, 0, vec![len]));
        assert_eq!(shared.reservation.unused_since(), None);
        drop(second);
        assert_eq!(counted(&l), (0, len, vec![]));
        assert!(shared.reservation.unused_since().is_some());
        // A handle is another user, also where only a view of it is left.
        let handle = b.charged(&shared.tensor).unwrap().unwrap();
        let view = b
            .adopt(handle)
            .unwrap()
            .reshape(&[1, len as usize])
            .unwrap();
        assert_eq!(counted(&l), (len, 0, vec![len]));
        assert!(!view.is_unique());
        drop(shared);
        assert_eq!(counted(&l), (len, 0, vec![len]));
        // It stays in use where it is adopted in another ledger.
        let other = Ledger::new("w1", 4 << 20);
        let adopted = pool(&other, "bbbb", 1 << 20).adopt(view).unwrap();
        assert_eq!(counted(&l), (len, 0, vec![]));
        assert_eq!(counted(&other), (len, 0, vec![len]));
        drop(adopted);
        assert_eq!((counted(&l), l.total_and_peak().0), ((0, 0, vec![]), 0));
    }

    #[test]
    fn shared_memory_is_counted_once_and_charged_to_all_who_use_it() {
        // The smaller one is cut from a region, and copied.
        check(100);
        check(1 << 20);
    }

    #[test]
    fn what_lost_its_users_first_has_been_unused_for_longest() {
        let l = Ledger::new("w0", 4 << 20);
        let p = Pool::new(&l, Purpose::Weights, 0).unwrap();
        let made = [(); 2].map(|()| p.tensor(DType::U8, &[1 << 20]).unwrap());
        let [(a, of_a), (b, of_b)] = made.each_ref().map(|t| p.share(t).unwrap());
        drop(of_b);
        drop(of_a);
        let [a, b] = [a, b].map(|shared| shared.reservation.unused_since().unwrap());
        assert!(b < a, "{b} {a}");
    }

    #[test]
    fn what_nobody_uses_is_used_once_another_ledger_adopts_it() {
        let (l, other) = (Ledger::new("w0", 4 << 20), Ledger::new("w1", 4 << 20));
        let p = Pool::new(&l, Purpose::Weights, 0).unwrap();
        let made = p.tensor(DType::U8, &[1 << 20]).unwrap();
        let (shared, charge) = p.share(&made).unwrap();
        drop((made, charge));
        assert_eq!(counted(&l), (0, 1 << 20, vec![]));
        let adopted = pool(&other, "bbbb", 1 << 20).adopt(shared.tensor.clone());
        assert_eq!(counted(&l), (1 << 20, 0, vec![]));
        drop(adopted);
        assert_eq!(counted(&l), (0, 1 << 20, vec![]));
    }

    #[derive(Default)]
    struct TestStore(Mutex<Vec<SharedTensor>>);

    impl Reclaim for TestStore {
        fn reclaim(&self, _: u64) -> bool {
            let last = self.0.lock().unwrap().pop();
            last.is_some()
        }
    }

    #[test]
    fn what_nobody_uses_is_freed_where_memory_is_asked_for() {
        let l = Ledger::new("w0", 4 << 20);
        let kept = Arc::<TestStore>::default();
        let source: Arc<dyn Reclaim> = kept.clone();
        l.reclaim_from(Arc::downgrade(&source));
        let p = Pool::new(&l, Purpose::Weights, 0).unwrap();
        for _ in 0..4 {
            let made = p.tensor(DType::U8, &[1 << 20]).unwrap();
            let (shared, charge) = p.share(&made).unwrap();
            kept.0.lock().unwrap().push(shared);
            drop(charge);
        }
        assert_eq!(counted(&l), (0, 4 << 20, vec![]));
        // A reservation beyond the limit frees what there is, and still fails.
        let held = l.reserve(Purpose::Leases, 2 << 20).unwrap();
        assert_eq!(kept.0.lock().unwrap().len(), 2);
        let e = l.reserve(Purpose::Leases, 3 << 20).unwrap_err();
        assert_eq!(e.code, Code::OutOfMemory);
        assert_eq!((counted(&l).1, l.total_and_peak().0), (0, 2 << 20));
        drop(held);
    }
}
