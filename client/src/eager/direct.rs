//! Brief ops on the caller's own thread, where the worker is in this process. Their handles have a value at once.
//!
//! No op depends on this module: an op that cannot run this way is issued as to any other worker, which also reports
//! why it fails.
//!
//! Invariants
//! 1. A value that the worker knows of is counted by the worker, any other here.
//! 2. The number of remembered ops is bounded; the record of a line of the program lives as long as its tensors.

use std::hash::{Hash, Hasher};
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use convoke_common::Error;
use convoke_common::ids::LeaseId;
use convoke_graph::Tensor as HostTensor;
use convoke_graph::graph::Attrs;
use convoke_graph::ops::OpDef;
use convoke_graph::{DType, Outputs};
use convoke_rendezvous::eager::DirectSession;
use convoke_rendezvous::eager::direct::{DirectFunction, DirectOp, Number};
use convoke_rendezvous::eager::wire::{Holding, MOST_HANDLES};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::told::ToldHandle;

/// How many sets of remembered ops there are, and how many ops a set has at most. The line that issues an op, and the
/// op, choose the set.
const SETS: usize = 128;
const WAYS: usize = 8;
/// How many places are remembered before those without tensors are forgotten.
const MOST_PLACES: usize = SETS * WAYS;

/// A line of the program, and the tensors that it made here.
struct IssueSite {
    origin: &'static Location<'static>,
    /// The number of tensors, in the lowest bits, and their bytes above.
    held: AtomicU64,
    /// The number of handles of all lines.
    all: Arc<AtomicU64>,
}

/// Bits of a count of handles. There are at most [`MOST_HANDLES`] at a time, and a few more where several threads add
/// one at once.
const COUNT_BITS: u32 = 24;
const _: () = assert!(MOST_HANDLES < 1 << (COUNT_BITS - 1));

/// The amount that a tensor adds to [`IssueSite::held`]: one handle, and its bytes.
fn held(tensor: &HostTensor) -> u64 {
    (tensor.byte_len() as u64) << COUNT_BITS | 1
}

/// An op as it is issued at one line.
pub(crate) struct RememberedOp {
    op: &'static OpDef,
    attrs: Attrs,
    operands: SmallVec<[Option<DType>; 4]>,
    outputs: u8,
    place: Arc<IssueSite>,
    /// How the op runs on the caller's thread; `None` where it never does.
    runs: Option<Arc<dyn DirectOp>>,
    /// Whether the op has run here before.
    ran: AtomicBool,
}

/// A value that the worker knows nothing of.
pub(crate) struct UnsentValue {
    tensor: HostTensor,
    place: Arc<IssueSite>,
    told: ToldHandle,
}

/// The direct way to a worker's session.
pub(crate) struct Line {
    /// The worker's end, which is gone with the worker, even while tensors live.
    direct: Weak<dyn DirectSession>,
    /// The number of handles of all places.
    handles: Arc<AtomicU64>,
    sets: Box<[Mutex<SmallVec<[Arc<RememberedOp>; 2]>>]>,
    places: Mutex<FxHashMap<SourceLine, Weak<IssueSite>>>,
    lost: AtomicBool,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// The key by which a remembered op is looked for.
pub(crate) struct OpQuery<'a> {
    pub op: &'static OpDef,
    pub attrs: &'a Attrs,
    pub outputs: usize,
    pub origin: &'static Location<'static>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A line of the program as a key. Its hash leaves out the name of the file, which takes longer than to compare the few
/// lines that are alike.
#[derive(Clone, Copy, Eq)]
struct SourceLine(&'static Location<'static>);

impl PartialEq for SourceLine {
    fn eq(&self, other: &SourceLine) -> bool {
        same_place(self.0, other.0)
    }
}

impl Hash for SourceLine {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0.line(), self.0.column()).hash(state);
    }
}

fn same_place(a: &'static Location<'static>, b: &'static Location<'static>) -> bool {
    std::ptr::eq(a, b) || a == b
}

impl RememberedOp {
    fn is(&self, issued: &OpQuery<'_>, operands: &[Option<DType>]) -> bool {
        std::ptr::eq(self.op, issued.op)
            && same_place(self.place.origin, issued.origin)
            && self.operands[..] == *operands
            && usize::from(self.outputs) == issued.outputs
            && self.attrs == *issued.attrs
    }
}

