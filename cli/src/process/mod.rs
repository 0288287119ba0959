//! This process and those that it starts: resources, folders, signals, and who watches over them.

pub(crate) mod allocator;
pub(crate) mod children;
pub(crate) mod folders;
pub(crate) mod health;
pub(crate) mod machine;
pub(crate) mod processes;
pub(crate) mod run_dir;
pub(crate) mod signals;
pub(crate) mod watchdog;
