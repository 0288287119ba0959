//! The model that a command names: its input arrays, and how it is loaded and split.

use std::collections::BTreeMap;
use std::path::PathBuf;

use convoke::numpy::{Npz, npy_type, read_npy};
use convoke::{ArrayType, Cluster, Code, Error, HostTensor as Tensor, ModelBuilder, Signature};
use convoke_graph::tensor::TensorError;
use convoke_graph::{DType, Element, Printable};
use convoke_models::onnx::GivenInput;
use half::bf16;

use crate::args::{InputArgs, LoadArgs};
use crate::process::machine;
use crate::text::failure::Failure;
use crate::text::values::Bound;

/// The prefix of the names of arrays that are expected outputs, not inputs.
const EXPECTED: &str = "expected/";

/// The arrays that the flags name. Opening them reads their dtypes and shapes only; the values are read after these
/// were compared with the model's, since a small (compressed) file may hold very large arrays.
pub struct Arrays {
    archive: Option<Npz>,
    /// Inputs that have a file of their own: name and path.
    files: Vec<(String, PathBuf)>,
    /// Name, dtype and shape of each input.
    inputs: Vec<(String, ArrayType)>,
    /// Inputs that are read as another dtype than the file has, and that dtype.
    read_as: Vec<(String, DType)>,
    /// Name, dtype and shape of each expected output.
    expected: Vec<(String, ArrayType)>,
}

impl Arrays {
    /// Opens the files that the flags name.
    pub fn open(args: &InputArgs) -> Result<Arrays, Failure> {
        let mut all = Arrays {
            archive: args.inputs.as_ref().map(Npz::open).transpose()?,
            files: vec![],
            inputs: vec![],
            read_as: vec![],
            expected: vec![],
        };
        for (name, array) in all.archive.iter().flat_map(Npz::arrays) {
            match name.strip_prefix(EXPECTED) {
                Some(name) => all.expected.push((name.to_owned(), array)),
                None => all.inputs.push((name.to_owned(), array)),
            }
        }
        for (name, path) in &args.input {
            let array = npy_type(path)?;
            // A single file overrides the archive, and a later file overrides an earlier one of the same name.
            all.inputs.retain(|(n, _)| n != name);
            all.files.retain(|(n, _)| n != name);
            all.inputs.push((name.clone(), array));
            all.files.push((name.clone(), path.clone()));
        }
        Ok(all)
    }

    /// Name and shape of each input.
    pub fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        let all = self.inputs.iter();
        all.map(|(name, array)| (name.as_str(), &*array.shape))
    }

    /// Dtypes and shapes of the inputs, by name.
    pub fn inputs(&self) -> Vec<(String, ArrayType)> {
        self.inputs.clone()
    }

    /// Has inputs read as bf16, or as a narrow dtype, where the model wants that and numpy has no such dtype: the bits
    /// of arrays of unsigned integers, and numbers of the next dtype that numpy has. Returns a remark about it that a
    /// user must know.
    pub fn fit(&mut self, wanted: &[Signature]) -> Vec<String> {
        let (read_as, notes) = fitted(&mut self.inputs, wanted);
        self.read_as.extend(read_as);
        notes
    }

    /// Reads the values of the inputs.
    pub fn read_inputs(&mut self) -> Result<Vec<(String, Tensor)>, Failure> {
        let mut all = Vec::with_capacity(self.inputs.len());
        for (name, _) in &self.inputs {
            let file = self.files.iter().find(|(n, _)| n == name);
            let tensor = match (file, &mut self.archive) {
                (Some((_, path)), _) => Some(read_npy(path)?),
                (None, Some(archive)) => Some(archive.read(name)?),
                (None, None) => None,
            };
            let Some(mut tensor) = tensor else { continue };
            if let Some((_, to)) = self.read_as.iter().find(|(n, _)| n == name) {
                tensor = match to {
                    DType::BF16 => as_bf16(tensor)?,
                    to => as_narrow(name, tensor, *to)?,
                };
            }
            all.push((name.clone(), tensor));
        }
        Ok(all)
    }

    /// Reads the expected outputs for which `comparable` holds; of the others, only name and type are returned.
    pub fn read_expected(
        &mut self,
        comparable: impl Fn(&str, &ArrayType) -> bool,
    ) -> Result<Vec<(String, ExpectedOutput)>, Failure> {
        let mut all = Vec::with_capacity(self.expected.len());
        for (name, array) in &self.expected {
            let expected = match &mut self.archive {
                Some(archive) if comparable(name, array) => {
                    ExpectedOutput::Values(archive.read(&format!("{EXPECTED}{name}"))?)
                }
                _ => ExpectedOutput::Type(array.clone()),
            };
            all.push((name.clone(), expected));
        }
        Ok(all)
    }
}

