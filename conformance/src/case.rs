//! Test cases in ONNX's own form: `NAME/model.onnx`, `NAME/test_data_set_N/{input,output}_I.pb`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use convoke_graph::{DType, Tensor};
use convoke_models::onnx::GivenInput;

use crate::wire::{int, ints, parts, text};

/// A test case, read without the importer that is under test.
pub struct Case {
    pub name: String,
    pub model: PathBuf,
    /// The op that the case tests: that of the only node, or `(expanded)` where a function body replaces the node.
    pub op: String,
    /// Every op that the graph and its subgraphs name, sorted.
    pub ops: Vec<String>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    sets: Vec<PathBuf>,
}

/// A graph input or output.
struct Port {
    name: String,
    kind: Kind,
}

/// The kind of a value. What an optional value holds counts as the value.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Tensor,
    Sequence,
    OptionalTensor,
    OptionalSequence,
    Map,
    /// The value is none of these, or of a dtype that is not supported.
    Other,
}

/// Tensors by their names, in order.
pub type NamedTensors = Vec<(String, Tensor)>;

/// Finds every case in `root`, sorted by name.
pub fn find(root: &Path) -> Result<Vec<Case>, String> {
    let entries =
        std::fs::read_dir(root).map_err(|e| format!("cannot read {}: {e}", root.display()))?;
    let mut folders: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    folders.sort();
    let cases = folders
        .iter()
        .filter(|f| f.join("model.onnx").is_file())
        .map(|f| Case::read(f));
    let cases = cases.collect::<Result<Vec<_>, _>>()?;
    if cases.is_empty() {
        let hint = "write them with `python conformance/generate_cases.py DIR`";
        return Err(format!("{} has no test cases; {hint}", root.display()));
    }
    Ok(cases)
}

impl Case {
    fn read(folder: &Path) -> Result<Case, String> {
        let name = folder
            .file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default();
        let model = folder.join("model.onnx");
        let bytes = read(&model)?;
        let graph = parts(&bytes, 7).last().unwrap_or_default();
        let mut ops = Vec::new();
        collect_ops(graph, &mut ops);
        let op = match parts(graph, 1).count() {
            1 if !name.contains("_expanded") => ops.first().cloned().unwrap_or_default(),
            _ => "(expanded)".into(),
        };
        ops.sort();
        ops.dedup();
        let ports = |number| parts(graph, number).map(Port::read).collect();
        let sets = (0..)
            .map(|i| folder.join(format!("test_data_set_{i}")))
            .take_while(|d| d.is_dir());
        Ok(Case {
            name,
            model,
            op,
            ops,
            inputs: ports(11),
            outputs: ports(12),
            sets: sets.collect(),
        })
    }

    /// Whether every input and output is of a supported kind and dtype.
    pub fn is_supported(&self) -> bool {
        let mut all = self.inputs.iter().chain(&self.outputs);
        all.all(|p| p.kind != Kind::Other)
    }

    /// What the inputs of the first data set hold that are sequences or optional.
    pub fn held(&self) -> Result<BTreeMap<String, GivenInput>, String> {
        let mut all = BTreeMap::new();
        let Some(dir) = self.sets.first() else {
            return Ok(all);
        };
        for (i, port) in self.inputs.iter().enumerate() {
            let file = dir.join(format!("input_{i}.pb"));
            if port.kind == Kind::Tensor || !file.is_file() {
                continue;
            }
            let held = port.values(&read(&file)?)?;
            let given = match port.kind {
                // ONNX's cases write an optional sequence that is not there as one of no tensors.
                Kind::OptionalSequence if held.is_empty() => GivenInput::Nothing,
                Kind::Sequence | Kind::OptionalSequence => {
                    GivenInput::Sequence(held.iter().map(|(_, t)| t.shape().len()).collect())
                }
                _ if held.is_empty() => GivenInput::Nothing,
                _ => continue,
            };
            all.insert(port.name.clone(), given);
        }
        Ok(all)
    }

