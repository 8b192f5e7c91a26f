//! Makes engines for experiments and reads their streams.

use std::rc::Rc;
use std::sync::Arc;
use tiercel_actors::trace::Record;
use tiercel_actors::{Engine, EngineHandle, Request, StreamEvent, TokenStream};
use tiercel_config::{EngineSettings, SloTargets};
use tiercel_device::{Clock, MockDevice, MockOptions, MockProfile, SamplingParams, Tier, TokenId};
use tiercel_policy::blocks::Salt;

/// Runs `experiment` under simulated time: whenever nothing is left to do, time jumps to the next
/// timer. Everything it starts must stay on this thread.
///
/// # Panics
/// If no runtime can be made.
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

/// Everything an engine is made of, to be changed before it starts.
#[derive(Debug, Clone)]
pub struct Laboratory {
    /// The engine's settings.
    pub settings: EngineSettings,
    /// The device.
    pub device: MockOptions,
}

impl Laboratory {
    /// A small fast device with default settings.
    ///
    /// # Panics
    /// If the built-in profile is broken.
    pub fn tiny(clock: Clock) -> Laboratory {
        let profile = MockProfile::named("tiny").expect("a built-in profile");
        Laboratory { settings: EngineSettings::default(), device: MockOptions::new(profile, clock) }
    }

    /// Starts the engine on this thread.
    pub fn start(&self) -> EngineHandle {
        self.engine().start_here()
    }

    /// Starts the engine on this thread and takes down what it does.
    pub fn start_recorded(&self, recorder: Option<Rc<dyn Record>>) -> EngineHandle {
        self.engine().start_recorded_here(recorder)
    }

    /// Starts the engine on this thread; it checks all its invariants after every event, also in a release
    /// build.
    pub fn start_checked(&self) -> EngineHandle {
        self.engine().start_here_checked()
    }

    fn engine(&self) -> Engine {
        let clock = self.device.clock.clone();
        let device = MockDevice::open(self.device.clone());
        Engine { settings: self.settings.clone(), device, clock }
    }
}

/// A standard-tier greedy request that only its length ends.
pub fn request(prompt: &[TokenId], max_tokens: u32) -> Request {
    Request {
        tier: Tier::Standard,
        priority: 0,
        salt: Salt([0; 16]),
        prompt: Arc::from(prompt),
        max_tokens,
        stop_tokens: Arc::from([]),
        sampling: Arc::new(SamplingParams::greedy()),
        targets: SloTargets::default(),
        max_wait_ms: None,
        returning: false,
    }
}

/// All that came on a stream.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Collected {
    /// The tokens.
    pub tokens: Vec<TokenId>,
    /// The event that ended it; `None` if it just closed.
    pub end: Option<StreamEvent>,
}

/// Reads a stream to its end.
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
