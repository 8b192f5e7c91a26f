//! Catches panics during a fuzzing scenario and keeps their messages. Otherwise, of an actor that dies of a panic only
//! the name is known.

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;

thread_local! {
    static LISTENING: Cell<bool> = const { Cell::new(false) };
    static FIRST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `work` and catches panics on this thread.
///
/// # Errors
/// Returns the message of the first panic on this thread during `work`, even if `work` caught the panic. These panics
/// are not printed; panics of other threads are printed as usual.
pub(super) fn listen<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if LISTENING.get() {
                note(info);
            } else {
                usual(info);
            }
        }));
    });
    LISTENING.set(true);
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    LISTENING.set(false);
    match (done, FIRST.take()) {
        (Ok(done), None) => Ok(done),
        (_, said) => Err(said.unwrap_or_default()),
    }
}

fn note(info: &PanicHookInfo<'_>) {
    let payload = info.payload();
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic");
    let place = info.location().map(|at| format!(" ({}:{})", at.file(), at.line()));
    FIRST.with_borrow_mut(|first| {
        first.get_or_insert_with(|| format!("{text}{}", place.unwrap_or_default()));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_panic_that_was_caught_is_told() {
        let said = listen(|| {
            let caught = panic::catch_unwind(|| panic!("one"));
            assert!(caught.is_ok(), "two");
        });
        let said = said.expect_err("two panics");
        assert!(said.starts_with("one (") && said.contains("panics.rs"), "{said}");
        assert_eq!(listen(|| 7), Ok(7));
    }
}
