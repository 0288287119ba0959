//! The forms that sequences and optional values take where the run decides: in the branches of an If, and from one iteration of
//! a Loop to the next.

use convoke_graph::graph::{Attrs, TensorType, ValueId};
use convoke_graph::{DType, Dim, Tensor};

use super::super::import::Importer;
use super::super::normalize::{Expansion, ImportFailure, ImportedNode};
use super::super::scope::Meaning;
use super::packed::{Packed, RankRange, either, width};
use crate::error::ModelError;

/// The dtype and the ranks of a sequence's tensors, as far as they are known.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct ElementType {
    pub dtype: Option<DType>,
    pub ranks: RankRange,
}

impl ElementType {
    /// The type that covers both sequences, where either may be meant. The dtype of one that never has any tensors
    /// counts only where that of the other is not known.
    pub(super) fn or(self, other: ElementType) -> ElementType {
        let (first, second) = match (self.ranks, other.ranks) {
            (None, Some(_)) => (other, self),
            _ => (self, other),
        };
        ElementType {
            dtype: first.dtype.or(second.dtype),
            ranks: either(self.ranks, other.ranks),
        }
    }
}

/// The values that something is made of that is known as a [`Meaning`].
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Form {
    Nothing,
    /// A tensor, with dtype and rank where they are known.
    Tensor(Option<(DType, usize)>),
    /// A list of one number, which stands for a tensor that is a scalar in one case and such a list in the other.
    Single(DType),
    /// A sequence of this many tensors.
    List(usize, ElementType),
    /// A sequence whose length is only known when the model runs.
    Packed(ElementType),
    /// An optional value: whether it is present is only known when the model runs.
    Optional(Box<Form>),
}

impl Form {
    /// The number of values that represent this form.
    pub(super) fn values(&self) -> usize {
        match self {
            Form::Nothing => 0,
            Form::Tensor(_) | Form::Single(_) => 1,
            Form::List(length, _) => *length,
            Form::Packed(_) => 2,
            Form::Optional(held) => 1 + held.values(),
        }
    }

