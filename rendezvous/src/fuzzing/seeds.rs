//! Valid messages of each kind.

#[path = "../../../fuzz/src/seed.rs"]
mod seed;

use convoke_common::Tensor;
use convoke_common::error::{Code, Error, Site};
use convoke_common::ids::StepKey;

use super::*;
use seed::Seed;

fn key(n: u64) -> StepKey {
    StepKey { lease: LEASE, n }
}

fn start(n: u64) -> Frame {
    Frame::Start {
        key: key(n),
        axes: vec![3],
        trace: ([1; 16], [2; 8]),
    }
}

fn abort(n: u64) -> Frame {
    let site = Site {
        worker: Some("other".into()),
        node: Some("/embed/Gather".into()),
        op: Some("Gather".into()),
        operands: vec!["f32[4, 8]".into(), "i64[1]".into()],
        ..Site::default()
    };
    let mut error = Error::new(Code::KernelFailed, "index 9 is out of range").at(site);
    error.stopped = vec!["me".into()];
    error.attached = vec![Error::lost("other", "no answer").advise("look")];
    let error = Box::new(error);
    Frame::Abort { key: key(n), error }
}

fn tensors(n: u64) -> [(TensorHeader, Tensor); 3] {
    let floats = Tensor::from_slice(&[2], &[1f32, 2.]).unwrap();
    let ids = Tensor::from_slice(&[3], &[1i64, 2, 3]).unwrap();
    let mask = Tensor::from_bools(&[1, 3], &[true, false, true]).unwrap();
    let mut slot = 0;
    [floats, ids, mask].map(|t| {
        slot += 1;
        (TensorHeader::of(key(n), slot - 1, &t), t)
    })
}

/// A lane's bytes from the worker (0) or the driver (1).
fn lane(from: u8, frames: &[Frame]) -> Vec<u8> {
    let mut out = vec![from];
    for frame in frames {
        frame.encode(&mut out);
        if let Frame::Tensor(header) = frame {
            let tensors = tensors(header.key.n);
            let sent = tensors.iter().find(|(h, _)| h == header);
            out.extend(sent.unwrap().1.bytes());
        }
    }
    out
}

fn seeds() -> Vec<Seed> {
    let tensor = |n, slot: usize| Frame::Tensor(tensors(n)[slot].0.clone());
    let lanes = [
        ("start", lane(1, &[start(0)])),
        ("abort", lane(0, &[abort(1)])),
        ("done", lane(0, &[Frame::Done { key: key(0) }])),
        ("tensor", lane(0, &[tensor(0, 0)])),
        (
            "step",
            lane(
                1,
                &[start(0), tensor(0, 1), tensor(0, 2), start(1), abort(0)],
            ),
        ),
    ];
    let mut seeds: Vec<Seed> = lanes
        .map(|(name, bytes)| ("lane", name.to_owned(), bytes))
        .into();
    for (slot, (header, tensor)) in tensors(0).into_iter().enumerate() {
        let mut bytes = vec![0];
        header.encode(&mut bytes);
        bytes.extend(tensor.bytes());
        seeds.push(("stream", format!("tensor-{slot}"), bytes));
    }
    let mut request = vec![1];
    request.extend([9; 32]);
    request.extend(3u64.to_le_bytes());
    request.extend(8u32.to_le_bytes());
    seeds.push(("stream", "artifact".into(), request));
    seeds.push(("stream", "probe".into(), vec![2, 8, 0, 0, 0]));
    let hello = [&[3][..], &7u64.to_le_bytes(), &5u16.to_le_bytes(), b"other"].concat();
    seeds.push(("stream", "hello".into(), hello));
    seeds
}

#[test]
fn seeds_are_of_the_current_formats() {
    let entries: Vec<_> = TARGETS.iter().map(|t| (t.name, t.entry)).collect();
    seed::check(&entries, seeds());
}
