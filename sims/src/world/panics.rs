//! Panics: those that a scenario injects are silent, and all others are kept as evidence. tokio and the executor catch
//! panics, so that nothing else would reveal one that production code did not mean.

use std::cell::{Cell, RefCell};
use std::sync::Once;

use super::gate::current_host;

thread_local! {
    static INJECTED: Cell<bool> = const { Cell::new(false) };
    static UNEXPECTED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Starts to watch for panics on all threads. Further calls do nothing.
pub fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if INJECTED.replace(false) {
                return;
            }
            if let Some(host) = current_host() {
                UNEXPECTED.with_borrow_mut(|all| all.push(format!("{host}: {info}")));
            }
            before(info);
        }));
    });
}

/// Panics on behalf of a scenario.
pub fn injected(what: &str) -> ! {
    INJECTED.set(true);
    panic!("injected: {what}")
}

/// Returns the panics of simulated hosts on this thread since the last call, without those that were injected.
pub fn unexpected() -> Vec<String> {
    UNEXPECTED.take()
}
