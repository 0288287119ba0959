//! Plans that are explained, and not installed.

use convoke_common::error::{Code, Error, Result};
use convoke_common::rpc::{Intent, PlanSummary};
use convoke_graph::dim::Bindings;
use convoke_graph::printable;

use crate::calls::function::typed;
use crate::model::ArrayType;
use crate::model::builder::ModelBuilder;

impl ModelBuilder {
    /// Plans the model for inputs of these types (tensors, or [`ArrayType`]), and returns which worker would get which
    /// part; nothing is loaded or installed. Inputs may be left out where [`ModelBuilder::dim`] bounds every dynamic
    /// axis.
    pub async fn explain<N: Into<String>, T: Into<ArrayType>>(
        self,
        inputs: impl IntoIterator<Item = (N, T)>,
    ) -> Result<PlanSummary> {
        let given = typed(inputs);
        let (net, progress) = (self.cluster.net.clone(), self.progress.clone());
        let planned = net.run(async move {
            let inner = self.import().await?;
            let bindings = match given.is_empty() {
                true => Bindings::new(),
                false => inner.sizes(given)?,
            };
            let open = inner.unbounded(&inner.bounds_for(&bindings));
            if !open.is_empty() {
                let msg = format!(
                    "the sizes of these dynamic axes are not known: {}",
                    printable::list(open.iter().map(|s| &**s))
                );
                return Err(Error::new(Code::InvalidArgument, msg)
                    .advise("give inputs, or bound each axis, for example with --dim seq=512"));
            }
            inner
                .planned(&bindings, vec![], None, Intent::Explain)
                .await
        });
        Ok(progress.awaiting(&net, planned).await?.summary)
    }
}
