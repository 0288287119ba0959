//! The attributes of a node to import: whoever rewrites the node takes those that it knows.

use convoke_graph::graph::Attr;
use convoke_graph::{DType, Tensor};

use super::imported::{ImportFailure, ImportedNode, unsupported};
use crate::error::ModelError;
use crate::onnx::tensor;

impl ImportedNode {
    /// Removes and returns an attribute.
    pub(in super::super) fn take(&mut self, attr: &str) -> Option<Attr> {
        self.attrs.0.remove(attr)
    }

    /// Removes and returns an attribute that must be a list of integers.
    pub(in super::super) fn take_ints(
        &mut self,
        attr: &str,
    ) -> Result<Option<Vec<i64>>, ModelError> {
        match self.take(attr) {
            None => Ok(None),
            Some(Attr::Ints(v)) => Ok(Some(v)),
            Some(_) => Err(self.wrong(attr, "a list of integers")),
        }
    }

    /// Removes and returns an attribute that must be an integer.
    pub(in super::super) fn take_int(&mut self, attr: &str) -> Result<Option<i64>, ModelError> {
        match self.take(attr) {
            None => Ok(None),
            Some(Attr::Int(v)) => Ok(Some(v)),
            Some(_) => Err(self.wrong(attr, "an integer")),
        }
    }

    /// Removes and returns an attribute that must be a float.
    pub(in super::super) fn take_float(&mut self, attr: &str) -> Result<Option<f32>, ModelError> {
        match self.take(attr) {
            None => Ok(None),
            Some(Attr::Float(v)) => Ok(Some(v)),
            Some(_) => Err(self.wrong(attr, "a float")),
        }
    }

    /// The error of an attribute that is something else than it must be.
    pub(in super::super) fn wrong(&self, attr: &str, want: &str) -> ModelError {
        ModelError::Attribute {
            node: self.name.clone(),
            op: self.op.clone(),
            attr: attr.into(),
            reason: format!("must be {want}"),
        }
    }

    /// Removes and returns an attribute that must be a name.
    pub(in super::super) fn take_name(&mut self, attr: &str) -> Result<Option<String>, ModelError> {
        match self.take(attr) {
            None => Ok(None),
            Some(Attr::Str(v)) => Ok(Some(v.to_string())),
            Some(_) => Err(self.wrong(attr, "a string")),
        }
    }

    /// Removes and returns an attribute that is ONNX's number of a dtype.
    pub(in super::super) fn take_dtype(
        &mut self,
        attr: &str,
    ) -> Result<Option<DType>, ImportFailure> {
        let Some(code) = self.take_int(attr)? else {
            return Ok(None);
        };
        let code = i32::try_from(code).map_err(|e| e.to_string());
        let dtype = code.and_then(tensor::dtype);
        dtype
            .map(Some)
            .map_err(|reason| unsupported(format!("attribute '{attr}': {reason}")))
    }

    /// Removes and returns a boolean attribute, which ONNX writes as an integer.
    pub(in super::super) fn take_flag(
        &mut self,
        attr: &str,
        default: bool,
    ) -> Result<bool, ModelError> {
        Ok(self.take_int(attr)?.map_or(default, |v| v != 0))
    }

    /// Fails where an attribute is left that nothing has taken.
    pub(in super::super) fn no_more_attributes(&self) -> Result<(), ImportFailure> {
        match self.attrs.0.keys().next() {
            None => Ok(()),
            Some(attr) => Err(unsupported(format!("attribute '{attr}'"))),
        }
    }

    /// Removes and returns an attribute that must be a list of floats.
    pub(in super::super) fn take_floats(
        &mut self,
        attr: &str,
    ) -> Result<Option<Vec<f32>>, ModelError> {
        match self.take(attr) {
            None => Ok(None),
            Some(Attr::Floats(v)) => Ok(Some(v)),
            // An empty list has no field that tells its type.
            Some(Attr::Ints(v)) if v.is_empty() => Ok(None),
            Some(_) => Err(self.wrong(attr, "a list of floats")),
        }
    }

    /// Removes and returns an attribute that must be a list of strings.
    pub(in super::super) fn take_strings(
        &mut self,
        attr: &str,
    ) -> Result<Option<Vec<String>>, ModelError> {
        match self.take(attr) {
            None => Ok(None),
            Some(Attr::Strs(v)) => Ok(Some(v.iter().map(|s| s.to_string()).collect())),
            Some(Attr::Ints(v)) if v.is_empty() => Ok(None),
            Some(_) => Err(self.wrong(attr, "a list of strings")),
        }
    }

    /// Removes and returns an attribute that must be a tensor.
    pub(in super::super) fn take_tensor(
        &mut self,
        attr: &str,
    ) -> Result<Option<Tensor>, ModelError> {
        match self.take(attr) {
            None => Ok(None),
            Some(Attr::Tensor(t)) => Ok(Some(t)),
            Some(_) => Err(self.wrong(attr, "a tensor")),
        }
    }

    /// Numbers that are given as a list of floats, or as a tensor of the attribute `NAME_as_tensor`.
    pub(in super::super) fn take_numbers(
        &mut self,
        attr: &str,
    ) -> Result<Option<Vec<f64>>, ModelError> {
        let wide = format!("{attr}_as_tensor");
        if let Some(t) = self.take_tensor(&wide)? {
            let numbers = match t.dtype() {
                DType::F64 => t.as_slice::<f64>().map(<[f64]>::to_vec).ok(),
                DType::F32 => t
                    .as_slice()
                    .map(|v: &[f32]| v.iter().map(|x| f64::from(*x)).collect())
                    .ok(),
                _ => None,
            };
            return numbers
                .map(Some)
                .ok_or_else(|| self.wrong(&wide, "a tensor of floats"));
        }
        let floats = self.take_floats(attr)?;
        Ok(floats.map(|v| v.into_iter().map(f64::from).collect()))
    }

    /// The class labels, which are integers or strings.
    pub(in super::super) fn take_labels(
        &mut self,
        ints: &str,
        strings: &str,
    ) -> Result<Option<Tensor>, ModelError> {
        let numbers = self.take_ints(ints)?.filter(|v| !v.is_empty());
        let words = self.take_strings(strings)?.filter(|v| !v.is_empty());
        let made = match (numbers, words) {
            (None, None) => return Ok(None),
            (Some(v), None) => Tensor::from_slice(&[v.len()], &v),
            (None, Some(v)) => Tensor::from_strings(&[v.len()], &v),
            (Some(_), Some(_)) => return Err(self.error("has class labels of both types")),
        };
        made.map(Some).map_err(|e| self.error(e.to_string()))
    }
}
