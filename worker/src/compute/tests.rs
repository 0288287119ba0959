use std::sync::atomic::AtomicBool;
use std::sync::mpsc;

use super::*;

fn share(account: &str) -> Share {
    Share::new(AccountId::named(account), LeaseId(account.len() as u64))
}

const BOUND: Duration = Duration::from_secs(60);

/// A kernel without end: it looks at its check points until it is cancelled, and counts its looks.
fn endless(looks: Arc<AtomicUsize>, cancel: Arc<AtomicBool>, ended: mpsc::Sender<()>) -> Job {
    Box::new(move || {
        let crew = Crew::current().unwrap();
        let exec = crew.exec(&cancel);
        while exec.check().is_ok() {
            looks.fetch_add(1, Ordering::Relaxed);
        }
        // The receiver may be gone.
        let _ = ended.send(());
    })
}

struct Loop {
    looks: Arc<AtomicUsize>,
    cancel: Arc<AtomicBool>,
    ended: mpsc::Receiver<()>,
}

impl Loop {
    fn begin(t: &Threads, account: &str) -> Loop {
        let (tell, ended) = mpsc::channel();
        let (looks, cancel) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let job = endless(looks.clone(), cancel.clone(), tell);
        assert!(t.submit(&share(account), 0, job).is_ok());
        Loop {
            looks,
            cancel,
            ended,
        }
    }

    fn looks(&self) -> usize {
        self.looks.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.cancel.store(true, Ordering::Relaxed);
        self.ended.recv_timeout(BOUND).unwrap();
    }
}

/// Runs a brief job and waits for its end.
fn run(t: &Threads, account: &str) {
    run_job(t, account, || {});
}

/// Runs a job and returns what it gives.
fn run_job<R: Send + 'static>(
    t: &Threads,
    account: &str,
    job: impl FnOnce() -> R + Send + 'static,
) -> R {
    let (tell, told) = mpsc::channel();
    let job = Box::new(move || drop(tell.send(job())));
    assert!(t.submit(&share(account), 0, job).is_ok());
    told.recv_timeout(BOUND).unwrap()
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < BOUND, "{what}");
        std::thread::yield_now();
    }
}

/// Waits until no job runs or waits, and nothing of one is kept.
#[track_caller]
fn check_idle(t: &Threads) {
    wait_until("all is idle", || {
        let s = t.shared.lock();
        s.running.is_empty()
            && s.queue.is_empty()
            && s.leaving.is_empty()
            && s.idle.len() == s.crews
    });
    let kept = t.threads().clamp(KEPT.0, KEPT.1);
    assert!(t.shared.lock().crews <= kept + 1 && t.turns().is_empty());
}

#[test]
fn runs_everything_by_priority_and_survives_panics() {
    let t = Threads::start("t", 1).unwrap();
    let (hold, gate) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    let first = Box::new(move || gate.recv().unwrap_or_default());
    assert!(t.submit(&share("a"), 9, first).is_ok());
    for p in [1, 3, 2] {
        let tell = tell.clone();
        let job = Box::new(move || tell.send(p).unwrap());
        assert!(t.submit(&share("a"), p, job).is_ok());
    }
    let panics = Box::new(|| panic!("on purpose"));
    assert!(t.submit(&share("a"), 4, panics).is_ok());
    hold.send(()).unwrap();
    assert_eq!(told.iter().take(3).collect::<Vec<_>>(), [3, 2, 1]);
    check_idle(&t);
}

#[test]
fn a_job_that_begins_for_nothing_does_not_run() {
    let t = Threads::start("t", 1).unwrap();
    let (tell, told) = mpsc::channel();
    for wanted in [false, true] {
        let tell = tell.clone();
        let job = Box::new(move || tell.send(wanted).unwrap());
        let begin = Box::new(move || wanted);
        assert!(t.submit_begun(&share("a"), 0, begin, job).is_ok());
    }
    drop(tell);
    assert_eq!(told.iter().collect::<Vec<_>>(), [true]);
    check_idle(&t);
}

#[test]
fn a_loop_without_end_keeps_nobody_from_the_thread() {
    for threads in [1, 2] {
        let t = Threads::start("t", threads).unwrap();
        let greedy = Loop::begin(&t, "greedy");
        wait_until("it runs", || greedy.looks() > 0);
        for _ in 0..20 {
            run(&t, "other");
            // The long job goes on where it was interrupted.
            let before = greedy.looks();
            wait_until("it goes on", || greedy.looks() > before);
        }
        greedy.end();
        check_idle(&t);
    }
}

