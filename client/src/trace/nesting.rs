//! A limit on how deep closures of functions run within each other: each level takes room on the thread's stack.

use std::cell::Cell;

use convoke_common::error::{Code, Error, Result};

/// How many functions may run within each other at most.
const DEEPEST: u32 = 64;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Marks that a function's closure runs on this thread, until the mark is dropped.
pub(crate) struct FunctionScope(());

/// Marks that the closure of function `name` is about to run. Fails where too many run already.
pub(crate) fn enter(name: &str) -> Result<FunctionScope> {
    let depth = DEPTH.get();
    if depth == DEEPEST {
        let msg = format!("{name} is within {DEEPEST} other calls of functions");
        return Err(Error::new(Code::InvalidArgument, msg).advise(
            "where it calls itself, end that by what is known when it is traced, as a shape",
        ));
    }
    DEPTH.set(depth + 1);
    Ok(FunctionScope(()))
}

impl Drop for FunctionScope {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get().saturating_sub(1));
    }
}
