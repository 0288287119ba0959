//! Model files as functions of tensors of devices, on an embedded cluster.
#![cfg(feature = "embedded")]
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use convoke::{
    ArrayType, Cluster, Code, DType, Embedded, HostTensor, Imported, Tensor, with_device,
};

async fn cluster(workers: usize) -> Cluster {
    Embedded::new(workers).threads(1).start().await.unwrap()
}

fn fixture(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.join("../fixtures").join(name)
}

async fn digits(cluster: &Cluster) -> Imported {
    cluster.import(fixture("digits/model.onnx")).await.unwrap()
}

fn images(count: usize) -> HostTensor {
    let pixels: Vec<f32> = (0..count * 64)
        .map(|i| (i * 37 % 101) as f32 / 101.0)
        .collect();
    HostTensor::from_slice(&[count, 1, 8, 8], &pixels).unwrap()
}

fn ids(rows: usize, length: usize) -> [HostTensor; 2] {
    let count = rows * length;
    let ids: Vec<i64> = (0..count).map(|i| 1 + (i * 7 % 150) as i64).collect();
    let mask: Vec<i64> = (0..count).map(|i| i64::from(i % length < 5)).collect();
    [ids, mask].map(|v| HostTensor::from_slice(&[rows, length], &v).unwrap())
}

async fn fetched(t: &Tensor) -> HostTensor {
    t.fetch().await.unwrap()
}

#[tokio::test]
async fn a_model_called_with_handles_has_the_bits_of_the_model() {
    let cluster = cluster(3).await;
    let (a, b) = (cluster.device("w0").unwrap(), cluster.device("w1").unwrap());
    let loaded = cluster
        .load(fixture("digits/model.onnx"))
        .numerics(convoke::Numerics::Exact);
    let loaded = loaded.await.unwrap();
    let net = digits(&cluster).await;
    assert_eq!(net.inputs(), loaded.inputs());
    assert_eq!(net.outputs(), loaded.outputs());
    let function = net.function().dynamic(0, 0, "n").unwrap();
    for count in [1, 5, 3, 40] {
        let expected = loaded.call([("image", images(count))]).await.unwrap();
        let made = function.call(&[a.put(images(count)).unwrap()]).await;
        let made = made.unwrap();
        assert_eq!(made[0].shape(), Some(&[count, 10][..]));
        assert_eq!(fetched(&made[0]).await, expected["logits"], "{count}");
    }
    assert_eq!(function.traces(), 1);

    let path = fixture("mini_transformer/model.onnx");
    let loaded = cluster
        .load(&path)
        .numerics(convoke::Numerics::Exact)
        .await
        .unwrap();
    let net = cluster.import(&path).await.unwrap();
    let function = net.function();
    for (rows, length) in [(1, 6), (3, 17)] {
        let [ids, mask] = ids(rows, length);
        let named = [("input_ids", ids.clone()), ("attention_mask", mask.clone())];
        let expected = loaded.call(named).await.unwrap();
        let operands = [a.put(ids).unwrap(), b.put(mask).unwrap()];
        let made = function.call(&operands).await.unwrap();
        for (t, (name, want)) in made.iter().zip(&expected.0) {
            assert_eq!(fetched(t).await, *want, "{name} {rows} {length}");
        }
    }
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_model_is_a_part_of_a_function() {
    let cluster = cluster(2).await;
    let (a, b) = (cluster.device("w0").unwrap(), cluster.device("w1").unwrap());
    let loaded = cluster
        .load(fixture("digits/model.onnx"))
        .numerics(convoke::Numerics::Exact);
    let loaded = loaded.await.unwrap();
    let net = digits(&cluster).await;
    let (applied, there) = (net.clone(), b.clone());
    let f = cluster.function(move |t| {
        let x = (&t[0] * 2.0)?;
        let first = applied.apply(&[("image", &x)])?;
        let half = with_device(&there, || applied.apply(&[("image", &t[0])]))?;
        Ok(vec![first[0].argmax(-1)?, (&first[0] - &half[0])?])
    });
    let x = [a.put(images(4)).unwrap()];
    let text = f.graph(&x).unwrap();
    let once = net.function().graph(&x).unwrap();
    let ranges = |text: &str| text.matches("= artifact 0").count();
    assert!(ranges(&text) > 2, "{text}");
    assert_eq!(ranges(&text), ranges(&once), "{text}");
    let nodes = once.lines().filter(|l| l.ends_with('\''));
    let nodes = nodes.filter_map(|l| l.rsplit('\'').nth(1));
    let own = nodes.filter(|n| !n.starts_with("operand ") && !n.starts_with("result "));
    let own: Vec<&str> = own.collect();
    assert!(own.len() > 5, "{once}");
    for name in own {
        assert!(text.contains(&format!("'{name}'")), "{name} in {text}");
        assert!(text.contains(&format!("'{name} #2'")), "{name} in {text}");
    }
    assert_eq!(f.plan(&x).await.unwrap().parts.len(), 2);
    let made = f.call(&x).await.unwrap();

    let doubled = (&x[0] * 2.0).unwrap();
    let [first, half] = [&doubled, &x[0]].map(|x| {
        let (loaded, x) = (loaded.clone(), x.clone());
        async move {
            let x: HostTensor = x.fetch().await.unwrap();
            loaded.call([("image", x)]).await.unwrap().0.remove(0).1
        }
    });
    let (first, half) = (a.put(first.await).unwrap(), a.put(half.await).unwrap());
    let difference = (&first - &half).unwrap();
    assert_eq!(fetched(&made[1]).await, fetched(&difference).await);
    let most = first.argmax(-1).unwrap();
    assert_eq!(fetched(&made[0]).await, fetched(&most).await);
    cluster.shutdown().await;
}

#[tokio::test]
async fn operands_that_do_not_fit_a_model_are_errors() {
    let cluster = cluster(1).await;
    let a = cluster.device("w0").unwrap();
    let net = digits(&cluster).await;
    let check = async |operands: &'static [(&'static str, usize)], t: &Tensor, want: &str| {
        let net = net.clone();
        let f = cluster.function(move |t| {
            let named: Vec<_> = operands.iter().map(|(n, i)| (*n, &t[*i])).collect();
            net.apply(&named)
        });
        let e = f.call(std::slice::from_ref(t)).await.unwrap_err();
        assert_eq!(e.code, Code::InvalidInput, "{e}");
        assert!(e.message.contains(want), "{e}");
    };
    let image = a.put(images(1)).unwrap();
    let wide = a.zeros([1, 1, 8, 9], DType::F32).unwrap();
    let integers = image.cast(DType::I64).unwrap();
    let is = "input 'image' is f32[1, 1, 8, 9], expected f32[";
    check(&[("image", 0)], &wide, is).await;
    check(&[("image", 0)], &integers, "is i64[1, 1, 8, 8]").await;
    check(&[("img", 0)], &image, "has no input 'img'").await;
    check(&[("img", 0)], &image, "input 'image' (f32[").await;
    let twice = "'image' is given twice";
    check(&[("image", 0), ("image", 0)], &image, twice).await;
    let e = net.apply(&[("image", &image)]).unwrap_err();
    assert!(e.message.contains("in the closure of a function"), "{e}");
    let e = net.function().call(&[]).await.unwrap_err();
    assert!(e.message.contains("is given 0 tensors"), "{e}");
    let e = cluster.import(fixture("README.md")).await.err().unwrap();
    assert!(!e.message.is_empty());
    cluster.shutdown().await;
}

