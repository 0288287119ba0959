//! The messages of an eager session on its link's lane: the client's commands in one direction, the worker's reports in
//! the other, many in one frame.
//!
//! ```text
//! command = head varint | fields         head 16 + i runs prepared op i; smaller heads are below
//! run     = 16 + i | operand per declared operand
//! operand = 0 (left out) | 1 (integers: count, zigzag varints) | 2 (a small tensor) | 2 + distance (a handle)
//! tensor  = dtype u8 | rank u8 | dims varint × rank | bytes
//! ```
//! Handles are numbered in the order of the commands that make them, from 0 or from the number in [`Command::Begin`];
//! no other command contains the number of the handle that it makes. A handle is named by its distance, the next number
//! less its own: a repeated op on recent operands takes 3 to 5 bytes.

use convoke_common::error::{Code, Error, Result};
use convoke_common::grant::Participant;
use convoke_graph::codec;
use convoke_graph::graph::Attrs;
use convoke_graph::tensor::{MAX_RANK, Shape, byte_size};
use convoke_graph::{DType, Tensor};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Batch;
use crate::frame::{LANE_LIMIT, encode_error};

const DEFINE: u64 = 0;
const FREE: u64 = 1;
const GIVE: u64 = 2;
const TAKE: u64 = 3;
const LITERAL: u64 = 4;
const PEER: u64 = 5;
const FAIL: u64 = 6;
const ACCOUNT: u64 = 7;
const ORIGIN: u64 = 8;
const RESERVE: u64 = 9;
const ABANDON: u64 = 10;
const BEGIN: u64 = 11;
/// The first head that runs a prepared op.
const RUN: u64 = 16;

const RESOLVED: u64 = 0;
const FAILED: u64 = 1;
const SHAPE: u64 = 2;
const TOOK: u64 = 3;
const UNDELIVERED: u64 = 4;
const ACCOUNTED: u64 = 5;

const ABSENT: u64 = 0;
const INTEGERS: u64 = 1;
const TENSOR: u64 = 2;

/// The largest tensor that travels inside a command, in bytes.
pub const INLINE: usize = LANE_LIMIT;
/// The most prepared ops of a session: a client that uses more replaces the one that it has not used for longest.
pub const MOST_PREPARED: u32 = 4096;
/// The most peers that a session can name.
pub const MOST_PEERS: u32 = 4096;
/// The most handles that a session may have at once.
pub const MOST_HANDLES: usize = 1 << 20;
/// The most requests for accounts that a client may wait for at once.
pub const MOST_ACCOUNTS: usize = 64;
/// The most places that a session can name, and the most bytes of the name of one.
pub const MOST_ORIGINS: u32 = 4096;
pub const LONGEST_ORIGIN: usize = 512;
/// The largest number that the first handle of a session may have.
const MOST_NUMBER: u64 = 1 << 48;
/// The most elements of an operand of integers.
const MOST_INTEGERS: u64 = 1 << 10;

/// The definition of a prepared op.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Definition {
    /// The index of the op, below [`MOST_PREPARED`]; a former op of this index is dropped.
    pub index: u32,
    pub op: String,
    pub attrs: Attrs,
    /// The dtypes of the operands; `None` for one that is left out.
    pub operands: Vec<Option<DType>>,
    pub outputs: u8,
    /// Whether the worker is to report the outputs' shapes, since only data decides them.
    pub report: bool,
    /// The place in the client's program that issues the op, see [`Command::Origin`].
    pub origin: u32,
}

/// The handles of a session that were issued at one place: their number and bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// The place, such as `src/main.rs:12`.
    pub origin: String,
    pub handles: u64,
    pub bytes: u64,
}

/// A command of a client to a worker.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Numbers handles from here on; it comes first in a session that follows a lost one, whose numbers are not used
    /// again.
    Begin {
        first: u64,
    },
    Define(Definition),
    /// Runs a prepared op; its operands follow, see [`Reader::operand`].
    Run(u32),
    /// The client has dropped a handle.
    Free(u64),
    /// Sends a handle's tensor to a peer once the value is there; peer 0 is the client.
    Give {
        handle: u64,
        peer: u32,
        transfer: u64,
    },
    /// Makes a handle that a peer fills.
    Take {
        peer: u32,
        transfer: u64,
        dtype: DType,
        shape: Option<Shape>,
        origin: u32,
    },
    /// Makes a handle with this value.
    Literal {
        tensor: Tensor,
        origin: u32,
    },
    /// Names a peer, at an index from 1.
    Peer {
        index: u32,
        participant: Participant,
    },
    /// Reports that a transfer does not come.
    Fail {
        transfer: u64,
        error: Box<Error>,
    },
    /// Asks for an account of the session's handles.
    Account {
        request: u64,
    },
    /// Makes a handle that a step fills.
    Reserve {
        origin: u32,
    },
    /// Drops a reserved handle that no step fills.
    Abandon(u64),
    /// Names a place in the client's program, at an index below [`MOST_ORIGINS`].
    Origin {
        index: u32,
        place: String,
    },
}

