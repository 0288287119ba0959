//! Writes a model's file once more, with a placement as annotations of its nodes.
//!
//! The new file has the bytes of the old one, except for the version of the IR, which annotations need, and for the
//! annotations themselves, those of an earlier plan among them. It is made of pieces: ranges of the old file, and new bytes.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{CONFIGURATION, Origins};
use crate::artifact_index::write_atomically;
use crate::error::ModelError;
use crate::file::{DataFile, Reader};
use crate::onnx::proto::{
    DeviceConfigurationProto, GraphProto, ModelProto, NodeDeviceConfigurationProto, NodeProto,
    TensorProto, tensor_proto::DataLocation,
};
use crate::onnx::skeleton;
use crate::onnx::wire::{self, Field, Kind, malformed};

/// The first version of the IR that has annotations with devices.
const IR_VERSION: u64 = 11;

/// Deepest nesting of messages, as that of [`skeleton`], which reads the file first.
const MAX_DEPTH: u32 = 64;

/// Counts of what writing a placement to a file did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Annotated {
    /// Nodes of the file that have an annotation.
    pub nodes: usize,
    /// Nodes among them whose parts run on several devices, because the nodes that they became were divided.
    pub divided: usize,
}

/// Writes the model at `from` to the file `to`, with `devices` as a configuration, and for each node the number of the device
/// that runs what the node became, as its stage. `origins` are those of the import, and `device_of` has the device of a node
/// of the function, where it runs in a step. `data` are files that hold data of the model, which are not written over.
pub fn annotate(
    from: &Path,
    to: &Path,
    data: &[PathBuf],
    devices: &[String],
    origins: &Origins,
    device_of: &dyn Fn(&str) -> Option<usize>,
) -> Result<Annotated, ModelError> {
    let file = DataFile::open(from)?;
    let model = skeleton::read(&file)?.model;
    check_data(&model, from, to, data)?;
    let mut annotated = Annotated {
        nodes: 0,
        divided: 0,
    };
    let stages = origins.iter().map(|names| {
        let (stage, others) = most(names.iter().filter_map(|name| device_of(name)))?;
        annotated.nodes += 1;
        annotated.divided += usize::from(others);
        Some(stage)
    });
    let stages: Vec<Option<usize>> = stages.collect();
    let mut rewriting = AnnotationWriter {
        reader: Reader::new(&file),
        stages: &stages,
        next: 0,
    };
    let pieces = rewriting.model(devices)?;
    write(&file, &pieces, to)?;
    Ok(annotated)
}

/// The device that occurs most often, the first among equals, and whether there are others.
fn most(devices: impl Iterator<Item = usize>) -> Option<(usize, bool)> {
    let mut counts = std::collections::BTreeMap::<usize, usize>::new();
    for device in devices {
        *counts.entry(device).or_default() += 1;
    }
    let best = counts
        .iter()
        .max_by_key(|(device, n)| (**n, std::cmp::Reverse(**device)));
    best.map(|(device, _)| (*device, counts.len() > 1))
}

/// Fails where the model has data in other files, which a model in another folder would not find, and where `to` is such a
/// file or one of `data`, but not the model itself.
fn check_data(
    model: &ModelProto,
    from: &Path,
    to: &Path,
    data: &[PathBuf],
) -> Result<(), ModelError> {
    let folder = |path: &Path| {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        folder.unwrap_or(Path::new(".")).canonicalize().ok()
    };
    let mut locations = BTreeSet::new();
    if let Some(g) = &model.graph {
        add_locations(g, &mut locations);
    }
    for n in model.functions.iter().flat_map(|f| &f.node) {
        add_node_locations(n, &mut locations);
    }
    let base = folder(from);
    if !locations.is_empty() && (base.is_none() || base != folder(to)) {
        return Err(ModelError::AwayFromData { path: to.into() });
    }
    // A file that does not exist yet has no data.
    let Ok(target) = to.canonicalize() else {
        return Ok(());
    };
    let is_target = |path: &Path| path.canonicalize().is_ok_and(|p| p == target);
    let mut located = base
        .iter()
        .flat_map(|b| locations.iter().map(|l| b.join(l)));
    let has_data = data.iter().any(|p| is_target(p)) || located.any(|p| is_target(&p));
    match has_data && !is_target(from) {
        true => Err(ModelError::OverData { path: to.into() }),
        false => Ok(()),
    }
}

