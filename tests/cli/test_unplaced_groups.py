"""Why allocations are not placed: `job run`, `job plan` and `job status` show the reasons of `job explain`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import WEB, Terminal, open_terminal, write_file


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with open_terminal(capsys, nodes=2) as terminal:
        yield terminal


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (WEB + "Datacenters: [zork]\n", "2 nodes excluded: datacenter dc1 is not in the job's list (node-1, node-2)"),
        (WEB.replace("mock", "java"), "no node has the driver java; available: docker"),
        (
            WEB.replace("CPU: 100, MemoryMB: 32", "CPU: 900000, MemoryMB: 900000"),
            "too little memory on 2 nodes, at least",
        ),
        (
            WEB.replace("CPU: 100, MemoryMB: 32", "CPU: 900000, MemoryMB: 900000"),
            "too little cpu on 2 nodes, at least",
        ),
    ],
)
def test_run_plan_status_and_explain_show_the_same_reasons(
    terminal: Terminal, tmp_path: Path, text: str, expected: str
) -> None:
    file = write_file(tmp_path, text)

    planned = terminal.run("job", "plan", file)
    run = terminal.run("job", "run", file)
    shown = [planned.out, run.out, *(terminal.run("job", word, "web").out for word in ("status", "explain"))]

    assert (planned.code, run.code) == (1, 2)
    assert [output for output in shown if expected not in output] == []


@pytest.mark.parametrize(
    ("node_count", "change", "expected"),
    [
        (0, "", "add a node: the cluster has none"),
        (1, "NodePool: gpu\n", 'add a node to the pool "gpu", or use another pool: default'),
        (2, "", "1 node excluded: node is ineligible"),
    ],
    ids=["no node", "no node in the pool", "no eligible node"],
)
def test_run_plan_status_and_explain_agree_when_no_node_is_considered(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, node_count: int, change: str, expected: str
) -> None:
    file = write_file(tmp_path, WEB + change)
    with open_terminal(capsys, nodes=node_count) as terminal:
        terminal.run_ok("node", "pool", "apply", "gpu")
        if node_count == 2:
            for name in ("node-1", "node-2"):
                terminal.run_ok("node", "eligibility", "--disable", name)
            expected = expected.replace("1 node", "2 nodes")
        planned = terminal.run("job", "plan", file)
        run = terminal.run("job", "run", file)
        shown = [planned.out, run.out, *(terminal.run("job", word, "web").out for word in ("status", "explain"))]

    assert [output for output in shown if expected not in output] == []
    assert [output for output in shown if "no ready node" in output] == []


@pytest.mark.parametrize(
    ("text", "wait", "considered"),
    [
        (WEB + "Datacenters: [zork]\n", "a suitable node", "0 nodes considered\n"),
        (WEB.replace("mock", "java"), "a suitable node", "2 nodes considered, none is suitable"),
        (WEB.replace("CPU: 100", "CPU: 900000"), "capacity", "2 nodes considered, 0 have room now"),
    ],
)
def test_run_status_and_evaluations_name_a_lack_of_resources_only_if_it_is_the_reason(
    terminal: Terminal, tmp_path: Path, text: str, wait: str, considered: str
) -> None:
    run = terminal.run("job", "run", write_file(tmp_path, text))
    evaluation = run.lines[1].split()[1]
    shown = [
        run.out,
        *(terminal.run(*words).out for words in (("job", "status", "web"), ("eval", "status", evaluation))),
    ]

    assert [output for output in shown if f"Not placed, waiting for {wait}" not in output] == []
    assert considered in terminal.run("job", "explain", "web").out


def test_a_launched_periodic_job_and_its_evaluation_name_the_driver_that_nodes_lack(
    terminal: Terminal, tmp_path: Path
) -> None:
    periodic = 'Type: batch\nPeriodic: {Specs: ["0 3 1 1 *"]}\n'
    text = WEB.replace("mock", "java").replace("    Update: {MinHealthyTime: 1s}\n", "") + periodic
    terminal.run("job", "run", write_file(tmp_path, text))

    launched = terminal.run("job", "periodic", "force", "web")
    evaluation = next(line for line in launched.lines if line.startswith("evaluation ")).split()[1]
    shown = [launched.out, terminal.run("eval", "status", evaluation).out]

    reason = "driver java: missing on 2 of 2 nodes"
    assert [output for output in shown if reason not in output or "waiting for capacity" in output] == []


@pytest.mark.parametrize(("driver", "is_error"), [("java", False), ("dockr", True)])
def test_a_plan_and_a_submission_print_the_notes_of_a_validation_once(
    terminal: Terminal, tmp_path: Path, driver: str, is_error: bool
) -> None:
    volume = "    Volumes: {data: {Type: host, Source: data}}\n    Tasks:"
    file = write_file(tmp_path, WEB.replace("mock", driver).replace("    Tasks:", volume))

    validated, planned, submitted = (terminal.run("job", word, file) for word in ("validate", "plan", "run"))

    notes = planned.errors
    found = f'TaskGroups[0].Tasks[0].Driver: no node has the driver "{driver}"'
    assert (1, 1) == (len([note for note in notes if found in note]), len([note for note in notes if '"data"' in note]))
    assert notes == submitted.errors
    assert notes == validated.errors or is_error


def test_a_plan_that_fills_the_nodes_shows_what_is_missing_after_its_placements(
    terminal: Terminal, tmp_path: Path
) -> None:
    text = WEB.replace("Count: 2", "Count: 3").replace("CPU: 100", "CPU: 3000")

    planned = terminal.run("job", "plan", write_file(tmp_path, text))

    assert "api: 1 not placed" in planned.out
    assert "too little cpu on 2 nodes, at least" in planned.out


def test_a_service_of_which_nothing_is_placed_is_shown_as_pending(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with open_terminal(capsys, nodes=1) as terminal:
        terminal.run("job", "run", write_file(tmp_path, WEB.replace("CPU: 100", "CPU: 999999")))
        listed = terminal.run_ok("job", "status").splitlines()[1]
        shown = terminal.run_ok("job", "status", "web")
        stored = terminal.run_ok("job", "status", "--format", "{{range .}}{{.Status}}{{end}}")
        terminal.run_ok("job", "run", "--detach", write_file(tmp_path, WEB))
        terminal.wait(10)
        placed = terminal.run_ok("job", "status").splitlines()[1]

    assert listed.split()[3:5] == ["pending", "0/2"]
    assert "Status       pending" in shown
    assert stored.strip() == "running"
    assert placed.split()[3:5] == ["running", "2/2"]
