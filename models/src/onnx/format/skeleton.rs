//! The indexing reader: a model's structure without its payloads.
//!
//! The reader walks the messages in the file and copies the fields that matter into a small encoded model, which prost
//! then decodes. Tensor content of more than [`KEEP`] bytes is not copied: the tensor gets an index into
//! [`Skeleton::payloads`] instead, which gives the location of the content.
//!
//! Invariants
//! 1. Each byte of the structure is read once, through a window; payloads are skipped, not read.
//! 2. Nesting, the number of messages and the size of the structure are bounded. What the lists of attributes take in
//!    memory is bounded by a multiple of the file's length, since classical models are such lists.
//! 3. Fields that are not listed here are dropped, so a file cannot forge [`proto::TensorProto::stored`].

use prost::Message as _;

use super::proto;
use super::wire::{self, Field, Kind, malformed};
use crate::error::ModelError;
use crate::file::{DataFile, Reader};

/// Tensor content of at most this many bytes stays in the structure.
const KEEP: u64 = 4096;
/// Deepest nesting of messages: a graph inside an attribute of a node takes three levels.
const MAX_DEPTH: u32 = 64;
/// Most messages and fields in a model, apart from the elements of the lists of attributes. A decoded message takes up to
/// about 500 bytes.
const MAX_MESSAGES: u64 = 1 << 22;
/// Most bytes of structure, apart from the lists of attributes.
const MAX_STRUCTURE: u64 = 128 << 20;
/// The lists of attributes may take this many bytes of memory for each byte of the file, and [`LIST_ALLOWANCE`] more, but at
/// most [`MAX_LISTS`].
const LIST_FACTOR: u64 = 8;
const LIST_ALLOWANCE: u64 = 128 << 20;
const MAX_LISTS: u64 = 4 << 30;
/// What a string takes in memory, apart from its bytes.
const STRING_COST: u64 = 48;
/// Most pieces of one payload.
const MAX_PIECES: usize = 1 << 16;

/// A model without the content of its large tensors.
#[derive(Debug)]
pub(in crate::onnx) struct Skeleton {
    pub model: proto::ModelProto,
    pub payloads: Vec<Payload>,
    /// Whether the model has information for training.
    pub has_training: bool,
}

/// Tensor content that stayed in the file.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::onnx) enum Payload {
    /// Little-endian elements: `len` bytes at `offset`.
    Raw { offset: u64, len: u64 },
    /// Protobuf-encoded elements, in order.
    Encoded(Vec<Piece>),
}

impl Payload {
    /// The bytes that the content takes in the file.
    pub(in crate::onnx) fn stored_len(&self) -> u64 {
        match self {
            Payload::Raw { len, .. } => *len,
            Payload::Encoded(pieces) => pieces.iter().map(|p| p.len).sum(),
        }
    }
}

/// A run of encoded elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::onnx) struct Piece {
    /// The field of `TensorProto` that holds the elements.
    pub field: u32,
    pub offset: u64,
    pub len: u64,
    /// Whether the elements follow each other without tags.
    pub packed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Msg {
    Model,
    Graph,
    Node,
    Attribute,
    Function,
    Tensor,
    Sparse,
    /// A field that is copied unchanged.
    Leaf,
}

impl Msg {
    /// How field `number` of this message is treated: `None` drops the field.
    fn field(self, number: u32) -> Option<Msg> {
        use Msg::*;
        Some(match (self, number) {
            (Model, 1 | 2 | 3 | 8 | 14 | 26) => Leaf,
            (Model, 7) => Graph,
            (Model, 25) => Function,
            (Graph, 1) => Node,
            (Graph, 2 | 11..=13) => Leaf,
            (Graph, 5) => Tensor,
            (Graph, 15) => Sparse,
            (Node, 1..=4 | 7 | 8 | 10) => Leaf,
            (Node, 5) => Attribute,
            (Attribute, 1..=4 | 7..=9 | 14 | 15 | 20 | 21) => Leaf,
            (Attribute, 5 | 10) => Tensor,
            (Attribute, 6 | 11) => Graph,
            (Attribute, 22 | 23) => Sparse,
            (Function, 1 | 4 | 5 | 6 | 9 | 10 | 12 | 13) => Leaf,
            (Function, 7) => Node,
            (Function, 11) => Attribute,
            (Tensor, 1 | 2 | 3 | 6 | 8 | 13 | 14) => Leaf,
            (Sparse, 1 | 2) => Tensor,
            (Sparse, 3) => Leaf,
            _ => return None,
        })
    }
}

/// The wire type of one element, where field `number` of a tensor holds elements.
fn element_kind(number: u32) -> Option<Kind> {
    Some(match number {
        4 => Kind::Fixed32,
        5 | 7 | 11 => Kind::Varint,
        10 => Kind::Fixed64,
        _ => return None,
    })
}

