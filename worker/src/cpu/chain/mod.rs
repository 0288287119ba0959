//! Fused kernels: several elementwise nodes as one kernel, with a program that it runs on tiles of elements.

use convoke_common::Error;
use convoke_graph::{DType, Element, Outputs, Shape, Tensor};
use convoke_kernels::Exec;
use convoke_kernels::binary::Arith;
use convoke_kernels::cast::CastTo;
use convoke_kernels::element::{self, Float};
pub use convoke_kernels::fused::MOST_INPUTS;
use convoke_kernels::fused::{
    ChainInput, ChainKernels, Coding, ConvertedElements, ElementFunction, MOST_TILES, Source,
    Stage, chain, chain_cast, chain_reduced,
};
use convoke_kernels::quantised::{CodeParameters, SumOfCodes, add_codes};
use convoke_kernels::reduce::Reduce;
use convoke_kernels::shape::Operand;
use convoke_kernels::split::GRAIN;
use convoke_kernels::unary::FloatUnary;
use smallvec::SmallVec;

use super::dispatch::by_dtype;
use super::families;
use super::kernel::{
    Kernel, KernelFailure, Launch, Operands, Spec, one, operand, write, write_bits,
};

/// The elementwise function that a node computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Elementwise {
    /// A function of the node's only operand.
    Unary(FloatUnary),
    /// A function of two elements, applied to the first operand and each further one in turn.
    Fold(Arith),
    /// A function between numbers and codes of the node's only operand.
    Coding(Coding),
}

/// The elementwise function of a node; `None` where it is not elementwise, or may fail.
pub fn elementwise(spec: &Spec<'_>) -> Option<Elementwise> {
    let dtype = spec.dtype(0).ok()?;
    let alike = spec.operands.iter().all(|d| *d == Some(dtype));
    if !dtype.is_float() || !alike {
        return None;
    }
    let (unary, fold) = (families::unary_of(spec), families::fold_of(spec));
    match (unary, fold, spec.operands.len()) {
        (Some(op), _, 1) => Some(Elementwise::Unary(op)),
        (_, Some(op), 2..) => Some(Elementwise::Fold(op)),
        _ => None,
    }
}

/// The dtypes that a node converts between; `None` where a chain cannot begin or end with it.
pub fn conversion(spec: &Spec<'_>) -> Option<(DType, DType)> {
    families::conversion_of(spec).filter(|(_, to)| *to != DType::Bool)
}

/// The function by which a node makes numbers of codes, or codes of numbers, and the dtype of the codes. Scale and zero point are
/// given where they are known.
pub fn coding(
    spec: &Spec<'_>,
    scale: Option<&Tensor>,
    zero: Option<&Tensor>,
) -> Option<(Coding, DType)> {
    families::coding_of(spec, scale, zero)
}

/// Least number of rows of a large fused reduction: fewer rows would not keep all threads at work.
const ROWS: usize = 64;

/// The reduction that a node computes of a tensor of this shape, if a chain may end with it: it must reduce rows that
/// lie in one piece each. `axes` is the node's second operand.
pub fn reduction(spec: &Spec<'_>, axes: Option<&Tensor>, shape: &[usize]) -> Option<Tail> {
    let (op, attrs) = families::reduction_of(spec)?;
    let given = match axes {
        Some(axes) => axes.to_i64s()?,
        None => vec![],
    };
    let mut reduced = vec![false; shape.len()];
    for axis in attrs.axes(&given, shape.len()).ok()? {
        *reduced.get_mut(axis)? = true;
    }
    // Axes of one element count neither as kept nor as reduced.
    let long = |a: &usize| shape[*a] != 1;
    let first = (0..shape.len()).filter(long).find(|a| reduced[*a])?;
    let trailing = (first..shape.len()).filter(long).all(|a| reduced[a]);
    let product = |dims: &[usize]| dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    let (rows, elements) = (product(&shape[..first])?, product(shape)?);
    let parallel = rows >= ROWS || elements <= GRAIN;
    let fits = op.is_single_pass() && trailing && elements > 0 && parallel;
    fits.then(|| Tail::Reduce(op, shape.into()))
}

