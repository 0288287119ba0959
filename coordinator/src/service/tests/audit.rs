//! The lines of the audit log about members and about the owner.

use std::net::SocketAddr;
use std::time::Duration;

use convoke_common::admission::call;
use convoke_common::identity::{Budget, JoinToken, OwnKey, Role};
use convoke_common::rpc::{Registration, answer, close};
use convoke_common::telemetry::LineLimit;
use serde_json::Value;

use crate::CoordinatorConfig;
use crate::admin::{AdminClient, socket_in};
use crate::service::testing::*;

struct Audited {
    rig: Rig,
    admin: AdminClient,
    scratch: Scratch,
}

impl Audited {
    async fn start() -> Audited {
        let scratch = Scratch::new();
        let dir = scratch.path().to_owned();
        let config = CoordinatorConfig {
            state_dir: Some(dir.clone()),
            run_dir: Some(dir.clone()),
            ..config()
        };
        Audited {
            rig: rig_with(config).await.unwrap(),
            admin: AdminClient::new(&socket_in(&dir)),
            scratch,
        }
    }

    /// Returns the lines of one kind of event, after all earlier events were written.
    async fn lines(&self, event: &str) -> Vec<Value> {
        self.rig.running.health().await.unwrap();
        let text = std::fs::read_to_string(self.scratch.path().join("audit.log")).unwrap();
        let lines = text.lines().map(|l| serde_json::from_str(l).unwrap());
        lines.filter(|l: &Value| l["event"] == event).collect()
    }

    /// Returns the only line of one kind of event.
    async fn line(&self, event: &str) -> Value {
        let lines = self.lines(event).await;
        assert_eq!(lines.len(), 1, "{event}: {lines:?}");
        lines.into_iter().next().unwrap()
    }
}

/// Checks role, name and token of a line, and that its address is one of this machine.
#[track_caller]
fn check(line: &Value, role: &str, name: &str, token: &JoinToken) {
    let of = [&line["role"], &line["name"], &line["token"]];
    assert_eq!(of, [role, name, token.id.as_str()], "{line}");
    let address: SocketAddr = line["address"].as_str().unwrap().parse().unwrap();
    assert!(address.ip().is_loopback() && address.port() > 0, "{line}");
    let time = line["time"].as_str().unwrap();
    assert!(time.len() == 24 && time.ends_with('Z'), "{line}");
}

#[tokio::test]
async fn members_are_recorded_with_address_and_token() {
    let audited = Audited::start().await;
    let rig = &audited.rig;
    let token = rig.token(Role::Worker).await;
    let identity = rig.join(&token, Role::Worker, "w").await.unwrap();
    check(&audited.line("joined").await, "worker", "w", &token);

    let worker = rig.connect(&identity).await.unwrap();
    worker.register(1).await.unwrap();
    check(&audited.line("registered").await, "worker", "w", &token);
    let key = OwnKey::generate(rig.world.rng.as_ref()).unwrap();
    let renewed = worker.client.renew(call(), key.csr().unwrap()).await;
    answer(None, renewed).unwrap();
    check(&audited.line("renewed").await, "worker", "w", &token);

    let other = Registration {
        version: "99.1.0".into(),
        ..offer(1)
    };
    let refused = worker.client.register(call(), other).await;
    assert!(answer(None, refused).is_err());
    let line = audited.line("registration_refused").await;
    check(&line, "worker", "w", &token);
    assert_eq!(
        (&line["code"], &line["others"]),
        (&"version_mismatch".into(), &0.into())
    );
    let cause = line["cause"].as_str().unwrap();
    assert!(
        cause.starts_with("worker 'w' runs convoke 99.1.0"),
        "{line}"
    );
}

