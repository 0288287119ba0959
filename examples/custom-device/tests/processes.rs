//! The device on real processes: a model that loses a worker goes on with another device of the same numerics profile.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test of real processes in real time"
)]

#[path = "../../../cli/tests/common/mod.rs"]
mod common;

use std::path::Path;

use common::cluster::Processes;
use convoke::{Code, HostTensor};
use convoke_custom_device::PROFILE;

#[tokio::test]
async fn a_rerun_keeps_to_the_numerics_profile() {
    let mut processes = Processes::prepare("profiles", "256MiB");
    processes.start_coordinator();
    for device in ["cpu", "file", "file"] {
        processes.variables = vec![("CONVOKE_DEVICE", device.to_owned())];
        processes.add_worker();
    }
    let client = processes.connect().await;
    let members = client.status().await.unwrap().members;
    let of_file = members.iter().filter(|m| m.device.kind() == "file");
    let profiles: Vec<&str> = of_file.map(|m| &*m.device_profile).collect();
    assert_eq!(profiles, [PROFILE; 2]);

    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/mini_transformer");
    let load = client.load(folder.join("model.onnx")).workers(1);
    let model = load.pin("*", "kind:file").await.unwrap();
    let wanted: Vec<String> = model.inputs().into_iter().map(|i| i.name).collect();
    let arrays = convoke::numpy::read_npz(folder.join("test.npz")).unwrap();
    let given: Vec<(String, HostTensor)> = arrays
        .into_iter()
        .filter(|(name, _)| wanted.contains(name))
        .collect();
    let call = async || {
        let made = model.call(given.clone()).await?;
        let part = model.plan().await.unwrap().parts.remove(0);
        assert_eq!(part.profile, PROFILE);
        Ok::<_, convoke::Error>((part.name, made))
    };
    let (first, made) = call().await.unwrap();
    let at = |name: &str| name[1..].parse::<usize>().unwrap();
    processes.kill_worker(at(&first));
    let (second, again) = call().await.unwrap();
    assert_ne!(first, second);
    assert_eq!(made, again, "devices of one profile compute the same bits");
    processes.kill_worker(at(&second));
    let refused = call().await.unwrap_err();
    let text = refused.to_string();
    let left = format!("no device of the numerics profile {PROFILE} is left");
    assert!(text.contains(&left), "{text}");
    assert!(
        matches!(refused.code, Code::PeerLost | Code::NoWorkers),
        "{text}"
    );
    client.shutdown().await;
}