    /// Whether the run decides the rank, the length or the presence.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Form::Single(_) | Form::Packed(_) | Form::Optional(_))
    }

    /// The form in which a sequence may have any length.
    pub(super) fn open(self) -> Form {
        match self {
            Form::List(_, held) => Form::Packed(held),
            Form::Optional(held) => Form::Optional(Box::new(held.open())),
            other => other,
        }
    }

    /// The form that covers both; `None` if there is none, because one is a tensor and the other a sequence, or because
    /// an optional value would be a scalar or a list of one number.
    pub(super) fn or(self, other: Form) -> Option<Form> {
        Some(match (self, other) {
            // A tensor of no type stands for the result of a node that was refused.
            (Form::Tensor(None), other) | (other, Form::Tensor(None)) => other,
            (Form::Nothing, Form::Nothing) => Form::Nothing,
            (Form::Tensor(Some((a, 0))), Form::Tensor(Some((b, 1))))
            | (Form::Tensor(Some((a, 1))), Form::Tensor(Some((b, 0))))
                if a == b =>
            {
                Form::Single(a)
            }
            (Form::Tensor(a), Form::Tensor(_)) => Form::Tensor(a),
            (Form::Single(a), Form::Tensor(_) | Form::Single(_))
            | (Form::Tensor(_), Form::Single(a)) => Form::Single(a),
            (Form::List(a, held), Form::List(b, other)) if a == b => Form::List(a, held.or(other)),
            (Form::List(_, a) | Form::Packed(a), Form::List(_, b) | Form::Packed(b)) => {
                Form::Packed(a.or(b))
            }
            (Form::Optional(a), Form::Optional(b)) => {
                Form::Optional(Box::new(a.or(*b)?.of_one_rank()?))
            }
            (Form::Optional(a), Form::Nothing) | (Form::Nothing, Form::Optional(a)) => {
                Form::Optional(a)
            }
            (Form::Optional(a), b) | (b, Form::Optional(a)) => {
                Form::Optional(Box::new(a.or(b.open())?.of_one_rank()?))
            }
            (Form::Nothing, a) | (a, Form::Nothing) => Form::Optional(Box::new(a.open())),
            (Form::Tensor(_) | Form::Single(_), _) | (_, Form::Tensor(_) | Form::Single(_)) => {
                return None;
            }
        })
    }

    /// The form, unless the rank of its values depends on data.
    pub(super) fn of_one_rank(self) -> Option<Form> {
        match self {
            Form::Single(_) => None,
            other => Some(other),
        }
    }

    /// Builds the meaning of this form from the next values of `ids`.
    pub(super) fn of(&self, ids: &mut impl Iterator<Item = ValueId>) -> Meaning {
        match self {
            Form::Nothing => Meaning::Nothing,
            Form::Tensor(_) | Form::Single(_) => {
                ids.next().map_or(Meaning::Nothing, Meaning::Tensor)
            }
            Form::List(length, _) => Meaning::Sequence(ids.by_ref().take(*length).collect()),
            Form::Packed(held) => match (ids.next(), ids.next()) {
                (Some(data), Some(shapes)) => Meaning::Packed(Packed {
                    data,
                    shapes,
                    ranks: held.ranks,
                }),
                _ => Meaning::Nothing,
            },
            Form::Optional(held) => match ids.next() {
                Some(has) => Meaning::Optional(has, Box::new(held.of(ids))),
                None => Meaning::Nothing,
            },
        }
    }

    /// Types of its values that hold whatever their dimensions are, for which `symbol` makes symbols.
    pub(super) fn types(
        &self,
        symbol: &mut impl FnMut() -> Dim,
        types: &mut Vec<Option<TensorType>>,
    ) {
        let mut tensor =
            |dtype: DType, shape: Vec<Dim>| types.push(Some(TensorType::new(dtype, shape)));
        match self {
            Form::Nothing => {}
            Form::Tensor(None) => types.push(None),
            Form::Tensor(Some((dtype, rank))) => {
                tensor(*dtype, (0..*rank).map(|_| symbol()).collect());
            }
            Form::Single(dtype) => tensor(*dtype, vec![Dim::from(1usize)]),
            Form::List(length, _) => types.extend(vec![None; *length]),
            Form::Packed(held) => {
                tensor(held.dtype.unwrap_or(DType::F32), vec![symbol()]);
                tensor(DType::I64, vec![symbol(), Dim::from(width(held.ranks))]);
            }
            Form::Optional(held) => {
                tensor(DType::Bool, vec![]);
                held.types(symbol, types);
            }
        }
    }
}

