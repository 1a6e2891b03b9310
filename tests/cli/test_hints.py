"""Errors of commands name what was not found and what to do."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import WEB, Terminal, open_terminal, write_file


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with open_terminal(capsys, nodes=1) as terminal:
        yield terminal


@pytest.fixture
def access(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A terminal with the first management token."""
    monkeypatch.setenv("WHARF_TOKEN", "")
    with open_terminal(capsys, access=True) as terminal:
        monkeypatch.setenv("WHARF_TOKEN", terminal.run_ok("acl", "bootstrap", "-t", "{{.SecretID}}").strip())
        yield terminal


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--group", "zz"), "job web has no group zz; its groups are api"),
        (("--task", "zz"), "job web has no task zz; its tasks are main"),
        (("--group", "api", "--task", "zz"), "group api of job web has no task zz; its tasks are main"),
    ],
)
def test_logs_of_an_unknown_group_or_task_are_refused(
    terminal: Terminal, tmp_path: Path, words: tuple[str, ...], error: str
) -> None:
    terminal.run_ok("job", "run", write_file(tmp_path, WEB))

    result = terminal.run("job", "logs", *words, "web")

    assert (result.code, result.err) == (1, f"wharf: {error}\n")


@pytest.mark.parametrize(
    "words", [("status",), ("job", "status"), ("job", "status", "web"), ("deployment", "list"), ("var", "list")]
)
def test_an_unknown_namespace_is_refused_instead_of_shown_as_empty(terminal: Terminal, words: tuple[str, ...]) -> None:
    result = terminal.run(*words, "--namespace", "nosuch")

    assert (result.code, result.err) == (
        1, "wharf: namespace nosuch does not exist; `wharf namespace list` lists all\n",
    )  # fmt: skip


def test_an_empty_namespace_is_shown_as_empty(terminal: Terminal) -> None:
    terminal.run_ok("namespace", "apply", "apps")

    assert terminal.run_ok("job", "status", "--namespace", "apps").startswith("No jobs in namespace apps;")
    assert terminal.run_ok("job", "status", "--namespace", "apps", "--json") == "[]\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("namespace", "delete", "nosuch"), "namespace not found: nosuch; `wharf namespace list` lists all"),
        (("job", "status", "--region", "mars"), "No path to region; no server knows a server of that region"),
    ],
)
def test_a_refusal_has_the_name_and_what_to_do(terminal: Terminal, words: tuple[str, ...], error: str) -> None:
    result = terminal.run(*words)

    assert result.code == 1
    assert result.err.startswith(f"wharf: {error}")


def test_promoting_an_ended_deployment_says_what_to_do(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--follow", write_file(tmp_path, WEB))

    result = terminal.run("deployment", "promote", "web")

    assert result.err.startswith("wharf: can't promote terminal deployment; the deployment has ended")


@pytest.mark.parametrize("word", ["info", "delete"])
def test_an_unknown_policy_is_refused_with_its_name(access: Terminal, word: str) -> None:
    result = access.run("acl", "policy", word, "nosuch")

    assert (result.code, result.out) == (1, "")
    assert result.err == "wharf: ACL policy not found: nosuch; `wharf acl policy list` lists all\n"


def test_a_second_bootstrap_names_the_file_that_resets_it(access: Terminal) -> None:
    error = access.run("acl", "bootstrap").err

    assert "write the number " in error
    assert "into the file acl-bootstrap-reset in the folder of the setting data_dir" in error


def test_the_last_management_token_is_deleted_only_after_confirmation(
    access: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    own = access.run_ok("acl", "token", "self", "-t", "{{.AccessorID}}").strip()
    second = access.run_ok("acl", "token", "create", "--type", "management", "-t", "{{.AccessorID}}").strip()

    assert access.run("acl", "token", "delete", second).out == f"deleted token {second}\n"
    refused = access.run("acl", "token", "delete", own)
    assert refused.code == 130
    assert "the last management token?" in refused.err
    assert access.run_ok("acl", "token", "self", "-t", "{{.AccessorID}}").strip() == own
    assert access.run_ok("acl", "token", "delete", "--yes", own) == f"deleted token {own}\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("job", "scale", "web", "--", "-1"), "count -1: expected 0 or more"),
        (("limits", "grant", "user:ada", "--bucket", "x"), "unknown option --bucket; see `wharf limits grant --help`"),
        (("job", "run", "--nosuch", "web.yaml"), "unknown option --nosuch; see `wharf job run --help`"),
        (("agent", "-dev"), "unknown option -dev; `wharf dev` runs a server and a node on this machine"),
        (("agent", "--dev"), "unknown option --dev; `wharf dev` runs a server and a node on this machine"),
        (("limits", "disable"), "Missing option '--duration'; see `wharf limits disable --help`"),
        (
            ("operator", "api", "/v1/agent/monitor?log_level=foo"),
            "400: Unknown log level: foo; the levels are trace, debug, info, warn, error",
        ),
        (("operator", "api", "/v1/nodes?filter=Zork==1"), "; the fields are "),
        (("acl", "token", "info", "--nosuch", "x"), "unknown option --nosuch; see `wharf acl token info --help`"),
    ],
)
def test_an_error_of_the_input_says_what_is_expected(
    terminal: Terminal, tmp_path: Path, words: tuple[str, ...], error: str
) -> None:
    terminal.run_ok("job", "run", write_file(tmp_path, WEB))

    result = terminal.run(*words)

    assert result.code != 0
    assert error in result.err


