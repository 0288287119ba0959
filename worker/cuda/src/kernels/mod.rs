//! The kernels of the device: for an op with its attributes and dtypes, a source, and how a launch calls it.
//!
//! A source is the prelude, a few definitions that the op decides, and the text of its family. It depends on op, dtypes and
//! form only; shapes and attributes are arguments. So there are few sources, and each is compiled once for an architecture.
//!
//! ```text
//! elementwise   unary, binary, comparisons, choice, casts        one thread per element
//! movement      views, strided copies, gather                    one thread per element
//! product       MatMul, Gemm, FusedGemm                          tiles, ascending over K
//! attention     FusedAttention                                   a block per four rows of queries, keys ascending
//! blocks        MatMulNBits                                      tiles, or one thread per element
//! conv          Conv, FusedConv                                  tiles, ascending over channels and taps
//! pool          pools over windows                               one thread per element
//! tiles         the tiles of products and convolutions
//! rotary        RotaryEmbedding                                  one thread per element
//! rows          reductions, softmax, normalisations, planes      a block per row, a fixed tree
//! ```

pub mod args;
mod families;
mod launch;
pub mod listing;
mod source;

pub use self::families::template;
pub use self::launch::{Call, LaunchSignature, OperandView, Place, THREADS, Template, Work};
pub use self::source::FUNCTIONS;
