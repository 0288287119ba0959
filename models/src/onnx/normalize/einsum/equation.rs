//! The equation of an Einsum.

use std::collections::BTreeMap;

/// An axis by its label: a letter, or an axis that `...` stands for, counted from the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Label {
    Unnamed(usize),
    Letter(char),
}

/// The labels of the operands' axes and of the result's.
#[derive(Debug, PartialEq)]
pub(super) struct Equation {
    pub operands: Vec<Vec<Label>>,
    pub result: Vec<Label>,
}

/// A term as it is written: letters before and after `...`, where that occurs.
struct Term {
    before: Vec<char>,
    after: Option<Vec<char>>,
}

fn term(text: &str) -> Result<Term, String> {
    let letters = |part: &str| -> Result<Vec<char>, String> {
        match part.chars().find(|c| !c.is_ascii_alphabetic()) {
            Some(other) => Err(format!("'{other}' is no letter")),
            None => Ok(part.chars().collect()),
        }
    };
    match text.split_once("...") {
        None => Ok(Term {
            before: letters(text)?,
            after: None,
        }),
        Some((before, after)) => Ok(Term {
            before: letters(before)?,
            after: Some(letters(after)?),
        }),
    }
}

impl Term {
    fn named(&self) -> usize {
        self.before.len() + self.after.as_ref().map_or(0, Vec::len)
    }

    /// The labels, where `...` stands for `unnamed` axes.
    fn labels(&self, unnamed: usize) -> Vec<Label> {
        let letters = |part: &[char]| part.iter().copied().map(Label::Letter).collect::<Vec<_>>();
        let mut all = letters(&self.before);
        if let Some(after) = &self.after {
            all.extend((0..unnamed).rev().map(Label::Unnamed));
            all.extend(letters(after));
        }
        all
    }
}

impl Equation {
    /// Reads an equation for operands of these ranks, or says what is wrong with it.
    pub(super) fn parse(text: &str, ranks: &[usize]) -> Result<Equation, String> {
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let (left, right) = match text.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (text.as_str(), None),
        };
        let terms: Vec<Term> = left.split(',').map(term).collect::<Result<_, _>>()?;
        if terms.len() != ranks.len() {
            let (terms, operands) = (terms.len(), ranks.len());
            return Err(format!("has {terms} terms for {operands} operands"));
        }
        let mut operands = Vec::with_capacity(terms.len());
        for (i, (term, rank)) in terms.iter().zip(ranks).enumerate() {
            let unnamed = rank.checked_sub(term.named());
            match unnamed {
                Some(0) => {}
                Some(_) if term.after.is_some() => {}
                _ => return Err(format!("term {i} does not fit an operand of rank {rank}")),
            }
            operands.push(term.labels(unnamed.unwrap_or(0)));
        }
        let mut uses: BTreeMap<Label, usize> = BTreeMap::new();
        for label in operands.iter().flatten() {
            *uses.entry(*label).or_default() += 1;
        }
        let unnamed = uses
            .keys()
            .filter(|l| matches!(l, Label::Unnamed(_)))
            .count();
        let result = match right {
            Some(right) => {
                let right = term(right)?;
                if right.after.is_none() && unnamed > 0 {
                    return Err("has '...' in a term and not in the result".into());
                }
                right.labels(unnamed)
            }
            None => {
                let once = uses.iter().filter(|(_, n)| **n == 1);
                let letters = once
                    .map(|(l, _)| *l)
                    .filter(|l| matches!(l, Label::Letter(_)));
                (0..unnamed)
                    .rev()
                    .map(Label::Unnamed)
                    .chain(letters)
                    .collect()
            }
        };
        for (i, label) in result.iter().enumerate() {
            if let Label::Letter(letter) = label
                && (!uses.contains_key(label) || result[..i].contains(label))
            {
                return Err(format!(
                    "has '{letter}' in the result, but not once, or in no term"
                ));
            }
        }
        Ok(Equation { operands, result })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(labels: &[Label]) -> String {
        let letter = |l: &Label| match l {
            Label::Letter(c) => *c,
            Label::Unnamed(i) => char::from(b'0' + *i as u8),
        };
        labels.iter().map(letter).collect()
    }

    #[test]
    fn labels_every_axis() {
        let check = |text: &str, ranks: &[usize], operands: &[&str], result: &str| {
            let e = Equation::parse(text, ranks).unwrap();
            let found: Vec<String> = e.operands.iter().map(|o| written(o)).collect();
            assert_eq!(
                (
                    found.iter().map(String::as_str).collect::<Vec<_>>(),
                    written(&e.result)
                ),
                (operands.to_vec(), result.into()),
                "{text}"
            );
        };
        check("ij,jk->ik", &[2, 2], &["ij", "jk"], "ik");
        check("ij , jk", &[2, 2], &["ij", "jk"], "ik");
        check("ba,Ab", &[2, 2], &["ba", "Ab"], "Aa");
        check("...ii->...i", &[4], &["10ii"], "10i");
        check("...ij,j...->i...", &[4, 1], &["10ij", "j"], "i10");
        check("a...,...b", &[3, 2], &["a10", "0b"], "10ab");
        check("i->", &[1], &["i"], "");
        check("->", &[0], &[""], "");
        check("", &[0], &[""], "");
    }

    #[test]
    fn refuses_what_has_no_meaning() {
        let check = |text: &str, ranks: &[usize], cause: &str| {
            let e = Equation::parse(text, ranks).unwrap_err();
            assert!(e.contains(cause), "{text}: {e}");
        };
        check("ij,jk->ik", &[2], "2 terms for 1 operands");
        check("ij->i", &[3], "term 0 does not fit an operand of rank 3");
        check("i...j->ij", &[1], "term 0 does not fit");
        check("i1->i", &[2], "'1' is no letter");
        check("i->j", &[1], "'j'");
        check("i->ii", &[1], "'i'");
        check("......i->i", &[3], "'.' is no letter");
        check("...i->i", &[3], "'...'");
        check("i->i->i", &[1], "'-' is no letter");
    }
}
