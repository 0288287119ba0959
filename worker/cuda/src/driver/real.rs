//! NVIDIA's driver.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use convoke_common::error::{Code, Error, Result};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};

use super::cache::{Cache, default_place};
use super::{
    Driver, DriverError, DriverResult, EventId, FunctionId, Functions, StreamId, compile, probe,
};
use crate::kernels::{FUNCTIONS, THREADS, args::Arguments};

/// The least compute capability for which kernels are compiled.
const LEAST_ARCHITECTURE: u32 = 80;

/// One GPU, by its primary context.
pub struct CudaDriver {
    device: sys::CUdevice,
    context: sys::CUcontext,
    architecture: u32,
    name: String,
    compiler: (i32, i32),
    cache: Option<Cache>,
    /// Functions by the hash of their source.
    functions: Mutex<HashMap<blake3::Hash, Functions>>,
}

// SAFETY: the context is a handle that any thread may make current, as every call here does first.
unsafe impl Send for CudaDriver {}
// SAFETY: as above; the driver's calls may be made by several threads at once.
unsafe impl Sync for CudaDriver {}

/// The driver's words for a result.
fn words(result: CUresult) -> String {
    let read = |get: unsafe fn(CUresult, *mut *const c_char) -> CUresult| {
        let mut text = ptr::null();
        // SAFETY: the pointer is to a pointer of this frame; the text that it gets is the driver's and constant.
        unsafe {
            match get(result, &mut text) {
                CUresult::CUDA_SUCCESS if !text.is_null() => {
                    CStr::from_ptr(text).to_string_lossy().into_owned()
                }
                _ => format!("{result:?}"),
            }
        }
    };
    format!(
        "{} ({})",
        read(sys::cuGetErrorName),
        read(sys::cuGetErrorString)
    )
}

/// Whether a context that returned this will never work again.
fn is_lost(result: CUresult) -> bool {
    use CUresult::*;
    matches!(
        result,
        CUDA_ERROR_DEINITIALIZED
            | CUDA_ERROR_ECC_UNCORRECTABLE
            | CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUDA_ERROR_ILLEGAL_ADDRESS
            | CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUDA_ERROR_INVALID_PC
            | CUDA_ERROR_LAUNCH_FAILED
            | CUDA_ERROR_LAUNCH_TIMEOUT
            | CUDA_ERROR_MISALIGNED_ADDRESS
            | CUDA_ERROR_ASSERT
            | CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUDA_ERROR_CONTAINED
            | CUDA_ERROR_TENSOR_MEMORY_LEAK
            | CUDA_ERROR_MPS_CLIENT_TERMINATED
            | CUDA_ERROR_EXTERNAL_DEVICE
            | CUDA_ERROR_UNKNOWN
    )
}

fn checked(call: &str, result: CUresult) -> DriverResult<()> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        failed => Err(DriverError {
            message: format!("{call}: {}", words(failed)),
            out_of_memory: failed == CUresult::CUDA_ERROR_OUT_OF_MEMORY,
            lost: is_lost(failed),
        }),
    }
}

/// Calls the driver and names the call in the error.
macro_rules! call {
    ($name:ident($($arg:expr),* $(,)?)) => {
        checked(stringify!($name), sys::$name($($arg),*))
    };
}

/// The error of a device that cannot be opened.
fn none(why: impl std::fmt::Display, advice: &str) -> Error {
    Error::new(Code::NotFound, format!("no CUDA device: {why}")).advise(advice)
}

const CHECK_DRIVER: &str =
    "check that nvidia-smi lists the GPU on this machine, or in this container";

