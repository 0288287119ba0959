//! The coordinator service, as members see it: who may call what.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use convoke_common::graph::Function;
use convoke_common::identity::{PeerIdentity, Role};
use convoke_common::ids::{Incarnation, LeaseId, PlanId};
use convoke_common::rpc::{
    ClusterStatus, Coordinator, Joined, Leased, LinkReport, PlanOptions, Planned, Progress,
    Register, Registered,
};
use convoke_common::{Code, Error, Result};
use tarpc::context::Context;

use super::Service;
use crate::membership::{ConnectionId, Driver, Membership, MembershipError, Newcomer};

/// Longest wait that a caller may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Who calls: what its connection proved.
#[derive(Debug)]
pub struct Caller {
    pub id: ConnectionId,
    pub identity: PeerIdentity,
    /// Where we see it.
    pub remote: IpAddr,
}

impl Caller {
    /// This incarnation of the caller, as a driver.
    pub fn driver(&self, incarnation: Incarnation) -> Driver {
        let name = self.identity.name.to_string();
        Driver { name, incarnation }
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
    async fn register(self, _: Context, request: Register) -> Result<Registered> {
        self.caller.must_be(Role::Worker, "register")?;
        self.service.register(&self.caller, request).await
    }

    async fn leave(self, _: Context) -> Result<()> {
        self.caller.must_be(Role::Worker, "leave")?;
        let id = self.caller.id;
        tracing::info!(worker = %self.caller.identity.name, "takes no new work and will end");
        let leave = move |core: &mut Membership, now| core.leave(now, id);
        self.service.core.call(leave).await
    }

    async fn wedged(self, _: Context, why: Error) -> Result<()> {
        self.caller.must_be(Role::Worker, "be wedged")?;
        let id = self.caller.id;
        tracing::warn!(worker = %self.caller.identity.name, %why, "is wedged");
        let wedged = move |core: &mut Membership, now| core.wedged(now, id, &why);
        self.service.core.call(wedged).await
    }

    async fn report_links(self, _: Context, links: Vec<LinkReport>) -> Result<()> {
        self.caller.must_be(Role::Worker, "report links")?;
        let id = self.caller.id;
        self.service
            .core
            .call(move |core, now| core.reported(now, id, &links))
            .await
    }

    async fn renew(self, _: Context, csr: Vec<u8>) -> Result<Joined> {
        let (service, caller) = (self.service, self.caller);
        let PeerIdentity {
            role,
            name,
            token_id,
            ..
        } = caller.identity.clone();
        let (certificate, fingerprint) =
            service
                .authority
                .issue(role, name.clone(), token_id, &csr)?;
        if role == Role::Worker {
            let id = caller.id;
            service
                .core
                .call(move |core, _| core.renewed(id, fingerprint))
                .await?;
        }
        tracing::info!(%name, %role, "certificate renewed");
        Ok(Joined {
            name: name.to_string(),
            certificate,
        })
    }

    async fn await_workers(self, _: Context, count: u32, wait_ms: u64) -> Result<u32> {
        self.caller.must_be(Role::Client, "wait for workers")?;
        let mut population = self.service.population.subscribe();
        let wait = Duration::from_millis(wait_ms).min(LONGEST_WAIT);
        // Too few in time is an answer, not an error.
        let _ = tokio::time::timeout(wait, population.wait_for(|alive| *alive >= count)).await;
        Ok(*population.borrow())
    }

    async fn plan(
        self,
        _: Context,
        function: Arc<Function>,
        options: PlanOptions,
        driver: Incarnation,
    ) -> Result<Planned> {
        self.caller.must_be(Role::Client, "plan")?;
        self.service
            .plan(&self.caller, function, options, driver)
            .await
    }

    async fn install(self, _: Context, plan: PlanId) -> Result<Leased> {
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

    async fn resume(self, _: Context, driver: Incarnation, held: Vec<LeaseId>) -> Result<()> {
        self.caller.must_be(Role::Client, "resume")?;
        let driver = self.caller.driver(driver);
        let id = self.caller.id;
        let resumed = move |core: &mut Membership, _| core.resume(id, driver, held);
        Ok(self.service.core.call(resumed).await??)
    }

    async fn abandon(self, _: Context, plan: PlanId) -> Result<()> {
        self.caller.must_be(Role::Client, "give up a plan")?;
        self.service.abandon(self.caller.id, plan).await
    }

    async fn status(self, _: Context) -> Result<ClusterStatus> {
        self.service.status().await
    }
}

impl Service {
    async fn register(&self, caller: &Caller, register: Register) -> Result<Registered> {
        let name = caller.identity.name.to_string();
        let address = reachable(&register.advertise, caller.remote)?;
        let newcomer = Newcomer {
            connection: caller.id,
            name: name.clone(),
            fingerprint: caller.identity.fingerprint,
            address: address.clone(),
            register,
            at: self.world.wall.unix_seconds(),
        };
        let again = newcomer.clone();
        let offer = &again.register;
        let (incarnation, threads, memory) = (offer.incarnation, offer.threads, offer.memory);
        let registered = match self
            .core
            .call(move |core, now| core.register(now, newcomer))
            .await?
        {
            Err(MembershipError::NameTaken {
                holder: Some(holder),
                ..
            }) if self.gives_up_name(holder).await => {
                self.core
                    .call(move |core, now| core.register(now, again))
                    .await?
            }
            registered => registered,
        };
        let peers = registered.inspect_err(|error| {
            tracing::warn!(name, %error, "a worker was not registered");
        })?;
        let asked = name.clone();
        let is_drained = move |core: &mut Membership, _| core.is_drained(&asked);
        let drained = self.core.call(is_drained).await?;
        tracing::info!(name, %incarnation, address, threads, memory, drained, "worker registered");
        Ok(Registered {
            name,
            address,
            revoked: self.authority.revoked().list(),
            peers,
            drained,
        })
    }
}

/// Where others reach a worker that advertises `HOST:PORT` or `:PORT` and that we see at `remote`.
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
    use super::*;

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
