//! Two ends of a link on one host: tensors that lie in a segment are lent, in place of bytes on the wire.
//!
//! ```text
//! lender                                             borrower
//! Meet { nonce, address } ── lane ─────────────────> meets the lender there, or says that they are Apart
//! each segment that a tensor lies in ── socket ────> maps it and says so; until then its tensors wait
//! Lent { header, segment, offset, loan } ── lane ──> fills the slot, in place
//! lets go of the tensor <───────── lane ── Returned { loan } once it is used no more
//! ```
//!
//! Invariants
//! 1. What is lent is held until it is returned or the link ends. Nothing is lent again by who lost a link: a lease's
//!    steps end with it, and its memory is not used for others.
//! 2. Each loan is returned once, whatever becomes of the tensor.
//! 3. The end of a segment is told: nobody keeps memory that its owner has given back.

pub(crate) mod fuzzing;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use convoke_common::block::ALIGN;
use convoke_common::error::{Code, Error, Result};
use convoke_common::segment::{Lent, PeerSegment, Segment};
use convoke_common::world::{Giver, Nonce, SharedMemory, Taker, Told, World};
use tokio::sync::{mpsc, watch};

use crate::frame::{Frame, Sharing, TensorHeader};
use crate::hub::Hub;
use crate::lease::Peer;
use crate::link::{Link, Outgoing};
use crate::remote::Remote;

/// Most segments of one peer that are mapped at once.
const MOST: usize = 4096;

/// Whether the peer can read this end's segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    Unknown,
    Apart,
    Together,
}

/// What the peer is to be told of a segment.
enum Change {
    Give(Arc<Segment>),
    Forget(u64),
}

/// Whether the peer has a segment.
enum Standing {
    /// These tensors wait until it has.
    Underway(Vec<Outgoing>),
    There,
}

/// A tensor on its way: by a frame that lends it, or back to take the wire.
pub(crate) type Carried = std::result::Result<Frame, Outgoing>;

/// What this end lends.
#[derive(Default)]
struct Lending {
    /// By number.
    segments: HashMap<u64, Standing>,
    loans: HashMap<u64, Outgoing>,
    next: u64,
    over: bool,
}

/// One link's end of it.
pub(crate) struct Shared {
    memory: Arc<SharedMemory>,
    reach: watch::Sender<Reach>,
    lending: Mutex<Lending>,
    changes: mpsc::UnboundedSender<Change>,
    /// Whether the peer has said where its segments can be had.
    told: AtomicBool,
    /// What it gave, by its number.
    segments: Mutex<HashMap<u64, Arc<PeerSegment>>>,
}

/// What its task owns.
pub(crate) struct Giving(mpsc::UnboundedReceiver<Change>);

fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn broken(why: &str) -> Error {
    Error::new(Code::ProtocolViolation, format!("shared memory: {why}"))
}

impl Lending {
    /// Notes a loan; the frame that says so.
    fn note(&mut self, segment: u64, offset: u64, out: Outgoing) -> Frame {
        let loan = self.next;
        self.next += 1;
        let tensor = TensorHeader::of(out.key, out.slot, &out.tensor);
        self.loans.insert(loan, out);
        Frame::Sharing(Sharing::Lent {
            tensor,
            segment,
            offset,
            loan,
        })
    }
}

impl Shared {
    pub(crate) fn new(memory: Arc<SharedMemory>) -> (Shared, Giving) {
        // As long as there are segments: each is given and forgotten once.
        let (changes, told) = mpsc::unbounded_channel();
        let shared = Shared {
            memory,
            reach: watch::Sender::new(Reach::Unknown),
            lending: Mutex::default(),
            changes,
            told: AtomicBool::new(false),
            segments: Mutex::default(),
        };
        (shared, Giving(told))
    }

    /// Whether the peer reads this end's segments.
    pub(crate) fn reaches(&self) -> bool {
        *self.reach.borrow() == Reach::Together
    }

