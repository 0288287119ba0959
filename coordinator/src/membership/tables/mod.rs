//! The tables of the core, and what they hold. Each table keeps its own bounds; the rules that concern several tables
//! are the core's.

pub mod drivers;
pub mod exposure;
pub mod known_use;
pub mod leases;
pub mod links;
pub mod member;
pub mod offer;
pub mod plans;
pub mod quarantine;
