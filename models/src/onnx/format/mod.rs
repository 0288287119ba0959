//! The format of ONNX files: the wire format of protobuf, the messages of ONNX, and the reader that takes a model's
//! structure out of a file and leaves its payloads there.

pub(super) mod proto;
pub(super) mod skeleton;
pub(super) mod wire;
