//! The loans of the peer's memory at the end that reads it.
//!
//! Invariants
//! 1. A loan is returned once, when it is dropped.
//! 2. A piece is not counted any more by the time that the peer learns of its return. So a peer that keeps to its number
//!    of buffers never has more pieces counted.

use std::sync::{Arc, Weak};

use convoke_common::error::Result;

use super::buffers::SLOTS;
use super::violation::broken;
use crate::frame::{Frame, SharingFrame};
use crate::link::Link;
use crate::primitives::{AtomicUsize, Ordering};

/// A loan of the peer's memory; dropping it tells the peer that the memory is no longer used.
pub(super) struct Loan {
    link: Weak<Link>,
    loan: u64,
    /// The count of pieces that are not returned, which includes this one until it is dropped.
    counted: Option<PieceCount>,
}

/// How many pieces of staged tensors have not been returned.
#[derive(Clone, Default)]
pub(super) struct PieceCount(Arc<AtomicUsize>);

impl Loan {
    /// The loan of a whole tensor.
    pub fn new(link: &Arc<Link>, loan: u64) -> Loan {
        Loan {
            link: Arc::downgrade(link),
            loan,
            counted: None,
        }
    }
}

impl PieceCount {
    /// The loan of a piece. Fails, and returns the piece, where the peer has announced more pieces than it has buffers.
    pub fn loan(&self, link: &Arc<Link>, loan: u64) -> Result<Loan> {
        let counted = self.0.fetch_add(1, Ordering::Relaxed);
        let mut loan = Loan::new(link, loan);
        loan.counted = Some(self.clone());
        match counted < SLOTS {
            true => Ok(loan),
            false => Err(broken("more parts than slots")),
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(PieceCount(count)) = &self.counted {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(link) = self.link.upgrade() {
            link.send(Frame::Sharing(SharingFrame::Returned { loan: self.loan }));
        }
    }
}
