#!/usr/bin/env python3
"""What operators' commands and listings cost and bring, on a running server.

    cargo build --release && python3 benches/operators.py raise      # a queued request is raised, on the default model
    cargo build --release && python3 benches/operators.py listings   # listings beside planning, on the mock device
    cargo build --release && python3 benches/operators.py rates      # floods of limited keys, on the mock device

`raise`: 24 background requests flood a server that runs 8 at a time. The one that would be served last is raised to
premium by `tiercel ctl reprioritize`, 20 times. Printed are the steps from the change to its first token, and the times
to the first token of raised requests and of those that were not.

`listings`: 10,300 sequences wait while 64 run. The server times, for each step, its planning, and all of the host's work
between two steps (tokens are delivered, and the next step is planned), for 30 s without requests from operators, 30 s with
50 requests a second for /health (what connections alone cost where client and server share the processors), and 30 s with
50 listings a second, three times in turns.

`rates`: for a minute, clients of one key flood the server beyond the key's rate of requests, clients of a second key beyond its
rate of tokens, and clients of a third one beyond its number of live requests. A client of a fourth key without limits sends one
request after the other. Printed are, for each rate, what was served and what the rate allows in that time with one burst, the
most live requests that listings showed, and how many requests of the fourth key were served.
"""

import hashlib, http.client, json, os, statistics, subprocess, sys, tempfile, threading, time
from pathlib import Path

BINARY = Path(__file__).parent.parent / "target" / "release" / "tiercel"
PORT = 18480
PROFILE = """name = "listings"
step_base_us = 20000.0
decode_token_us = 10.0
prefill_token_us = 20.0
kv_token_us = 0.0
prefill_context_us = 0.0
prefill_step_us = 0.0
link_bytes_per_s = 1e9
kv_bytes_per_token = 4000
block_size = 16
device_blocks = 40000
host_blocks = 0
vocab_size = 1000
max_model_len = 8192
max_steps_in_flight = 1
"""


