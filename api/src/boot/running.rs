//! A server inside another program, for tests and embedding.

use crate::boot::BootError;
use crate::boot::run::Bound;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::JoinHandle;
use tiercel_actors::EngineHandle;
use tiercel_config::ServerSettings;
use tokio::sync::oneshot;

/// A server that listens and whose model may still be loading.
pub struct Starting {
    address: SocketAddr,
    ready: mpsc::Receiver<EngineHandle>,
    thread: Thread,
}

/// A server that serves requests. Dropping it stops the server in the background.
pub struct Running {
    address: SocketAddr,
    engine: EngineHandle,
    thread: Thread,
}

struct Thread {
    stop: oneshot::Sender<()>,
    handle: JoinHandle<Result<(), BootError>>,
}

/// Starts a server. When this returns, its address is bound, but its model may still be loading.
///
/// # Errors
/// [`BootError`] if the address cannot be bound or a thread cannot be started.
pub fn start(settings: ServerSettings) -> Result<Starting, BootError> {
    let bound = Bound::bind(settings)?;
    let address = bound.address();
    let (stop, stopped) = oneshot::channel();
    let (on_ready, ready) = mpsc::sync_channel(1);
    let serve = move || {
        actix_rt::System::new().block_on(async move {
            // The server also stops if the sender of the stop signal is dropped.
            let shutdown = async { drop(stopped.await) };
            // The starting program may not wait for the ready server. The server serves all the same, so a failed send
            // is ignored.
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
    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the server can serve requests.
    ///
    /// # Errors
    /// The reason why the server will never serve requests.
    pub fn ready(self) -> Result<Running, BootError> {
        let Starting { address, ready, thread } = self;
        match ready.recv() {
            Ok(engine) => Ok(Running { address, engine, thread }),
            Err(_) => Err(thread.stop().err().unwrap_or(BootError::HttpStopped)),
        }
    }
}

impl Running {
    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the handle of the server's engine.
    pub fn engine(&self) -> &EngineHandle {
        &self.engine
    }

    /// Drains and stops the server.
    ///
    /// # Errors
    /// The reason why the server had died before.
    pub fn stop(self) -> Result<(), BootError> {
        self.thread.stop()
    }
}

impl Thread {
    fn stop(self) -> Result<(), BootError> {
        // Sending the stop signal fails if the server has already ended; the result of its thread then says why.
        let _ = self.stop.send(());
        self.handle.join().unwrap_or_else(|_| Err(BootError::EngineDied("a panic".into())))
    }
}