/// Adds the locations of data of `g` in other files.
fn add_locations<'a>(g: &'a GraphProto, to: &mut BTreeSet<&'a str>) {
    let sparse = g.sparse_initializer.iter();
    let sparse = sparse.flat_map(|s| s.values.iter().chain(&s.indices));
    to.extend(g.initializer.iter().chain(sparse).filter_map(location));
    for n in &g.node {
        add_node_locations(n, to);
    }
}

fn add_node_locations<'a>(n: &'a NodeProto, to: &mut BTreeSet<&'a str>) {
    for a in &n.attribute {
        let sparse = a.sparse_tensor.iter();
        let sparse = sparse.flat_map(|s| s.values.iter().chain(&s.indices));
        let tensors = a.t.iter().chain(&a.tensors).chain(sparse);
        to.extend(tensors.filter_map(location));
        for g in a.g.iter().chain(&a.graphs) {
            add_locations(g, to);
        }
    }
}

/// The location of a tensor whose data lies in another file.
fn location(t: &TensorProto) -> Option<&str> {
    let mut entries = t.external_data.iter();
    let external = t.data_location == Some(DataLocation::External as i32);
    let named = entries.find(|e| external && e.key() == "location");
    named.map(|e| e.value().trim())
}

/// A part of the new file.
enum Piece {
    /// A range of the old file.
    Kept(Range<u64>),
    New(Vec<u8>),
}

/// The parts of a message, in order.
#[derive(Default)]
struct Pieces {
    list: Vec<Piece>,
    len: u64,
}

impl Pieces {
    fn keep(&mut self, range: Range<u64>) {
        self.len += range.end - range.start;
        match self.list.last_mut() {
            Some(Piece::Kept(last)) if last.end == range.start => last.end = range.end,
            _ => self.list.push(Piece::Kept(range)),
        }
    }

    fn add(&mut self, bytes: Vec<u8>) {
        self.len += bytes.len() as u64;
        match self.list.last_mut() {
            Some(Piece::New(last)) => last.extend(bytes),
            _ => self.list.push(Piece::New(bytes)),
        }
    }

    /// Adds the message in field `f`, which consists of `inner`.
    fn nest(&mut self, f: &Field, inner: Pieces) {
        if let [Piece::Kept(range)] = &*inner.list
            && *range == (f.content..f.end)
        {
            return self.keep(f.start..f.end);
        }
        let mut head = Vec::new();
        wire::put_varint(u64::from(f.number) << 3 | 2, &mut head);
        wire::put_varint(inner.len, &mut head);
        self.add(head);
        for piece in inner.list {
            match piece {
                Piece::Kept(range) => self.keep(range),
                Piece::New(bytes) => self.add(bytes),
            }
        }
    }
}

/// The messages that are taken apart.
#[derive(Clone, Copy, PartialEq)]
enum Message {
    Graph,
    Node,
    Attribute,
}

impl Message {
    /// The kind of message that field `number` holds, where it is taken apart.
    fn field(self, number: u32) -> Option<Message> {
        Some(match (self, number) {
            (Message::Graph, 1) => Message::Node,
            (Message::Node, 5) => Message::Attribute,
            (Message::Attribute, 6 | 11) => Message::Graph,
            _ => return None,
        })
    }
}

struct AnnotationWriter<'a> {
    reader: Reader<'a>,
    /// By node of the file, its stage.
    stages: &'a [Option<usize>],
    /// The number of the next node.
    next: usize,
}

