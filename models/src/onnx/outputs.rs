//! The outputs of a model, which are made of the results of its function.
//!
//! A sequence whose length the run decides is two results, the elements and the shapes of its tensors, as
//! `nested::packed` says; an optional value has one more in front of them, whether it is there.

use convoke_graph::Tensor;

use super::inputs::sequence_name;

/// How an output of a model is made of results of its function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputForm {
    /// The name of the output.
    pub name: String,
    /// Whether the run decides if it holds something.
    pub optional: bool,
    /// Whether it is a sequence whose length the run decides. Its tensors are named `NAME[0]`, `NAME[1]` and so on.
    pub sequence: bool,
}

impl OutputForm {
    /// How many results of the function the output is made of.
    pub fn results(&self) -> usize {
        1 + usize::from(self.optional) + usize::from(self.sequence)
    }

    /// The tensors that the output is, with their names. Fails where `results` are not those of such an output.
    pub fn tensors(&self, results: Vec<Tensor>) -> Result<Vec<(String, Tensor)>, String> {
        let mut results = results.into_iter();
        let mut next = || results.next().ok_or("a result is missing");
        if self.optional {
            let present = next()?;
            match present.to_i64s().as_deref() {
                Some([0]) => return Ok(vec![]),
                Some([_]) => {}
                _ => return Err(format!("{present:?} does not say whether it is there")),
            }
        }
        let held = next()?;
        if !self.sequence {
            return Ok(vec![(self.name.clone(), held)]);
        }
        let each = unpacked(&held, &next()?)?.into_iter().enumerate();
        let each = each.map(|(at, t)| (sequence_name(&self.name, at), t));
        Ok(each.collect())
    }
}

/// The tensors of a packed sequence.
fn unpacked(data: &Tensor, shapes: &Tensor) -> Result<Vec<Tensor>, String> {
    let table = shapes.as_slice::<i64>().map_err(|e| e.to_string())?;
    let width = shapes.shape().get(1).copied().unwrap_or(0);
    if width == 0 {
        return Err(format!("{shapes:?} has no shapes"));
    }
    let mut at = 0usize;
    let mut all = Vec::with_capacity(table.len() / width);
    for row in table.chunks_exact(width) {
        let no_shape = || format!("{row:?} is no shape");
        let (rank, dims) = row.split_first().ok_or_else(no_shape)?;
        let dims = usize::try_from(*rank)
            .ok()
            .and_then(|rank| dims.get(..rank));
        let dims = dims.ok_or_else(no_shape)?.iter();
        let dims: Result<Vec<usize>, _> = dims.map(|d| usize::try_from(*d)).collect();
        let dims = dims.map_err(|_| no_shape())?;
        let count = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let end = count
            .and_then(|count| at.checked_add(count))
            .ok_or_else(no_shape)?;
        let part = data
            .outer_range(at, end)
            .and_then(|part| part.reshape(&dims));
        all.push(part.ok_or_else(|| format!("{data:?} has no elements {at}..{end} for {dims:?}"))?);
        at = end;
    }
    match data.shape() == [at] {
        true => Ok(all),
        false => Err(format!(
            "{data:?} has other elements than the {at} of its tensors"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(optional: bool, sequence: bool) -> OutputForm {
        OutputForm {
            name: "y".into(),
            optional,
            sequence,
        }
    }

    fn shapes(rows: &[[i64; 3]]) -> Tensor {
        Tensor::from_slice(&[rows.len(), 3], &rows.concat()).unwrap()
    }

    #[test]
    fn a_packed_sequence_is_its_tensors() {
        let data = Tensor::from_slice(&[5], &[1f32, 2., 3., 4., 5.]).unwrap();
        let table = shapes(&[[0, 1, 1], [2, 2, 2], [1, 0, 1]]);
        let got = form(false, true).tensors(vec![data, table]).unwrap();
        let want = [
            ("y[0]", Tensor::scalar(1f32)),
            (
                "y[1]",
                Tensor::from_slice(&[2, 2], &[2f32, 3., 4., 5.]).unwrap(),
            ),
            ("y[2]", Tensor::from_slice::<f32>(&[0], &[]).unwrap()),
        ];
        assert_eq!(got, want.map(|(name, t)| (name.to_string(), t)));
        let words = Tensor::from_strings(&[2], &["a", "bc"]).unwrap();
        let got = form(false, true).tensors(vec![words, shapes(&[[1, 1, 1], [0, 1, 1]])]);
        assert_eq!(
            got.unwrap()[1].1,
            Tensor::from_strings(&[], &["bc"]).unwrap()
        );
    }

    #[test]
    fn an_optional_output_is_there_or_not() {
        let check = |has: bool, names: &[&str]| {
            let has = Tensor::from_bools(&[], &[has]).unwrap();
            let got = form(true, false)
                .tensors(vec![has, Tensor::scalar(1f32)])
                .unwrap();
            let got: Vec<_> = got.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(got, names);
        };
        check(true, &["y"]);
        check(false, &[]);
    }

    #[test]
    fn results_that_are_no_sequence_are_refused() {
        let data = || Tensor::from_slice(&[4], &[1f32; 4]).unwrap();
        let refused = |rows: &[[i64; 3]]| {
            let got = form(false, true).tensors(vec![data(), shapes(rows)]);
            assert!(got.is_err(), "{rows:?}: {got:?}");
        };
        refused(&[[1, 3, 1]]);
        refused(&[[1, 5, 1]]);
        refused(&[[3, 1, 1]]);
        refused(&[[-1, 1, 1]]);
        refused(&[[2, -2, -2]]);
        refused(&[[2, i64::MAX, i64::MAX], [1, 4, 1]]);
        let form = form(true, true);
        assert!(form.tensors(vec![Tensor::scalar(1f32)]).is_err());
        assert!(form.tensors(vec![]).is_err());
    }
}
