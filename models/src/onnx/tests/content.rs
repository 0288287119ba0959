//! Tests of where the content of constants is placed.

use convoke_graph::artifact::CHUNK;

use super::*;
use crate::Source;

/// The bytes of a literal, as a worker loads them.
pub(super) fn bytes(i: &ImportedModel, name: &str) -> Vec<u8> {
    match literal(&i.function, name) {
        Literal::Inline(t) => t.bytes().to_vec(),
        Literal::Range {
            artifact,
            offset,
            len,
        } => {
            let source: &Source = &i.sources[*artifact as usize];
            assert_eq!(source.meta(), &i.function.artifacts[*artifact as usize]);
            let mut all = Vec::new();
            for c in 0..source.meta().chunks.len() as u64 {
                let chunk = source.read_chunk(c).unwrap();
                source.meta().check_chunk(c, &chunk).unwrap();
                all.extend(chunk);
            }
            all[*offset as usize..(*offset + *len) as usize].to_vec()
        }
    }
}

fn data(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32 * 0.5 - 3.0).collect()
}

/// A model that computes `y = x + w`.
fn adds(w: TensorProto, dims: &[&str]) -> ModelProto {
    let x = value("x", w.data_type.unwrap(), dims);
    model(
        17,
        graph(vec![x], vec![w], vec![node("Add", "x w", "y", vec![])], "y"),
    )
}

#[test]
fn small_constants_are_inline_and_large_ones_ranges_of_the_model() {
    let i = try_import(&adds(floats("w", &[1024], &data(1024)), &["1024"])).unwrap();
    assert!(matches!(literal(&i.function, "w"), Literal::Inline(_)));
    assert!(i.sources.is_empty());
    let s = Scratch::new();
    let want = data(400_000);
    let i = import_in(&s, &adds(floats("w", &[400_000], &want), &["400000"])).unwrap();
    assert!(matches!(
        literal(&i.function, "w"),
        Literal::Range {
            artifact: 0,
            len: 1_600_000,
            ..
        }
    ));
    assert_eq!(bytes(&i, "w"), bytemuck::cast_slice::<f32, u8>(&want));
    assert_eq!(i.sources[0].meta().len.div_ceil(CHUNK), 2);
    assert_eq!(i.info.producer, "test");
    assert_eq!(i.info.opset, 17);
    assert_eq!(i.function.artifacts[0].path, "");
}

