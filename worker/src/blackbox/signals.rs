//! The handler of fatal signals: marks the page, and hands on to whoever was there before.

use std::cell::UnsafeCell;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libc::{c_int, c_void, sigaction, siginfo_t};

use super::page::Page;

/// The signals that a defect raises.
pub const FATAL: [c_int; 5] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGABRT,
];

/// Where SIGABRT is among them: the only one that may follow upon another.
const ABORT: usize = FATAL.len() - 1;

/// The page of this process.
static PAGE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// What was done on each signal before, in the order of [`FATAL`].
struct Before(UnsafeCell<[MaybeUninit<sigaction>; FATAL.len()]>);

// SAFETY: written once, by whoever claimed that, before the handler that reads it is installed.
unsafe impl Sync for Before {}

static BEFORE: Before = Before(UnsafeCell::new(
    [const { MaybeUninit::uninit() }; FATAL.len()],
));

/// The calling thread, as the kernel numbers it.
pub fn thread() -> u32 {
    // SAFETY: takes no argument and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Whether this process has a black box.
static CLAIMED: AtomicBool = AtomicBool::new(false);

/// Makes the caller the one who may call [`mark`].
pub fn claim() -> io::Result<()> {
    match CLAIMED.swap(true, Ordering::SeqCst) {
        false => Ok(()),
        true => Err(io::Error::other("this process has a black box already")),
    }
}

/// Has fatal signals mark this page. Called once, by whoever has [`claim`]ed that.
pub fn mark(page: &Page) -> io::Result<()> {
    PAGE.store(page.as_ptr(), Ordering::SeqCst);
    for (i, signal) in FATAL.iter().enumerate() {
        // SAFETY: only one comes here, once. What was there is asked for, of all signals, before a handler of ours is
        // installed, so that it always finds it.
        let asked = unsafe {
            let before = (*BEFORE.0.get())[i].as_mut_ptr();
            libc::sigaction(*signal, ptr::null(), before)
        };
        if asked != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    match FATAL.iter().all(|signal| install(*signal)) {
        true => Ok(()),
        false => Err(io::Error::last_os_error()),
    }
}

/// Has the handler called on this signal. Safe in a handler.
fn install(signal: c_int) -> bool {
    // SAFETY: an all-zero sigaction is a valid one, completed below.
    let mut action: sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    // On the alternate stack that std gives its threads: a stack that overflowed has no room for a handler.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the set is this function's own, and the handler one of the type that SA_SIGINFO says.
    unsafe {
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(signal, &action, ptr::null_mut()) == 0
    }
}

/// What was done on a signal of [`FATAL`] before. Only once [`mark`] has noted it.
unsafe fn before(i: usize) -> &'static sigaction {
    // SAFETY: written before the first handler was installed, and not since.
    unsafe { (*BEFORE.0.get())[i].assume_init_ref() }
}

/// Runs `f` with SIGABRT doing what it did before: it may abort, on an alternate stack that has no room for the frames of two
/// signals where registers are wide.
fn aborting_plainly(signal: c_int, f: impl FnOnce()) {
    if signal == FATAL[ABORT] {
        return f();
    }
    // SAFETY: a handler of ours runs, so `mark` has noted what was there; setting it is safe in a handler.
    unsafe { libc::sigaction(FATAL[ABORT], before(ABORT), ptr::null_mut()) };
    f();
    install(FATAL[ABORT]);
}

/// Runs on a thread that may be anywhere: nothing here allocates, locks or panics.
extern "C" fn handler(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: PAGE holds what a page gave, or null.
    if let Some(page) = unsafe { Page::from_ptr(PAGE.load(Ordering::SeqCst)) } {
        page.mark(signal as u32, thread());
    }
    let mut i = 0;
    while i < FATAL.len() && FATAL[i] != signal {
        i += 1;
    }
    if i == FATAL.len() {
        return;
    }
    // SAFETY: this handler was installed after that.
    let before = unsafe { before(i) };
    aborting_plainly(signal, || match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => default(signal),
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: SA_SIGINFO says that the address is of a handler of this type.
            let handler = unsafe {
                std::mem::transmute::<usize, extern "C" fn(c_int, *mut siginfo_t, *mut c_void)>(
                    handler,
                )
            };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without SA_SIGINFO the address is of a handler of this type.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
            handler(signal);
        }
    });
    // An instruction that faulted faults again on return, and the process ends as if nobody had looked. A signal that
    // was sent is gone by now: where nobody else handles it, it is sent again.
    // SAFETY: the kernel gave `info`; the other calls read and send, and are safe in a handler.
    unsafe {
        let sent = (*info).si_code <= 0;
        let mut now = MaybeUninit::<sigaction>::zeroed();
        libc::sigaction(signal, ptr::null(), now.as_mut_ptr());
        if sent && now.assume_init_ref().sa_sigaction == libc::SIG_DFL {
            libc::raise(signal);
        }
    }
}

fn default(signal: c_int) {
    // SAFETY: an all-zero sigaction asks for the default, SIG_DFL being zero, and setting it is safe in a handler.
    unsafe {
        let action: sigaction = std::mem::zeroed();
        libc::sigaction(signal, &action, ptr::null_mut());
    }
}
