"""What `wharf node drain` reports at the end: what became of each allocation."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.terminal import WEB, Terminal, open_terminal, write_file
from wharf.cli.node.drain import describe_end_of_drain, summarize_drain
from wharf.contract.client import ClientSettings
from wharf.contract.model.allocations.allocation import AllocDeploymentStatus, ClientStatus, DesiredStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.nodes.node import NodeEvent, NodeEventSubsystem, SchedulingEligibility
from wharf.contract.wire.allocations.messages import AllocationView
from wharf.contract.wire.nodes.messages import NodeListStub, NodeView


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with open_terminal(capsys, nodes=2) as terminal:
        yield terminal


REACHED = (
    NodeEvent(subsystem=NodeEventSubsystem.DRAIN, message="Node drain complete", details={"deadline_reached": "true"}),
)


def view(**fields: Any) -> AllocationView:
    """Return an allocation of a service that the drain stopped."""
    defaults: dict[str, Any] = {
        "id": "a",
        "name": "web.g[0]",
        "job_id": "web",
        "job": Job(id="web", type="service"),
        "desired_status": DesiredStatus.STOP,
        "client_status": ClientStatus.COMPLETE,
    }
    return AllocationView(**(defaults | fields))


SYSTEM = {"job_id": "sys", "job": Job(id="sys", type="system")}
BATCH = {"job_id": "nightly", "job": Job(id="nightly", type="batch")}
RUNS = {"desired_status": DesiredStatus.RUN, "client_status": ClientStatus.RUNNING}


@pytest.mark.parametrize(
    ("allocations", "events", "is_forced", "expected"),
    [
        ([], (), False, "no allocation had to leave"),
        ([view(next_allocation="b")], (), False, "1 replaced on other nodes"),
        (
            [view()],
            (),
            False,
            "1 stopped without a replacement; `wharf job explain web` shows why no replacement runs",
        ),
        (
            [view(deployment_status=AllocDeploymentStatus(canary=True))],
            (),
            False,
            "1 stopped (canary; an active deployment places another)",
        ),
        ([view(next_allocation="b"), view(**SYSTEM)], (), False, "1 replaced on other nodes, 1 stopped (system job)"),
        (
            [view(**BATCH)],
            REACHED,
            False,
            "1 stopped (batch job, not run again); the deadline was reached before all had",
        ),
        ([view(**BATCH, desired_status=DesiredStatus.RUN)], (), False, "1 ended"),
        ([view(next_allocation="b")], REACHED, True, "1 replaced on other nodes; all were stopped at once"),
        ([view(**SYSTEM, **RUNS)], (), True, "no allocation had to leave; 1 allocation of system jobs still runs here"),
        (
            [view(**RUNS), view(**RUNS, id="b")],
            (),
            False,
            "no allocation had to leave; 2 allocations of other jobs still run",
        ),
        (
            [view(client_status=ClientStatus.LOST)],
            (),
            False,
            "1 lost; `wharf job explain web` shows why no replacement runs",
        ),
    ],
)
def test_the_end_of_a_drain_says_what_became_of_each_allocation(
    allocations: list[AllocationView], events: tuple[NodeEvent, ...], is_forced: bool, expected: str
) -> None:
    node = NodeView(id="n", name="n1", events=events)

    assert summarize_drain(node, {"a"}, allocations, is_forced=is_forced).startswith(
        f"drain of n1 complete: {expected}"
    )


@pytest.mark.parametrize(
    ("is_draining", "eligibility", "is_kept_ineligible", "expected"),
    [
        (True, "ineligible", False, ("canceled", "drain of n1 canceled")),
        (True, "ineligible", True, ("canceled", "drain of n1 canceled; the node stays ineligible")),
        (False, "ineligible", False, ("eligible", "n1 was not draining; it is eligible again")),
        (False, "ineligible", True, ("unchanged", "no change: n1 is not draining and stays ineligible")),
        (False, "eligible", True, ("unchanged", "no change: n1 is not draining and stays eligible")),
        (False, "eligible", False, ("unchanged", "no change: n1 is not draining and stays eligible")),
    ],
)
def test_only_a_drain_in_progress_is_reported_as_canceled(
    is_draining: bool, eligibility: str, is_kept_ineligible: bool, expected: tuple[str, str]
) -> None:
    node = NodeListStub(id="n", name="n1", drain=is_draining, scheduling_eligibility=SchedulingEligibility(eligibility))

    assert describe_end_of_drain(node, is_kept_ineligible=is_kept_ineligible) == expected


def test_a_drain_has_not_ended_while_an_allocation_stops() -> None:
    stopping = view(client_status=ClientStatus.RUNNING)

    assert summarize_drain(NodeView(id="n", name="n1"), {"a"}, [stopping], is_forced=False) == ""


def test_a_drain_whose_allocations_have_moved_says_so(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--follow", write_file(tmp_path, WEB))

    drained = terminal.run_ok("node", "drain", "--enable", "--deadline", "1m", "node-1")
    again = terminal.run_ok("node", "drain", "--enable", "--deadline", "1m", "node-1")

    assert drained.splitlines()[-1] == "drain of node-1 complete: 1 replaced on other nodes"
    assert again.splitlines()[-1] == "drain of node-1 complete: no allocation had to leave"


class TypedInput(io.StringIO):
    """The input of a user at a terminal."""

    def isatty(self) -> bool:
        return True


def test_at_a_terminal_a_node_with_allocations_is_drained_only_after_confirmation(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", TypedInput("n\n"))
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, WEB.replace("Count: 2", "Count: 1")))
    terminal.wait(5)
    (name,) = [each.node_name for each in terminal.connect(ClientSettings()).allocations.list().value]
    other = "node-1" if name == "node-2" else "node-2"

    empty = terminal.run("node", "drain", "--enable", "--detach", other)
    declined = terminal.run("node", "drain", "--enable", "--detach", name)
    confirmed = terminal.run("node", "drain", "--enable", "--detach", "--yes", name)

    assert (empty.code, empty.out) == (0, f"drain of {other} started\n")
    assert (declined.code, "stops 1 allocation there?" in declined.err, "started" in declined.out) == (130, True, False)
    assert (confirmed.code, confirmed.out) == (0, f"drain of {name} started\n")


def test_a_service_that_fits_on_no_other_node_is_not_reported_as_moved(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--follow", write_file(tmp_path, WEB))
    terminal.run_ok("node", "eligibility", "--disable", "node-2")

    drained = terminal.run_ok("node", "drain", "--enable", "--force", "node-1")

    assert drained.splitlines()[-1] == (
        "drain of node-1 complete: 1 stopped without a replacement; `wharf job explain web` shows why no replacement runs; "
        "all were stopped at once"
    )


def test_a_drain_that_another_request_cancels_is_not_reported_as_complete(terminal: Terminal, tmp_path: Path) -> None:
    # Its allocations are not healthy yet, so the drain waits for them.
    slow = WEB.replace("MinHealthyTime: 1s", "MinHealthyTime: 30m, HealthyDeadline: 40m, ProgressDeadline: 50m")
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, slow))
    terminal.wait(20)
    nodes = msgspec.json.decode(terminal.run_ok("node", "status", "--json"))
    (node_id,) = [node["ID"] for node in nodes if node["Name"] == "node-1"]

    def cancel() -> None:
        terminal.cluster.start(terminal.server.client.nodes.drain(node_id, None, mark_eligible=True), name="cancel")

    terminal.loop.call_later(5.0, cancel)

    result = terminal.run("node", "drain", "--enable", "--no-deadline", "node-1")

    assert (result.code, result.err.splitlines()[-1]) == (
        1,
        "wharf: another request canceled the drain of node-1, with 1 left on the node",
    )


@pytest.mark.parametrize("request_number", range(1, 8))
def test_a_drain_that_is_complete_before_the_next_request_shows_how_many_allocations_it_moved(
    terminal: Terminal, tmp_path: Path, request_number: int
) -> None:
    terminal.run_ok("job", "run", "--follow", write_file(tmp_path, WEB.replace("Count: 2", "Count: 1")))
    name = terminal.run_ok("job", "allocs", "web", "-t", "{{(index . 0).NodeName}}").strip()
    has_begun = False
    later_requests = 0

    def complete_drain(path: str) -> None:
        nonlocal has_begun, later_requests
        if has_begun:
            later_requests += 1
            if later_requests == request_number:
                terminal.before_request = lambda _path: None
                terminal.wait(60)
        has_begun = has_begun or path.endswith("/drain")

    terminal.before_request = complete_drain
    lines = terminal.run_ok("node", "drain", "--enable", name).splitlines()

    assert lines == [
        f"drain of {name} started",
        "  1 allocation left",
        f"drain of {name} complete: 1 replaced on other nodes",
    ]
