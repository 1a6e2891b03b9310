"""Commands that follow something: they say what they wait for, and they end."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.cli.terminal import WEB, CommandResult, Terminal, open_terminal, write_file
from tests.kit.requests import commit
from wharf.cluster.state.tables import EVALUATIONS
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration

TOO_LARGE = WEB.replace("CPU: 100", "CPU: 999999")
BATCH = """
ID: sums
Type: batch
TaskGroups:
  - Name: sum
    Count: 2
    Tasks:
      - {Name: count, Driver: mock, Config: {run_for: 4m}, Resources: {CPU: 999999, MemoryMB: 32}}
"""
SHORT_DEADLINES = "MinHealthyTime: 1s, HealthyDeadline: 20s, ProgressDeadline: 30s"


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with open_terminal(capsys, nodes=1) as opened:
        yield opened


@pytest.mark.parametrize("text", [TOO_LARGE, BATCH], ids=["service", "batch"])
def test_following_a_job_that_is_never_placed_says_why_and_ends_after_the_time_without_progress(
    terminal: Terminal, tmp_path: Path, text: str
) -> None:
    start_s = terminal.world.monotonic_s()
    result = terminal.run("job", "run", "--follow", "--progress-timeout", "90s", write_file(tmp_path, text))
    elapsed_s = terminal.world.monotonic_s() - start_s

    assert result.code == 2, result
    assert "too little cpu on 1 node" in result.out
    assert "lower CPU of" in result.out
    name = "web" if text == TOO_LARGE else "sums"
    assert result.lines[-1] == (
        f"✗ {name}: no progress for 1m30s; 2 not placed; stopped watching; the job stays submitted: "
        f"`wharf job explain {name}` shows what it waits for, `wharf job stop {name}` stops it"
    )
    assert 90 <= elapsed_s < 95


def follow(terminal: Terminal, folder: Path, text: str, *options: str) -> CommandResult:
    return terminal.run("job", "run", "--follow", *options, write_file(folder, text))


def test_a_batch_job_that_runs_for_longer_than_the_time_without_progress_is_followed_to_its_end(
    terminal: Terminal, tmp_path: Path
) -> None:
    result = follow(terminal, tmp_path, BATCH.replace("CPU: 999999", "CPU: 100"), "--progress-timeout", "20s")

    assert (result.code, result.lines[-1]) == (0, "✓ sums: 2 of 2 allocations complete"), result


def test_a_job_that_gets_capacity_in_time_is_followed_to_its_success(terminal: Terminal, tmp_path: Path) -> None:
    blocker = WEB.replace("ID: web", "ID: blocker").replace("Count: 2", "Count: 1").replace("CPU: 100", "CPU: 3900")
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, blocker))
    terminal.wait(5)

    def purge() -> None:
        terminal.world.start_task(terminal.server.client.jobs.deregister("blocker"), name="stop blocker")

    terminal.loop.call_later(30, purge)
    result = follow(terminal, tmp_path, WEB.replace("CPU: 100", "CPU: 1900"), "--progress-timeout", "60s")

    assert result.code == 0, result
    assert "2 not placed" in result.out
    assert result.lines[-1] == "✓ web: deployment succeeded"


def test_a_deployment_that_nobody_promotes_is_followed_until_the_time_without_progress(
    terminal: Terminal, tmp_path: Path
) -> None:
    canary = WEB.replace("MinHealthyTime: 1s", f"Canary: 1, {SHORT_DEADLINES}")
    assert follow(terminal, tmp_path, canary).code == 0

    result = follow(terminal, tmp_path, canary.replace("CPU: 100", "CPU: 120"), "--progress-timeout", "90s")

    assert result.code == 3, result
    assert "the canaries are healthy: `wharf deployment promote" in result.out
    assert result.out.count("wharf deployment promote") == 1, result.out
    assert "no progress for 1m30s" in result.lines[-1]


def pause_scheduler(terminal: Terminal) -> None:
    terminal.run_ok("operator", "scheduler", "set-config", "--pause-eval-broker", "true")


@pytest.mark.parametrize("options", [[], ["--follow", "--progress-timeout", "5m"]], ids=["script", "follow"])
def test_a_job_whose_evaluation_is_not_processed_says_why_and_ends(
    terminal: Terminal, tmp_path: Path, options: list[str]
) -> None:
    pause_scheduler(terminal)

    result = terminal.run("job", "run", *options, write_file(tmp_path, WEB))

    assert result.code == 3, result
    assert "paused" in result.out + result.err
    assert "no progress for 5m" in result.out if options else "is still pending after 15m" in result.err


def test_a_job_that_lacks_capacity_while_scheduling_is_paused_shows_both_reasons(
    terminal: Terminal, tmp_path: Path
) -> None:
    terminal.run("job", "run", write_file(tmp_path, TOO_LARGE))
    pause_scheduler(terminal)

    result = follow(terminal, tmp_path, TOO_LARGE.replace("999999", "888888"), "--progress-timeout", "30s")

    assert result.code == 2, result
    assert "too little cpu on 1 node" in result.out
    assert "waits for the scheduler to be resumed: an operator paused it" in result.out


def test_a_follower_returns_after_an_outage_of_the_servers(terminal: Terminal, tmp_path: Path) -> None:
    terminal.set_away_later(True, after_s=20)
    terminal.set_away_later(False, after_s=80)

    result = follow(terminal, tmp_path, BATCH.replace("CPU: 999999", "CPU: 100"))

    assert (result.code, result.lines[-1]) == (0, "✓ sums: 2 of 2 allocations complete"), result
    assert result.err == ("wharf: no server at this address; trying again for up to 120 s; Ctrl-C ends the command\n")


@pytest.mark.parametrize("command", ["job", "deployment", "drain"])
def test_a_follower_ends_with_a_sentence_if_servers_do_not_return(
    terminal: Terminal, tmp_path: Path, command: str
) -> None:
    slow = WEB.replace("MinHealthyTime: 1s", "MinHealthyTime: 30m, HealthyDeadline: 40m, ProgressDeadline: 50m")
    file = write_file(
        tmp_path, slow.replace("{Name: main,", "{Name: main, KillTimeout: 30m, Config: {kill_after: 20m},")
    )
    words: tuple[str, ...] = ("job", "run", "--follow", file)
    if command != "job":
        terminal.run_ok("job", "run", "--detach", file)
        terminal.wait(20)
    if command == "deployment":
        words = ("deployment", "status", "--monitor", "web")
    elif command == "drain":
        words = ("node", "drain", "--enable", "--no-deadline", "node-1")
    terminal.set_away_later(True, after_s=20)
    start_s = terminal.world.monotonic_s()

    result = terminal.run(*words)

    assert result.code == 1, result
    assert result.err.splitlines()[-1].startswith("wharf: no reply for 120 s: no server at this address; ")
    assert 120 < terminal.world.monotonic_s() - start_s < 200


def test_a_drain_that_makes_no_progress_says_what_it_waits_for(terminal: Terminal, tmp_path: Path) -> None:
    slow = WEB.replace("{Name: main,", "{Name: main, KillTimeout: 2m, Config: {kill_after: 1m},")
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, slow))
    terminal.wait(20)

    result = terminal.run("node", "drain", "--enable", "--deadline", "3m", "node-1")

    assert result.code == 0, result
    assert result.err.count("waiting for web.api[") == 1
    assert "; the drain stops what remains at 20" in result.err


def resume_scheduler_later(terminal: Terminal, *, after_s: float) -> None:
    configuration = terminal.server.client.operator.set_scheduler_configuration(SchedulerConfiguration())
    terminal.loop.call_later(after_s, lambda: terminal.world.start_task(configuration, name="resume the scheduler"))


def test_a_command_waits_for_the_evaluation_that_replaced_its_own(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", write_file(tmp_path, WEB))
    pause_scheduler(terminal)
    replacement = terminal.run_ok("job", "eval", "--detach", "web").split()[2]
    resume_scheduler_later(terminal, after_s=0.5)

    result = terminal.run("job", "stop", "web")

    stopped, replaced, outcome = result.lines
    assert (result.code, stopped, outcome) == (0, "stopped job web", f"evaluation {replacement} is complete"), result
    assert replaced.endswith(f" was replaced by evaluation {replacement}")


def test_a_command_reports_the_shortage_of_the_evaluation_that_replaced_its_own(
    terminal: Terminal, tmp_path: Path
) -> None:
    terminal.run_ok("job", "run", write_file(tmp_path, WEB))
    pause_scheduler(terminal)
    terminal.run_ok("job", "eval", "--detach", "web")
    resume_scheduler_later(terminal, after_s=0.5)

    result = terminal.run("job", "run", write_file(tmp_path, TOO_LARGE))

    assert (result.code, "Not placed, waiting for capacity:" in result.lines) == (2, True), result


def test_an_evaluation_that_was_canceled_without_a_replacement_is_reported_as_canceled(
    terminal: Terminal, tmp_path: Path
) -> None:
    terminal.run_ok("job", "run", write_file(tmp_path, WEB))
    pause_scheduler(terminal)

    async def cancel() -> None:
        (evaluation,) = [each for each in terminal.server.replica.iter_all(EVALUATIONS) if each.status == "pending"]
        await commit(terminal.server, EVALUATIONS.build_put(replace(evaluation, status=EvaluationStatus.CANCELED)))

    terminal.loop.call_later(0.5, lambda: terminal.world.start_task(cancel(), name="cancel"))
    result = terminal.run("job", "stop", "web")

    assert (result.code, result.lines[-1].rpartition(" is ")[2]) == (0, "canceled"), result


@pytest.mark.parametrize("request_number", range(1, 12))
def test_a_followed_job_that_is_purged_between_two_requests_is_reported_as_deleted(
    terminal: Terminal, tmp_path: Path, request_number: int
) -> None:
    paths: list[str] = []

    def purge_before_one_request(path: str) -> None:
        if path.startswith(("/v1/job/", "/v1/evaluation")):
            paths.append(path)
        if len(paths) == request_number:
            terminal.before_request = lambda _path: None
            terminal.loop.run_until_complete(terminal.server.client.jobs.deregister("web", purge=True))

    terminal.before_request = purge_before_one_request
    result = follow(terminal, tmp_path, WEB.replace("MinHealthyTime: 1s", "MinHealthyTime: 60s"))

    assert "web: the job was purged or garbage-collected in the meantime" in result.out + result.err, result
    assert result.code == 1
