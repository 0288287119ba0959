//! Ops of the domain `ai.onnx.ml`, by ops of the registry.
//!
//! Large attributes become operands, which are stored as weights are. Where ONNX leaves the meaning open, these ops do
//! what ONNX Runtime does.

mod coupling;
mod encoders;
mod ensemble;
mod features;
mod linear;
mod maps;
mod rows;
mod svm;
mod transform;
mod trees;

pub(in super::super) use maps::of_map;

use super::super::import::Importer;
use super::node::{ImportedNode, Outputs, unsupported};

/// Imports a node of the domain `ai.onnx.ml`, whose tensor attributes are there as a whole.
pub(in super::super) fn learned(i: &mut Importer<'_>, c: ImportedNode) -> Outputs {
    if c.follows_a_refusal(&i.b) {
        return Ok(i.b.stand_ins(&c.outputs));
    }
    match c.op.as_str() {
        "ArrayFeatureExtractor" => features::extract(i, c),
        "Binarizer" => features::binarizer(i, c),
        "CategoryMapper" => encoders::category_mapper(i, c),
        "FeatureVectorizer" => features::vectorizer(i, c),
        "Imputer" => features::imputer(i, c),
        "LabelEncoder" => encoders::label_encoder(i, c),
        "LinearClassifier" => linear::classifier(i, c),
        "LinearRegressor" => linear::regressor(i, c),
        "Normalizer" => features::normalizer(i, c),
        "OneHotEncoder" => encoders::one_hot(i, c),
        "SVMClassifier" => svm::classifier(i, c),
        "SVMRegressor" => svm::regressor(i, c),
        "Scaler" => features::scaler(i, c),
        "TreeEnsemble" => trees::ensemble(i, c),
        "TreeEnsembleClassifier" => trees::classifier(i, c),
        "TreeEnsembleRegressor" => trees::regressor(i, c),
        "ZipMap" => maps::zip_map(i, c),
        "CastMap" | "DictVectorizer" => Err(c.error("its operand is no map").into()),
        _ => Err(unsupported("")),
    }
}
