#!/usr/bin/env python3
"""What operators' commands and listings cost and bring, on a running server.

    cargo build --release && python3 benches/operators.py raise      # a queued request is raised, on the default model
    cargo build --release && python3 benches/operators.py lower      # a running request is lowered, on the default model
    cargo build --release && python3 benches/operators.py listings   # listings beside planning, on the mock device
    cargo build --release && python3 benches/operators.py rates      # floods of limited keys, on the mock device

`raise`: 24 background requests flood a server that runs 8 at a time. The one that would be served last is raised to
premium by `tiercel ctl reprioritize`, 20 times. Printed are the steps from the change to its first token, and the times
to the first token of raised requests and of those that were not.

`lower`: a premium request runs, with memory for one request at a time, and another premium request arrives. In half of 20 rounds
the first one is lowered to background by `tiercel ctl reprioritize` just before. Printed are the times to the first token of the
requests that arrived, how often lowered requests were preempted, and how many first requests have the text of a lone run.

`listings`: 10,350 sequences wait while 16 run, in steps of 2 ms. The server's engine thread has one processor, and all other threads
of the server and the client have another. The server times, for each step, its planning, and all of the host's work between two
steps (tokens are delivered, and the next step is planned). Blocks of 5 s without requests of operators (A) and with 50 requests a
second (B) come in the order A B B A. B is a listing, or, as a control, `/version`. Printed are p50 and p99 over all steps of A and of
B, and the ratio of the two p99 with a 95 % bootstrap interval over the pairs of blocks. It takes at most 6 minutes.

`rates`: a client of a key without limits sends one request after the other for a minute. Then, for another minute, clients of one key flood the server beyond the key's rate of requests, clients of a second key beyond its
rate of tokens, and clients of a third one beyond its number of live requests. Printed are, for each rate, what was served and what
the rate allows in that time with one burst; the most live requests that listings showed, and in which share of looks the limit was
reached; and, of the key without limits, the number of requests and the times of answers, alone and beside the floods.
"""

import collections, hashlib, http.client, itertools, json, os, random, statistics, subprocess, sys, tempfile, threading, time
from pathlib import Path

BINARY = Path(os.environ.get("TIERCEL_BINARY") or Path(__file__).parent.parent / "target" / "release" / "tiercel")
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
    try:
        answer = connection.getresponse()
        if answer.status == 200:
            seen[headers["X-Request-Id"]] = time.monotonic() - began
        while answer.read(1 << 16):
            pass
    except (OSError, http.client.HTTPException):
        pass  # the server was stopped


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


def text_of(body, runs=None):
    """Sends a streamed request; returns its text, and the time to its first token, s. Sets the event `runs` at the sixth."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=600)
    headers = {"Content-Type": "application/json", "X-Request-Id": body["id"]}
    began, first_s, text, chunks = time.monotonic(), None, "", 0
    fields = {name: value for name, value in body.items() if name != "id"}
    connection.request("POST", "/v1/completions", json.dumps(fields | {"stream": True}), headers)
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            first_s = first_s or time.monotonic() - began
            text += "".join(choice["text"] for choice in json.loads(line[6:])["choices"])
            chunks += 1
            if chunks == 6 and runs:
                runs.set()
    return text, first_s


def lower_rounds(rounds=20, device=("--kv-cache-mib", "6")):
    server = Server(*device)
    common = {"ignore_eos": True, "temperature": 0, "service_tier": "priority"}
    runs = {"prompt": "Tell me about the sea. " * 20, "max_tokens": 100} | common
    # A token of the default model takes 23 kB, so the memory has room for one of the two requests.
    arrives = {"prompt": "Name three colours of the sea. " * 23, "max_tokens": 10} | common
    lone, _ = text_of(runs | {"id": "lone"})
    waits_ms, same, preemptions = {True: [], False: []}, 0, 0
    for number in range(rounds):
        told, name, begun = [], f"runs-{number}", threading.Event()
        thread = threading.Thread(target=lambda: told.append(text_of(runs | {"id": name}, begun)[0]))
        thread.start()
        begun.wait()
        lowered = number % 2 == 0
        if lowered:
            ctl("reprioritize", name, "background")
        waits_ms[lowered].append(text_of(arrives | {"id": f"arrives-{number}"})[1] * 1e3)
        if lowered:
            shown = json.loads(server.get(PORT + 1, f"/control/v1/requests/{name}")[1])
            preemptions += sum(row["preemptions"] for row in shown.get("requests", []))
        thread.join()
        same += told == [lone]
    server.stop()
    for lowered, name in (True, "lowered before"), (False, "not lowered"):
        times = sorted(waits_ms[lowered])
        print(f"time to first token of the request that arrived, the other one {name}, ms: median "
              f"{statistics.median(times):.0f}, longest {times[-1]:.0f}, {len(times)} rounds")
    print(f"lowered requests were preempted {preemptions} times; {same} of {rounds} texts are those of a lone run")


BLOCK_S, LISTINGS_S, PER_S = 5, 330, 50
TIMES = "planning", "all of the host's work"


def spent(thread):
    """Returns the processor time of a thread, ns."""
    return int((thread / "schedstat").read_text().split()[0])


def nice(thread):
    return int((thread / "stat").read_text().rsplit(")", 1)[1].split()[16])


def engine_of(server):
    """Returns the engine's thread of an idle server: the event loop that a flood of requests for `/version` does not keep busy.

    The event loops of the server have one name. That of the control API has a lower priority.
    """
    loops = [thread for thread in Path(f"/proc/{server.process.pid}/task").iterdir()
             if (thread / "comm").read_text().startswith("actix-rt")]
    loops = [thread for thread in loops if nice(thread) == min(map(nice, loops))]
    before = {thread: spent(thread) for thread in loops}
    for _ in range(300):
        server.get(PORT, "/version")
    times = sorted((spent(thread) - before[thread], thread) for thread in loops)
    assert len(times) == 2 and times[1][0] > 10 * times[0][0], times
    return times[0][1]


def pin(server, engine):
    """Gives the engine's thread one processor, and the other threads of the server and this process another."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    for thread in Path(f"/proc/{server.process.pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {first if thread == engine else second})
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), {second})
    print(f"engine: thread {engine.name}, {spent(engine) / 1e6:.0f} ms of processor time so far, on processor {first}", flush=True)


