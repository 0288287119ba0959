//! The methods of all ops of the registry, a file for each of its families.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

mod binary;
mod conv;
mod function;
mod index;
mod learn;
mod matmul;
mod movement;
mod norm;
pub mod options;
mod pool;
mod position;
mod quantised;
mod random;
mod recurrent;
mod reduce;
mod resize;
mod scan;
mod shape;
mod signal;
mod slice;
mod text;
mod unary;
mod vision;
