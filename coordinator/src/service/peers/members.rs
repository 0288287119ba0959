//! The coordinator service as members see it: which member may call what.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use convoke_common::admission::warn_of_loopback;
use convoke_common::identity::{PeerIdentity, Role, certified_until};
use convoke_common::ids::{Incarnation, LeaseId, PlanId};
use convoke_common::rpc::{
    ClusterStatus, Coordinator, JoinAnswer, LeaseGrant, LinkReport, PlanAnswer, PlanOptions,
    Progress, Registration, RegistrationAnswer, StepFailure,
};
use convoke_common::{Code, Error, Result, VERSION};
use convoke_graph::graph::Function;
use tarpc::context::Context;
use tokio::time::Instant;

use crate::audit::{Entry, Event};
use crate::membership::{ConnectionId, Driver, Membership, events, shortened};
use crate::service::Service;
use crate::service::connections::RETIRED;

/// How many characters of a peer's text a message repeats.
const LONGEST_SHOWN: usize = 64;

/// The least time between two renewals over one connection: a registered worker's is written to disk while the core waits.
/// Members renew after days, and after they have joined anew.
const RENEWAL_PACE: Duration = Duration::from_secs(1);

/// The longest wait that a caller may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// The caller of a request, with the identity that its connection proved.
#[derive(Debug)]
pub struct Caller {
    pub id: ConnectionId,
    pub identity: PeerIdentity,
    /// The caller's address as the coordinator sees it.
    pub remote: SocketAddr,
    /// When it last asked for a renewal over this connection.
    renewed: Mutex<Option<Instant>>,
}

impl Caller {
    /// Returns the caller on a connection, which has asked for nothing yet.
    pub fn new(id: ConnectionId, identity: PeerIdentity, remote: SocketAddr) -> Caller {
        Caller {
            id,
            identity,
            remote,
            renewed: Mutex::default(),
        }
    }

    /// Counts a renewal, or refuses it if the last one was a moment ago.
    fn may_renew(&self, now: Instant) -> Result<()> {
        let mut renewed = self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        if renewed.is_some_and(|last| now.duration_since(last) < RENEWAL_PACE) {
            let pace = RENEWAL_PACE.as_secs();
            let name = &self.identity.name;
            let msg = format!("'{name}' asked for another certificate within {pace} s");
            let advice = format!("use the certificate that it got, or ask again in {pace} s");
            return Err(Error::new(Code::Busy, msg).advise(advice));
        }
        *renewed = Some(now);
        Ok(())
    }

    /// Returns the caller as a driver with this incarnation.
    pub fn driver(&self, incarnation: Incarnation) -> Driver {
        let name = self.identity.name.to_string();
        Driver { name, incarnation }
    }

    fn entry(&self, event: Event) -> Entry {
        Entry::of(event).member(&self.identity, self.remote)
    }

    fn must_be(&self, role: Role, what: &str) -> Result<()> {
        if self.identity.role == role {
            return Ok(());
        }
        let (name, is) = (&self.identity.name, self.identity.role);
        let message = format!("only a {role} may {what}; '{name}' joined as a {is}");
        let advice = format!("join with a token made with `convoke token create --role {role}`");
        Err(Error::new(Code::Unauthorized, message).advise(advice))
    }
}

/// Serves one member.
#[derive(Clone)]
pub struct Member {
    pub service: Arc<Service>,
    pub caller: Arc<Caller>,
}

impl Coordinator for Member {
    async fn register(self, _: Context, request: Registration) -> Result<RegistrationAnswer> {
        let caller = &*self.caller;
        let registered = async {
            caller.must_be(Role::Worker, "register")?;
            self.service.register(caller, request).await
        };
        let registered = registered.await;
        if let Err(error) = &registered {
            self.service.registration_refused(caller, error);
        }
        registered
    }

    async fn leave(self, _: Context) -> Result<()> {
        self.caller.must_be(Role::Worker, "leave")?;
        tracing::info!(worker = %self.caller.identity.name, "takes no new work and will end");
        let departure = events::Departure {
            connection: self.caller.id,
        };
        self.service.core.apply(departure).await
    }

    async fn wedged(self, _: Context, why: Error) -> Result<()> {
        self.caller.must_be(Role::Worker, "be wedged")?;
        let shown = shortened(&why.message);
        tracing::warn!(worker = %self.caller.identity.name, why = shown, "is wedged");
        let wedge = events::Wedge {
            connection: self.caller.id,
            why,
        };
        self.service.core.apply(wedge).await
    }

    async fn dropped(self, _: Context, leases: Vec<LeaseId>) -> Result<()> {
        self.caller.must_be(Role::Worker, "drop leases")?;
        let dropped = events::LeaseDrop {
            connection: self.caller.id,
            leases,
        };
        self.service.core.apply(dropped).await
    }

    async fn failed(self, _: Context, steps: Vec<StepFailure>) -> Result<()> {
        self.caller.must_be(Role::Worker, "tell of failed steps")?;
        let worker = self.caller.identity.name.as_str();
        for failure in &steps {
            if let Some(others) = self.service.failed_steps.admit(Instant::now()) {
                failure.log(worker, others.saturating_add(failure.others));
            }
        }
        Ok(())
    }

