//! The operands of a launch: in registers of its interpreter, and among constants.

use convoke_graph::Tensor;

/// The place in which an interpreter keeps a value; empty before it is made and after its last use.
pub type Register = Option<Tensor>;

/// The encoded place of one operand: where it is, and whether the launch is the last to read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperandRef(u32);

/// The decoded form of an [`OperandRef`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperandPlace {
    /// The place of an optional operand that is left out.
    Nothing,
    /// A constant, by number.
    Constant(u32),
    /// A register that is read again later.
    Read(u32),
    /// A register that is not read again later: its tensor may be taken and overwritten.
    Last(u32),
}

const KIND: u32 = 0b11 << 30;
const NOTHING: u32 = 0;
const CONSTANT: u32 = 1 << 30;
const READ: u32 = 2 << 30;
const LAST: u32 = 3 << 30;

/// Most registers, and most constants, that slots can name.
pub const MOST_SLOTS: usize = 1 << 30;

impl OperandRef {
    /// Encodes a place. Its number must be below [`MOST_SLOTS`].
    #[inline]
    pub fn new(place: OperandPlace) -> OperandRef {
        OperandRef(match place {
            OperandPlace::Nothing => NOTHING,
            OperandPlace::Constant(i) => CONSTANT | i,
            OperandPlace::Read(i) => READ | i,
            OperandPlace::Last(i) => LAST | i,
        })
    }

    /// Decodes the place.
    #[inline]
    pub fn place(self) -> OperandPlace {
        let i = self.0 & !KIND;
        match self.0 & KIND {
            CONSTANT => OperandPlace::Constant(i),
            READ => OperandPlace::Read(i),
            LAST => OperandPlace::Last(i),
            _ => OperandPlace::Nothing,
        }
    }
}

/// The operands of one launch.
pub struct Operands<'a>(Source<'a>);

/// The storage of the operands.
enum Source<'a> {
    Slots {
        slots: &'a [OperandRef],
        registers: &'a mut [Register],
        constants: &'a [Tensor],
    },
    /// Operands of which each may be taken.
    Given(&'a mut [Register]),
    /// Borrowed operands, which may only be read.
    Shown(&'a [Option<&'a Tensor>]),
}

impl<'a> Operands<'a> {
    /// The operands whose places are `slots`.
    #[inline]
    pub fn at(
        slots: &'a [OperandRef],
        registers: &'a mut [Register],
        constants: &'a [Tensor],
    ) -> Operands<'a> {
        Operands(Source::Slots {
            slots,
            registers,
            constants,
        })
    }

    /// Operands that the kernel may take.
    #[inline]
    pub fn given(all: &'a mut [Register]) -> Operands<'a> {
        Operands(Source::Given(all))
    }

    /// Operands that are only borrowed.
    #[inline]
    pub fn shown(all: &'a [Option<&'a Tensor>]) -> Operands<'a> {
        Operands(Source::Shown(all))
    }

    /// Number of operands, including those that are left out.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            Source::Slots { slots, .. } => slots.len(),
            Source::Given(all) => all.len(),
            Source::Shown(all) => all.len(),
        }
    }

    /// Whether there are no operands.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Operand `i`; `None` where it is left out or was taken.
    #[inline]
    pub fn get(&self, i: usize) -> Option<&Tensor> {
        match &self.0 {
            Source::Slots {
                slots,
                registers,
                constants,
            } => match slots.get(i)?.place() {
                OperandPlace::Nothing => None,
                OperandPlace::Constant(c) => constants.get(c as usize),
                OperandPlace::Read(r) | OperandPlace::Last(r) => {
                    registers.get(r as usize)?.as_ref()
                }
            },
            Source::Given(all) => all.get(i)?.as_ref(),
            Source::Shown(all) => *all.get(i)?,
        }
    }

    /// All operands, in order.
    pub fn iter(&self) -> impl Iterator<Item = Option<&Tensor>> {
        (0..self.len()).map(|i| self.get(i))
    }

    /// Moves operand `i` out where the launch is the last to read it, and clones it otherwise.
    #[inline]
    pub fn take(&mut self, i: usize) -> Option<Tensor> {
        match &mut self.0 {
            Source::Slots {
                slots,
                registers,
                constants,
            } => match slots.get(i)?.place() {
                OperandPlace::Nothing => None,
                OperandPlace::Constant(c) => constants.get(c as usize).cloned(),
                OperandPlace::Read(r) => registers.get(r as usize)?.clone(),
                OperandPlace::Last(r) => registers.get_mut(r as usize)?.take(),
            },
            Source::Given(all) => all.get_mut(i)?.take(),
            Source::Shown(all) => (*all.get(i)?).cloned(),
        }
    }

    /// Operand `i`, if it may be overwritten: it is not read later, and no other tensor shares its buffer.
    #[inline]
    pub fn own(&self, i: usize) -> Option<&Tensor> {
        match &self.0 {
            Source::Slots {
                slots, registers, ..
            } => match slots.get(i)?.place() {
                OperandPlace::Last(r) => registers.get(r as usize)?.as_ref(),
                _ => None,
            },
            Source::Given(all) => all.get(i)?.as_ref(),
            Source::Shown(_) => None,
        }
        .filter(|t| t.is_unique())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_reader_may_overwrite() {
        let scalar = |x: f32| Tensor::scalar(x);
        let mut registers = [Some(scalar(1.)), Some(scalar(2.)), None];
        let constants = [scalar(3.)];
        let slots = [
            OperandPlace::Read(0),
            OperandPlace::Last(1),
            OperandPlace::Constant(0),
            OperandPlace::Nothing,
            OperandPlace::Last(2),
        ]
        .map(OperandRef::new);
        let mut all = Operands::at(&slots, &mut registers, &constants);
        let values: Vec<_> = all.iter().map(|t| t.cloned()).collect();
        let given = [1., 2., 3.].map(|x| Some(scalar(x)));
        assert_eq!(values[..3], given);
        assert_eq!(values[3..], [None, None]);
        drop(values);
        let own: Vec<bool> = (0..5).map(|i| all.own(i).is_some()).collect();
        assert_eq!(own, [false, true, false, false, false]);
        let taken: Vec<_> = (0..5).map(|i| all.take(i)).collect();
        assert_eq!(taken[..3], given);
        assert!(all.get(0).is_some() && all.get(1).is_none() && all.get(2).is_some());
        drop(taken);
        let mut given = [Some(scalar(4.)), None];
        let mut all = Operands::given(&mut given);
        assert_eq!((all.len(), all.own(0).is_some()), (2, true));
        assert_eq!((all.take(0), all.take(1)), (Some(scalar(4.)), None));
    }

    #[test]
    fn what_is_only_shown_stays_as_it_is() {
        let x = Tensor::scalar(5f32);
        let shown = [Some(&x), None];
        let mut all = Operands::shown(&shown);
        assert_eq!((all.len(), all.get(0), all.get(1)), (2, Some(&x), None));
        assert!(all.own(0).is_none() && all.get(2).is_none());
        assert_eq!(
            (all.take(0), all.take(0)),
            (Some(x.clone()), Some(x.clone()))
        );
    }
}
