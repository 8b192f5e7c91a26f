//! A Tiercel server in the test's process, on a free port.

use crate::client::{Connection, Response};
use crate::slow::SlowProfile;
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use tiercel::boot::{BootError, Running, start};
use tiercel_actors::{EngineHandle, EngineStatus, Snapshot};
use tiercel_config::{DeviceKind, ServerSettings};
use tiercel_device::Clock;

/// Longest wait for the engine to reach a state, us. After the last request, all KV blocks must become free within this
/// time, although running copies of blocks may have to end first.
const IDLE_US: u64 = 20_000_000;
/// Interval at which a test polls the engine's status, us.
const LOOK_US: u64 = 2_000;

/// A running Tiercel server for a test. Dropping it stops the server without checks; [`TestServer::finish`] first
/// checks that no request and no KV block is left.
pub struct TestServer {
    running: Running,
}

impl TestServer {
    /// Starts a server on the built-in mock device `tiny`; `adjust` changes the default settings.
    pub fn mock(adjust: impl FnOnce(&mut ServerSettings)) -> TestServer {
        let mut settings = ServerSettings::default();
        settings.device.kind = DeviceKind::Mock("tiny".into());
        adjust(&mut settings);
        TestServer::start(settings)
    }

    /// Starts a server on a mock device that takes 50 ms per step; see [`SlowProfile`].
    pub fn slow(adjust: impl FnOnce(&mut ServerSettings)) -> TestServer {
        let profile = SlowProfile::default();
        TestServer::mock(|settings| {
            settings.device.kind = DeviceKind::Mock(profile.name());
            adjust(settings);
        })
    }

    /// Starts a server with the given settings, but on a free port, and waits until it is ready to serve requests.
    pub fn start(mut settings: ServerSettings) -> TestServer {
        settings.http.listen = "127.0.0.1:0".into();
        settings.http.control_listen = "127.0.0.1:0".into();
        settings.check().unwrap();
        TestServer { running: start(settings).unwrap().ready().unwrap() }
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.running.address()
    }

    /// Returns the address that the server's control API listens on.
    pub fn control_address(&self) -> SocketAddr {
        self.running.control_address().unwrap()
    }

    /// Opens a new connection to the server's control API.
    pub fn control(&self) -> Connection {
        Connection::open(self.control_address())
    }

    /// Returns the handle of the server's engine, for direct access without HTTP.
    pub fn engine(&self) -> &EngineHandle {
        self.running.engine()
    }

    /// Returns the latest snapshot of the engine that was published, without making a new one.
    pub fn engine_snapshot(&self) -> Arc<Snapshot> {
        block_on(self.engine().snapshot(u64::MAX / 2_000)).unwrap()
    }

    /// Opens a new connection to the server.
    pub fn connect(&self) -> Connection {
        Connection::open(self.address())
    }

    /// Sends `GET path` on a new connection, and returns the response.
    pub fn get(&self, path: &str) -> Response {
        self.connect().request("GET", path, &[], b"")
    }

    /// Sends `POST path` with a JSON body on a new connection, and returns the response.
    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.connect().post(path, body)
    }

    /// Returns the current status of the engine: its requests, queues and free blocks.
    pub fn status(&self) -> EngineStatus {
        block_on(self.engine().status()).unwrap()
    }

    /// Polls the engine's status until `done` holds for it, and returns that status.
    ///
    /// # Panics
    /// If `done` does not hold within 20 s; the panic shows the last status.
    pub fn wait_for(&self, what: &str, done: impl Fn(&EngineStatus) -> bool) -> EngineStatus {
        let clock = Clock::wall();
        block_on(async {
            loop {
                let status = self.engine().status().await.unwrap();
                if done(&status) {
                    return status;
                }
                let waited = clock.now().0;
                assert!(waited < IDLE_US, "after {waited} us not {what}: {status:?}");
                clock.sleep_us(LOOK_US).await;
            }
        })
    }

    /// Waits until no request is left and every block of the device pool and the host pool is free.
    pub fn wait_until_idle(&self) -> EngineStatus {
        self.wait_for("idle", |status| {
            status.waiting == [0; 4]
                && (status.running, status.preempted) == (0, 0)
                && status.device_blocks_free == status.device_blocks
                && status.host_blocks_free == status.host_blocks
        })
    }

    /// Checks that the server is healthy and that no request and no KV block is left in it, then shuts it down.
    pub fn finish(self) {
        self.wait_until_idle();
        let health = self.get("/health");
        assert_eq!(health.status, 200, "{}", health.text());
        self.running.stop().unwrap();
    }

    /// Shuts the server down gracefully; returns the error if the server had died.
    pub fn stop(self) -> Result<(), BootError> {
        self.running.stop()
    }
}

/// Runs a future to its end on the calling thread.
fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(future)
}