/// How far two results are apart at most, where one is ONNX Runtime's.
const TOLERANCE: f32 = 1e-5;

#[tokio::test]
async fn control_flow_of_a_model_takes_each_way_with_the_same_bits_everywhere() {
    let mut before: Vec<Vec<(String, HostTensor)>> = Vec::new();
    for workers in [1, 3] {
        let cluster = cluster(workers).await;
        let model = cluster
            .load(fixture("voice/model.onnx"))
            .workers(workers as u32);
        let model = model.await.unwrap();
        let mut made = Vec::new();
        for way in ["test", "quiet", "low_rate", "no_steps"] {
            let file = fixture(&format!("voice/{way}.npz"));
            let arrays = convoke::numpy::read_npz(file).unwrap();
            let (expected, given): (Vec<_>, Vec<_>) = arrays
                .into_iter()
                .partition(|(name, _)| name.starts_with("expected/"));
            let results = model.call(given).await.unwrap();
            for (name, want) in &expected {
                let got = &results[name.trim_start_matches("expected/")];
                assert_eq!(got.shape(), want.shape(), "{way} {name}");
                let pairs = got.as_slice::<f32>().unwrap().iter();
                for (got, want) in pairs.zip(want.as_slice::<f32>().unwrap()) {
                    assert!(
                        (got - want).abs() <= TOLERANCE,
                        "{way} {name}: {got}, {want}"
                    );
                }
            }
            if way == "no_steps" {
                assert_eq!(results["energies"].shape(), [0, 3]);
            }
            made.push(results.0);
        }
        assert_eq!(model.plan().await.unwrap().parts.len(), workers);
        if !before.is_empty() {
            assert_eq!(made, before, "{workers} workers");
        }
        before = made;
        cluster.shutdown().await;
    }
}

/// Without a bound, a model is planned for twice the sizes of a call, or for these alone where no more fits.
#[tokio::test]
async fn what_fits_with_its_bound_fits_without() {
    let cluster = Embedded::new(1).threads(1).memory(256 << 20);
    let cluster = cluster.start().await.unwrap();
    let path = fixture("digits/model.onnx");
    let (mut fits, mut too_many) = (1, 1 << 20);
    while fits + 1 < too_many {
        let count = (fits + too_many) / 2;
        let bounded = cluster.load(&path).dim("batch", count as i64);
        match bounded.explain::<String, ArrayType>([]).await {
            Ok(_) => fits = count,
            Err(e) => {
                assert_eq!(e.code, Code::ClusterTooSmall, "{e}");
                too_many = count;
            }
        }
    }
    let explained = async |count: usize| {
        let image = ArrayType {
            dtype: DType::F32,
            shape: [count, 1, 8, 8].into(),
        };
        cluster.load(&path).explain([("image", image)]).await
    };
    explained(fits / 2).await.unwrap();
    explained(fits).await.unwrap();
    let e = explained(too_many).await.unwrap_err();
    assert_eq!(e.code, Code::ClusterTooSmall, "{e}");
    cluster.shutdown().await;
}
