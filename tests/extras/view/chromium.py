"""A real browser for tests: headless Chromium, spoken to over its own pipe; nothing else is needed.

Its requests, errors and console lines are kept, and names of hosts lead to a trap on this machine.
"""

import base64
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import numpy as np
import numpy.typing as npt

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
    ),
    *(
        "--disable-component-update",
        "--disable-sync",
        "--disable-quic",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
    ),
    *(
        "--disable-extensions",
        "--remote-debugging-pipe",
        "--password-store=basic",
        "--use-mock-keychain",
    ),
)
_PATIENCE = 250.0  # seconds for all that is asked of it, on a busy machine

# The browser speaks through the descriptors 3 and 4; above 9 nothing is in their way.
_AS_3_AND_4 = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""

Pixels = npt.NDArray[np.uint8]


def executable() -> str | None:
    """PENSTOCK_CHROMIUM, or the first that is found."""
    chosen = os.environ.get("PENSTOCK_CHROMIUM")
    return chosen or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page.  `requests`, `errors` and `lines` grow as the browser tells of them."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._out = os.fdopen(to_browser, "wb", buffering=0)
        self._in = os.fdopen(from_browser, "rb", buffering=0)
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self._loaded = False
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.lines: list[str] = []

    def start(self) -> None:
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def visit(
        self, url: str, *, width: int = 1280, height: int = 900, theme: str = "light"
    ) -> None:
        self.look(width=width, height=height, theme=theme)
        self._loaded = False
        for told in (self.requests, self.errors, self.lines):
            told.clear()
        failed = self.ask("Page.navigate", url=url).get("errorText")
        assert not failed, failed
        while not self._loaded:
            self._hear()

    def look(self, *, width: int, height: int, theme: str) -> None:
        """Another window, another theme of the system."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.ask(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": theme}],
        )

    def value(self, expression: str) -> Any:
        """Of JavaScript, in the page."""
        found = self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def screenshot(self, *, width: int, height: int, scale: float = 1.0) -> bytes:
        """The window as a PNG, smaller by `scale`."""
        clip = {
            "x": 0,
            "y": self.value("scrollY"),
            "width": width,
            "height": height,
            "scale": scale,
        }
        return base64.b64decode(self.ask("Page.captureScreenshot", format="png", clip=clip)["data"])

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._out.write(
            json.dumps(message).encode() + b"\0"
        )  # short enough for the pipe to take it whole
        while True:
            heard = self._hear()
            if heard.get("id") == self._number:
                assert "error" not in heard, (method, heard["error"])
                result: dict[str, Any] = heard["result"]
                return result

    def _hear(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = self._in.read(1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        heard: dict[str, Any] = json.loads(line)
        self._note(heard.get("method", ""), heard.get("params", {}))
        return heard

    def _note(self, method: str, told: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.lines.append(json.dumps([part.get("value") for part in told["args"]]))
        elif method == "Log.entryAdded":  # also what the page's policy has refused
            self.errors.append(f"{told['entry']['level']}: {told['entry']['text']}")

    def close(self) -> None:
        self._out.close()
        self._in.close()


@contextmanager
def browser(
    folder: Path, *, trap: int | None = None, patience: float = _PATIENCE
) -> Iterator[Browser]:
    """A browser with a profile in this folder, for `patience` seconds; `trap` is a port of this machine to which all its requests go."""
    path = executable()
    assert path is not None
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    flags = [*_FLAGS, f"--user-data-dir={folder / 'profile'}"]
    flags += [f"--proxy-server=127.0.0.1:{trap}"] if trap is not None else []
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _AS_3_AND_4,
                str(theirs_in),
                str(theirs_out),
                path,
                *flags,
                "about:blank",
            ],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    os.close(theirs_in)
    os.close(theirs_out)
    found = Browser(ours_out, ours_in)
    alarm = threading.Timer(patience, process.kill)  # then reading ends, and the test says so
    alarm.start()
    try:
        found.start()
        yield found
    finally:
        alarm.cancel()
        found.close()
        process.terminate()
        process.wait(timeout=30)


@contextmanager
def trap(heard: list[bytes]) -> Iterator[int]:
    """A port that records whatever is sent to it, and answers nothing."""

    class Record(BaseRequestHandler):
        def handle(self) -> None:
            heard.append(self.request.recv(4096))

    with ThreadingTCPServer(("127.0.0.1", 0), Record) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def pixels(png: bytes) -> Pixels:
    """(height, width, 3) of a picture as Chromium makes it: 8 bits, RGB or RGBA, not interlaced."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height, depth, kind, _, _, interlaced = struct.unpack(">IIBBBBB", png[16:29])
    assert depth == 8 and kind in (2, 6) and not interlaced
    channels = 3 if kind == 2 else 4
    packed, place = b"", 8
    while place < len(png):
        (size,) = struct.unpack(">I", png[place : place + 4])
        if png[place + 4 : place + 8] == b"IDAT":
            packed += png[place + 8 : place + 8 + size]
        place += size + 12
    lines = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * channels)
    made = np.zeros((height, width * channels), np.uint8)
    above = np.zeros(width * channels, np.uint8)
    for number in range(height):
        above = made[number] = _unfiltered(
            int(lines[number, 0]), lines[number, 1:], above, channels
        )
    return made.reshape(height, width, channels)[:, :, :3]


def _unfiltered(kind: int, line: Pixels, above: Pixels, channels: int) -> Pixels:
    if kind == 0:
        return line
    if kind == 2:
        return line + above
    if kind == 1:
        return np.cumsum(line.reshape(-1, channels), axis=0, dtype=np.uint8).reshape(-1)
    made = np.zeros((len(line) // channels + 1, channels), np.int64)
    over = np.concatenate(
        (np.zeros((1, channels), np.int64), above.reshape(-1, channels).astype(np.int64))
    )
    for place, given in enumerate(line.reshape(-1, channels).astype(np.int64), start=1):
        left, up, corner = made[place - 1], over[place], over[place - 1]
        guess = (left + up) // 2 if kind == 3 else _paeth(left, up, corner)
        made[place] = (given + guess) & 255
    return made[1:].astype(np.uint8).reshape(-1)


def _paeth(left: Any, up: Any, corner: Any) -> Any:
    to_left, to_up, to_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
    return np.where(
        (to_left <= to_up) & (to_left <= to_corner), left, np.where(to_up <= to_corner, up, corner)
    )
