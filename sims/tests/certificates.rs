//! Certificates over weeks: calendars advance by weeks while little time elapses.

use std::time::Duration;

use convoke_common::error::{Code, Error};
use convoke_common::identity::CERTIFICATE_LIFE;
use convoke_sims::cluster::{Cluster, Host, Setup, Task};
use convoke_sims::workload::ModelSpec;

const SETTLE: Duration = Duration::from_secs(20);
const CALL: Duration = Duration::from_secs(60);
const HALF_A_DAY: i64 = 12 * 3600;

fn settled(seed: u64) -> Cluster {
    let mut cluster = Cluster::new(Setup {
        seed,
        ..Setup::default()
    });
    assert!(cluster.settle(SETTLE), "{:?}", cluster.ends());
    cluster
}

/// Moves every calendar to this many half days after the start.
fn set_calendars(cluster: &Cluster, half_days: i64) {
    for host in cluster.hosts() {
        cluster.knobs(host).set_clock_off(half_days * HALF_A_DAY);
    }
}

/// Asks the coordinator for the cluster's status, on the first client's host.
fn ask(cluster: &mut Cluster) -> Result<usize, Error> {
    let asked: Task<Result<usize, Error>> = cluster.on_client(0, |c| async move {
        let status = c.status().await?;
        let alive = |m: &&_| {
            matches!(m, convoke_common::rpc::MemberStatus { state, .. }
            if *state == convoke_common::rpc::MemberState::Alive)
        };
        Ok(status.members.iter().filter(alive).count())
    });
    assert!(cluster.run_until(CALL, |_| asked.is_over()));
    asked.take().expect("the client lives")
}

/// Cuts this host off from the coordinator until both have noticed, and then lets it return.
fn lose_and_find(cluster: &mut Cluster, host: Host) {
    cluster.cut(host, Host::Coordinator);
    cluster.cut(Host::Coordinator, host);
    cluster.run_for(Duration::from_secs(5));
    cluster.heal();
    cluster.run_for(Duration::from_secs(6));
}

#[test]
fn members_that_stay_connected_return_after_any_number_of_days() {
    let mut cluster = settled(1);
    let days = 30;
    for half_day in 1..=2 * days {
        set_calendars(&cluster, half_day);
        // Members look at the calendar each second.
        cluster.run_for(Duration::from_secs(3));
        if half_day % 10 == 0 {
            lose_and_find(&mut cluster, Host::Client(0));
            lose_and_find(&mut cluster, Host::Worker(0));
            assert_eq!(ask(&mut cluster), Ok(2), "day {}", half_day / 2);
        }
    }
    assert!(cluster.ends().is_empty(), "{:?}", cluster.ends());
    assert!(cluster.panics().is_empty(), "{:?}", cluster.panics());
}

#[test]
fn members_that_were_away_for_longer_than_their_certificates_join_again() {
    let mut cluster = settled(2);
    let away = [Host::Client(0), Host::Worker(0)];
    for host in away {
        cluster.cut(host, Host::Coordinator);
        cluster.cut(Host::Coordinator, host);
    }
    cluster.run_for(Duration::from_secs(5));
    let life = CERTIFICATE_LIFE.as_secs() as i64;
    set_calendars(&cluster, life / HALF_A_DAY + 2);
    cluster.run_for(Duration::from_secs(5));
    cluster.heal();
    cluster.run_for(Duration::from_secs(10));
    assert_eq!(ask(&mut cluster), Ok(2));
    // The processes have not ended, and have kept their names.
    assert!(cluster.ends().is_empty(), "{:?}", cluster.ends());
    assert_eq!(
        cluster.worker(0).map(|w| w.name().to_owned()).as_deref(),
        Some("w0")
    );
    assert!(cluster.panics().is_empty(), "{:?}", cluster.panics());
}

#[test]
fn a_renewal_that_failed_with_its_connection_is_tried_on_the_next_one() {
    let mut cluster = settled(4);
    let client = Host::Client(0);
    // The coordinator loses the client, which then tries to renew over a connection that is no more.
    cluster.pause(client);
    cluster.run_for(Duration::from_secs(4));
    set_calendars(&cluster, 5);
    cluster.resume(client);
    let life = CERTIFICATE_LIFE.as_secs() as i64 / HALF_A_DAY;
    for half_day in 6..=life + 6 {
        cluster.run_for(Duration::from_secs(2));
        set_calendars(&cluster, half_day);
    }
    let model = ModelSpec::narrow(5, 12).build();
    let loading: Task<Result<(), Error>> = cluster.on_client(0, move |c| async move {
        let load = c.load_function((*model.function).clone(), vec![]);
        load.numerics(convoke::Numerics::Exact)
            .workers(2)
            .await?
            .unload()
            .await
    });
    assert!(cluster.run_until(CALL, |_| loading.is_over()));
    assert_eq!(loading.take(), Some(Ok(())));
}

#[test]
fn a_client_whose_token_is_good_no_longer_is_told_what_to_do() {
    let mut cluster = settled(3);
    let revoked = cluster.on_coordinator(|c| async move {
        let tokens = c.tokens().await;
        let client = tokens
            .iter()
            .find(|t| t.role == convoke_common::identity::Role::Client);
        client.map(|t| t.id.clone())
    });
    assert!(cluster.run_until(CALL, |_| revoked.is_over()));
    let id = revoked.take().flatten().expect("a client's token");
    let host = Host::Client(0);
    cluster.cut(host, Host::Coordinator);
    cluster.cut(Host::Coordinator, host);
    cluster.run_for(Duration::from_secs(5));
    let revoked = cluster.on_coordinator(move |c| async move { c.revoke_token(&id).await });
    assert!(cluster.run_until(CALL, |_| revoked.is_over()));
    set_calendars(&cluster, 16);
    cluster.heal();
    cluster.run_for(Duration::from_secs(10));
    let error = ask(&mut cluster).expect_err("it was revoked");
    assert_eq!(error.code, Code::Unauthorized, "{error}");
    let advice = error.to_string();
    assert!(
        advice.contains("convoke token create --role client"),
        "{advice}"
    );
}
