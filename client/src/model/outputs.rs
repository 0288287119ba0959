//! The results of a model's calls.

use convoke_graph::Tensor;

/// The results of a call by name, in the model's order. A sequence whose length the data decide appears as that many
/// results, `NAME[0]`, `NAME[1]` and so on, and an optional value that holds nothing gives no result.
#[derive(Debug, Clone, PartialEq)]
pub struct Outputs(pub Vec<(String, Tensor)>);

impl Outputs {
    /// The result of this name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, t)| t)
    }
}

impl std::ops::Index<&str> for Outputs {
    type Output = Tensor;

    /// # Panics
    /// Panics where there is no such result; [`Outputs::get`] returns `None` instead.
    fn index(&self, name: &str) -> &Tensor {
        match self.get(name) {
            Some(t) => t,
            None => panic!("the model has no output '{name}'"),
        }
    }
}
