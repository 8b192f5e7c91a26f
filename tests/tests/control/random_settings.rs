//! A thousand random changes of settings, valid and invalid ones, while 64 streams run.

use crate::settings::{set, shown};
use crate::{background, text_of};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tiercel_config::{EngineSettings, Kind};
use tiercel_tests::{Connection, TestServer};
use tiercel_workload::Random;

/// Seed of the changes.
const SEED: u64 = 1;
const CHANGES: u32 = 1_000;
const STREAMS: u32 = 64;
/// Pause of a reader whose request was refused.
const PAUSE: Duration = Duration::from_millis(2);

/// Settings that go together, which the generator draws in one change.
const TOGETHER: [&str; 10] = [
    "shares.premium_percent",
    "shares.standard_percent",
    "shares.background_percent",
    "reservation.premium_blocks_percent",
    "reservation.standard_blocks_percent",
    "reservation.premium_slots_percent",
    "reservation.standard_slots_percent",
    "scheduler.max_num_seqs",
    "scheduler.max_num_batched_tokens",
    "scheduler.policy",
];
/// Words that let the engine end streams, so that a stream that ends would be no loss.
const DROP: &str = "drop";

/// Generator of changes over the settings that a server says can be changed.
struct Generator {
    random: Random,
    /// Kind and largest value of each setting.
    fields: BTreeMap<String, (Kind, Option<u64>)>,
}

