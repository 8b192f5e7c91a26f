#!/usr/bin/env python3
"""What open live pages cost a full server, and whether the pages stay as light as they were.

    cargo build --release && python3 benches/dashboard.py [MINUTES] [PAGES]
    cargo build --release && python3 benches/dashboard.py planning      # the time of planning with and without pages' requests
    cargo build --release && python3 benches/dashboard.py documents     # the same without a browser

10,300 sequences wait while 64 run on a mock device. For 3 minutes in all, in turns, the time of planning and of all the host's work
between two steps (tokens are delivered, and the next step is planned) is measured without a page and with PAGES pages (5 unless stated) open in Chromium. Then the pages stay
open for MINUTES (20 unless stated). Printed every half minute are, for the heaviest page: the JavaScript heap after a collection of
garbage, nodes of the document, listeners, and the share of the time that the page's main thread was busy.

`planning`: 10,300 sequences wait while 16 run, in steps of 2 ms. The server's engine thread has one processor; the server's
other threads and this script have another. Blocks of 5 s without pages (A) and with the requests of five visible pages (B)
come in the order A B B A, twelve times. This script sends the requests (two documents a second and an event stream for each
page), because a browser that draws five pages in software needs a third processor. Printed are p50 and p99 over all steps
of A and of B, and the ratio of the two p99 with a 95 % bootstrap interval.

`documents`: planning and the host's work without requests from operators, and with 10 requests a second for the document that
pages poll (as five pages send), in two turns of 25 s each.
"""

import http.client, os, socket, sys, tempfile, threading, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "clients"))
sys.path.insert(0, str(Path(__file__).parent))
from browser import Browser  # noqa: E402
from operators import PORT, PROFILE, TIMES, Server, Steps, block, engine_of, host_times, interval, percentile, pin, stream  # noqa: E402

TURN_S = 30
TURNS = 3
REPORT_S = 30
# Document that pages poll, and how often a visible page asks for it.
DOCUMENT = "/control/v1/live"
DOCUMENTS_PER_S = 2
URL = f"http://127.0.0.1:{PORT + 1}/dashboard"


def started(profile_text, running):
    """Starts a server that runs at most `running` sequences at a time."""
    profile = tempfile.NamedTemporaryFile("w", suffix=".toml")
    profile.write(profile_text)
    profile.flush()
    sets = ["admission.max_requests=20000", "admission.max_queued_requests_per_tier=20000", "patience.background_s=0"]
    server = Server("--device", f"mock:{profile.name}", "--max-num-seqs", str(running), *[x for s in sets for x in ("--set", s)])
    server.profile = profile
    return server


def fill(server):
    """Fills a server with requests that take longer than the measurement."""
    body = {"prompt": "Hello", "n": 128, "max_tokens": 8000, "ignore_eos": True, "service_tier": "flex"}
    for number in range(81):
        threading.Thread(target=stream, args=(body | {"id": f"f{number}"}, {}), daemon=True).start()
    while server.listing("?limit=1")["total"] < 81 * 128:
        time.sleep(1)
    return server


def full_server():
    return fill(started(PROFILE, 64))


def opened(browser, number):
    """Opens pages, and waits until they show the waiting requests."""
    pages = [browser.open(URL, width=1360, height=1200) for _ in range(number)]
    for page in pages:
        page.wait("document.querySelectorAll('#lanes [role=option]').length >= 64")
    return pages


