//! Whether the driver and the compiler are there. The bindings panic where a library or a symbol is missing, so both are
//! looked for before the first call.

use convoke_common::error::{Code, Error, Result};
use cudarc::{driver, nvrtc};

/// A library, what it is for, and the symbols that must be in it.
struct Needed {
    library: &'static str,
    symbols: &'static [&'static str],
    advice: &'static str,
}

const DRIVER: Needed = Needed {
    library: "libcuda.so.1",
    symbols: &[
        "cuInit",
        "cuDeviceGet",
        "cuDeviceGetCount",
        "cuDeviceGetName",
        "cuDeviceGetAttribute",
        "cuDevicePrimaryCtxRetain",
        "cuDevicePrimaryCtxRelease_v2",
        "cuDeviceGetDefaultMemPool",
        "cuMemPoolSetAttribute",
        "cuCtxSetCurrent",
        "cuStreamCreate",
        "cuStreamDestroy_v2",
        "cuStreamWaitEvent",
        "cuEventCreate",
        "cuEventRecord",
        "cuEventSynchronize",
        "cuEventDestroy_v2",
        "cuMemAllocAsync",
        "cuMemFreeAsync",
        "cuMemHostAlloc",
        "cuMemFreeHost",
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuModuleUnload",
        "cuLaunchKernel",
        "cuGetErrorName",
        "cuGetErrorString",
    ],
    advice: "install NVIDIA's driver (580 or later for CUDA 13), or start the container with its GPUs (--gpus all)",
};

const COMPILER: Needed = Needed {
    library: "libnvrtc.so.13 (or .12)",
    symbols: &[
        "nvrtcVersion",
        "nvrtcCreateProgram",
        "nvrtcCompileProgram",
        "nvrtcDestroyProgram",
        "nvrtcGetProgramLog",
        "nvrtcGetProgramLogSize",
        "nvrtcGetPTX",
        "nvrtcGetPTXSize",
        "nvrtcGetCUBIN",
        "nvrtcGetCUBINSize",
    ],
    advice: "install CUDA's runtime compiler (package cuda-nvrtc, or nvidia-cuda-nvrtc of PyPI) and name its folder in LD_LIBRARY_PATH",
};

impl Needed {
    fn missing(&self, symbol: Option<&str>) -> Error {
        let what = match symbol {
            None => format!("{} not found", self.library),
            Some(symbol) => format!("{} has no {symbol}", self.library),
        };
        Error::new(Code::NotFound, format!("no CUDA device: {what}")).advise(self.advice)
    }

    /// Fails where the library is not there, or lacks one of the symbols; `has` tells whether it has one.
    fn check(&self, there: bool, has: impl Fn(&[u8]) -> bool) -> Result<()> {
        if !there {
            return Err(self.missing(None));
        }
        match self.symbols.iter().find(|s| !has(s.as_bytes())) {
            Some(symbol) => Err(self.missing(Some(symbol))),
            None => Ok(()),
        }
    }
}

/// The type as which a symbol is looked up; it is never called as such.
type AnyFunction = unsafe extern "C" fn();

/// Fails where the driver is not there, or lacks a call.
pub fn driver() -> Result<()> {
    // SAFETY: loads NVIDIA's library, whose initialisers have no preconditions.
    let there = unsafe { driver::sys::is_culib_present() };
    DRIVER.check(there, |symbol| {
        // SAFETY: the library is there, as was seen, and the symbol is looked up, not called.
        unsafe { driver::sys::culib().get::<AnyFunction>(symbol).is_ok() }
    })
}

/// Fails where the compiler is not there, or lacks a call.
pub fn compiler() -> Result<()> {
    // SAFETY: loads NVIDIA's library, whose initialisers have no preconditions.
    let there = unsafe { nvrtc::sys::is_culib_present() };
    COMPILER.check(there, |symbol| {
        // SAFETY: the library is there, as was seen, and the symbol is looked up, not called.
        unsafe { nvrtc::sys::culib().get::<AnyFunction>(symbol).is_ok() }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

    use super::*;

    #[test]
    fn what_is_missing_is_one_sentence() {
        let none = DRIVER.check(false, |_| true).unwrap_err();
        assert_eq!(none.message, "no CUDA device: libcuda.so.1 not found");
        assert!(none.advice.contains("driver"), "{none}");
        let old = COMPILER.check(true, |s| s != b"nvrtcGetCUBIN").unwrap_err();
        assert!(old.message.ends_with("has no nvrtcGetCUBIN"), "{old}");
        assert!(DRIVER.check(true, |_| true).is_ok());
    }
}