impl CudaDriver {
    /// Opens the GPU of this number.
    ///
    /// # Errors
    /// `not_found` if there is no driver, no compiler, no such GPU, or no GPU that takes the compiler's output; `io`
    /// where compiled kernels are kept in a folder that is not safe.
    pub fn open(number: u32) -> Result<CudaDriver> {
        probe::driver()?;
        probe::compiler()?;
        let unusable = |e: DriverError| none(e.message, CHECK_DRIVER);
        let device = find(number).map_err(unusable)?.ok_or_else(|| {
            none(
                format!("this machine has no GPU of number {number}"),
                "nvidia-smi --list-gpus shows their numbers; CUDA_VISIBLE_DEVICES hides some",
            )
        })?;
        let (name, architecture) = describe(device).map_err(unusable)?;
        if architecture < LEAST_ARCHITECTURE {
            let why =
                format!("{name} has compute capability {architecture}, below {LEAST_ARCHITECTURE}");
            return Err(none(why, "use a GPU of the Ampere generation or later"));
        }
        let cache = match default_place() {
            Some(at) => Cache::open(&at)?,
            None => None,
        };
        let compiler = compile::version().map_err(unusable)?;
        let opened = CudaDriver {
            device,
            context: retain(device).map_err(unusable)?,
            architecture,
            name,
            compiler,
            cache,
            functions: Mutex::default(),
        };
        opened.try_out()?;
        Ok(opened)
    }

    /// Compiles and loads a kernel that does nothing: the compiler may not know the GPU, and the driver may be older than the
    /// compiler.
    fn try_out(&self) -> Result<()> {
        let entry = FUNCTIONS[0].to_string_lossy();
        let source = format!("extern \"C\" __global__ void {entry}() {{}}\n");
        self.functions(&source, 1).map(drop).map_err(|e| {
            let (major, minor) = self.compiler;
            let why = format!(
                "{} (sm_{}) does not run what NVRTC {major}.{minor} compiles: {}",
                self.name, self.architecture, e.message
            );
            none(
                why,
                "use an NVRTC that knows the GPU and is no newer than the driver: NVRTC 13 needs driver 580 or later",
            )
        })
    }

    /// Makes the context current on this thread, which every call needs.
    fn enter(&self) -> DriverResult<()> {
        // SAFETY: the context is retained as long as `self`.
        unsafe { call!(cuCtxSetCurrent(self.context)) }
    }

    /// Loads a source, compiled from the cache where it is there. A file of the cache that the driver refuses is compiled
    /// anew.
    fn made(&self, source: &str, count: usize, hash: &blake3::Hash) -> DriverResult<Functions> {
        let name = format!("{hash}-sm_{}.cubin", self.architecture);
        if let Some((cache, cubin)) = self.cache.as_ref().and_then(|c| Some((c, c.get(&name)?))) {
            match self.load(&cubin, count) {
                Err(e) if !e.lost && !e.out_of_memory => {
                    tracing::warn!(error = e.message, name, "a kept CUDA kernel is refused");
                    cache.remove(&name);
                }
                loaded => return loaded,
            }
        }
        let cubin = compile::compile(source, self.architecture)?.cubin;
        let loaded = self.load(&cubin, count)?;
        if let Some(cache) = &self.cache {
            cache.put(&name, &cubin);
        }
        Ok(loaded)
    }

    /// Loads a compiled source. Modules stay loaded as long as the context.
    fn load(&self, cubin: &[u8], count: usize) -> DriverResult<Functions> {
        let mut module = ptr::null_mut();
        self.enter()?;
        // SAFETY: the cubin is complete, as the compiler or the cache gave it.
        unsafe { call!(cuModuleLoadData(&mut module, cubin.as_ptr().cast()))? };
        let found = FUNCTIONS.iter().take(count).map(|name| {
            let mut function = ptr::null_mut();
            // SAFETY: the module was loaded above, the pointer is to a handle of this frame, and the name ends with a zero byte.
            unsafe { call!(cuModuleGetFunction(&mut function, module, name.as_ptr()))? };
            Ok(FunctionId(function as usize))
        });
        let found: DriverResult<Functions> = found.collect();
        found.inspect_err(|_| {
            // SAFETY: the module was loaded above, and no function of it is used.
            let _ = unsafe { call!(cuModuleUnload(module)) };
        })
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        // SAFETY: the context was retained once, and every queue holds the driver, so that none is left.
        let _ = unsafe { call!(cuDevicePrimaryCtxRelease_v2(self.device)) };
    }
}

