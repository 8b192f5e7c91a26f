//! A server inside another program: tests and embedding.

use crate::boot::BootError;
use crate::boot::run::Bound;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::JoinHandle;
use tiercel_actors::EngineHandle;
use tiercel_config::ServerSettings;
use tokio::sync::oneshot;

/// A server on its own thread.
pub struct Running {
    address: SocketAddr,
    ready: mpsc::Receiver<EngineHandle>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<(), BootError>>,
}

/// Starts a server; its address is taken when this returns, its model may still be loading.
///
/// # Errors
/// [`BootError`] if the address or a thread cannot be had.
pub fn start(settings: ServerSettings) -> Result<Running, BootError> {
    let bound = Bound::bind(settings)?;
    let address = bound.address();
    let (stop, stopped) = oneshot::channel();
    let (on_ready, ready) = mpsc::sync_channel(1);
    let serve = move || {
        actix_rt::System::new().block_on(async move {
            // A dropped `Running` stops its server too.
            let shutdown = async { drop(stopped.await) };
            // Nobody may be waiting; the server serves all the same.
            bound.run(shutdown, move |engine| drop(on_ready.send(engine))).await
        })
    };
    let thread = std::thread::Builder::new()
        .name("tiercel-main".into())
        .spawn(serve)
        .map_err(|source| BootError::System { what: "the main thread", source })?;
    Ok(Running { address, ready, stop, thread })
}

impl Running {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until requests can be served. Ask once.
    ///
    /// # Errors
    /// Why it never will.
    pub fn ready(self) -> Result<(EngineHandle, Running), BootError> {
        match self.ready.recv() {
            Ok(engine) => Ok((engine, self)),
            Err(_) => Err(self.stop().err().unwrap_or(BootError::HttpStopped)),
        }
    }

    /// Drains and stops.
    ///
    /// # Errors
    /// Why it had died before.
    pub fn stop(self) -> Result<(), BootError> {
        // The server may be gone already; its result says why.
        let _ = self.stop.send(());
        self.thread.join().unwrap_or_else(|_| Err(BootError::EngineDied("a panic".into())))
    }
}
