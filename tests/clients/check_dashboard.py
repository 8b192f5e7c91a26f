"""Uses the live page of an overloaded server in Chromium. Usage: check_dashboard.py PROGRAM [PICTURES]

PROGRAM is the path of `tiercel`. With a folder PICTURES, pictures of the page are written to it.
"""

import base64
import hashlib
import http.client
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time

from browser import Browser

PROGRAM = sys.argv[1]
PICTURES = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
# A slow mock device with a small pool, and a link so slow that copies can be watched.
PROFILE = """
name = "dashboard"
step_base_us = 40000.0
decode_token_us = 200.0
prefill_token_us = 150.0
kv_token_us = 0.0
prefill_context_us = 0.0
prefill_step_us = 0.0
link_bytes_per_s = 1e6
kv_bytes_per_token = 4000
block_size = 16
device_blocks = 160
host_blocks = 96
vocab_size = 1000
max_model_len = 2048
max_steps_in_flight = 1
"""
ARROW_DOWN, HOME, ESCAPE, ENTER = ("ArrowDown", 40), ("Home", 36), ("Escape", 27), ("Enter", 13)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Server:
    """A server as a child process, on ports that stay the same when it is started again."""

    def __init__(self, *arguments):
        profile = tempfile.NamedTemporaryFile("w", suffix=".toml")
        profile.write(PROFILE)
        profile.flush()
        self.profile = profile
        self.port, self.control = free_port(), free_port()
        self.arguments = arguments
        self.start()

    def start(self):
        command = [PROGRAM, "serve", "--listen", f"127.0.0.1:{self.port}", "--control-listen",
                   f"127.0.0.1:{self.control}", "--device", f"mock:{self.profile.name}", "--max-num-seqs", "12",
                   "--set", "preemption.mode=swap", "--set", "preemption.mirror_percent=20", "--set",
                   "reservation.premium_blocks_percent=10", *self.arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            time.sleep(0.1)
            assert self.process.poll() is None, "the server has ended"
            try:
                if self.get("/ready", None)[0] == 200:
                    return
            except OSError:
                pass

    def get(self, path, key=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.control, timeout=30)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def row(self, seq):
        """Returns a live request; None if it has ended."""
        status, shown = self.get(f"/control/v1/requests/{seq}")
        return shown["requests"][0] if status == 200 else None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.control}/dashboard"

    def kill(self):
        self.process.kill()
        self.process.wait()


class Load:
    """Clients that keep the server overloaded, each with one request after the other: most of background, and now and then
    one of premium that needs blocks of others."""

    CLIENTS = [("flex", 150, 300)] * 18 + [("default", 90, 120)] * 4 + [("priority", 320, 60)] * 2

    def __init__(self, server):
        self.server = server
        self.ended = False
        self.threads = [threading.Thread(target=self.client, args=(number, *of), daemon=True)
                        for number, of in enumerate(self.CLIENTS)]
        for thread in self.threads:
            thread.start()

    def client(self, number, tier, prompt, tokens):
        turn = 0
        while not self.ended:
            if tier == "priority":
                time.sleep(2.5)
            turn += 1
            body = {"prompt": [(number * 7 + turn) % 200 + 1] * prompt, "max_tokens": tokens, "ignore_eos": True,
                    "service_tier": tier, "stream": True}
            headers = {"Content-Type": "application/json", "X-Request-Id": f"{tier}-{number}-{turn}"}
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
                connection.request("POST", "/v1/completions", json.dumps(body), headers)
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                time.sleep(0.2)


def save(page, name):
    if PICTURES:
        PICTURES.mkdir(exist_ok=True)
        (PICTURES / f"{name}.png").write_bytes(base64.b64decode(page.picture()))


def check_numbers_move(page):
    page.wait("document.getElementById('main')?.hidden === false")
    rate = "parseFloat(document.getElementById('output-rate').textContent.replace(',', ''))"
    page.wait(f"{rate} > 0")
    first = page.text("#stage")
    page.wait(f"document.getElementById('stage').textContent !== {json.dumps(first)}")
    page.wait("document.querySelectorAll('#lanes [role=option]').length >= 12")
    page.wait("Number(document.querySelector('#tiers tbody tr:nth-child(3) td:nth-child(4)').textContent) > 0")