    async fn report_links(self, _: Context, links: Vec<LinkReport>) -> Result<()> {
        self.caller.must_be(Role::Worker, "report links")?;
        let reported = events::LinkReports {
            connection: self.caller.id,
            reports: links,
        };
        self.service.core.apply(reported).await
    }

    async fn renew(self, _: Context, csr: Vec<u8>) -> Result<JoinAnswer> {
        let (service, caller) = (self.service, self.caller);
        caller.may_renew(Instant::now())?;
        let PeerIdentity {
            role,
            name,
            token_id,
            fingerprint: shown,
            ..
        } = caller.identity.clone();
        // A caller whose connection is gone gets no answer anyway.
        let gone = || Error::unreachable(None, "the connection ended");
        let peer = service.connections.get(caller.id).ok_or_else(gone)?;
        let connection = peer.connection;
        let budget = service.authority.renewable(&token_id).await?;
        if !service.authority.vouches_for(&connection, peer.renewed_by) {
            let e = Error::new(Code::Unauthorized, RETIRED);
            return Err(e.advise("join anew with a token that was made since"));
        }
        let until = certified_until(&connection);
        let by = service.authority.ca_hash();
        if role == Role::Worker {
            let (id, name) = (caller.id, name.to_string());
            let holds = move |core: &Membership| core.holds(id, &name, shown);
            if !service.core.query(move |core, _| holds(core)).await? {
                return Err(former_holder(&caller.identity));
            }
        }
        let (joined, fingerprint) = service
            .authority
            .issue(
                role,
                name.clone(),
                token_id,
                budget,
                &csr,
                until.or(Some(0)),
            )
            .await?;
        if role == Role::Worker {
            let renewed = events::RenewedCertificate {
                connection: caller.id,
                fingerprint,
            };
            service.core.apply(renewed).await?;
        }
        service.connections.renewed(caller.id, by);
        tracing::info!(%name, %role, "certificate renewed");
        let entry = caller.entry(Event::Renewed);
        service.audit.record_of(&caller.identity, entry);
        Ok(joined)
    }

    async fn await_workers(self, _: Context, count: u32, wait_ms: u64) -> Result<u32> {
        self.caller.must_be(Role::Client, "wait for workers")?;
        let mut population = self.service.population.subscribe();
        let wait = Duration::from_millis(wait_ms).min(LONGEST_WAIT);
        // If too few workers come in time, their number is the answer and not an error.
        let _ = tokio::time::timeout(wait, population.wait_for(|alive| *alive >= count)).await;
        Ok(*population.borrow())
    }

    async fn plan(
        self,
        _: Context,
        function: Arc<Function>,
        options: PlanOptions,
        driver: Incarnation,
    ) -> Result<PlanAnswer> {
        self.caller.must_be(Role::Client, "plan")?;
        self.service
            .plan(&self.caller, function, options, driver)
            .await
    }

    async fn install(self, _: Context, plan: PlanId) -> Result<LeaseGrant> {
        self.caller.must_be(Role::Client, "install a plan")?;
        self.service.install(self.caller.id, plan).await
    }

    async fn progress(self, _: Context, plan: PlanId) -> Result<Progress> {
        self.caller.must_be(Role::Client, "follow an install")?;
        self.service.progress(self.caller.id, plan).await
    }

    async fn release(self, _: Context, lease: LeaseId) -> Result<()> {
        self.caller.must_be(Role::Client, "release a lease")?;
        self.service.release(self.caller.id, lease).await
    }

    async fn resume(
        self,
        _: Context,
        driver: Incarnation,
        held: Vec<LeaseId>,
        version: String,
    ) -> Result<()> {
        self.caller.must_be(Role::Client, "resume")?;
        same_release(Role::Client, self.caller.identity.name.as_str(), &version)?;
        let resumption = events::Resumption {
            connection: self.caller.id,
            driver: self.caller.driver(driver),
            held,
        };
        Ok(self.service.core.apply(resumption).await??)
    }

    async fn abandon(self, _: Context, plan: PlanId) -> Result<()> {
        self.caller.must_be(Role::Client, "give up a plan")?;
        self.service.abandon(self.caller.id, plan).await
    }

    async fn status(self, _: Context) -> Result<ClusterStatus> {
        self.service.status().await
    }
}

/// The error of a worker whose name another process has by now.
fn former_holder(identity: &PeerIdentity) -> Error {
    let msg = format!(
        "the certificate of '{}' does not hold that name any more",
        identity.name
    );
    Error::new(Code::Unauthorized, msg).advise("start it again: it joins anew with its token")
}

/// Refuses a peer that runs another release: the numerics profile and the wire format may differ between any two.
pub(super) fn same_release(role: Role, name: &str, version: &str) -> Result<()> {
    if version == VERSION {
        return Ok(());
    }
    let who = match name {
        "" => format!("this {role}"),
        name => format!("{role} '{}'", brief(name)),
    };
    let message = format!(
        "{who} runs convoke {}, the coordinator {VERSION}",
        brief(version)
    );
    let advice = "run the same release on all machines; whoever runs another cannot join";
    Err(Error::new(Code::VersionMismatch, message).advise(advice))
}