/// A report of a worker to a client.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    /// This many further commands that make handles have their results, or failed.
    Resolved(u64),
    /// An op failed by itself, not because of a failed operand.
    Failed { handle: u64, error: Box<Error> },
    /// The shape of a handle, which its data decided.
    Shape { handle: u64, shape: Shape },
    /// A transfer to the worker arrived, or failed.
    Took { transfer: u64 },
    /// A transfer to a peer cannot be sent.
    Undelivered {
        peer: u32,
        transfer: u64,
        error: Box<Error>,
    },
    /// The session's holdings, the largest first.
    Accounted { request: u64, held: Vec<Holding> },
}

/// An operand of a prepared op's run.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand<'a> {
    Absent,
    Value(Tensor),
    Handle(u64),
    /// A value that is borrowed for encoding; decoding never returns it.
    Borrowed(&'a Tensor),
}

fn bad(what: &str) -> Error {
    Error::new(
        Code::ProtocolViolation,
        format!("malformed eager batch: {what}"),
    )
}

fn put(out: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

fn put_coded<T: Serialize>(out: &mut Vec<u8>, value: &T) -> Result<()> {
    let bytes = codec::encode(value).map_err(|e| bad(&e.to_string()))?;
    put(out, bytes.len() as u64);
    out.extend(bytes);
    Ok(())
}

/// Appends an error, which is cut if it is too large for a batch: its cause always arrives.
fn put_error(out: &mut Vec<u8>, error: &Error) {
    let bytes = encode_error(error, Batch::MOST / 2);
    put(out, bytes.len() as u64);
    out.extend(bytes);
}

fn put_shape(out: &mut Vec<u8>, shape: &[usize]) {
    out.push(shape.len() as u8);
    shape.iter().for_each(|d| put(out, *d as u64));
}

fn put_tensor(out: &mut Vec<u8>, t: &Tensor) {
    out.push(t.dtype() as u8);
    put_shape(out, t.shape());
    if t.dtype() == DType::Str {
        put(out, t.byte_len() as u64);
    }
    out.extend(t.bytes());
}

/// Appends the run of a prepared op. `next` is the number of the op's first output.
pub fn put_run(out: &mut Vec<u8>, index: u32, operands: &[Operand<'_>], next: u64) {
    put(out, RUN + u64::from(index));
    for operand in operands {
        match operand {
            Operand::Absent => put(out, ABSENT),
            Operand::Handle(id) => put(out, TENSOR + next.saturating_sub(*id)),
            Operand::Value(t) => put_value(out, t),
            Operand::Borrowed(t) => put_value(out, t),
        }
    }
}

fn put_value(out: &mut Vec<u8>, t: &Tensor) {
    match t.as_slice::<i64>() {
        Ok(ints) if t.shape().len() == 1 && ints.len() as u64 <= MOST_INTEGERS => {
            put(out, INTEGERS);
            put(out, ints.len() as u64);
            ints.iter()
                .for_each(|v| put(out, ((v << 1) ^ (v >> 63)) as u64));
        }
        _ => {
            put(out, TENSOR);
            put_tensor(out, t);
        }
    }
}

impl Command {
    /// Appends the command; a run is appended by [`put_run`]. `next` is the number of the handle made next.
    pub fn encode(&self, out: &mut Vec<u8>, next: u64) -> Result<()> {
        match self {
            Command::Define(d) => {
                put(out, DEFINE);
                put_coded(out, d)?;
            }
            Command::Run(index) => put(out, RUN + u64::from(*index)),
            Command::Free(handle) => {
                put(out, FREE);
                put(out, next.saturating_sub(*handle));
            }
            Command::Give {
                handle,
                peer,
                transfer,
            } => {
                put(out, GIVE);
                put(out, next.saturating_sub(*handle));
                put(out, u64::from(*peer));
                put(out, *transfer);
            }
            Command::Take {
                peer,
                transfer,
                dtype,
                shape,
                origin,
            } => {
                put(out, TAKE);
                put(out, u64::from(*peer));
                put(out, *transfer);
                put(out, u64::from(*origin));
                out.push(*dtype as u8);
                match shape {
                    Some(shape) => put_shape(out, shape),
                    None => out.push(u8::MAX),
                }
            }
            Command::Literal { tensor, origin } => {
                put(out, LITERAL);
                put(out, u64::from(*origin));
                put_tensor(out, tensor);
            }
            Command::Peer { index, participant } => {
                put(out, PEER);
                put(out, u64::from(*index));
                put_coded(out, participant)?;
            }
            Command::Fail { transfer, error } => {
                put(out, FAIL);
                put(out, *transfer);
                put_error(out, error);
            }
            Command::Account { request } => {
                put(out, ACCOUNT);
                put(out, *request);
            }
            Command::Reserve { origin } => {
                put(out, RESERVE);
                put(out, u64::from(*origin));
            }
            Command::Begin { first } => {
                put(out, BEGIN);
                put(out, *first);
            }
            Command::Abandon(handle) => {
                put(out, ABANDON);
                put(out, next.saturating_sub(*handle));
            }
            Command::Origin { index, place } => {
                put(out, ORIGIN);
                put(out, u64::from(*index));
                put_coded(out, place)?;
            }
        }
        Ok(())
    }
}

impl Report {
    /// Appends the report.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<()> {
        match self {
            Report::Resolved(count) => {
                put(out, RESOLVED);
                put(out, *count);
            }
            Report::Failed { handle, error } => {
                put(out, FAILED);
                put(out, *handle);
                put_error(out, error);
            }
            Report::Shape { handle, shape } => {
                put(out, SHAPE);
                put(out, *handle);
                put_shape(out, shape);
            }
            Report::Took { transfer } => {
                put(out, TOOK);
                put(out, *transfer);
            }
            Report::Undelivered {
                peer,
                transfer,
                error,
            } => {
                put(out, UNDELIVERED);
                put(out, u64::from(*peer));
                put(out, *transfer);
                put_error(out, error);
            }
            Report::Accounted { request, held } => {
                put(out, ACCOUNTED);
                put(out, *request);
                put_coded(out, held)?;
            }
        }
        Ok(())
    }
}

/// A reader of the commands or reports of a batch.
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Starts at the beginning of a batch.
    pub fn new(batch: &'a [u8]) -> Reader<'a> {
        Reader(batch)
    }

    /// How many bytes are left to read.
    pub fn remaining(&self) -> usize {
        self.0.len()
    }

    /// Whether no bytes are left to read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n).ok_or_else(|| bad("too short"))?;
        self.0 = rest;
        Ok(head)
    }

    fn byte(&mut self) -> Result<u8> {
        let (first, rest) = self.0.split_first().ok_or_else(|| bad("too short"))?;
        self.0 = rest;
        Ok(*first)
    }

    fn varint(&mut self) -> Result<u64> {
        let mut v = 0u64;
        for shift in (0..64).step_by(7) {
            let b = self.byte()?;
            let part = u64::from(b & 0x7f);
            if shift == 63 && part > 1 {
                break;
            }
            v |= part << shift;
            if b & 0x80 == 0 {
                return Ok(v);
            }
        }
        Err(bad("a number beyond 64 bits"))
    }

    fn index(&mut self, most: u32, what: &str) -> Result<u32> {
        let v = u32::try_from(self.varint()?).ok().filter(|v| *v < most);
        v.ok_or_else(|| bad(what))
    }

    fn coded<T: DeserializeOwned>(&mut self) -> Result<T> {
        let len = usize::try_from(self.varint()?).map_err(|_| bad("length"))?;
        codec::decode(self.take(len)?).map_err(|e| bad(&e.to_string()))
    }

    fn dtype(&mut self) -> Result<DType> {
        DType::from_code(self.byte()?).ok_or_else(|| bad("unknown dtype"))
    }

    fn dims(&mut self, rank: u8) -> Result<Shape> {
        if usize::from(rank) > MAX_RANK {
            return Err(bad("rank above the limit"));
        }
        (0..rank)
            .map(|_| usize::try_from(self.varint()?).map_err(|_| bad("dimension too large")))
            .collect()
    }

    fn tensor(&mut self) -> Result<Tensor> {
        let dtype = self.dtype()?;
        let rank = self.byte()?;
        let shape = self.dims(rank)?;
        let len = match dtype {
            DType::Str => usize::try_from(self.varint()?).ok(),
            _ => byte_size(dtype, &shape),
        };
        let len = len.filter(|n| *n <= INLINE);
        let bytes = self.take(len.ok_or_else(|| bad("a tensor too large for a batch"))?)?;
        Ok(Tensor::from_bytes(dtype, &shape, bytes)?)
    }

    fn handle(&mut self, next: u64) -> Result<u64> {
        let distance = self.varint()?;
        next.checked_sub(distance)
            .filter(|_| distance > 0)
            .ok_or_else(|| bad("a handle that is not made yet"))
    }

    /// Reads the next command. `next` is the number of the handle made next.
    pub fn command(&mut self, next: u64) -> Result<Command> {
        Ok(match self.varint()? {
            DEFINE => {
                let d: Definition = self.coded()?;
                if d.index >= MOST_PREPARED || d.origin >= MOST_ORIGINS {
                    return Err(bad("too many prepared ops or origins"));
                }
                Command::Define(d)
            }
            FREE => Command::Free(self.handle(next)?),
            GIVE => Command::Give {
                handle: self.handle(next)?,
                peer: self.index(MOST_PEERS, "no such peer")?,
                transfer: self.varint()?,
            },
            TAKE => Command::Take {
                peer: self.index(MOST_PEERS, "no such peer")?,
                transfer: self.varint()?,
                origin: self.index(MOST_ORIGINS, "no such origin")?,
                dtype: self.dtype()?,
                shape: match self.byte()? {
                    u8::MAX => None,
                    rank => Some(self.dims(rank)?),
                },
            },
            LITERAL => Command::Literal {
                origin: self.index(MOST_ORIGINS, "no such origin")?,
                tensor: self.tensor()?,
            },
            PEER => Command::Peer {
                index: self.index(MOST_PEERS, "too many peers")?,
                participant: self.coded()?,
            },
            FAIL => Command::Fail {
                transfer: self.varint()?,
                error: self.coded()?,
            },
            ACCOUNT => Command::Account {
                request: self.varint()?,
            },
            RESERVE => Command::Reserve {
                origin: self.index(MOST_ORIGINS, "no such origin")?,
            },
            ABANDON => Command::Abandon(self.handle(next)?),
            BEGIN => {
                let first = self.varint()?;
                if first > MOST_NUMBER {
                    return Err(bad("handles are numbered beyond all that can be"));
                }
                Command::Begin { first }
            }
            ORIGIN => {
                let index = self.index(MOST_ORIGINS, "too many origins")?;
                let place: String = self.coded()?;
                if place.len() > LONGEST_ORIGIN {
                    return Err(bad("the name of a place is too long"));
                }
                Command::Origin { index, place }
            }
            head => {
                let index = head.checked_sub(RUN).and_then(|i| u32::try_from(i).ok());
                Command::Run(index.ok_or_else(|| bad("unknown command"))?)
            }
        })
    }

    /// Reads the next operand of a run whose first output has the number `next`.
    pub fn operand(&mut self, next: u64) -> Result<Operand<'static>> {
        Ok(match self.varint()? {
            ABSENT => Operand::Absent,
            INTEGERS => {
                let count = self.varint()?;
                if count > MOST_INTEGERS {
                    return Err(bad("too many integers"));
                }
                let mut ints = Vec::with_capacity(count as usize);
                for _ in 0..count {
                    let v = self.varint()?;
                    ints.push((v >> 1) as i64 ^ -((v & 1) as i64));
                }
                Operand::Value(Tensor::from_slice(&[ints.len()], &ints)?)
            }
            TENSOR => Operand::Value(self.tensor()?),
            named => {
                let distance = named - TENSOR;
                let id = next.checked_sub(distance);
                Operand::Handle(id.ok_or_else(|| bad("a handle that is not made yet"))?)
            }
        })
    }

    /// Reads the next report.
    pub fn report(&mut self) -> Result<Report> {
        Ok(match self.varint()? {
            RESOLVED => Report::Resolved(self.varint()?),
            FAILED => Report::Failed {
                handle: self.varint()?,
                error: self.coded()?,
            },
            SHAPE => Report::Shape {
                handle: self.varint()?,
                shape: {
                    let rank = self.byte()?;
                    self.dims(rank)?
                },
            },
            TOOK => Report::Took {
                transfer: self.varint()?,
            },
            UNDELIVERED => Report::Undelivered {
                peer: self.index(MOST_PEERS, "no such peer")?,
                transfer: self.varint()?,
                error: self.coded()?,
            },
            ACCOUNTED => Report::Accounted {
                request: self.varint()?,
                held: self.coded()?,
            },
            _ => return Err(bad("unknown report")),
        })
    }
}

#[cfg(test)]
mod tests;
