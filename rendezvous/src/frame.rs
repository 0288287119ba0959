//! Frames, which travel on a lane, and the header of a tensor stream.
//!
//! ```text
//! frame  = kind u8 | 3 zero bytes | body length u32 | body
//! tensor = lease u64 | step u64 | slot u32 | dtype u8 | rank u8 | u16 zero | dims u64 × rank | length u64 | payload
//! failed = lease u64 | step u64 | count u16 | slots u32 × count | error
//! ```
//! All integers are little-endian. A tensor of up to [`LANE_LIMIT`] bytes travels inside its frame. A larger one has a
//! stream of its own, with the same header before the payload; or it lies in shared memory, or passes through it, and
//! frames say where.

use std::sync::Arc;

use convoke_common::error::{Code, Error, Result};
use convoke_common::ids::{LeaseId, StepKey};
use convoke_common::mutant;
use convoke_common::world::Nonce;
use convoke_graph::codec;
use convoke_graph::tensor::{MAX_RANK, Shape};
use convoke_graph::{DType, Tensor};

/// The largest payload that shares the lane, in bytes: a few packets.
pub const LANE_LIMIT: usize = 32 << 10;
/// The largest body of a frame, in bytes.
pub const MAX_BODY: usize = 128 << 10;
/// The bytes before a frame's body.
pub const HEAD: usize = 8;
/// The most dynamic axes of a lease.
const MAX_AXES: usize = 256;
/// The most slots in one `Failed` frame.
pub const MAX_FAILED: usize = 4096;
/// The most bytes of the error in a `Failed` frame, since many such frames may belong to one step.
const FAILED_ERROR: usize = 16 << 10;

/// A message on a lane.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// The driver starts a step.
    Start {
        key: StepKey,
        /// The values of the lease's dynamic axes.
        axes: Vec<i64>,
        /// The W3C trace id and span id of the caller; zeros if the call is not traced.
        trace: ([u8; 16], [u8; 8]),
        /// Whether the step is partial: an error ends only what depends on it, rather than the step.
        partial: bool,
    },
    /// In a partial step, the tensors for these recv slots do not come, since this error occurred on the way to them.
    Failed {
        key: StepKey,
        /// The slots at the destination; [`MAX_FAILED`] at most.
        slots: Vec<u32>,
        error: Arc<Error>,
    },
    /// The sender ends a step with an error.
    Abort { key: StepKey, error: Box<Error> },
    /// The sender has quiesced the step: nothing of it is left there.
    Done { key: StepKey },
    /// The driver is done with a lease. The coordinator also tells the participants, as far as it reaches them.
    Release { lease: LeaseId },
    /// A small tensor follows in the same body.
    Tensor(TensorHeader),
    /// A message about shared memory between two ends of a link on one host, see [`crate::sharing`].
    Sharing(SharingFrame),
}

/// A message about shared memory between two ends of a link on one host, see [`crate::sharing`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SharingFrame {
    /// The receiver can get the sender's segments at this address, by showing the nonce there.
    Meet { nonce: Nonce, address: Vec<u8> },
    /// The sender takes the receiver's segments at this address, from a peer that shows the nonce there.
    Bring { nonce: Nonce, address: Vec<u8> },
    /// The sender of this frame cannot get the other end's segments.
    Apart,
    /// A tensor lies in a segment, `offset` bytes from its start, and is lent to the receiver.
    Lent {
        tensor: TensorHeader,
        segment: u64,
        offset: u64,
        loan: u64,
    },
    /// The receiver of a loan uses it no more.
    Returned { loan: u64 },
    /// A tensor follows in pieces.
    Staged { transfer: u64, tensor: TensorHeader },
    /// The next piece of a tensor, to be copied from this place in a segment.
    Part {
        transfer: u64,
        segment: u64,
        offset: u64,
        len: u32,
        loan: u64,
    },
    /// The rest of a tensor does not come.
    Cut { transfer: u64 },
    /// A tensor is not expected yet: nothing of it is taken until the receiver asks for it again.
    Later { transfer: u64 },
    /// A tensor is expected now, and is to be sent from its start.
    Again { transfer: u64 },
    /// A tensor was refused: the rest of it is not taken.
    Unwanted { transfer: u64 },
}