impl Line {
    pub fn new(direct: &Arc<dyn DirectSession>) -> Line {
        Line {
            handles: direct.handles(),
            direct: Arc::downgrade(direct),
            sets: (0..SETS).map(|_| Mutex::default()).collect(),
            places: Mutex::default(),
            lost: AtomicBool::new(false),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Ends all runs on the caller's thread, since the session is lost.
    pub fn end(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    fn usable(&self) -> bool {
        !self.lost.load(Ordering::Relaxed)
            && self.handles.load(Ordering::Relaxed) < MOST_HANDLES as u64
    }

    /// The value of a handle that the worker knows, if the value is there already.
    pub fn value(&self, handle: u64) -> Option<HostTensor> {
        self.direct.upgrade()?.value(handle)
    }

    /// Returns the op, remembered or resolved anew; `None` where nothing can run here.
    pub fn find(
        &self,
        issued: &OpQuery<'_>,
        operands: &[Option<DType>],
    ) -> Option<Arc<RememberedOp>> {
        if !self.usable() {
            return None;
        }
        // One op at one line is always of one set, whatever its attributes and operands are.
        let at = std::ptr::from_ref(issued.op) as usize >> 6;
        let line = issued.origin.line() as usize ^ (issued.origin.column() as usize) << 3;
        let set = &self.sets[(line ^ at) % SETS];
        let mut known = locked(set);
        if let Some(i) = known.iter().position(|k| k.is(issued, operands)) {
            // A set is in the order of use, the latest first.
            if i > 0 {
                known[..=i].rotate_right(1);
            }
            return Some(known[0].clone());
        }
        drop(known);
        let direct = self.direct.upgrade()?;
        let outputs = u8::try_from(issued.outputs).ok()?;
        let (name, attrs) = (issued.op.name, issued.attrs);
        let new = Arc::new(RememberedOp {
            op: issued.op,
            attrs: attrs.clone(),
            operands: operands.into(),
            outputs,
            place: self.place(issued.origin),
            runs: direct.resolve(name, attrs, operands, outputs),
            ran: AtomicBool::new(false),
        });
        let mut known = locked(set);
        known.truncate(WAYS - 1);
        known.insert(0, new.clone());
        Some(new)
    }

    fn place(&self, origin: &'static Location<'static>) -> Arc<IssueSite> {
        let mut places = locked(&self.places);
        let line = SourceLine(origin);
        if let Some(known) = places.get(&line).and_then(Weak::upgrade) {
            return known;
        }
        if places.len() >= MOST_PLACES {
            places.retain(|_, p| p.strong_count() > 0);
        }
        let new = Arc::new(IssueSite {
            origin,
            held: AtomicU64::new(0),
            all: self.handles.clone(),
        });
        places.insert(line, Arc::downgrade(&new));
        new
    }

    /// Runs an op. Returns `None` where the op has to be issued.
    pub fn run(&self, known: &RememberedOp, inputs: &[Option<&HostTensor>]) -> Option<Outputs> {
        let runs = known.runs.as_ref().filter(|_| self.usable())?;
        let made = runs.run(inputs)?;
        // An op that is issued instead is counted where it is issued.
        let ran = known.ran.load(Ordering::Relaxed) || known.ran.swap(true, Ordering::Relaxed);
        let count = match ran {
            true => &self.hits,
            false => &self.misses,
        };
        count.fetch_add(1, Ordering::Relaxed);
        Some(made)
    }

    /// The function of a lease at the worker, if the worker has the lease.
    pub fn function(&self, lease: LeaseId) -> Option<Arc<dyn DirectFunction>> {
        self.direct.upgrade()?.function(lease)
    }

    /// Runs a function, whose results belong to the line `origin`. Returns `None` where the call has to be a step.
    pub fn call(
        &self,
        function: &dyn DirectFunction,
        numbers: &[Number],
        operands: &[&HostTensor],
        results: usize,
        origin: &'static Location<'static>,
    ) -> Option<SmallVec<[UnsentValue; 2]>> {
        if !self.usable() {
            return None;
        }
        let made = function.run(numbers, operands, results)?;
        let place = self.place(origin);
        let made = made.into_iter();
        let mut held = SmallVec::new();
        for t in made {
            held.push(self.hold(place.clone(), t));
        }
        Some(held)
    }

    /// Counts a value that the op `known` made here.
    #[inline]
    pub fn keep(&self, known: &RememberedOp, tensor: HostTensor) -> UnsentValue {
        self.hold(known.place.clone(), tensor)
    }

    /// Copies a small value of the program. Returns `None` where the value has to be sent.
    pub fn put(
        &self,
        value: &HostTensor,
        origin: &'static Location<'static>,
    ) -> Option<UnsentValue> {
        if !self.usable() {
            return None;
        }
        Some(self.hold(self.place(origin), self.direct.upgrade()?.own(value)?))
    }

    #[inline]
    fn hold(&self, place: Arc<IssueSite>, tensor: HostTensor) -> UnsentValue {
        self.handles.fetch_add(1, Ordering::Relaxed);
        place.held.fetch_add(held(&tensor), Ordering::Relaxed);
        UnsentValue {
            tensor,
            place,
            told: ToldHandle::default(),
        }
    }

    /// How often an op that ran here had run here before, and how often not.
    pub fn hits_and_misses(&self) -> (u64, u64) {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        (of(&self.hits), of(&self.misses))
    }

    /// The values that are held here, by the lines that made them.
    pub fn account(&self) -> Vec<Holding> {
        let places = locked(&self.places);
        let live = places.values().filter_map(Weak::upgrade);
        let held = live.map(|p| {
            let held = p.held.load(Ordering::Relaxed);
            Holding {
                origin: format!("{}:{}", p.origin.file(), p.origin.line()),
                handles: held & ((1 << COUNT_BITS) - 1),
                bytes: held >> COUNT_BITS,
            }
        });
        held.filter(|h| h.handles > 0).collect()
    }
}

impl UnsentValue {
    pub fn tensor(&self) -> &HostTensor {
        &self.tensor
    }

    /// Returns the handle by which the worker knows the value. The first time, `tell` tells the worker of the value.
    pub fn told(&self, tell: impl FnOnce(&HostTensor) -> Result<u64, Error>) -> Result<u64, Error> {
        self.told.told(|| {
            let id = tell(&self.tensor)?;
            self.uncount();
            Ok(id)
        })
    }

    /// Takes the handle by which the worker knows the value, to free it, if nobody has taken it.
    pub fn take_id(&self) -> Option<u64> {
        self.told.take()
    }

    /// Whether the worker was told of the value, which nobody else has.
    pub fn was_told(&mut self) -> bool {
        self.told.was_told()
    }

    fn uncount(&self) {
        let place = &self.place;
        place.held.fetch_sub(held(&self.tensor), Ordering::Relaxed);
        place.all.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for UnsentValue {
    fn drop(&mut self) {
        if !self.was_told() {
            self.uncount();
        }
    }
}
