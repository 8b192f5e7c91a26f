"""Drives a headless Chromium by the DevTools protocol over a pipe, without other packages."""

import fcntl
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Longest wait for an answer of the browser, and for a condition on a page, s.
ANSWER_S = 30
WAIT_S = 30


def chromium():
    """Returns the path of the machine's Chromium."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    assert found, f"none of {NAMES} is installed"
    return found


class Browser:
    """A headless Chromium with a profile of its own, which goes with it."""

    def __init__(self):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        (read, to_browser), (from_browser, write) = os.pipe(), os.pipe()
        # The browser reads commands from descriptor 3 and writes answers to descriptor 4. A shell does not know descriptors
        # of more than one digit, so the child's descriptors are set here.
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in (read, write)]

        def take_descriptors():
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        command = [chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
                   "--no-first-run", "--disable-background-networking", "--enable-precise-memory-info",
                   f"--user-data-dir={self.profile.name}", "about:blank"]
        self.process = subprocess.Popen(command, close_fds=False, preexec_fn=take_descriptors,
                                        stderr=subprocess.DEVNULL)
        for descriptor in (read, write, *high):
            os.close(descriptor)
        self.out = to_browser
        self.number = 0
        self.lock = threading.Lock()
        self.answers = {}
        self.pages = {}
        threading.Thread(target=self.listen, args=(from_browser,), daemon=True).start()

    def listen(self, descriptor):
        with os.fdopen(descriptor, "rb") as stream:
            rest = b""
            while piece := stream.read1(1 << 16):
                *messages, rest = (rest + piece).split(b"\0")
                for message in map(json.loads, messages):
                    if "id" in message:
                        self.answers.pop(message["id"]).put(message)
                    elif message.get("sessionId") in self.pages:
                        self.pages[message["sessionId"]].heard(message)

    def send(self, method, session=None, **params):
        """Sends a command, and returns its result."""
        with self.lock:
            self.number += 1
            number = self.number
            answer = self.answers[number] = queue.Queue()
            message = {"id": number, "method": method, "params": params}
            if session:
                message["sessionId"] = session
            os.write(self.out, json.dumps(message).encode() + b"\0")
        answer = answer.get(timeout=ANSWER_S)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def open(self, url, **view):
        """Opens a page in a tab of its own."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Performance"):
            page.send(f"{domain}.enable")
        if view:
            page.view(**view)
        page.send("Page.navigate", url=url)
        return page

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.profile.cleanup()


class Page:
    """A page in a tab. `complaints` has what the browser's console says of errors, violations of the content security policy
    included."""

    def __init__(self, browser, session):
        self.browser = browser
        self.session = session
        self.complaints = []

    def send(self, method, **params):
        return self.browser.send(method, self.session, **params)

    def heard(self, message):
        method, params = message["method"], message["params"]
        if method == "Runtime.exceptionThrown":
            self.complaints.append(("exception", json.dumps(params["exceptionDetails"])))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(("console", json.dumps(params["args"])))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            entry = params["entry"]
            self.complaints.append((entry["source"], f"{entry['text']} {entry.get('url', '')}"))

    def view(self, width=1280, height=900, scale=1, dark=False, calm=False, mobile=False):
        """Sets the size of the page and the preferences of its reader."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                  mobile=mobile)
        self.send("Emulation.setScrollbarsHidden", hidden=True)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        motion = {"name": "prefers-reduced-motion", "value": "reduce" if calm else "no-preference"}
        self.send("Emulation.setEmulatedMedia", features=[scheme, motion])

    def value(self, expression):
        """Returns the value of a JavaScript expression on the page."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, f"{expression}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def wait(self, expression, seconds=WAIT_S):
        """Waits until the expression, which may not be an element, is true, and returns its value."""
        until = time.monotonic() + seconds
        while True:
            value = self.value(expression)
            if value:
                return value
            assert time.monotonic() < until, f"not true in {seconds} s: {expression}"
            time.sleep(0.1)

    def text(self, selector):
        return self.value(f"document.querySelector({json.dumps(selector)}).textContent")

    def click(self, selector):
        """Clicks the middle of an element with the mouse, after scrolling to it."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{element}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box = self.value(f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({element}.getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def press(self, key, code=0):
        """Presses a key that is no character."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def type(self, text):
        self.send("Input.insertText", text=text)

    def picture(self):
        """Returns a picture of the whole page, as base64 of a PNG."""
        return self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]

    def metrics(self):
        """Returns figures of the browser about the page, by name."""
        return {one["name"]: one["value"] for one in self.send("Performance.getMetrics")["metrics"]}
