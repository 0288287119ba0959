//! Corpus inputs with valid messages of each kind.

#[path = "../../../fuzz/src/seed.rs"]
mod seed;

use convoke_common::error::{Code, Error, Site};
use convoke_common::ids::StepKey;
use convoke_graph::Tensor;

use super::*;
use crate::eager::wire::{Definition, Holding, Operand, Report, put_run};
use crate::frame::SharingFrame;
use convoke_graph::Shape;
use convoke_graph::graph::{Attr, Attrs};
use seed::Seed;

fn key(n: u64) -> StepKey {
    StepKey { lease: LEASE, n }
}

fn start(n: u64) -> Frame {
    Frame::Start {
        key: key(n),
        axes: vec![3],
        trace: ([1; 16], [2; 8]),
        partial: n % 2 == 1,
    }
}

/// A frame which says that the tensor for this slot does not come.
fn failed(n: u64, slot: u32) -> Frame {
    Frame::Failed {
        key: key(n),
        slots: vec![slot],
        error: Arc::new(Error::new(Code::KernelFailed, "index 9 is out of range")),
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

/// A peer gives the worker a file, and sends frames about it and about the two tensors that were lent to the peer. A
/// second tensor passes through the file whole, and a third in part.
fn sharing() -> Vec<u8> {
    let mut out = vec![1, 1, 16];
    out.extend([3u64, 4096].map(u64::to_le_bytes).concat());
    let [(tensor, _), ..] = tensors(0);
    let meet = SharingFrame::Meet {
        nonce: [7; 32],
        address: b"/run/convoke/w0/memory.sock".into(),
    };
    let lent = SharingFrame::Lent {
        tensor,
        segment: 3,
        offset: 64,
        loan: 1,
    };
    let returned = [1, 0].map(|loan| SharingFrame::Returned { loan });
    let staged = |transfer| {
        let [(tensor, _), ..] = tensors(1);
        SharingFrame::Staged { transfer, tensor }
    };
    let part = |transfer, len, loan| SharingFrame::Part {
        transfer,
        segment: 3,
        offset: 128,
        len,
        loan,
    };
    let passing = [
        staged(0),
        part(0, 4, 2),
        part(0, 4, 3),
        staged(1),
        part(1, 4, 4),
        SharingFrame::Cut { transfer: 1 },
        SharingFrame::Later { transfer: 0 },
        SharingFrame::Again { transfer: 0 },
        SharingFrame::Unwanted { transfer: 0 },
    ];
    let told = [meet, SharingFrame::Apart, lent]
        .into_iter()
        .chain(returned);
    let told = told.chain(passing);
    told.for_each(|sharing| Frame::Sharing(sharing).encode(&mut out));
    out
}

/// Turns of three steps: the first succeeds, one result of the second fails, and the third fails because the second
/// worker is lost.
fn driven() -> Vec<u8> {
    let result = |n, worker: u8| {
        let [(mut floats, first), (mut ids, second), _] = tensors(n);
        (floats.slot, ids.slot) = (0, 1);
        match worker {
            0 => (0, Frame::Tensor(floats), first),
            _ => (1, Frame::Tensor(ids), second),
        }
    };
    let none = || Tensor::zeros(convoke_graph::DType::U8, &[0]).unwrap();
    let lost = Frame::Abort {
        key: key(2),
        error: Box::new(Error::lost("other", "no answer")),
    };
    let done = |worker, n| (worker, Frame::Done { key: key(n) }, none());
    let turns = [
        result(0, 0),
        result(0, 1),
        done(0, 0),
        done(1, 0),
        result(1, 0),
        (1, failed(1, 1), none()),
        done(0, 1),
        done(1, 1),
        (0, lost, none()),
        done(0, 2),
    ];
    let mut out = vec![];
    for (worker, frame, payload) in turns {
        out.push(worker);
        frame.encode(&mut out);
        out.extend(payload.bytes());
    }
    out.push(3);
    out
}

/// The bytes of a lane from the worker (0) or the driver (1).
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

/// A client's commands: an op of two operands, on values of every kind.
fn told() -> Vec<u8> {
    let mut out = vec![0];
    let peer = Participant {
        name: "other".into(),
        incarnation: Incarnation(1),
        address: "10.0.0.2:7000".into(),
    };
    let definition = Definition {
        index: 0,
        op: "Concat".into(),
        attrs: Attrs::default().with("axis", Attr::Int(0)),
        operands: vec![Some(DType::F32), Some(DType::I64), None],
        outputs: 1,
        report: true,
        origin: 1,
    };
    let place = "src/main.rs:12".into();
    let tensor = Tensor::from_slice(&[2], &[1f32, 2.]).unwrap();
    let shape = Some(Shape::from_slice(&[3, 4]));
    let error = Box::new(Error::new(Code::PeerLost, "gone"));
    let (dtype, origin) = (DType::F32, 1);
    let take = |shape| Command::Take {
        peer: 1,
        transfer: 300,
        dtype,
        shape,
        origin,
    };
    let commands = [
        (Command::Origin { index: 1, place }, 0),
        (
            Command::Peer {
                index: 1,
                participant: peer,
            },
            0,
        ),
        (Command::Define(definition), 0),
        (Command::Literal { tensor, origin }, 0),
        (take(shape), 1),
        (take(None), 2),
        (Command::Reserve { origin }, 3),
        (Command::Abandon(3), 4),
        (Command::Begin { first: 1 << 20 }, 0),
        (
            Command::Fail {
                transfer: 300,
                error,
            },
            4,
        ),
    ];
    for (command, next) in commands {
        command.encode(&mut out, next).unwrap();
    }
    let ints = Tensor::from_slice(&[3], &[-1i64, 0, 1 << 40]).unwrap();
    let mask = Tensor::from_bools(&[1], &[true]).unwrap();
    put_run(
        &mut out,
        0,
        &[Operand::Handle(0), Operand::Value(ints), Operand::Absent],
        4,
    );
    put_run(
        &mut out,
        0,
        &[
            Operand::Handle(4),
            Operand::Borrowed(&mask),
            Operand::Handle(1),
        ],
        5,
    );
    let commands = [
        Command::Give {
            handle: 5,
            peer: 1,
            transfer: 0,
        },
        Command::Free(5),
        Command::Account { request: 1 },
    ];
    for command in commands {
        command.encode(&mut out, 6).unwrap();
    }
    out
}

/// One report of each kind.
pub(crate) fn reports() -> Vec<Report> {
    let error = Box::new(Error::new(Code::KernelFailed, "x").at(Site {
        origin: Some("src/main.rs:12".into()),
        ..Site::default()
    }));
    let held = vec![Holding {
        origin: "src/main.rs:12".into(),
        handles: 2,
        bytes: 8,
    }];
    vec![
        Report::Resolved(70_000),
        Report::Failed {
            handle: 3,
            error: error.clone(),
        },
        Report::Shape {
            handle: 4,
            shape: Shape::from_slice(&[5, 0]),
        },
        Report::Took { transfer: 1 },
        Report::Undelivered {
            peer: 1,
            transfer: 2,
            error,
        },
        Report::Accounted { request: 1, held },
    ]
}

/// A batch of all of a worker's reports.
fn reported() -> Vec<u8> {
    let mut out = vec![1];
    reports().iter().for_each(|r| r.encode(&mut out).unwrap());
    out
}

fn seeds() -> Vec<Seed> {
    let tensor = |n, slot: usize| Frame::Tensor(tensors(n)[slot].0.clone());
    let lanes = [
        ("start", lane(1, &[start(0)])),
        ("partial", lane(1, &[start(0), start(1)])),
        ("failed", lane(0, &[failed(1, 0)])),
        ("abort", lane(0, &[abort(1)])),
        ("done", lane(0, &[Frame::Done { key: key(0) }])),
        (
            "release",
            lane(
                1,
                &[Frame::Release {
                    lease: key(0).lease,
                }],
            ),
        ),
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
    let chunk = [&5u32.to_le_bytes(), &[9; 5][..]].concat();
    let replies = [&[4], &chunk[..], &chunk].concat();
    seeds.push(("stream", "replies".into(), replies));
    seeds.push(("sharing", "frames".into(), sharing()));
    seeds.push(("driver", "steps".into(), driven()));
    seeds.push(("stream", "probe".into(), vec![2, 8, 0, 0, 0]));
    let hello = [&[3][..], &7u64.to_le_bytes(), &5u16.to_le_bytes(), b"other"].concat();
    seeds.push(("stream", "hello".into(), hello));
    seeds.push(("eager", "commands".into(), told()));
    seeds.push(("eager", "reports".into(), reported()));
    seeds
}

#[test]
fn seeds_are_of_the_current_formats() {
    let entries: Vec<_> = TARGETS.iter().map(|t| (t.name, t.entry)).collect();
    seed::check(&entries, seeds());
}
