//! The commands, one in each file, except for what several of them need to find a cluster and a model.

pub(crate) mod backup;
pub(crate) mod check;
pub(crate) mod cluster;
pub(crate) mod daemon;
pub(crate) mod drain;
pub(crate) mod generate;
pub(crate) mod model;
pub(crate) mod plan;
pub(crate) mod run;
pub(crate) mod status;
pub(crate) mod token;
pub(crate) mod up;
pub(crate) mod verify;