#[test]
fn artifacts_are_named_relative_to_the_root_and_their_hashes_remembered() {
    let s = Scratch::new();
    let m = adds(floats("w", &[2000], &data(2000)), &["2000"]);
    let path = s.write("models/m.onnx", &m.encode_to_vec());
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = seen.clone();
    let o = LoadOptions {
        artifact_root: Some(s.path().into()),
        progress: Some(std::sync::Arc::new(move |p| log.lock().unwrap().push(p))),
        ..options(&s)
    };
    let first = load(&path, &o).unwrap();
    assert_eq!(first.function.artifacts[0].path, "models/m.onnx");
    let len = first.sources[0].meta().len;
    assert_eq!(
        *seen.lock().unwrap(),
        [crate::Progress {
            done: len,
            total: len
        }]
    );
    // The list of hashes is trusted once it is clearly younger than the file.
    let entry = std::fs::read_dir(s.path().join("cache/hashes"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let file = std::fs::File::options()
        .write(true)
        .open(entry.path())
        .unwrap();
    let later = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1 << 33);
    file.set_modified(later).unwrap();
    seen.lock().unwrap().clear();
    let second = load(&path, &o).unwrap();
    assert_eq!(second.function, first.function);
    assert!(seen.lock().unwrap().is_empty());
    // The hashes of a damaged list are computed anew.
    let mut list = std::fs::read(entry.path()).unwrap();
    list[90] ^= 1;
    std::fs::write(entry.path(), list).unwrap();
    assert_eq!(load(&path, &o).unwrap().function, first.function);
}

#[test]
fn a_changed_file_serves_nothing() {
    let s = Scratch::new();
    let m = adds(floats("w", &[2000], &data(2000)), &["2000"]);
    let i = import_in(&s, &m).unwrap();
    let mut content = m.encode_to_vec();
    content.push(0);
    s.write("m.onnx", &content);
    assert!(matches!(
        i.sources[0].read_chunk(0),
        Err(ModelError::Changed { .. })
    ));
    assert!(matches!(
        i.sources[0].read_chunk(9),
        Err(ModelError::Changed { .. })
    ));
}

#[test]
fn typed_content_is_decoded() {
    let s = Scratch::new();
    let check = |t: TensorProto, want: &[u8]| {
        let n = t.dims[0].to_string();
        let i = import_in(&s, &adds(t, &[&n])).unwrap();
        assert_eq!(bytes(&i, "w"), want);
        i
    };
    let empty = |elem, n| TensorProto {
        raw_data: None,
        ..raw("w", elem, &[n], vec![])
    };
    for n in [3i64, 1025, 300_000] {
        let f = data(n as usize);
        let t = TensorProto {
            float_data: f.clone(),
            ..empty(F32, n)
        };
        check(t, bytemuck::cast_slice(&f));
        let v: Vec<i64> = (0..n).map(|i| i * i - 7).collect();
        let t = TensorProto {
            int64_data: v.clone(),
            ..empty(I64, n)
        };
        check(t, bytemuck::cast_slice(&v));
        let half: Vec<u16> = (0..n).map(|i| i as u16).collect();
        let t = TensorProto {
            int32_data: half.iter().map(|h| i32::from(*h)).collect(),
            ..empty(F16, n)
        };
        let i = check(t, bytemuck::cast_slice(&half));
        assert_eq!(i.sources.len(), usize::from(n > 2048));
        let d: Vec<f64> = f.iter().map(|v| f64::from(*v)).collect();
        let t = TensorProto {
            double_data: d.clone(),
            ..empty(11, n)
        };
        check(t, bytemuck::cast_slice(&d));
        let u: Vec<u32> = (0..n as u32).map(|i| u32::MAX - i).collect();
        let t = TensorProto {
            uint64_data: u.iter().map(|v| u64::from(*v)).collect(),
            ..empty(12, n)
        };
        check(t, bytemuck::cast_slice(&u));
    }
    // A negative number takes ten encoded bytes, of which the low ones are used.
    let v: Vec<i32> = (0..5000).map(|i| -i).collect();
    let t = TensorProto {
        int32_data: v.clone(),
        ..empty(6, 5000)
    };
    check(t, bytemuck::cast_slice(&v));
}

#[test]
fn a_sidecar_is_written_once_and_again_when_it_is_damaged() {
    let s = Scratch::new();
    let t = |v: f32| TensorProto {
        raw_data: None,
        float_data: vec![v; 5000],
        ..floats("w", &[5000], &[])
    };
    let first = import_in(&s, &adds(t(1.0), &["5000"])).unwrap();
    let path = first.sources[0].path().to_path_buf();
    assert!(path.starts_with(s.path().join("cache/encoded")));
    let again = import_in(&s, &adds(t(1.0), &["5000"])).unwrap();
    assert_eq!(
        (again.sources[0].path(), &again.function),
        (path.as_path(), &first.function)
    );
    std::fs::write(&path, vec![0; 20_000]).unwrap();
    let third = import_in(&s, &adds(t(1.0), &["5000"])).unwrap();
    assert_eq!(third.function, first.function);
    assert_eq!(
        bytes(&third, "w"),
        bytemuck::cast_slice::<f32, u8>(&[1.0; 5000])
    );
    let other = import_in(&s, &adds(t(2.0), &["5000"])).unwrap();
    assert_ne!(other.sources[0].path(), path);
    let left: Vec<_> = std::fs::read_dir(path.parent().unwrap()).unwrap().collect();
    assert_eq!(left.len(), 1);
}

#[test]
fn external_data_is_a_range_of_its_file() {
    let s = Scratch::new();
    let want = data(3000);
    let file = [&[9u8; 5], bytemuck::cast_slice(&want)].concat();
    s.write("sub/w.bin", &file);
    let at = |entries: &[(&str, &str)], n: i64| {
        import_in(&s, &adds(external("w", &[n], entries), &[&n.to_string()]))
    };
    let i = at(
        &[
            ("location", "sub/w.bin"),
            ("offset", "5"),
            ("length", "12000"),
        ],
        3000,
    )
    .unwrap();
    assert_eq!(
        literal(&i.function, "w"),
        &Literal::Range {
            artifact: 0,
            offset: 5,
            len: 12000
        }
    );
    assert_eq!(bytes(&i, "w"), bytemuck::cast_slice::<f32, u8>(&want));
    // Small external data is read into the graph.
    let i = at(&[("location", "./sub/w.bin"), ("offset", "5")], 3).unwrap();
    assert_eq!(bytes(&i, "w"), bytemuck::cast_slice::<f32, u8>(&want[..3]));
    assert!(i.sources.is_empty());
    let e = at(&[("location", "sub/w.bin"), ("offset", "6")], 3000).unwrap_err();
    assert!(
        matches!(
            e,
            ModelError::Truncated {
                at: 6,
                need: 12000,
                len: 12005,
                ..
            }
        ),
        "{e}"
    );
    let e = at(&[("location", "sub/w.bin"), ("length", "11")], 3000).unwrap_err();
    assert_eq!(
        e.to_string(),
        "tensor 'w': needs 12000 bytes, its external data has 11"
    );
    let huge = u64::MAX.to_string();
    assert!(at(&[("location", "sub/w.bin"), ("offset", &huge)], 3000).is_err());
    assert!(at(&[("location", "sub/w.bin"), ("offset", "-1")], 3000).is_err());
    assert!(at(&[], 3000).is_err());
}

#[test]
fn external_data_stays_in_the_folder() {
    let s = Scratch::new();
    let outside = s.write("secret", &[0; 12000]);
    std::fs::create_dir(s.path().join("model")).unwrap();
    std::os::unix::fs::symlink(&outside, s.path().join("model/link")).unwrap();
    std::os::unix::fs::symlink(s.path(), s.path().join("model/up")).unwrap();
    s.write("model/real", &[0; 12000]);
    std::os::unix::fs::symlink("real", s.path().join("model/alias")).unwrap();
    let check = |location: &str| {
        let m = adds(external("w", &[3000], &[("location", location)]), &["3000"]);
        let path = s.write("model/m.onnx", &m.encode_to_vec());
        load(&path, &options(&s))
            .map(|_| ())
            .map_err(|e| e.to_string())
    };
    let refused = |location: &str, why: &str| {
        assert_eq!(
            check(location),
            Err(format!("tensor 'w' is stored in '{location}': {why}"))
        );
    };
    refused("../secret", "the path is not inside the model's folder");
    refused(
        outside.to_str().unwrap(),
        "the path is not inside the model's folder",
    );
    refused("link", "a link leads out of the model's folder");
    refused("up/secret", "a link leads out of the model's folder");
    refused("nothing", "No such file or directory (os error 2)");
    assert!(
        check("up/model")
            .unwrap_err()
            .contains("is not a regular file")
    );
    check("real").unwrap();
    check("alias").unwrap();
}

/// `REPO/snapshots/REVISION` has links to files whose names are hashes, in `REPO/blobs`.
#[test]
fn a_cache_of_hugging_face_is_a_folder() {
    use std::os::unix::fs::symlink;
    let s = Scratch::new();
    for folder in [
        "repo/blobs/deeper",
        "repo/snapshots/abc/onnx",
        "repo/refs",
        "other/blobs",
    ] {
        std::fs::create_dir_all(s.path().join(folder)).unwrap();
    }
    for file in [
        "repo/blobs/H",
        "repo/blobs/deeper/H",
        "repo/refs/H",
        "other/blobs/H",
    ] {
        s.write(file, &[0; 12000]);
    }
    let check = |folder: &str, target: &str| {
        let data = [("location", "model.onnx_data")];
        let m = adds(external("w", &[3000], &data), &["3000"]).encode_to_vec();
        let blob = s.write(&format!("repo/blobs/model-{}", folder.len()), &m);
        let at = s.path().join("repo/snapshots/abc").join(folder);
        for (link, to) in [
            ("model.onnx", blob.as_path()),
            ("model.onnx_data", target.as_ref()),
        ] {
            let _ = std::fs::remove_file(at.join(link));
            symlink(to, at.join(link)).unwrap();
        }
        load(&at.join("model.onnx"), &options(&s))
            .map(|_| ())
            .map_err(|e| e.to_string())
    };
    check("", "../../blobs/H").unwrap();
    check("onnx", "../../../blobs/H").unwrap();
    for outside in [
        "../../refs/H",
        "../../blobs/deeper/H",
        "../../../other/blobs/H",
    ] {
        let refused = check("", outside).unwrap_err();
        assert!(
            refused.contains("a link leads out of the model's folder"),
            "{refused}"
        );
    }
    let refused = check("", "../../blobs/deeper").unwrap_err();
    assert!(refused.contains("is not a regular file"), "{refused}");
}

#[test]
fn weights_files_fill_initializers_without_data() {
    let s = Scratch::new();
    let header = r#"{"w":{"dtype":"F32","shape":[2000],"data_offsets":[3,8003]},"pad":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
    let want = data(2000);
    let len = (header.len() as u64).to_le_bytes();
    let file = [
        &len,
        header.as_bytes(),
        &[1, 2, 3],
        bytemuck::cast_slice(&want),
    ]
    .concat();
    let weights = vec![s.write("w.safetensors", &file)];
    let bare = |n| {
        adds(
            TensorProto {
                raw_data: None,
                ..floats("w", &[n], &[])
            },
            &["2000"],
        )
    };
    let path = s.write("m.onnx", &bare(2000).encode_to_vec());
    let o = LoadOptions {
        weights: weights.clone(),
        ..options(&s)
    };
    let i = load(&path, &o).unwrap();
    assert_eq!(bytes(&i, "w"), bytemuck::cast_slice::<f32, u8>(&want));
    assert_eq!(i.sources[0].path(), weights[0]);
    let e = load(&path, &options(&s)).unwrap_err();
    assert_eq!(e.to_string(), "1 weights without data: w");
    let path = s.write("m.onnx", &bare(1).encode_to_vec());
    let e = load(&path, &o).unwrap_err();
    assert!(
        e.to_string()
            .starts_with("weight 'w' is f32[1] in the model but f32[2000] in "),
        "{e}"
    );
}

#[test]
fn single_tensors_are_decoded() {
    let want = data(3000);
    let t = floats("t", &[30, 100], &want);
    let (name, got) = super::super::decode_tensor(&t.encode_to_vec()).unwrap();
    assert_eq!(
        (name.as_str(), got.as_slice::<f32>().unwrap()),
        ("t", &*want)
    );
    let t = TensorProto {
        raw_data: None,
        float_data: want.clone(),
        ..t
    };
    let (_, again) = super::super::decode_tensor(&t.encode_to_vec()).unwrap();
    assert_eq!(again, got);
    let t = TensorProto {
        float_data: vec![],
        ..t
    };
    assert!(super::super::decode_tensor(&t.encode_to_vec()).is_err());
}