/// The header before a tensor's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorHeader {
    pub key: StepKey,
    /// The recv slot at the destination.
    pub slot: u32,
    pub dtype: DType,
    pub shape: Shape,
    /// The length of the payload, in bytes: what dtype and shape need or, for strings, what those take.
    pub bytes: usize,
}

const START: u8 = 1;
const ABORT: u8 = 2;
const DONE: u8 = 3;
const TENSOR: u8 = 4;
/// The kind of a batch of an eager session, see [`crate::eager`].
pub(crate) const EAGER: u8 = 5;
const MEET: u8 = 6;
const APART: u8 = 7;
const LENT: u8 = 8;
const RETURNED: u8 = 9;
const BRING: u8 = 10;
const STAGED: u8 = 11;
const PART: u8 = 12;
const CUT: u8 = 13;
const LATER: u8 = 14;
const AGAIN: u8 = 15;
const UNWANTED: u8 = 16;
const RELEASE: u8 = 17;
/// The kind of a `Start` frame of a partial step.
const START_PARTIAL: u8 = 18;
const FAILED: u8 = 19;
/// The longest address of a socket, in bytes.
const MAX_ADDRESS: usize = 108;

fn bad(what: &str) -> Error {
    Error::new(Code::ProtocolViolation, format!("malformed frame: {what}"))
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n).ok_or_else(|| bad("too short"))?;
        self.0 = rest;
        Ok(head)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| bad("too short"))
    }
    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    fn key(&mut self) -> Result<StepKey> {
        Ok(StepKey {
            lease: LeaseId(self.u64()?),
            n: self.u64()?,
        })
    }
}

impl TensorHeader {
    /// The header for `tensor`.
    pub fn of(key: StepKey, slot: u32, tensor: &Tensor) -> TensorHeader {
        TensorHeader {
            key,
            slot: slot ^ u32::from(mutant!("wrong-slot")),
            dtype: tensor.dtype(),
            shape: tensor.shape().into(),
            bytes: tensor.byte_len(),
        }
    }

    /// The size of an encoded header up to the dims, in bytes.
    pub const FIXED: usize = 24;

