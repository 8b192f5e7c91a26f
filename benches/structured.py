#!/usr/bin/env python3
"""Structured output on a running server: answers of the default model, and the streams beside constrained ones.

    cargo build --release && python3 -m pip install jsonschema==4.26.0 jiter==0.16.0
    python3 benches/structured.py answers   # the default model answers under each vendored schema
    python3 benches/structured.py streams   # free streams beside 16 constrained ones, on the default model
    python3 benches/structured.py hostile   # free streams beside hostile grammars, on the mock device and the default model
    python3 benches/structured.py hostile default   # the same, on one of them (mock, default)

`answers`: one chat request for each schema, with the schema in the prompt, at most 512 tokens, default sampling and a fixed
seed, 32 at a time. Complete answers are validated by Python's `jsonschema`, all others must be the beginning of a JSON text by
`jiter`. Then the example `check_answers` checks all answers with the Rust crate `jsonschema` and with the grammar's bytes.

`streams`: 32 streams at once; 16 of them are always free, the others are free in one turn and constrained in the next. The script
prints the speed of the first 16.

`hostile`: 8 quiet streams, and 2 with a grammar, beside two clients that send ordinary grammars, and beside two clients that send
hostile grammars one after the other. Twelve rounds, each with ten seconds of both, in alternating order. The script prints the gaps between
tokens of both, the ratios of their percentiles with 95 % intervals over the rounds, and the time until an honest client's small grammar is answered.
"""

import http.client, json, os, random, statistics, subprocess, sys, tempfile, threading, time
from pathlib import Path

ROOT = Path(__file__).parent.parent
BINARY = Path(os.environ.get("TIERCEL_BINARY") or ROOT / "target" / "release" / "tiercel")
PORT = 18580
TURNS = 5
ROUNDS = 12
ROUND_S = 10
SCHEMA = {"type": "array", "minItems": 500, "items": {"type": "object", "properties": {
    "name": {"type": "string"}, "age": {"type": "integer"}, "kind": {"enum": ["cat", "dog"]},
    "tags": {"type": "array", "items": {"type": "string"}}}, "required": ["name", "age", "kind", "tags"]}}


class Server:
    """A server as a child process."""

    def __init__(self, *arguments):
        command = [str(BINARY), "serve", "--listen", f"127.0.0.1:{PORT}", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            time.sleep(0.2)
            assert self.process.poll() is None, "the server has ended"
            try:
                connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=30)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass

    def stop(self):
        self.process.kill()
        self.process.wait()


def post(path, body):
    """Sends a request, whose body is an object or JSON text in bytes; returns the status and the answer's JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=600)
    text = body if isinstance(body, bytes) else json.dumps(body)
    connection.request("POST", path, text, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def token_times(body, until=None):
    """Sends a streamed request; returns the time of each token's event. Leaves the stream at the time `until`."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=600)
    connection.request("POST", "/v1/completions", json.dumps(body | {"stream": True}), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    times = []
    for line in answer:
        if line.startswith(b"data: {"):
            times.append(time.monotonic())
        if until and time.monotonic() > until:
            break
    connection.close()
    return times


def examples(which):
    """Returns the requests that the Rust example prints."""
    command = ["cargo", "run", "--quiet", "-p", "tiercel-grammar", "--example", "requests", "--", which]
    lines = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def all_at_once(works):
    """Runs functions on threads and returns their results in order."""
    results = [None] * len(works)

    def run(at):
        results[at] = works[at]()

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def answer(schema):
    """Returns the model's answer under a schema, and the reason for its end."""
    question = f"Write one example of a JSON value that follows this JSON schema. Answer with the value only.\n{json.dumps(schema)}"
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": 512, "seed": 7,
            "response_format": {"type": "json_schema", "json_schema": {"name": "value", "strict": True, "schema": schema}}}
    status, answer = post("/v1/chat/completions", body)
    if status != 200:
        return status, answer["error"]["message"]
    choice = answer["choices"][0]
    return choice["finish_reason"], choice["message"]["content"]