struct Walk<'a> {
    r: Reader<'a>,
    payloads: Vec<Payload>,
    messages: u64,
    /// The bytes of structure so far, apart from the lists of attributes.
    structure: u64,
    /// What the lists of attributes take in memory so far.
    lists: u64,
    has_training: bool,
    /// Whether a field so far has shown that the file is a model.
    recognised: bool,
}

/// Reads the structure of the model in `file`.
pub(in crate::onnx) fn read(file: &DataFile) -> Result<Skeleton, ModelError> {
    let not_onnx = |reason: &str| ModelError::NotOnnx {
        path: file.path().into(),
        reason: reason.into(),
    };
    if file.len() == 0 {
        return Err(not_onnx("the file is empty"));
    }
    let head = file.bytes(0, file.len().min(24))?;
    if head.starts_with(b"version https://git-lfs") {
        return Err(ModelError::LfsPointer {
            path: file.path().into(),
        });
    }
    let mut walk = Walk {
        r: Reader::new(file),
        payloads: Vec::new(),
        messages: 0,
        structure: 0,
        lists: 0,
        has_training: false,
        recognised: false,
    };
    let mut encoded = Vec::new();
    let walked = walk.message(Msg::Model, file.len(), 0, &mut encoded);
    if let Err(e) = walked {
        // A file that is damaged before any field of a model was seen is not a model.
        let broken = matches!(
            e,
            ModelError::Truncated { .. } | ModelError::Malformed { .. }
        );
        return Err(if broken && !walk.recognised {
            not_onnx("its first bytes are not a model's")
        } else {
            e
        });
    }
    file.check_unchanged()?;
    let model =
        proto::ModelProto::decode(encoded.as_slice()).map_err(|e| ModelError::Malformed {
            path: file.path().into(),
            at: 0,
            reason: e.to_string(),
        })?;
    if model.graph.is_none() && model.opset_import.is_empty() {
        return Err(not_onnx("it has neither a graph nor an operator set"));
    }
    if model.graph.is_none() {
        return Err(not_onnx("it has no graph"));
    }
    Ok(Skeleton {
        model,
        payloads: walk.payloads,
        has_training: walk.has_training,
    })
}