def test_a_number_that_is_not_whole_is_reported_with_its_value(terminal: Terminal, tmp_path: Path) -> None:
    file = write_file(tmp_path, WEB.replace("CPU: 100", "CPU: 1e3"))

    error = terminal.run("job", "validate", file).err

    assert error == (
        f"wharf: {file}:8:53: TaskGroups[0].Tasks[0].Resources.CPU: expected a whole number, got 1000.0: write it "
        "without a decimal point and an exponent\n"
        "    8 |       - {Name: main, Driver: mock, Resources: {CPU: 1e3, MemoryMB: 32}}\n"
        "      |                                                     ^^^\n"
    )


def test_the_name_of_a_policy_is_refused_with_the_rule(access: Terminal, tmp_path: Path) -> None:
    file = write_file(tmp_path, 'namespace "default" { policy = "read" }', "rules.hcl")

    error = access.run("acl", "policy", "apply", "bad name", file).err

    assert "invalid name 'bad name': use 1 to 128 letters, digits and dashes" in error


@pytest.mark.parametrize(
    "words",
    [
        ("job", "status", "web"), ("job", "explain", "web"), ("job", "stop", "web"), ("job", "scale", "web", "3"),
        ("deployment", "status", "web"), ("status", "web"),
    ],
)  # fmt: skip
def test_a_job_of_another_namespace_is_named_with_its_namespace(
    terminal: Terminal, tmp_path: Path, words: tuple[str, ...]
) -> None:
    terminal.run_ok("namespace", "apply", "shop")
    terminal.run_ok("job", "run", "--detach", "--namespace", "shop", write_file(tmp_path, WEB))

    assert terminal.run(*words).err == (
        "wharf: job web does not exist in namespace default, but in shop: add --namespace shop\n"
    )


def test_a_variable_of_another_namespace_is_named_with_its_namespace(terminal: Terminal) -> None:
    terminal.run_ok("namespace", "apply", "shop")
    terminal.run("var", "put", "--namespace", "shop", "a/b", "x=y")

    assert terminal.run("var", "get", "a/b").err == (
        "wharf: variable a/b does not exist in namespace default, but in shop: add --namespace shop\n"
    )


def test_the_name_of_an_allocation_instead_of_a_job_gets_a_hint(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, WEB))
    terminal.wait(5)

    assert terminal.run("job", "status", "web.api[0]").err == (
        "wharf: web.api[0] is an allocation, not a job: `wharf alloc status 'web.api[0]'` shows it\n"
    )
    assert terminal.run("job", "status", "web.api[7]").err == (
        "wharf: job web.api[7] does not exist; `wharf job status` lists all\n"
    )


def test_the_job_of_an_id_in_another_namespace_is_no_allocation(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("namespace", "apply", "shop")
    terminal.run_ok("job", "run", "--detach", "--namespace", "shop", write_file(tmp_path, WEB))

    assert "web is a job, not an allocation" in terminal.run("alloc", "status", "web").err


def test_a_job_without_a_deployment_is_not_searched_in_other_namespaces(terminal: Terminal, tmp_path: Path) -> None:
    file = write_file(tmp_path, WEB)
    terminal.run_ok("namespace", "apply", "shop")
    for namespace in ("shop", "default"):
        terminal.run_ok("job", "run", "--detach", "--namespace", namespace, file)

    assert "does not exist in namespace" not in terminal.run("deployment", "status", "web").err


def test_a_namespace_that_the_caller_cannot_read_is_not_named(access: Terminal, tmp_path: Path) -> None:
    access.run_ok("namespace", "apply", "shop")
    access.run_ok("job", "run", "--detach", "--namespace", "shop", write_file(tmp_path, WEB))
    policy = tmp_path / "reader.hcl"
    policy.write_text('namespace "default" {\n  policy = "read"\n}\n')
    access.run_ok("acl", "policy", "apply", "reader", str(policy))
    token = access.run_ok("acl", "token", "create", "--name", "x", "--policy", "reader", "-t", "{{.SecretID}}").strip()

    assert access.run("job", "status", "--token", token, "web").err == (
        "wharf: job web does not exist; `wharf job status` lists all\n"
    )