def choose_by_click(page, state, tier="background"):
    """Clicks the row of a request of this tier in this state, and returns the number of its sequence."""
    rows = json.dumps(f"#lanes [data-state={state}]:has([data-tier={tier}])")
    while True:
        seq = int(page.wait(f"document.querySelector({rows})?.dataset.seq"))
        page.click(f"#lane-{seq}")
        # The row may have moved away under the mouse.
        if page.value("document.querySelector('#lanes [aria-selected=true]')?.dataset.seq") == str(seq):
            return seq


def check_reprioritize(page, server):
    seq = choose_by_click(page, "waiting")
    before = server.row(seq)
    assert before["tier"] == "background", before
    page.value("document.getElementById('move-tier').value = 'premium'")
    page.click("#move-button")
    page.wait("document.getElementById('answer').textContent.startsWith('Moved from background')")
    after = server.row(seq)
    assert after["tier"] == "premium", after
    page.wait(f"document.querySelector('#lane-{seq} .tier').dataset.tier === 'premium'")
    page.wait("[...document.querySelectorAll('#events li')].some((line) => / moved .* from background to premium/"
              ".test(line.textContent))")
    return seq


def check_pause_and_cancel(page, server):
    seq = choose_by_click(page, "decode")
    page.click("#pause")
    page.wait("document.getElementById('answer').textContent.startsWith('Paused')")
    assert server.row(seq)["paused"]
    page.wait(f"document.getElementById('lane-{seq}').dataset.state === 'paused'")
    page.wait("document.getElementById('pause').textContent === 'Resume'")
    page.click("#pause")
    page.wait("document.getElementById('answer').textContent.startsWith('Scheduled again')")
    assert not server.row(seq)["paused"]
    # A cancel asks first, and Escape keeps the request.
    page.click("#cancel")
    page.wait("document.getElementById('confirm').open")
    assert page.value("document.activeElement.id") == "confirm-no"
    page.press(*ESCAPE)
    page.wait("!document.getElementById('confirm').open")
    assert server.row(seq), "the request goes on"
    page.click("#cancel")
    page.wait("document.getElementById('confirm').open")
    page.click("#confirm-yes")
    page.wait("document.getElementById('answer').textContent === 'Cancelled.'")
    assert server.row(seq) is None
    page.wait(f"document.getElementById('lane-{seq}').dataset.state === 'ended'")


def check_preemption_in_a_lane(page):
    """Finds a preempted request by the keyboard alone, and looks for the preemption in its list and in its lane."""
    page.wait("[...document.querySelectorAll('#lanes [role=option]')].some((row) => Number(row.dataset.preemptions) > 0)")
    page.value("document.getElementById('moments-box').open = true")
    page.value("document.getElementById('lanes').focus()")
    page.press(*HOME)
    # Rows come and go meanwhile, so the end of the list leads back to its begin.
    for _ in range(400):
        selected = "document.querySelector('#lanes [aria-selected=true]')"
        # A swap that is being prepared, or was aborted, is a moment but does not count as a preemption.
        if page.value(f"Number({selected}?.dataset.preemptions) > 0 && !!document.querySelector('#moments [data-what=preempted]')"):
            break
        page.press(*(HOME if page.value(f"!{selected}?.nextElementSibling") else ARROW_DOWN))
    page.wait("!!document.querySelector('#moments [data-what=preempted]')", 1)
    assert "preempted" in page.value("document.querySelector('#lanes [aria-selected=true]').ariaLabel")
    page.wait("""(() => {
        const canvas = document.getElementById('lane-canvas');
        const colour = getComputedStyle(document.documentElement).getPropertyValue('--preempted').trim();
        const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
        const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        let found = 0;
        for (let at = 0; at < data.length; at += 4) {
            found += data[at] === red && data[at + 1] === green && data[at + 2] === blue && data[at + 3] === 255;
        }
        return found > 10;
    })()""")


def check_pools(page):
    page.wait("document.querySelector('[data-pool=device] [data-blocks=background]').textContent.match(/background [1-9]/)")
    assert page.value("document.querySelector('[data-pool=device] [data-blocks=reserved-premium]').textContent.includes('of 16')")