/// Shortens a peer's text for a message and removes control characters.
fn brief(text: &str) -> String {
    let printable = text.chars().filter(|c| !c.is_control());
    printable.take(LONGEST_SHOWN).collect()
}

impl Service {
    async fn register(
        &self,
        caller: &Caller,
        register: Registration,
    ) -> Result<RegistrationAnswer> {
        let name = caller.identity.name.to_string();
        same_release(Role::Worker, &name, &register.version)?;
        let advertised = reachable(&register.advertise, caller.remote.ip())?;
        let newcomer = events::Newcomer {
            connection: caller.id,
            name: name.clone(),
            fingerprint: caller.identity.fingerprint,
            address: advertised.clone(),
            register,
            at: self.world.wall.unix_seconds(),
        };
        let offer = &newcomer.register;
        let (incarnation, threads, memory) = (offer.incarnation, offer.threads, offer.memory);
        let peers = self.once_free(newcomer).await??;
        let others = peers.iter().map(|p| (&*p.name, &*p.address));
        warn_of_loopback((&name, &advertised), others);
        let asked = name.clone();
        let is_drained = self.core.query(move |core, _| core.is_drained(&asked));
        let drained = is_drained.await?;
        let (address, token) = (caller.remote, &caller.identity.token_id);
        tracing::info!(
            name, %incarnation, %address, %token, advertised, threads, memory, drained,
            "worker registered"
        );
        self.audit
            .record_of(&caller.identity, caller.entry(Event::Registered));
        Ok(RegistrationAnswer {
            name,
            address: advertised,
            revoked: self.authority.revoked().list(),
            peers,
            drained,
        })
    }

    fn registration_refused(&self, caller: &Caller, error: &Error) {
        if let Some(others) = self.refused_registrations.admit(Instant::now()) {
            let PeerIdentity { name, token_id, .. } = &caller.identity;
            let (address, token) = (caller.remote, token_id);
            tracing::warn!(%name, %address, %token, %error, others, "a worker was not registered");
            let entry = caller.entry(Event::RegistrationRefused);
            self.audit.record(entry.refused(error, others));
        }
    }
}

/// Returns the address of a worker for other members. The worker advertises `HOST:PORT`, or `:PORT` if its host is
/// `remote`, the address that the coordinator sees.
fn reachable(advertise: &str, remote: IpAddr) -> Result<String> {
    let bad = || {
        let e = Error::new(
            Code::InvalidArgument,
            format!("'{advertise}' is no address to reach a worker at"),
        );
        e.advise("give --advertise HOST:PORT")
    };
    let (host, port) = advertise.rsplit_once(':').ok_or_else(bad)?;
    if port.parse::<u16>().map_err(|_| bad())? == 0 || host.chars().any(char::is_whitespace) {
        return Err(bad());
    }
    Ok(match (host, remote) {
        ("", IpAddr::V4(ip)) => format!("{ip}:{port}"),
        ("", IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
        _ => advertise.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use convoke_common::identity::{Budget, Serial, TokenId};

    use super::*;

    #[test]
    fn renewals_over_one_connection_are_paced() {
        let identity = PeerIdentity {
            role: Role::Worker,
            name: "w".parse().unwrap(),
            token_id: TokenId::direct(),
            budget: Budget::default(),
            serial: Serial::from_random([1; 16]),
            fingerprint: [0; 32],
        };
        let remote = SocketAddr::from(([10, 0, 0, 7], 7071));
        let caller = Caller::new(ConnectionId(1), identity, remote);
        let first = Instant::now();
        caller.may_renew(first).unwrap();
        let just_before = first + RENEWAL_PACE - Duration::from_nanos(1);
        for early in [first, just_before] {
            let error = caller.may_renew(early).unwrap_err();
            assert_eq!(error.code, Code::Busy);
            assert!(error.advice.contains("ask again in 1 s"), "{error}");
        }
        caller.may_renew(first + RENEWAL_PACE).unwrap();
        caller.may_renew(first + RENEWAL_PACE).unwrap_err();
    }

    #[test]
    fn an_address_without_a_host_is_where_we_see_it() {
        let (v4, v6) = (IpAddr::from([10, 0, 0, 7]), "fd00::7".parse().unwrap());
        let check = |given: &str, remote, expected: Option<&str>| {
            assert_eq!(
                reachable(given, remote).ok().as_deref(),
                expected,
                "{given}"
            );
        };
        check(":7071", v4, Some("10.0.0.7:7071"));
        check(":7071", v6, Some("[fd00::7]:7071"));
        check("worker.example:7", v4, Some("worker.example:7"));
        check("[::1]:7", v4, Some("[::1]:7"));
        for bad in ["", "worker", ":0", ":70000", "a b:1", "a:"] {
            check(bad, v4, None);
        }
    }
}
