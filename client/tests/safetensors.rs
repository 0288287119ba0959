//! Tensors of devices in safetensors files, on an embedded cluster.
#![cfg(feature = "embedded")]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use convoke::{Cluster, Code, DType, Embedded, HostTensor, Tensor};

async fn cluster(workers: usize) -> Cluster {
    Embedded::new(workers).threads(1).start().await.unwrap()
}

/// A folder of the test's own, which is removed in the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let name = format!("convoke-safetensors-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir).unwrap();
        Scratch(dir)
    }

    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
        names.collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A tensor whose elements differ.
fn elements(dtype: DType, shape: &[usize]) -> HostTensor {
    let count: usize = shape.iter().product::<usize>() * dtype.width();
    let most = if dtype == DType::Bool { 2 } else { 125 };
    let bytes: Vec<u8> = (0..count).map(|i| (i * 31 % 251 % most) as u8).collect();
    HostTensor::from_bytes(dtype, shape, &bytes).unwrap()
}

fn all(tensors: &BTreeMap<String, Tensor>) -> Vec<(&str, &Tensor)> {
    tensors.iter().map(|(n, t)| (n.as_str(), t)).collect()
}

#[tokio::test]
async fn what_is_saved_is_loaded_with_the_same_bits() {
    let (cluster, scratch) = (cluster(2).await, Scratch::new("round"));
    let devices = cluster.devices().await.unwrap();
    let mut host = BTreeMap::new();
    // The format has no integers of less than a byte, no padding within one, and no strings.
    let has = |d: &DType| !d.is_packed() && *d != DType::Str;
    let stored = DType::ALL.into_iter().filter(has);
    for (i, dtype) in stored.enumerate() {
        let shape = [vec![], vec![i], vec![2, 0, 3], vec![3, i + 1]][i % 4].clone();
        host.insert(format!("{dtype} * {i}"), elements(dtype, &shape));
    }
    // This tensor is saved in three pieces, the last of them short.
    host.insert("large".into(), elements(DType::F32, &[1100, 5000]));
    let mut saved = BTreeMap::new();
    for (i, (name, t)) in host.iter().enumerate() {
        saved.insert(name.clone(), devices[i % 2].put(t).unwrap());
    }
    // Only data decides this shape.
    let odd = devices[0].put([0i32, 5, 0, 7]).unwrap().nonzero().unwrap();
    saved.insert("late".into(), odd);
    let late = HostTensor::from_slice(&[1, 2], &[1i64, 3]).unwrap();
    host.insert("late".into(), late);
    let path = scratch.0.join("all.safetensors");
    for _ in 0..2 {
        cluster.save_tensors(&path, &all(&saved)).await.unwrap();
        assert_eq!(scratch.files(), ["all.safetensors"]);
    }
    drop(saved);
    assert_eq!(cluster.memory().await.unwrap(), []);

    let to = devices.clone();
    let loaded = cluster.load_tensors(&path, move |name, ty| match ty.dtype {
        DType::U8 => None,
        _ => Some(to[usize::from(name == "large")].clone()),
    });
    let loaded = loaded.await.unwrap();
    host.retain(|_, t| t.dtype() != DType::U8);
    let names = |m: Vec<&String>| m.into_iter().cloned().collect::<Vec<_>>();
    assert_eq!(names(loaded.keys().collect()), names(host.keys().collect()));
    for (name, t) in &loaded {
        let want = &host[name];
        assert_eq!(t.shape(), Some(want.shape()), "{name}");
        let on = &devices[usize::from(name == "large")];
        assert_eq!(t.device().as_ref(), Some(on), "{name}");
        assert_eq!(t.fetch::<HostTensor>().await.unwrap(), *want, "{name}");
    }
    // Loaded tensors are like any other, and are freed like any other.
    let sum = loaded["large"].i(0).unwrap().abs().unwrap();
    assert_eq!(sum.shape(), Some(&[5000][..]));
    drop((loaded, sum));
    assert_eq!(cluster.memory().await.unwrap(), []);
    cluster.shutdown().await;
}

#[tokio::test]
async fn files_that_cannot_be_loaded_are_errors() {
    let (cluster, scratch) = (cluster(1).await, Scratch::new("bad"));
    let a = cluster.device("w0").unwrap();
    let load = async |path: &Path| {
        let to = a.clone();
        let loaded = cluster.load_tensors(path, move |_, _| Some(to.clone()));
        loaded.await.unwrap_err()
    };
    let file = |name: &str, header: &str, data: usize| {
        let path = scratch.0.join(name);
        let len = (header.len() as u64).to_le_bytes();
        let content = [&len, header.as_bytes(), &vec![7; data]].concat();
        std::fs::write(&path, content).unwrap();
        path
    };
    let good = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let cases = [
        (scratch.0.join("none"), "none"),
        (file("short", good, 7), "short"),
        (file("long", good, 9), "after its last tensor"),
        (file("text", "hello", 0), "safetensors"),
        (
            file("c64", &good.replace("F32", "C64").replace(",8", ",16"), 16),
            "C64",
        ),
        (
            file("bool", &good.replace("F32", "BOOL").replace(",8", ",2"), 2),
            "bool",
        ),
    ];
    for (path, want) in cases {
        let e = load(&path).await;
        assert!(e.to_string().contains(want), "{e}");
    }
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_file_that_cannot_be_saved_is_not_there() {
    let (cluster, scratch) = (cluster(1).await, Scratch::new("unsaved"));
    let a = cluster.device("w0").unwrap();
    let x = a.put([1f32, 2.]).unwrap();
    let bad = x.gather(&a.put([9i64]).unwrap(), 0).unwrap();
    let path = scratch.0.join("w");
    let check = async |path: &Path, tensors: &[(&str, &Tensor)], code: Code| {
        let e = cluster.save_tensors(path, tensors).await.unwrap_err();
        assert_eq!(e.code, code, "{e}");
        assert_eq!(scratch.files(), [""; 0]);
    };
    check(&path, &[("x", &x), ("bad", &bad)], Code::KernelFailed).await;
    check(&path, &[("x", &x), ("x", &x)], Code::InvalidModel).await;
    check(&path.join("below"), &[("x", &x)], Code::Io).await;
    cluster.save_tensors(&path, &[("x", &x)]).await.unwrap();
    assert_eq!(scratch.files(), ["w"]);
    cluster.shutdown().await;
}

#[tokio::test]
async fn files_that_a_killed_process_left_are_in_nobodys_way() {
    let (cluster, scratch) = (cluster(1).await, Scratch::new("left"));
    for n in (0..800).filter(|n| n % 8 > 0) {
        let name = format!(".x.safetensors.{}.{n}.part", std::process::id());
        std::fs::write(scratch.0.join(name), b"").unwrap();
    }
    let before = scratch.files().len();
    let x = cluster.device("w0").unwrap();
    let x = x.put(elements(DType::F32, &[4])).unwrap();
    let file = scratch.0.join("x.safetensors");
    cluster.save_tensors(&file, &[("x", &x)]).await.unwrap();
    assert!(file.exists());
    assert_eq!(scratch.files().len(), before + 1);
}
