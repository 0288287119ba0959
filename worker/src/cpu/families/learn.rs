//! Trees, and encodings by tables.

use convoke_common::Error;
use convoke_graph::ops::attrs::{Aggregate, TreeAttrs, flag};
use convoke_graph::ops::{LearnOp, OpError};
use convoke_graph::{DType, Element, Outputs, Tensor};
use convoke_kernels::trees::{TreeElement, TreeFold, Trees, trees};

use crate::cpu::dispatch::by_size;
use crate::cpu::kernel::{
    FamilyAnswer, KernelBody, KernelFailure, OpLaunch, Spec, bits, body, one, write, write_bits,
};
use crate::cpu::text;

/// Elements between two checks of the cancel flag.
const PIECE: usize = 1 << 12;
/// The place of an element that has no key.
const NOWHERE: u64 = u64::MAX;

pub(super) fn find(op: LearnOp, spec: &Spec<'_>) -> FamilyAnswer {
    match op {
        LearnOp::LabelEncoder => label_encoder(spec),
        LearnOp::OneHotEncoder => one_hot_encoder(spec),
        LearnOp::TreeEnsemble => {
            TreeAttrs::new(spec.attrs)?;
            match spec.dtype(0)? {
                DType::F32 => body(|call| ensemble::<f32>(&call)),
                DType::F64 => body(|call| ensemble::<f64>(&call)),
                other => Err(spec.no_dtype(other)),
            }
        }
    }
}

fn ensemble<T: Element + TreeElement>(call: &OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let attrs = TreeAttrs::new(call.attrs)?;
    let ensemble = Trees::<T> {
        features: call.slice(1)?,
        modes: call.slice(2)?,
        splits: call.slice(3)?,
        branches: call.slice(4)?,
        roots: call.slice(5)?,
        leaves: call.slice(6)?,
        targets: call.slice(7)?,
        weights: call.slice(8)?,
        fold: match attrs.aggregate {
            Aggregate::Sum => TreeFold::Sum,
            Aggregate::Average => TreeFold::Average,
            Aggregate::Min => TreeFold::Min,
            Aggregate::Max => TreeFold::Max,
        },
    };
    let features = call.shape(0)?.last().copied().unwrap_or(0);
    let mut y = call.output(0)?;
    let mut reached = call.launch.pool.tensor(DType::Bool, call.out_shape(0))?;
    trees::<T>(
        &call.launch.exec,
        &ensemble,
        call.slice(0)?,
        features,
        attrs.targets,
        write(&mut y)?,
        write::<u8>(&mut reached)?,
    )?;
    match call.outputs.len() {
        1 => one(y),
        _ => Ok([y, reached].into_iter().collect()),
    }
}

/// Elements that are keys, and their order.
trait Key: PartialEq {
    /// Whether a key stands before another one.
    fn before(&self, other: &Self) -> bool;

    /// Whether two keys are one.
    fn same(&self, other: &Self) -> bool {
        !self.before(other) && !other.before(self)
    }
}

macro_rules! keys {
    ($($ty:ty),*) => {$(
        impl Key for $ty {
            // NaN is the last one, and all are the same.
            #[allow(clippy::eq_op)]
            fn before(&self, other: &$ty) -> bool {
                self < other || (other != other && self == self)
            }
        }
    )*};
}
keys!(i16, i32, i64, f32, f64, &str);

