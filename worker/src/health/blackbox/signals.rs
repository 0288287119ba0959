//! The handler of fatal signals: marks the page, and calls the handler that was there before.

use std::cell::UnsafeCell;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libc::{c_int, c_void, sigaction, siginfo_t};

use super::page::Page;

/// The signals that a defect may raise.
pub const FATAL: [c_int; 5] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGABRT,
];

/// The index of SIGABRT in [`FATAL`]: the only signal that may follow upon another.
const ABORT: usize = FATAL.len() - 1;

/// The address of this process's page, or null.
static PAGE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// The actions that signals had before, in the order of [`FATAL`].
struct FormerActions(UnsafeCell<[MaybeUninit<sigaction>; FATAL.len()]>);

// SAFETY: the cell is written once, by the caller that `claim` let pass, before the handler that reads it is installed.
unsafe impl Sync for FormerActions {}

static BEFORE: FormerActions = FormerActions(UnsafeCell::new(
    [const { MaybeUninit::uninit() }; FATAL.len()],
));

/// The calling thread's id, as the kernel numbers it.
pub fn thread() -> u32 {
    // SAFETY: the call takes no argument and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Whether this process has a black box.
static CLAIMED: AtomicBool = AtomicBool::new(false);

/// Gives the caller the right to call [`mark`]; fails where another one has it.
pub fn claim() -> io::Result<()> {
    match CLAIMED.swap(true, Ordering::SeqCst) {
        false => Ok(()),
        true => Err(io::Error::other("this process has a black box already")),
    }
}

/// Makes fatal signals mark this page. To be called once, after [`claim`].
pub fn mark(page: &Page) -> io::Result<()> {
    PAGE.store(page.as_ptr(), Ordering::SeqCst);
    for (i, signal) in FATAL.iter().enumerate() {
        // SAFETY: only one caller comes here, once. All former actions are read before a handler of ours is installed,
        // so that it always finds them.
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

/// Installs the handler for this signal. Safe in a handler.
fn install(signal: c_int) -> bool {
    // SAFETY: an all-zero sigaction is valid; it is completed below.
    let mut action: sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    // The handler runs on the alternate stack that std gives its threads: an overflowed stack has no room for it.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the set is this function's own, and the handler has the type that SA_SIGINFO announces.
    unsafe {
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(signal, &action, ptr::null_mut()) == 0
    }
}

/// The action that a signal of [`FATAL`] had before. Only valid once [`mark`] has noted it.
unsafe fn before(i: usize) -> &'static sigaction {
    // SAFETY: the action was written before the first handler was installed, and has not been written since.
    unsafe { (*BEFORE.0.get())[i].assume_init_ref() }
}

/// Runs `f` while SIGABRT has its former action: `f` may abort, and where registers are wide the alternate stack has no
/// room for the frames of two signals.
fn aborting_plainly(signal: c_int, f: impl FnOnce()) {
    if signal == FATAL[ABORT] {
        return f();
    }
    // SAFETY: a handler of ours runs, so `mark` has noted the former action; setting it is safe in a handler.
    unsafe { libc::sigaction(FATAL[ABORT], before(ABORT), ptr::null_mut()) };
    f();
    install(FATAL[ABORT]);
}

/// Handles a fatal signal, on a thread that may be anywhere: nothing here allocates, locks or panics.
extern "C" fn handler(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: PAGE holds an address from `Page::as_ptr`, or null.
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
    // SAFETY: `mark` had noted the actions before it installed this handler.
    let before = unsafe { before(i) };
    aborting_plainly(signal, || match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => default(signal),
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: SA_SIGINFO says that the address is that of a handler of this type.
            let handler = unsafe {
                std::mem::transmute::<usize, extern "C" fn(c_int, *mut siginfo_t, *mut c_void)>(
                    handler,
                )
            };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without SA_SIGINFO the address is that of a handler of this type.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
            handler(signal);
        }
    });
    // An instruction that faulted faults again on return, and the process ends as if there had been no handler. A
    // signal that was sent is gone by now: where no other handler treats it, it is sent again.
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
    // SAFETY: an all-zero sigaction asks for the default, since SIG_DFL is zero, and setting it is safe in a handler.
    unsafe {
        let action: sigaction = std::mem::zeroed();
        libc::sigaction(signal, &action, ptr::null_mut());
    }
}
