"""Output for programs: every command that prints a thing has `--json` and `--format`, and both print the same JSON."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli.every_command import Words, list_commands
from tests.cli.terminal import WEB, Terminal, open_terminal, write_file

PRINTS_NO_RECORD = frozenset({
    "agent", "alloc exec", "alloc fs cat", "alloc logs", "completion", "compat install-nomad", "compat install-slurm", "config check", "config init",
    "job action", "job convert", "job explain-field", "job fmt", "job init", "job logs", "limits activity", "limits export",
    "limits metrics", "limits serve", "monitor", "operator api", "operator debug", "operator keyring generate", "tls create",
    "sacct", "sbatch", "scancel", "squeue", "ui", "var lock", "volume init",
})  # fmt: skip
"""Commands that print the output of a task, write or check a file, or print JSON in any case."""
READS = (
    "status", "top", "search web", "server members", "flow list", "job status", "job status web", "job inspect web", "job history web",
    "job explain web", "job allocs web", "job deployments web", "node status", "node status node-1",
    "node pool list", "node pool info default", "node pool nodes default", "node pool jobs default", "alloc status ALLOC",
    "alloc explain ALLOC", "deployment list", "deployment status web", "eval list", "eval status EVAL", "eval explain EVAL",
    "namespace list", "namespace status default", "namespace inspect default", "quota list", "service list",
    "scaling policy list", "var list", "volume status", "operator scheduler get-config", "operator members",
    "operator keyring list", "version", "config show",
)  # fmt: skip
"""Reads, with arguments of the cluster of the tests."""
CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("namespace apply shop", {"Name": "shop"}),
    ("namespace delete shop", {"Name": "shop"}),
    ("node pool apply gpu", {"Name": "gpu"}),
    ("node pool delete gpu", {"Name": "gpu"}),
    ("job tag apply --name golden web", {"JobID": "web", "Version": 0, "Name": "golden"}),
    ("job tag unset --name golden web", {"JobID": "web", "Name": "golden"}),
    ("alloc stop ALLOC", {"JobID": "web", "ID": "ALLOC", "Outcome": "evaluated", "ExitCode": 0}),
    ("deployment pause web", {"JobID": "web"}),
    ("deployment resume web", {"JobID": "web"}),
    ("deployment fail --detach web", {"JobID": "web", "RevertedJobVersion": None}),
    ("job scale --detach web 3", {"JobID": "web"}),
    ("job eval --detach web", {"JobID": "web"}),
    ("node eligibility --disable node-1", {"Name": "node-1", "Eligibility": "ineligible"}),
    ("node drain --enable --detach node-1", {"Name": "node-1", "Outcome": "started"}),
    ("node drain --disable node-1", {"Name": "node-1", "Outcome": "canceled"}),
    ("operator scheduler set-config --scheduler-algorithm spread", {"SchedulerAlgorithm": "spread"}),
    ("var purge jobs/web", {"Path": "jobs/web"}),
    ("system gc", {}),
    ("job stop --detach web", {}),
)
"""Changes in this order, with fields of their output."""
WITH_EVALUATION = ("alloc stop", "deployment fail", "job scale", "job eval", "job stop")


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with open_terminal(capsys, nodes=1) as opened:
        yield opened


def has_option(command: click.Command, name: str) -> bool:
    return any(name in parameter.opts for parameter in command.params)


def test_every_command_that_prints_a_thing_has_both_options() -> None:
    def find_problem(words: Words, command: click.Command) -> str:
        has_both = has_option(command, "--json") and has_option(command, "--format")
        return "" if has_both is (" ".join(words) not in PRINTS_NO_RECORD) else " ".join(words)

    assert [problem for words, command in list_commands() if (problem := find_problem(words, command))] == []


def test_json_and_the_format_json_are_the_same_for_all_reads(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    terminal.run_ok("job", "run", write_file(tmp_path, WEB))
    terminal.wait(10)
    ids = {
        "ALLOC": json.loads(terminal.run_ok("job", "allocs", "web", "--json"))[0]["ID"],
        "EVAL": json.loads(terminal.run_ok("eval", "list", "--json"))[0]["ID"],
    }
    problems: dict[str, Any] = {}
    for read in READS:
        words = [ids.get(word, word) for word in read.split()]
        as_json, by_format = terminal.run(*words, "--json"), terminal.run(*words, "--format", "json")
        templated = terminal.run(*words, "--format", "{{len .}}")
        is_same = as_json.out == by_format.out and as_json.out[:1] in ("{", "[") and json.loads(as_json.out) is not None
        if (as_json.code, by_format.code, is_same, templated.code) != (0, 0, True, 0):
            problems[read] = as_json, by_format, templated

    assert problems == {}


def test_every_change_reports_its_id_its_index_and_its_evaluation(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, WEB))
    terminal.run_ok("var", "put", "jobs/web", "user=shop")
    terminal.wait(1)
    allocation = json.loads(terminal.run_ok("job", "allocs", "web", "--json"))[0]["ID"]
    problems: dict[str, Any] = {}
    for text, fields in CHANGES:
        result = terminal.run(*(allocation if word == "ALLOC" else word for word in text.split()), "--json")
        document = json.loads(result.out) if result.code == 0 else {}
        document = document[0] if isinstance(document, list) else document
        expected = {key: allocation if value == "ALLOC" else value for key, value in fields.items()}
        has_index = document.get("Index", document.get("ModifyIndex", 0)) > 0 or text == "system gc"
        has_evaluation = bool(document.get("EvalID")) or not text.startswith(WITH_EVALUATION)
        if not (expected.items() <= document.items() and has_index and has_evaluation):
            problems[text] = result

    assert problems == {}


@pytest.mark.parametrize("words", [("job", "status"), ("version",), ("config", "show")])
def test_a_format_that_is_no_template_is_an_error(terminal: Terminal, words: tuple[str, ...]) -> None:
    result = terminal.run(*words, "--format", "table")

    assert result.code != 0
    assert "--format table is neither json nor a template such as {{.ID}}" in result.err


@pytest.mark.parametrize("words", [("job", "status"), ("version",)])
def test_json_and_a_template_exclude_each_other(terminal: Terminal, words: tuple[str, ...]) -> None:
    result = terminal.run(*words, "--json", "--format", "{{.}}")

    assert "--json and --format exclude each other" in result.err


def test_the_status_of_the_cluster_has_leader_nodes_and_jobs(terminal: Terminal) -> None:
    found = json.loads(terminal.run_ok("status", "--json"))

    assert (list(found), [node["Name"] for node in found["Nodes"]]) == (["Leader", "Nodes", "Jobs"], ["node-1"])


def run_json(terminal: Terminal, *words: str, code: int = 0) -> Any:
    result = terminal.run(*words, "--json")
    assert result.code == code, result
    return json.loads(result.out)


@pytest.mark.parametrize("options", [[], ["--follow"], ["--detach"]])
def test_a_submission_reports_ids_index_and_outcome(terminal: Terminal, tmp_path: Path, options: list[str]) -> None:
    found = run_json(terminal, "job", "run", *options, write_file(tmp_path, WEB))

    outcome = {"--follow": "success", "--detach": ""}.get("".join(options), "evaluated")
    assert (found["JobID"], found["Outcome"], found["ExitCode"]) == ("web", outcome, 0)
    assert found["JobModifyIndex"] > 0
    assert (len(found["EvalID"]), len(found["DeploymentID"])) == (36, 0 if options == ["--detach"] else 36)


def test_a_submission_that_is_not_placed_reports_the_reasons(terminal: Terminal, tmp_path: Path) -> None:
    found = run_json(terminal, "job", "run", write_file(tmp_path, WEB.replace("CPU: 100", "CPU: 999999")), code=2)

    assert (found["Outcome"], found["ExitCode"]) == ("not-placed", 2)
    assert any("too little cpu" in reason for reason in found["Failures"])


def test_a_failed_batch_job_reports_why_with_its_exit_code(terminal: Terminal, tmp_path: Path) -> None:
    text = """
