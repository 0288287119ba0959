//! Test cases in ONNX's own form: `NAME/model.onnx`, `NAME/test_data_set_N/{input,output}_I.pb`.

use std::path::{Path, PathBuf};

use convoke_graph::{DType, Tensor};

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
    /// Whether the value is a tensor of a supported dtype.
    tensor: bool,
}

/// Named tensors.
pub type Named = Vec<(String, Tensor)>;

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

    /// Whether every input and output is a tensor of a supported dtype.
    pub fn tensors_only(&self) -> bool {
        self.inputs.iter().chain(&self.outputs).all(|p| p.tensor)
    }

    /// Reads the inputs and expected outputs of every data set.
    pub fn sets(&self) -> Result<Vec<(Named, Named)>, String> {
        let load = |dir: &Path, what: &str, ports: &[Port]| -> Result<Named, String> {
            let files = ports
                .iter()
                .enumerate()
                .map(|(i, p)| (p, dir.join(format!("{what}_{i}.pb"))));
            files
                .filter(|(_, file)| file.is_file())
                .map(|(p, file)| Ok((p.name.clone(), tensor(&read(&file)?)?)))
                .collect()
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
        let code = parts(ty, 1).last().and_then(|tensor| int(tensor, 1));
        Port {
            name: text(info, 1),
            tensor: code.and_then(dtype).is_some(),
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
        9 => DType::Bool,
        10 => DType::F16,
        11 => DType::F64,
        12 => DType::U32,
        13 => DType::U64,
        16 => DType::BF16,
        _ => return None,
    })
}

/// Reads a TensorProto whose content is raw or a list of small integers, the two forms that test data has.
fn tensor(proto: &[u8]) -> Result<Tensor, String> {
    let code = int(proto, 2).unwrap_or(0);
    let dtype = dtype(code).ok_or_else(|| format!("data type {code} is not supported"))?;
    let shape: Vec<usize> = ints(proto, 1).into_iter().map(|d| d as usize).collect();
    let small = || {
        ints(proto, 5)
            .iter()
            .flat_map(|v| v.to_le_bytes()[..dtype.size()].to_vec())
            .collect()
    };
    let bytes = parts(proto, 9).last().map_or_else(small, <[u8]>::to_vec);
    Tensor::from_bytes(dtype, &shape, &bytes).map_err(|e| e.to_string())
}
