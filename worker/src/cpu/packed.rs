//! Tensors of packed elements for kernels that move elements, or whose results are put together from parts: such code
//! works with a byte for each element.

use convoke_common::Error;
use convoke_common::memory::Pool;
use convoke_graph::ops::ConcreteOutputs;
use convoke_graph::{DType, Outputs, Tensor, packed};

use super::kernel::{
    FamilyAnswer, KernelFailure, Launch, OpLaunch, Operands, Register, Spec, body, write_bits,
};

/// The dtype of the elements while each has a byte.
fn spread_dtype(dtype: DType) -> DType {
    match dtype.is_packed() {
        true => DType::U8,
        false => dtype,
    }
}

/// The elements of a packed tensor, each in a byte of its own; other tensors as they are.
pub(super) fn spread(t: &Tensor, pool: &Pool) -> Result<Tensor, KernelFailure> {
    if !t.dtype().is_packed() {
        return Ok(t.clone());
    }
    let mut all = pool.tensor(DType::U8, t.shape())?;
    packed::unpack(t.dtype().bits(), t.bytes(), 0, write_bits(&mut all)?);
    Ok(all)
}

/// The tensor of a packed `dtype` whose elements `t` has in bytes of their own; of another dtype, `t` itself.
pub(super) fn gathered(t: Tensor, dtype: DType, pool: &Pool) -> Result<Tensor, KernelFailure> {
    if !dtype.is_packed() {
        return Ok(t);
    }
    let mut all = pool.tensor(dtype, t.shape())?;
    packed::pack(dtype.bits(), t.bytes(), write_bits(&mut all)?);
    Ok(all)
}

/// Makes the kernel of an op that moves packed elements.
pub(super) fn moved(spec: &Spec<'_>, find: impl Fn(&Spec<'_>) -> FamilyAnswer) -> FamilyAnswer {
    let operands: Vec<_> = spec.operands.iter().map(|d| d.map(spread_dtype)).collect();
    let kernel = find(&Spec {
        def: spec.def,
        attrs: spec.attrs,
        operands: &operands,
    })?;
    body(move |call| {
        let (exec, pool) = (call.launch.exec, call.launch.pool);
        let operands = call.launch.inputs.iter();
        let operands = operands.map(|t| t.map(|t| spread(t, pool)).transpose());
        let mut operands: Vec<Register> = operands.collect::<Result<_, _>>()?;
        let outputs = call.outputs.iter();
        let outputs: ConcreteOutputs = outputs
            .map(|(d, s)| (spread_dtype(*d), s.clone()))
            .collect();
        let mut launch = Launch {
            inputs: Operands::given(&mut operands),
            sizes: None,
            exec,
            pool,
        };
        let made = kernel.run(OpLaunch {
            attrs: call.attrs,
            outputs: &outputs,
            launch: &mut launch,
        })?;
        let made = made.into_iter().zip(call.outputs);
        made.map(|(t, (dtype, _))| gathered(t, *dtype, pool))
            .collect::<Result<Outputs, _>>()
    })
}

/// Makes the kernel that repeats one packed element, which is in the low bits of `element`.
pub(super) fn repeated(dtype: DType, element: u8) -> FamilyAnswer {
    let each = [element; 8];
    let mut byte = [0];
    packed::pack(dtype.bits(), &each, &mut byte);
    body(move |call| {
        let mut y = call.output(0)?;
        let padding = packed::padding(dtype.bits(), y.elements());
        let shared = || Error::internal("an output's buffer is shared");
        let bytes = y.bytes_mut().ok_or_else(shared)?;
        bytes.fill(byte[0]);
        if let Some(last) = bytes.last_mut() {
            *last &= !padding;
        }
        Ok(y.into())
    })
}

#[cfg(test)]
mod tests {
    use convoke_graph::graph::{Attr, Attrs, Function, TensorType};

    use super::*;
    use crate::cpu::testing::{one, vec1};

    fn four(shape: &[usize], bytes: &[u8]) -> Tensor {
        Tensor::from_bytes(DType::U4, shape, bytes).unwrap()
    }

    #[test]
    fn packed_elements_are_moved_one_by_one() {
        let x = four(&[2, 3], &[0x21, 0x43, 0x65]);
        let y = one("Transpose", Attrs::default(), &[&x]).unwrap();
        assert_eq!(y, four(&[3, 2], &[0x41, 0x52, 0x63]));
        let pads = vec1(&[0i64, 1, 0, 0]);
        let with = four(&[], &[0x0f]);
        let y = one("Pad", Attrs::default(), &[&x, &pads, &with]).unwrap();
        assert_eq!(y, four(&[2, 4], &[0x1f, 0x32, 0x4f, 0x65]));
        let along = Attrs::default().with("axis", Attr::Int(1));
        let written = one("TensorScatter", along, &[&x, &four(&[2, 1], &[0xba])]);
        assert_eq!(written.unwrap(), four(&[2, 3], &[0x2a, 0xb3, 0x65]));
        let same = one("Reshape", Attrs::default(), &[&x, &vec1(&[-1i64])]).unwrap();
        assert_eq!(same, four(&[6], &[0x21, 0x43, 0x65]));
    }

    #[test]
    fn loops_take_and_collect_rows_that_share_bytes() {
        let mut body = Function::default();
        let row = body.add_value("row", TensorType::fixed(DType::U4, &[3]));
        body.params.push(row);
        body.results.push(("same".into(), row));
        let attrs = Attrs::default()
            .with("body", Attr::Function(body.into()))
            .with("num_scan_inputs", Attr::Int(1));
        let x = four(&[3, 3], &[0x10, 0x32, 0x54, 0x76, 0x08]);
        assert_eq!(one("Scan", attrs.clone(), &[&x]).unwrap(), x);
        let attrs = attrs.with("scan_output_directions", Attr::Ints(vec![1]));
        let reversed = four(&[3, 3], &[0x76, 0x38, 0x54, 0x10, 0x02]);
        assert_eq!(one("Scan", attrs, &[&x]).unwrap(), reversed);
    }

    #[test]
    fn a_packed_element_is_repeated_up_to_the_last() {
        let value = Attr::Tensor(Tensor::from_bytes(DType::I2, &[1], &[0b10]).unwrap());
        let attrs = Attrs::default().with("value", value);
        let check = |n: i64, want: &[u8]| {
            let y = one("ConstantOfShape", attrs.clone(), &[&vec1(&[n])]).unwrap();
            let shape = [n as usize];
            assert_eq!(y, Tensor::from_bytes(DType::I2, &shape, want).unwrap());
        };
        check(0, &[]);
        check(3, &[0b10_1010]);
        check(5, &[0b1010_1010, 0b10]);
    }
}