ID: sums
Type: batch
TaskGroups:
  - Name: sum
    RestartPolicy: {Attempts: 0, Mode: fail}
    ReschedulePolicy: {Attempts: 0}
    Tasks:
      - {Name: count, Driver: mock, Config: {run_for: 1s, exit_code: 3}, Resources: {CPU: 100, MemoryMB: 32}}
"""
    found = run_json(terminal, "job", "run", "--follow", write_file(tmp_path, text), code=3)

    assert (found["Outcome"], found["ExitCode"]) == ("failed", 3)
    assert [reason.partition(": ")[2] for reason in found["Failures"]] == ["count: Exit Code: 3"]


def test_several_jobs_are_stopped_with_one_report_each(terminal: Terminal, tmp_path: Path) -> None:
    for name in ("web", "shop"):
        terminal.run_ok("job", "run", "--detach", write_file(tmp_path, WEB.replace("ID: web", f"ID: {name}")))

    found = run_json(terminal, "job", "stop", "web", "shop")

    assert [(each["JobID"], each["Outcome"]) for each in found] == [("web", "evaluated"), ("shop", "evaluated")]


@pytest.mark.parametrize("words", [("job", "scale", "web", "3"), ("job", "eval", "web"), ("job", "revert", "web", "0")])
def test_changes_of_a_job_are_reported(terminal: Terminal, tmp_path: Path, words: tuple[str, ...]) -> None:
    terminal.run_ok("job", "run", write_file(tmp_path, WEB))
    terminal.run_ok("job", "run", write_file(tmp_path, WEB.replace("CPU: 100", "CPU: 120")))
    terminal.wait(30)

    found = run_json(terminal, *words)

    assert (found["JobID"], found["Outcome"]) == ("web", "evaluated")


FAILING = WEB.replace(
    "    Tasks:", "    RestartPolicy: {Attempts: 0, Mode: fail}\n    ReschedulePolicy: {Delay: 1h, DelayFunction: constant}\n    Tasks:"
).replace("Driver: mock", "Driver: mock, Config: {run_for: 20s, exit_code: 1}")  # fmt: skip


def test_a_forced_rescheduling_says_which_allocations_it_replaced(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, FAILING))
    terminal.wait(40)

    result = terminal.run("job", "eval", "--force-reschedule", "web")

    replaced = [line for line in result.lines if line.startswith("replaced web.api[")]
    assert (result.code, len(replaced)) == (0, 2), result


def test_a_forced_rescheduling_says_why_it_did_nothing(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", write_file(tmp_path, WEB))
    terminal.wait(10)

    result = terminal.run("job", "eval", "--force-reschedule", "web")

    assert result.lines[-1] == "nothing to replace: no failed allocation of web lacks a replacement; 2 are live"
