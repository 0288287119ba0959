//! Hosts on this machine: network namespaces whose only way to each other is a [`Switch`].

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::switch::{Impairment, Switch};

/// The frames that are read from a host before the others have their turn.
const TURN: usize = 64;
/// The longest time in which the switch looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);
/// Above the largest frame of a TAP device, whose packets have 1500 bytes.
const LARGEST_FRAME: usize = 2048;

/// A network namespace with a loopback device and the device `tap0`. It ends with its last thread, process and handle.
pub struct Host {
    pub address: String,
    namespace: File,
    tap: File,
}

impl Host {
    fn make(number: usize) -> Result<Host> {
        let address = format!("10.77.0.{}", number + 1);
        // The namespace is that of one thread, so the threads of the caller stay where they are.
        std::thread::scope(|s| {
            let made = s.spawn(|| -> Result<Host> {
                // SAFETY: the call moves this thread, which ends soon, to a new network namespace.
                check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
                let tap = tap()?;
                ip(&["link", "set", "lo", "up"])?;
                let subnet = format!("{address}/24");
                ip(&["address", "add", &subnet, "dev", "tap0"])?;
                ip(&["link", "set", "tap0", "up"])?;
                Ok(Host {
                    namespace: File::open("/proc/thread-self/ns/net")?,
                    tap,
                    address: address.clone(),
                })
            });
            made.join().expect("no panic")
        })
    }

    /// Runs `f` on a thread of this host. Threads and processes that it starts are the host's, too.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|s| {
            let run = s.spawn(|| {
                // SAFETY: the call moves this thread to the namespace of a file that is open.
                check(unsafe { libc::setns(self.namespace.as_raw_fd(), libc::CLONE_NEWNET) })
                    .unwrap();
                f()
            });
            run.join().expect("no panic")
        })
    }
}

fn check(returned: i32) -> Result<()> {
    match returned {
        -1 => Err(Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Makes the device `tap0` in the network namespace of this thread.
fn tap() -> Result<File> {
    let tap = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    // SAFETY: zeros are a valid request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"tap0") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the call reads and writes the request, which outlives it.
    check(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &mut request) })?;
    Ok(tap)
}

fn ip(arguments: &[&str]) -> Result<()> {
    let done = Command::new("ip").args(arguments).output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(Error::other(format!(
            "ip {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&done.stderr)
        ))),
    }
}

/// Hosts and the switch between them; dropping this ends the switch.
pub struct Network {
    pub hosts: Arc<Vec<Host>>,
    ends: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Network {
    /// Makes this many hosts, with a switch between them.
    pub fn make(hosts: usize, impairment: Impairment) -> Result<Network> {
        let hosts: Arc<Vec<Host>> = Arc::new((0..hosts).map(Host::make).collect::<Result<_>>()?);
        let ends = Arc::<AtomicBool>::default();
        let (of_thread, told) = (hosts.clone(), ends.clone());
        let switch = Switch::new(hosts.len(), impairment);
        let thread = std::thread::spawn(move || run(switch, &of_thread, &told));
        Ok(Network {
            hosts,
            ends,
            thread: Some(thread),
        })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().map(|t| t.join());
    }
}

fn run(mut switch: Switch, hosts: &[Host], ends: &AtomicBool) {
    let mut frame = [0; LARGEST_FRAME];
    while !ends.load(Ordering::Relaxed) {
        let now = Instant::now();
        while let Some((to, frame)) = switch.due(now) {
            // A host whose queue is full loses the frame, as any host does.
            let _ = (&hosts[to].tap).write(&frame);
        }
        let wait = switch
            .next()
            .map_or(LOOK, |next| next.saturating_duration_since(now).min(LOOK));
        await_frames(hosts, wait);
        for (from, host) in hosts.iter().enumerate() {
            for _ in 0..TURN {
                match (&host.tap).read(&mut frame) {
                    Ok(length) => switch.take(from, &frame[..length], Instant::now()),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) => panic!("the switch cannot read: {e}"),
                }
            }
        }
    }
}

/// Waits until a host has sent a frame, at most this long.
fn await_frames(hosts: &[Host], wait: Duration) {
    let mut polled: Vec<libc::pollfd> = hosts
        .iter()
        .map(|host| libc::pollfd {
            fd: host.tap.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    let wait = libc::timespec {
        tv_sec: wait.as_secs() as libc::time_t,
        tv_nsec: wait.subsec_nanos().into(),
    };
    // SAFETY: the array and the time outlive the call, and its length is the array's. An error means that a signal
    // came.
    unsafe {
        libc::ppoll(
            polled.as_mut_ptr(),
            polled.len() as libc::nfds_t,
            &wait,
            std::ptr::null(),
        )
    };
}
