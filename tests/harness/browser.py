"""A headless Chromium, spoken to over its DevTools protocol on loopback."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_SECONDS = 120.0


class Page:
    """One page of a browser.

    Attributes:
        problems: What the page wrote to the console as an error or a warning, uncaught exceptions
            and requests that its policy stopped.
    """

    def __init__(self, socket: Any) -> None:
        self.problems: list[str] = []
        self._socket, self._number = socket, 0
        self._seen: set[str] = set()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the answer to a command of the DevTools protocol.

        Raises:
            RuntimeError: If the browser refuses the command.
        """
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = self._receive()
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]

    def _receive(self) -> dict[str, Any]:
        message = json.loads(self._socket.recv(timeout=_SECONDS))
        params, event = message.get("params", {}), message.get("method", "")
        self._seen.add(event)
        if event == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.problems.append(json.dumps(params["args"]))
        elif event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.problems.append(f"a request to {url}")
        return message

    def open(
        self, path: Path, *, width: int, height: int = 900, dark: bool = False, query: str = ""
    ) -> None:
        """Load a file at a width in CSS pixels; below 600 as a telephone would."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._seen.discard("Page.loadEventFired")
        self.call("Page.navigate", url=f"{path.resolve().as_uri()}?{query}")
        while "Page.loadEventFired" not in self._seen:
            self._receive()

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, awaited where it is a promise.

        Raises:
            AssertionError: If it throws.
        """
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Start a browser whose profile and downloads are in a folder, and end it.

    Raises:
        RuntimeError: If it does not start.
    """
    from websockets.sync.client import connect

    assert CHROMIUM is not None
    profile, downloads = folder / "profile", folder / "downloads"
    downloads.mkdir(parents=True)
    log = (folder / "chromium.log").open("w")
    process = subprocess.Popen(
        [
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-dev-shm-usage", "--disable-background-networking", "--hide-scrollbars",
            "--disable-component-update", "--disable-sync", "--disable-extensions",
            "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
        ],
        stdout=log, stderr=log,
    )  # fmt: skip
    try:
        port = _port_of(profile, process)
        with connect(
            f"ws://127.0.0.1:{port}{_target(port)}", max_size=None, compression=None
        ) as socket:
            page = Page(socket)
            page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(downloads))
            yield page
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)
        if process.poll() is None:
            process.kill()
            process.wait()
        log.close()


def _port_of(profile: Path, process: subprocess.Popen[bytes]) -> int:
    file, end = profile / "DevToolsActivePort", time.monotonic() + _SECONDS
    while time.monotonic() < end and process.poll() is None:
        if file.is_file() and (text := file.read_text()).count("\n"):
            return int(text.splitlines()[0])
        time.sleep(0.1)
    raise RuntimeError(f"Chromium did not start; see {profile.parent / 'chromium.log'}")


def _target(port: int) -> str:
    """Return the address of the page that the browser opened at its start."""
    from urllib.parse import urlsplit
    from urllib.request import urlopen

    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=_SECONDS) as answer:
            for target in json.load(answer):
                if target["type"] == "page":
                    return urlsplit(target["webSocketDebuggerUrl"]).path
        time.sleep(0.1)
    raise RuntimeError("Chromium opened no page")