    /// Reads the inputs and expected outputs of every data set.
    pub fn sets(&self) -> Result<Vec<(NamedTensors, NamedTensors)>, String> {
        let load = |dir: &Path, what: &str, ports: &[Port]| -> Result<NamedTensors, String> {
            let files = ports
                .iter()
                .enumerate()
                .map(|(i, p)| (p, dir.join(format!("{what}_{i}.pb"))));
            let files = files.filter(|(_, file)| file.is_file());
            let each = files.map(|(p, file)| p.values(&read(&file)?));
            Ok(each.collect::<Result<Vec<_>, String>>()?.concat())
        };
        let sets = self.sets.iter();
        sets.map(|d| {
            Ok((
                load(d, "input", &self.inputs)?,
                load(d, "output", &self.outputs)?,
            ))
        })
        .collect()
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

/// Collects the ops of a GraphProto and of the graphs in its attributes, in the order of the nodes.
fn collect_ops(graph: &[u8], ops: &mut Vec<String>) {
    for node in parts(graph, 1) {
        let domain = text(node, 7);
        let op = text(node, 4);
        ops.push(if domain.is_empty() || domain == "ai.onnx" {
            op
        } else {
            format!("{domain}.{op}")
        });
        for attribute in parts(node, 5) {
            parts(attribute, 6)
                .chain(parts(attribute, 11))
                .for_each(|g| collect_ops(g, ops));
        }
    }
}

impl Port {
    /// Reads a ValueInfoProto.
    fn read(info: &[u8]) -> Port {
        let ty = parts(info, 2).last().unwrap_or_default();
        // The field of TypeProto of each kind, and that of the type that a sequence, an optional value or a map holds.
        let optional = parts(ty, 9)
            .last()
            .map(|held| parts(held, 1).last().unwrap_or_default());
        let value = optional.unwrap_or(ty);
        let sequence = parts(value, 4)
            .last()
            .map(|of| parts(of, 1).last().unwrap_or_default());
        let map = parts(value, 5)
            .last()
            .map(|of| parts(of, 2).last().unwrap_or_default());
        let code = parts(sequence.or(map).unwrap_or(value), 1)
            .last()
            .and_then(|tensor| int(tensor, 1));
        let kind = match (optional, sequence) {
            _ if code.and_then(dtype).is_none() => Kind::Other,
            (None, None) if map.is_some() => Kind::Map,
            (None, None) => Kind::Tensor,
            (None, Some(_)) => Kind::Sequence,
            (Some(_), None) => Kind::OptionalTensor,
            (Some(_), Some(_)) => Kind::OptionalSequence,
        };
        Port {
            name: text(info, 1),
            kind,
        }
    }

    /// The tensors of a file of this input or output: a TensorProto, a SequenceProto, an OptionalProto with either, or a
    /// MapProto, which is a list of keys and one of values.
    fn values(&self, proto: &[u8]) -> Result<NamedTensors, String> {
        let each = |sequence: &[u8]| -> Result<NamedTensors, String> {
            let all = parts(sequence, 3).enumerate();
            all.map(|(i, t)| Ok((format!("{}[{i}]", self.name), tensor(t)?)))
                .collect()
        };
        let held = |number| parts(proto, number).last();
        match self.kind {
            Kind::Sequence => each(proto),
            Kind::OptionalSequence => held(5).map_or(Ok(vec![]), each),
            Kind::OptionalTensor => {
                let held = held(3).map(|t| Ok((self.name.clone(), tensor(t)?)));
                held.into_iter().collect()
            }
            Kind::Map => {
                let [keys, values] = map(proto)?;
                let named = |what| format!("{}.{what}", self.name);
                Ok(vec![(named("keys"), keys), (named("values"), values)])
            }
            _ => Ok(vec![(self.name.clone(), tensor(proto)?)]),
        }
    }
}

/// The dtype of a code of TensorProto.DataType.
fn dtype(code: u64) -> Option<DType> {
    Some(match code {
        1 => DType::F32,
        2 => DType::U8,
        3 => DType::I8,
        4 => DType::U16,
        5 => DType::I16,
        6 => DType::I32,
        7 => DType::I64,
        8 => DType::Str,
        9 => DType::Bool,
        10 => DType::F16,
        11 => DType::F64,
        12 => DType::U32,
        13 => DType::U64,
        16 => DType::BF16,
        17 => DType::F8E4M3FN,
        18 => DType::F8E4M3FNUZ,
        19 => DType::F8E5M2,
        20 => DType::F8E5M2FNUZ,
        21 => DType::U4,
        22 => DType::I4,
        23 => DType::F4E2M1,
        24 => DType::F8E8M0,
        25 => DType::U2,
        26 => DType::I2,
        _ => return None,
    })
}

/// Reads the keys and the values of a MapProto that is not empty, and whose values are numbers.
fn map(proto: &[u8]) -> Result<[Tensor; 2], String> {
    let values = parts(proto, 5).last().unwrap_or_default();
    let values: Vec<Tensor> = parts(values, 3).map(tensor).collect::<Result<_, _>>()?;
    let keys = match int(proto, 2).and_then(dtype) {
        Some(DType::Str) => {
            let all: Result<Vec<&str>, _> = parts(proto, 4).map(std::str::from_utf8).collect();
            let all = all.map_err(|e| e.to_string())?;
            Tensor::from_strings(&[all.len()], &all)
        }
        _ => {
            let all: Vec<i64> = ints(proto, 3).into_iter().map(|v| v as i64).collect();
            Tensor::from_slice(&[all.len()], &all)
        }
    };
    let dtype = values
        .first()
        .map(Tensor::dtype)
        .ok_or("the map is empty")?;
    let bytes: Vec<u8> = values.iter().flat_map(|t| t.bytes().to_vec()).collect();
    let values = Tensor::from_bytes(dtype, &[values.len()], &bytes);
    let error = |e: convoke_graph::tensor::TensorError| e.to_string();
    Ok([keys.map_err(error)?, values.map_err(error)?])
}

/// Reads a TensorProto whose content is raw, a list of small integers or one of strings, the forms that test data has.
fn tensor(proto: &[u8]) -> Result<Tensor, String> {
    let code = int(proto, 2).unwrap_or(0);
    let dtype = dtype(code).ok_or_else(|| format!("data type {code} is not supported"))?;
    let shape: Vec<usize> = ints(proto, 1).into_iter().map(|d| d as usize).collect();
    if dtype == DType::Str {
        let all = parts(proto, 6).map(std::str::from_utf8);
        let all: Result<Vec<&str>, _> = all.collect();
        let all = all.map_err(|e| e.to_string())?;
        return Tensor::from_strings(&shape, &all).map_err(|e| e.to_string());
    }
    let small = || {
        ints(proto, 5)
            .iter()
            .flat_map(|v| v.to_le_bytes()[..dtype.width()].to_vec())
            .collect()
    };
    let bytes = parts(proto, 9).last().map_or_else(small, <[u8]>::to_vec);
    Tensor::from_bytes(dtype, &shape, &bytes).map_err(|e| e.to_string())
}