/// The GPU of this number; `None` where there are fewer.
fn find(number: u32) -> DriverResult<Option<sys::CUdevice>> {
    let (mut count, mut device) = (0, 0);
    // SAFETY: the driver was found to have these calls; the pointers are to integers of this frame.
    unsafe {
        call!(cuInit(0))?;
        call!(cuDeviceGetCount(&mut count))?;
        let Some(number) = c_int::try_from(number).ok().filter(|n| *n < count) else {
            return Ok(None);
        };
        call!(cuDeviceGet(&mut device, number))?;
    }
    Ok(Some(device))
}

/// The GPU's name and compute capability.
fn describe(device: sys::CUdevice) -> DriverResult<(String, u32)> {
    let mut name = [0 as c_char; 256];
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the device exists; the name has room for its length and is zeroed; the others are integers of this frame.
    let name = unsafe {
        call!(cuDeviceGetName(
            name.as_mut_ptr(),
            name.len() as c_int - 1,
            device
        ))?;
        call!(cuDeviceGetAttribute(
            &mut major,
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            device
        ))?;
        call!(cuDeviceGetAttribute(
            &mut minor,
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            device
        ))?;
        CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
    };
    Ok((name, major.unsigned_abs() * 10 + minor.unsigned_abs()))
}

/// Retains the primary context, whose memory pool keeps memory that is given back to it; the worker's ledger bounds its
/// use.
fn retain(device: sys::CUdevice) -> DriverResult<sys::CUcontext> {
    let (mut context, mut pool) = (ptr::null_mut(), ptr::null_mut());
    let mut kept = u64::MAX;
    // SAFETY: the device exists, and the pointer is to a handle of this frame.
    unsafe { call!(cuDevicePrimaryCtxRetain(&mut context, device))? };
    // SAFETY: the context was retained above; the pointers are to variables of this frame, the last one of the type that
    // the attribute has.
    let set = unsafe {
        call!(cuCtxSetCurrent(context))
            .and_then(|()| call!(cuDeviceGetDefaultMemPool(&mut pool, device)))
            .and_then(|()| {
                call!(cuMemPoolSetAttribute(
                    pool,
                    sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                    ptr::from_mut(&mut kept).cast()
                ))
            })
    };
    set.inspect_err(|_| {
        // SAFETY: the context was retained once, and is not used after this.
        let _ = unsafe { call!(cuDevicePrimaryCtxRelease_v2(device)) };
    })?;
    Ok(context)
}

impl Driver for CudaDriver {
    fn name(&self) -> &str {
        &self.name
    }

    fn stream(&self) -> DriverResult<StreamId> {
        let mut stream = ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        self.enter()?;
        // SAFETY: the pointer is to a handle of this frame.
        unsafe { call!(cuStreamCreate(&mut stream, flags))? };
        Ok(StreamId(stream as usize))
    }

    fn end_stream(&self, stream: StreamId) {
        // SAFETY: the stream came from `stream`, and the driver ends it after its work.
        let _ = self
            .enter()
            .and_then(|()| unsafe { call!(cuStreamDestroy_v2(stream.0 as sys::CUstream)) });
    }

    fn allocate(&self, stream: StreamId, bytes: usize) -> DriverResult<u64> {
        let mut memory = 0;
        self.enter()?;
        // SAFETY: the pointer is to an address of this frame, and the stream is alive.
        unsafe {
            call!(cuMemAllocAsync(
                &mut memory,
                bytes,
                stream.0 as sys::CUstream
            ))?
        };
        Ok(memory)
    }

    unsafe fn free(&self, stream: StreamId, memory: u64) {
        // SAFETY: the caller has the memory from `allocate`, and gives it back once.
        let _ = self
            .enter()
            .and_then(|()| unsafe { call!(cuMemFreeAsync(memory, stream.0 as sys::CUstream)) });
    }

