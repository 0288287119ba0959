//! Prints one digest over the results of the element-wise, reducing, normalizing, pooling, moving and transforming kernels on
//! fixed data. Equal digests on two machines, natively or emulated, mean equal bits:
//!
//! ```text
//! cargo build --release -p convoke-kernels --example digest_elementwise
//! target/release/examples/digest_elementwise
//! qemu-x86_64 -cpu Haswell target/release/examples/digest_elementwise
//! ```

mod digest;
mod floats;
mod integers;
mod learned;
mod moves;
mod quantised;
mod signals;

use convoke_kernels::element::{bf16, f16};
use convoke_kernels::{Exec, KernelError};
use digest::Digest;
use std::sync::atomic::AtomicBool;

fn main() -> std::result::Result<(), KernelError> {
    let running = AtomicBool::new(false);
    let exec = Exec::single(&running);
    let mut digest = Digest {
        all: 0xcbf2_9ce4_8422_2325,
        verbose: std::env::args().any(|a| a == "--verbose"),
    };
    floats::floats::<f32>(&exec, &mut digest)?;
    floats::floats::<f64>(&exec, &mut digest)?;
    floats::floats::<f16>(&exec, &mut digest)?;
    floats::floats::<bf16>(&exec, &mut digest)?;
    floats::interpolations::<f32>(&exec, &mut digest)?;
    floats::interpolations::<f64>(&exec, &mut digest)?;
    integers::integers::<i8>(&exec, &mut digest)?;
    integers::integers::<i16>(&exec, &mut digest)?;
    integers::integers::<i32>(&exec, &mut digest)?;
    integers::integers::<i64>(&exec, &mut digest)?;
    integers::integers::<u8>(&exec, &mut digest)?;
    integers::integers::<u16>(&exec, &mut digest)?;
    integers::integers::<u32>(&exec, &mut digest)?;
    integers::integers::<u64>(&exec, &mut digest)?;
    moves::movement(&exec, &mut digest)?;
    quantised::quantised(&exec, &mut digest)?;
    signals::signals::<f32>(&exec, &mut digest)?;
    signals::signals::<f64>(&exec, &mut digest)?;
    signals::signals::<f16>(&exec, &mut digest)?;
    signals::cached_attention(&exec, &mut digest)?;
    learned::ensembles(&exec, &mut digest)?;
    println!("{:016x}", digest.all);
    Ok(())
}