/// The op that follows a chain in the same kernel.
#[derive(Debug, Clone, PartialEq)]
pub enum Tail {
    /// The chain's elements are the result.
    Plain,
    /// The chain's elements are converted to this dtype.
    Cast(DType),
    /// Rows of the chain's elements are reduced to one element each; the shape is that of the unreduced elements.
    Reduce(Reduce, Shape),
}

/// A conversion before a chain: `input`, of dtype `from`, is converted to `output`, which the chain reads.
pub struct Head {
    pub input: u32,
    pub output: u32,
    pub from: DType,
}

/// A node of a chain: its function, and its operands and result as the caller numbers values.
pub struct Step<'a> {
    pub function: Elementwise,
    pub inputs: &'a [u32],
    pub output: u32,
}

/// A fused kernel, with the values that are its operands, in order.
pub struct FusedChain {
    pub kernel: Box<dyn Kernel>,
    pub operands: Vec<u32>,
}

/// Makes one kernel of nodes in their order; `tail` is applied to the last one's result. All nodes have the shape of
/// that result; `like_result` says whether a value from outside has it. `None` where the kernel would need too many
/// tiles or operands.
pub fn fuse(
    dtype: DType,
    heads: &[Head],
    steps: &[Step<'_>],
    tail: Tail,
    like_result: impl Fn(u32) -> bool,
) -> Option<FusedChain> {
    let pairs = functions(steps);
    let made: std::collections::HashSet<u32> = steps.iter().map(|s| s.output).collect();
    let mut operands = Vec::new();
    for v in steps.iter().flat_map(|s| s.inputs) {
        if !made.contains(v) && !operands.contains(v) {
            operands.push(*v);
        }
    }
    if operands.len() > MOST_INPUTS {
        return None;
    }
    let head = |v: &u32| heads.iter().find(|h| h.output == *v);
    // An operand that is read only once, by the first function that writes to the result, may share the result's memory.
    let once = |v: u32| {
        let reads = pairs.iter().flat_map(|p| [Some(p.a), p.b]);
        reads
            .flatten()
            .filter(|r| *r == ChainValue::Named(v))
            .count()
            == 1
    };
    let lies_there =
        |v: u32| tail == Tail::Plain && head(&v).is_none() && like_result(v) && once(v);
    let stages = allocated(&pairs, &operands)?;
    let own = in_place(&stages).filter(|(own, _)| lies_there(operands[*own]));
    let sum = sum_of_codes(heads, steps, &tail).filter(|_| operands.len() == 2);
    let kernel = by_dtype!(float dtype, T => {
        let reads = |v: &u32| match head(v) {
            Some(h) => by_dtype!(any h.from, A => converted::<A, T> as ReadFunction<T>).map(Some),
            None => Some(None),
        };
        let ending = match tail {
            Tail::Plain => TypedTail::Plain,
            Tail::Cast(to) => by_dtype!(number to, B => TypedTail::Cast(to, cast_into::<T, B>))?,
            Tail::Reduce(op, shape) => TypedTail::Reduced(op, shape),
        };
        let reads = operands.iter().map(reads).collect::<Option<Vec<_>>>()?;
        Box::new(Chain::<T> { stages, own, reads, ending }) as Box<dyn Kernel>
    })?;
    let given = |v: &u32| head(v).map_or(*v, |h| h.input);
    Some(FusedChain {
        kernel: match sum {
            Some((how, to, add)) => Box::new(CodesSum {
                how,
                to,
                add,
                chain: kernel,
            }),
            None => kernel,
        },
        operands: operands.iter().map(given).collect(),
    })
}

/// The operand that the first function which writes to the result reads first, if there is one, and the stages if that
/// operand's elements are in the result's memory.
fn in_place(stages: &[Stage]) -> Option<(usize, Vec<Stage>)> {
    let mut stages = stages.to_vec();
    let stage = stages.iter_mut().find(|stage| stage.to == 0)?;
    let (ElementFunction::Unary(_, first)
    | ElementFunction::Coding(_, first)
    | ElementFunction::Binary(_, first, _)) = &mut stage.function;
    let Source::Input(own) = *first else {
        return None;
    };
    *first = Source::Tile(0);
    Some((own.into(), stages))
}

/// A value between functions.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum ChainValue {
    Named(u32),
    /// A value between two functions of one node.
    Between(usize),
}