    /// Appends the header.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.key.lease.0.to_le_bytes());
        out.extend(self.key.n.to_le_bytes());
        out.extend(self.slot.to_le_bytes());
        out.extend([self.dtype as u8, self.shape.len() as u8, 0, 0]);
        self.shape
            .iter()
            .for_each(|d| out.extend((*d as u64).to_le_bytes()));
        out.extend((self.bytes as u64).to_le_bytes());
    }

    /// Reads the rank from the first [`Self::FIXED`] bytes of a header.
    pub fn rank(fixed: &[u8; Self::FIXED]) -> Result<usize> {
        let rank = usize::from(fixed[21]);
        if rank > MAX_RANK {
            Err(bad("rank above the limit"))
        } else {
            Ok(rank)
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<TensorHeader> {
        let (key, slot) = (r.key()?, r.u32()?);
        let [dtype, rank, _, _] = r.array()?;
        let dtype = DType::from_code(dtype).ok_or_else(|| bad("unknown dtype"))?;
        if usize::from(rank) > MAX_RANK {
            return Err(bad("rank above the limit"));
        }
        let mut shape = Shape::new();
        for _ in 0..rank {
            shape.push(usize::try_from(r.u64()?).map_err(|_| bad("dimension too large"))?);
        }
        let bytes = usize::try_from(r.u64()?).unwrap_or(usize::MAX);
        if Tensor::check_size(dtype, &shape, bytes).is_err() {
            return Err(bad("length does not match dtype and shape"));
        }
        Ok(TensorHeader {
            key,
            slot,
            dtype,
            shape,
            bytes,
        })
    }

    /// Decodes a whole header.
    pub fn decode_all(bytes: &[u8]) -> Result<TensorHeader> {
        Self::decode(&mut Reader(bytes))
    }
}

impl Frame {
    /// Appends the frame; the caller appends a tensor's payload after it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let at = out.len();
        out.extend([0; HEAD]);
        let (kind, payload) = match self {
            Frame::Start {
                key,
                axes,
                trace,
                partial,
            } => {
                put_key(out, *key);
                out.extend(trace.0);
                out.extend(trace.1);
                out.extend((axes.len() as u16).to_le_bytes());
                axes.iter().for_each(|a| out.extend(a.to_le_bytes()));
                (if *partial { START_PARTIAL } else { START }, 0)
            }
            Frame::Failed { key, slots, error } => {
                put_key(out, *key);
                out.extend((slots.len() as u16).to_le_bytes());
                slots.iter().for_each(|s| out.extend(s.to_le_bytes()));
                out.extend(encode_error(error, FAILED_ERROR));
                (FAILED, 0)
            }
            Frame::Abort { key, error } => {
                put_key(out, *key);
                out.extend(encode_error(error, MAX_BODY / 2));
                (ABORT, 0)
            }
            Frame::Done { key } => {
                put_key(out, *key);
                (DONE, 0)
            }
            Frame::Release { lease } => {
                out.extend(lease.0.to_le_bytes());
                (RELEASE, 0)
            }
            Frame::Tensor(h) => {
                h.encode(out);
                (TENSOR, h.bytes)
            }
            Frame::Sharing(sharing) => (sharing.encode(out), 0),
        };
        let len = (out.len() - at - HEAD + payload) as u32;
        out[at] = kind;
        out[at + 4..at + 8].copy_from_slice(&len.to_le_bytes());
    }

    /// Reads the kind and the body length from a frame's first [`HEAD`] bytes.
    pub fn head(head: &[u8; HEAD]) -> Result<(u8, usize)> {
        let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if len > MAX_BODY {
            return Err(bad("body above the limit"));
        }
        Ok((head[0], len))
    }

    /// Decodes a frame's body; the returned rest is a tensor's payload.
    pub fn decode(kind: u8, body: &[u8]) -> Result<(Frame, &[u8])> {
        let mut r = Reader(body);
        let frame = match kind {
            START | START_PARTIAL => {
                let key = r.key()?;
                let trace = (r.array()?, r.array()?);
                let count = usize::from(r.u16()?);
                if count > MAX_AXES {
                    return Err(bad("too many axes"));
                }
                let axes: Result<Vec<i64>> = (0..count).map(|_| Ok(r.u64()? as i64)).collect();
                Frame::Start {
                    key,
                    axes: axes?,
                    trace,
                    partial: kind == START_PARTIAL,
                }
            }
            FAILED => {
                let key = r.key()?;
                let count = usize::from(r.u16()?);
                if count > MAX_FAILED {
                    return Err(bad("too many slots"));
                }
                let slots: Result<Vec<u32>> = (0..count).map(|_| r.u32()).collect();
                let (slots, rest) = (slots?, r.take(r.0.len())?);
                if rest.len() > FAILED_ERROR {
                    return Err(bad("error above the limit"));
                }
                let error: Error = codec::decode(rest).map_err(|_| bad("error"))?;
                let error = Arc::new(error);
                Frame::Failed { key, slots, error }
            }
            ABORT => {
                let key = r.key()?;
                let rest = r.take(r.0.len())?;
                let error = codec::decode(rest).map_err(|_| bad("error"))?;
                Frame::Abort {
                    key,
                    error: Box::new(error),
                }
            }
            DONE => Frame::Done { key: r.key()? },
            RELEASE => Frame::Release {
                lease: LeaseId(r.u64()?),
            },
            TENSOR => {
                let h = TensorHeader::decode(&mut r)?;
                if h.bytes != r.0.len() {
                    return Err(bad("payload length"));
                }
                return Ok((Frame::Tensor(h), r.0));
            }
            MEET..=UNWANTED => Frame::Sharing(SharingFrame::decode(kind, &mut r)?),
            _ => return Err(bad("unknown kind")),
        };
        if r.0.is_empty() {
            Ok((frame, &[]))
        } else {
            Err(bad("trailing bytes"))
        }
    }
}

