//! Signals: shutdown by SIGTERM or ctrl-C (SIGINT), and SIGHUP.

use crate::boot::BootError;
use std::future::pending;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// Exit code of the process after a second SIGTERM or ctrl-C: 130, as shells report an interrupted program.
const INTERRUPTED: i32 = 130;

/// Returns a future that resolves at the first SIGTERM or ctrl-C, to begin the shutdown. A second signal ends the process
/// at once, whether the future is awaited or not. Must be called in an actix system.
///
/// # Errors
/// If the operating system refuses a signal handler.
pub(crate) fn shutdown() -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (first, came) = oneshot::channel();
    actix_rt::spawn(async move {
        let name = either(&mut terminate, &mut interrupt).await;
        tracing::info!(signal = name, "shutting down; a second signal exits at once");
        // The send fails if the server is shutting down already, because an operator asked for a drain for example.
        let _ = first.send(());
        either(&mut terminate, &mut interrupt).await;
        std::process::exit(INTERRUPTED);
    });
    Ok(async move {
        if came.await.is_err() {
            pending::<()>().await;
        }
    })
}

/// Returns the signals SIGHUP that arrive from now on; they no longer end the process.
///
/// # Errors
/// [`BootError::System`] if the operating system refuses the signal handler.
pub(crate) fn hangup() -> Result<Signal, BootError> {
    signal(SignalKind::hangup())
        .map_err(|source| BootError::System { what: "the handler of SIGHUP", source })
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}
