//! Log lines of a server that has just become ready: its URL, the latency targets of each tier, warnings, and a sample
//! request.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tiercel_config::{HttpSettings, SloTargets};
use tiercel_policy::slo::Targets;

/// `max_tokens` of the sample request that a started server logs.
const EXAMPLE_TOKENS: u32 = 256;

/// Returns the base URL at which this machine reaches the server. For a server that listens on all addresses the URL
/// has the loopback address.
pub(super) fn url(address: SocketAddr, tls: bool) -> String {
    let ip = match address.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let scheme = if tls { "https" } else { "http" };
    format!("{scheme}://{}", SocketAddr::new(ip, address.port()))
}

/// Returns for each tier a log line with the latency targets that the engine aims at.
pub(super) fn targets(slo: &Targets) -> [String; 3] {
    [("premium", &slo.premium), ("standard", &slo.standard), ("background", &slo.background)]
        .map(|(tier, targets)| format!("targets of {tier}: {}", of_tier(targets)))
}

fn of_tier(targets: &SloTargets) -> String {
    let first = targets.ttft_ms.map(|first_ms| {
        let covered = targets.ttft_prompt_tokens;
        let growth = match (targets.ttft_ms_per_token, targets.ttft_ms_per_token_fewer) {
            (0.0, 0.0) => String::new(),
            (more_ms, _) if covered == 0 => format!(" plus {more_ms} ms per prompt token"),
            (0.0, less_ms) => format!(
                " for a prompt of {covered} tokens or more ({less_ms} ms less for each token fewer)"
            ),
            (more_ms, 0.0) => format!(" plus {more_ms} ms per prompt token beyond {covered}"),
            (more_ms, less_ms) => format!(
                " for a prompt of {covered} tokens ({less_ms} ms less for each token fewer, {more_ms} ms more \
                 for each further token)"
            ),
        };
        format!("first token within {} ms{growth}", rounded(first_ms))
    });
    let pace = targets.tpot_ms.map(|pace_ms| format!("{} ms per output token", rounded(pace_ms)));
    let whole =
        targets.e2e_ms.map(|whole_ms| format!("last token within {} ms", rounded(whole_ms)));
    let parts: Vec<String> = [first, pace, whole].into_iter().flatten().collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

/// Rounds a time in milliseconds to a tenth of a millisecond.
fn rounded(ms: f64) -> f64 {
    (ms * 10.0).round() / 10.0
}

/// Returns a shell command that sends a sample request to the server. The command is on a line of its own, so that it
/// can be copied.
pub(super) fn example(url: &str, context_tokens: u32, chat: bool, keys: bool) -> String {
    let (path, question) = if chat {
        ("chat/completions", r#""messages": [{"role": "user", "content": "Why is the sky blue?"}]"#)
    } else {
        ("completions", r#""prompt": "The sky is blue because""#)
    };
    let (said, key) = if keys {
        (
            " with one of the server's API keys in TIERCEL_API_KEY",
            " -H \"Authorization: Bearer $TIERCEL_API_KEY\"",
        )
    } else {
        ("", "")
    };
    // Leave out `max_tokens` in a context below 2 * `EXAMPLE_TOKENS`, where the sample question and an answer of
    // `EXAMPLE_TOKENS` tokens may not fit together. The answer then takes the tokens that are left.
    let limit = match context_tokens / 2 {
        EXAMPLE_TOKENS.. => format!("\"max_tokens\": {EXAMPLE_TOKENS}, "),
        _ => String::new(),
    };
    format!(
        "try it{said}:\ncurl -N {url}/v1/{path} -H 'Content-Type: application/json'{key} -d \
         '{{\"stream\": true, \"temperature\": 0, {limit}{question}}}'"
    )
}

/// Returns a warning for each setting of the HTTP server that may let in more clients than the operator expects.
pub(super) fn warnings(settings: &HttpSettings) -> Vec<&'static str> {
    let plain = !settings.api_keys.is_empty();
    let open = !settings.has_keys() && settings.cors_origins.iter().any(|origin| origin == "*");
    let plain = plain.then_some(
        "http.api_keys holds keys in plain text, and their clients are standard at most; http.keys_file holds hashes \
         and gives each key its rights",
    );
    let open = open.then_some(
        "http.cors_origins is *, and the server has no API keys: every web page that is open in a browser that reaches \
         this server may use it; state http.keys_file, or the origins of the pages",
    );
    plain.into_iter().chain(open).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_all_origins_on_a_server_without_keys_are_a_warning() {
        let warned = |origins: &[&str], api_keys: &[&str]| {
            let texts = |of: &[&str]| of.iter().map(|text| text.to_string()).collect();
            let (cors_origins, api_keys) = (texts(origins), texts(api_keys));
            let settings = HttpSettings { cors_origins, api_keys, ..HttpSettings::default() };
            warnings(&settings).iter().any(|line| line.contains("every web page"))
        };
        assert!(warned(&["*"], &[]));
        assert!(!warned(&["*"], &["key"]) && !warned(&["https://example.org"], &[]));
        assert!(!warned(&[], &[]));
    }

    #[test]
    fn a_server_on_all_addresses_is_reached_by_loopback() {
        for (address, expected) in [
            ("0.0.0.0:8080", "http://127.0.0.1:8080"),
            ("[::]:80", "http://[::1]:80"),
            ("10.1.2.3:80", "http://10.1.2.3:80"),
        ] {
            assert_eq!(url(address.parse().unwrap(), false), expected);
        }
        assert_eq!(url("10.1.2.3:80".parse().unwrap(), true), "https://10.1.2.3:80");
    }

    #[test]
    fn every_target_is_told() {
        let premium = SloTargets {
            ttft_ms: Some(611.26),
            tpot_ms: Some(30.0),
            ttft_ms_per_token: 0.5,
            ttft_prompt_tokens: 100,
            ..SloTargets::default()
        };
        let background = SloTargets::default();
        let standard = SloTargets {
            ttft_ms: Some(500.0),
            tpot_ms: Some(80.0),
            e2e_ms: Some(15_000.0),
            ..SloTargets::default()
        };
        let derived = SloTargets { ttft_ms_per_token_fewer: 0.25, ..premium };
        assert_eq!(
            of_tier(&derived),
            "first token within 611.3 ms for a prompt of 100 tokens (0.25 ms less for each token fewer, 0.5 ms \
             more for each further token), 30 ms per output token"
        );
        let shorter = SloTargets { ttft_ms_per_token: 0.0, tpot_ms: None, ..derived };
        assert_eq!(
            of_tier(&shorter),
            "first token within 611.3 ms for a prompt of 100 tokens or more (0.25 ms less for each token fewer)"
        );
        let slo = Targets { premium, standard, background, requests_may_tighten: false };
        assert_eq!(
            targets(&slo),
            [
                "targets of premium: first token within 611.3 ms plus 0.5 ms per prompt token beyond \
                 100, 30 ms per output token",
                "targets of standard: first token within 500 ms, 80 ms per output token, last token \
                 within 15000 ms",
                "targets of background: none",
            ]
        );
    }

    #[test]
    fn the_command_suits_the_model_and_its_keys() {
        let plain = example("http://h:1", 2048, true, false);
        assert!(plain.starts_with("try it:\ncurl -N http://h:1/v1/chat/completions "), "{plain}");
        assert!(plain.contains("\"max_tokens\": 256"), "{plain}");
        let keyed = example("http://h:1", 256, false, true);
        assert!(!keyed.contains("max_tokens"), "{keyed}");
        assert!(keyed.contains("/v1/completions") && keyed.contains("\"prompt\""), "{keyed}");
        assert!(keyed.contains("-H \"Authorization: Bearer $TIERCEL_API_KEY\""), "{keyed}");
    }
}
