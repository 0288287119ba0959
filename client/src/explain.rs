//! A plan without its execution.

use convoke_common::Tensor;
use convoke_common::dim::Bindings;
use convoke_common::error::{Code, Error, Result};
use convoke_common::rpc::PlanSummary;

use crate::builder::ModelBuilder;

impl ModelBuilder {
    /// Says who would get what, for inputs of these sizes; nothing is loaded or installed. Inputs may be left out
    /// where [`ModelBuilder::dim`] bounds every dynamic axis.
    pub async fn explain<N: Into<String>>(
        self,
        inputs: impl IntoIterator<Item = (N, Tensor)>,
    ) -> Result<PlanSummary> {
        let given: Vec<(String, Tensor)> = inputs.into_iter().map(|(n, t)| (n.into(), t)).collect();
        let net = self.cluster.net.clone();
        let planned = net.run(async move {
            let inner = self.import().await?;
            let bindings = match given.is_empty() {
                true => Bindings::new(),
                false => inner.arrange(given)?.1,
            };
            let open = inner.unbounded(&inner.bounds_for(&bindings));
            if !open.is_empty() {
                let msg = format!(
                    "the sizes of these dynamic axes are not known: {}",
                    open.join(", ")
                );
                return Err(Error::new(Code::InvalidArgument, msg)
                    .advise("give inputs, or bound each axis, for example with --dim seq=512"));
            }
            inner.planned(&bindings, vec![]).await
        });
        Ok(planned.await?.summary)
    }
}