impl SharingFrame {
    /// Appends the body, and returns the frame's kind.
    fn encode(&self, out: &mut Vec<u8>) -> u8 {
        match self {
            SharingFrame::Meet { nonce, address } | SharingFrame::Bring { nonce, address } => {
                out.extend(nonce);
                out.extend(address);
                match self {
                    SharingFrame::Meet { .. } => MEET,
                    _ => BRING,
                }
            }
            SharingFrame::Apart => APART,
            SharingFrame::Lent {
                tensor,
                segment,
                offset,
                loan,
            } => {
                tensor.encode(out);
                for n in [segment, offset, loan] {
                    out.extend(n.to_le_bytes());
                }
                LENT
            }
            SharingFrame::Returned { loan } => {
                out.extend(loan.to_le_bytes());
                RETURNED
            }
            SharingFrame::Staged { transfer, tensor } => {
                out.extend(transfer.to_le_bytes());
                tensor.encode(out);
                STAGED
            }
            SharingFrame::Part {
                transfer,
                segment,
                offset,
                len,
                loan,
            } => {
                for n in [transfer, segment, offset, loan] {
                    out.extend(n.to_le_bytes());
                }
                out.extend(len.to_le_bytes());
                PART
            }
            SharingFrame::Cut { transfer } => {
                out.extend(transfer.to_le_bytes());
                CUT
            }
            SharingFrame::Later { transfer } => {
                out.extend(transfer.to_le_bytes());
                LATER
            }
            SharingFrame::Again { transfer } => {
                out.extend(transfer.to_le_bytes());
                AGAIN
            }
            SharingFrame::Unwanted { transfer } => {
                out.extend(transfer.to_le_bytes());
                UNWANTED
            }
        }
    }

    fn decode(kind: u8, r: &mut Reader<'_>) -> Result<SharingFrame> {
        Ok(match kind {
            MEET | BRING => {
                let nonce = r.array()?;
                if r.0.len() > MAX_ADDRESS {
                    return Err(bad("address above the limit"));
                }
                let address = r.take(r.0.len())?.to_vec();
                match kind {
                    MEET => SharingFrame::Meet { nonce, address },
                    _ => SharingFrame::Bring { nonce, address },
                }
            }
            APART => SharingFrame::Apart,
            LENT => SharingFrame::Lent {
                tensor: TensorHeader::decode(r)?,
                segment: r.u64()?,
                offset: r.u64()?,
                loan: r.u64()?,
            },
            STAGED => SharingFrame::Staged {
                transfer: r.u64()?,
                tensor: TensorHeader::decode(r)?,
            },
            PART => SharingFrame::Part {
                transfer: r.u64()?,
                segment: r.u64()?,
                offset: r.u64()?,
                loan: r.u64()?,
                len: r.u32()?,
            },
            CUT => SharingFrame::Cut { transfer: r.u64()? },
            LATER => SharingFrame::Later { transfer: r.u64()? },
            AGAIN => SharingFrame::Again { transfer: r.u64()? },
            UNWANTED => SharingFrame::Unwanted { transfer: r.u64()? },
            _ => SharingFrame::Returned { loan: r.u64()? },
        })
    }
}

fn put_key(out: &mut Vec<u8>, key: StepKey) {
    out.extend(key.lease.0.to_le_bytes());
    out.extend(key.n.to_le_bytes());
}