/// One function of one or two values.
struct Pair {
    function: Elementwise,
    a: ChainValue,
    b: Option<ChainValue>,
    y: ChainValue,
}

/// Splits nodes of many operands into functions of two values.
fn functions(steps: &[Step<'_>]) -> Vec<Pair> {
    let mut pairs: Vec<Pair> = Vec::with_capacity(steps.len());
    for step in steps {
        let mut inputs = step.inputs.iter().map(|v| ChainValue::Named(*v));
        let Some(mut a) = inputs.next() else { continue };
        let mut rest = inputs.peekable();
        if rest.peek().is_none() {
            pairs.push(Pair {
                function: step.function,
                a,
                b: None,
                y: ChainValue::Named(step.output),
            });
        }
        while let Some(b) = rest.next() {
            let y = match rest.peek() {
                Some(_) => ChainValue::Between(pairs.len()),
                None => ChainValue::Named(step.output),
            };
            pairs.push(Pair {
                function: step.function,
                a,
                b: Some(b),
                y,
            });
            a = y;
        }
    }
    pairs
}

/// Assigns a tile to every value, from the result backwards. A function writes to the tile of its first operand unless
/// that is read later. `None` where there are too few tiles.
fn allocated(pairs: &[Pair], operands: &[u32]) -> Option<Vec<Stage>> {
    let mut free: Vec<u8> = (1..MOST_TILES as u8).rev().collect();
    let mut tiles = std::collections::HashMap::<ChainValue, u8>::new();
    tiles.insert(pairs.last()?.y, 0);
    let input = |v: ChainValue| match v {
        ChainValue::Named(v) => operands.iter().position(|o| *o == v),
        ChainValue::Between(_) => None,
    };
    let mut stages = Vec::with_capacity(pairs.len());
    for pair in pairs.iter().rev() {
        let to = tiles.remove(&pair.y)?;
        let mut kept = true;
        let mut source =
            |v: ChainValue, tiles: &mut std::collections::HashMap<ChainValue, u8>, in_place| {
                if let Some(i) = input(v) {
                    return Some(Source::Input(i as u8));
                }
                let tile = match tiles.get(&v) {
                    Some(tile) => *tile,
                    None if in_place => {
                        kept = false;
                        to
                    }
                    None => free.pop()?,
                };
                tiles.insert(v, tile);
                Some(Source::Tile(tile))
            };
        let a = source(pair.a, &mut tiles, true)?;
        let function = match (pair.function, pair.b) {
            (Elementwise::Unary(op), _) => ElementFunction::Unary(op, a),
            (Elementwise::Coding(coding), _) => ElementFunction::Coding(coding, a),
            (Elementwise::Fold(op), Some(b)) => {
                ElementFunction::Binary(op, a, source(b, &mut tiles, false)?)
            }
            (Elementwise::Fold(_), None) => return None,
        };
        if kept {
            free.push(to);
        }
        stages.push(Stage { function, to });
    }
    stages.reverse();
    Some(stages)
}

/// A function that reads a tensor of another dtype as elements of type `T`.
type ReadFunction<T> = for<'t> fn(&'t Tensor) -> ConversionResult<'t, T>;
type ConversionResult<'t, T> = Result<Box<dyn ConvertedElements<T> + 't>, KernelFailure>;

fn converted<A: Element + CastTo<T>, T>(t: &Tensor) -> ConversionResult<'_, T> {
    Ok(Box::new(operand::<A>(t)?))
}

/// A function that computes a chain into a tensor of another dtype.
type Casts<T> = fn(&Exec<'_>, &[Stage], &[ChainInput<'_, T>], &mut Tensor, &[usize]) -> ChainResult;
type ChainResult = Result<(), KernelFailure>;