impl Generator {
    fn new(shown: &Value) -> Generator {
        let kinds = tiercel_config::changeable(&EngineSettings::default());
        let kind = |name: &str| kinds.iter().find(|(field, _)| field.path == name).unwrap().0.kind;
        let field = |field: &Value| {
            let name = field["name"].as_str().unwrap();
            (name.to_owned(), (kind(name), field["at_most"].as_u64()))
        };
        let fields = shown["changeable"].as_array().unwrap().iter().map(field).collect();
        Generator { random: Random::stream(SEED, &[]), fields }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random.below(n)
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + self.random.unit() * (high - low)
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.random.below(of.len() as u64) as usize]
    }

    fn most(&self, name: &str) -> u64 {
        self.fields[name].1.unwrap()
    }

    /// Returns the name of a setting of which `suits` holds.
    fn name(&mut self, suits: impl Fn(&str, &Kind) -> bool) -> String {
        let names: Vec<String> = self
            .fields
            .iter()
            .filter(|(name, (kind, _))| suits(name, kind))
            .map(|(name, _)| name.clone())
            .collect();
        self.pick(&names).clone()
    }

    /// Returns a valid value of a setting that stands alone.
    fn value(&mut self, name: &str) -> Value {
        match self.fields[name].0 {
            Kind::Integer { low, high } => {
                let high = if self.below(4) == 0 { high.min(low + 8) } else { high };
                json!(low + self.below(high - low + 1))
            }
            Kind::Number { low, high } => {
                let edge = [low, high][self.below(2) as usize];
                let inside = self.between(low, high);
                json!(if self.below(4) == 0 { edge } else { inside })
            }
            Kind::Target => match self.below(3) {
                0 => json!("auto"),
                1 => json!("none"),
                _ => json!(10_f64.powf(self.between(-2.0, 5.0))),
            },
            Kind::Bool => json!(self.below(2) == 0),
            Kind::Choice(words) => {
                let words: Vec<&str> = words.iter().copied().filter(|word| *word != DROP).collect();
                json!(self.pick(&words))
            }
            kind => panic!("{name}: {kind:?}"),
        }
    }

    /// Returns a valid change of one setting, or of some that go together.
    fn valid(&mut self) -> Map<String, Value> {
        let change = match self.below(8) {
            0 => {
                let premium = 1 + self.below(97);
                let standard = 1 + self.below(98 - premium);
                json!({
                    "shares.premium_percent": premium, "shares.standard_percent": standard,
                    "shares.background_percent": 100 - premium - standard,
                })
            }
            1 => {
                let of = *self.pick(&["blocks", "slots"]);
                let premium = self.below(91);
                let standard = self.below(91 - premium);
                json!({
                    format!("reservation.premium_{of}_percent"): premium,
                    format!("reservation.standard_{of}_percent"): standard,
                })
            }
            2 | 3 => {
                let seqs = 1 + self.below(self.most("scheduler.max_num_seqs"));
                let room = self.most("scheduler.max_num_batched_tokens") - seqs;
                let mut change = json!({
                    "scheduler.max_num_seqs": seqs,
                    "scheduler.max_num_batched_tokens": seqs + self.below(room + 1),
                });
                if self.below(2) == 0 {
                    change["scheduler.policy"] = self.value("scheduler.policy");
                }
                change
            }
            4 => {
                let tier = *self.pick(&["premium", "standard", "background"]);
                json!({
                    format!("slo.{tier}.ttft_ms"): self.between(0.01, 5_000.0),
                    format!("slo.{tier}.ttft_ms_per_token"): self.between(0.0, 10.0),
                })
            }
            _ => {
                let name =
                    self.name(|name, _| !TOGETHER.contains(&name) && !name.contains(".ttft_ms"));
                json!({name.as_str(): self.value(&name)})
            }
        };
        change.as_object().unwrap().clone()
    }

    /// Returns a change that must be refused, and the setting that is wrong in it.
    fn invalid(&mut self) -> (Map<String, Value>, String) {
        let number = |name: &str, kind: &Kind| {
            let is_number = matches!(kind, Kind::Integer { .. } | Kind::Number { .. });
            is_number && !TOGETHER.contains(&name)
        };
        let (name, value) = match self.below(8) {
            0 | 1 => {
                let name = self.name(number);
                let beyond = match self.fields[&name].0 {
                    Kind::Integer { high, .. } => json!(high + 1),
                    Kind::Number { low, high } => {
                        [json!(low - 0.5), json!(high + 0.5)][self.below(2) as usize].clone()
                    }
                    kind => panic!("{kind:?}"),
                };
                (name, beyond)
            }
            2 => (self.name(|_, kind| matches!(kind, Kind::Bool | Kind::Target)), json!("soon")),
            3 => (self.name(|_, kind| matches!(kind, Kind::Choice(_))), json!("best")),
            4 => (self.name(|_, _| true), json!([1])),
            5 => {
                let fixed = ["admission.max_requests", "slo.window_s", "scheduler.nonsense"];
                ((*self.pick(&fixed)).to_owned(), json!(7))
            }
            6 => {
                let most = self.most("scheduler.max_num_batched_tokens");
                ("scheduler.max_num_batched_tokens".to_owned(), json!(most + 1 + self.below(1_000)))
            }
            _ => return self.conflict(),
        };
        let mut change = Map::from_iter([(name.clone(), value)]);
        // A valid change beside the wrong one must not be carried out either.
        if self.below(2) == 0 && !name.starts_with("patience.") {
            change.insert("patience.standard_s".to_owned(), json!(self.between(1.0, 9.0)));
        }
        (change, name)
    }

    /// Returns a change to values that are allowed alone but not together.
    fn conflict(&mut self) -> (Map<String, Value>, String) {
        let (change, field) = match self.below(4) {
            0 => {
                let change = json!({
                    "shares.premium_percent": 50, "shares.standard_percent": 40,
                    "shares.background_percent": 11 + self.below(30),
                });
                (change, "shares.premium_percent")
            }
            1 => {
                let premium = 50 + self.below(41);
                let change = json!({
                    "reservation.premium_slots_percent": premium,
                    "reservation.standard_slots_percent": 91 - premium,
                });
                (change, "reservation.standard_slots_percent")
            }
            2 => {
                let change = json!({
                    "slo.standard.ttft_ms": "auto",
                    "slo.standard.ttft_ms_per_token": self.between(0.1, 5.0),
                });
                (change, "slo.standard.ttft_ms_per_token")
            }
            _ => {
                let seqs = 2 + self.below(self.most("scheduler.max_num_seqs") - 1);
                let change = json!({
                    "scheduler.max_num_seqs": seqs, "scheduler.max_num_batched_tokens": seqs - 1,
                });
                (change, "scheduler.max_num_batched_tokens")
            }
        };
        (change.as_object().unwrap().clone(), field.to_owned())
    }
}

/// Returns the values of all settings that can be changed, by their names.
fn values(shown: &Value) -> BTreeMap<String, Value> {
    let fields = shown["changeable"].as_array().unwrap().iter();
    fields.map(|field| (field["name"].as_str().unwrap().into(), field["value"].clone())).collect()
}

fn same(a: &Value, b: &Value) -> bool {
    a == b || a.as_f64().zip(b.as_f64()).is_some_and(|(a, b)| (a - b).abs() < 1e-9)
}

