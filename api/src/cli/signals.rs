//! Signals that end a command. The command can clean up before it ends.

use std::io;
use std::thread;
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};

/// The exit code of a program that a signal ended is, in shells, this number plus the number of the signal.
const OF_SHELLS: i32 = 128;

/// Calls `then` on a thread of its own at the first SIGTERM, SIGINT or SIGHUP. These signals no longer end the process
/// by themselves. `then` gets the exit code that shells give to a program that the signal ended.
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