impl Walk<'_> {
    /// Copies the fields of the message between the position and `end`.
    fn message(
        &mut self,
        msg: Msg,
        end: u64,
        depth: u32,
        out: &mut Vec<u8>,
    ) -> Result<(), ModelError> {
        self.count()?;
        if depth > MAX_DEPTH {
            return Err(ModelError::TooLarge {
                what: "levels of nesting",
                limit: MAX_DEPTH.into(),
            });
        }
        if msg == Msg::Tensor {
            return self.tensor(end, out);
        }
        while self.r.pos() < end {
            let f = wire::field(&mut self.r, end)?;
            self.has_training |= (msg, f.number) == (Msg::Model, 20);
            match msg.field(f.number) {
                None => self.r.seek(f.end),
                Some(Msg::Leaf) if msg == Msg::Attribute && matches!(f.number, 7..=9) => {
                    self.count_elements(&f)?;
                    self.copied(&f, out)?;
                }
                Some(Msg::Leaf) => self.leaf(&f, out)?,
                Some(inner) => {
                    if f.kind != Kind::Bytes {
                        return Err(malformed(
                            &self.r,
                            f.start,
                            "a message has another wire type",
                        ));
                    }
                    self.count_bytes(f.content - f.start)?;
                    let mut content = Vec::new();
                    self.message(inner, f.end, depth + 1, &mut content)?;
                    wire::put_bytes(f.number, &content, out);
                }
            }
            // A model is recognised by a version number, or by a nested message that is intact.
            self.recognised |= msg == Msg::Model
                && matches!((f.number, f.kind), (1, Kind::Varint) | (7 | 8, Kind::Bytes));
        }
        Ok(())
    }

    /// Counts a message or field.
    fn count(&mut self) -> Result<(), ModelError> {
        self.messages += 1;
        if self.messages > MAX_MESSAGES {
            return Err(ModelError::TooLarge {
                what: "nodes and tensors",
                limit: MAX_MESSAGES,
            });
        }
        Ok(())
    }

    /// Counts bytes of structure.
    fn count_bytes(&mut self, bytes: u64) -> Result<(), ModelError> {
        self.structure += bytes;
        if self.structure > MAX_STRUCTURE {
            return Err(ModelError::TooLarge {
                what: "bytes outside its tensors",
                limit: MAX_STRUCTURE,
            });
        }
        Ok(())
    }

    /// Counts the elements of a list of an attribute that field `f` holds: a string, or any number of numbers.
    fn count_elements(&mut self, f: &Field) -> Result<(), ModelError> {
        let len = f.end - f.content;
        let cost = match (f.number, f.kind) {
            (9, _) => len.saturating_add(STRING_COST),
            // Each byte may be an integer.
            (8, Kind::Bytes) => len.saturating_mul(8),
            (8, _) => 8,
            _ => len,
        };
        self.lists = self.lists.saturating_add(cost);
        let by_file = self.r.file().len().saturating_mul(LIST_FACTOR);
        let limit = LIST_ALLOWANCE.saturating_add(by_file).min(MAX_LISTS);
        if self.lists > limit {
            return Err(ModelError::TooLarge {
                what: "bytes of lists in attributes",
                limit,
            });
        }
        Ok(())
    }

    /// Counts a field and copies it unchanged.
    fn leaf(&mut self, f: &Field, out: &mut Vec<u8>) -> Result<(), ModelError> {
        self.count()?;
        self.count_bytes(f.end - f.start)?;
        self.copied(f, out)
    }

    /// Copies a field unchanged.
    fn copied(&mut self, f: &Field, out: &mut Vec<u8>) -> Result<(), ModelError> {
        self.r.seek(f.start);
        self.r.copy(f.end - f.start, out)
    }

    /// Copies a tensor, but its content only where that is small.
    fn tensor(&mut self, end: u64, out: &mut Vec<u8>) -> Result<(), ModelError> {
        let mut raw: Option<Field> = None;
        let mut pieces: Vec<Piece> = Vec::new();
        while self.r.pos() < end {
            let f = wire::field(&mut self.r, end)?;
            if Msg::Tensor.field(f.number).is_some() {
                self.leaf(&f, out)?;
                continue;
            }
            self.r.seek(f.end);
            if f.number == 9 {
                if f.kind != Kind::Bytes {
                    return Err(malformed(
                        &self.r,
                        f.start,
                        "raw_data has another wire type",
                    ));
                }
                raw = Some(f);
            } else if let Some(element) = element_kind(f.number) {
                let packed = f.kind == Kind::Bytes;
                if !packed && f.kind != element {
                    return Err(malformed(
                        &self.r,
                        f.start,
                        "tensor data has another wire type",
                    ));
                }
                self.piece(&f, packed, &mut pieces)?;
            }
        }
        let encoded: u64 = pieces.iter().map(|p| p.len).sum();
        let large_raw = raw.filter(|f| f.end - f.content > KEEP);
        if encoded > 0 && raw.is_some_and(|f| f.end > f.content) {
            return Err(malformed(&self.r, end, "a tensor has its content twice"));
        }
        if let Some(f) = large_raw {
            self.store(
                Payload::Raw {
                    offset: f.content,
                    len: f.end - f.content,
                },
                out,
            );
        } else if encoded > KEEP {
            self.store(Payload::Encoded(pieces), out);
        } else {
            for p in &pieces {
                // The tag and the length of a small piece take three bytes.
                self.count_bytes(p.len + 3)?;
                self.r.seek(p.offset);
                if p.packed {
                    wire::put_varint(u64::from(p.field) << 3 | 2, out);
                    wire::put_varint(p.len, out);
                }
                self.r.copy(p.len, out)?;
            }
            if let Some(f) = raw {
                self.leaf(&f, out)?;
            }
        }
        self.r.seek(end);
        Ok(())
    }

    /// Notes a run of elements. Adjacent runs of unpacked elements become one.
    fn piece(
        &mut self,
        f: &Field,
        packed: bool,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), ModelError> {
        // A run of unpacked elements includes their tags.
        let offset = if packed { f.content } else { f.start };
        let piece = Piece {
            field: f.number,
            offset,
            len: f.end - offset,
            packed,
        };
        let full = pieces.len() == MAX_PIECES;
        match pieces.last_mut() {
            Some(p) if p.field != f.number => {
                return Err(malformed(
                    &self.r,
                    f.start,
                    "a tensor has its content twice",
                ));
            }
            Some(p) if !packed && !p.packed && p.offset + p.len == offset => p.len += piece.len,
            _ if full => {
                return Err(ModelError::TooLarge {
                    what: "pieces of one tensor",
                    limit: MAX_PIECES as u64,
                });
            }
            _ => pieces.push(piece),
        }
        Ok(())
    }

    fn store(&mut self, payload: Payload, out: &mut Vec<u8>) {
        let index = self.payloads.len() as u64;
        self.payloads.push(payload);
        wire::put_varint(u64::from(STORED) << 3, out);
        wire::put_varint(index, out);
    }
}

/// The field number of [`proto::TensorProto::stored`].
const STORED: u32 = 536_870_911;
