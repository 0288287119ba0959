//! A driver without a GPU. Memory is the host's, filled with NaN when it is taken and when it is given back; each stream is
//! a thread; and the sources that NVRTC compiles for a GPU are compiled by g++ for the CPU.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};

use convoke_cuda::driver::{
    Driver, DriverError, DriverResult, EventId, FunctionId, Functions, StreamId,
};
use convoke_cuda::kernels::FUNCTIONS;
use convoke_cuda::kernels::args::Arguments;

type Task = Box<dyn FnOnce() + Send>;

/// Whether an event has come.
#[derive(Default)]
struct Event(Mutex<bool>, Condvar);

impl Event {
    fn come(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    fn wait(&self) {
        let mut came = self.0.lock().unwrap();
        while !*came {
            came = self.1.wait(came).unwrap();
        }
    }
}

/// Where waiting for events is held up.
#[derive(Default)]
struct Gate {
    held: bool,
    /// Whether somebody waits for an event that has come.
    waited: bool,
}

#[derive(Default)]
struct Handles {
    streams: HashMap<usize, Sender<Task>>,
    events: HashMap<usize, Arc<Event>>,
    functions: HashMap<String, Functions>,
}

/// The driver. Its name is part of the names of the files of compiled sources.
pub struct Emulated {
    name: String,
    handles: Mutex<Handles>,
    next: AtomicUsize,
    /// Bytes of device memory by address.
    memory: Arc<Mutex<HashMap<u64, usize>>>,
    taken: AtomicUsize,
    pinned: Mutex<HashMap<usize, usize>>,
    lost: AtomicBool,
    refuses_events: AtomicBool,
    gate: (Mutex<Gate>, Condvar),
}

type Run = unsafe extern "C" fn(*const Arguments, u32);

impl Emulated {
    pub fn new(name: &str) -> Emulated {
        Emulated {
            name: format!("convoke-cuda-{name}-{}", std::process::id()),
            handles: Mutex::default(),
            next: AtomicUsize::new(1),
            memory: Arc::default(),
            taken: AtomicUsize::new(0),
            pinned: Mutex::default(),
            lost: AtomicBool::new(false),
            refuses_events: AtomicBool::new(false),
            gate: Default::default(),
        }
    }

    /// Bytes of device memory that were taken so far.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::SeqCst)
    }

    /// From now on no event is recorded, with an error of a context that works.
    pub fn refuse_events(&self) {
        self.refuses_events.store(true, Ordering::SeqCst);
    }

    /// From now on whoever waits for an event waits until [`Emulated::release`], as behind a kernel that hangs.
    pub fn hold(&self) {
        *self.gate.0.lock().unwrap() = Gate {
            held: true,
            waited: false,
        };
    }

    /// Waits until somebody is held.
    pub fn held(&self) {
        let gate = self.gate.0.lock().unwrap();
        drop(self.gate.1.wait_while(gate, |gate| !gate.waited).unwrap());
    }

    /// Lets those who are held go on.
    pub fn release(&self) {
        self.gate.0.lock().unwrap().held = false;
        self.gate.1.notify_all();
    }

    /// From now on every event comes with the error of a context that is lost.
    pub fn lose(&self) {
        self.lost.store(true, Ordering::SeqCst);
    }

    fn id(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn enqueue(&self, stream: StreamId, task: impl FnOnce() + Send + 'static) {
        let handles = self.handles.lock().unwrap();
        handles.streams[&stream.0].send(Box::new(task)).unwrap();
    }

    fn event(&self, event: EventId) -> Arc<Event> {
        self.handles.lock().unwrap().events[&event.0].clone()
    }

    fn compile(&self, source: &str, count: usize) -> Functions {
        let file = format!("{}-{}.cpp", self.name, self.id());
        let at = std::env::temp_dir().join(file);
        let parts = [include_str!("host.h"), source, include_str!("run.h")];
        std::fs::write(&at, parts.concat()).unwrap();
        let made = at.with_extension("so");
        let mut compiler = Command::new("g++");
        compiler.args([
            "-O0",
            "-std=c++17",
            "-ffp-contract=off",
            "-shared",
            "-fPIC",
            "-w",
            "-o",
        ]);
        let done = compiler.arg(&made).arg(&at).output().unwrap();
        assert!(
            done.status.success(),
            "{}\n{source}",
            String::from_utf8_lossy(&done.stderr)
        );
        let path = CString::new(made.to_str().unwrap()).unwrap();
        // SAFETY: the library was compiled above and has no initialisers.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null());
        let functions = FUNCTIONS.iter().take(count).map(|name| {
            // SAFETY: the library was opened above, and the name ends with a zero byte.
            let function = unsafe { libc::dlsym(library, name.as_ptr()) };
            assert!(!function.is_null());
            FunctionId(function as usize)
        });
        let functions = functions.collect();
        // A loaded library does not need its file any more.
        for file in [&at, &made] {
            let _ = std::fs::remove_file(file);
        }
        functions
    }
}

fn of_layout(bytes: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(bytes.max(1), 64).unwrap()
}

/// Takes memory that is all NaN.
fn take(bytes: usize) -> *mut u8 {
    // SAFETY: the layout has at least one byte, and the memory is as long.
    unsafe {
        let at = std::alloc::alloc(of_layout(bytes));
        at.write_bytes(0xff, bytes);
        at
    }
}

impl Driver for Emulated {
    fn name(&self) -> &str {
        &self.name
    }