class Server:
    """A server as a child process, with its control API on the next port."""

    def __init__(self, *arguments):
        command = [str(BINARY), "serve", "--listen", f"127.0.0.1:{PORT}", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            time.sleep(0.2)
            assert self.process.poll() is None, "the server has ended"
            try:
                if self.get(PORT, "/health")[0] == 200:
                    return
            except OSError:
                pass

    def get(self, port, path):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def listing(self, query=""):
        return json.loads(self.get(PORT + 1, f"/control/v1/requests{query}")[1])

    def stop(self):
        self.process.kill()
        self.process.wait()


def stream(body, seen):
    """Sends a streamed request, and notes the time of its first token."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=600)
    began = time.monotonic()
    headers = {"Content-Type": "application/json", "X-Request-Id": body.pop("id")}
    connection.request("POST", "/v1/completions", json.dumps(body | {"stream": True}), headers)
    answer = connection.getresponse()
    if answer.status == 200:
        seen[headers["X-Request-Id"]] = time.monotonic() - began
    answer.read()


def ctl(*arguments):
    command = [str(BINARY), "ctl", "--url", f"http://127.0.0.1:{PORT + 1}", "--json", *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def raised(server, number, steps, waits_ms, others_s):
    """One round: a flood, and a raised request."""
    seen = {}
    prompt = "Tell me about the sea. " * 20
    bodies = [{"id": f"r{number}-{n}", "prompt": f"{n} {prompt}", "max_tokens": 100, "ignore_eos": True,
               "service_tier": "flex"} for n in range(24)]
    threads = [threading.Thread(target=stream, args=(body, seen)) for body in bodies]
    for thread in threads:
        thread.start()
    while server.listing("?state=waiting")["total"] < 10:
        time.sleep(0.05)
    time.sleep(0.5)
    last = server.listing("?state=waiting&limit=1000")["requests"][-1]["request_id"]
    began = time.monotonic()
    change = ctl("reprioritize", last, "premium")["changes"][0]
    first = None
    while first is None:
        shown = json.loads(server.get(PORT + 1, f"/control/v1/requests/{last}")[1])
        first = shown["requests"][0].get("first_token_step")
    waits_ms.append((time.monotonic() - began) * 1e3)
    steps.append(first - change["step"])
    for row in server.listing("?limit=1000")["requests"]:
        server_cancel = http.client.HTTPConnection("127.0.0.1", PORT + 1)
        if row["state"] != "waiting":
            continue
        others_s.append(row["age_ms"] / 1e3)
        server_cancel.request("POST", f"/control/v1/requests/{row['seq']}/cancel", "{}", {"Content-Type": "application/json"})
        server_cancel.getresponse().read()
    for thread in threads:
        thread.join()


def raise_rounds():
    server = Server("--max-num-seqs", "8")
    steps, waits_ms, others_s = [], [], []
    for number in range(20):
        raised(server, number, steps, waits_ms, others_s)
    server.stop()
    print(f"steps from the change to the first token: {sorted(steps)}")
    print(f"from the command to the first token, ms: median {statistics.median(waits_ms):.0f}, longest {max(waits_ms):.0f}")
    print(f"requests that were not raised still waited then, for: median {statistics.median(others_s):.1f} s")


def host_times(server, after):
    """Returns the times of planning and of all the host's work for the steps after a step, us, and the last step."""
    steps = json.loads(server.get(PORT, f"/debug/steps?after={after}")[1])["steps"]
    timed = [step for step in steps if step["host_us"] is not None]
    last = steps[-1]["step"] if steps else after
    return [[step[key] for step in timed] for key in ("planning_us", "host_us")], last


def listings():
    profile = tempfile.NamedTemporaryFile("w", suffix=".toml", delete=False)
    profile.write(PROFILE)
    profile.close()
    sets = ["admission.max_requests=20000", "admission.max_queued_requests_per_tier=20000", "patience.background_s=0"]
    server = Server("--device", f"mock:{profile.name}", "--max-num-seqs", "64", *[x for s in sets for x in ("--set", s)])
    body = {"prompt": "Hello", "n": 128, "max_tokens": 8000, "ignore_eos": True, "service_tier": "flex"}
    threads = [threading.Thread(target=stream, args=(body | {"id": f"f{n}"}, {}), daemon=True) for n in range(81)]
    for thread in threads:
        thread.start()
    while server.listing("?limit=1")["total"] < 81 * 128:
        time.sleep(1)
    # The client gives way to the server, as a client on another machine would.
    os.nice(19)
    asks = {
        "nothing": lambda: time.sleep(1),
        "/health": lambda: server.get(PORT + 1, "/health"),
        "listings": lambda: server.listing("?limit=100&sort=age"),
    }
    for turn in range(3):
        for name, ask_for in asks.items():
            _, last = host_times(server, 0)
            began, sent = time.monotonic(), 0
            while time.monotonic() - began < 30:
                ask_for()
                sent += 1
                time.sleep(max(0, began + sent / 50 - time.monotonic()))
            planning, host = (sorted(times) for times in host_times(server, last)[0])
            p50, p99 = (lambda times: times[len(times) // 2]), (lambda times: times[len(times) * 99 // 100])
            print(f"turn {turn + 1}, {name} ({sent / 30:.0f}/s): planning p50 {p50(planning)} us, p99 {p99(planning)} us; all of "
                  f"the host's work p50 {p50(host)} us, p99 {p99(host)} us; {len(host)} steps", flush=True)
    server.stop()
    os.unlink(profile.name)


FLOOD_S = 60
REQUESTS_PER_MIN, TOKENS_PER_MIN, MAX_LIVE = 1_200, 60_000, 4
KEYS = {
    "requests": f"requests_per_min = {REQUESTS_PER_MIN}",
    "tokens": f"tokens_per_min = {TOKENS_PER_MIN}",
    "narrow": f"max_live = {MAX_LIVE}",
    "other": "",
    "viewer": 'role = "viewer"',
}


def ask(connection, method, path, key, body=None):
    """Sends a request with a key on an open connection; returns the status and the answer's JSON."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request(method, path, json.dumps(body) if body else None, headers)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def flood(key, body, until, seen):
    """Sends requests, each when the one before is answered, until the time `until` has passed."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=30)
    while time.monotonic() < until:
        sent = time.monotonic()
        status, answer = ask(connection, "POST", "/v1/completions", key, body)
        seen["statuses"].append(status)
        if status == 200:
            seen["tokens"] += answer["usage"]["total_tokens"]
        else:
            seen["refused_at"] = sent
            if key == "narrow":
                time.sleep(0.01)  # leaves the processor to the floods of the other keys


def rates():
    keys = tempfile.NamedTemporaryFile("w", suffix=".toml", delete=False)
    for name, limits in KEYS.items():
        keys.write(f'[[key]]\nname = "{name}"\nsha256 = "{hashlib.sha256(name.encode()).hexdigest()}"\n{limits}\n')
    keys.close()
    server = Server("--device", "mock:tiny", "--keys-file", keys.name)
    body = {"prompt": "Hello", "max_tokens": 20, "ignore_eos": True}
    clients = {"requests": (2, body), "tokens": (2, body), "narrow": (8, body | {"max_tokens": 500}), "other": (1, body)}
    seen = {key: [{"statuses": [], "tokens": 0, "refused_at": 0.0} for _ in range(count)] for key, (count, _) in clients.items()}
    began = time.monotonic()
    threads = [threading.Thread(target=flood, args=(key, body, began + FLOOD_S, of)) for key, (_, body) in clients.items()
               for of in seen[key]]
    for thread in threads:
        thread.start()
    viewer = http.client.HTTPConnection("127.0.0.1", PORT + 1, timeout=30)
    most_live = looks = 0
    while time.monotonic() < began + FLOOD_S:
        of_key = ask(viewer, "GET", "/control/v1/keys?tenant=narrow", "viewer")[1]["keys"][0]["live"]
        listed = ask(viewer, "GET", "/control/v1/requests?tenant=narrow&limit=1", "viewer")[1]["total"]
        most_live, looks = max(most_live, of_key, listed), looks + 1
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    server.stop()
    os.unlink(keys.name)
    statuses = {key: [status for of in seen[key] for status in of["statuses"]] for key in clients}
    for key, per_min in ("requests", REQUESTS_PER_MIN), ("tokens", TOKENS_PER_MIN):
        spent_s = max(of["refused_at"] for of in seen[key]) - began
        assert spent_s > 0, f"no request of the key {key} was refused: the clients are too slow for a flood"
        allowed = per_min * (1 / 6 + spent_s / 60)
        served = statuses[key].count(200) if key == "requests" else sum(of["tokens"] for of in seen[key])
        print(f"{key}: {served} served in {spent_s:.1f} s, {allowed:.0f} allowed ({served / allowed - 1:+.2%}); "
              f"{len(statuses[key])} requests sent")
    print(f"live: at most {most_live} of {MAX_LIVE} in {looks} looks; {statuses['narrow'].count(200)} served of "
          f"{len(statuses['narrow'])} sent")
    print(f"another key: {statuses['other'].count(200)} served of {len(statuses['other'])} sent")


if __name__ == "__main__":
    choices = {"raise": raise_rounds, "listings": listings, "rates": rates}
    if len(sys.argv) != 2 or sys.argv[1] not in choices:
        sys.exit(__doc__)
    choices[sys.argv[1]]()
