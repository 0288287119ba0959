//! How long an embedded cluster lives. The test has a process of its own, whose threads it counts.
#![cfg(feature = "embedded")]
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use convoke::Embedded;

const BOUND: Duration = Duration::from_secs(30);

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[tokio::test]
async fn a_cluster_ends_with_the_last_of_its_tensors_and_devices() {
    let before = threads();
    let cluster = Embedded::new(2).threads(1).start().await.unwrap();
    let (a, b) = (cluster.device("w0").unwrap(), cluster.device("w1").unwrap());
    // `x` has its value in this process, and `y` at the worker.
    let large: Vec<f32> = (0..100_000).map(|i| i as f32).collect();
    let (x, y) = (a.put(2f32).unwrap(), a.put(&large).unwrap());
    drop(cluster);
    assert_eq!(x.fetch::<f32>().await.unwrap(), 2.);
    let z = y.mul(&x).unwrap().to(&b).unwrap();
    drop((x, y, a, b));
    assert_eq!(z.fetch::<Vec<f32>>().await.unwrap()[3], 6.);
    let device = z.device().unwrap();
    drop(z);
    let last = device.put(&large).unwrap();
    drop(device);
    assert_eq!(last.fetch::<Vec<f32>>().await.unwrap(), large);
    assert!(threads() > before);
    drop(last);
    let ended = async {
        while threads() > before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(BOUND, ended).await.unwrap();
}
