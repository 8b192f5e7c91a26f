//! Tests of hostile sources, which explode, recurse, are huge, never end or backtrack. Each source is compiled or
//! refused within a limit of memory, and an output that follows the source ends or goes on without a panic.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

mod common;

use common::hostile::hostile_sources;
use common::{grammars, random_output};
use std::sync::mpsc;
use std::time::Duration;
use tiercel_device::Clock;
use tiercel_grammar::STACK_BYTES;

/// Time for one source after which the test counts the source as a hang, s.
const HANG_S: u64 = 120;
/// Maximum memory of the whole test process, KiB.
const MEMORY_MAX_KIB: u64 = 3 << 20;
/// Maximum number of tokens of an output.
const TOKENS: usize = 60;

/// Returns the peak memory of the process, KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

#[test]
fn hostile_sources_cost_only_themselves() {
    let sources = hostile_sources();
    assert!(sources.len() >= 60, "{}", sources.len());
    let (told, outcomes) = mpsc::channel();
    let names: Vec<String> = sources.iter().map(|(name, _)| name.clone()).collect();
    let work = move || {
        let (grammars, clock) = (grammars(), Clock::wall());
        for (_, source) in sources {
            let began = clock.now();
            let compiled = grammars.compile(&source);
            let compile_ms = clock.now().since_us(began) / 1_000;
            let outcome = match compiled {
                Ok(compiled) => {
                    let (text, ending) = random_output(&*compiled.constraint, 1, TOKENS);
                    format!("{ending:?} after {} bytes", text.len())
                }
                Err(error) => {
                    let message = error.to_string();
                    assert!(message.len() < 1000, "a long message: {} bytes", message.len());
                    message
                }
            };
            let all_ms = clock.now().since_us(began) / 1_000;
            if told.send(format!("{compile_ms:5} ms, {all_ms:5} ms in all: {outcome}")).is_err() {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(work).unwrap();
    for name in names {
        let outcome = outcomes.recv_timeout(Duration::from_secs(HANG_S));
        let outcome = outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
        println!("{name}: {outcome}");
        assert!(peak_kib() < MEMORY_MAX_KIB, "{name}: {} KiB", peak_kib());
    }
    println!("peak memory: {} MiB", peak_kib() >> 10);
    thread.join().unwrap();
}
