//! TfIdfVectorizer, whose tables are attributes in ONNX and operands here.

use convoke_graph::Tensor;
use convoke_graph::graph::Attr;

use super::super::super::import::Importer;
use super::super::node::{ImportedNode, Outputs};

/// Imports TfIdfVectorizer.
pub(in super::super::super) fn tf_idf(i: &mut Importer<'_>, mut c: ImportedNode) -> Outputs {
    let pool = c.take_labels("pool_int64s", "pool_strings")?;
    let pool = pool.ok_or_else(|| c.error("has no pool"))?;
    let indexes = c.take_ints("ngram_indexes")?.unwrap_or_default();
    let weights = c.take_floats("weights")?.filter(|w| !w.is_empty());
    let columns = indexes.iter().max().and_then(|most| most.checked_add(1));
    let columns = columns.filter(|columns| *columns > 0);
    let columns = columns.ok_or_else(|| c.wrong("ngram_indexes", "columns of the result"))?;
    let error = |e: convoke_graph::tensor::TensorError| c.error(e.to_string());
    let indexes = Tensor::from_slice(&[indexes.len()], &indexes).map_err(error)?;
    let weights = weights.map(|w| Tensor::from_slice(&[w.len()], &w).map_err(error));
    let weights = weights.transpose()?;
    let pool = i.table(&c.sub("pool"), pool)?;
    let indexes = i.table(&c.sub("indexes"), indexes)?;
    c.set(1, Some(pool));
    c.set(2, Some(indexes));
    if let Some(weights) = weights {
        let weights = i.table(&c.sub("weights"), weights)?;
        c.set(3, Some(weights));
    }
    c.attrs = c.attrs.with("columns", Attr::Int(columns));
    c.emit(&mut i.b)
}