    /// As [`Shared::reaches`], once that is known.
    pub(crate) async fn settled(&self) -> bool {
        let mut reach = self.reach.subscribe();
        let known = reach.wait_for(|r| *r != Reach::Unknown).await;
        known.is_ok_and(|r| *r == Reach::Together)
    }

    /// Lends a tensor, which is kept, where the peer can read its segment; none where it waits until it can.
    pub(crate) fn lend(&self, out: Outgoing) -> Option<Carried> {
        let place = out.tensor.segment();
        let place = place.map(|(segment, offset)| (segment.clone(), offset));
        let aligned = |(_, offset): &(_, u64)| offset.is_multiple_of(ALIGN as u64);
        let place = place.filter(|p| aligned(p) && self.reaches());
        let Some((segment, offset)) = place else {
            return Some(Err(out));
        };
        let number = segment.number();
        let mut lending = locked(&self.lending);
        if lending.over || out.cancel.is_cancelled() {
            return Some(Err(out));
        }
        match lending.segments.get_mut(&number) {
            Some(Standing::There) => Some(Ok(lending.note(number, offset, out))),
            Some(Standing::Underway(waiting)) => {
                waiting.push(out);
                None
            }
            None => {
                let changes = self.changes.clone();
                // Whom it is told to may be gone, with the link.
                segment.at_end(move || drop(changes.send(Change::Forget(number))));
                if self.changes.send(Change::Give(segment)).is_err() {
                    return Some(Err(out));
                }
                let underway = Standing::Underway(vec![out]);
                lending.segments.insert(number, underway);
                None
            }
        }
    }

    /// The peer has a segment: what waited for that is lent.
    fn given(&self, number: u64) -> Vec<Carried> {
        let mut lending = locked(&self.lending);
        let waited = lending.segments.insert(number, Standing::There);
        let Some(Standing::Underway(waiting)) = waited else {
            return vec![];
        };
        let waiting = waiting.into_iter();
        waiting
            .map(|out| match out.tensor.segment() {
                Some((_, offset)) if !lending.over => Ok(lending.note(number, offset, out)),
                _ => Err(out),
            })
            .collect()
    }

    /// The peer takes no more segments: what waits for one comes back.
    fn part(&self) -> Vec<Carried> {
        self.reach.send_replace(Reach::Apart);
        let mut lending = locked(&self.lending);
        let mut back = vec![];
        for standing in lending.segments.values_mut() {
            if let Standing::Underway(waiting) = standing {
                back.extend(waiting.drain(..).map(Err));
            }
        }
        back
    }

    fn returned(&self, loan: u64) -> Result<()> {
        let out = locked(&self.lending).loans.remove(&loan);
        let Outgoing { tensor, sent, .. } = out.ok_or_else(|| broken("nothing is lent so"))?;
        drop(tensor);
        sent();
        Ok(())
    }

    /// The link has ended: nothing comes back any more.
    pub(crate) fn end(&self) {
        self.reach.send_replace(Reach::Apart);
        let (loans, segments) = {
            let mut lending = locked(&self.lending);
            lending.over = true;
            (
                std::mem::take(&mut lending.loans),
                std::mem::take(&mut lending.segments),
            )
        };
        let waiting = segments.into_values().filter_map(|s| match s {
            Standing::Underway(waiting) => Some(waiting),
            Standing::There => None,
        });
        for out in loans.into_values().chain(waiting.flatten()) {
            let Outgoing { tensor, sent, .. } = out;
            drop(tensor);
            sent();
        }
        locked(&self.segments).clear();
    }

    /// Gives the peer this end's segments, as long as it takes them.
    pub(crate) async fn give(&self, world: &World, remote: &Remote, mut giving: Giving) {
        let nonce: Nonce = world.rng.bytes();
        let mut expected = self.memory.expect(nonce);
        let address = self.memory.address().as_os_str().as_bytes().to_vec();
        remote.send(&Frame::Sharing(Sharing::Meet { nonce, address }));
        let mut reach = self.reach.subscribe();
        let came = tokio::select! {
            biased;
            came = expected.came() => came,
            _ = reach.wait_for(|r| *r == Reach::Apart) => None,
        };
        drop(expected);
        let Some(mut giver) = came else {
            self.reach.send_replace(Reach::Apart);
            return;
        };
        self.reach.send_replace(Reach::Together);
        while let Some(change) = giving.0.recv().await {
            let carried = match self.tell(&mut giver, change).await {
                Ok(carried) => carried,
                Err(e) => {
                    tracing::warn!(peer = remote.peer().name, "it takes no shared memory: {e}");
                    giving.0.close();
                    self.part()
                }
            };
            carried.into_iter().for_each(|c| remote.carry(c));
        }
    }

