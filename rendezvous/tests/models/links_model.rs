//! Links of a hub are added, awaited and removed at the same time.

use std::sync::Arc;

use convoke_common::identity::{Role, TokenId};
use convoke_common::ids::Incarnation;
use loom::thread;

use crate::lease::Peer;
use crate::link::Link;
use crate::links::Links;
use crate::model_of_locks;
use crate::primitives::block_on;

/// An incarnation of one worker.
fn peer(incarnation: u64) -> Peer {
    Peer {
        role: Role::Worker,
        name: "w0".into(),
        incarnation: Incarnation(incarnation),
    }
}

fn link(incarnation: u64) -> Arc<Link> {
    Arc::new(Link::new(peer(incarnation), None))
}

#[test]
fn whoever_awaits_a_link_finds_it() {
    model_of_locks(3, || {
        let (links, link) = (Arc::new(Links::new()), link(1));
        let adders = {
            let (links, link) = (links.clone(), link.clone());
            thread::spawn(move || assert!(links.add(link)))
        };
        let other = {
            let links = links.clone();
            thread::spawn(move || block_on(links.awaited(&peer(1))))
        };
        let mine = block_on(links.awaited(&peer(1)));
        adders.join().unwrap();
        assert!(Arc::ptr_eq(&mine, &link) && Arc::ptr_eq(&other.join().unwrap(), &link));
    });
}

#[test]
fn whoever_awaits_an_incarnation_gets_no_other() {
    model_of_locks(3, || {
        let links = Arc::new(Links::new());
        let [former, newer] = [1, 2].map(link);
        let adder = {
            let (links, former, newer) = (links.clone(), former.clone(), newer.clone());
            thread::spawn(move || assert!(links.add(former) && links.add(newer)))
        };
        let found = block_on(links.awaited(&peer(2)));
        adder.join().unwrap();
        assert!(Arc::ptr_eq(&found, &newer) && !newer.is_closed());
        assert!(former.is_closed() && links.newest(&peer(1)).is_none());
    });
}

#[test]
fn of_two_incarnations_one_stays() {
    model_of_locks(3, || {
        let links = Arc::new(Links::new());
        let both = [1, 2].map(link);
        let adder = {
            let (links, link) = (links.clone(), both[0].clone());
            thread::spawn(move || assert!(links.add(link)))
        };
        assert!(links.add(both[1].clone()));
        adder.join().unwrap();
        let open = both.each_ref().map(|l| links.newest(l.peer()).is_some());
        assert_eq!(open.iter().filter(|open| **open).count(), 1, "{open:?}");
        assert_eq!(open, both.each_ref().map(|l| !l.is_closed()));
    });
}

#[test]
fn of_two_tokens_for_one_incarnation_one_is_refused() {
    model_of_locks(3, || {
        let links = Arc::new(Links::new());
        let both = ["a", "b"].map(|token| {
            let token = token.parse::<TokenId>().unwrap();
            Arc::new(Link::new(peer(1), Some(token)))
        });
        let adder = {
            let (links, link) = (links.clone(), both[0].clone());
            thread::spawn(move || links.add(link))
        };
        let mine = links.add(both[1].clone());
        assert!(mine != adder.join().unwrap(), "one of them is added");
        let newest = links.newest(&peer(1)).unwrap();
        assert!(Arc::ptr_eq(&newest, &both[usize::from(mine)]));
    });
}

#[test]
fn the_end_of_a_link_leaves_one_that_is_added_meanwhile() {
    model_of_locks(3, || {
        let links = Arc::new(Links::new());
        let [ended, added] = [1, 1].map(link);
        assert!(links.add(ended.clone()));
        let ender = {
            let links = links.clone();
            thread::spawn(move || {
                ended.close("lost");
                links.remove(&ended);
            })
        };
        assert!(links.add(added.clone()));
        assert!(Arc::ptr_eq(&block_on(links.awaited(&peer(1))), &added));
        ender.join().unwrap();
        let all = links.all();
        assert!(all.len() == 1 && Arc::ptr_eq(&all[0], &added));
    });
}
