"""A gateway process in front of a host, and a caller who sends requests through it."""

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.waiting import wait_until


class GatewayReply(NamedTuple):
    """A reply as a caller received it from the gateway."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class GatewayCaller:
    """Sends requests through the gateway, and reads its log of decisions."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address = address
        self._folder = folder

    def send(
        self,
        path: str,
        *,
        method: str = "GET",
        token: str | None = None,
        cookie: str | None = None,
        body: bytes | None = None,
        content_type: str | None = None,
    ) -> GatewayReply:
        """Send a request through the gateway, and return the reply."""
        request = urllib.request.Request(self.address + path, data=body, method=method)
        if cookie is not None:
            request.add_header("Cookie", cookie)
        if content_type is not None:
            request.add_header("Content-Type", content_type)
        if token is not None:
            request.add_header("Authorization", f"token {token}")
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return GatewayReply(reply.status, dict(reply.headers), reply.read())
        except urllib.error.HTTPError as error:
            with error:
                return GatewayReply(error.code, dict(error.headers), error.read())

    def read_decisions(self) -> list[dict[str, Any]]:
        """Return all decisions of the gateway, from its log. The log is complete when the gateway has ended."""
        lines = (self._folder / "data" / "decisions.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def wait_for_decision(self, request: str) -> dict[str, Any]:
        """Return the last decision about this request, which is its method and path. Waits until the gateway has stored it."""

        def find() -> dict[str, Any] | None:
            found = [entry for entry in self.read_decisions() if f"{entry['method']} {entry['path']}" == request]
            return found[-1] if found else None

        return wait_until(find, what=f"the gateway has stored its decision about {request}")

    def list_refusals(self) -> list[str]:
        """Return verdict, method and path of each refused request. The list is complete when the gateway has ended."""
        return [
            f"{entry['verdict']} {entry['method']} {entry['path']}"
            for entry in self.read_decisions()
            if entry["verdict"] != "admitted"
        ]


@contextmanager
def run_gateway(folder: Path, rules: str, settings: str) -> Iterator[str]:
    """Run `wharf gateway` with these rules and settings, and a log of all decisions. Yield its address.

    `settings` must name `rules.toml` and the folder `data`.
    """
    (folder / "rules.toml").write_text(rules)
    (folder / "limits.toml").write_text(settings + "[decisions]\none_in = 1\n")
    output_file = folder / "gateway.txt"
    with output_file.open("wb") as output:
        gateway = subprocess.Popen(
            [sys.executable, "-m", "wharf", "gateway", "--config", str(folder / "limits.toml")],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: "Gateway listens at" in output_file.read_text(), what="the gateway listens")
        (address,) = re.findall(r"Gateway listens at (\S+)", output_file.read_text())
        yield address
    finally:
        gateway.terminate()
        gateway.wait(timeout=60)
