//! A server inside another program: tests and embedding.

use crate::boot::BootError;
use crate::boot::run::Bound;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::JoinHandle;
use tiercel_actors::EngineHandle;
use tiercel_config::ServerSettings;
use tokio::sync::oneshot;

/// A server whose model may still be loading.
pub struct Starting {
    address: SocketAddr,
    ready: mpsc::Receiver<EngineHandle>,
    thread: Thread,
}

/// A server that serves. Dropping it stops it in the background.
pub struct Running {
    address: SocketAddr,
    engine: EngineHandle,
    thread: Thread,
}

struct Thread {
    stop: oneshot::Sender<()>,
    handle: JoinHandle<Result<(), BootError>>,
}

/// Starts a server; its address is taken when this returns, its model may still be loading.
///
/// # Errors
/// [`BootError`] if the address or a thread cannot be had.
pub fn start(settings: ServerSettings) -> Result<Starting, BootError> {
    let bound = Bound::bind(settings)?;
    let address = bound.address();
    let (stop, stopped) = oneshot::channel();
    let (on_ready, ready) = mpsc::sync_channel(1);
    let serve = move || {
        actix_rt::System::new().block_on(async move {
            // Dropping the other end stops the server too.
            let shutdown = async { drop(stopped.await) };
            // Nobody may be waiting; the server serves all the same.
            bound.run(shutdown, move |engine| drop(on_ready.send(engine))).await
        })
    };
    let handle = std::thread::Builder::new()
        .name("tiercel-main".into())
        .spawn(serve)
        .map_err(|source| BootError::System { what: "the main thread", source })?;
    Ok(Starting { address, ready, thread: Thread { stop, handle } })
}

impl Starting {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until requests can be served.
    ///
    /// # Errors
    /// Why they never will.
    pub fn ready(self) -> Result<Running, BootError> {
        let Starting { address, ready, thread } = self;
        match ready.recv() {
            Ok(engine) => Ok(Running { address, engine, thread }),
            Err(_) => Err(thread.stop().err().unwrap_or(BootError::HttpStopped)),
        }
    }
}

impl Running {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its engine.
    pub fn engine(&self) -> &EngineHandle {
        &self.engine
    }

    /// Drains and stops.
    ///
    /// # Errors
    /// Why it had died before.
    pub fn stop(self) -> Result<(), BootError> {
        self.thread.stop()
    }
}

impl Thread {
    fn stop(self) -> Result<(), BootError> {
        // The server may be gone already; its result says why.
        let _ = self.stop.send(());
        self.handle.join().unwrap_or_else(|_| Err(BootError::EngineDied("a panic".into())))
    }
}
