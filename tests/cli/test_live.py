"""What is seen of a job that is followed on a terminal."""

from pathlib import Path

import click
import pytest

from tests.cli.asking import WEB, Person, a_file, a_person
from wharf.cli.common.server_commands import Session
from wharf.cli.job.progress import ExitCode, fetch_progress, find_outcome
from wharf.cli.job.progress_view import find_nonempty_columns, render_progress
from wharf.contract.client import read_settings


def seen(person: Person, job: str, version: int, *, most: int = 10) -> list[str]:
    talk = Session(person, read_settings({}), is_json=False, template="", is_verbose=False)
    sight = fetch_progress(talk, job, "default", version)
    told = render_progress(sight, 5_000_000_000, talk, max_allocations=most, columns=find_nonempty_columns(sight))
    return click.unstyle(told).splitlines()


def test_a_rollout_is_seen_by_groups_allocations_and_health(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with a_person(capsys, nodes=2) as person:
        person.does("job", "run", "--follow", a_file(tmp_path, WEB))

        lines = seen(person, "web", 0)

    assert lines[0] == "web  service, version 0, for 5s"
    assert lines[1].endswith("2/2 healthy")
    assert "successful  Deployment completed successfully" in lines[2]
    assert [line.split() for line in lines[4:6]] == [["Group", "Wanted", "Running", "Healthy"], ["api", "2", "2", "2"]]
    assert [line.split()[4:6] for line in lines[8:10]] == [["running", "healthy"]] * 2


def test_what_has_no_place_and_what_awaits_promotion_are_seen_with_the_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with a_person(capsys, nodes=2) as person:
        person.does("job", "run", "--follow", a_file(tmp_path, WEB))
        canary = WEB.replace("MinHealthyTime", "Canary: 1, MinHealthyTime").replace("CPU: 100", "CPU: 120")
        person.does("job", "run", a_file(tmp_path, canary))
        person.wait(5)
        waiting = seen(person, "web", 1)
        large = WEB.replace("ID: web", "ID: large").replace("CPU: 100", "CPU: 900000")
        person.wharf("job", "run", a_file(tmp_path, large))
        unplaced = seen(person, "large", 0)

    assert waiting[1].split()[1:] == ["1/1", "canaries", "healthy", *waiting[1].split()[4:]]
    assert waiting[-1].startswith("The canaries are healthy. Go on with: wharf deployment promote ")
    assert unplaced[-3:] == [
        "Not placed, until there is room:",
        "  api: 2 not placed",
        "    · too little cpu on 2 nodes",
    ]


def test_many_allocations_are_cut_to_what_the_terminal_holds(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with a_person(capsys, nodes=2) as person:
        many = WEB.replace("Count: 2", "Count: 6").replace("CPU: 100", "CPU: 20")
        person.does("job", "run", "--follow", a_file(tmp_path, many))

        assert "… and 4 more" in seen(person, "web", 0, most=2)


def test_a_version_that_was_overtaken_is_no_success(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with a_person(capsys, nodes=2) as person:
        person.does("job", "run", a_file(tmp_path, WEB))
        person.does("job", "run", a_file(tmp_path, WEB.replace("CPU: 100", "CPU: 120")))
        talk = Session(person, read_settings({}), is_json=False, template="", is_verbose=False)

        end = find_outcome(fetch_progress(talk, "web", "default", 0))

    assert end is not None
    assert (end.exit, end.text) == (ExitCode.FAILED, "the rollout was given up: Cancelled due to newer version of job")
