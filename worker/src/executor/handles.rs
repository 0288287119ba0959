//! Nodes that work on the caller's handles: a step reads some from the caller's session, and fills others.

use std::sync::Arc;

use convoke_common::error::{Code, Error};
use convoke_common::identity::Role;
use convoke_common::memory::Pool;
use convoke_graph::DType;
use convoke_graph::Tensor;
use convoke_graph::dim::Bindings;
use convoke_graph::program::ProgramNode;
use convoke_rendezvous::Peer;

use super::Executor;
use super::partial::is_of_node;
use super::run::{FollowUp, Phase};
use crate::cpu::Operands;
use crate::eager::{HandleOutcome, Session};
use crate::program::installed::{declared, site};

pub(super) fn number(of: Option<&Tensor>) -> Result<u64, Error> {
    let missing = || Error::internal("a handle without its number");
    let tensor = of.ok_or_else(missing)?;
    let numbers = tensor.as_slice::<u64>()?;
    numbers.first().copied().ok_or_else(missing)
}

/// The tensor that a step gives a handle. A lease's memory is for its steps, so a tensor from it is copied into `pool`;
/// a constant that others may use stays where it is, and is charged to the handle's owner, too.
pub(super) fn kept(tensor: &Tensor, pool: &Pool) -> Result<Tensor, Error> {
    if let Some(charged) = pool.charged(tensor)? {
        return Ok(charged);
    }
    if !tensor.is_borrowed() {
        return Ok(tensor.clone());
    }
    let mut kept = pool.alike(tensor)?;
    let bytes = kept.bytes_mut();
    let bytes = bytes.ok_or_else(|| Error::internal("a new tensor is shared"))?;
    bytes.copy_from_slice(tensor.bytes());
    Ok(kept)
}

/// The result of a node that has filled a handle: an empty tensor.
pub(super) fn filled() -> Result<Tensor, Error> {
    Ok(Tensor::zeros(DType::U8, &[0])?)
}

impl Executor {
    /// The session of the lease's driver, which owns the handles.
    fn session(&self) -> Result<Arc<Session>, Error> {
        let lease = self.lease();
        let driver = lease.as_ref().and_then(|l| l.participants.last());
        let driver = driver.map(|p| Peer::of(p, Role::Client));
        let sessions = self.handles.get();
        let session = driver.and_then(|d| sessions?.of_driver(&d));
        session.ok_or_else(|| Error::new(Code::LeaseRetired, "the caller's session has ended"))
    }

    /// Asks the session for a handle's tensor; the node's result arrives once the tensor is there.
    pub(super) fn lend(&self, n: u64, node: u32, inputs: &Operands<'_>, donate: bool) {
        let lent = number(inputs.get(0)).and_then(|id| Ok((id, self.session()?)));
        // The callback does not keep the lease alive: a lease that ends meanwhile must free its memory.
        let me = self.me.clone();
        match lent {
            Ok((id, session)) => session.lend(
                id,
                donate,
                Box::new(move |settled| {
                    if let Some(me) = me.upgrade() {
                        me.lent(n, node, settled);
                    }
                }),
            ),
            Err(error) => self.lent(n, node, Err(Arc::new(error))),
        }
    }

    /// The place of a node of the step part, for errors.
    pub(super) fn site_of(&self, node: u32) -> convoke_common::Site {
        let node = &self.installed.nodes()[node as usize];
        let site = site(node, declared(&self.installed.program, node));
        convoke_common::Site {
            node: site.node,
            op: site.op,
            operands: site.operands,
            ..self.place()
        }
    }

    fn lent(&self, n: u64, node: u32, settled: HandleOutcome) {
        let launched = &self.installed.nodes()[node as usize];
        let mut after = FollowUp::default();
        let settled = settled.and_then(|t| self.fits(n, launched, t).map_err(Arc::new));
        let failed = {
            let mut run = self.run(n);
            if run.n != n || run.phase != Phase::Running {
                return;
            }
            let delivered = match settled {
                Err(error) if !run.partial || !is_of_node(&error) => Err(error),
                settled => Ok(settled),
            };
            match delivered {
                Ok(delivered) if run.error.is_none() => {
                    let value = launched.outputs.first().copied();
                    if run.came(&self.installed, value, delivered, &mut after) {
                        self.stir(n);
                    }
                    run.settle(&mut after);
                    None
                }
                Ok(_) => None,
                Err(error) => Some(error),
            }
        };
        match failed {
            None => self.finish(n, after),
            Some(error) => self.fail(n, self.unavailable(launched, &error)),
        }
    }

    /// Checks that a handle's tensor is of the type that the node declares.
    fn fits(&self, n: u64, node: &ProgramNode, t: Tensor) -> Result<Tensor, Error> {
        let declared = node.outputs.first();
        let fits = declared.is_some_and(|v| self.is_as_declared(self.bindings(n), *v, &t));
        if fits {
            return Ok(t);
        }
        let want = declared.map(|v| self.declared(n, *v)).unwrap_or_default();
        let msg = format!("the handle is {}, the function takes {want}", t.signature());
        Err(Error::new(Code::InvalidInput, msg))
    }

    pub(super) fn bindings(&self, n: u64) -> Option<Arc<Bindings>> {
        self.lease()?.bindings(n)
    }

    /// Whether a tensor has the declared type of a value, as far as the sizes of the step decide it.
    pub(super) fn is_as_declared(
        &self,
        bindings: Option<Arc<Bindings>>,
        value: u32,
        t: &Tensor,
    ) -> bool {
        let Some(value) = self.installed.program.values.get(value as usize) else {
            return false;
        };
        let same = |(d, got): (&convoke_graph::Dim, &usize)| {
            let want = bindings.as_ref().map_or(d.as_const(), |b| d.eval(b));
            want.is_none_or(|w| usize::try_from(w) == Ok(*got))
        };
        value.ty.dtype == t.dtype()
            && value.ty.shape.len() == t.shape().len()
            && value.ty.shape.iter().zip(t.shape()).all(same)
    }

    /// The error of a step whose operand failed: the operand's own error, except that a consequence (a lost peer, a
    /// cancelled step) becomes `StateLost`: retrying the call on another lease does not bring the operand back.
    fn unavailable(&self, node: &ProgramNode, error: &Error) -> Error {
        if !error.code.is_secondary() {
            return error.clone();
        }
        let lost = Error::new(Code::StateLost, format!("an operand is lost: {error}"));
        lost.at(convoke_common::Site {
            node: site(node, declared(&self.installed.program, node)).node,
            ..self.place()
        })
    }

    /// Fills a handle, and returns the node's result.
    pub(super) fn fill(&self, n: u64, node: u32, inputs: &Operands<'_>) -> Result<Tensor, Error> {
        let tensor = inputs.get(0);
        let tensor = tensor.ok_or_else(|| Error::internal("a handle without its tensor"))?;
        let node = &self.installed.nodes()[node as usize];
        // The caller relies on the shape that the function declares.
        if let Some(v) = node.inputs.first()
            && !self.is_as_declared(self.bindings(n), *v, tensor)
        {
            let (is, want) = (tensor.signature(), self.declared(n, *v));
            let msg = format!("'{}' is {is}, the function gives {want}", node.name);
            let error = Error::new(Code::InvalidInput, msg);
            return Err(error.advise("sizes of dynamic axes that the function was not made for"));
        }
        let id = number(inputs.get(1))?;
        let session = self.session()?;
        let kept = kept(tensor, session.pool())?;
        session.fill(id, kept)?;
        filled()
    }
}
