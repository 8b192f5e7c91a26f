"""Checks a server against its OpenAPI documents. Usage: check_openapi.py PUBLIC_URL CONTROL_URL OPERATOR_KEY OTHER_KEY EXAMPLES

OPERATOR_KEY has the role operator and OTHER_KEY the role viewer; `-` stands for a server without keys. Schemathesis sends
EXAMPLES random requests to each operation, beside a fixed set of edge cases. No request goes to drain, which would end the
server, nor to the event stream, which does not end; one listener reads the event stream and checks its events. A trace takes
a second at least, so few requests go to it, and those that the document allows ask for one second.
"""

import itertools
import json
import os
import pathlib
import sys
import tempfile
import threading
import time
import zlib

import jsonschema_rs
import requests
import schemathesis
from schemathesis.cli import schemathesis as command
from schemathesis.core.transport import DEFAULT_MAX_STREAM_EVENTS

PUBLIC, CONTROL, OPERATOR, OTHER, EXAMPLES = sys.argv[1:]
CONFIG = pathlib.Path(__file__).with_name("schemathesis.toml")
SEED = os.environ.get("SCHEMATHESIS_SEED", "1")
KEYED = OPERATOR != "-"
HEADERS = {"Authorization": f"Bearer {OPERATOR}"} if KEYED else {}
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
    "chunk_conformance",
]
# Number of token ids that every mock device has.
VOCABULARY = 256
# Number of requests that are kept alive, so that there is something to list and to change.
LIVE = 3
# Path of traces, and number of random requests to it.
TRACE, TRACES = "/control/v1/trace", 3
CHUNKS = {
    "/v1/chat/completions": "ChatCompletionChunk",
    "/v1/completions": "TextCompletionChunk",
}
counted = {"changed": 0, "found": 0, "streams": 0, "traces": 0}


def validator(document, schema):
    """Returns a validator of a schema of a document."""
    return jsonschema_rs.validator_for(
        {"$ref": f"#/components/schemas/{schema}", "components": document["components"]}
    )


public = requests.get(f"{PUBLIC}/openapi.json").json()
control = requests.get(f"{CONTROL}/openapi.json").json()
chunks = {path: validator(public, schema) for path, schema in CHUNKS.items()}
errors = validator(public, "ErrorBody")


def keep_alive():
    """Sends one long request after the other. A request ends by itself, or because an operation under test cancels it."""
    body = {"prompt": "x", "max_tokens": 1000, "ignore_eos": True, "stream": True}
    while True:
        try:
            with requests.post(f"{PUBLIC}/v1/completions", json=body, headers=HEADERS, stream=True) as answer:
                for _ in answer.iter_lines():
                    pass
        except requests.RequestException:
            pass
        time.sleep(0.05)


def live_ids():
    """Returns the ids of live requests: in their responses, of their clients and of their sequences."""
    answer = requests.get(f"{CONTROL}/control/v1/requests", headers=HEADERS)
    rows = answer.json()["requests"]
    return list(itertools.chain.from_iterable((row["id"], row["request_id"], str(row["seq"])) for row in rows))


def servable(body, number):
    """Returns a request for generation that the mock device can serve, with as much of `body` as possible."""
    left_out = {"model", "tools", "functions", "best_of", "suffix", "max_completion_tokens", "max_wait_ms"}
    body = {name: value for name, value in body.items() if name not in left_out}
    body["max_tokens"] = number % 12 + 1
    body["stream"] = number % 3 == 0
    if body.get("n"):
        body["n"] = int(body["n"]) % 3 + 1
    if not body["stream"]:
        body.pop("stream_options", None)
    if body.get("top_logprobs") is not None:
        body["logprobs"] = True
    if body.get("stop_token_ids"):
        body["stop_token_ids"] = [int(token) % VOCABULARY for token in body["stop_token_ids"]]
    if body.get("logit_bias"):
        body["logit_bias"] = {str(int(token) % VOCABULARY): bias for token, bias in body["logit_bias"].items()}
    if "messages" in body:
        body["messages"] = [short(message) for message in body["messages"][:3]]
    if "prompt" in body:
        body["prompt"] = short_prompt(body["prompt"])
    return body


def short(message):
    content = message.get("content")
    return {**message, "content": content[:20] if content else "x"}


def short_prompt(prompt):
    if isinstance(prompt, str):
        return prompt[:20] or "x"
    if isinstance(prompt, list):
        return [short_prompt(item) for item in prompt[:4]] or "x"
    return int(prompt) % VOCABULARY