/// Gives inputs the dtypes that [`Arrays::fit`] has them read as. Returns the names and dtypes of those whose files
/// have other dtypes, and the remarks about them.
pub fn fitted(
    inputs: &mut [(String, ArrayType)],
    wanted: &[Signature],
) -> (Vec<(String, DType)>, Vec<String>) {
    let (mut read_as, mut notes) = (vec![], vec![]);
    for (name, array) in inputs {
        let Some(signature) = wanted.iter().find(|s| s.name == *name) else {
            continue;
        };
        let (given, to) = (array.dtype, signature.ty.dtype);
        let how = match (given, to) {
            (DType::U16, DType::BF16) => "read as the bits of",
            (DType::F32, DType::BF16) => "cast from f32 to",
            (DType::U8, to) if to.is_narrow() => "read as the bits of",
            (DType::F32, to) if to.is_narrow() && to.widened() == given => "rounded to",
            (DType::F32, to) if to.is_narrow() => "converted to",
            (DType::I8, to) if to.is_narrow() && to.widened() == given => "converted to",
            _ => continue,
        };
        notes.push(format!("input '{}' is {how} {to}", Printable(name)));
        array.dtype = to;
        read_as.push((name.clone(), to));
    }
    (read_as, notes)
}

/// An f32 tensor rounded to bf16, or a u16 tensor as the bits of one.
fn as_bf16(t: Tensor) -> Result<Tensor, Failure> {
    let bytes = match t.as_slice::<f32>() {
        Ok(values) => {
            let bits = values.iter().map(|v| bf16::from_f32(*v).to_le_bytes());
            bits.flatten().collect()
        }
        Err(_) => t.bytes().to_vec(),
    };
    let made = Tensor::from_bytes(DType::BF16, t.shape(), &bytes);
    made.map_err(|e| Error::internal(e.to_string()).into())
}

/// A u8 tensor as the bits of elements of the narrow dtype `to`, or an f32 tensor, or one of the dtype that `to` widens
/// to, as the same numbers; f32 is rounded to a float.
fn as_narrow(name: &str, t: Tensor, to: DType) -> Result<Tensor, Failure> {
    let made = match (t.dtype(), to.widened()) {
        (DType::U8, wide) if wide != DType::U8 => t.from_codes(to),
        (DType::F32, DType::F32) => t.rounded(to),
        (DType::F32, DType::I8) => {
            whole(&t, to, |n| n as i8, f32::from).and_then(|t| t.narrowed(to))
        }
        (DType::F32, DType::U8) => {
            whole(&t, to, |n| n as u8, f32::from).and_then(|t| t.narrowed(to))
        }
        _ => t.narrowed(to),
    };
    made.map_err(|e| {
        let msg = format!("input '{}' cannot become {to}: {e}", Printable(name));
        Error::new(Code::InvalidInput, msg).into()
    })
}

/// The numbers of an f32 tensor as integers, which are to become elements of `dtype`. Fails where a number is no such
/// integer.
fn whole<T: Element>(
    t: &Tensor,
    dtype: DType,
    integer: impl Fn(f32) -> T,
    number: impl Fn(T) -> f32,
) -> Result<Tensor, TensorError> {
    let exact = |(at, n): (usize, &f32)| {
        let made = integer(*n);
        match number(made) == *n {
            true => Ok(made),
            false => Err(TensorError::NotInDType { at, dtype }),
        }
    };
    let numbers = t.as_slice::<f32>()?.iter().enumerate().map(exact);
    let numbers = numbers.collect::<Result<Vec<T>, _>>()?;
    Tensor::from_slice(t.shape(), &numbers)
}

/// The expected value that an output of the model is compared with.
pub enum ExpectedOutput {
    /// The output has these values.
    Values(Tensor),
    /// The expected output has another dtype or shape than the output, so its values are not compared.
    Type(ArrayType),
}

/// Whether a name is that of a tensor of a sequence, `NAME[0]`.
fn numbered(name: &str) -> Option<(&str, usize)> {
    let (base, at) = name.strip_suffix(']')?.rsplit_once('[')?;
    Some((base, at.parse().ok()?))
}