/// Finds the places of elements among keys, which have to ascend.
fn search<'a, K: Key>(
    call: &OpLaunch<'_, '_>,
    x: impl Iterator<Item = K>,
    keys: usize,
    key: impl Fn(usize) -> K + 'a,
) -> Result<Tensor, KernelFailure> {
    let exec = &call.launch.exec;
    for i in 1..keys {
        if i.is_multiple_of(PIECE) {
            exec.check()?;
        }
        if !key(i - 1).before(&key(i)) {
            let msg = format!("key {i} does not stand behind the one before it");
            return Err(KernelFailure::values(msg));
        }
    }
    let mut places = call.scratch::<u64>(call.input(0)?.elements())?;
    for (i, (place, x)) in write::<u64>(&mut places)?.iter_mut().zip(x).enumerate() {
        if i.is_multiple_of(PIECE / 8) {
            exec.check()?;
        }
        let (mut low, mut high) = (0, keys);
        while low < high {
            let middle = low + (high - low) / 2;
            match key(middle).before(&x) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        let found = low < keys && key(low).same(&x);
        *place = if found { low as u64 } else { NOWHERE };
    }
    Ok(places)
}

/// The places of the elements of operand 0 among those of operand 1.
fn places(call: &OpLaunch<'_, '_>) -> Result<Tensor, KernelFailure> {
    fn of<T: Element + Key>(call: &OpLaunch<'_, '_>) -> Result<Tensor, KernelFailure> {
        let (x, keys) = (call.slice::<T>(0)?, call.slice::<T>(1)?);
        search(call, x.iter().copied(), keys.len(), |i| keys[i])
    }
    let dtype = call.input(0)?.dtype();
    match dtype {
        DType::I16 => of::<i16>(call),
        DType::I32 => of::<i32>(call),
        DType::I64 => of::<i64>(call),
        DType::F32 => of::<f32>(call),
        DType::F64 => of::<f64>(call),
        DType::Str => {
            let (x, keys) = (call.input(0)?.strings()?, call.input(1)?.strings()?);
            search(call, x.iter(), keys.len(), |i| keys.get(i))
        }
        other => Err(Error::internal(format!("keys of {other}")).into()),
    }
}

fn label_encoder(spec: &Spec<'_>) -> Result<KernelBody, OpError> {
    if spec.dtype(2)? == DType::Str {
        return body(|call| {
            let places = places(&call)?;
            let places = places.as_slice::<u64>()?;
            let (values, default) = (call.input(2)?.strings()?, call.input(3)?.strings()?);
            let (exec, pool) = (&call.launch.exec, call.launch.pool);
            one(text::made(exec, pool, call.out_shape(0), |i, sink| {
                Ok(match places[i] {
                    NOWHERE => sink(default.get(0)),
                    place => sink(values.get(place as usize)),
                }?)
            })?)
        });
    }
    by_size!(spec.dtype(2)?, T => body(|call| {
        let places = places(&call)?;
        let (values, default) = (bits::<T>(call.input(2)?), bits::<T>(call.input(3)?));
        let &[default] = default else {
            return Err(KernelFailure::values("'default' must be one value"));
        };
        let mut y = call.output(0)?;
        for (y, place) in write_bits::<T>(&mut y)?.iter_mut().zip(places.as_slice::<u64>()?) {
            *y = usize::try_from(*place).ok().and_then(|p| values.get(p)).copied().unwrap_or(default);
        }
        one(y)
    }))
}

fn one_hot_encoder(spec: &Spec<'_>) -> Result<KernelBody, OpError> {
    let zeros = flag(spec.attrs, "zeros", true);
    body(move |call| {
        if let DType::Str = call.input(0)?.dtype() {
            let (x, all) = (call.input(0)?.strings()?, call.input(1)?.strings()?);
            let find = |i: usize| (0..all.len()).rfind(|k| all.get(*k) == x.get(i));
            return one(hot(&call, zeros, find)?);
        }
        let (x, all) = (call.slice::<i64>(0)?, call.slice::<i64>(1)?);
        let find = |i: usize| all.iter().rposition(|category| *category == x[i]);
        one(hot(&call, zeros, find)?)
    })
}

/// Makes the result of `OneHotEncoder`. `find` returns the category of an element, the last one of those that are equal, as
/// ONNX Runtime does, for which it looks at all categories:
/// they are as many as the row of the result has elements.
fn hot(
    call: &OpLaunch<'_, '_>,
    zeros: bool,
    find: impl Fn(usize) -> Option<usize>,
) -> Result<Tensor, KernelFailure> {
    let mut y = call.output(0)?;
    let categories = call.input(1)?.elements();
    let rows = call.input(0)?.elements();
    let out = write::<f32>(&mut y)?;
    out.fill(0.);
    let between = PIECE / categories.clamp(1, PIECE);
    for i in 0..rows {
        if i.is_multiple_of(between) {
            call.launch.exec.check()?;
        }
        match find(i) {
            Some(at) => out[i * categories + at] = 1.,
            None if zeros => {}
            None => {
                let msg = format!("element {i} is of no category");
                return Err(KernelFailure::values(msg));
            }
        }
    }
    Ok(y)
}

#[cfg(test)]
mod tests {
    use convoke_graph::graph::{Attr, Attrs};

    use super::*;
    use crate::cpu::testing::{launch, one, vec1};

    fn text(strings: &[&str]) -> Tensor {
        Tensor::from_strings(&[strings.len()], strings).unwrap()
    }

    #[test]
    fn labels_follow_keys() {
        let check = |operands: [&Tensor; 4], want: Tensor| {
            assert_eq!(
                one("LabelEncoder", Attrs::default(), &operands).unwrap(),
                want
            );
        };
        let (words, numbers) = (text(&["a", "b", "c"]), vec1(&[0i64, 1, 2]));
        let x = text(&["b", "", "c", "d"]);
        check(
            [&x, &words, &numbers, &Tensor::scalar(42i64)],
            vec1(&[1i64, 42, 2, 42]),
        );
        let x = vec1(&[2i64, -1, 0]);
        check(
            [&x, &numbers, &words, &text(&["?"])],
            text(&["c", "?", "a"]),
        );
        let keys = vec1(&[-1f32, 0., f32::NAN]);
        let x = vec1(&[f32::NAN, -0., 7.]);
        check(
            [&x, &keys, &vec1(&[1i16, 2, 3]), &Tensor::scalar(0i16)],
            vec1(&[3i16, 2, 0]),
        );
        let e = one(
            "LabelEncoder",
            Attrs::default(),
            &[
                &numbers,
                &vec1(&[1i64, 1]),
                &vec1(&[0i64, 0]),
                &Tensor::scalar(0i64),
            ],
        );
        assert!(e.unwrap_err().message.contains("key 1"));
    }

    #[test]
    fn categories_are_columns() {
        let x = Tensor::from_slice(&[2, 1], &[7i64, 5]).unwrap();
        let y = one("OneHotEncoder", Attrs::default(), &[&x, &vec1(&[5i64, 6])]).unwrap();
        assert_eq!(
            y,
            Tensor::from_slice(&[2, 1, 2], &[0f32, 0., 1., 0.]).unwrap()
        );
        let twice = one("OneHotEncoder", Attrs::default(), &[&x, &vec1(&[5i64, 5])]);
        let want = Tensor::from_slice(&[2, 1, 2], &[0f32, 0., 0., 1.]).unwrap();
        assert_eq!(twice.unwrap(), want);
        let must = Attrs::default().with("zeros", Attr::Int(0));
        let e = one("OneHotEncoder", must, &[&x, &vec1(&[5i64])]).unwrap_err();
        assert!(e.message.contains("element 0"), "{e}");
        let y = one(
            "OneHotEncoder",
            Attrs::default(),
            &[&text(&["b"]), &text(&["a", "b"])],
        );
        assert_eq!(
            y.unwrap(),
            Tensor::from_slice(&[1, 2], &[0f32, 1.]).unwrap()
        );
    }

    #[test]
    fn trees_say_what_they_reach() {
        let x = Tensor::from_slice(&[2, 1], &[0f64, 2.]).unwrap();
        let operands = [
            x,
            vec1(&[0i64]),
            vec1(&[0u8]),
            vec1(&[1f64]),
            Tensor::from_slice(&[1, 2], &[-1i64, -2]).unwrap(),
            vec1(&[0i64]),
            vec1(&[0i64, 1, 2]),
            vec1(&[0i64, 1]),
            vec1(&[5f64, 7.]),
        ];
        let attrs = Attrs::default().with("n_targets", Attr::Int(2));
        let y = launch("TreeEnsemble", attrs, operands.map(Some).to_vec(), 2).unwrap();
        assert_eq!(
            y[0],
            Tensor::from_slice(&[2, 2], &[5f64, 0., 0., 7.]).unwrap()
        );
        let want = [true, false, false, true];
        assert_eq!(y[1], Tensor::from_bools(&[2, 2], &want).unwrap());
    }
}