    fn stream(&self) -> DriverResult<StreamId> {
        let (tasks, queued) = channel::<Task>();
        std::thread::spawn(move || queued.into_iter().for_each(|task| task()));
        let id = self.id();
        self.handles.lock().unwrap().streams.insert(id, tasks);
        Ok(StreamId(id))
    }

    fn end_stream(&self, stream: StreamId) {
        self.handles.lock().unwrap().streams.remove(&stream.0);
    }

    fn allocate(&self, _: StreamId, bytes: usize) -> DriverResult<u64> {
        let at = take(bytes) as u64;
        self.memory.lock().unwrap().insert(at, bytes);
        self.taken.fetch_add(bytes, Ordering::SeqCst);
        Ok(at)
    }

    unsafe fn free(&self, stream: StreamId, memory: u64) {
        let all = self.memory.clone();
        self.enqueue(stream, move || {
            let bytes = all.lock().unwrap().remove(&memory).expect("freed twice");
            // SAFETY: the memory came from `allocate`, and was freed once.
            unsafe {
                (memory as *mut u8).write_bytes(0xff, bytes);
                std::alloc::dealloc(memory as *mut u8, of_layout(bytes));
            }
        });
    }

    fn pin(&self, bytes: usize) -> DriverResult<*mut u8> {
        let at = take(bytes);
        self.pinned.lock().unwrap().insert(at as usize, bytes);
        Ok(at)
    }

    unsafe fn unpin(&self, memory: *mut u8) {
        let bytes = self
            .pinned
            .lock()
            .unwrap()
            .remove(&(memory as usize))
            .unwrap();
        // SAFETY: the memory came from `pin`, and was given back once.
        unsafe { std::alloc::dealloc(memory, of_layout(bytes)) };
    }

    unsafe fn copy_in(
        &self,
        stream: StreamId,
        to: u64,
        from: *const u8,
        bytes: usize,
    ) -> DriverResult<()> {
        let from = from as usize;
        // SAFETY: the caller keeps both sides until the copy has ended.
        self.enqueue(stream, move || unsafe {
            (to as *mut u8).copy_from_nonoverlapping(from as *const u8, bytes);
        });
        Ok(())
    }

    unsafe fn copy_out(
        &self,
        stream: StreamId,
        to: *mut u8,
        from: u64,
        bytes: usize,
    ) -> DriverResult<()> {
        // SAFETY: the caller keeps both sides until the copy has ended.
        unsafe { self.copy_in(stream, to as u64, from as *const u8, bytes) }
    }

    unsafe fn launch(
        &self,
        stream: StreamId,
        function: FunctionId,
        blocks: u32,
        arguments: &Arguments,
    ) -> DriverResult<()> {
        let arguments = *arguments;
        self.enqueue(stream, move || {
            // SAFETY: the function was compiled with the parameters that host.h gives it.
            let run: Run = unsafe { std::mem::transmute(function.0 as *mut c_void) };
            // SAFETY: the caller answers for the memory that the arguments name.
            unsafe { run(&arguments, blocks) };
        });
        Ok(())
    }

    fn record(&self, stream: StreamId) -> DriverResult<EventId> {
        if self.refuses_events.load(Ordering::SeqCst) {
            return Err(DriverError {
                message: "cuEventCreate: CUDA_ERROR_OUT_OF_MEMORY".into(),
                out_of_memory: true,
                lost: false,
            });
        }
        let (id, event) = (self.id(), Arc::new(Event::default()));
        self.handles
            .lock()
            .unwrap()
            .events
            .insert(id, event.clone());
        self.enqueue(stream, move || event.come());
        Ok(EventId(id))
    }

    fn order(&self, stream: StreamId, event: EventId) -> DriverResult<()> {
        let event = self.event(event);
        self.enqueue(stream, move || event.wait());
        Ok(())
    }

    fn wait_for(&self, event: EventId) -> DriverResult<()> {
        self.event(event).wait();
        let mut gate = self.gate.0.lock().unwrap();
        gate.waited = true;
        self.gate.1.notify_all();
        drop(self.gate.1.wait_while(gate, |gate| gate.held).unwrap());
        match self.lost.load(Ordering::SeqCst) {
            true => Err(DriverError {
                message: "cuEventSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS".into(),
                out_of_memory: false,
                lost: true,
            }),
            false => Ok(()),
        }
    }

    fn end_event(&self, event: EventId) {
        self.handles.lock().unwrap().events.remove(&event.0);
    }

    fn functions(&self, source: &str, count: usize) -> DriverResult<Functions> {
        if let Some(functions) = self.handles.lock().unwrap().functions.get(source) {
            return Ok(functions.clone());
        }
        let functions = self.compile(source, count);
        self.handles
            .lock()
            .unwrap()
            .functions
            .insert(source.to_owned(), functions.clone());
        Ok(functions)
    }
}