def host_times(server, after):
    """Returns the times of planning and of all the host's work for the steps after a step, us, and the last step."""
    steps = json.loads(server.get(PORT, f"/debug/steps?after={after}")[1])["steps"]
    timed = [step for step in steps if step["host_us"] is not None]
    last = steps[-1]["step"] if steps else after
    return [[step[key] for step in timed] for key in ("planning_us", "host_us")], last


class Steps:
    """Reader of the steps that the server has made."""

    def __init__(self, server):
        self.server, self.last = server, 0

    def new(self):
        """Returns histograms of the times of steps since the last call, us."""
        times, self.last = host_times(self.server, self.last)
        return dict(zip(TIMES, map(collections.Counter, times)))


def percentile(histograms, part):
    """Returns a percentile of the values of several histograms."""
    pooled = sum(histograms, collections.Counter())
    left = pooled.total() * part
    for value in sorted(pooled):
        left -= pooled[value]
        if left <= 0:
            return value


def block(steps, path, per_s=PER_S):
    """Returns the times of the steps of 5 s, with `per_s` requests a second for a path of the control API, or none."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT + 1, timeout=30)
    steps.new()
    began, sent = time.monotonic(), 0
    while (now := time.monotonic()) < began + BLOCK_S:
        if path is None:
            time.sleep(began + BLOCK_S - now)
            continue
        connection.request("GET", path)
        connection.getresponse().read()
        sent += 1
        time.sleep(max(0, began + sent / per_s - time.monotonic()))
    return steps.new(), sent / BLOCK_S


def interval(pairs, name):
    """Returns the ratio of the p99 of B and of A over pairs of blocks, and its 95 % bootstrap interval."""
    def ratio(of):
        return percentile([b[name] for _, b in of], 0.99) / percentile([a[name] for a, _ in of], 0.99)
    dice = random.Random(1)
    drawn = sorted(ratio(dice.choices(pairs, k=len(pairs))) for _ in range(500))
    return ratio(pairs), drawn[12], drawn[487]


def listings(waiting=81, length_s=LISTINGS_S):
    began = time.monotonic()
    profile = tempfile.NamedTemporaryFile("w", suffix=".toml", delete=False)
    profile.write(PROFILE.replace("step_base_us = 20000.0", "step_base_us = 2000.0"))
    profile.close()
    sets = ["admission.max_requests=20000", "admission.max_queued_requests_per_tier=20000", "patience.background_s=0",
            "http.comment_interval_ms=86400000"]
    server = Server("--device", f"mock:{profile.name}", "--max-num-seqs", "16", *[x for s in sets for x in ("--set", s)])
    engine = engine_of(server)
    body = {"prompt": "Hello", "n": 128, "max_tokens": 8000, "ignore_eos": True, "service_tier": "flex"}
    threads = [threading.Thread(target=stream, args=(body | {"id": f"f{n}"}, {}), daemon=True) for n in range(waiting)]
    for thread in threads:
        thread.start()
    while server.listing("?limit=1")["total"] < waiting * 128:
        time.sleep(0.5)
    pin(server, engine)
    steps, pairs = Steps(server), {"/control/v1/requests?limit=100&sort=age": [], "/version": []}
    # Two of three rounds are about listings.
    paths, rounds = itertools.cycle([*pairs, next(iter(pairs))]), 0
    while rounds < 2 or time.monotonic() + 4.6 * BLOCK_S < began + length_s:
        path, rounds = next(paths), rounds + 1
        (a, _), (b, rate), (b2, _), (a2, _) = [block(steps, asked) for asked in (None, path, path, None)]
        pairs[path] += [(a, b), (a2, b2)]
        print(f"{path}: {rate:.0f} requests a second", flush=True)
    server.stop()
    os.unlink(profile.name)
    for path, of in pairs.items():
        for name in TIMES:
            told = [" ".join(f"p{round(part * 100)} {percentile([pair[which][name] for pair in of], part)} us" for part in (0.5, 0.99))
                    for which in (0, 1)]
            ratio, low, high = interval(of, name)
            count = sum(pair[1][name].total() for pair in of)
            print(f"{path}, {name}: without {told[0]}; with {told[1]}; p99 {ratio - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%}), "
                  f"{len(of)} pairs of blocks, {count} steps with it")


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
        seen["times_ms"].append((time.monotonic() - sent) * 1e3)
        if status == 200:
            seen["tokens"] += answer["usage"]["total_tokens"]
        else:
            seen["refused_at"] = sent
            if key == "narrow":
                time.sleep(0.01)  # leaves the processor to the floods of the other keys


def rates(flood_s=FLOOD_S):
    keys = tempfile.NamedTemporaryFile("w", suffix=".toml", delete=False)
    for name, limits in KEYS.items():
        keys.write(f'[[key]]\nname = "{name}"\nsha256 = "{hashlib.sha256(name.encode()).hexdigest()}"\n{limits}\n')
    keys.close()
    server = Server("--device", "mock:tiny", "--keys-file", keys.name)
    body = {"prompt": "Hello", "max_tokens": 20, "ignore_eos": True}
    clients = {"requests": (2, body), "tokens": (2, body), "narrow": (8, body | {"max_tokens": 500}), "other": (1, body)}

    def nothing():
        return {"statuses": [], "times_ms": [], "tokens": 0, "refused_at": 0.0}

    alone = nothing()
    flood("other", body, time.monotonic() + flood_s, alone)
    seen = {key: [nothing() for _ in range(count)] for key, (count, _) in clients.items()}
    began = time.monotonic()
    threads = [threading.Thread(target=flood, args=(key, body, began + flood_s, of)) for key, (_, body) in clients.items()
               for of in seen[key]]
    for thread in threads:
        thread.start()
    viewer = http.client.HTTPConnection("127.0.0.1", PORT + 1, timeout=30)
    most_live = looks = full = 0
    while time.monotonic() < began + flood_s:
        of_key = ask(viewer, "GET", "/control/v1/keys?tenant=narrow", "viewer")[1]["keys"][0]["live"]
        listed = ask(viewer, "GET", "/control/v1/requests?tenant=narrow&limit=1", "viewer")[1]["total"]
        most_live, looks, full = max(most_live, of_key, listed), looks + 1, full + (of_key == MAX_LIVE)
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
    print(f"live: at most {most_live} of {MAX_LIVE} in {looks} looks, {full / looks:.0%} of them at the limit; "
          f"{statuses['narrow'].count(200)} served of {len(statuses['narrow'])} sent")
    for name, of in ("alone", alone), ("beside the floods", seen["other"][0]):
        times = sorted(of["times_ms"])
        print(f"another key, {name}: {of['statuses'].count(200)} served of {len(times)} sent; p50 {times[len(times) // 2]:.1f} ms, "
              f"p99 {times[len(times) * 99 // 100]:.1f} ms")


if __name__ == "__main__":
    choices = {"raise": raise_rounds, "lower": lower_rounds, "listings": listings, "rates": rates}
    if len(sys.argv) != 2 or sys.argv[1] not in choices:
        sys.exit(__doc__)
    choices[sys.argv[1]]()
