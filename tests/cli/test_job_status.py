"""`wharf job status`: states of jobs, children, selections of the list, and `--watch`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import WEB, Terminal, open_terminal, write_file
from wharf.cli.common.record_tables import render_allocations
from wharf.cli.common.server_commands import RealCommandEnvironment, Session
from wharf.cli.job.views import select_allocations
from wharf.contract.client import ClientSettings
from wharf.contract.model.allocations.allocation import AllocationStub, ClientStatus, DesiredStatus
from wharf.contract.model.jobs.job import ChildrenSummary, GroupSummary, JobEnding, JobSummary
from wharf.contract.wire.jobs.messages import JobStub
from wharf.contract.wire.jobs.states import describe_children, describe_job_state

TEMPLATE = """
ID: train
Type: batch
ParameterizedJob: {MetaRequired: [seed]}
TaskGroups:
  - Name: model
    RestartPolicy: {Attempts: 0, Mode: fail}
    ReschedulePolicy: {Attempts: 0}
    Tasks:
      - {Name: main, Driver: mock, Config: {run_for: 1s, exit_code: 0}, Resources: {CPU: 100, MemoryMB: 32}}
"""


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with open_terminal(capsys, nodes=1) as opened:
        yield opened


def make_stub(*, status: str = "running", type: str = "service", count: int = 3, **fields: Any) -> JobStub:
    numbers = {name: fields.pop(name) for name in list(fields) if name in GroupSummary.__struct_fields__}
    summary = JobSummary(job_id="web", namespace="default", summary={"api": GroupSummary(**numbers)})
    return JobStub(id="web", status=status, type=type, group_count_sum=count, job_summary=summary, **fields)


def make_run(outcome: JobEnding) -> JobStub:
    """An ended job with steps, of which one ran twice: the counts of its allocations do not show how it ended."""
    summary = JobSummary(
        job_id="web", namespace="default", summary={"a": GroupSummary(complete=1, failed=1)}, outcome=outcome.value
    )
    return JobStub(id="web", status="dead", type="batch", group_count_sum=1, job_summary=summary)


def make_parent(**children: int) -> JobStub:
    summary = JobSummary(job_id="web", namespace="default", children=ChildrenSummary(**children))
    return JobStub(id="web", status="running", parameterized_job=True, job_summary=summary)


@pytest.mark.parametrize(
    ("job", "state"),
    [
        (make_stub(running=3), "running"),
        (make_stub(running=2, starting=1), "starting"),
        (make_stub(running=2, queued=1), "waiting"),
        (make_stub(running=2), "waiting"),
        (make_stub(queued=3), "pending"),
        (make_stub(status="pending"), "pending"),
        (make_stub(running=2, unknown=1), "waiting"),
        (make_stub(status="dead", stop=True, complete=3), "stopped"),
        (make_stub(stop=True, running=1, complete=2), "stopping"),
        (make_stub(status="dead", failed=3), "failed"),
        (make_stub(status="dead", type="batch", complete=2, failed=4), "failed"),
        (make_stub(status="dead", type="batch", complete=3, failed=1), "complete"),
        (make_stub(status="dead", type="batch", complete=2, lost=1), "failed"),
        (make_stub(status="dead", type="sysbatch", complete=2, lost=1), "failed"),
        (make_stub(status="dead", type="batch"), "dead"),
        (make_stub(type="batch", running=1, queued=9), "running"),
        (make_stub(type="batch", queued=9), "pending"),
        (make_stub(type="batch", starting=2), "starting"),
        (make_stub(type="batch", unknown=2), "running"),
        (make_stub(type="batch", periodic=True), "scheduled"),
        (make_stub(type="batch", parameterized_job=True), "ready"),
        (make_parent(pending=1, running=2), "waiting"),
        (make_stub(type="batch", status="dead", parameterized_job=True, stop=True), "stopped"),
        (make_run(JobEnding.SUCCEEDED), "complete"),
        (make_run(JobEnding.WITH_FAILURES), "succeeded with failures"),
        (make_run(JobEnding.FAILED), "failed"),
        (make_run(JobEnding.CANCELED), "canceled"),
        (make_run(JobEnding.SKIPPED), "skipped"),
    ],
)
def test_the_state_of_a_job_says_whether_it_waits_or_failed(job: JobStub, state: str) -> None:
    assert describe_job_state(job) == state


class Plain(Session):
    """A session without servers, for texts that need none."""

    def __init__(self) -> None:
        super().__init__(RealCommandEnvironment(), ClientSettings(), is_json=False, template="", is_verbose=False)


def list_names(table: str) -> list[str]:
    return [line.split()[1] for line in table.splitlines()[1:] if "web.g" in line]


def make_allocations(count: int, *, failed: int) -> list[AllocationStub]:
    """Return allocations of one group, of which the one with the index `failed` failed."""
    return [
        AllocationStub(
            id=f"{index:032}", name=f"web.g[{index}]", create_index=7, desired_status=DesiredStatus.RUN,
            client_status=ClientStatus.FAILED if index == failed else ClientStatus.RUNNING,
        )
        for index in range(count)
    ]  # fmt: skip


def test_allocations_of_one_time_are_in_the_order_of_their_numbers() -> None:
    table = render_allocations(Plain(), make_allocations(12, failed=11))

    assert list_names(table) == [f"web.g[{index}]" for index in range(12)]


def test_a_long_table_of_allocations_begins_with_failed_ones_and_says_how_many_are_left_out() -> None:
    table = render_allocations(
        Plain(), make_allocations(2_000, failed=1_234), max_rows=3, list_command="wharf job allocs web"
    )

    assert list_names(table) == ["web.g[1234]", "web.g[0]", "web.g[1]"]
    assert table.endswith("\n… and 1,997 more: `wharf job allocs web` lists all")


def test_allocations_are_selected_by_status_and_number() -> None:
    allocations = make_allocations(12, failed=3)

    assert [each.name for each in select_allocations(allocations, status="failed", limit=None)] == ["web.g[3]"]
    assert [each.name for each in select_allocations(allocations, status=None, limit=2)] == ["web.g[0]", "web.g[1]"]


def test_children_are_counted_by_state() -> None:
    assert describe_children(make_parent(pending=0, running=2, dead=40)) == "2 running, 40 ended"


def dispatch_children(terminal: Terminal, folder: Path) -> None:
    terminal.run_ok("job", "run", write_file(folder, TEMPLATE))
    terminal.run_ok("job", "dispatch", "--detach", "--meta", "seed=1", "train")
    terminal.run_ok("job", "run", write_file(folder, TEMPLATE.replace("exit_code: 0", "exit_code: 3")))
    terminal.run_ok("job", "dispatch", "--detach", "--meta", "seed=2", "train")
    terminal.wait(20)


def test_the_list_folds_children_to_counts_and_shows_them_with_meta_and_outcome_on_request(
    terminal: Terminal, tmp_path: Path
) -> None:
    dispatch_children(terminal, tmp_path)

    folded = terminal.run_ok("job", "status").splitlines()
    listed = terminal.run_ok("job", "status", "--children").splitlines()
    shown = terminal.run_ok("job", "status", "train").splitlines()

    assert [line.split()[0] for line in folded[1:]] == ["train"]
    assert "2 ended" in folded[1]
    outcomes = {line.split()[3]: line for line in listed[1:] if line.startswith("train/")}
    assert ("seed=1" in outcomes["complete"], "seed=2" in outcomes["failed"]) == (True, True)
    assert shown[shown.index("Children") + 2].split() == ["0", "0", "2", "1"]


def test_the_status_of_a_dispatched_child_has_its_groups_and_arrays(terminal: Terminal, tmp_path: Path) -> None:
    array = "  - {Name: sweep, Array: {Size: 3}, Tasks: [{Name: main, Driver: mock, Config: {run_for: 1s}}]}\n"
    terminal.run_ok("job", "run", write_file(tmp_path, TEMPLATE + array))
    terminal.run_ok("job", "dispatch", "--detach", "--meta", "seed=1", "train")
    terminal.wait(20)
    child = terminal.run_ok("job", "status", "--children", "--format", "{{range .}}{{.ID}} {{end}}").split()[-1]

    shown = terminal.run_ok("job", "status", child).splitlines()

    assert "Children" not in shown
    assert shown[shown.index("Groups") + 2].split()[:2] == ["model", "1"]
    assert shown[shown.index("Arrays") + 2].split() == ["sweep", "3", "0", "0", "3", "0"]


def test_jobs_are_selected_by_their_state_and_the_newest_can_be_listed(terminal: Terminal, tmp_path: Path) -> None:
    dispatch_children(terminal, tmp_path)
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, WEB))
    terminal.wait(20)

    failed = terminal.run_ok("job", "status", "--children", "--status", "failed").splitlines()
    running = terminal.run_ok("job", "status", "--status", "running", "--format", "{{range .}}{{.ID}} {{end}}")
    newest = terminal.run("job", "status", "--limit", "1")

    assert [line.split()[3] for line in failed[1:]] == ["failed"]
    assert running.split() == ["web"]
    assert [line.split()[0] for line in newest.lines[1:]] == ["web"]
    assert newest.err == "the newest 1 of 2 jobs\n"


def test_a_user_lists_the_own_jobs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with open_terminal(capsys, access=True) as terminal:
        management = terminal.run_ok("acl", "bootstrap", "-t", "{{.SecretID}}").strip()
        options = ("--token", management)
        terminal.run_ok("job", "run", *options, "--detach", write_file(tmp_path, WEB))
        made = terminal.run_ok(
            "acl", "token", "create", *options, "--type", "management", "--format", "{{.SecretID}}"
        ).strip()
        terminal.run_ok("job", "run", "--token", made, "--detach", write_file(tmp_path, WEB.replace("web", "shop")))

        listed = terminal.run_ok("job", "status", "--token", made, "--mine", "--format", "{{range .}}{{.ID}} {{end}}")
        unknown = terminal.run("job", "status", "--mine", "--token", "11111111-2222-3333-4444-555555555555")

    assert listed.split() == ["shop"]
    assert unknown.err.startswith("wharf: --mine needs a token")


def test_without_access_control_no_job_has_a_submitter(terminal: Terminal) -> None:
    result = terminal.run("job", "status", "--mine")

    assert (result.code, result.err) == (1, "wharf: --mine needs a token: without one, jobs have no submitter\n")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("web", "--mine"), "--mine selects jobs of the list"),
        (("web", "--status", "failed"), "--status selects jobs of the list"),
        (("--watch",), "--watch needs a terminal"),
    ],
)
def test_an_option_that_does_not_fit_is_an_error(terminal: Terminal, words: tuple[str, ...], text: str) -> None:
    result = terminal.run("job", "status", *words)

    assert (result.code, text in result.err) == (1, True), result


@pytest.mark.parametrize("request_number", range(1, 10))
def test_the_status_of_a_job_that_ends_between_two_requests_agrees_with_its_allocations(
    terminal: Terminal, tmp_path: Path, request_number: int
) -> None:
    ends = WEB.replace("TaskGroups", "Type: batch\nTaskGroups").replace(
        "Update: {MinHealthyTime: 1s}", "Reschedule: {}"
    )
    ends = ends.replace("    Reschedule: {}\n", "").replace("Driver: mock", "Driver: mock, Config: {run_for: 20s}")
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, ends))
    terminal.wait(5)
    paths: list[str] = []

    def end_before_one_request(path: str) -> None:
        paths.append(path)
        if len(paths) == request_number:
            terminal.before_request = lambda _path: None
            terminal.wait(60)

    terminal.before_request = end_before_one_request
    lines = terminal.run_ok("job", "status", "web").splitlines()

    status = next(line.split()[1] for line in lines if line.startswith("Status"))
    shown = [line.split() for line in lines[lines.index("Allocations") + 1 :]]
    assert {"running": 0, "complete": 2}[status] == sum("complete" in words for words in shown), lines


@pytest.mark.parametrize("request_number", range(2, 10))
def test_the_status_of_a_job_that_is_purged_between_two_requests_names_the_job(
    terminal: Terminal, tmp_path: Path, request_number: int
) -> None:
    terminal.run_ok("job", "run", write_file(tmp_path, WEB))
    paths: list[str] = []

    def purge_before_one_request(path: str) -> None:
        paths.append(path)
        if len(paths) == request_number:
            terminal.before_request = lambda _path: None
            terminal.loop.run_until_complete(terminal.server.client.jobs.deregister("web", purge=True))

    terminal.before_request = purge_before_one_request
    result = terminal.run("job", "status", "web")

    if len(paths) < request_number:
        assert result.code == 0
    else:
        assert result.errors == [
            "wharf: web: the job was purged or garbage-collected in the meantime; `wharf job status` lists all jobs"
        ]
