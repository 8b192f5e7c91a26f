//! Builds engines on the mock device for simulations and tests, and collects the events of their response streams.

use std::rc::Rc;
use std::sync::Arc;
use tiercel_actors::trace::Record;
use tiercel_actors::{Engine, EngineHandle, Request, StreamEvent, TokenStream};
use tiercel_config::{EngineSettings, SloTargets};
use tiercel_device::{Clock, MockDevice, MockOptions, MockProfile, SamplingParams, Tier, TokenId};
use tiercel_policy::Weight;
use tiercel_policy::blocks::Salt;

/// Runs the async function `experiment` under simulated time: whenever no task can run, time jumps to the next timer.
/// Tasks that it starts must stay on this thread.
///
/// # Panics
/// If the async runtime cannot be created.
pub fn simulate<T>(experiment: impl AsyncFnOnce(Clock) -> T) -> T {
    let system = actix_rt::System::with_tokio_rt(|| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a single-threaded runtime needs no resources that could be missing")
    });
    system.block_on(async { experiment(Clock::simulated()).await })
}

/// Settings and mock device of an engine for a simulation or test; both may be changed before the engine starts.
#[derive(Debug, Clone)]
pub struct Laboratory {
    /// Settings of the engine.
    pub settings: EngineSettings,
    /// Options of the mock device.
    pub device: MockOptions,
}

impl Laboratory {
    /// Makes a `Laboratory` (engine not started yet) with a small fast mock device and default settings.
    ///
    /// # Panics
    /// If the built-in profile `tiny` does not parse.
    pub fn tiny(clock: Clock) -> Laboratory {
        let profile = MockProfile::named("tiny").expect("a built-in profile");
        Laboratory { settings: EngineSettings::default(), device: MockOptions::new(profile, clock) }
    }

    /// Starts the engine on this thread.
    pub fn start(&self) -> EngineHandle {
        self.engine().start_here()
    }

    /// Starts the engine on this thread and passes its events to the recorder, if there is one.
    pub fn start_recorded(&self, recorder: Option<Rc<dyn Record>>) -> EngineHandle {
        self.engine().start_recorded_here(recorder)
    }

    /// Starts the engine on this thread with invariant checks: the actors check all their invariants after every event,
    /// also in a release build.
    pub fn start_checked(&self) -> EngineHandle {
        self.engine().start_here_checked()
    }

    fn engine(&self) -> Engine {
        let clock = self.device.clock.clone();
        let device = MockDevice::open(self.device.clone());
        Engine { settings: self.settings.clone(), device, clock }
    }
}

/// Makes a standard-tier request with greedy sampling and without stop tokens, so that only `max_tokens` ends it.
pub fn request(prompt: &[TokenId], max_tokens: u32) -> Request {
    Request {
        tier: Tier::Standard,
        priority: 0,
        salt: Salt([0; 16]),
        weight: Weight::default(),
        prompt: Arc::from(prompt),
        max_tokens,
        stop_tokens: Arc::from([]),
        sampling: Arc::new(SamplingParams::greedy()),
        targets: SloTargets::default(),
        may_tighten: None,
        max_wait_ms: None,
        waited_ms: 0,
        sibling: false,
        cache_salt: None,
        returning: false,
    }
}

/// Events that were read from a response stream.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Collected {
    /// Tokens of the stream, in order.
    pub tokens: Vec<TokenId>,
    /// Final event of the stream, `Finished` or `Failed`; `None` if the stream closed without a final event.
    pub end: Option<StreamEvent>,
}

/// Reads a response stream to its end and returns its tokens and its last event.
pub async fn collect(mut stream: TokenStream) -> Collected {
    let mut collected = Collected::default();
    while let Some(event) = stream.next().await {
        match event {
            StreamEvent::Token { token, .. } => collected.tokens.push(token),
            end => collected.end = Some(end),
        }
    }
    collected
}