/// The sequences that inputs called `NAME[0]`, `NAME[1]` and so on may be, each with the ranks of its tensors.
fn sequences<'n>(inputs: impl Iterator<Item = (&'n str, usize)>) -> BTreeMap<&'n str, Vec<usize>> {
    let mut all: BTreeMap<&str, BTreeMap<usize, usize>> = BTreeMap::new();
    for (name, rank) in inputs {
        if let Some((base, at)) = numbered(name) {
            all.entry(base).or_default().insert(at, rank);
        }
    }
    let complete = |all: &BTreeMap<usize, usize>| all.keys().copied().eq(0..all.len());
    let all = all.into_iter().filter(|(_, all)| complete(all));
    all.map(|(base, all)| (base, all.into_values().collect()))
        .collect()
}

/// Derives descriptions of a model's inputs from the names and shapes of given arrays: `NAME[0]`, `NAME[1]` and so on
/// are the elements of a sequence.
pub fn given<'n>(
    inputs: impl Iterator<Item = (&'n str, &'n [usize])>,
) -> BTreeMap<String, GivenInput> {
    let inputs: Vec<(&str, &[usize])> = inputs.collect();
    let ranks = inputs.iter().map(|(name, shape)| (*name, shape.len()));
    let sequences = sequences(ranks).into_iter();
    let sequences = sequences.map(|(name, ranks)| (name, GivenInput::Sequence(ranks)));
    let tensors = inputs.iter().filter(|(name, _)| numbered(name).is_none());
    let tensors = tensors.map(|(name, shape)| (*name, GivenInput::Shape(shape.to_vec())));
    let all = sequences.chain(tensors);
    all.map(|(name, given)| (name.to_owned(), given)).collect()
}

/// Makes the builder that loads the model, without pins and a number of workers. The names and shapes in `inputs` tell
/// the builder which inputs are sequences, how long they are, and which constants of the model become inputs; they may
/// also give what the model does not declare.
pub fn builder<'n>(
    cluster: &Cluster,
    args: &LoadArgs,
    in_flight: u32,
    inputs: impl Iterator<Item = (&'n str, &'n [usize])>,
) -> Result<ModelBuilder, Failure> {
    let mut b = cluster
        .load(&args.model)
        .numerics(args.numerics.into())
        .mix_profiles(args.mix_profiles)
        .in_flight(in_flight);
    for w in &args.weights {
        b = b.weights(w);
    }
    if let Some(channels) = args.blocks.nchwc_block {
        b = b.block_width(channels.into());
    }
    for (name, given) in given(inputs) {
        // The file of inputs decides which there are.
        b = b.without_others();
        b = match given {
            GivenInput::Tensor(rank) => b.input(name, rank),
            GivenInput::Shape(shape) => b.shape(name, shape),
            GivenInput::Sequence(ranks) => b.sequence(name, ranks),
            GivenInput::Nothing => b,
        };
    }
    if let Some(root) = &args.artifact_root {
        machine::readable_folder("--artifact-root", root)?;
        b = b.artifact_root(root);
    }
    for d in &args.dim {
        b = b.dim(&d.symbol, d.most);
    }
    Ok(b)
}

/// Adds the pins of the flags to a builder.
pub fn pinned(mut b: ModelBuilder, args: &LoadArgs) -> ModelBuilder {
    for p in &args.pin {
        b = b.pin(&p.pattern, p.devices.to_string());
    }
    b
}

/// Checks that no input is larger than the bound that `--dim` gives for its axis.
pub fn check_bounds(
    bounds: &[Bound],
    inputs: &[(String, ArrayType)],
    wanted: &[Signature],
) -> Result<(), Failure> {
    for (name, given) in inputs {
        let Some(signature) = wanted.iter().find(|s| s.name == *name) else {
            continue;
        };
        for (dim, size) in signature.ty.shape.iter().zip(given.shape.iter()) {
            let bound = bounds
                .iter()
                .find(|b| dim.as_symbol().is_some_and(|s| **s == *b.symbol));
            let Some(bound) = bound else { continue };
            let size = i64::try_from(*size).unwrap_or(i64::MAX);
            if !(bound.least..=bound.most).contains(&size) {
                let (name, symbol) = (Printable(name), Printable(&bound.symbol));
                let (least, most) = (bound.least, bound.most);
                let (range, advice) = match size > most {
                    true => (format!("{most}"), format!("={size} or more")),
                    false => (format!("{least}..{most}"), format!("={size}..{most}")),
                };
                let than = if size > most { "less" } else { "more" };
                let msg = format!(
                    "--dim {symbol}={range} is {than} than the {size} of input '{name}', which is {given}"
                );
                let error = Error::new(Code::InvalidArgument, msg);
                let advice = format!("write --dim {symbol}{advice}, or leave it out");
                return Err(error.advise(advice).into());
            }
        }
    }
    Ok(())
}