/// Makes one change, and checks that all of it or nothing of it is in effect afterwards.
fn change(server: &TestServer, generator: &mut Generator, number: u32) {
    let before = shown(server);
    let wrong = number % 3 == 2;
    let (changes, field) = match wrong {
        true => generator.invalid(),
        false => (generator.valid(), String::new()),
    };
    let answer = set(server, &json!(changes));
    let after = shown(server);
    let what = format!("change {number} of seed {SEED}, {changes:?}: {}", answer.text());
    if wrong {
        assert_eq!((answer.status, &answer.error()["param"]), (400, &json!(field)), "{what}");
        assert_eq!(before, after, "{what}");
    } else {
        assert_eq!(answer.status, 200, "{what}");
        let (after, before) = (values(&after), values(&before));
        for (name, value) in &after {
            let preset = changes.contains_key("scheduler.policy");
            match changes.get(name) {
                Some(stated) => assert!(same(stated, value), "{name} is {value}: {what}"),
                None if preset => {}
                None => assert_eq!(value, &before[name], "{name}: {what}"),
            }
        }
    }
}

/// What the readers of streams saw.
#[derive(Default)]
struct Seen {
    done: AtomicBool,
    /// Streams that are open now.
    open: AtomicU32,
    whole: AtomicU32,
    refused: AtomicU32,
}

/// Sends one streamed request after the other, and compares the text of each stream that begins.
fn read(server: &TestServer, seen: &Seen, body: &Value, expected: &str) {
    while !seen.done.load(Ordering::Relaxed) {
        let mut stream: Connection = server.connect();
        let head = stream.open_stream("/v1/completions", body);
        if head.status == 429 {
            // A policy may refuse or turn away a request before its first token; it may not break off a stream.
            seen.refused.fetch_add(1, Ordering::Relaxed);
            std::thread::park_timeout(PAUSE);
            continue;
        }
        assert_eq!(head.status, 200, "{}", head.text());
        seen.open.fetch_add(1, Ordering::Relaxed);
        let text = crate::rest_of(&mut stream);
        seen.open.fetch_sub(1, Ordering::Relaxed);
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let events = data.filter_map(|json| serde_json::from_str::<Value>(json).ok());
        let pieces = events.filter_map(|e| e["choices"][0]["text"].as_str().map(str::to_owned));
        assert_eq!(pieces.collect::<String>(), expected, "{text}");
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
        seen.whole.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_thousand_random_changes_under_load_lose_and_alter_no_stream() {
    let server = TestServer::mock(|_| ());
    let body = |n: u32| {
        let mut body = background(60);
        body["prompt"] = json!(format!("Hello {n}"));
        body["service_tier"] = json!(["flex", "default", "priority"][n as usize % 3]);
        body
    };
    let lone = |n| text_of(&server.post("/v1/completions", &body(n)));
    let expected: Vec<String> = (0..6).map(lone).collect();
    let first = shown(&server);
    let mut generator = Generator::new(&first);
    let (seen, mut under_load) = (Seen::default(), 0);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..STREAMS)
            .map(|n| {
                let (server, seen, body) = (&server, &seen, body(n % 6));
                let expected = &expected[n as usize % 6];
                scope.spawn(move || read(server, seen, &body, expected))
            })
            .collect();
        let changes = || {
            for number in 0..CHANGES {
                change(&server, &mut generator, number);
                under_load += u32::from(seen.open.load(Ordering::Relaxed) > 0);
            }
            // Settings under which all waiting requests come to their end.
            let own = values(&first).into_iter().filter(|(_, value)| !value.is_null());
            let own: Vec<(String, Value)> = own.collect();
            let back: Map<String, Value> = own.into_iter().collect();
            assert_eq!(set(&server, &json!(back)).status, 200);
        };
        let changed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(changes));
        // Ends the readers also if a change has failed.
        seen.done.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().unwrap();
        }
        changed.unwrap();
    });
    let (whole, refused) = (seen.whole.into_inner(), seen.refused.into_inner());
    println!(
        "{whole} streams, {refused} refusals, streams open in {under_load} of {CHANGES} changes"
    );
    assert!(whole >= STREAMS, "{whole} whole streams, {refused} refusals");
    assert!(under_load > CHANGES / 2, "streams were open in {under_load} of {CHANGES} changes");
    server.finish();
}
