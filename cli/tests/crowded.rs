//! `convoke run` on a cluster whose memory another client has.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test of real processes in real time"
)]

use crate::common;

use std::io::{BufRead, BufReader};

use common::cluster::Processes;
use common::functions::tanh_chain;
use common::{convoke, finish, fixture, run};

/// The bound of the batch axis with which the model needs some MiB.
const BATCH: &str = "batch=4096";

#[tokio::test]
async fn a_run_that_may_wait_gets_the_memory_that_another_client_releases() {
    let processes = Processes::start("crowded", 1, "128MiB");
    let cluster = processes.connect().await;
    let offered = cluster.status().await.unwrap().members[0].memory;
    let model = fixture("digits/model.onnx").display().to_string();
    let inputs = fixture("digits/test.npz").display().to_string();
    let token = processes.client_token();
    let args = |command, more: &[&'static str]| {
        let mut args = vec![
            command, &*model, "--inputs", &*inputs, "--dim", BATCH, "--json",
        ];
        args.extend(["--connect", &*processes.address, "--token-file", &*token]);
        args.extend(more);
        args.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    // The other client leaves half of what this one needs.
    let plan = run(args("plan", &[])).expect(0).json();
    let part = &plan["parts"][0];
    let needed = part["needed_bytes"].as_u64().unwrap();
    assert!(part["free_bytes"].as_u64() >= Some(needed), "{part}");
    let elements = (offered - needed / 2) / 100 * 96 / 4;
    let other = cluster.load_function(tanh_chain(&[elements as usize], 1), vec![]);
    let other = other.in_flight(1).await.unwrap();

    let plan = run(args("plan", &[])).expect(0).json();
    assert!(
        plan["parts"][0]["free_bytes"].as_u64() < Some(needed),
        "{plan}"
    );
    let warning = plan["warnings"][0].as_str().unwrap();
    assert!(
        warning.contains("does not fit the memory that is free"),
        "{plan}"
    );
    for (wait, said) in [
        (&[][..], "the model does not fit the memory that is free"),
        (
            &["--wait=1s"],
            "waited 1s for memory: the model does not fit",
        ),
    ] {
        let refused = run(args("run", wait)).expect(1).json();
        let error = &refused["error"];
        assert_eq!(error["code"], "out_of_memory", "{refused}");
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(said), "{message}");
        assert!(
            message.contains("w0 has ") && message.contains("(token "),
            "{message}"
        );
    }

    let mut waiting = convoke(args("run", &["--wait"])).spawn().unwrap();
    let mut lines = BufReader::new(waiting.stderr.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    assert!(
        line.contains("waiting for memory, at most 600s: the model"),
        "{line}"
    );
    other.unload().await.unwrap();
    let done = finish(waiting).expect(0).json();
    assert_eq!(done["workers"][0]["name"], "w0", "{done}");
    assert_eq!(lines.map_while(Result::ok).collect::<Vec<_>>(), [""; 0]);
    cluster.shutdown().await;
}
