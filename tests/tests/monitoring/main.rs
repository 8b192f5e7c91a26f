//! Tests of what operators monitor: the metrics of a running server, and the alerts and the Grafana board in `ops/`.
//! Tests that need promtool (Debian's package `prometheus`) are ignored; `.ci/run` runs them.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

mod board;
mod exposition;
mod names;
mod promtool;

use exposition::Exposition;
use serde_json::json;
use std::path::PathBuf;
use std::sync::OnceLock;
use tiercel_tests::TestServer;

/// Returns the metrics of a server that has served requests of all tiers and refused one. All tests share the answer,
/// because all servers of a process share their metrics.
fn metrics() -> &'static Exposition {
    static METRICS: OnceLock<Exposition> = OnceLock::new();
    METRICS.get_or_init(|| {
        let server = TestServer::mock(|settings| settings.engine.admission.max_requests = 4);
        for tier in ["priority", "default", "flex"] {
            let body = json!({
                "prompt": "words that a server is asked to continue", "max_tokens": 20,
                "service_tier": tier, "ignore_eos": true,
            });
            let answer = server.post("/v1/completions", &body);
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        let too_many = json!({"prompt": "x", "n": 5, "max_tokens": 1900, "ignore_eos": true});
        assert_eq!(server.post("/v1/completions", &too_many).status, 429);
        server.wait_until_idle();
        // The figures of tenants come once a second, like those of the sliding windows.
        let text = loop {
            let text = server.get("/metrics").text();
            let usage = "tiercel_tenant_output_tokens_total{tier=\"background\"";
            let came = text.lines().any(|line| line.starts_with(usage) && line.ends_with(" 20"));
            if came && text.contains("tiercel_slo_compliance_ratio{") {
                break text;
            }
        };
        server.finish();
        Exposition::parse(&text)
    })
}

/// Returns the path of a file or folder in `ops/`.
fn ops(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../ops").join(path)
}

/// Returns the names of metrics in a text: words that begin with `tiercel_` or `vllm:`.
fn metric_names(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    words.filter(|word| word.starts_with("tiercel_") || word.starts_with("vllm:")).collect()
}
