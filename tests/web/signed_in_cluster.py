"""A real cluster with access control, three simulated nodes and one real one, for tests with a browser."""

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from tests.agent.processes import ANSWERED_WITHIN_S, RunningAgent, running
from tests.agent.test_access_control import ACL_ENABLED, bootstrap_access
from tests.web.chromium import Tabs, tabs_of


class Refused(Exception):
    """The API refused a request."""


class SignedInCluster:
    """A running cluster, with the token of a person who may do everything."""

    def __init__(self, agent: RunningAgent, browser: Browser, token: str) -> None:
        self.agent = agent
        self.address = agent.address
        self.token = token
        self._browser = browser

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to the API, and return its reply. Raises `Refused`."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"x-cluster-token": self.token}
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=ANSWERED_WITHIN_S) as reply:
                return json.loads(reply.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(f"{error.code}: {error.read(1_000).decode(errors='replace')}") from None

    def register(self, name: str, *, count: int = 2, memory: int = 20, namespace: str = "default", **task: Any) -> None:
        """Submit a job of simulated tasks, which run for an hour. `task` has other fields of its task."""
        resources = {"CPU": 20, "MemoryMB": memory}
        fields = {"Name": "t", "Driver": "mock", "Config": {"run_for": "1h"}, "Resources": resources, **task}
        group = {"Name": "g", "Count": count, "Tasks": [fields]}
        if fields["Driver"] != "mock":  # Simulated nodes claim each driver, and run nothing.
            own_node = {"LTarget": "${node.unique.name}", "RTarget": socket.gethostname(), "Operand": "="}
            group["Constraints"] = [own_node]
        self.ask("PUT", "/v1/jobs", {"Job": {"ID": name, "Namespace": namespace, "TaskGroups": [group]}})

    @contextmanager
    def signed_in_tabs(self, **options: Any) -> Iterator[Tabs]:
        """Yield the tabs of a person who is signed in, with or without scripts."""
        with tabs_of(self._browser, self.address, **options) as tabs:
            self.sign_in(tabs.open("/ui/sign-in"))
            yield tabs

    def sign_in(self, page: Page, token: str = "") -> None:
        """Fill in the form of the sign-in, with the token of the person who may do everything if none is given."""
        page.get_by_label("Secret of your token").fill(token or self.token)
        page.get_by_role("main").get_by_role("button", name="Sign in").click()


@contextmanager
def running_cluster(folder: Path, browser: Browser) -> Iterator[SignedInCluster]:
    (folder / "access.toml").write_text(ACL_ENABLED)
    with running(folder, "dev", "--port", "0", "--fake-nodes", "3", "--config", "access.toml") as agent:
        agent.wait_ready()
        yield SignedInCluster(agent, browser, bootstrap_access(agent)["SecretID"])