#[test]
fn as_many_jobs_run_at_once_as_there_are_threads() {
    let t = Threads::start("t", 3).unwrap();
    // Jobs without check points, none of which ends before the others run: they cannot give way.
    let all = Arc::new(std::sync::Barrier::new(3));
    let (tell, told) = mpsc::channel();
    for account in ["a", "a", "bb"] {
        let (all, tell) = (all.clone(), tell.clone());
        let job = Box::new(move || {
            all.wait();
            let crew = Crew::current().unwrap();
            let threads = crew.exec(&AtomicBool::new(false)).threads();
            // Each knows its part before one of them ends, which changes it.
            all.wait();
            tell.send(threads).unwrap();
        });
        assert!(t.submit(&share(account), 0, job).is_ok());
    }
    let threads: Vec<usize> = told.iter().take(3).collect();
    assert_eq!(threads, [1, 1, 1]);
    check_idle(&t);
    let alone = run_job(&t, "a", || {
        let crew = Crew::current().unwrap();
        crew.exec(&AtomicBool::new(false)).threads()
    });
    assert_eq!(alone, 3);
    check_idle(&t);
}

#[test]
fn a_kernel_with_a_part_of_the_threads_has_all_its_tiles() {
    let t = Threads::start("t", 3).unwrap();
    let other = Loop::begin(&t, "other");
    let done = run_job(&t, "a", || {
        let crew = Crew::current().unwrap();
        let cancel = AtomicBool::new(false);
        let exec = crew.exec(&cancel);
        let tiles: Vec<AtomicUsize> = (0..1000).map(|_| AtomicUsize::new(0)).collect();
        let ended = exec.tiles(1000, 1, |range| {
            tiles[range.start].fetch_add(1, Ordering::Relaxed);
        });
        ended.unwrap();
        tiles.into_iter().all(|t| t.into_inner() == 1)
    });
    assert!(done);
    other.end();
    check_idle(&t);
}

#[test]
fn loops_share_the_thread_and_a_cancelled_one_ends_at_once() {
    let t = Threads::start("t", 1).unwrap();
    let loops = ["a", "bb", "ccc"].map(|account| Loop::begin(&t, account));
    for _ in 0..5 {
        let before: Vec<usize> = loops.iter().map(Loop::looks).collect();
        wait_until("all go on", || {
            let all = loops.iter().zip(&before);
            all.into_iter().all(|(l, before)| l.looks() > *before)
        });
    }
    let turns = t.turns();
    assert_eq!(turns.len(), 3, "{turns:?}");
    assert!(turns.iter().filter(|u| u.runs).count() <= 1);
    assert!(
        turns
            .iter()
            .filter(|u| (u.waiting, u.paused) == (0, 1))
            .count()
            >= 2,
        "{turns:?}"
    );
    // The loops end wherever they are, asleep or running.
    loops.iter().for_each(Loop::end);
    check_idle(&t);
}

#[test]
fn one_who_begins_many_leaves_room_for_others() {
    let t = Threads::start("t", 1).unwrap();
    let many: Vec<Loop> = (0..10).map(|_| Loop::begin(&t, "greedy")).collect();
    for _ in 0..5 {
        run(&t, "other");
    }
    let begun = || many.iter().filter(|l| l.looks() > 0).count();
    // Steps of one lease take turns as well, though longer ones.
    wait_until("some begin", || begun() == 4);
    many.iter()
        .for_each(|l| l.cancel.store(true, Ordering::Relaxed));
    many.iter().for_each(Loop::end);
    check_idle(&t);
}

/// Jobs of 0.3 ms, each of which submits the next one of its account, and records the order in which they ended.
#[derive(Clone)]
struct Chain {
    t: Threads,
    account: &'static str,
    order: Arc<Mutex<Vec<&'static str>>>,
}

impl Chain {
    const MOST: usize = 400;

    fn submit(self) {
        let (t, share) = (self.t.clone(), share(self.account));
        let job = Box::new(move || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(300) {
                std::hint::spin_loop();
            }
            let mut order = self.order.lock().unwrap();
            order.push(self.account);
            let goes_on = order.len() < Chain::MOST;
            drop(order);
            if goes_on {
                self.submit();
            }
        });
        assert!(t.submit(&share, 0, job).is_ok());
    }
}

#[test]
fn one_call_is_served_before_the_many_of_another() {
    let t = Threads::start("t", 1).unwrap();
    let order = Arc::<Mutex<Vec<&str>>>::default();
    for account in std::iter::repeat_n("many", 64).chain(["one"]) {
        let (t, order) = (t.clone(), order.clone());
        Chain { t, account, order }.submit();
    }
    check_idle(&t);
    let order = order.lock().unwrap();
    // The small account gets half of the turns, by time, where the system leaves the thread alone; by turns it would
    // get one of 65.
    let served = order.iter().filter(|account| **account == "one").count();
    assert!(served > Chain::MOST / 10, "{served}: {order:?}");
}

