//! The state of a session: what it has told its worker, and what it waits for.

use std::collections::{BTreeMap, VecDeque};
use std::panic::Location;
use std::sync::{Arc, Weak};

use convoke_common::error::{Code, Error, Result};
use convoke_common::grant::Participant;
use convoke_common::identity::Role;
use convoke_graph::{DType, Shape};
use convoke_rendezvous::eager::Batch;
use convoke_rendezvous::eager::wire::{Command, Definition, Holding, LONGEST_ORIGIN, MOST_ORIGINS};
use convoke_rendezvous::{Link, Peer};
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use super::super::prepared::{Key, PreparedOps, RememberedPlace};

/// The state of the link to the worker.
pub(super) enum DialState {
    /// The worker is being dialled; these closures run once it is linked.
    Dialling(Vec<Box<dyn FnOnce(&Arc<Link>) + Send>>),
    Up(Arc<Link>),
    Lost(Error),
}

pub(super) struct SessionState {
    pub way: DialState,
    pub batch: Batch,
    /// Whether the lane was told that there is a batch.
    pub told: bool,
    pub next: u64,
    pub unresolved: u64,
    /// The number of handles that are not freed.
    pub live: usize,
    pub prepared: PreparedOps,
    pub origins: FxHashMap<(&'static str, u32), u32>,
    pub peers: Vec<Peer>,
    pub transfers: u64,
    /// By transfer, the worker that a tensor on its way comes from.
    pub moves: BTreeMap<u64, Peer>,
    pub late: FxHashMap<u64, Weak<std::sync::OnceLock<Shape>>>,
    /// The failures of ops, since nobody may ever ask for their handles.
    pub failures: VecDeque<Error>,
    pub requests: u64,
    pub accounts: BTreeMap<u64, oneshot::Sender<Vec<Holding>>>,
}

impl SessionState {
    /// The state before anything is issued. Transfers and handles are numbered from `transfers` and `first` on.
    pub fn new(batch: Batch, transfers: u64, first: u64) -> SessionState {
        SessionState {
            way: DialState::Dialling(vec![]),
            batch,
            told: false,
            next: first,
            unresolved: 0,
            live: 0,
            prepared: PreparedOps::default(),
            origins: FxHashMap::default(),
            peers: vec![],
            transfers,
            moves: BTreeMap::new(),
            late: FxHashMap::default(),
            failures: VecDeque::new(),
            requests: 0,
            accounts: BTreeMap::new(),
        }
    }

    /// Writes a command to the batch.
    pub fn command(&mut self, command: &Command) -> Result<()> {
        let mut bytes = Vec::new();
        command.encode(&mut bytes, self.next)?;
        if bytes.len() > Batch::MOST {
            let (is, most) = (bytes.len(), Batch::MOST);
            let msg = format!("an op's attributes take {is} bytes, of at most {most}");
            return Err(Error::new(Code::InvalidArgument, msg)
                .advise("make a function of it; large constants of bodies go on a device before"));
        }
        self.batch.body().extend(bytes);
        Ok(())
    }

    /// Returns the place of an op at the worker, after defining it there where the worker does not know it.
    pub fn prepare(&mut self, key: &Key, slot: Option<&RememberedPlace>) -> Result<u32> {
        if let Some(index) = slot.and_then(|s| self.prepared.again(s)) {
            return Ok(index);
        }
        let (index, new) = self.prepared.find(key);
        if new {
            let origin = self.origin(key.origin)?;
            let definition = Command::Define(Definition {
                index,
                op: key.op.name.to_owned(),
                attrs: key.attrs.clone(),
                operands: key.operands.to_vec(),
                outputs: key.outputs,
                report: key.report,
                origin,
            });
            self.command(&definition)?;
        }
        self.prepared.told(index, slot);
        Ok(index)
    }

    /// Returns the number of a place in the program. Places beyond the limit share the number 0.
    pub fn origin(&mut self, at: &'static Location<'static>) -> Result<u32> {
        let key = (at.file(), at.line());
        if let Some(known) = self.origins.get(&key) {
            return Ok(*known);
        }
        let index = self.origins.len() as u32 + 1;
        if index >= MOST_ORIGINS {
            return Ok(0);
        }
        let mut place = format!("{}:{}", at.file(), at.line());
        let cut = place.len().saturating_sub(LONGEST_ORIGIN);
        place = place.chars().skip(cut).collect();
        self.command(&Command::Origin { index, place })?;
        self.origins.insert(key, index);
        Ok(index)
    }

    /// Returns the number of a peer, after naming the peer to the worker where it is new.
    pub fn name(&mut self, participant: &Participant) -> Result<u32> {
        let is = |p: &Peer| p.name == participant.name && p.incarnation == participant.incarnation;
        if let Some(known) = self.peers.iter().position(is) {
            return Ok(known as u32 + 1);
        }
        let index = self.peers.len() as u32 + 1;
        let participant = participant.clone();
        self.peers.push(Peer::of(&participant, Role::Worker));
        self.command(&Command::Peer { index, participant })?;
        Ok(index)
    }

    pub fn take(
        &mut self,
        peer: u32,
        dtype: DType,
        shape: Option<Shape>,
        origin: u32,
    ) -> Result<u64> {
        let transfer = self.transfers;
        self.command(&Command::Take {
            peer,
            transfer,
            dtype,
            shape,
            origin,
        })?;
        self.transfers += 1;
        Ok(transfer)
    }
}
