//! The faults that a scenario may cause, as methods of the cluster. Each one is noted in the trace.

use convoke_common::error::Result;
use convoke_common::rpc::Death;
use convoke_graph::ids::FunctionId;

use super::process::{CoordinatorHandle, Process};
use super::{Cluster, Host, HostState, RESTART, Task};
use crate::history::{Answer, Reply, Request};
use crate::world::{HostGuard, Wire};

/// The number of the signal of a bad access to memory.
const SIGSEGV: i32 = 11;

/// Why a process ended that a node took along, before the node's name.
pub const DIED_IN: &str = "SIGSEGV in node";

impl Cluster {
    fn note(&self, what: String) {
        self.trace.note(&what);
        if self.setup.print.is_some() {
            eprintln!("{:9.3} {what}", self.elapsed().as_secs_f64());
        }
    }

    /// Ends a host's process as SIGKILL does: the system closes its sockets, and its files stay.
    pub fn kill(&mut self, host: Host) {
        self.note(format!("kill {host}"));
        self.end(host);
        self.states.insert(host, HostState::Down);
    }

    /// Ends a worker's process as a fatal signal in this node of a function does. Its supervisor starts the next one, which
    /// tells the coordinator.
    pub fn die(&mut self, i: u16, function: FunctionId, node: &str) {
        let host = Host::Worker(i);
        self.note(format!("{host} dies in {node}"));
        if let (Some(worker), Some(machine)) = (self.worker(i), self.machine(host)) {
            machine.note_death(Death {
                incarnation: worker.peer().incarnation,
                signal: SIGSEGV,
                function,
                node: node.to_owned(),
            });
        }
        let asked = self.process(host).is_some_and(Process::is_asked_to_stop);
        self.end(host);
        let now = self.elapsed();
        let next = match asked {
            true => HostState::Down,
            false => HostState::Restarting(now + RESTART),
        };
        self.states.insert(host, next);
        self.ends.push((now, host, format!("{DIED_IN} '{node}'")));
    }

    /// Cuts a host's power: it tells nobody, and the writes that its disk had not synced are lost, in whole or in part.
    pub fn power_off(&mut self, host: Host) {
        self.note(format!("power off {host}"));
        if let Some(machine) = self.machine(host) {
            machine.disk.cut();
        }
        self.fail_power(host);
        self.states.insert(host, HostState::Down);
    }

    /// Stops a host's process as SIGSTOP does, until [`Cluster::resume`].
    pub fn pause(&mut self, host: Host) {
        self.note(format!("pause {host}"));
        if let Some(machine) = self.machine(host) {
            machine.gate.close();
        }
    }

    /// Lets a paused process continue.
    pub fn resume(&mut self, host: Host) {
        self.note(format!("resume {host}"));
        if let Some(machine) = self.machine(host) {
            machine.gate.open();
        }
    }

    /// Asks a host's process to stop, as SIGTERM does, and its supervisor not to start another. The host is down once the
    /// process has ended.
    pub fn stop(&mut self, host: Host) {
        self.note(format!("stop {host}"));
        self.trace.history().trouble(&host.name());
        if let HostState::Restarting(_) = self.state(host) {
            self.states.insert(host, HostState::Down);
        } else if let Some(process) = self.process(host) {
            process.stop();
        }
    }

    /// Has the coordinator take a worker out of service.
    pub fn drain(&self, host: Host) -> Task<Result<bool>> {
        self.note(format!("drain {host}"));
        let name = host.name();
        let request = Request::Drain { name: name.clone() };
        self.as_operator(
            request,
            move |c| async move { c.drain(&name).await },
            |there| *there,
        )
    }

    /// Has the coordinator put a worker back into service.
    pub fn undrain(&self, host: Host) -> Task<Result<bool>> {
        self.note(format!("undrain {host}"));
        let name = host.name();
        let request = Request::Undrain { name: name.clone() };
        self.as_operator(
            request,
            move |c| async move { c.undrain(&name).await },
            |serves| *serves,
        )
    }

    /// Has the coordinator forget a worker, which it does once the worker is gone and its leases are over.
    pub fn forget(&self, host: Host) -> Task<Result<()>> {
        self.note(format!("forget {host}"));
        let name = host.name();
        let request = Request::Forget { name: name.clone() };
        self.as_operator(
            request,
            move |c| async move { c.forget(&name).await },
            |()| true,
        )
    }