    fn pin(&self, bytes: usize) -> DriverResult<*mut u8> {
        let mut memory = ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        self.enter()?;
        // SAFETY: the pointer is to a pointer of this frame.
        unsafe { call!(cuMemHostAlloc(&mut memory, bytes, flags))? };
        Ok(memory.cast())
    }

    unsafe fn unpin(&self, memory: *mut u8) {
        // SAFETY: the caller has the memory from `pin`, and nothing uses it.
        let _ = self
            .enter()
            .and_then(|()| unsafe { call!(cuMemFreeHost(memory.cast())) });
    }

    unsafe fn copy_in(
        &self,
        stream: StreamId,
        to: u64,
        from: *const u8,
        bytes: usize,
    ) -> DriverResult<()> {
        self.enter()?;
        // SAFETY: the caller keeps both sides until the copy has ended.
        unsafe {
            call!(cuMemcpyHtoDAsync_v2(
                to,
                from.cast(),
                bytes,
                stream.0 as sys::CUstream
            ))
        }
    }

    unsafe fn copy_out(
        &self,
        stream: StreamId,
        to: *mut u8,
        from: u64,
        bytes: usize,
    ) -> DriverResult<()> {
        self.enter()?;
        // SAFETY: the caller keeps both sides until the copy has ended.
        unsafe {
            call!(cuMemcpyDtoHAsync_v2(
                to.cast(),
                from,
                bytes,
                stream.0 as sys::CUstream
            ))
        }
    }

    unsafe fn launch(
        &self,
        stream: StreamId,
        function: FunctionId,
        blocks: u32,
        arguments: &Arguments,
    ) -> DriverResult<()> {
        let mut parameters: [*mut c_void; 1] = [ptr::from_ref(arguments).cast_mut().cast()];
        self.enter()?;
        // SAFETY: the kernel has one parameter of the type `Arguments`, which the driver copies before it returns; the
        // caller answers for what the arguments name.
        unsafe {
            call!(cuLaunchKernel(
                function.0 as sys::CUfunction,
                blocks,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                stream.0 as sys::CUstream,
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            ))
        }
    }

    fn record(&self, stream: StreamId) -> DriverResult<EventId> {
        let mut event = ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32
            | sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        self.enter()?;
        // SAFETY: the pointer is to a handle of this frame.
        unsafe { call!(cuEventCreate(&mut event, flags))? };
        let made = EventId(event as usize);
        // SAFETY: the event was made above, and the stream is alive.
        let recorded = unsafe { call!(cuEventRecord(event, stream.0 as sys::CUstream)) };
        recorded
            .map(|()| made)
            .inspect_err(|_| self.end_event(made))
    }

    fn order(&self, stream: StreamId, event: EventId) -> DriverResult<()> {
        self.enter()?;
        // SAFETY: event and stream are alive.
        unsafe {
            call!(cuStreamWaitEvent(
                stream.0 as sys::CUstream,
                event.0 as sys::CUevent,
                0
            ))
        }
    }

    fn wait_for(&self, event: EventId) -> DriverResult<()> {
        self.enter()?;
        // SAFETY: the event is alive.
        unsafe { call!(cuEventSynchronize(event.0 as sys::CUevent)) }
    }

    fn end_event(&self, event: EventId) {
        // SAFETY: the event came from `record`; the driver keeps it until nothing waits for it.
        let _ = self
            .enter()
            .and_then(|()| unsafe { call!(cuEventDestroy_v2(event.0 as sys::CUevent)) });
    }

    fn functions(&self, source: &str, count: usize) -> DriverResult<Functions> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{:?} {:?}\n", self.compiler, compile::OPTIONS).as_bytes());
        let hash = hasher.update(source.as_bytes()).finalize();
        let known = self
            .functions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&hash)
            .cloned();
        if let Some(functions) = known {
            return Ok(functions);
        }
        let made = self.made(source, count, &hash)?;
        let mut functions = self
            .functions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Ok(functions.entry(hash).or_insert(made).clone())
    }
}