def compare(server, browser, number):
    """Measures the host's times without pages and with them, in turns; returns the pages of the last turn."""
    pages = []
    for turn in range(TURNS):
        for page in pages:
            page.send("Page.close")
        for with_pages in (False, True):
            pages = opened(browser, number) if with_pages else []
            time.sleep(2)
            _, last = host_times(server, 0)
            time.sleep(TURN_S)
            planning, host = (sorted(times) for times in host_times(server, last)[0])
            p50, p99 = (lambda times: times[len(times) // 2]), (lambda times: times[len(times) * 99 // 100])
            print(f"turn {turn + 1}, {len(pages)} pages: planning p50 {p50(planning)} us, p99 {p99(planning)} us; all of the host's "
                  f"work p50 {p50(host)} us, p99 {p99(host)} us; {len(host)} steps", flush=True)
    return pages


def planning(number=5, rounds=12):
    """Compares the host's times with the requests of pages and without, on processors of their own."""
    server = started(PROFILE.replace("step_base_us = 20000.0", "step_base_us = 2000.0"), 16)
    engine = engine_of(server)
    fill(server)
    pin(server, engine)
    steps, pairs = Steps(server), []
    try:
        for _ in range(rounds):
            before, _ = block(steps, None)
            streams = [listening() for _ in range(number)]
            with_pages = [block(steps, DOCUMENT, number * DOCUMENTS_PER_S)[0] for _ in range(2)]
            for listener in streams:
                listener.sock.shutdown(socket.SHUT_RDWR)
            pairs += zip((before, block(steps, None)[0]), with_pages)
            print(f"{len(pairs)} pairs of blocks", flush=True)
    finally:
        server.stop()
    for name in TIMES:
        without, those_with = (" ".join(f"p{round(part * 100)} {percentile([pair[at][name] for pair in pairs], part)} us" for part in (0.5, 0.99))
                               for at in (0, 1))
        ratio, low, high = interval(pairs, name)
        print(f"{number} pages, {name}: without {without}; with {those_with}; p99 {ratio - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%}), "
              f"{sum(pair[1][name].total() for pair in pairs)} steps with pages")


def listening():
    """Opens an event stream, as a page does, and reads it in a thread."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT + 1, timeout=600)
    connection.request("GET", "/control/v1/events")
    answer = connection.getresponse()
    assert answer.status == 200, answer.status

    def read():
        try:
            while answer.read(1 << 12):
                pass
        except (OSError, http.client.HTTPException):
            pass  # the stream was closed

    threading.Thread(target=read, daemon=True).start()
    return connection


def figures(page):
    """Returns the figures of a page after a collection of garbage: heap in bytes, nodes, listeners, and busy time in seconds."""
    page.send("HeapProfiler.collectGarbage")
    found = page.metrics()
    return [found[name] for name in ("JSHeapUsedSize", "Nodes", "JSEventListeners", "TaskDuration")] + [time.monotonic()]


def watch(pages, minutes):
    """Prints the figures of the heaviest page, over and over."""
    until = time.monotonic() + 60 * minutes
    before = [figures(page) for page in pages]
    while time.monotonic() < until:
        time.sleep(REPORT_S)
        now = [figures(page) for page in pages]
        busy = max((b[3] - a[3]) / (b[4] - a[4]) for a, b in zip(before, now))
        heap, nodes, listeners = (max(of[at] for of in now) for at in range(3))
        left = (until - time.monotonic()) / 60
        print(f"{minutes - left:5.1f} min: heap {heap / 1e6:.2f} MB, {nodes:.0f} nodes, {listeners:.0f} listeners, main thread busy "
              f"{busy:.1%}", flush=True)
        before = now
    for page in pages:
        assert page.complaints == [], page.complaints


def documents():
    """Measures the host's times beside a plain client that asks for the pages' document, in turns."""
    server = full_server()
    os.nice(19)
    for turn in range(2):
        for rate in (0, 10):
            _, last = host_times(server, 0)
            began, sent = time.monotonic(), 0
            while time.monotonic() - began < 25:
                if rate:
                    server.get(PORT + 1, DOCUMENT)
                sent += 1
                time.sleep(max(0, began + sent / (rate or 1) - time.monotonic()))
            planning, host = (sorted(times) for times in host_times(server, last)[0])
            p50, p99 = (lambda times: times[len(times) // 2]), (lambda times: times[len(times) * 99 // 100])
            print(f"turn {turn + 1}, {rate} documents/s: planning p50 {p50(planning)} us, p99 {p99(planning)} us; all of the host's "
                  f"work p50 {p50(host)} us, p99 {p99(host)} us; {len(host)} steps", flush=True)
    server.stop()


def main(minutes=20.0, number=5):
    # Browser and client give way to the server, as programs on another machine would.
    server = full_server()
    os.nice(19)
    browser = Browser()
    try:
        watch(compare(server, browser, number), minutes)
    finally:
        browser.close()
        server.stop()


if __name__ == "__main__":
    if len(sys.argv) > 3 or "--help" in sys.argv:
        sys.exit(__doc__)
    if sys.argv[1:] == ["planning"]:
        sys.exit(planning())
    if sys.argv[1:] == ["documents"]:
        sys.exit(documents())
    main(*[kind(argument) for kind, argument in zip((float, int), sys.argv[1:])])