    /// Makes an operator's request, and notes it in the history with what the answer says.
    fn as_operator<T, F>(
        &self,
        request: Request,
        ask: impl FnOnce(CoordinatorHandle) -> F + Send + 'static,
        said: impl Fn(&T) -> bool + Send + 'static,
    ) -> Task<Result<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let history = self.trace.history().clone();
        let asked = history.begin(request);
        self.on_coordinator(move |c| async move {
            let answer = ask(c).await;
            let said = match &answer {
                Ok(answer) => Answer::Done(said(answer)),
                Err(e) => Answer::of_error(e.code),
            };
            history.end(asked, Reply::Operator(said));
            answer
        })
    }

    /// Has the coordinator lift the quarantine of a node.
    pub fn lift(&self, node: &str) -> Task<Result<u32>> {
        self.note(format!("lift {node}"));
        let node = node.to_owned();
        self.on_coordinator(|c: CoordinatorHandle| async move { c.lift_quarantine(&node).await })
    }

    /// Starts a host's process, unless it is up.
    pub fn start(&mut self, host: Host) {
        if self.state(host) == HostState::Up {
            return;
        }
        self.note(format!("start {host}"));
        if let (Host::Worker(_), Some(machine)) = (host, self.machine(host)) {
            let name = machine.member_name();
            self.trace.history().begin(Request::Start { name });
        }
        if let Some(machine) = self.machine(host) {
            machine.disk.start();
            machine.gate.open();
        }
        self.dark.remove(&host);
        self.sever();
        let (sim, dispatch) = (&mut self.sim, &self.dispatch);
        tracing::dispatcher::with_default(dispatch, || sim.bounce(host.name()));
        self.states.insert(host, HostState::Up);
    }

    /// A worker's next process on the host `to` has a copy of the state folder of the host `from`, and its name.
    pub fn copy_identity(&mut self, from: Host, to: Host) {
        self.note(format!("copy the identity of {from} to {to}"));
        if let (Some(from), Some(to)) = (self.machine(from), self.machine(to)) {
            to.take_identity(from);
        }
    }

    /// Nothing passes from one host to another; the other way it does.
    pub fn cut(&mut self, from: Host, to: Host) {
        self.note(format!("cut {from} -> {to}"));
        self.cuts.insert((from, to));
        self.sever();
    }

    /// Cuts both ways between two hosts.
    pub fn partition(&mut self, a: Host, b: Host) {
        self.cut(a, b);
        self.cut(b, a);
    }

    /// Lets packets pass from one host to another again.
    pub fn repair(&mut self, from: Host, to: Host) {
        self.note(format!("repair {from} -> {to}"));
        self.cuts.remove(&(from, to));
        self.sever();
    }

    /// Removes all cuts, resets all wires and resumes all paused processes. Hosts that are down stay down.
    pub fn heal(&mut self) {
        self.note("heal".into());
        self.cuts.clear();
        self.sever();
        for from in self.hosts() {
            for to in self.hosts() {
                self.wire(from, to, Wire::default());
            }
            if let Some(machine) = self.machine(from) {
                machine.gate.open();
            }
        }
    }

    /// Sets what happens to packets from one host to another.
    pub fn wire(&mut self, from: Host, to: Host, wire: Wire) {
        let (from, to) = (self.names.get(&from.name()), self.names.get(&to.name()));
        if let (Some(from), Some(to)) = (from, to) {
            self.wires.set(*from, *to, wire);
        }
    }

    /// Sets what happens to packets between any two hosts.
    pub fn wires(&mut self, wire: Wire) {
        for from in self.hosts() {
            for to in self.hosts() {
                self.wire(from, to, wire);
            }
        }
    }

    /// Takes a host off the network and ends its process.
    pub(super) fn fail_power(&mut self, host: Host) {
        self.dark.insert(host);
        self.sever();
        self.end(host);
    }

    /// Ends a host's process at once, if it is up.
    pub(super) fn end(&mut self, host: Host) {
        if self.state(host) != HostState::Up {
            return;
        }
        let history = self.trace.history();
        match host {
            Host::Coordinator => {
                history.coordinator_ended();
                let restart = || history.begin(Request::Restart);
                self.restart.get_or_insert_with(restart);
            }
            Host::Worker(_) | Host::Client(_) => history.trouble(&host.name()),
        }
        // The handles are dropped first: sockets have to close with the process, while turmoil knows which host they
        // are of.
        match host {
            Host::Coordinator => self.coordinator.clear(),
            Host::Worker(i) => self.workers[usize::from(i)].clear(),
            Host::Client(i) => self.clients[usize::from(i)].clear(),
        }
        let (sim, dispatch) = (&mut self.sim, &self.dispatch);
        tracing::dispatcher::with_default(dispatch, || {
            let _inside = HostGuard::of(host);
            sim.crash(host.name());
        });
        self.trace.stop_timers(host);
        // A paused process that is killed does not leave its host paused.
        if let Some(machine) = self.machine(host) {
            machine.gate.open();
        }
    }

    /// Makes the network match the cuts and the hosts without power.
    fn sever(&mut self) {
        let hosts = self.hosts();
        for from in &hosts {
            for to in hosts.iter().filter(|to| *to != from) {
                let pair = (*from, *to);
                let wanted =
                    self.cuts.contains(&pair) || self.dark.contains(from) || self.dark.contains(to);
                if wanted && self.severed.insert(pair) {
                    self.sim.partition_oneway(from.name(), to.name());
                } else if !wanted && self.severed.remove(&pair) {
                    self.sim.repair_oneway(from.name(), to.name());
                }
            }
        }
    }
}
