//! A server in this process, on a free port.

use crate::client::{Connection, Response};
use crate::slow::SlowProfile;
use serde_json::Value;
use std::net::SocketAddr;
use tiercel::boot::{BootError, Running, start};
use tiercel_actors::{EngineHandle, EngineStatus};
use tiercel_config::{DeviceKind, ServerSettings};
use tiercel_device::Clock;

/// After the last request ends, its blocks must be free within this, us. Copies may have to end first.
const IDLE_US: u64 = 20_000_000;
/// Time between two looks at the engine, us.
const LOOK_US: u64 = 2_000;

/// A running server. Dropping it stops it without looking back; [`TestServer::finish`] checks it first.
pub struct TestServer {
    running: Running,
}

impl TestServer {
    /// A server on the mock device `tiny`, settings adjusted by `adjust`.
    pub fn mock(adjust: impl FnOnce(&mut ServerSettings)) -> TestServer {
        let mut settings = ServerSettings::default();
        settings.device.kind = DeviceKind::Mock("tiny".into());
        adjust(&mut settings);
        TestServer::start(settings)
    }

    /// A server on a mock device that takes 50 ms per step; see [`SlowProfile`].
    pub fn slow(adjust: impl FnOnce(&mut ServerSettings)) -> TestServer {
        let profile = SlowProfile::default();
        TestServer::mock(|settings| {
            settings.device.kind = DeviceKind::Mock(profile.name());
            adjust(settings);
        })
    }

    /// A server with these settings but a port of its own, ready to serve.
    pub fn start(mut settings: ServerSettings) -> TestServer {
        settings.http.listen = "127.0.0.1:0".into();
        settings.check().unwrap();
        TestServer { running: start(settings).unwrap().ready().unwrap() }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.running.address()
    }

    /// Its engine.
    pub fn engine(&self) -> &EngineHandle {
        self.running.engine()
    }

    /// A new connection.
    pub fn connect(&self) -> Connection {
        Connection::open(self.address())
    }

    /// `GET path`.
    pub fn get(&self, path: &str) -> Response {
        self.connect().request("GET", path, &[], b"")
    }

    /// `POST path` with a JSON body.
    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.connect().post(path, body)
    }

    /// A snapshot of the engine.
    pub fn status(&self) -> EngineStatus {
        block_on(self.engine().status()).unwrap()
    }

    /// Waits until `done` holds for the engine.
    ///
    /// # Panics
    /// If it does not within 20 s; shows the last snapshot.
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

    /// Waits until no request is left and every block of both tiers is free.
    pub fn wait_until_idle(&self) -> EngineStatus {
        self.wait_for("idle", |status| {
            status.waiting == [0; 4]
                && (status.running, status.preempted) == (0, 0)
                && status.device_blocks_free == status.device_blocks
                && status.host_blocks_free == status.host_blocks
        })
    }

    /// Checks that the server still serves and holds nothing, then stops it in order.
    pub fn finish(self) {
        self.wait_until_idle();
        let health = self.get("/health");
        assert_eq!(health.status, 200, "{}", health.text());
        self.running.stop().unwrap();
    }

    /// Stops it in order and says how that went.
    pub fn stop(self) -> Result<(), BootError> {
        self.running.stop()
    }
}

/// Runs a future to its end on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(future)
}
