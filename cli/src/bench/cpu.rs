//! The CPU time that processes have used.

use convoke_common::error::{Code, Error, Result};

use crate::process::children::Process;

/// The CPU time that each process has used, in seconds of user and kernel mode.
pub fn taken(processes: &[Process]) -> Result<Vec<f64>> {
    let of = |p: &Process| {
        let msg = format!("the time that {} has taken cannot be read", p.what());
        let time = p.pid().and_then(|pid| clock(pid as libc::pid_t));
        time.ok_or_else(|| Error::new(Code::Io, msg))
    };
    processes.iter().map(of).collect()
}

/// The CPU time that this process has used, in seconds of user and kernel mode.
pub fn own() -> Result<f64> {
    let msg = "the time that this process has taken cannot be read";
    clock(0).ok_or_else(|| Error::new(Code::Io, msg))
}

/// The CPU time of the process with this id, in seconds; 0 stands for this process.
fn clock(pid: libc::pid_t) -> Option<f64> {
    let mut id = 0;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: both calls write only to `id` and `time`, which outlive the calls.
    let failed = unsafe {
        libc::clock_getcpuclockid(pid, &mut id) != 0 || libc::clock_gettime(id, &mut time) != 0
    };
    (!failed).then_some(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_is_taken_is_counted() {
        let before = own().unwrap();
        let mut sum = 0u64;
        while own().unwrap() <= before {
            sum = std::hint::black_box(sum + 1);
        }
        let pid = std::process::id() as libc::pid_t;
        assert!(clock(pid).unwrap() > before);
        // This id is above all that Linux assigns.
        assert_eq!(clock(1 << 23), None);
    }
}