@schemathesis.hook
def before_call(context, case, kwargs):
    """Makes three of four requests that fit the document fit this server too: its model, its context, its live requests.

    Otherwise nearly all of them would end with an error about an id or about the length of the context.
    """
    if case.meta is None or case.meta.generation.mode.is_negative:
        return
    if case.path == TRACE:
        case.query = {**(case.query or {}), "seconds": 1}
        return
    number = zlib.crc32(repr((case.body, case.path_parameters, case.query)).encode())
    if number % 4 == 0:
        return
    if case.path in CHUNKS and isinstance(case.body, dict):
        case.body = servable(case.body, number)
    elif case.path == "/v1/models/{id}":
        case.path_parameters = {"id": MODEL}
    elif "id" in (case.path_parameters or {}):
        ids = live_ids()
        if ids:
            case.path_parameters = {"id": ids[number % len(ids)]}


@schemathesis.check
def chunk_conformance(context, response, case):
    """Checks that every chunk of an event stream has the schema of chunks, and that the last is `[DONE]` or an error."""
    counted["found"] += response.status_code == 200
    counted["traces"] += response.status_code == 200 and case.path == TRACE and case.method == "GET"
    counted["changed"] += response.status_code == 200 and case.method != "GET"
    kind = (response.headers.get("content-type") or [""])[0]
    if case.path not in CHUNKS or not kind.startswith("text/event-stream"):
        return
    counted["streams"] += 1
    events = [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]
    assert events, "an event stream without events"
    # Schemathesis reads at most DEFAULT_MAX_STREAM_EVENTS events. A stream of exactly that many events may be whole.
    whole = len(events) < DEFAULT_MAX_STREAM_EVENTS or events[-1] == "[DONE]"
    last = events.pop() if whole else "[DONE]"
    for event in events:
        chunks[case.path].validate(json.loads(event))
    if last != "[DONE]":
        errors.validate(json.loads(last))


def listen(events):
    with requests.get(f"{CONTROL}/control/v1/events", headers=HEADERS, stream=True) as answer:
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream"), answer.headers
        for line in answer.iter_lines():
            if line.startswith(b"data: "):
                events.append(json.loads(line[6:]))


def run(url, key, examples, checks=CHECKS, phases="coverage,fuzzing", paths=("--exclude-path", TRACE)):
    """Lets Schemathesis check one document; ends the script if it finds a fault."""
    print(f"== {url}, key {key}, {' '.join(paths)}", flush=True)
    arguments = ["--config-file", str(CONFIG), "--no-color", "run", f"{url}/openapi.json"]
    arguments += ["--checks", ",".join(checks), "--phases", phases, "--max-examples", str(examples)]
    arguments += ["--exclude-path", "/control/v1/drain", "--exclude-path", "/control/v1/events"]
    arguments += paths
    arguments += ["--seed", SEED, "--generation-database", "none", "--request-timeout", "30"]
    arguments += ["--continue-on-failure", "--warnings", "off"]
    if key != "-":
        arguments += ["--header", f"Authorization: Bearer {key}"]
    try:
        command(arguments, standalone_mode=False)
        code = 0
    except SystemExit as end:
        code = end.code
    if code:
        sys.exit(f"Schemathesis found faults of {url} (exit code {code})")


def main():
    os.chdir(tempfile.mkdtemp())
    if KEYED:
        # Clients without a key, with a wrong one, and without the rights that they need.
        for key in ["-", "wrong"]:
            run(PUBLIC, key, 3, phases="fuzzing")
            run(CONTROL, key, 3, phases="fuzzing")
        run(CONTROL, OTHER, 3, phases="fuzzing")
    for _ in range(LIVE):
        threading.Thread(target=keep_alive, daemon=True).start()
    events = []
    threading.Thread(target=listen, args=[events], daemon=True).start()
    # The check `ignored_auth` wants 401 for a request without a key.
    checks = CHECKS + ["ignored_auth"] if KEYED else CHECKS
    run(PUBLIC, OPERATOR, EXAMPLES, checks)
    before = dict(counted)
    run(CONTROL, OPERATOR, EXAMPLES, checks)
    for key in ["wrong", OPERATOR] if KEYED else [OPERATOR]:
        run(CONTROL, key, TRACES, CHECKS, paths=("--include-path", TRACE))
    print(f"answers with status 200: {counted}, of the public API: {before}; events: {len(events)}")
    assert before["streams"] > 0 and counted["changed"] > before["changed"] and counted["traces"] and events
    audit = validator(control, "AuditEvent")
    for event in events:
        if "lost" not in event:
            audit.validate(event)
    print("complete")


MODEL = requests.get(f"{PUBLIC}/v1/models", headers=HEADERS).json()["data"][0]["id"]
main()
