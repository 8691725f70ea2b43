"""A real Chromium without a window, driven over its DevTools protocol, for tests of pages."""

import base64
import contextlib
import itertools
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
LONG = 30.0
"""Seconds after which nothing is expected any more; on an idle machine it takes one."""


def find_chromium():
    """The program, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def needs_chromium():
    """Marks tests that are left out, with a reason, where there is no Chromium."""
    missing = find_chromium() is None
    return pytest.mark.skipif(missing, reason="no chromium here (apt-get install chromium)")


class Page:
    """One page; what it complains of and asks for is kept."""

    def __init__(self, socket):
        self.socket = socket
        self.numbers = itertools.count(1)
        self.complaints = []
        self.asked = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **given):
        """One command, and its answer; what happens meanwhile is written down."""
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": given}))
        while True:
            told = json.loads(self.socket.recv(timeout=LONG))
            if told.get("id") == number:
                assert "error" not in told, told
                return told["result"]
            self._note(told.get("method"), told.get("params", {}))

    def _note(self, event, told):
        if event == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            words = details.get("exception", {}).get("description") or details["text"]
            self.complaints.append(words)
        elif event == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        elif event == "Runtime.consoleAPICalled" and told["type"] in ("error", "assert"):
            self.complaints.append(str(told["args"]))
        elif event == "Network.requestWillBeSent":
            self.asked.append(told["request"]["url"])

    def look(self, width=1280, height=900, *, phone=False, dark=False):
        """Choose the screen."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def open(self, address, ready="true"):
        """Go somewhere, and wait until an expression holds there."""
        self.call("Page.navigate", url=address)
        self.wait(f"document.readyState === 'complete' && ({ready})")

    def value(self, expression):
        """What an expression comes to."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression):
        """Until an expression holds; the page itself keeps the time between looks."""
        end = time.monotonic() + LONG
        while not self.value(expression):
            assert time.monotonic() < end, f"never came: {expression}\n{self.complaints}"
            self.call(
                "Runtime.evaluate",
                expression="new Promise((done) => setTimeout(done, 100))",
                awaitPromise=True,
            )

    def screenshot(self, path, *, whole=False):
        """A picture of what is seen, or of the whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        Path(path).write_bytes(base64.b64decode(found["data"]))


@contextlib.contextmanager
def open_browser():
    """A browser with a fresh profile and one page; gone with it at the end."""
    from websockets.sync.client import connect

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [find_chromium(), *QUIET, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            address = _target(Path(profile) / "DevToolsActivePort", process)
            with connect(address, max_size=None, open_timeout=LONG) as socket:
                yield Page(socket)
        finally:
            process.terminate()
            try:
                process.wait(LONG)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _target(port_file, process):
    """Where the page is driven; the browser writes its port into a file once it listens."""
    end = time.monotonic() + LONG
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError, ValueError, IndexError, StopIteration):
            port = int(port_file.read_text().split()[0])
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=LONG) as told:
                pages = json.load(told)
            return next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        time.sleep(0.1)
    raise AssertionError("chromium did not start")
