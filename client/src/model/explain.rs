//! Plans that are explained, and not installed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use convoke_common::error::{Code, Error, Result};
use convoke_common::rpc::{Intent, PlanAnswer, PlanSummary};
use convoke_graph::dim::Bindings;
use convoke_graph::program::Axes;
use convoke_graph::{Printable, printable};
use convoke_models::onnx::{Annotated, Origins, annotate};

use crate::calls::function::{Growth, Inner, typed};
use crate::model::builder::{ModelBuilder, Origin};
use crate::model::signature::{ArrayType, Signature, signatures};

impl ModelBuilder {
    /// Plans the model for inputs of these types (tensors, or [`ArrayType`]), and returns which worker would get which
    /// part; nothing is loaded or installed. Inputs may be left out where [`ModelBuilder::dim`] bounds every dynamic
    /// axis.
    pub async fn explain<N: Into<String>, T: Into<ArrayType>>(
        self,
        inputs: impl IntoIterator<Item = (N, T)>,
    ) -> Result<PlanSummary> {
        let given = typed(inputs);
        self.explain_with(move |_| given).await
    }

    /// Plans the model as [`ModelBuilder::explain`] does, for the inputs that `fit` chooses once the model's parameters
    /// are known.
    pub async fn explain_with(
        self,
        fit: impl FnOnce(&[Signature]) -> Vec<(String, ArrayType)> + Send + 'static,
    ) -> Result<PlanSummary> {
        let (net, progress) = (self.cluster.net.clone(), self.options.progress.clone());
        let planned = net.run(async move {
            let inner = self.import().await?;
            let given = fit(&signatures(&inner.function).0);
            explained(&inner, given).await
        });
        Ok(progress.awaiting(&net, planned).await?.summary)
    }

    /// Plans the model as [`ModelBuilder::explain`] does, and writes its file once more to `path`, with the plan as
    /// ONNX's annotations of devices: whoever loads that file on workers of the same names gets the same placement. The
    /// rest of the file stays as it is, so that the data of a model which lies in other files must lie beside the new
    /// file, too.
    pub async fn save_annotated<N: Into<String>, T: Into<ArrayType>>(
        self,
        inputs: impl IntoIterator<Item = (N, T)>,
        path: impl AsRef<Path>,
    ) -> Result<(PlanSummary, Annotated)> {
        let given = typed(inputs);
        self.save_annotated_with(move |_| given, path).await
    }

    /// Plans and writes the model as [`ModelBuilder::save_annotated`] does, for the inputs that `fit` chooses once the
    /// model's parameters are known.
    pub async fn save_annotated_with(
        self,
        fit: impl FnOnce(&[Signature]) -> Vec<(String, ArrayType)> + Send + 'static,
        path: impl AsRef<Path>,
    ) -> Result<(PlanSummary, Annotated)> {
        let Origin::File(from) = &self.origin else {
            let msg = "a function has no file that could be annotated";
            return Err(Error::new(Code::InvalidArgument, msg));
        };
        let (from, to) = (from.clone(), path.as_ref().to_owned());
        let (net, progress) = (self.cluster.net.clone(), self.options.progress.clone());
        let world = self.cluster.session.world.clone();
        let saved = net.run(async move {
            let mut read = self.read().await?;
            let origins = std::mem::take(&mut read.origins);
            let sources = read.sources.iter().map(|s| s.path().to_owned());
            let data: Vec<PathBuf> = sources.chain(self.weights.iter().cloned()).collect();
            let mut inner = self.prepared(read).await?;
            inner.options.list_nodes = true;
            let given = fit(&signatures(&inner.function).0);
            let planned = explained(&inner, given).await?;
            let summary = planned.summary.clone();
            let (done, result) = tokio::sync::oneshot::channel();
            world.store.run_blocking(Box::new(move || {
                // The receiver is gone when the caller gave up.
                drop(done.send(write(&from, &to, &data, &origins, &planned)));
            }));
            let result = result.await;
            let annotated =
                result.map_err(|_| Error::internal("the writer ended without a result"))??;
            Ok((summary, annotated))
        });
        progress.awaiting(&net, saved).await
    }
}

/// Plans `inner` for inputs of these types.
async fn explained(inner: &Inner, given: Vec<(String, ArrayType)>) -> Result<PlanAnswer> {
    let bindings = match given.is_empty() {
        true => Bindings::new(),
        false => inner.sizes(given)?,
    };
    let beyond = bindings.iter().find_map(|(symbol, size)| {
        let most = inner.bounds.get(&**symbol).filter(|most| *most < size)?;
        Some((Printable(symbol), *most, *size))
    });
    if let Some((symbol, most, size)) = beyond {
        let msg = format!("the axis {symbol} is bounded by {most}, and the inputs have {size}");
        let advice = format!(
            "bound it by {size} or more, with --dim {symbol}={size}, or leave the bound out"
        );
        return Err(Error::new(Code::InvalidArgument, msg).advise(advice));
    }
    let open = inner.unbounded(&inner.bounds_for(&bindings, Growth::None, &Axes::default()));
    if !open.is_empty() {
        let msg = format!(
            "the sizes of these dynamic axes are not known: {}",
            printable::list(open.iter().map(|s| &**s))
        );
        return Err(Error::new(Code::InvalidArgument, msg)
            .advise("give inputs, or bound each axis, for example with --dim seq=512"));
    }
    let former = Axes::default();
    let planned = inner.planned(&bindings, &former, vec![], None, Intent::Explain);
    planned.await
}

/// Writes the model at `from`, which has `data` in other files, to `to`, with the parts of the plan as stages.
fn write(
    from: &Path,
    to: &Path,
    data: &[PathBuf],
    origins: &Origins,
    planned: &PlanAnswer,
) -> Result<Annotated> {
    let parts = planned.summary.parts.iter();
    let devices: Vec<String> = parts.map(|p| p.name.clone()).collect();
    let part_of = parts_of(&planned.nodes[..planned.nodes.len().min(devices.len())]);
    let device_of = |name: &str| part_of.get(name).copied();
    Ok(annotate(from, to, data, &devices, origins, &device_of)?)
}

/// The part that each node runs in. A fused node lists the names of the nodes that it was made of; the whole name is
/// looked up first, since the name of a single node may look like such a list.
fn parts_of(nodes: &[Vec<String>]) -> HashMap<&str, usize> {
    let each = || {
        let parts = nodes.iter().enumerate();
        parts.flat_map(|(part, names)| names.iter().map(move |name| (name.as_str(), part)))
    };
    let pieces = each().flat_map(|(name, part)| name.split('+').map(move |piece| (piece, part)));
    pieces.chain(each()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_runs_in_the_part_of_its_name_or_of_a_list_with_it() {
        let parts = [vec!["b".into(), "c".into()], vec!["a+b".into()]];
        let found = parts_of(&parts);
        let of = ["a+b", "a", "b", "c", "d"].map(|name| found.get(name).copied());
        assert_eq!(of, [Some(1), Some(1), Some(0), Some(0), None]);
    }
}