/// Encodes an error in at most `most` bytes, which must be some thousands: what does not fit is cut, so that the cause
/// always arrives.
pub(crate) fn encode_error(error: &Error, most: usize) -> Vec<u8> {
    codec::encode(&error.clone().shortened(most)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use convoke_common::error::Site;

    use super::*;

    fn key() -> StepKey {
        StepKey {
            lease: LeaseId(7),
            n: 3,
        }
    }

    fn check_round_trip(f: Frame, payload: &[u8]) {
        let mut out = Vec::new();
        f.encode(&mut out);
        out.extend(payload);
        let head: [u8; HEAD] = out[..HEAD].try_into().unwrap();
        let (kind, len) = Frame::head(&head).unwrap();
        assert_eq!(len, out.len() - HEAD);
        assert_eq!(Frame::decode(kind, &out[HEAD..]).unwrap(), (f, payload));
        for cut in 0..out.len() - HEAD {
            assert!(
                Frame::decode(kind, &out[HEAD..HEAD + cut]).is_err(),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn frames_round_trip_and_reject_every_truncation() {
        check_round_trip(Frame::Done { key: key() }, &[]);
        let trace = ([1; 16], [2; 8]);
        for partial in [false, true] {
            let axes = vec![1, -2];
            let (key, trace) = (key(), trace);
            check_round_trip(
                Frame::Start {
                    key,
                    axes,
                    trace,
                    partial,
                },
                &[],
            );
        }
        for slots in [vec![], vec![0, u32::MAX]] {
            let error = Arc::new(Error::new(Code::KernelFailed, "x"));
            let key = key();
            check_round_trip(Frame::Failed { key, slots, error }, &[]);
        }
        let error = Box::new(Error::new(Code::KernelFailed, "x"));
        check_round_trip(Frame::Abort { key: key(), error }, &[]);
        let t = Tensor::from_slice(&[2], &[1f32, 2.]).unwrap();
        let tensor = TensorHeader::of(key(), 1, &t);
        check_round_trip(Frame::Tensor(tensor.clone()), t.bytes());
        check_round_trip(Frame::Sharing(SharingFrame::Apart), &[]);
        let told = [
            SharingFrame::Returned { loan: 1 },
            SharingFrame::Lent {
                tensor: tensor.clone(),
                segment: 1,
                offset: 64,
                loan: u64::MAX,
            },
            SharingFrame::Staged {
                transfer: 2,
                tensor,
            },
            SharingFrame::Part {
                transfer: 2,
                segment: 1,
                offset: 64,
                len: u32::MAX,
                loan: 3,
            },
            SharingFrame::Cut { transfer: 2 },
            SharingFrame::Later { transfer: 2 },
            SharingFrame::Again { transfer: 2 },
            SharingFrame::Unwanted { transfer: 2 },
        ];
        for sharing in told {
            check_round_trip(Frame::Sharing(sharing), &[]);
        }
    }

    #[test]
    fn an_address_is_as_long_as_a_socket_may_have() {
        let check = |len: usize, fits: bool| {
            let (nonce, address) = ([3; 32], vec![b'a'; len]);
            let meet = SharingFrame::Meet {
                nonce,
                address: address.clone(),
            };
            for (kind, told) in [
                (MEET, meet),
                (BRING, SharingFrame::Bring { nonce, address }),
            ] {
                let (mut out, frame) = (vec![], Frame::Sharing(told));
                frame.encode(&mut out);
                assert_eq!(out[0], kind);
                let decoded = Frame::decode(kind, &out[HEAD..]);
                assert_eq!(decoded.ok(), fits.then_some((frame, &[][..])), "{len}");
            }
        };
        check(0, true);
        check(MAX_ADDRESS, true);
        check(MAX_ADDRESS + 1, false);
    }

    #[test]
    fn lying_headers_are_refused() {
        let t = Tensor::from_slice(&[2], &[1f32, 2.]).unwrap();
        let mut out = Vec::new();
        TensorHeader::of(key(), 1, &t).encode(&mut out);
        for (at, byte) in [(20, 99), (21, 17), (24, 3), (31, 0xff), (32, 9)] {
            let mut o = out.clone();
            o[at] = byte;
            assert!(TensorHeader::decode_all(&o).is_err(), "byte {at}");
        }
    }

    #[test]
    fn an_enormous_error_still_arrives() {
        let e = Error::new(Code::KernelFailed, "y".repeat(1 << 20));
        let mut out = Vec::new();
        Frame::Abort {
            key: key(),
            error: Box::new(e),
        }
        .encode(&mut out);
        assert!(out.len() < MAX_BODY);
        let (f, _) = Frame::decode(2, &out[HEAD..]).unwrap();
        assert!(matches!(f, Frame::Abort { error, .. } if error.message.len() >= 2000));

        let error = Arc::new(Error::new(Code::KernelFailed, "é".repeat(1 << 20)));
        let (key, slots) = (key(), vec![7; MAX_FAILED]);
        let mut out = Vec::new();
        Frame::Failed { key, slots, error }.encode(&mut out);
        assert!(out.len() < MAX_BODY);
        let (f, _) = Frame::decode(FAILED, &out[HEAD..]).unwrap();
        let Frame::Failed { slots, error, .. } = f else {
            panic!("{f:?}");
        };
        assert_eq!(slots.len(), MAX_FAILED);
        assert!(error.message.chars().count() >= 1000);
    }

    #[test]
    fn an_error_of_many_short_texts_still_arrives() {
        for (operands, causes) in [(1_200, 0), (0, 400), (100_000, 0)] {
            let mut error = Error::new(Code::KernelFailed, "y").at(Site {
                operands: vec!["i64[1]".to_owned(); operands],
                ..Site::default()
            });
            error.attached = vec![error.clone(); causes];
            let (key, slots, error) = (key(), vec![7], Arc::new(error));
            let mut out = Vec::new();
            Frame::Failed { key, slots, error }.encode(&mut out);
            let (f, _) = Frame::decode(FAILED, &out[HEAD..]).unwrap();
            assert!(matches!(f, Frame::Failed { error, .. } if error.message == "y"));
        }
    }
}