def answers():
    import jiter, jsonschema

    requests = examples("schemas")
    server = Server()
    waiting, lock, done = list(reversed(requests)), threading.Lock(), []

    def client():
        while True:
            with lock:
                if not waiting:
                    return
                request = waiting.pop()
            reason, text = answer(request["schema"])
            done.append(request | {"reason": reason, "text": text, "complete": reason == "stop"})

    began = time.monotonic()
    all_at_once([client] * 32)
    server.stop()
    wrong, unchecked, refused = [], 0, [one for one in done if one["reason"] not in ("stop", "length")]
    done = [one for one in done if one["reason"] in ("stop", "length")]
    for one in done:
        try:
            if one["complete"]:
                jsonschema.validate(json.loads(one["text"]), one["schema"], cls=jsonschema.validators.validator_for(one["schema"]))
            else:
                jiter.from_json(one["text"].encode(), partial_mode="trailing-strings")
        except jsonschema.SchemaError:
            # Python's regular expressions know no \\p{...}.
            unchecked += 1
        except Exception as error:
            wrong.append((one["name"], one["text"], str(error).splitlines()[0]))
    complete = sum(one["complete"] for one in done)
    print(f"{len(done)} schemas answered in {time.monotonic() - began:.0f} s: {complete} complete ({100 * complete / len(done):.1f} %), "
          f"{len(done) - complete} cut at 512 tokens; {len(wrong)} wrong by Python's jsonschema or jiter, {unchecked} have a schema that this jsonschema cannot "
          f"read; {len(refused)} refused")
    for one in wrong + [(one["name"], one["reason"], one["text"]) for one in refused]:
        print(*one)
    lines = "".join(json.dumps(one) + "\n" for one in done)
    command = ["cargo", "run", "--quiet", "-p", "tiercel-grammar", "--example", "check_answers"]
    checked = subprocess.run(command, cwd=ROOT, input=lines, text=True, capture_output=True)
    print(f"Rust's jsonschema, and the grammar for cut answers: {checked.stdout.strip()}{checked.stderr}")


def rate(times):
    """Returns the speed of a stream after its first token, tokens/s."""
    return (len(times) - 1) / (times[-1] - times[0])


def streams():
    server = Server()
    free = {"prompt": "Once upon a time", "max_tokens": 192, "ignore_eos": True}
    constrained = {"prompt": "Once upon a time", "max_tokens": 192, "structured_outputs": {"json": SCHEMA}}
    post("/v1/completions", constrained | {"max_tokens": 1})
    rates = {"free": [], "constrained": []}
    beside_rates = {"free": [], "constrained": []}
    for turn in range(TURNS * 2):
        name, others = ("free", free) if turn % 2 == 0 else ("constrained", constrained)
        bodies = [free | {"seed": n} for n in range(16)] + [others | {"seed": n} for n in range(16, 32)]
        times = all_at_once([lambda body=body: token_times(body) for body in bodies])
        rates[name].append(statistics.mean(rate(one) for one in times[:16]))
        beside_rates[name].append(statistics.mean(rate(one) for one in times[16:]))
    server.stop()
    for name in rates:
        shown = ", ".join(f"{one:.2f}" for one in rates[name])
        print(f"16 free streams beside 16 {name} ones: {shown} tokens/s each; the {name} ones {statistics.median(beside_rates[name]):.2f}")
    pairs = [100 * b / a for a, b in zip(rates["free"], rates["constrained"])]
    print(f"free streams beside constrained ones, of their speed beside free ones: median {statistics.median(pairs):.1f} %, "
          f"pairs {', '.join(f'{one:.1f}' for one in pairs)}")


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


MOCK = """name = "quiet"
step_base_us = 10000.0
decode_token_us = 10.0
prefill_token_us = 5.0
kv_token_us = 0.0
prefill_context_us = 0.0
prefill_step_us = 0.0
link_bytes_per_s = 1e9
kv_bytes_per_token = 4000
block_size = 16
device_blocks = 8000
host_blocks = 0
vocab_size = 1000
max_model_len = 8192
max_steps_in_flight = 1
"""


def beside(crowd, first, seconds):
    """Runs 8 quiet streams and 2 quiet streams that follow a grammar, and beside them two clients that send the texts of `crowd` from
    the text `first` on, and an honest client. Returns the gaps of the quiet streams and of those with a grammar, ms, the honest client's times, ms, and
    the statuses of the crowd's requests."""
    until = time.monotonic() + seconds
    statuses, honest = {}, []
    quiet = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "service_tier": "priority"}

    def rude(at):
        while crowd and time.monotonic() < until:
            status, _ = post("/v1/completions", crowd[at % len(crowd)])
            at += 2
            statuses[status] = statuses.get(status, 0) + 1

    def small():
        number = 0
        while time.monotonic() < until:
            number += 1
            began = time.monotonic()
            body = {"prompt": "Hello", "max_tokens": 1, "structured_outputs": {"regex": f"[a-z]{{3}}{number}x{began:.0f}"}}
            status, _ = post("/v1/completions", body)
            honest.append((time.monotonic() - began) * 1e3 if status == 200 else float("inf"))
            time.sleep(0.5)

    grammar = {"structured_outputs": {"json": SCHEMA}}
    works = [lambda n=n: token_times(quiet | {"seed": n} | (grammar if n >= 8 else {}), until) for n in range(10)]
    results = all_at_once(works + [lambda: rude(first), lambda: rude(first + 1), small])
    free, constrained = ([(b - a) * 1e3 for times in part for a, b in zip(times, times[1:])] for part in (results[:8], results[8:10]))
    return free, constrained, honest, statuses


