//! Sends the requests of a workload to a simulated engine. Each request is a task that reads its response stream.

use crate::gaps::Gaps;
use crate::prompt::prompt;
use crate::record::{Ending, Record};
use crate::replay::{self, END_TOKEN};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use tiercel_actors::{EngineHandle, FinishReason, Request, RequestFault, StreamEvent, TokenStream};
use tiercel_config::SloTargets;
use tiercel_device::{HostCosts, SamplingParams, Tier, Timestamp, TokenId};
use tiercel_policy::Weight;
use tiercel_policy::blocks::Salt;
use tiercel_workload::{
    Arrival, Class, MAX_REQUESTS, Planned, Random, Workload, arrivals, closed_request, seconds,
};

/// State that all tasks of a simulation run share: engine, workload, and measurements.
pub(crate) struct Traffic {
    engine: EngineHandle,
    workload: Workload,
    /// Whether all classes of the workload are one tenant. Needed if classes share text, because tenants cannot share
    /// prefixes.
    one_tenant: bool,
    /// Largest token id of the device's vocabulary.
    last_token: TokenId,
    greedy: Arc<SamplingParams>,
    /// Share, 0 to 1, of the refused and turned-away requests that are sent once again after their retry time.
    returning: f64,
    /// Times that requests spend outside the engine, in the server's host code.
    host: HostCosts,
    /// Measured window of the run. Tokens that come within it count toward throughput.
    window: Range<Timestamp>,
    seen: RefCell<Seen>,
}

/// Measurements of a simulation run so far: one record for each request, and counts.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) records: Vec<Record>,
    /// Number of output tokens that came within the measured window, by tier.
    pub(crate) tokens_in_window: [u64; 4],
    /// Number of output tokens that came within the measured window, by class of the workload.
    pub(crate) class_tokens_in_window: Vec<u64>,
    /// Histogram of the gaps between consecutive tokens of a stream that came within the measured window.
    pub(crate) gaps: Gaps,
    /// Number of requests that were refused or turned away and then sent again within the measured window, after their
    /// retry time.
    pub(crate) returned: u64,
    /// Number of the requests counted in `returned` that were accepted this time and not turned away before their first
    /// token.
    pub(crate) readmitted: u64,
    /// Whether the workload has more requests than one simulation run may send.
    pub(crate) too_many: bool,
}

impl Traffic {
    pub(crate) fn new(
        engine: EngineHandle,
        workload: Workload,
        returning: f64,
        host: HostCosts,
    ) -> Rc<Traffic> {
        let window = workload.window_s();
        Rc::new(Traffic {
            last_token: engine.info().vocab_size - 1,
            engine,
            returning,
            host,
            window: Timestamp(seconds(window.start))..Timestamp(seconds(window.end)),
            greedy: Arc::new(SamplingParams::greedy()),
            seen: RefCell::new(Seen {
                class_tokens_in_window: vec![0; workload.classes.len()],
                ..Seen::default()
            }),
            one_tenant: workload.shares_text(),
            workload,
        })
    }

    /// Starts the tasks that send requests: one for each open-loop class, and one for each user of a closed-loop class.
    /// The tasks end with the workload.
    pub(crate) fn start(self: &Rc<Self>) {
        for (index, class) in self.workload.classes.iter().enumerate() {
            let streams = match &class.arrival {
                Arrival::Closed(closed) => closed.streams,
                Arrival::Poisson(_) | Arrival::Trace(_) | Arrival::Share(_) => {
                    actix_rt::spawn(Rc::clone(self).open_class(index));
                    0
                }
            };
            for stream in 0..streams {
                actix_rt::spawn(Rc::clone(self).closed_stream(index, stream));
            }
        }
    }

    /// Whether the workload has more requests than one simulation run may send.
    pub(crate) fn too_many(&self) -> bool {
        self.seen.borrow().too_many
    }

    /// Takes the request records and counts of the run. Later events are not recorded.
    pub(crate) fn take(&self) -> Seen {
        self.seen.take()
    }

    async fn open_class(self: Rc<Self>, class: usize) {
        for planned in arrivals(&self.workload, class) {
            self.engine.clock().sleep_until(Timestamp(planned.at_us)).await;
            actix_rt::spawn(Rc::clone(&self).send(planned));
        }
    }

    async fn closed_stream(self: Rc<Self>, class: usize, stream: u32) {
        let end = Timestamp(seconds(self.workload.duration_s));
        let clock = self.engine.clock().clone();
        clock.sleep_until(Timestamp(seconds(self.workload.classes[class].start_s))).await;
        for number in 0.. {
            if clock.now() >= end {
                return;
            }
            let planned = closed_request(&self.workload, class, stream, number);
            let ending = Rc::clone(&self).send(planned).await;
            if ending != Ending::Completed {
                // After a request that did not complete, the closed-loop user waits 1 s, so that a refused user does
                // not send the next request at the same moment for ever.
                clock.sleep_us(1_000_000).await;
            }
        }
    }

