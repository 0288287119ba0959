//! The tables of the core, and what they hold. Plans, quarantine and known use keep their own bounds; the core asks for
//! the others before it adds. The rules that concern several tables are the core's.

pub mod drivers;
pub mod exposure;
pub mod known_use;
pub mod leases;
pub mod links;
pub mod member;
pub mod offer;
pub mod plans;
pub mod quarantine;