def spread(gaps):
    """Writes the spread of gaps, ms."""
    return (f"gaps p50 {percentile(gaps, 0.5):.1f} ms, p99 {percentile(gaps, 0.99):.1f}, p99.9 {percentile(gaps, 0.999):.1f}, "
            f"longest {max(gaps):.0f} ({len(gaps)})")


def pooled(rounds):
    return [gap for gaps in rounds for gap in gaps]


def compared(before, after, share):
    """Writes by how much a percentile of gaps differs, %, with a 95 % interval from resampled rounds."""
    draws, drawing = [], random.Random(1)
    for _ in range(200):
        chosen = drawing.choices(range(len(before)), k=len(before))
        draws.append(percentile(pooled(after[at] for at in chosen), share) / percentile(pooled(before[at] for at in chosen), share))
    ratio = percentile(pooled(after), share) / percentile(pooled(before), share)
    low, high = (100 * (percentile(draws, end) - 1) for end in (0.025, 0.975))
    return f"{100 * (ratio - 1):+.1f} % ({low:+.1f} to {high:+.1f})"


def requests_with_grammars():
    """Returns the bodies of requests with ordinary and with hostile grammars."""
    attacks = [request["fields"] for request in examples("hostile")]
    # About half of the hostile requests are refused, so half of the ordinary ones are, too: both crowds send at the same rate.
    ordinary = [{"structured_outputs": {"json": {"type": "object", "properties": {f"key{n}": {"type": "string", "maxLength": 20}},
                                                 "required": [f"key{n}"], **({"minProperties": "two"} if n % 4 >= 2 else {})}}}
                for n in range(4000)]
    # The bodies are written before the clock runs: Python's threads wait while one of them writes a large JSON text.
    texts = [[json.dumps({"prompt": "Hello", "max_tokens": 16, **fields}).encode() for fields in crowd] for crowd in (ordinary, attacks)]
    return {"ordinary": texts[0], "hostile": texts[1]}


def hostile(only=""):
    crowds = requests_with_grammars()
    profile = tempfile.NamedTemporaryFile("w", suffix=".toml", delete=False)
    profile.write(MOCK)
    profile.close()
    devices = [("mock device", ["--device", f"mock:{profile.name}"]), ("default model", [])]
    for device, arguments in [device for device in devices if device[0].startswith(only)]:
        server = Server(*arguments)
        post("/v1/completions", json.loads(crowds["ordinary"][0]))
        gaps, statuses, honest = ({name: [] for name in crowds} for _ in range(3))
        for turn in range(ROUNDS):
            for name in sorted(crowds, reverse=turn % 2 == 0):
                free, constrained, times, counts = beside(crowds[name], turn * 100, ROUND_S)
                gaps[name].append((free, constrained))
                honest[name] += times
                statuses[name].append(counts)
        server.stop()
        for name in crowds:
            counts = {status: sum(one.get(status, 0) for one in statuses[name]) for status in sorted(set().union(*statuses[name]))}
            free, constrained = (pooled(one[at] for one in gaps[name]) for at in (0, 1))
            print(f"{device}, beside {name} grammars: {spread(free)}; with a grammar {spread(constrained)}; small grammar p50 "
                  f"{percentile(honest[name], 0.5):.0f} ms, longest {max(honest[name]):.0f} ms; statuses of the crowd {counts}")
        for at, kind in enumerate(("free streams", "streams with a grammar")):
            before, after = ([one[at] for one in gaps[name]] for name in ("ordinary", "hostile"))
            texts = [f"p{100 * share:g} {compared(before, after, share)}" for share in (0.5, 0.99, 0.999)]
            print(f"{device}, {kind} beside hostile grammars, of their gaps beside ordinary ones: {', '.join(texts)}", flush=True)
    os.unlink(profile.name)


if __name__ == "__main__":
    modes = {"answers": answers, "streams": streams, "hostile": hostile}
    if len(sys.argv) < 2 or sys.argv[1] not in modes:
        sys.exit(f"usage: structured.py {'|'.join(modes)}")
    modes[sys.argv[1]](*sys.argv[2:])
