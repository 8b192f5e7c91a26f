//! Tests of the command line's texts: errors about wrong arguments, and the log lines of a server that has started.

use crate::command::{failure, run};
use crate::served::{Served, status};
use serde_json::{Value, json};

#[test]
fn what_is_said_about_a_wrong_command_line() {
    let one_line = [
        (
            &["serve", "--listen", "8080"][..],
            "tiercel: --listen: http.listen = \"8080\" is not allowed: expected HOST:PORT; did you \
             mean 127.0.0.1:8080?",
        ),
        (
            &["serve", "--listen", ":8080"],
            "tiercel: --listen: http.listen = \":8080\" is not allowed: expected HOST:PORT; did you \
             mean 0.0.0.0:8080?",
        ),
        (
            &["serve", "--listen", "http://localhost:8080/v1"],
            "tiercel: --listen: http.listen = \"http://localhost:8080/v1\" is not allowed: expected \
             HOST:PORT; did you mean localhost:8080?",
        ),
        (
            &["serve", "--set", "scheduler.polcy=fcfs"],
            "tiercel: --set: unknown setting scheduler.polcy; did you mean scheduler.policy?",
        ),
        (
            &["serve", "--set", "port=8080"],
            "tiercel: --set: unknown setting port; did you mean http.listen?",
        ),
        (
            &["serve", "--set", "http.api_key=secret"],
            "tiercel: --set: unknown setting http.api_key; did you mean http.api_keys?",
        ),
        (
            &["serve", "--set", "ttft_ms=150"],
            "tiercel: --set: unknown setting ttft_ms; did you mean slo.premium.ttft_ms, \
             slo.standard.ttft_ms or slo.background.ttft_ms?",
        ),
        (
            &["serve", "--set", "favourite_colour=blue"],
            "tiercel: --set: unknown setting favourite_colour; docs/configuration.md lists them all",
        ),
        (
            &["serve", "--set", "http.listen"],
            "tiercel: --set: http.listen has no value; write --set http.listen=VALUE, where VALUE is \
             HOST:PORT",
        ),
        (
            &["serve", "--served-name", "a", "--served-name", "a"],
            "tiercel: model.served_name: holds a name twice; remove one of them",
        ),
    ];
    for (args, expected) in one_line {
        assert_eq!(failure(args), (2, expected.to_owned()), "{args:?}");
    }
    let listen = "error: unexpected argument '--NAME' found\n\n  tip: a similar argument exists: \
                  '--listen'\n  tip: --listen takes host and port, such as --listen 0.0.0.0:8080\n\n";
    let several = [
        (&["serve", "--host", "0.0.0.0"][..], listen.replace("NAME", "host <host>")),
        (&["serve", "--port", "8080"], listen.replace("NAME", "port <port>")),
        (
            &["serve", "--api-key", "secret"],
            "error: unexpected argument '--api-key <api-key>' found\n\n  tip: API keys are in a \
             file of hashes, named by --keys-file; a key in plain text can be stated by \
             TIERCEL_HTTP_API_KEYS=KEY in the environment\n\n"
                .to_owned(),
        ),
        (
            &["serve", "--served-model-name", "a"],
            "error: unexpected argument '--served-model-name <served-model-name>' found\n\n  tip: a \
             similar argument exists: '--served-name'\n\n"
                .to_owned(),
        ),
    ];
    for (args, expected) in several {
        let output = run(args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with(&expected), "{args:?}: {said}");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn the_start_ends_with_url_targets_and_a_command() {
    // The port after that of the server may be another test's, so the control API takes any free one.
    let served = Served::start(&["--control-listen", "127.0.0.1:0"]);
    let ready = served.start.iter().position(|line| line.starts_with("INFO ready")).unwrap();
    let shown: Vec<String> = served.start[ready..].iter().map(|line| without_port(line)).collect();
    assert_eq!(
        shown,
        [
            "INFO ready model=\"mock-tiny\" url=\"http://ADDRESS\"",
            "INFO operators: tiercel ctl --url http://127.0.0.1:N requests; live page: http://127.0.0.1:N/dashboard",
            "INFO targets of premium: first token within 1.1 ms for a prompt of 224 tokens (0.00172 ms less for each token fewer, 0.00375 ms more for each further token), 0.5 ms per output token, last token within 74 ms",
            "INFO targets of standard: first token within 2.8 ms for a prompt of 224 tokens (0.00455 ms less for each token fewer, 0.00994 ms more for each further token), 1.2 ms per output token, last token within 196 ms",
            "INFO targets of background: last token within 783 ms",
            "INFO try it:",
            "curl -N http://ADDRESS/v1/chat/completions -H 'Content-Type: application/json' -d \
             '{\"stream\": true, \"temperature\": 0, \"max_tokens\": 256, \"messages\": [{\"role\": \
             \"user\", \"content\": \"Why is the sky blue?\"}]}'",
        ]
    );
    let body_of = |text: &str| {
        let body = text.split_once("-d '").unwrap().1.split_once('\'').unwrap().0;
        let streamed: Value = serde_json::from_str(body).unwrap();
        assert_eq!(streamed["stream"], true);
        (body.to_owned(), streamed)
    };
    // Check that the README's sample request equals the one that a started server logs, except for its tier, premium.
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
    let readme = body_of(&std::fs::read_to_string(readme).unwrap());
    let (said, mut asked) = body_of(served.start.last().unwrap());
    for body in [&said, &readme.0] {
        let (head, answer) = served.ask("POST", "/v1/chat/completions", body);
        assert_eq!(status(&head), 200, "{answer}");
        assert!(answer.contains("data: [DONE]"), "{answer}");
    }
    asked["service_tier"] = json!("priority");
    assert_eq!(readme.1, asked);
    let log = served.stop();
    assert_eq!(log[0], "INFO shutting down; a second signal exits at once signal=\"SIGTERM\"");
    // The audit log has the begin and the end of the drain.
    assert!(log[1].contains("\"action\":\"drain\"") && log[2].contains("\"action\":\"drained\""));
    assert_eq!(log.len(), 3, "{log:?}");

    let keyed = Served::start(&["--set", "http.api_keys=k"]);
    let command = keyed.start.last().unwrap();
    assert!(command.contains("-H \"Authorization: Bearer $TIERCEL_API_KEY\""), "{command}");
}

/// Replaces the control listener's port, which differs between runs, by N, in all URLs of the line.
fn without_port(line: &str) -> String {
    let mut pieces = line.split("http://127.0.0.1:");
    let before = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(before, |line, piece| {
        let rest = piece.trim_start_matches(|digit: char| digit.is_ascii_digit());
        format!("{line}http://127.0.0.1:N{rest}")
    })
}
