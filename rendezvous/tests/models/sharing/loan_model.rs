//! Pieces of staged tensors are returned while the peer announces others.

use std::sync::Arc;

use convoke_common::identity::Role;
use convoke_common::ids::Incarnation;
use loom::thread;

use super::buffers::SLOTS;
use super::loan::{Loan, PieceCount};
use crate::frame::{Frame, SharingFrame};
use crate::lease::Peer;
use crate::link::Link;
use crate::model_of_locks;

fn link() -> Arc<Link> {
    let peer = Peer {
        role: Role::Worker,
        name: "w0".into(),
        incarnation: Incarnation(1),
    };
    Arc::new(Link::new(peer, None))
}

/// The numbers of the loans that the peer was told of since this was last called.
fn returned(link: &Link) -> Vec<u64> {
    let number = |frame| match frame {
        Frame::Sharing(SharingFrame::Returned { loan }) => loan,
        _ => panic!("a loan says nothing else"),
    };
    link.told().into_iter().map(number).collect()
}

#[test]
fn a_peer_that_uses_its_buffers_again_has_no_piece_too_many() {
    model_of_locks(3, || {
        let (link, pieces) = (link(), PieceCount::default());
        let mut loans: Vec<Loan> = (0..SLOTS as u64)
            .map(|loan| pieces.loan(&link, loan).unwrap())
            .collect();
        assert!(pieces.loan(&link, SLOTS as u64).is_err());
        assert_eq!(
            returned(&link),
            [SLOTS as u64],
            "a refused piece is returned"
        );
        let readers =
            [loans.remove(0), loans.remove(0)].map(|loan| thread::spawn(move || drop(loan)));
        // The peer announces a piece in each buffer that it has back by now.
        let back = returned(&link);
        let more: Vec<Loan> = back
            .iter()
            .map(|loan| pieces.loan(&link, *loan).unwrap())
            .collect();
        readers
            .into_iter()
            .for_each(|reader| reader.join().unwrap());
        drop((loans, more));
        let mut all = returned(&link);
        all.extend(&back);
        all.sort_unstable();
        let mut expected: Vec<u64> = (0..SLOTS as u64).chain(back).collect();
        expected.sort_unstable();
        assert_eq!(all, expected, "each loan is returned once");
    });
}
