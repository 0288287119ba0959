//! Elements of each type and form: whole numbers, small floats, codes, strings, and sparse constants.

mod integers;
mod narrow;
mod quantised;
mod rare;
mod sparse;
mod strings;

use super::*;
