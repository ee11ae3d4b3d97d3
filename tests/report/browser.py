"""Headless Chromium through its driver: WebDriver's HTTP in a few lines, so that no package is needed for it."""

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
WHY_NOT = "" if CHROMIUM and DRIVER else "no chromium and chromedriver here (Debian: apt-get install chromium-driver)"
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage")


class Browser:
    """One browser. Raises RuntimeError with the driver's message."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.at = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [str(DRIVER), f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._wait()
        options = {"binary": CHROMIUM, "args": list(ARGUMENTS)}
        logs = {"browser": "ALL", "performance": "ALL"}
        asked = {"goog:chromeOptions": options, "goog:loggingPrefs": logs, "browserName": "chrome"}
        made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": asked}})
        self.session = f"/session/{made['sessionId']}"

    def _wait(self) -> None:
        for _ in range(200):
            try:
                if self._ask("GET", "/status")["ready"]:
                    return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.05)
        raise RuntimeError("chromedriver did not come up")

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = json.dumps(body).encode() if method == "POST" else None
        request = urllib.request.Request(self.at + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from error

    def close(self) -> None:
        """End the browser and its driver."""
        try:
            self._ask("DELETE", self.session)
        finally:
            self.process.terminate()
            self.process.wait(10)

    def run(self, script: str, *arguments: Any) -> Any:
        """A script's `return` value."""
        return self._ask("POST", f"{self.session}/execute/sync", {"script": script, "args": list(arguments)})

    def tell(self, command: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self._ask("POST", f"{self.session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def look(self, width: int, height: int, dark: bool = False) -> None:
        """As a screen of that width, light or dark."""
        self.tell("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.tell("Emulation.setEmulatedMedia", features=scheme)

    def open(self, page: Path) -> None:
        """Open a page and wait until what comes first is drawn."""
        self.visit(page.resolve().as_uri())

    def visit(self, address: str) -> None:
        """As `open`, of any address."""
        self.log("browser")
        self.log("performance")
        self._ask("POST", f"{self.session}/url", {"url": address})
        self.wait("document.documentElement.dataset.ready === '1'")

    def wait(self, condition: str) -> None:
        """Until an expression of the page is true."""
        for _ in range(400):
            if self.run(f"return {condition}"):
                return
            time.sleep(0.05)
        raise RuntimeError(f"it did not come to {condition}: {self.log('browser')}")

    def draw_all(self) -> None:
        """Draw the charts too that are not in view."""
        self.tell("Runtime.evaluate", expression="hotlap.all()", awaitPromise=True)

    def log(self, kind: str) -> list[Any]:
        """What was logged since the last time: `browser` (the console) or `performance` (DevTools events)."""
        return list(self._ask("POST", f"{self.session}/se/log", {"type": kind}))

    def requests(self) -> list[str]:
        """URLs that were asked for since the last time, whatever became of them."""
        events = [json.loads(one["message"])["message"] for one in self.log("performance")]
        return [one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"]

    def press(self, key: str) -> None:
        """A key, to what has the focus."""
        text = {"text": key} if len(key) == 1 else {}
        self.tell("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.tell("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self, height: int | None = None) -> bytes:
        """A PNG of what is seen; height: of the page from its top, instead."""
        more: dict[str, Any] = {}
        if height is not None:
            size = self.run("return [innerWidth, document.documentElement.scrollHeight]")
            clip = {"x": 0, "y": 0, "width": size[0], "height": min(height, size[1]), "scale": 1}
            more = {"clip": clip, "captureBeyondViewport": True}
        return base64.b64decode(self.tell("Page.captureScreenshot", format="png", **more)["data"])
