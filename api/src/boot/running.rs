//! Starts and stops a server inside another program, for tests and embedding.

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
    control: Option<SocketAddr>,
    ready: mpsc::Receiver<EngineHandle>,
    thread: Thread,
}

/// A server that serves requests. Dropping the value stops the server in the background.
pub struct Running {
    address: SocketAddr,
    control: Option<SocketAddr>,
    engine: EngineHandle,
    thread: Thread,
}

struct Thread {
    stop: oneshot::Sender<()>,
    handle: JoinHandle<Result<(), BootError>>,
}

/// Starts a server on a thread of its own and returns when its address is bound; its model may still be loading then.
///
/// # Errors
/// [`BootError`] if the address cannot be bound or a thread cannot be started.
pub fn start(settings: ServerSettings) -> Result<Starting, BootError> {
    let bound = Bound::bind(settings)?;
    let (address, control) = (bound.address(), bound.control_address());
    let (stop, stopped) = oneshot::channel();
    let (on_ready, ready) = mpsc::sync_channel(1);
    let serve = move || {
        actix_rt::System::new().block_on(async move {
            // The server stops when the stop signal is sent, and also when its sender is dropped.
            let shutdown = async { drop(stopped.await) };
            // Ignore a failed send of "ready": a program that does not wait for the server to be ready has dropped the
            // receiver, and the server serves all the same.
            bound.run(shutdown, move |engine| drop(on_ready.send(engine))).await
        })
    };
    let handle = std::thread::Builder::new()
        .name("tiercel-main".into())
        .spawn(serve)
        .map_err(|source| BootError::System { what: "the main thread", source })?;
    Ok(Starting { address, control, ready, thread: Thread { stop, handle } })
}

impl Starting {
    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the server can serve requests.
    ///
    /// # Errors
    /// [`BootError`] if the server ended before it could serve requests.
    pub fn ready(self) -> Result<Running, BootError> {
        let Starting { address, control, ready, thread } = self;
        match ready.recv() {
            Ok(engine) => Ok(Running { address, control, engine, thread }),
            Err(_) => Err(thread.stop().err().unwrap_or(BootError::HttpStopped)),
        }
    }
}

impl Running {
    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address of the server's control API, if it has one.
    pub fn control_address(&self) -> Option<SocketAddr> {
        self.control
    }

    /// Returns the handle of the server's engine.
    pub fn engine(&self) -> &EngineHandle {
        &self.engine
    }

    /// Drains and stops the server, and waits for its end.
    ///
    /// # Errors
    /// [`BootError`] if the server had died before, or dies while it drains.
    pub fn stop(self) -> Result<(), BootError> {
        self.thread.stop()
    }
}

impl Thread {
    fn stop(self) -> Result<(), BootError> {
        // Ignore a failed send of the stop signal: the server has already ended, and the result of its thread says why.
        let _ = self.stop.send(());
        self.handle.join().unwrap_or_else(|_| Err(BootError::EngineDied("a panic".into())))
    }
}