fn cast_into<T, B>(
    exec: &Exec<'_>,
    stages: &[Stage],
    given: &[ChainInput<'_, T>],
    y: &mut Tensor,
    shape: &[usize],
) -> ChainResult
where
    T: Float + ChainKernels + CastTo<B>,
    B: Element + element::Element,
{
    Ok(chain_cast::<T, B>(exec, stages, given, write(y)?, shape)?)
}

/// A [`Tail`] for a chain of `T`.
enum TypedTail<T> {
    Plain,
    Cast(DType, Casts<T>),
    Reduced(Reduce, Shape),
}

struct Chain<T> {
    stages: Vec<Stage>,
    /// The operand that the result may overwrite, if there is one, and the stages if it does.
    own: Option<(usize, Vec<Stage>)>,
    /// By operand, how it is read if it is of another dtype.
    reads: Vec<Option<ReadFunction<T>>>,
    ending: TypedTail<T>,
}

impl<T: Element + Float + ChainKernels> Kernel for Chain<T> {
    fn launch(&self, launch: &mut Launch<'_>) -> Result<Outputs, KernelFailure> {
        let Launch {
            inputs,
            sizes,
            exec,
            pool,
        } = launch;
        exec.check()?;
        let known = sizes.and_then(|sizes| sizes.first());
        let shape = match (&self.ending, known) {
            (TypedTail::Reduced(_, shape), _) => shape.clone(),
            (_, Some((_, shape))) => shape.clone(),
            (_, None) => broadcast(inputs)?,
        };
        let taken = self.overwritten(inputs, &shape)?;
        let (stages, own) = match (&taken, &self.own) {
            (Some(_), Some((own, stages))) => (stages, Some(*own)),
            _ => (&self.stages, None),
        };
        let mut y = match (&self.ending, known) {
            (TypedTail::Plain, _) => match taken {
                Some(taken) => taken,
                None => pool.tensor(T::DTYPE, &shape)?,
            },
            (TypedTail::Cast(to, _), _) => pool.tensor(*to, &shape)?,
            (TypedTail::Reduced(..), Some((dtype, shape))) => pool.tensor(*dtype, shape)?,
            (TypedTail::Reduced(..), None) => {
                return Err(Error::internal("a reduction of unknown size").into());
            }
        };
        let operands: SmallVec<[Option<&Tensor>; MOST_INPUTS]> = inputs.iter().collect();
        let mut others = SmallVec::<[_; MOST_INPUTS]>::new();
        for (t, reads) in operands.iter().zip(&self.reads) {
            others.push(match (reads, t) {
                (Some(reads), Some(t)) => Some(reads(t)?),
                _ => None,
            });
        }
        let nothing: [T; 1] = [T::ZERO];
        let mut given = SmallVec::<[ChainInput<'_, T>; MOST_INPUTS]>::new();
        for (i, (t, other)) in operands.iter().zip(&others).enumerate() {
            given.push(match (t, other) {
                // No stage reads this operand: its elements are in the result's memory.
                _ if own == Some(i) => ChainInput::Own(Operand::new(&nothing, &[])),
                (_, Some(other)) => ChainInput::Other(&**other),
                (Some(t), None) => ChainInput::Own(operand(t)?),
                (None, None) => return Err(missing(i)),
            });
        }
        match &self.ending {
            TypedTail::Plain => chain::<T>(exec, stages, &given, write(&mut y)?, &shape)?,
            TypedTail::Cast(_, cast) => cast(exec, stages, &given, &mut y, &shape)?,
            TypedTail::Reduced(op, _) => {
                let y = write(&mut y)?;
                chain_reduced::<T>(exec, stages, &given, *op, y, &shape)?
            }
        }
        one(y)
    }
}

impl<T: Element> Chain<T> {
    /// The operand that the result may overwrite, taken out of the inputs; `None` where somebody else holds its memory, or
    /// there is no such operand.
    fn overwritten(
        &self,
        inputs: &mut Operands<'_>,
        shape: &[usize],
    ) -> Result<Option<Tensor>, KernelFailure> {
        let Some((i, _)) = self.own else {
            return Ok(None);
        };
        let given = inputs.get(i).ok_or_else(|| missing(i))?;
        if given.shape() != shape || given.dtype() != T::DTYPE {
            let msg = format!(
                "{} where {}{shape:?} is declared",
                given.signature(),
                T::DTYPE
            );
            return Err(KernelFailure::values(msg));
        }
        match inputs.own(i) {
            Some(_) => Ok(inputs.take(i)),
            None => Ok(None),
        }
    }
}

/// A function that adds two tensors of codes of certain dtypes.
type AddsCodes =
    fn(&Exec<'_>, (&Tensor, &Tensor), &SumOfCodes, &mut Tensor) -> Result<(), KernelFailure>;

fn codes_added<
    A: Element + element::Element + CastTo<f32>,
    B: Element + element::Element + CastTo<f32>,
>(
    exec: &Exec<'_>,
    (a, b): (&Tensor, &Tensor),
    how: &SumOfCodes,
    y: &mut Tensor,
) -> Result<(), KernelFailure> {
    let operands = (a.as_slice::<A>()?, b.as_slice::<B>()?);
    Ok(add_codes(exec, operands, how, write_bits(y)?)?)
}

/// The sum of two tensors of codes that a chain computes, with the dtype of the result; `None` where it computes anything
/// else.
fn sum_of_codes(
    heads: &[Head],
    steps: &[Step<'_>],
    tail: &Tail,
) -> Option<(SumOfCodes, DType, AddsCodes)> {
    let (Tail::Cast(to @ (DType::I8 | DType::U8)), [first, second, add, rest @ ..]) = (tail, steps)
    else {
        return None;
    };
    let decoded = |step: &Step<'_>| match (step.function, step.inputs) {
        (Elementwise::Coding(Coding::Decode { scale, zero }), [x]) => {
            let head = heads.iter().find(|h| h.output == *x)?;
            Some((CodeParameters { scale, zero }, head.from))
        }
        _ => None,
    };
    let ((a, a_dtype), (b, b_dtype)) = (decoded(first)?, decoded(second)?);
    let (one, other) = (first.output, second.output);
    let adds = add.function == Elementwise::Fold(Arith::Add)
        && (*add.inputs == [one, other] || *add.inputs == [other, one]);
    let (relu, encode, sum) = match rest {
        [encode] => (false, encode, add.output),
        [relu, encode]
            if relu.function == Elementwise::Unary(FloatUnary::Relu)
                && *relu.inputs == [add.output] =>
        {
            (true, encode, relu.output)
        }
        _ => return None,
    };
    let Elementwise::Coding(Coding::Encode {
        scale,
        zero,
        low,
        high,
    }) = encode.function
    else {
        return None;
    };
    if !adds || *encode.inputs != [sum] {
        return None;
    }
    let run = by_dtype!([I8 i8, U8 u8] a_dtype, A => {
        by_dtype!([I8 i8, U8 u8] b_dtype, B => codes_added::<A, B> as AddsCodes)
    })??;
    let how = SumOfCodes {
        operands: [a, b],
        relu,
        result: CodeParameters { scale, zero },
        range: (low, high),
    };
    Some((how, *to, run))
}

/// The sum of two tensors of codes, which a kernel of its own computes where the tensors have one shape.
struct CodesSum {
    how: SumOfCodes,
    /// The dtype of the result.
    to: DType,
    add: AddsCodes,
    /// The same sum for tensors that are broadcast.
    chain: Box<dyn Kernel>,
}

impl Kernel for CodesSum {
    fn launch(&self, launch: &mut Launch<'_>) -> Result<Outputs, KernelFailure> {
        let alike = match (launch.inputs.get(0), launch.inputs.get(1)) {
            (Some(a), Some(b)) => (a.shape() == b.shape()).then_some((a, b)),
            _ => None,
        };
        let Some((a, b)) = alike else {
            return self.chain.launch(launch);
        };
        launch.exec.check()?;
        let mut y = launch.pool.tensor(self.to, a.shape())?;
        (self.add)(&launch.exec, (a, b), &self.how, &mut y)?;
        one(y)
    }
}

fn missing(i: usize) -> KernelFailure {
    Error::internal(format!("operand {i} is missing")).into()
}

/// The shape that all operands broadcast to.
fn broadcast(inputs: &Operands<'_>) -> Result<Shape, KernelFailure> {
    let mut all = Shape::new();
    for t in inputs.iter().flatten() {
        let shape = t.shape();
        if shape.len() > all.len() {
            all.insert_many(0, std::iter::repeat_n(1, shape.len() - all.len()));
        }
        let offset = all.len() - shape.len();
        for (y, x) in all[offset..].iter_mut().zip(shape) {
            match (*y, *x) {
                (y, x) if x == y || x == 1 => {}
                (1, x) => *y = x,
                _ => {
                    let given = inputs.iter().flatten().map(Tensor::signature);
                    let given: Vec<_> = given.collect();
                    let msg = format!("{} do not broadcast", given.join(", "));
                    return Err(KernelFailure::values(msg));
                }
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
