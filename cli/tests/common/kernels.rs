//! Kernels of real worker processes: waits for one to run, and makes one hang.

use std::path::Path;

use super::BOUND;
use super::waits::await_that;

/// Waits until the black box of the worker with this state folder says that a thread is in a kernel.
pub async fn in_kernel(folder: &Path) {
    let page = folder.join("black-box");
    await_that("a kernel runs", || {
        let bytes = std::fs::read(&page).unwrap_or_default();
        let noted = bytes.chunks_exact(256).skip(1).any(|r| r[..4] != [0; 4]);
        std::future::ready(noted)
    })
    .await;
}

/// Stops the compute thread of a worker process for good, as a kernel that hangs would. A tracer thread waits for the
/// stopped thread's end, since the process cannot end before its tracer has collected it.
pub fn freeze(pid: i32) {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .flatten();
    let mut named = tasks.filter(|t| {
        let comm = std::fs::read_to_string(t.path().join("comm"));
        comm.is_ok_and(|c| c.trim_end() == "convoke-compute")
    });
    let thread: i32 = named
        .next()
        .unwrap()
        .file_name()
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let null = std::ptr::null_mut::<libc::c_void>();
        let mut status = 0;
        // SAFETY: the calls stop a thread of a process that this test started, and write only to `status`.
        let frozen = unsafe {
            libc::ptrace(libc::PTRACE_SEIZE, thread, null, null) == 0
                && libc::ptrace(libc::PTRACE_INTERRUPT, thread, null, null) == 0
                && libc::waitpid(thread, &mut status, libc::__WALL) == thread
        };
        let why = std::io::Error::last_os_error();
        tell.send(frozen.then_some(()).ok_or(why)).unwrap();
        // SAFETY: the call waits for the end of the same thread, and writes only to `status`.
        unsafe { libc::waitpid(thread, &mut status, libc::__WALL) };
    });
    told.recv_timeout(BOUND).unwrap().unwrap();
}
