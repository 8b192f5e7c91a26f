#![allow(missing_docs, unreachable_pub, clippy::all)]
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex};

static ACTIVE: LazyLock<u32> = LazyLock::new(|| {
    std::env::var("TIERCEL_MUTANT").ok().and_then(|number| number.parse().ok()).unwrap_or(0)
});
static REACHED: [AtomicBool; 8192] = [const { AtomicBool::new(false) }; 8192];
static LOG: LazyLock<Option<Mutex<std::fs::File>>> = LazyLock::new(|| {
    let path = std::env::var_os("TIERCEL_MUTANT_LOG")?;
    Some(Mutex::new(std::fs::OpenOptions::new().create(true).append(true).open(path).ok()?))
});

#[inline]
pub(crate) fn at(place: u32) -> u32 {
    if !REACHED[place as usize].load(Ordering::Relaxed) {
        first(place);
    }
    *ACTIVE
}

#[cold]
fn first(place: u32) {
    if !REACHED[place as usize].swap(true, Ordering::Relaxed)
        && let Some(log) = &*LOG
        && let Ok(mut log) = log.lock()
    {
        let _ = writeln!(log, "{place}");
    }
}