impl Importer<'_> {
    /// Returns the dtype and the ranks of a sequence's tensors, as the function under construction knows them.
    pub(super) fn element_type(&self, all: &[ValueId]) -> ElementType {
        let known = all.iter().filter_map(|id| self.b.ty(*id));
        known.fold(ElementType::default(), |held, ty| {
            let rank = ty.shape.len();
            held.or(ElementType {
                dtype: Some(ty.dtype),
                ranks: Some((rank, rank)),
            })
        })
    }

    pub(super) fn form(&self, meaning: &Meaning) -> Form {
        match meaning {
            // A node that reads a map is refused before, and so is a nested graph, or the model's graph, that yields
            // one.
            Meaning::Nothing | Meaning::Map { .. } => Form::Nothing,
            Meaning::Tensor(id) => {
                Form::Tensor(self.b.ty(*id).map(|ty| (ty.dtype, ty.shape.len())))
            }
            Meaning::Sequence(all) => Form::List(all.len(), self.element_type(all)),
            Meaning::Packed(p) => Form::Packed(ElementType {
                dtype: self.b.ty(p.data).map(|ty| ty.dtype),
                ranks: p.ranks,
            }),
            Meaning::Optional(_, held) => Form::Optional(Box::new(self.form(held))),
        }
    }

    /// Represents `meaning` as a value of this form, which covers it, and adds the values to `ids`. `name` and `op` are
    /// the node, for errors. A meaning of another form, which is there because a node was refused, becomes values of no
    /// type.
    pub(super) fn formed(
        &mut self,
        name: &str,
        op: &str,
        meaning: Meaning,
        form: &Form,
        ids: &mut Vec<ValueId>,
    ) -> Result<(), ModelError> {
        let made = match (form, meaning) {
            (Form::Nothing, _) => vec![],
            (Form::Tensor(_), Meaning::Tensor(id)) => {
                self.refuse_single(&Meaning::Tensor(id), name, op);
                vec![id]
            }
            (Form::Single(_), Meaning::Tensor(id)) => {
                let shape = self.b.ints(&format!("{name}/single"), &[1])?;
                let operands = vec![Some(id), Some(shape)];
                let name = format!("{name}/Reshape");
                let names = [name.clone()];
                self.b
                    .emit("Reshape", &name, Attrs::default(), operands, &names)?
            }
            (Form::List(length, _), Meaning::Sequence(all)) if all.len() == *length => all,
            (Form::Packed(held), Meaning::Sequence(all)) => self.packed(name, |e| {
                e.packed(&all, held.dtype.unwrap_or(DType::F32), held.ranks)
            })?,
            (Form::Packed(held), Meaning::Packed(p)) if width(held.ranks) >= width(p.ranks) => self
                .packed(name, |e| {
                    let p = e.of_dtype(p, held.dtype)?;
                    e.widened(p, held.ranks)
                })?,
            (Form::Optional(held), Meaning::Optional(has, what)) => {
                ids.push(has);
                return self.formed(name, op, *what, held, ids);
            }
            (Form::Optional(held), Meaning::Nothing) => {
                ids.push(self.says(name, false)?);
                return self.placeholder(name, op, held, ids);
            }
            (Form::Optional(held), what) => {
                ids.push(self.says(name, true)?);
                return self.formed(name, op, what, held, ids);
            }
            _ => self.no_values(name, form),
        };
        ids.extend(made);
        Ok(())
    }

    /// The expansion of node `name`, which makes a packed sequence.
    fn packed(
        &mut self,
        name: &str,
        make: impl FnOnce(&mut Expansion<'_>) -> Result<Packed, ImportFailure>,
    ) -> Result<Vec<ValueId>, ModelError> {
        let c = ImportedNode::of_expansion(name, vec![]);
        let made = make(&mut Expansion {
            b: &mut self.b,
            c: &c,
        });
        match made {
            Ok(p) => Ok(vec![p.data, p.shapes]),
            Err(ImportFailure::Error(e)) => Err(e),
            Err(_) => Ok(self.b.stand_ins(&[name.into(), name.into()])),
        }
    }

    fn no_values(&mut self, name: &str, form: &Form) -> Vec<ValueId> {
        self.b.stand_ins(&vec![name.to_owned(); form.values()])
    }

    fn says(&mut self, name: &str, has: bool) -> Result<ValueId, ModelError> {
        let has = Tensor::from_bools(&[], &[has]);
        self.some(&format!("{name}/present"), has)
    }

    /// Values of a form that nothing reads.
    fn placeholder(
        &mut self,
        name: &str,
        op: &str,
        form: &Form,
        ids: &mut Vec<ValueId>,
    ) -> Result<(), ModelError> {
        match form {
            Form::Tensor(Some((dtype, rank))) => {
                let zeros = Tensor::zeros(*dtype, &vec![0; *rank]);
                ids.push(self.some(&format!("{name}/nothing"), zeros)?);
                Ok(())
            }
            Form::Packed(_) => self.formed(name, op, Meaning::Sequence(vec![]), form, ids),
            other => {
                let made = self.no_values(name, other);
                ids.extend(made);
                Ok(())
            }
        }
    }

    fn some(
        &mut self,
        name: &str,
        t: Result<Tensor, convoke_graph::tensor::TensorError>,
    ) -> Result<ValueId, ModelError> {
        let t = t.map_err(|e| ModelError::Tensor {
            tensor: name.into(),
            reason: e.to_string(),
        })?;
        Ok(self.b.literal(name, t))
    }

    /// An unknown dimension.
    pub(super) fn unknown_dim(&mut self) -> Dim {
        self.symbols += 1;
        Dim::sym(&format!("carried~{}", self.symbols))
    }
}
