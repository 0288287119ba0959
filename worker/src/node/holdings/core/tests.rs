//! Tests of the core by itself: events go in; commands, and the remains of leases, come out.

use convoke_common::actor::Core as _;

use super::*;

const A: LeaseId = LeaseId(1);
const B: LeaseId = LeaseId(2);
const PLAN: PlanId = PlanId(7);

type Leases = Core<&'static str, &'static str>;

/// A core in which the install of [`A`] runs.
fn begun() -> Leases {
    let mut leases = Leases::default();
    begin(&mut leases, A).unwrap();
    leases
}

/// A core that holds [`A`], whose install is over.
fn held() -> Leases {
    let mut leases = begun();
    assert!(leases.installed(A, "lease a", "rest of a"));
    leases.install_ended(A);
    assert_eq!(leases.commands(), [Command::Wake]);
    leases
}

fn begin(leases: &mut Leases, id: LeaseId) -> Result<(), BeginRefusal> {
    leases.begin(id, PLAN, Arc::default())
}

/// Checks which leases are held, how many are being installed, and how many settle.
#[track_caller]
fn check(leases: &Leases, held: &[&'static str], installing: usize, settling: usize) {
    assert_eq!(leases.all_held().copied().collect::<Vec<_>>(), held);
    let counts = (leases.installing(), leases.settling());
    assert_eq!(counts, (installing, settling));
}

#[test]
fn a_lease_is_held_until_it_is_released_and_settles_when_nothing_uses_it() {
    let mut leases = begun();
    check(&leases, &[], 1, 0);
    assert!(leases.is_wanted(A));
    assert!(leases.progress(PLAN).is_some() && leases.progress(PlanId(8)).is_none());
    assert!(leases.installed(A, "lease a", "rest of a"));
    assert_eq!(leases.commands(), []);
    assert_eq!((leases.held(A), leases.held(B)), (Some(&"lease a"), None));
    assert!(leases.progress(PLAN).is_none());
    leases.install_ended(A);
    assert_eq!(leases.commands(), [Command::Wake]);
    check(&leases, &["lease a"], 0, 0);

    leases.release(A);
    assert_eq!(leases.commands(), [Command::Retire("lease a")]);
    check(&leases, &[], 0, 1);
    assert_eq!(leases.settle(|_| true), [""; 0]);
    check(&leases, &[], 0, 1);
    assert_eq!(leases.settle(|rest| *rest != "rest of a"), ["rest of a"]);
    check(&leases, &[], 0, 0);
    assert_eq!((leases.commands(), leases.take_dropped()), (vec![], vec![]));
}

#[test]
fn a_release_during_an_install_retires_what_the_install_makes() {
    let mut leases = begun();
    leases.release(A);
    assert_eq!(leases.commands(), []);
    // Whoever waits for memory waits for this install as well.
    check(&leases, &[], 1, 1);
    assert!(!leases.is_wanted(A));
    assert!(!leases.installed(A, "lease a", "rest of a"));
    assert_eq!(leases.commands(), [Command::Retire("lease a")]);
    check(&leases, &[], 0, 1);
    leases.install_ended(A);
    assert_eq!(leases.commands(), [Command::Wake]);
    assert_eq!(leases.settle(|_| false), ["rest of a"]);
    check(&leases, &[], 0, 0);
}

#[test]
fn a_release_right_after_an_install_retires_what_the_install_made() {
    let mut leases = begun();
    assert!(leases.installed(A, "lease a", "rest of a"));
    leases.release(A);
    assert_eq!(leases.commands(), [Command::Retire("lease a")]);
    // The install notices only now that its lease is gone.
    leases.install_ended(A);
    assert_eq!(leases.commands(), [Command::Wake]);
    check(&leases, &[], 0, 1);
}

#[test]
fn an_install_that_fails_leaves_nothing_unless_it_was_released() {
    let mut leases = begun();
    leases.install_ended(A);
    assert_eq!(leases.commands(), [Command::Wake]);
    check(&leases, &[], 0, 0);
    assert_eq!(begin(&mut leases, A), Ok(()));
    leases.release(A);
    leases.install_ended(A);
    assert_eq!(leases.commands(), [Command::Wake]);
    check(&leases, &[], 0, 0);
    assert_eq!(begin(&mut leases, A), Err(BeginRefusal::Released));
}

#[test]
fn a_lease_that_was_released_is_not_installed_any_more() {
    let mut leases = Leases::default();
    leases.release(A);
    assert_eq!(leases.commands(), []);
    check(&leases, &[], 0, 0);
    assert_eq!(begin(&mut leases, A), Err(BeginRefusal::Released));
    assert_eq!(begin(&mut leases, B), Ok(()));
    // Neither is a lease that is released while it is installed, that ends, or that has ended.
    leases.release(B);
    assert_eq!(begin(&mut leases, B), Err(BeginRefusal::Released));
    leases.installed(B, "lease b", "rest of b");
    assert_eq!(begin(&mut leases, B), Err(BeginRefusal::Released));
    leases.install_ended(B);
    leases.settle(|_| false);
    assert_eq!(begin(&mut leases, B), Err(BeginRefusal::Released));
    assert_eq!(
        leases.commands(),
        [Command::Retire("lease b"), Command::Wake]
    );
}

#[test]
fn a_lease_is_installed_once() {
    let mut leases = begun();
    assert_eq!(begin(&mut leases, A), Err(BeginRefusal::Present));
    assert!(leases.installed(A, "lease a", "rest of a"));
    assert_eq!(begin(&mut leases, A), Err(BeginRefusal::Present));
    check(&leases, &["lease a"], 0, 0);
}

#[test]
fn a_second_release_changes_nothing() {
    let mut leases = held();
    leases.release(A);
    leases.release(A);
    assert_eq!(leases.commands(), [Command::Retire("lease a")]);
    check(&leases, &[], 0, 1);
    leases.settle(|_| false);
    leases.release(A);
    assert_eq!(leases.commands(), []);
    check(&leases, &[], 0, 0);
}

#[test]
fn a_driver_that_is_lost_is_reported_once() {
    let mut leases = held();
    leases.driver_gone(A);
    leases.driver_gone(A);
    let report = || Command::Report;
    assert_eq!(
        leases.commands(),
        [Command::Retire("lease a"), report(), report()]
    );
    assert_eq!(leases.take_dropped(), [A]);
    assert_eq!(leases.take_dropped(), []);
}

#[test]
fn a_driver_that_is_lost_during_an_install_is_reported_and_gets_no_lease() {
    let mut leases = begun();
    leases.driver_gone(A);
    assert_eq!(leases.commands(), [Command::Report]);
    check(&leases, &[], 1, 1);
    assert!(!leases.installed(A, "lease a", "rest of a"));
    leases.install_ended(A);
    assert_eq!(
        leases.commands(),
        [Command::Retire("lease a"), Command::Wake]
    );
    assert_eq!(leases.take_dropped(), [A]);
    check(&leases, &[], 0, 1);
}

#[test]
fn a_registration_lists_what_is_held_in_place_of_reports() {
    let mut leases = held();
    begin(&mut leases, B).unwrap();
    assert!(leases.installed(B, "lease b", "rest of b"));
    leases.driver_gone(A);
    let listed: Vec<_> = leases.register().copied().collect();
    assert_eq!((listed, leases.take_dropped()), (vec!["lease b"], vec![]));
}

#[test]
fn the_end_lets_go_of_what_is_held() {
    let mut leases = held();
    begin(&mut leases, B).unwrap();
    leases.end();
    assert_eq!(leases.commands(), [Command::Unlist("lease a")]);
    check(&leases, &[], 1, 1);
    leases.end();
    assert_eq!(leases.commands(), []);
}

#[test]
fn the_latest_released_leases_are_remembered() {
    let mut leases = Leases::default();
    let most = MOST_FORGONE as u64;
    (0..=most).for_each(|n| leases.release(LeaseId(n)));
    assert_eq!(begin(&mut leases, LeaseId(0)), Ok(()));
    for n in [1, most] {
        let refused = begin(&mut leases, LeaseId(n));
        assert_eq!(refused, Err(BeginRefusal::Released), "{n}");
    }
    assert_eq!(leases.leases.len(), MOST_FORGONE + 1);
}