    async fn tell(&self, giver: &mut Giver, change: Change) -> std::io::Result<Vec<Carried>> {
        match change {
            Change::Give(segment) => {
                giver.give(&segment).await?;
                Ok(self.given(segment.number()))
            }
            Change::Forget(number) => {
                locked(&self.lending).segments.remove(&number);
                giver.forget(number).await?;
                Ok(vec![])
            }
        }
    }

    /// Keeps what the peer gave; not where it gives too much.
    fn keep(&self, number: u64, segment: PeerSegment) -> bool {
        let mut segments = locked(&self.segments);
        let room = segments.len() < MOST;
        if room {
            segments.insert(number, Arc::new(segment));
        }
        room
    }

    /// Takes a frame of the peer; an error where it makes no sense.
    pub(crate) fn frame(
        &self,
        world: &World,
        hub: &Hub,
        link: &Arc<Link>,
        frame: Sharing,
    ) -> Result<()> {
        match frame {
            Sharing::Meet { nonce, address } => {
                if self.told.swap(true, Ordering::Relaxed) {
                    return Err(broken("it can be had at one place"));
                }
                let (memory, link) = (self.memory.clone(), link.clone());
                world.spawn(async move {
                    let address = Path::new(OsStr::from_bytes(&address));
                    match memory.meet(address, &nonce).await {
                        Ok(taker) => {
                            if let Some(shared) = link.shared() {
                                link.until_ended(shared.take(link.peer(), taker)).await;
                            }
                        }
                        Err(e) => {
                            tracing::debug!(peer = link.peer().name, "not on this host: {e}");
                            link.send(Frame::Sharing(Sharing::Apart));
                        }
                    }
                });
            }
            Sharing::Apart => {
                self.reach.send_if_modified(|reach| {
                    let unknown = *reach == Reach::Unknown;
                    if unknown {
                        *reach = Reach::Apart;
                    }
                    unknown
                });
            }
            Sharing::Lent {
                tensor,
                segment,
                offset,
                loan,
            } => {
                let loan = Box::new(Loan {
                    link: Arc::downgrade(link),
                    loan,
                });
                let of = locked(&self.segments).get(&segment).cloned();
                let of = of.ok_or_else(|| broken("no such segment"))?;
                let len = tensor.byte_len().ok_or_else(|| broken("absurd shape"))?;
                let lent = Lent::new(of, offset, len, loan);
                let lent = lent.ok_or_else(|| broken("outside of its segment"))?;
                hub.borrow(link.peer(), &tensor, lent);
            }
            Sharing::Returned { loan } => self.returned(loan)?,
        }
        Ok(())
    }

    /// Takes what the peer gives.
    async fn take(&self, peer: &Peer, mut taker: Taker) {
        loop {
            let told = match taker.next().await {
                Ok(told) => told,
                Err(e) => {
                    return tracing::debug!(peer = peer.name, "gives no more memory: {e}");
                }
            };
            match told {
                Told::Given(number, segment) => {
                    if !self.keep(number, segment) || taker.has(number).await.is_err() {
                        return;
                    }
                }
                Told::Forgotten(number) => {
                    locked(&self.segments).remove(&number);
                }
            }
        }
    }
}

/// A tensor that is used here: its end is told.
struct Loan {
    link: Weak<Link>,
    loan: u64,
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(link) = self.link.upgrade() {
            link.send(Frame::Sharing(Sharing::Returned { loan: self.loan }));
        }
    }
}
