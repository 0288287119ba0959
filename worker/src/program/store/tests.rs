//! The store without a worker: installs that find programs, are sent them, and end.

use convoke_common::memory::{Ledger, Owner};
use convoke_graph::DType;
use convoke_graph::graph::{TensorType, Value};
use convoke_graph::ids::FunctionId;
use convoke_graph::program::NUMERICS_PROFILE;

use super::*;

const MIB: u64 = 1 << 20;

/// A program of about this many KiB in memory, which differs from others by its name.
fn program(name: &str, kib: usize) -> Arc<Program> {
    let value = Value {
        name: "v".repeat((kib << 10) / IN_MEMORY as usize).as_str().into(),
        ty: TensorType::fixed(DType::F32, &[1]),
    };
    Arc::new(Program {
        name: name.into(),
        function: FunctionId::default(),
        profile: NUMERICS_PROFILE.into(),
        values: vec![value],
        literals: vec![],
        artifacts: vec![],
        nodes: vec![],
        init_nodes: 0,
        recvs: vec![],
        sends: vec![],
    })
}

fn hash(program: &Arc<Program>) -> ProgramId {
    HashedProgram::new(program.clone()).unwrap().id()
}

/// A store of 2 MiB, in records of 4 MiB.
struct Rig {
    all: Ledger,
    records: Records,
    store: Arc<ProgramStore>,
}

impl Rig {
    fn new() -> Rig {
        let all = Ledger::new("w0", 64 * MIB);
        let records = Records::new("w0", &all);
        let store = ProgramStore::new(&records);
        assert_eq!(store.limit, 2 * MIB);
        Rig {
            all,
            records,
            store,
        }
    }

    /// The records of the holders of a token, which may have this many bytes.
    fn of(&self, token: &str, limit: u64) -> Records {
        self.records.on_behalf_of(Owner {
            token: token.parse().unwrap(),
            member: format!("client-of-{token}"),
            limit: limit * 16,
        })
    }

    /// Installs a program, which is sent where the store does not have it. Returns whether it was.
    fn install(&self, program: &Arc<Program>, records: &Records) -> (ProgramPayment, bool) {
        let id = hash(program);
        let there = self.store.find(&id, None).unwrap();
        let sent = there.is_none();
        let found = there.or_else(|| self.store.find(&id, Some(program.clone())).unwrap());
        let payment = self.store.keep(&found.unwrap(), records).unwrap();
        (payment, sent)
    }

    /// Checks how many programs there are, and how many of them nobody uses.
    #[track_caller]
    fn check(&self, held: u64, unused: u64) {
        let status = self.store.status();
        assert_eq!((status.held, status.unused), (held, unused));
        assert!(status.held_bytes <= self.store.limit);
    }
}

#[test]
fn a_second_install_is_sent_no_program_and_shares_the_first_ones() {
    let rig = Rig::new();
    let [a, b] = ["aaaa", "bbbb"].map(|token| rig.of(token, MIB));
    let model = program("m", 100);
    let (first, sent) = rig.install(&model, &a);
    assert!(sent);
    let (second, sent) = rig.install(&model, &b);
    assert!(!sent);
    let used = |records: &Records| records.own_used();
    let bytes = rig.store.status().held_bytes;
    assert!(bytes > 100 << 10 && bytes < 102 << 10, "{bytes}");
    // Each token pays in full, and the memory counts once.
    let held: Vec<u64> = rig.records.holdings().iter().map(|h| h.total()).collect();
    assert_eq!((held, used(&rig.records)), (vec![bytes; 2], bytes));
    rig.check(1, 0);
    let found = rig.store.find(&hash(&model), None).unwrap().unwrap();
    let again = rig
        .store
        .find(&hash(&model), Some(model.clone()))
        .unwrap()
        .unwrap();
    assert!(Arc::ptr_eq(found.program(), again.program()));
    drop((first, second));
    rig.check(1, 1);
    assert!(rig.records.holdings().is_empty());
    assert!(!rig.install(&model, &b).1);
    let status = rig.store.status();
    let sent = HashedProgram::new(model).unwrap().encoded_bytes();
    assert_eq!((status.received, status.received_bytes), (2, 2 * sent));
}

#[test]
fn a_program_with_another_hash_is_refused_and_not_kept() {
    let rig = Rig::new();
    let (asked, other) = (program("asked", 1), program("other", 1));
    let refused = rig.store.find(&hash(&asked), Some(other)).unwrap_err();
    assert_eq!(refused.code, Code::ProtocolViolation);
    assert!(
        refused.message.contains(&hash(&asked).to_string()),
        "{refused}"
    );
    assert_eq!(rig.store.status(), ProgramStoreStatus::default());
    assert!(rig.store.find(&hash(&asked), None).unwrap().is_none());
}

#[test]
fn what_is_unused_for_longest_goes_first_and_what_is_used_stays() {
    let rig = Rig::new();
    let of = |n: usize| program(&format!("m{n}"), 480);
    let used = rig.install(&of(0), &rig.records);
    (1..4).for_each(|n| drop(rig.install(&of(n), &rig.records)));
    rig.check(4, 3);
    // The first of them is used once more.
    assert!(!rig.install(&of(1), &rig.records).1);
    assert!(rig.install(&of(4), &rig.records).1);
    rig.check(4, 3);
    let here = |n| rig.store.find(&hash(&of(n)), None).unwrap().is_some();
    assert_eq!(
        [0, 1, 2, 3, 4].map(here),
        [true, true, false, true, true],
        "the second was unused for longest"
    );
    // Records that need the memory get it, and no more goes than must.
    let records = rig.records.reserve(3 * MIB - (480 << 10)).unwrap();
    assert_eq!([0, 1, 3, 4].map(here), [true, true, false, true]);
    assert_eq!(rig.all.total_and_peak().0, 0);
    drop((records, used));
}

#[test]
fn a_full_store_leaves_a_program_to_its_lease() {
    let rig = Rig::new();
    let of = |n: usize| program(&format!("m{n}"), 480);
    let used: Vec<_> = (0..4).map(|n| rig.install(&of(n), &rig.records)).collect();
    rig.check(4, 0);
    let (payment, sent) = rig.install(&of(4), &rig.records);
    assert!(sent);
    rig.check(4, 0);
    assert!(rig.records.own_used() > 5 * (480 << 10));
    drop(payment);
    assert!(rig.install(&of(4), &rig.records).1, "it was not kept");
    drop(used);
    // A program that is larger than the whole store.
    let large = program("large", 3 << 10);
    let (payment, _) = rig.install(&large, &rig.records);
    assert!(matches!(payment, ProgramPayment::Own { .. }));
    rig.check(2, 2);
    drop(payment);
    assert_eq!(rig.records.own_used(), rig.store.status().held_bytes);
}

#[test]
fn a_token_that_cannot_pay_its_share_is_refused() {
    let rig = Rig::new();
    let model = program("m", 400);
    let rich = rig.install(&model, &rig.of("aaaa", MIB));
    let poor = rig.of("bbbb", 10 << 10);
    let found = rig.store.find(&hash(&model), None).unwrap().unwrap();
    let refused = rig.store.keep(&found, &poor).unwrap_err();
    assert_eq!(refused.code, Code::OutOfMemory);
    assert!(refused.message.contains("token bbbb"), "{refused}");
    drop(rich);
}

#[test]
fn many_small_programs_are_no_more_than_a_store_may_have() {
    let rig = Rig::new();
    for n in 0..MOST + 3 {
        drop(rig.install(&program(&format!("m{n}"), 0), &rig.records));
    }
    rig.check(MOST as u64, MOST as u64);
}
