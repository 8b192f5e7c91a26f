//! Signals that end a command which has something to put in order first.

use std::io;
use std::thread;
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};

/// Number that shells add to the number of a signal for the exit code of a program that the signal ended.
const OF_SHELLS: i32 = 128;

/// Calls `then` on a thread of its own at the first SIGTERM, SIGINT or SIGHUP, which then no longer end the process by
/// themselves. `then` gets the exit code of a program that this signal ended.
///
/// # Errors
/// If the operating system refuses a signal handler or starts no thread.
pub(super) fn at_signal(then: impl FnOnce(i32) + Send + 'static) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
    let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
    let [mut terminate, mut interrupt, mut hangup] = {
        let _inside = runtime.enter();
        let [terminate, interrupt, hangup] = kinds.map(signal);
        [terminate?, interrupt?, hangup?]
    };
    thread::Builder::new().name("signals".into()).spawn(move || {
        let kind = runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => SignalKind::terminate(),
                _ = interrupt.recv() => SignalKind::interrupt(),
                _ = hangup.recv() => SignalKind::hangup(),
            }
        });
        then(OF_SHELLS + kind.as_raw_value());
    })?;
    Ok(())
}