    async fn send(self: Rc<Self>, planned: Planned) -> Ending {
        let class = &self.workload.classes[planned.class];
        let due = self.engine.clock().now();
        let record = {
            let mut seen = self.seen.borrow_mut();
            if seen.records.len() as u64 >= MAX_REQUESTS {
                seen.too_many = true;
                return Ending::Refused;
            }
            seen.records.push(Record::new(planned.clone(), class.tier, due));
            seen.records.len() - 1
        };
        let outside_us = self.host.of_request_us(planned.prompt_tokens);
        if outside_us > 0 {
            self.engine.clock().sleep_us(outside_us).await;
        }
        let (ending, told_ms) = match self.engine.submit(self.request(class, &planned)).await {
            Err(refusal) => (Ending::Refused, refusal.retry_after_ms()),
            Ok(stream) => self.follow(stream, record, replay::leaves_at(&planned, due)).await,
        };
        self.with(record, |record| record.ending = ending);
        if let Some(ms) = told_ms.filter(|_| self.comes_back(&planned)) {
            actix_rt::spawn(Rc::clone(&self).come_back(planned, ms));
        }
        ending
    }

    /// Reads a response stream to its end, or until the client leaves. Returns how the request ended, and the retry
    /// time that the client was told, ms.
    async fn follow(
        &self,
        mut stream: TokenStream,
        record: usize,
        leaves_at: Option<Timestamp>,
    ) -> (Ending, Option<u64>) {
        let tier = stream.tier();
        loop {
            let event = match leaves_at {
                None => stream.next().await,
                Some(at) => match replay::next_until(self.engine.clock(), &mut stream, at).await {
                    Some(event) => event,
                    None => return (Ending::Left(at), None),
                },
            };
            match event {
                Some(StreamEvent::Token { .. }) => self.token(record, tier),
                Some(StreamEvent::Finished { reason, usage }) => {
                    if reason == FinishReason::Stop {
                        // Count the stop token that ended the output as an output token: it was computed, but is not
                        // delivered.
                        self.token(record, tier);
                    }
                    self.with(record, |record| record.preemptions = usage.preemptions);
                    return (Ending::Completed, None);
                }
                Some(StreamEvent::Failed(
                    RequestFault::TurnedAway { retry_after_ms }
                    | RequestFault::OutOfPatience { retry_after_ms, .. },
                )) => return (Ending::TurnedAway, Some(retry_after_ms)),
                Some(StreamEvent::Failed(_)) | None => return (Ending::Failed, None),
            }
        }
    }

    /// Whether the client of a refused or turned-away request sends it again; drawn from the workload's seed.
    fn comes_back(&self, planned: &Planned) -> bool {
        let path = [planned.class as u64, u64::from(planned.stream), planned.number, 2];
        self.returning > 0.0 && Random::stream(self.workload.seed, &path).unit() < self.returning
    }

    /// Sends a refused or turned-away request once more after its retry time. This second attempt counts only in
    /// `returned` and `readmitted`, not in the latencies.
    async fn come_back(self: Rc<Self>, planned: Planned, after_ms: u64) {
        self.engine.clock().sleep_us(after_ms * 1000).await;
        let class = &self.workload.classes[planned.class];
        let request = Request { returning: true, ..self.request(class, &planned) };
        let in_window = self.window.contains(&self.engine.clock().now());
        if in_window {
            self.seen.borrow_mut().returned += 1;
        }
        let Ok(mut stream) = self.engine.submit(request).await else { return };
        // The second attempt counts as readmitted only if its first event is no failure, because the engine may turn
        // away a request that it has accepted.
        let served = !matches!(stream.next().await, Some(StreamEvent::Failed(_)) | None);
        if in_window && served {
            self.seen.borrow_mut().readmitted += 1;
        }
        while stream.next().await.is_some() {}
    }

    fn token(&self, record: usize, tier: Tier) {
        let now = self.engine.clock().now();
        let mut seen = self.seen.borrow_mut();
        let gap_us = seen.records.get_mut(record).and_then(|record| record.token(now));
        let class = seen.records.get(record).map(|record| record.planned.class);
        if self.window.contains(&now) {
            seen.tokens_in_window[tier.index()] += 1;
            if let Some(tokens) = class.and_then(|at| seen.class_tokens_in_window.get_mut(at)) {
                *tokens += 1;
            }
            if let Some(us) = gap_us {
                seen.gaps.add(us);
            }
        }
    }

    /// Changes the record of a request, unless the run is over and its records have been taken.
    fn with(&self, record: usize, change: impl FnOnce(&mut Record)) {
        self.seen.borrow_mut().records.get_mut(record).map(change);
    }

    fn request(&self, class: &Class, planned: &Planned) -> Request {
        let prompt = prompt(self.workload.seed, self.last_token, planned);
        if let Some(recorded) = &planned.recorded {
            return replay::request(recorded, prompt, &self.greedy);
        }
        let longest = class.output_tokens.map(|length| length.longest());
        let (max_tokens, stop_tokens) = match longest {
            Some(longest) if !class.ignore_eos => (longest, Arc::from([END_TOKEN])),
            _ => (planned.output_tokens, Arc::from([])),
        };
        Request {
            tier: class.tier,
            priority: 0,
            salt: self.tenant(planned.class),
            weight: Weight::default(),
            prompt,
            max_tokens,
            stop_tokens,
            sampling: Arc::clone(&self.greedy),
            targets: SloTargets::default(),
            may_tighten: None,
            max_wait_ms: None,
            waited_ms: 0,
            sibling: false,
            cache_salt: None,
            returning: false,
        }
    }

    /// Returns the salt (namespace of the prefix cache) of a workload's class. Each class is a tenant of its own,
    /// unless classes share text.
    fn tenant(&self, class: usize) -> Salt {
        Salt([if self.one_tenant { 0 } else { class as u8 }; 16])
    }
}