#[tokio::test]
async fn refused_joins_are_recorded_a_few_at_a_time() {
    let audited = Audited::start().await;
    let good = audited.rig.token(Role::Worker).await;
    let forged = JoinToken {
        secret: audited.rig.token(Role::Worker).await.secret,
        ..good.clone()
    };
    let most = LineLimit::LINES as usize;
    for n in 0..most + 3 {
        let name = format!("w{n}\u{1b}[2J");
        let joined = audited.rig.join(&forged, Role::Worker, &name).await;
        assert!(joined.is_err());
    }
    let lines = audited.lines("join_refused").await;
    assert_eq!(lines.len(), most, "{lines:?}");
    check(&lines[0], "worker", "w0\\u{1b}[2J", &good);
    assert_eq!(lines[0]["code"], "unauthorized");
    assert_eq!(lines[0]["cause"], "the join token is unknown here");
    // Joins with another token still have a line.
    let client = audited.rig.token(Role::Client).await;
    audited.rig.join(&client, Role::Client, "").await.unwrap();
    audited.line("joined").await;
}

#[tokio::test]
async fn a_connection_beyond_the_budget_is_recorded() {
    let audited = Audited::start().await;
    let rig = &audited.rig;
    let one = Budget {
        connections: Some(1),
        ..Budget::default()
    };
    let token = rig.running.create_token_with(Role::Client, None, one);
    let token = token.await.unwrap();
    let identity = rig.join(&token, Role::Client, "").await.unwrap();
    let _first = rig.connect(&identity).await.unwrap();
    // The refusal may come before the end of the greeting or after it.
    if let Ok(second) = rig.connect(&identity).await {
        assert_eq!(second.close_code().await, u64::from(close::REFUSED));
    }
    let line = audited.line("connection_refused").await;
    check(&line, "client", identity.peer().name.as_str(), &token);
    assert_eq!(line["code"], "busy");
    assert!(
        line["cause"].as_str().unwrap().contains("too many"),
        "{line}"
    );
}

#[tokio::test]
async fn the_end_of_a_membership_is_recorded() {
    let audited = Audited::start().await;
    let rig = &audited.rig;
    let token = rig.token(Role::Client).await;
    // Two seconds are enough to join and to connect.
    let stay = Duration::from_secs(2);
    rig.running.bound_membership(&token.id, stay).await.unwrap();
    let identity = rig.join(&token, Role::Client, "").await.unwrap();
    let client = rig.connect(&identity).await.unwrap();
    assert_eq!(client.close_code().await, u64::from(close::MEMBERSHIP_OVER));
    let line = audited.line("membership_ended").await;
    check(&line, "client", identity.peer().name.as_str(), &token);
}

#[tokio::test]
async fn what_the_owner_does_is_recorded() {
    let audited = Audited::start().await;
    let Audited { rig, admin, .. } = &audited;
    let made = admin.create_token(Role::Worker, None, Budget::default(), None);
    let token: JoinToken = made.await.unwrap().parse().unwrap();
    let identity = rig.join(&token, Role::Worker, "w").await.unwrap();
    let worker = rig.connect(&identity).await.unwrap();
    worker.register(1).await.unwrap();
    admin.drain("w").await.unwrap();
    admin.undrain("w").await.unwrap();
    admin.rotate_ca().await.unwrap();
    assert!(
        admin.retire_ca(false).await.is_err(),
        "refused, and not recorded"
    );
    admin.backup().await.unwrap();
    admin.revoke_token(token.id.as_str()).await.unwrap();
    assert_eq!(worker.close_code().await, u64::from(close::REVOKED));
    for event in ["token_created", "token_revoked"] {
        let line = audited.line(event).await;
        assert_eq!(line["token"], token.id.as_str(), "{line}");
        assert!(line.get("address").is_none(), "{line}");
    }
    for event in ["drained", "undrained"] {
        let line = audited.line(event).await;
        assert_eq!([&line["role"], &line["name"]], ["worker", "w"], "{line}");
    }
    for event in ["started", "ca_rotated", "backed_up"] {
        audited.line(event).await;
    }
    assert!(audited.lines("ca_retired").await.is_empty());
    admin.retire_ca(true).await.unwrap();
    audited.line("ca_retired").await;
}
