#!/usr/bin/env python3
"""The alerts and the Grafana board of ops/ on a real Prometheus (Debian's package prometheus) that reads a running server.

    cargo build --release && python3 benches/alerts.py

A server on the mock device serves requests of all tiers for 20 s. Printed is each query of the board with the number of series
that Prometheus answers, and which alerts fire: none should. Then one server is killed, and another drains while a step takes a
minute: TiercelDown and TiercelDrainStuck should fire. The alerts' `for` is shortened to 2 s. The other alerts are tested in
simulated runs (actors/simulation/tests/alerts).
"""

import http.client, json, re, subprocess, sys, tempfile, threading, time, urllib.parse
from pathlib import Path

ROOT = Path(__file__).parent.parent
BINARY = ROOT / "target" / "release" / "tiercel"
PORT, PROMETHEUS = 18680, 18690
PROFILE = """name = "alerts"
step_base_us = 5000.0
decode_token_us = 10.0
prefill_token_us = %s
kv_token_us = 0.0
prefill_context_us = 0.0
prefill_step_us = 0.0
link_bytes_per_s = 1e9
kv_bytes_per_token = 4000
block_size = 16
device_blocks = 4000
host_blocks = 400
vocab_size = 1000
max_model_len = 8192
max_steps_in_flight = 1
"""


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def post(port, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


class Server:
    """A server on the mock device, whose prompt tokens take `prefill_token_us` each."""

    def __init__(self, folder, port, prefill_token_us, *arguments):
        profile = Path(folder) / f"{port}.toml"
        profile.write_text(PROFILE % prefill_token_us)
        command = [BINARY, "serve", "--device", f"mock:{profile}", "--listen", f"127.0.0.1:{port}"]
        command += ["--control-listen", f"127.0.0.1:{port + 1}", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.port = port
        wait(lambda: get(port, "/ready")[0] == 200)

    def kill(self):
        self.process.kill()
        self.process.wait()


def wait(done, most_s=60):
    """Waits until `done` returns something true, and returns it; None after `most_s`."""
    end = time.monotonic() + most_s
    while time.monotonic() < end:
        try:
            if found := done():
                return found
        except OSError:
            pass
        time.sleep(0.2)
    return None


def start_prometheus(folder):
    """Starts a Prometheus that reads both servers each second, and evaluates the alerts with a short `for`."""
    rules = (ROOT / "ops/prometheus/alerts.yml").read_text()
    (Path(folder) / "alerts.yml").write_text(re.sub(r"(?m)^( +)for: \d+m", r"\1for: 2s", rules))
    targets = [f"127.0.0.1:{PORT}", f"127.0.0.1:{PORT + 4}"]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [{"job_name": "tiercel", "static_configs": [{"targets": targets}]}],
    }
    file = Path(folder) / "prometheus.yml"
    file.write_text(json.dumps(config))
    command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder}/data"]
    command.append(f"--web.listen-address=127.0.0.1:{PROMETHEUS}")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert wait(lambda: get(PROMETHEUS, "/-/ready")[0] == 200), "Prometheus is not ready"
    return process


def query(expr):
    status, text = get(PROMETHEUS, "/api/v1/query?query=" + urllib.parse.quote(expr))
    assert status == 200, f"{expr}: {text}"
    return json.loads(text)["data"]["result"]


def firing():
    return sorted({alert["metric"]["alertname"] for alert in query('ALERTS{alertstate="firing"}')})


def traffic(port, seconds):
    """Sends requests of all tiers, one after the other in each, for some seconds."""
    end = time.monotonic() + seconds

    def tier(name):
        while time.monotonic() < end:
            body = {"prompt": "words to continue", "max_tokens": 50, "service_tier": name, "ignore_eos": True}
            post(port, "/v1/completions", body)

    threads = [threading.Thread(target=tier, args=[name]) for name in ["priority", "default", "flex"]]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]


def board():
    """Runs every query of the board, and returns how many there are and those that have no series."""
    board = json.loads((ROOT / "ops/grafana/dashboards/tiercel.json").read_text())
    empty, count = [], 0
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            expr = target["expr"].replace("$__rate_interval", "30s")
            series = query(expr.replace("$job", ".*").replace("$instance", ".*"))
            print(f"{len(series):4} series  {panel['title']}: {target['legendFormat']}")
            count += 1
            # A query that selects what is above 0 has no series while nothing is.
            if not series and "> 0" not in expr:
                empty.append(panel["title"])
    return count, empty


def main():
    processes = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            first = Server(folder, PORT, "20.0")
            second = Server(folder, PORT + 4, "1000000.0", "--policy", "fcfs")
            processes = [first.process, second.process, start_prometheus(folder)]
            traffic(PORT, 20)
            count, empty = board()
            ordinary = firing()
            print(f"{count} queries of the board, without series: {empty}; alerts in an ordinary run: {ordinary}")
            first.kill()
            down = wait(lambda: "TiercelDown" in firing(), 30)
            # The prompt takes a minute in one step; the drain's deadline is a second away.
            hang = {"prompt": "x" * 60, "max_tokens": 2}
            threading.Thread(target=post, args=[PORT + 4, "/v1/completions", hang], daemon=True).start()
            time.sleep(2)
            post(PORT + 5, "/control/v1/drain", {"deadline_ms": 1000})
            stuck = wait(lambda: "TiercelDrainStuck" in firing(), 45)
            print(f"TiercelDown fired: {bool(down)}; TiercelDrainStuck fired: {bool(stuck)}")
            sys.exit(0 if down and stuck and not empty and not ordinary else 1)
        finally:
            for process in processes:
                process.kill()
                process.wait()


main()
