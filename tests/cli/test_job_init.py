"""`wharf job init`: each example is short, is the same job in both languages, and runs a real task."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.processes import RunningAgent, running
from tests.cli.terminal import Terminal, open_terminal
from tests.forked_command import run_wharf
from tests.node.docker.podman import running_podman
from tests.waiting import wait_until
from wharf.cli.job.examples import EXAMPLES, KINDS
from wharf.cli.job.init import build_example

MAX_LINES = 45


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with open_terminal(capsys, nodes=2) as terminal:
        yield terminal


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    """Return an agent whose node runs programs."""
    with running(tmp_path_factory.mktemp("init") / "a", "dev", "--port", "0") as agent:
        agent.wait_ready()
        yield agent


def run_command(agent: RunningAgent, *words: str) -> str:
    """Run a command that must succeed. Return what it prints."""
    result = run_wharf(agent.folder, *words, environment={"WHARF_ADDR": agent.address})
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize(("kind", "language"), EXAMPLES)
def test_an_example_is_short_and_valid(terminal: Terminal, tmp_path: Path, kind: str, language: str) -> None:
    for options in ((), ("--short",)):
        file = tmp_path / f"{kind}{len(options)}.{language}"
        terminal.run_ok("job", "init", f"--{kind}", f"--{language}", *options, str(file))

        assert terminal.run_ok("job", "validate", str(file)) == f"{file} is valid (job {file.stem})\n"
        lines = file.read_text().splitlines()
        assert len(lines) <= MAX_LINES
        assert any("#" in line for line in lines) == (not options)


@pytest.mark.parametrize("kind", KINDS)
def test_both_languages_have_the_same_job(terminal: Terminal, tmp_path: Path, kind: str) -> None:
    jobs = []
    for language in ("yaml", "hcl"):
        file = tmp_path / f"example.{language}"
        file.write_text(build_example(kind, language, name="example", file="example"))
        submitted = json.loads(terminal.run_ok("job", "run", "--output", str(file)))["Job"]
        terminal.run("job", "stop", "--purge", "--detach", "example")
        terminal.run_ok("job", "run", "--detach", str(file))
        job = json.loads(terminal.run_ok("job", "inspect", "--json", "example"))
        jobs.append(
            {name: job[name] for name in submitted if name in job and "Index" not in name and "Time" not in name}
        )

    first, second = ({name: job.get(name) for name in jobs[0]} for job in jobs)
    assert first == second


def test_the_first_line_of_yaml_names_the_schema_for_editors() -> None:
    first_line = build_example("service", "yaml", name="x", file="x.yaml").splitlines()[0]

    assert first_line == "# yaml-language-server: $schema=http://127.0.0.1:4646/v1/schema/job.json"


def test_the_ending_of_the_file_selects_the_language(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "init", str(tmp_path / "web.nomad"))

    assert 'job "web" {' in (tmp_path / "web.nomad").read_text()


@pytest.mark.parametrize(
    ("words", "file", "first_line"),
    [
        ((), "example.yaml", "ID: example"),
        (("--batch",), "batch.yaml", "ID: batch"),
        (("--system", "--hcl"), "system.hcl", 'job "system" {'),
        (("--batch", "my backup.hcl"), "my backup.hcl", 'job "my-backup" {'),
    ],
)
def test_the_job_is_named_after_its_file_or_its_kind(
    terminal: Terminal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    file: str,
    first_line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    terminal.run_ok("job", "init", *words)

    assert first_line in (tmp_path / file).read_text().splitlines()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--hcl", "x.yaml"), "x.yaml has the ending of YAML, and --hcl writes HCL: change one of them"),
        (("--yaml", "x.hcl"), "x.hcl has the ending of HCL, and --yaml writes YAML: change one of them"),
        (
            ("x.json",),
            "x.json: examples are in YAML or HCL: use the ending .yaml or .hcl; `wharf job convert` writes JSON",
        ),
    ],
)
def test_an_ending_of_another_language_is_refused(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = terminal.run("job", "init", *words)

    assert (result.code, result.err, list(tmp_path.iterdir())) == (1, f"wharf: {message}\n", [])


def test_two_kinds_are_refused(terminal: Terminal, tmp_path: Path) -> None:
    result = terminal.run("job", "init", "--batch", "--docker", str(tmp_path / "x.yaml"))

    assert (result.code, result.err) == (1, "wharf: --batch and --docker exclude each other: use one of them\n")
    assert not (tmp_path / "x.yaml").exists()


@pytest.mark.parametrize("language", ["yaml", "hcl"])
@pytest.mark.parametrize(
    ("kind", "launch", "expected"),
    [
        ("service", (), "still running"),
        ("batch", (), "counting\n1\n"),
        ("system", (), "load average"),
        ("periodic", ("job", "periodic", "force"), "launched at "),
        ("parameterized", ("job", "dispatch", "--meta", "name=world"), "hello world\nsome text"),
    ],
)
def test_an_example_runs_a_real_task(
    agent: RunningAgent, language: str, kind: str, launch: tuple[str, ...], expected: str
) -> None:
    (agent.folder / "payload").write_text("some text\n")
    # A name of its own: a periodic job that is launched twice in a second has one launch, also if it was purged meanwhile.
    job = f"{kind}-{language}"
    run_command(agent, "job", "init", f"--{kind}", f"{job}.{language}")
    run_command(agent, "job", "run", "--detach", f"{job}.{language}")
    launched = job
    if launch:
        run_command(agent, *launch, job, *(["payload"] if kind == "parameterized" else []))
        # The schedule launches another one if this runs at a quarter of an hour.
        launched = wait_until(lambda: list_children(agent, job), what="the launched job is listed")[-1]

    wait_until(lambda: expected in read_logs(agent, launched), what=f"the output of {kind}")
    run_command(agent, "job", "stop", "--purge", "--detach", job)


def list_children(agent: RunningAgent, job: str) -> list[str]:
    """Return the ids of the jobs that a job has launched."""
    jobs = agent.get(f"/v1/jobs?prefix={job}/")
    assert isinstance(jobs, list)
    return [child["ID"] for child in jobs]


def read_logs(agent: RunningAgent, job: str) -> str:
    """Return the output of the tasks of a job without the names of the tasks."""
    lines = run_command(agent, "job", "logs", job).splitlines()
    return "\n".join(line.partition("  ")[2].strip() for line in lines)


@pytest.mark.needs_program("podman")
@pytest.mark.needs("containers")
def test_the_example_with_a_container_runs_it(tmp_path: Path) -> None:
    with running_podman() as (podman, registry):
        (tmp_path / "dev.toml").write_text(f'[client.drivers.docker]\nsocket = "{podman.socket}"\n')
        words = ("dev", "--port", "0", "--config", str(tmp_path / "dev.toml"))
        with running(tmp_path / "a", *words) as agent:
            agent.wait_ready()
            for language in ("yaml", "hcl"):
                run_command(agent, "job", "init", "--docker", f"--{language}", f"example.{language}")
                file = agent.folder / f"example.{language}"
                file.write_text(file.read_text().replace("busybox:1", f"{registry.address}/web:1"))
                run_command(agent, "job", "run", "--detach", file.name)
                wait_until(lambda: "still running" in read_logs(agent, "example"), what="the output of the container")
                run_command(agent, "job", "stop", "--purge", "--detach", "example")
