use super::*;
use crate::identity::Weight;

fn share(account: &str, lease: u64) -> Share {
    Share::new(AccountId::named(account), LeaseId(lease))
}

const MS: Duration = Duration::from_millis(1);

/// Runs the next job `times` times, each for as long as `takes`; returns the jobs in the order in which they ran.
fn serve(queue: &mut FairQueue<&'static str>, times: usize, takes: Duration) -> Vec<&'static str> {
    let one = |_| {
        let (share, job) = queue.pop(true)?;
        queue.charge(&share, takes);
        queue.ended(&share);
        Some(job)
    };
    (0..times).map_while(one).collect()
}

fn count(order: &[&str], of: &str) -> usize {
    order.iter().filter(|job| **job == of).count()
}

#[test]
fn one_call_goes_before_the_many_of_another() {
    let (many, one) = (share("many", 1), share("one", 2));
    let mut queue = FairQueue::new(1);
    for _ in 0..64 {
        queue.push(&many, 9, "many").unwrap();
    }
    for _ in 0..20 {
        assert_eq!(serve(&mut queue, 1, MS), ["many"]);
        queue.push(&one, 0, "one").unwrap();
        assert_eq!(serve(&mut queue, 1, MS), ["one"]);
    }
}

#[test]
fn accounts_have_equal_parts_whatever_their_leases_and_jobs() {
    let mut queue = FairQueue::new(1);
    for n in 0..100 {
        queue.push(&share("a", 1), 0, "a").unwrap();
        queue.push(&share("b", 2 + n % 7), 5, "b").unwrap();
    }
    let order = serve(&mut queue, 60, MS);
    assert!(count(&order, "a").abs_diff(30) <= 1, "{order:?}");
    // The time that one account does not use goes to the other.
    let rest = serve(&mut queue, 1000, MS);
    assert_eq!(count(&rest, "a") + count(&order, "a"), 100);
    assert_eq!(count(&rest, "b") + count(&order, "b"), 100);
    assert!(queue.is_empty() && queue.accounts.all.values().all(|a| !a.is_busy()));
}

#[test]
fn leases_of_an_account_have_equal_parts_and_priorities_count_within_one() {
    let mut queue = FairQueue::new(1);
    for _ in 0..50 {
        queue.push(&share("a", 1), 0, "low").unwrap();
        queue.push(&share("a", 2), 9, "high").unwrap();
    }
    let order = serve(&mut queue, 40, MS);
    assert!(count(&order, "low").abs_diff(20) <= 1, "{order:?}");
    let mut queue = FairQueue::new(1);
    for (priority, job) in [(1, "b"), (3, "a"), (1, "c")] {
        queue.push(&share("a", 1), priority, job).unwrap();
    }
    assert_eq!(serve(&mut queue, 9, MS), ["a", "b", "c"]);
}

#[test]
fn weights_count() {
    let mut queue = FairQueue::new(1);
    let heavy = Share::of_member(
        AccountId::named("heavy"),
        "member",
        Weight::new(3).unwrap(),
        LeaseId(1),
    );
    for _ in 0..100 {
        queue.push(&heavy, 0, "heavy").unwrap();
        queue.push(&share("light", 2), 0, "light").unwrap();
    }
    let order = serve(&mut queue, 80, MS);
    assert!(count(&order, "heavy").abs_diff(60) <= 2, "{order:?}");
}

#[test]
fn time_that_nobody_else_wanted_is_not_held_against_anybody() {
    let (old, new) = (share("old", 1), share("new", 2));
    let mut queue = FairQueue::new(1);
    for _ in 0..100 {
        queue.push(&old, 0, "old").unwrap();
    }
    // The account was alone for a long time.
    assert_eq!(serve(&mut queue, 50, 100 * MS).len(), 50);
    for _ in 0..50 {
        queue.push(&new, 0, "new").unwrap();
    }
    let order = serve(&mut queue, 40, MS);
    assert!(count(&order, "old").abs_diff(20) <= 3, "{order:?}");
    // An account that was away has saved up no time either.
    queue.push(&share("late", 3), 0, "late").unwrap();
    assert_eq!(serve(&mut queue, 1, MS), ["late"]);
}

/// An account that runs now and then waits whenever a job of the other ends, and is away whenever one begins.
#[test]
fn an_account_that_is_away_between_its_jobs_saves_up_no_time() {
    let (steady, now_and_then) = (share("steady", 1), share("now and then", 2));
    let mut queue = FairQueue::new(1);
    for _ in 0..100 {
        queue.push(&steady, 0, "steady").unwrap();
    }
    for _ in 0..20 {
        let (running, _) = queue.pop(true).unwrap();
        queue.push(&now_and_then, 0, "now and then").unwrap();
        queue.charge(&running, 8 * MS);
        queue.ended(&running);
        assert_eq!(serve(&mut queue, 1, Duration::ZERO), ["now and then"]);
    }
    for _ in 0..50 {
        queue.push(&now_and_then, 0, "now and then").unwrap();
    }
    // It is ahead by the job during which it came and by its credit, and has half of the rest.
    let order = serve(&mut queue, 50, MS);
    assert!(count(&order, "steady") >= 19, "{order:?}");
}

#[test]
fn whoever_runs_gives_way_to_others_once_it_has_had_more() {
    let (long, other) = (share("long", 1), share("other", 2));
    let mut queue = FairQueue::new(1);
    queue.push(&long, 0, "long").unwrap();
    let (running, job) = queue.pop(true).unwrap();
    assert_eq!(queue.rival(&running, true), Rival::None);
    queue.charge(&running, 100 * MS);
    queue.push(&other, 0, "other").unwrap();
    let Rival::Other(ahead) = queue.rival(&running, true) else {
        panic!("nobody waits")
    };
    // The new job has a claim at once, not only after the running job's turn.
    assert_eq!(ahead, credit() as i64);
    assert_eq!(queue.rival(&running, false), Rival::None);
    queue.give_way(&running, 0, true, job);
    let (shares, job) = queue.pop(true).unwrap();
    assert_eq!(job, "other");
    queue.charge(&shares, CREDIT / 2);
    assert_eq!(
        queue.rival(&shares, true),
        Rival::Other(-(credit() as i64) / 2)
    );
    queue.ended(&shares);
    assert_eq!(queue.pop(false).unwrap().1, "long");
    // Another job of the same lease waits, then also one of another lease.
    queue.push(&long, 0, "next").unwrap();
    assert_eq!(queue.rival(&running, true), Rival::Same);
    queue.push(&share("long", 7), 0, "third").unwrap();
    assert!(matches!(queue.rival(&running, true), Rival::Other(n) if n > 0));
}

#[test]
fn an_account_begins_few_jobs_and_none_is_lost() {
    let greedy = share("greedy", 1);
    let mut queue = FairQueue::new(1);
    for _ in 0..2 * MOST_BEGUN {
        queue.push(&greedy, 0, "greedy").unwrap();
    }
    for _ in 0..MOST_BEGUN {
        let (share, job) = queue.pop(true).unwrap();
        queue.give_way(&share, 0, false, job);
    }
    // The account has begun as many jobs as it may: one of these goes on.
    let (running, _) = queue.pop(true).unwrap();
    assert_eq!(
        queue.waiting().filter(|(_, begun, _)| *begun).count(),
        MOST_BEGUN - 1
    );
    // A job of another account begins all the same.
    queue.push(&share("other", 2), 0, "other").unwrap();
    queue.charge(&running, MS);
    assert_eq!(queue.pop(true).unwrap().1, "other");
    assert!(queue.take(&greedy, |_| true).is_some());
    assert_eq!(queue.len(), 2 * MOST_BEGUN - 2);
}

#[test]
fn what_is_full_gives_back_and_leaves_room_for_others() {
    let (one, other) = (share("one", 1), share("other", 2));
    let mut queue = FairQueue::new(1);
    for _ in 0..MOST_OF_ACCOUNT {
        assert_eq!(queue.push(&one, 0, "x"), Ok(()));
    }
    assert_eq!(queue.push(&one, 9, "y"), Err("y"));
    assert_eq!(queue.push(&other, 0, "z"), Ok(()));
}

#[test]
fn idle_accounts_are_forgotten() {
    let mut queue = FairQueue::new(1);
    for n in 0..10_000 {
        let share = share(&format!("client {n}"), n);
        queue.push(&share, 0, "x").unwrap();
        assert_eq!(serve(&mut queue, 1, 10 * MS).len(), 1);
        assert!(queue.accounts.all.len() <= 2 * IDLE);
    }
}

#[test]
fn work_beside_the_queue_is_charged_while_others_wait() {
    let (brief, other) = (share("brief", 1), share("other", 2));
    let mut queue = FairQueue::new(1);
    assert!(queue.admits(&brief, MS));
    queue.push(&other, 0, "other").unwrap();
    let admitted = (0..100).take_while(|_| queue.admits(&brief, MS)).count();
    assert!((1..=3).contains(&admitted), "{admitted}");
}
