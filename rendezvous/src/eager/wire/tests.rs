//! Every command and report is encoded and decoded, and damaged ones are refused.

use super::*;
use crate::fuzzing::seeds::reports;

const NEXT: u64 = 1000;

fn check_command(command: Command, bytes: usize) {
    let mut out = Vec::new();
    command.encode(&mut out, NEXT).unwrap();
    assert_eq!(out.len(), bytes, "{command:?}");
    let mut r = Reader::new(&out);
    assert_eq!(r.command(NEXT).unwrap(), command);
    assert!(r.is_empty());
    for cut in 0..out.len() {
        assert!(
            Reader::new(&out[..cut]).command(NEXT).is_err(),
            "cut at {cut}"
        );
    }
}

#[test]
fn commands_round_trip_and_reject_every_truncation() {
    check_command(Command::Free(999), 2);
    let give = Command::Give {
        handle: 7,
        peer: 0,
        transfer: 5,
    };
    check_command(give, 5);
    let take = |shape| Command::Take {
        peer: 3,
        transfer: 1 << 20,
        dtype: DType::F32,
        shape,
        origin: 1,
    };
    check_command(take(Some(Shape::from_slice(&[2, 300]))), 11);
    check_command(take(None), 8);
    let literal = Command::Literal {
        tensor: Tensor::scalar(1.5f32),
        origin: 1,
    };
    check_command(literal, 8);
    let place = "src/main.rs:12".to_owned();
    let mut out = Vec::new();
    let origin = Command::Origin { index: 1, place };
    origin.encode(&mut out, NEXT).unwrap();
    assert_eq!(Reader::new(&out).command(NEXT).unwrap(), origin);
    check_command(Command::Account { request: 1 }, 2);
    check_command(Command::Reserve { origin: 1 }, 2);
    check_command(Command::Abandon(0), 3);
    check_command(Command::Begin { first: 300 }, 3);
    let error = Box::new(Error::new(Code::PeerLost, "x"));
    let mut out = Vec::new();
    let fail = Command::Fail { transfer: 9, error };
    fail.encode(&mut out, NEXT).unwrap();
    assert_eq!(Reader::new(&out).command(NEXT).unwrap(), fail);
}

#[test]
fn a_repeated_op_takes_three_bytes() {
    let shape = Tensor::from_slice(&[3], &[-1i64, 2, i64::MAX]).unwrap();
    let scalar = Tensor::scalar(2f32);
    let check = |operands: &[Operand<'_>], bytes: usize| {
        let mut out = Vec::new();
        put_run(&mut out, 7, operands, NEXT);
        assert_eq!(out.len(), bytes);
        let mut r = Reader::new(&out);
        assert_eq!(r.command(NEXT).unwrap(), Command::Run(7));
        for given in operands {
            let want = match given {
                Operand::Borrowed(t) => Operand::Value((*t).clone()),
                other => other.clone(),
            };
            assert_eq!(r.operand(NEXT).unwrap(), want);
        }
        assert!(r.is_empty());
    };
    check(&[Operand::Handle(NEXT - 1), Operand::Handle(NEXT - 100)], 3);
    check(&[Operand::Handle(0), Operand::Absent], 4);
    check(&[Operand::Borrowed(&shape)], 1 + 2 + 1 + 1 + 10);
    check(&[Operand::Borrowed(&scalar)], 1 + 1 + 2 + 4);
}

#[test]
fn reports_round_trip() {
    let reports = reports();
    let mut out = Vec::new();
    reports.iter().for_each(|r| r.encode(&mut out).unwrap());
    let mut r = Reader::new(&out);
    for want in reports {
        assert_eq!(r.report().unwrap(), want);
    }
    assert!(r.is_empty() && r.report().is_err());
}

#[test]
fn what_lies_is_refused() {
    let refused = |bytes: &[u8]| Reader::new(bytes).command(2).is_err();
    // A handle of the future, at distance 0, and one before the first are refused.
    assert!(refused(&[FREE as u8, 0]) && refused(&[FREE as u8, 3]));
    assert!(!refused(&[FREE as u8, 2]));
    // The heads from 11 to 15 have no meaning.
    assert!(refused(&[11]));
    // A number of more than 64 bits is refused.
    assert!(refused(&[0xff; 10]));
    // A tensor that claims more than a batch holds is refused, and so is one whose size overflows.
    assert!(refused(&[
        LITERAL as u8,
        0,
        DType::F32 as u8,
        1,
        0xff,
        0xff,
        3
    ]));
    let mut huge = vec![LITERAL as u8, 0, DType::F32 as u8, 2];
    huge.extend([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
    huge.extend([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
    assert!(refused(&huge));
    assert!(refused(&[LITERAL as u8, 0, DType::Bool as u8, 1, 1, 2]));
    // A peer beyond the limit is refused, and so is a rank beyond the limit.
    assert!(refused(&[GIVE as u8, 1, 0x80, 0x20, 0]));
    assert!(refused(&[TAKE as u8, 1, 1, 0, DType::F32 as u8, 17]));
}