impl AnnotationWriter<'_> {
    fn model(&mut self, devices: &[String]) -> Result<Pieces, ModelError> {
        let (end, mut out, mut has_version) = (self.reader.file().len(), Pieces::default(), false);
        while self.reader.pos() < end {
            let f = wire::field(&mut self.reader, end)?;
            match (f.number, f.kind) {
                (1, Kind::Varint) => {
                    let version = wire::varint(&mut self.reader, f.end)?;
                    out.add(number(1, version.max(IR_VERSION)));
                    has_version = true;
                }
                (7, Kind::Bytes) => {
                    let graph = self.message(Message::Graph, f.end, 1)?;
                    out.nest(&f, graph);
                }
                (26, Kind::Bytes) if self.is_ours::<DeviceConfigurationProto>(&f)? => {}
                _ => out.keep(f.start..f.end),
            }
            self.reader.seek(f.end);
        }
        if !has_version {
            out.add(number(1, IR_VERSION));
        }
        let configuration = DeviceConfigurationProto {
            name: Some(CONFIGURATION.into()),
            num_devices: i32::try_from(devices.len()).ok(),
            device: devices.to_vec(),
        };
        out.add(nested(26, &configuration));
        Ok(out)
    }

    /// The pieces of the message between the position and `end`.
    fn message(&mut self, kind: Message, end: u64, depth: u32) -> Result<Pieces, ModelError> {
        if depth > MAX_DEPTH {
            return Err(ModelError::TooLarge {
                what: "levels of nesting",
                limit: MAX_DEPTH.into(),
            });
        }
        let mut stage = None;
        if kind == Message::Node {
            stage = self.stages.get(self.next).copied().flatten();
            self.next += 1;
        }
        let mut out = Pieces::default();
        while self.reader.pos() < end {
            let f = wire::field(&mut self.reader, end)?;
            let ours = (kind, f.number, f.kind) == (Message::Node, 10, Kind::Bytes)
                && self.is_ours::<NodeDeviceConfigurationProto>(&f)?;
            match kind.field(f.number).filter(|_| f.kind == Kind::Bytes) {
                Some(inner) => {
                    let inner = self.message(inner, f.end, depth + 1)?;
                    out.nest(&f, inner);
                }
                None if ours => {}
                None => out.keep(f.start..f.end),
            }
            self.reader.seek(f.end);
        }
        if let Some(stage) = stage {
            let annotation = NodeDeviceConfigurationProto {
                configuration_id: Some(CONFIGURATION.into()),
                sharding_spec: vec![],
                pipeline_stage: i32::try_from(stage).ok(),
            };
            out.add(nested(10, &annotation));
        }
        Ok(out)
    }

    /// Whether field `f` holds the annotations of an earlier plan.
    fn is_ours<M: prost::Message + Default + ConfigurationMessage>(
        &mut self,
        f: &Field,
    ) -> Result<bool, ModelError> {
        let bytes = self.reader.file().bytes(f.content, f.end - f.content)?;
        let message = M::decode(&*bytes);
        let message = message.map_err(|e| malformed(&self.reader, f.start, e.to_string()))?;
        Ok(message.configuration_name() == CONFIGURATION)
    }
}

/// A message that belongs to a configuration of devices.
trait ConfigurationMessage {
    /// The name of the configuration.
    fn configuration_name(&self) -> &str;
}

impl ConfigurationMessage for DeviceConfigurationProto {
    fn configuration_name(&self) -> &str {
        self.name()
    }
}

impl ConfigurationMessage for NodeDeviceConfigurationProto {
    fn configuration_name(&self) -> &str {
        self.configuration_id()
    }
}

/// A field with a number.
fn number(field: u32, value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    wire::put_varint(u64::from(field) << 3, &mut out);
    wire::put_varint(value, &mut out);
    out
}

/// A field with a message.
fn nested(field: u32, message: &impl prost::Message) -> Vec<u8> {
    let mut out = Vec::new();
    wire::put_bytes(field, &message.encode_to_vec(), &mut out);
    out
}

/// Writes the pieces to the file `to`, which appears as a whole.
fn write(file: &DataFile, pieces: &Pieces, to: &Path) -> Result<(), ModelError> {
    let io = |source| ModelError::Io {
        path: to.into(),
        action: "write to",
        source,
    };
    let name = to.file_name().and_then(|n| n.to_str());
    let name = name.ok_or_else(|| ModelError::NotAFile { path: to.into() })?;
    let folder = to.parent().filter(|p| !p.as_os_str().is_empty());
    let written = write_atomically(folder.unwrap_or(Path::new(".")), |out| {
        let mut out = std::io::BufWriter::new(out);
        for piece in &pieces.list {
            match piece {
                Piece::New(bytes) => out.write_all(bytes)?,
                Piece::Kept(range) => keep(file, range.clone(), &mut out)?,
            }
        }
        out.flush()?;
        file.check_unchanged()?;
        Ok(name.to_owned())
    });
    written.map(drop).map_err(|e| match e {
        Failure::Io(source) => io(source),
        Failure::Model(e) => *e,
    })
}

/// Bytes that are copied at once.
const BLOCK: u64 = 1 << 20;

/// Copies a range of the old file.
fn keep(file: &DataFile, range: Range<u64>, out: &mut impl std::io::Write) -> Result<(), Failure> {
    let mut at = range.start;
    while at < range.end {
        let len = BLOCK.min(range.end - at);
        out.write_all(&file.bytes(at, len)?)?;
        at += len;
    }
    Ok(())
}

/// Why the new file could not be written.
enum Failure {
    Io(std::io::Error),
    Model(Box<ModelError>),
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Failure {
        Failure::Io(e)
    }
}

impl From<ModelError> for Failure {
    fn from(e: ModelError) -> Failure {
        Failure::Model(Box::new(e))
    }
}
