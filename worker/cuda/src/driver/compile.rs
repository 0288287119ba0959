//! Compiling a source for an architecture, by NVRTC.
//!
//! The options are part of the numerics profile: subnormals are kept, division and square root are rounded correctly, and
//! no product is fused with a sum that the source does not fuse.

use std::ffi::{CStr, CString, c_char};

use cudarc::nvrtc::{result, sys};

use super::{DriverError, DriverResult};

/// The options of every compilation, but for the architecture.
pub const OPTIONS: [&str; 5] = [
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--fmad=false",
    "--std=c++17",
];

/// A compiled source.
pub struct Compiled {
    /// The compiled code that the GPU loads.
    pub cubin: Vec<u8>,
    /// The intermediate code, as text.
    pub ptx: String,
}

/// The compiler's version, major and minor; it must have been found by [`super::probe::compiler`].
pub fn version() -> DriverResult<(i32, i32)> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both pointers are to integers of this frame.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) }
        .result()
        .map_err(|e| failed("nvrtcVersion", &format!("{:?}", e.0)))?;
    Ok((major, minor))
}

fn failed(call: &str, why: &str) -> DriverError {
    DriverError {
        message: format!("{call}: {why}"),
        out_of_memory: false,
        lost: false,
    }
}

/// A program of the compiler, with the source that it may refer to.
struct Program {
    handle: sys::nvrtcProgram,
    _source: CString,
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the handle was made by `create_program` and is destroyed here only.
        let _ = unsafe { result::destroy_program(self.handle) };
    }
}

impl Program {
    fn new(source: &str) -> DriverResult<Program> {
        let source =
            CString::new(source).map_err(|_| failed("nvrtc", "a source with a zero byte"))?;
        let handle = result::create_program(&source, Some(c"convoke.cu"))
            .map_err(|e| failed("nvrtcCreateProgram", &format!("{:?}", e.0)))?;
        Ok(Program {
            handle,
            _source: source,
        })
    }

    fn log(&self) -> String {
        // SAFETY: the program is alive.
        match unsafe { result::get_program_log(self.handle) } {
            Ok(log) => text(&log),
            Err(_) => String::new(),
        }
    }

    fn cubin(&self) -> DriverResult<Vec<u8>> {
        let mut size = 0;
        let of = |e: result::NvrtcError| failed("nvrtcGetCUBIN", &format!("{:?}", e.0));
        // SAFETY: the program is alive, and the pointer is to a number of this frame.
        unsafe { sys::nvrtcGetCUBINSize(self.handle, &mut size) }
            .result()
            .map_err(of)?;
        let mut cubin = vec![0u8; size];
        // SAFETY: the buffer has as many bytes as the compiler asked for.
        unsafe { sys::nvrtcGetCUBIN(self.handle, cubin.as_mut_ptr().cast()) }
            .result()
            .map_err(of)?;
        Ok(cubin)
    }
}

/// The text up to the first zero byte.
fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|c| *c as u8).chain([0]).collect();
    let text = CStr::from_bytes_until_nul(&bytes).map(CStr::to_string_lossy);
    text.map(|t| t.into_owned()).unwrap_or_default()
}

/// Compiles a source for GPUs of compute capability `architecture`, which is 90 for 9.0.
pub fn compile(source: &str, architecture: u32) -> DriverResult<Compiled> {
    let program = Program::new(source)?;
    let mut options: Vec<String> = OPTIONS.iter().map(|o| o.to_string()).collect();
    options.push(format!("--gpu-architecture=sm_{architecture}"));
    // SAFETY: the program is alive.
    unsafe { result::compile_program(program.handle, &options) }.map_err(|e| {
        let log = program.log();
        failed(
            "nvrtcCompileProgram",
            &format!("{:?} for sm_{architecture}: {log}", e.0),
        )
    })?;
    // SAFETY: the program is alive and was compiled.
    let ptx = unsafe { result::get_ptx(program.handle) }
        .map_err(|e| failed("nvrtcGetPTX", &format!("{:?}", e.0)))?;
    Ok(Compiled {
        cubin: program.cubin()?,
        ptx: text(&ptx),
    })
}
