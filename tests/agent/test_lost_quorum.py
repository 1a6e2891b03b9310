"""Three servers whose etcd has lost most of its members: commands name the cause and every server, and end soon."""

import json
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.agent.dropped_etcd import running_server
from tests.agent.processes import RunningAgent, run
from tests.cluster.engines.etcd_server import running_etcd
from tests.waiting import wait_until
from wharf.cluster.server.log.reader import KNOWN_OUTAGE_AFTER_S

pytestmark = pytest.mark.needs_program("etcd")

MAX_FAILURE_S = 20.0
"""A command needs 6 s and its start; a machine that runs many tests needs longer. All time of a call would be 30 s."""


def knows_reason(server: RunningAgent) -> bool:
    """Return whether a server refuses a read because etcd does not answer."""
    try:
        urllib.request.urlopen(f"{server.address}/v1/jobs", timeout=30).close()
    except urllib.error.HTTPError as error:
        return b"the store has not replied since" in (text := error.read()) and b": etcd at 127.0.0.1:" in text
    return False


def list_unhealthy_reasons(server: RunningAgent) -> list[str]:
    """Return why each server is not healthy, as one server reports it."""
    try:
        urllib.request.urlopen(f"{server.address}/v1/operator/autopilot/health", timeout=30).close()
    except urllib.error.HTTPError as error:
        return [reported["WhyUnhealthy"] for reported in json.loads(error.read())["Servers"]]
    return [""]


def is_reason(text: str) -> bool:
    """Return whether a text says since when etcd does not reply, and names etcd."""
    return text.startswith("the store has not replied since 20") and ": etcd at 127.0.0.1:" in text


def test_commands_name_the_lost_store_and_the_servers_that_report_it(tmp_path: Path) -> None:
    with running_etcd(tmp_path / "etcd", members=3) as etcd, ExitStack() as stack:
        servers = [
            stack.enter_context(running_server(tmp_path, name, *etcd.members)) for name in ("one", "two", "three")
        ]
        for member in etcd.members[1:]:
            member.pause()
        frozen_s = time.monotonic()
        wait_until(lambda: all(map(knows_reason, servers)), what="all servers know the reason", within_s=60.0)
        known_s = frozen_s + KNOWN_OUTAGE_AFTER_S + 1.0
        wait_until(lambda: time.monotonic() > known_s, what="the outage has lasted for a while", within_s=60.0)
        addresses = ",".join(server.address for server in servers)
        results = []
        for command in (("job", "status"), ("system", "gc")):
            began_s = time.monotonic()
            results.append((run(tmp_path, *command, "--address", addresses), time.monotonic() - began_s))
        wait_until(
            lambda: all(map(is_reason, list_unhealthy_reasons(servers[0]))),
            what="the health has reasons",
            within_s=60.0,
        )
        for member in etcd.members[1:]:
            member.resume()

    for result, took_s in results:
        assert result.returncode == 1
        assert "the store has not replied since " in result.stderr.splitlines()[-1]
        assert "; restore the store: of etcd, more than half of the members must run; " in result.stderr
        assert took_s < MAX_FAILURE_S
    read, written = (result.stderr for result, _ in results)
    assert "; 3 of 3 servers report this; " in read
    assert read.endswith("--stale reads what the server knew last\n")
    assert written.endswith("nothing was changed, so repeat the command then\n")