/// Checks that any input is given if the model needs inputs; the error lists what it needs.
pub fn check_given(inputs: &[(String, ArrayType)], wanted: &[Signature]) -> Result<(), Failure> {
    if !inputs.is_empty() || wanted.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = wanted
        .iter()
        .map(|s| format!("{}: {}", Printable(&s.name), s.ty))
        .collect();
    let msg = format!("the model needs inputs: {}", list.join("; "));
    let e = Error::new(Code::InvalidInput, msg);
    Err(e
        .advise("give them with --inputs FILE.npz, or one by one with --input NAME=FILE.npy")
        .into())
}

#[cfg(test)]
mod tests {
    use convoke::TensorType;
    use convoke_graph::Shape;

    use super::*;

    #[test]
    fn numbered_arrays_are_sequences() {
        let named = [
            ("x[1]", 2),
            ("x[0]", 1),
            ("y", 3),
            ("z[1]", 1),
            ("w[a]", 1),
            ("v]", 1),
        ];
        let found = sequences(named.into_iter());
        assert_eq!(found, BTreeMap::from([("x", vec![1, 2])]));
    }

    #[test]
    fn arrays_are_read_as_bf16_where_the_model_wants_that() {
        let given = [DType::F32, DType::U16, DType::BF16, DType::I64];
        let named = |dtype: DType| {
            let shape = Shape::from_slice(&[2]);
            (dtype.to_string(), ArrayType { dtype, shape })
        };
        let mut arrays = Arrays {
            archive: None,
            files: vec![],
            inputs: given.map(named).to_vec(),
            read_as: vec![],
            expected: vec![],
        };
        let wanted = given.map(|dtype| Signature {
            name: dtype.to_string(),
            ty: TensorType::fixed(DType::BF16, &[2]),
        });
        assert_eq!(
            arrays.fit(&wanted),
            [
                "input 'f32' is cast from f32 to bf16",
                "input 'u16' is read as the bits of bf16"
            ]
        );
        let dtypes: Vec<_> = arrays.inputs().iter().map(|(_, a)| a.dtype).collect();
        assert_eq!(dtypes, [DType::BF16, DType::BF16, DType::BF16, DType::I64]);
        let narrow = |t: Tensor, to| as_narrow("x", t, to).map(|t| t.bytes().to_vec());
        let bytes = |v: &[u8]| Tensor::from_slice(&[v.len()], v).unwrap();
        assert_eq!(narrow(bytes(&[0xff, 7]), DType::I4).ok(), Some(vec![0x7f]));
        assert_eq!(narrow(bytes(&[15, 7]), DType::U4).ok(), Some(vec![0x7f]));
        assert!(narrow(bytes(&[16, 7]), DType::U4).is_err());
        let floats = |v: &[f32]| Tensor::from_slice(&[v.len()], v).unwrap();
        assert_eq!(narrow(floats(&[-8., 7.]), DType::I4).ok(), Some(vec![0x78]));
        assert_eq!(
            narrow(floats(&[0., 3.]), DType::U2).ok(),
            Some(vec![0b1100])
        );
        for lacking in [8., 0.5, f32::NAN] {
            assert!(narrow(floats(&[lacking]), DType::I4).is_err(), "{lacking}");
        }
        assert!(narrow(floats(&[-1.]), DType::U4).is_err());
        let floats = floats(&[1.5]);
        assert_eq!(narrow(floats, DType::F8E5M2).ok(), Some(vec![0x3e]));
        let bits = |t: Tensor| as_bf16(t).unwrap().as_slice::<bf16>().unwrap().to_vec();
        let three = [bf16::from_f32(1.), bf16::from_f32(-3.)];
        assert_eq!(bits(Tensor::from_slice(&[2], &[1f32, -3.]).unwrap()), three);
        let raw = three.map(bf16::to_bits);
        assert_eq!(bits(Tensor::from_slice(&[2], &raw).unwrap()), three);
    }
}
