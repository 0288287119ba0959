//! Kernels of real worker processes: when one runs, and one that hangs.

use std::path::Path;

use super::BOUND;
use super::waits::await_that;

/// Waits until a thread of the worker with this state folder is in a kernel, as it notes itself.
pub async fn in_kernel(folder: &Path) {
    let page = folder.join("black-box");
    await_that("a kernel runs", || {
        let bytes = std::fs::read(&page).unwrap_or_default();
        let noted = bytes.chunks_exact(256).skip(1).any(|r| r[..4] != [0; 4]);
        std::future::ready(noted)
    })
    .await;
}

/// Stops the compute thread of a worker process for good, as a kernel that hangs would. Its end is taken note of, as the
/// process cannot end before.
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
        // SAFETY: stops a thread of a process that this test started, and waits for it.
        let frozen = unsafe {
            libc::ptrace(libc::PTRACE_SEIZE, thread, null, null) == 0
                && libc::ptrace(libc::PTRACE_INTERRUPT, thread, null, null) == 0
                && libc::waitpid(thread, &mut status, libc::__WALL) == thread
        };
        let why = std::io::Error::last_os_error();
        tell.send(frozen.then_some(()).ok_or(why)).unwrap();
        // SAFETY: waits for the end of the same thread.
        unsafe { libc::waitpid(thread, &mut status, libc::__WALL) };
    });
    told.recv_timeout(BOUND).unwrap().unwrap();
}