#[test]
fn a_kernel_that_is_split_sleeps_and_goes_on_with_all_its_tiles() {
    let t = Threads::start("t", 2).unwrap();
    let (tell, told) = mpsc::channel();
    let done = Arc::<AtomicUsize>::default();
    let count = done.clone();
    let job = Box::new(move || {
        let crew = Crew::current().unwrap();
        let cancel = AtomicBool::new(false);
        let ended = crew.exec(&cancel).tiles(2000, 1, |_| {
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(50) {
                std::hint::spin_loop();
            }
            count.fetch_add(1, Ordering::Relaxed);
        });
        tell.send(ended).unwrap();
    });
    assert!(t.submit(&share("long"), 0, job).is_ok());
    wait_until("it runs", || done.load(Ordering::Relaxed) > 0);
    // It has the other turn, so that a third job waits for one.
    let busy = Loop::begin(&t, "busy");
    let mut waits = Vec::new();
    while told.try_recv().is_err() && waits.len() < 20 {
        let (before, count) = (done.load(Ordering::Relaxed), done.clone());
        let begun = run_job(&t, "other", move || count.load(Ordering::Relaxed));
        waits.push(begun - before);
    }
    wait_until("it ends", || done.load(Ordering::Relaxed) == 2000);
    assert!(waits.len() > 1, "others had no turn");
    // Another job begins within one check interval of 10 ms, in which two threads run 400 tiles of 50 µs. Where the system
    // keeps a thread waiting, more may run.
    waits.sort_unstable();
    let median = waits[waits.len() / 2];
    assert!(
        median <= 400,
        "tiles that ran while another job waited: {waits:?}"
    );
    busy.end();
    check_idle(&t);
}

#[test]
fn brief_work_is_admitted_as_long_as_nobody_waits_or_its_part_lasts() {
    let t = Threads::start("t", 1).unwrap();
    let (brief, micros) = (share("brief"), Duration::from_micros(100));
    assert!((0..1000).all(|_| t.admits(&brief, micros)));
    let loops = ["a", "bb"].map(|account| Loop::begin(&t, account));
    wait_until("one waits", || t.turns().iter().any(|u| !u.runs));
    let admitted = (0..100_000)
        .take_while(|_| t.admits(&brief, 10 * micros))
        .count();
    assert!((1..100_000).contains(&admitted), "{admitted}");
    loops.iter().for_each(Loop::end);
    check_idle(&t);
}

#[test]
fn what_follows_a_job_finds_its_threads_free() {
    let t = Threads::start("t", 2).unwrap();
    let (tell, told) = mpsc::channel();
    let again = t.clone();
    let job = Box::new(move || {
        afterwards(move || {
            let crews = again.shared.lock().crews;
            let idle = again.shared.lock().idle.len();
            tell.send((crews, idle)).unwrap();
        });
    });
    assert!(t.submit(&share("one"), 0, job).is_ok());
    assert_eq!(told.recv_timeout(BOUND), Ok((1, 1)));
    check_idle(&t);
}

#[test]
fn a_kernel_takes_the_threads_that_others_leave() {
    let t = Threads::start("t", 2).unwrap();
    let other = Loop::begin(&t, "other");
    let (tell, told) = mpsc::channel();
    let job = Box::new(move || {
        let crew = Crew::current().unwrap();
        let (cancel, start) = (AtomicBool::new(false), Instant::now());
        let seen = Mutex::new(std::collections::HashSet::new());
        // As many tiles as it takes until two threads have one.
        let ended = crew.exec(&cancel).tiles(usize::MAX >> 33, 1, |tile| {
            let mut seen = seen.lock().unwrap();
            seen.insert(std::thread::current().id());
            if tile.start == 0 {
                tell.send(0).unwrap();
            }
            let enough = seen.len() > 1 || start.elapsed() > BOUND;
            cancel.store(enough, Ordering::Relaxed);
        });
        assert!(ended.is_err());
        tell.send(seen.lock().unwrap().len()).unwrap();
    });
    assert!(t.submit(&share("kernel"), 0, job).is_ok());
    assert_eq!(told.recv_timeout(BOUND), Ok(0));
    other.end();
    assert_eq!(told.recv_timeout(2 * BOUND), Ok(2));
    check_idle(&t);
}