def check_reconnect(page, server):
    before = len(page.complaints)
    assert before == 0, page.complaints
    server.kill()
    page.wait("document.getElementById('link').textContent.startsWith('connection lost')")
    assert page.value("document.getElementById('banner').checkVisibility()")
    save(page, "lost")
    server.start()
    page.wait("document.getElementById('link').textContent === 'live'")
    page.wait("[...document.querySelectorAll('#events li')].some((line) => /started again/.test(line.textContent))")
    assert not page.value("document.getElementById('banner').checkVisibility()")
    # While the server is away, the browser itself tells of each request that failed.
    page.complaints = [complaint for complaint in page.complaints if complaint[0] != "network"]


def check_without_keys(browser):
    server = Server()
    load = Load(server)
    try:
        page = browser.open(server.url, width=1360, height=1200)
        check_numbers_move(page)
        check_pools(page)
        check_reprioritize(page, server)
        check_pause_and_cancel(page, server)
        check_preemption_in_a_lane(page)
        time.sleep(8 if PICTURES else 0)
        for name, view in {
            "light": {"width": 1360, "height": 1200},
            "dark": {"width": 1360, "height": 1200, "dark": True},
            "phone": {"width": 360, "height": 740, "scale": 2, "mobile": True},
        }.items():
            page.view(**view)
            time.sleep(1.5)
            save(page, name)
            across = page.value("document.documentElement.scrollWidth")
            assert across <= view["width"], f"{name}: the page is {across} wide"
        page.view(width=1360, height=1200, calm=True)
        check_reconnect(page, server)
        assert page.complaints == [], page.complaints
    finally:
        load.ended = True
        server.kill()


KEYS = {"plain": "", "vera": 'role = "viewer"', "olga": 'role = "operator"'}


def use_key(page, key):
    page.wait("document.getElementById('key-form')?.checkVisibility()")
    page.value("document.getElementById('key').focus()")
    page.type(key)
    page.press(*ENTER)


def check_with_keys(browser):
    keys = tempfile.NamedTemporaryFile("w", suffix=".toml")
    for name, more in KEYS.items():
        keys.write(f'[[key]]\nname = "{name}"\nsha256 = "{hashlib.sha256(name.encode()).hexdigest()}"\n{more}\n')
    keys.flush()
    server = Server("--keys-file", keys.name)
    try:
        page = browser.open(server.url, width=1360, height=1000)
        note = "document.getElementById('key-note').textContent"
        use_key(page, "forged")
        page.wait(f"{note}.startsWith('This key is not accepted')")
        save(page, "key")
        use_key(page, "plain")
        page.wait(f"{note}.startsWith('This key has no role')")
        use_key(page, "vera")
        page.wait("document.getElementById('link').textContent === 'live'")
        assert not page.value("document.getElementById('key-form').checkVisibility()")
        assert page.value("localStorage.length === 0 && document.cookie === '' && sessionStorage.length === 1")
        assert not page.value("document.documentElement.outerHTML.includes('vera')")
        body = {"prompt": [5] * 20, "max_tokens": 900, "ignore_eos": True, "stream": True}
        stream = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        headers = {"Content-Type": "application/json", "Authorization": "Bearer plain", "X-Request-Id": "<i>one</i>"}
        stream.request("POST", "/v1/completions", json.dumps(body), headers)
        choose_by_click(page, "decode", "standard")
        assert page.text("#chosen-title").startswith("<i>one</i>"), "an id is no markup"
        page.click("#pause")
        page.wait("document.getElementById('answer').className === 'bad'")
        assert "role operator" in page.text("#answer"), page.text("#answer")
        page.click("#forget")
        use_key(page, "olga")
        page.wait("document.getElementById('link').textContent === 'live'")
        choose_by_click(page, "decode", "standard")
        page.click("#pause")
        page.wait("document.getElementById('answer').textContent.startsWith('Paused')")
        # The browser tells of each answer 401 and 403.
        complaints = [complaint for complaint in page.complaints if complaint[0] != "network"]
        assert complaints == [], complaints
    finally:
        server.kill()


def main():
    browser = Browser()
    try:
        check_without_keys(browser)
        check_with_keys(browser)
    finally:
        browser.close()
    print("complete")


main()
