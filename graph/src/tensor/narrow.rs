//! Tensors of narrow dtypes as tensors of the dtypes that programs compute with, and back.

use convoke_functions::narrow::{Narrow, NarrowFloat, NarrowInt, NarrowRounding, PowerRounding};
use convoke_functions::packed;

use crate::dtype::{DType, Element};
use crate::tensor::Tensor;
use crate::tensor::error::TensorError;

/// The format of the elements of `dtype`; `None` where it is not narrow.
pub fn narrow_of(dtype: DType) -> Option<Narrow> {
    let int = |bits, signed| Narrow::Int(NarrowInt { bits, signed });
    Some(match dtype {
        DType::I4 => int(4, true),
        DType::U4 => int(4, false),
        DType::I2 => int(2, true),
        DType::U2 => int(2, false),
        DType::F4E2M1 => Narrow::Float(NarrowFloat::F4E2M1),
        DType::F8E4M3FN => Narrow::Float(NarrowFloat::F8E4M3FN),
        DType::F8E4M3FNUZ => Narrow::Float(NarrowFloat::F8E4M3FNUZ),
        DType::F8E5M2 => Narrow::Float(NarrowFloat::F8E5M2),
        DType::F8E5M2FNUZ => Narrow::Float(NarrowFloat::F8E5M2FNUZ),
        DType::F8E8M0 => Narrow::Float(NarrowFloat::F8E8M0),
        _ => return None,
    })
}

/// The rounding of a conversion whose result is checked to be exact.
const EXACT: NarrowRounding = NarrowRounding {
    saturate: false,
    power: PowerRounding::Down,
};

/// What ONNX's Cast does unless its attributes say otherwise.
const OF_CAST: NarrowRounding = NarrowRounding {
    saturate: true,
    power: PowerRounding::Up,
};

impl Tensor {
    /// The same numbers in the dtype that [`DType::widened`] names; a tensor of another dtype as it is.
    pub fn widened(&self) -> Result<Tensor, TensorError> {
        match narrow_of(self.dtype()) {
            None => Ok(self.clone()),
            Some(Narrow::Int(int)) if int.signed => self.decoded(|code| int.decode(code)),
            Some(Narrow::Int(_)) => self.decoded(|code| code),
            Some(Narrow::Float(float)) => self.decoded(|code| float.decode(code)),
        }
    }

    fn decoded<T: Element>(&self, decode: impl Fn(u8) -> T) -> Result<Tensor, TensorError> {
        let mut out = Tensor::zeros(T::DTYPE, self.shape())?;
        let numbers = out.as_mut_slice::<T>().unwrap_or_default();
        for (i, number) in numbers.iter_mut().enumerate() {
            *number = decode(packed::element(self.dtype().bits(), self.bytes(), i));
        }
        Ok(out)
    }

    /// The same numbers in the narrow dtype `to`, from the dtype that it widens to. Fails where this tensor has another
    /// dtype, or an element that `to` lacks.
    pub fn narrowed(&self, to: DType) -> Result<Tensor, TensorError> {
        let exact = |code: u8, same: bool| same.then_some(code);
        match narrow_of(to) {
            None => self.encoded(to, |number: u8| exact(number, false)),
            Some(Narrow::Int(int)) if int.signed => self.encoded(to, |number: i8| {
                let code = number as u8 & (u8::MAX >> (8 - int.bits));
                exact(code, int.decode(code) == number)
            }),
            Some(Narrow::Int(int)) => {
                self.encoded(to, |number: u8| exact(number, number >> int.bits == 0))
            }
            Some(Narrow::Float(float)) => self.encoded(to, |number: f32| {
                let code = float.encode(number, EXACT);
                let back = float.decode(code);
                exact(code, back == number || (back.is_nan() && number.is_nan()))
            }),
        }
    }

    /// The numbers of an f32 tensor in the narrow float dtype `to`, rounded as ONNX's Cast rounds. Fails where this
    /// tensor or `to` has another dtype.
    pub fn rounded(&self, to: DType) -> Result<Tensor, TensorError> {
        match narrow_of(to) {
            Some(Narrow::Float(float)) => {
                self.encoded(to, |number: f32| Some(float.encode(number, OF_CAST)))
            }
            _ => self.narrowed(to),
        }
    }

    /// The elements of the narrow dtype `to` whose bits are in a byte each, as `ml_dtypes` stores them. Fails unless
    /// this is a u8 tensor.
    pub fn from_codes(&self, to: DType) -> Result<Tensor, TensorError> {
        self.encoded(to, Some)
    }

    fn encoded<T: Element>(
        &self,
        to: DType,
        code: impl Fn(T) -> Option<u8>,
    ) -> Result<Tensor, TensorError> {
        let numbers = self.as_slice::<T>()?.iter().enumerate();
        let lacking = |at| TensorError::NotInDType { at, dtype: to };
        let codes = numbers.map(|(at, n)| code(*n).ok_or_else(|| lacking(at)));
        let codes = codes.collect::<Result<Vec<u8>, _>>()?;
        let mut out = Tensor::zeros(to, self.shape())?;
        packed::pack(to.bits(), &codes, out.bytes_mut().unwrap_or_default());
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_widening() {
        for dtype in DType::ALL.into_iter().filter(|d| d.is_narrow()) {
            let codes: Vec<u8> = (0..=u8::MAX >> (8 - dtype.bits())).collect();
            let codes = Tensor::from_slice(&[codes.len()], &codes).unwrap();
            let x = codes.from_codes(dtype).unwrap();
            let wide = x.widened().unwrap();
            assert_eq!(wide.dtype(), dtype.widened(), "{dtype}");
            let back = wide.narrowed(dtype).unwrap().widened().unwrap();
            // NaN have several codes, and become one.
            let same = match wide.as_slice::<f32>() {
                Ok(wide) => {
                    let back = back.as_slice::<f32>().unwrap();
                    wide.iter()
                        .zip(back)
                        .all(|(w, b)| w == b || (w.is_nan() && b.is_nan()))
                }
                Err(_) => wide == back,
            };
            assert!(same, "{dtype}: {wide:?}");
        }
    }

    #[test]
    fn numbers_that_a_dtype_lacks_are_refused() {
        let check = |x: Tensor, to: DType, at: usize| {
            assert_eq!(
                x.narrowed(to),
                Err(TensorError::NotInDType { at, dtype: to })
            );
        };
        check(
            Tensor::from_slice(&[3], &[-8i8, 7, 8]).unwrap(),
            DType::I4,
            2,
        );
        check(Tensor::from_slice(&[2], &[4u8, 3]).unwrap(), DType::U2, 0);
        check(
            Tensor::from_slice(&[2], &[1f32, 1.1]).unwrap(),
            DType::F8E4M3FN,
            1,
        );
        check(
            Tensor::from_slice(&[1], &[1000f32]).unwrap(),
            DType::F8E4M3FN,
            0,
        );
        check(
            Tensor::from_slice(&[1], &[-1f32]).unwrap(),
            DType::F8E8M0,
            0,
        );
        let floats = Tensor::scalar(1f64).narrowed(DType::F8E5M2);
        assert!(matches!(floats, Err(TensorError::WrongDType { .. })));
    }
}
