//! Files of arrays: those of numpy, and safetensors.

pub mod numpy;
pub(crate) mod safetensors;
