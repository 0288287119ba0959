//! Strings on an embedded cluster: issued op by op, moved between workers, in traced functions, and more of them than
//! memory.
#![cfg(feature = "embedded")]
#![allow(clippy::unwrap_used)]

use convoke::{
    Attr, Attrs, Cluster, Code, DType, DeviceId, Embedded, HostTensor, Operand, Result, Tensor,
};

async fn cluster(device: &str) -> Cluster {
    let device: DeviceId = device.parse().unwrap();
    let embedded = Embedded::new(2).threads(1).devices([device]);
    embedded.memory(256 << 20).start().await.unwrap()
}

fn op(name: &str, attrs: Attrs, operands: &[&Tensor]) -> Result<Tensor> {
    let operands: Vec<_> = operands.iter().map(|t| Operand::Tensor(t)).collect();
    convoke::issue(name, attrs, &operands, 1).map(|mut made| made.remove(0))
}

fn text(shape: &[usize], strings: &[&str]) -> HostTensor {
    HostTensor::from_strings(shape, strings).unwrap()
}

async fn strings(t: &Tensor) -> Vec<String> {
    t.fetch::<HostTensor>().await.unwrap().to_strings().unwrap()
}

/// Each word twice, and whether it equals the one that stands at its place in the second operand.
fn work(t: &[Tensor]) -> Result<Vec<Tensor>> {
    let twice = op("StringConcat", Attrs::default(), &[&t[0], &t[0]])?;
    let rows = op("Transpose", Attrs::default(), &[&twice])?;
    let same = op("Equal", Attrs::default(), &[&t[0], &t[1]])?;
    let joined = Attrs::default().with("axis", Attr::Int(0));
    Ok(vec![op("Concat", joined, &[&rows, &t[1]])?, same])
}

async fn eager_and_traced(device: &str) {
    let cluster = cluster(device).await;
    let (a, b) = (cluster.device("w0").unwrap(), cluster.device("w1").unwrap());
    let x = a.put(text(&[2, 2], &["a", "", "été", "日本"])).unwrap();
    let y = a.put(text(&[2, 2], &["a", "b", "c", "日本"])).unwrap();
    let want = ["aa", "étéété", "", "日本日本", "a", "b", "c", "日本"];
    let eager = work(&[x.clone(), y.clone()]).unwrap();
    assert_eq!(
        (eager[0].dtype(), eager[0].shape()),
        (DType::Str, Some(&[4, 2][..]))
    );
    assert_eq!(strings(&eager[0]).await, want);
    let same = eager[1].fetch::<HostTensor>().await.unwrap();
    assert_eq!(same.bytes(), [1, 0, 0, 1]);
    let there = eager[0].to(&b).unwrap();
    assert_eq!(strings(&there).await, want);
    let f = cluster.function(work);
    for operands in [[x.clone(), y.clone()], [x.to(&b).unwrap(), y]] {
        let called = f.call(&operands).await.unwrap();
        assert_eq!(strings(&called[0]).await, want);
    }
    cluster.shutdown().await;
}

#[tokio::test]
async fn strings_are_values_like_others() {
    eager_and_traced("cpu").await;
}

#[tokio::test]
async fn strings_stay_on_the_host_of_a_device() {
    eager_and_traced("simgpu").await;
}

#[tokio::test]
async fn long_strings_take_what_they_take() {
    let cluster = cluster("cpu").await;
    let (a, b) = (cluster.device("w0").unwrap(), cluster.device("w1").unwrap());
    let long = "é".repeat(3 << 20);
    let x = a.put(text(&[2], &[&long, "end"])).unwrap();
    let moved = x.to(&b).unwrap();
    assert_eq!(strings(&moved).await, [long.as_str(), "end"]);
    // More than a step was planned for, but no more than there is.
    let f = cluster.function(|t| Ok(vec![op("StringConcat", Attrs::default(), &[&t[0], &t[0]])?]));
    let called = f.call(&[moved]).await.unwrap();
    assert_eq!(strings(&called[0]).await[0].len(), 2 * long.len());
    // 50 times 12 MiB are more than one tensor may have.
    let copies = HostTensor::from_slice(&[1], &[50i64]).unwrap();
    let many = op(
        "Tile",
        Attrs::default(),
        &[&called[0], &a.put(copies).unwrap()],
    );
    let e = match many {
        Ok(many) => many.fetch::<HostTensor>().await.unwrap_err(),
        Err(e) => e,
    };
    assert_eq!(e.code, Code::InvalidArgument, "{e}");
    assert!(e.message.contains("above the limit"), "{e}");
    cluster.shutdown().await;
}

#[tokio::test]
async fn numbers_are_no_strings() {
    let cluster = cluster("cpu").await;
    let a = cluster.device("w0").unwrap();
    let x = a.put(text(&[1], &["1"])).unwrap();
    assert_eq!(x.equal(1).unwrap_err().code, Code::InvalidArgument);
    assert!(x.add(&x).is_err());
    let y = a.put(text(&[1], &["one"])).unwrap().cast(DType::F32);
    let e = y.unwrap().fetch::<HostTensor>().await.unwrap_err();
    assert!(e.message.contains("string 0, \"one\""), "{e}");
    cluster.shutdown().await;
}
