"""The logs and files of all allocations of a job, read by commands from a real node that is not the server."""

import json
import os
import re
import select
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S
from tests.node.nodes import NodeProcess, build_raw_job, run_node, run_server
from tests.notices import remove_notices
from tests.waiting import wait_until

COUNT = 12
FAILED = (3, 7)
SCRIPT = """
i=$NOMAD_ALLOC_INDEX; out=$NOMAD_ALLOC_DIR/data/out
echo "begin $i"; echo "end $i"
case $i in 3|7) echo "trouble $i" >&2; exit 1;; esac
mkdir -p $out/plots/empty
echo "result $i" > $out/result.txt
printf '#!/bin/sh\\n' > $out/plots/again.sh; chmod 755 $out/plots/again.sh
: > $out/plots/nothing
ln -s /etc/passwd $out/link
"""
LONG_SCRIPT = "seq 1 200000; seq 1 200000 >&2"
FAST_SCRIPT = (
    'i=0; while :; do i=$((i+1)); printf "%09d %0$((i % 7 + 30))d\\n" $i 0; [ $((i % 50)) != 0 ] || sleep 0.02; done'
)
"""Prints up to 2,500 lines of seven lengths in a second. The log is rotated away after more than a minute, which no slow reader needs."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("output")
    with run_server(folder / "server") as server, run_node(server, folder / "node") as node:
        yield node


@pytest.fixture(scope="module")
def many(node: NodeProcess) -> str:
    """A job with twelve allocations that have ended, two of them failed."""
    return run_to_end(node, build_raw_job("many", SCRIPT, count=COUNT))


def run_to_end(node: NodeProcess, job: dict[str, Any]) -> str:
    node.run(job)
    id, count = str(job["ID"]), job["TaskGroups"][0]["Count"]
    wait_until(
        lambda: [a["ClientStatus"] in ("complete", "failed") for a in node.allocations(id)] == [True] * count,
        what=f"all allocations of {id} have ended",
        within_s=60,
    )
    return id


def run_wharf(node: NodeProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "wharf", *arguments]
    process = subprocess.run(
        command,
        env=build_environment(node),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=ANSWERED_WITHIN_S,
        check=False,
    )
    process.stderr = remove_notices(process.stderr)
    return process


def build_environment(node: NodeProcess) -> dict[str, str]:
    return {**os.environ, "WHARF_ADDR": node.server.address, "NO_COLOR": "1"}


def list_indexes(output: str) -> list[int]:
    """Return the index of the allocation of each line, once for consecutive lines of the same allocation."""
    indexes = [int(index) for index in re.findall(r"^\S+ g\[(\d+)\]", output, re.MULTILINE)]
    return [index for position, index in enumerate(indexes) if indexes[position - 1 : position] != [index]]


# -- logs


def test_logs_are_printed_in_the_order_of_indexes(node: NodeProcess, many: str) -> None:
    assert list(range(COUNT)) == list_indexes(run_wharf(node, "job", "logs", many).stdout)


def test_the_prefixes_of_all_lines_are_aligned(node: NodeProcess, many: str) -> None:
    lines = run_wharf(node, "job", "logs", many).stdout.splitlines()

    assert 1 == len({re.search(r"begin|end|trouble", line).start() for line in lines})  # type: ignore[union-attr]
    assert lines[0][9:] == "g[0]  t  begin 0"


def test_standard_error_follows_the_standard_output_of_an_allocation(node: NodeProcess, many: str) -> None:
    lines = run_wharf(node, "job", "logs", many, "--index", "7").stdout.splitlines()

    assert ["g[7] t  begin 7", "g[7] t  end 7", "g[7] t! trouble 7"] == [line[9:] for line in lines]


@pytest.mark.parametrize(
    ("options", "indexes"),
    [
        (("--index", "5"), [5]),
        (("--index", "2-3,11"), [2, 3, 11]),
        (("--failed",), [*FAILED]),
        (("--failed", "--index", "0-5"), [3]),
        (("--stderr",), [*FAILED]),
        (("--since", "1h", "-n", "1"), [*range(COUNT)]),
        (("--since", "1ns"), []),
    ],
)
def test_options_select_allocations(node: NodeProcess, many: str, options: tuple[str, ...], indexes: list[int]) -> None:
    assert indexes == list_indexes(run_wharf(node, "job", "logs", many, *options).stdout)


def test_the_last_lines_of_each_log_are_printed(node: NodeProcess, many: str) -> None:
    output = run_wharf(node, "job", "logs", many, "-n", "1", "--stdout").stdout

    assert [f"end {index}" for index in range(COUNT)] == [line.rpartition("t  ")[2] for line in output.splitlines()]


@pytest.mark.parametrize("text", ["x", "3-1", "1-", "-1", "1;2", ""])
def test_an_invalid_index_is_refused(node: NodeProcess, many: str, text: str) -> None:
    process = run_wharf(node, "job", "logs", many, "--index", text)

    assert (True, "") == (process.returncode != 0, process.stdout)
    assert f"expected indexes such as 3, 0-9 or 0-9,20, got {text}" in process.stderr


def test_logs_that_are_larger_than_the_memory_for_reading_ahead_are_complete(node: NodeProcess) -> None:
    id = run_to_end(node, build_raw_job("long", LONG_SCRIPT, count=2))

    lines = run_wharf(node, "job", "logs", id).stdout.splitlines()

    expected = [
        f"g[{index}] t{mark} {number}" for index in (0, 1) for mark in (" ", "!") for number in range(1, 200_001)
    ]
    assert expected == [line[9:] for line in lines]


def test_one_warning_reports_all_logs_that_nodes_no_longer_have(node: NodeProcess) -> None:
    id = run_to_end(node, build_raw_job("gone", "echo output", count=3))
    for allocation in node.allocations(id):
        request = urllib.request.Request(
            f"{node.server.address}/v1/client/allocation/{allocation['ID']}/gc", method="PUT"
        )
        urllib.request.urlopen(request, timeout=ANSWERED_WITHIN_S).close()

    process = run_wharf(node, "job", "logs", id)

    warning = (
        "wharf: the nodes of 3 allocations no longer have these files, or do not reply; "
        "showing the last lines kept by the servers\n"
    )
    assert (3, warning) == (process.stdout.count("output"), process.stderr)


@pytest.mark.parametrize("command", ["job", "alloc"])
def test_following_the_last_lines_cuts_no_line_and_misses_none(node: NodeProcess, command: str) -> None:
    id = f"fast-{command}"
    node.run(build_raw_job(id, FAST_SCRIPT, kind="service"))
    wait_until(lambda: [a["ClientStatus"] for a in node.allocations(id)] == ["running"], what="the task runs")
    alloc = str(node.allocations(id)[0]["ID"])
    arguments, prefix = (
        (("job", "logs", id), f"{alloc[:8]} g[0] t  ") if command == "job" else (("alloc", "logs", alloc), "")
    )
    try:
        for _ in range(3):
            lines = read_lines(node, 1_000, *arguments, "-n", "3", "-f")
            first = int(lines[0].split()[-2])
            expected = [f"{number:09d} {0:0{number % 7 + 30}d}" for number in range(first, first + len(lines))]
            assert expected == [line.removeprefix(prefix) for line in lines]
    finally:
        urllib.request.urlopen(
            urllib.request.Request(f"{node.server.address}/v1/job/{id}", method="DELETE"), timeout=ANSWERED_WITHIN_S
        ).close()


def read_lines(node: NodeProcess, count: int, *arguments: str) -> list[str]:
    """Return the first lines that a command prints, and end it."""
    with subprocess.Popen(
        [sys.executable, "-m", "wharf", *arguments],
        env=build_environment(node),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            return [process.stdout.readline().rstrip("\n") for _ in range(count)]
        finally:
            process.kill()


# -- names instead of ids


def test_an_allocation_is_found_by_its_name(node: NodeProcess, many: str) -> None:
    assert "begin 5\nend 5\n" == run_wharf(node, "alloc", "logs", f"{many}.g[5]").stdout
    assert "many.g[5]" in run_wharf(node, "alloc", "status", f"{many}.g[5]").stdout
    assert "many.g[5]" in run_wharf(node, "status", f"{many}.g[5]").stdout
    assert "result 5\n" == run_wharf(node, "alloc", "fs", "cat", f"{many}.g[5]", "alloc/data/out/result.txt").stdout


def test_an_allocation_is_found_by_the_beginning_of_its_name_if_that_is_unique(node: NodeProcess, many: str) -> None:
    assert "begin 5\nend 5\n" == run_wharf(node, "alloc", "logs", f"{many}.g[5").stdout
    ambiguous = run_wharf(node, "alloc", "logs", f"{many}.g[1").stderr
    assert "many.g[1 matches 3 allocations" in ambiguous
    assert ["many.g[1]", "many.g[10]", "many.g[11]"] == re.findall(r"many\.g\[\d+\]", ambiguous)


def test_an_unknown_name_of_an_allocation_is_reported(node: NodeProcess, many: str) -> None:
    assert f"allocation {many}.g[99] does not exist" in run_wharf(node, "alloc", "logs", f"{many}.g[99]").stderr


# -- the end of a log in the status


def test_the_status_of_a_failed_allocation_shows_the_end_of_its_log(node: NodeProcess, many: str) -> None:
    failed = run_wharf(node, "alloc", "status", f"{many}.g[3]").stdout
    complete = run_wharf(node, "alloc", "status", f"{many}.g[5]").stdout

    assert ("  │ trouble 3\n" in failed, "end 5" in complete) == (True, False)


# -- files


def list_files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def test_files_of_all_allocations_are_fetched_to_a_folder_for_each(
    node: NodeProcess, many: str, tmp_path: Path
) -> None:
    process = run_wharf(node, "job", "fetch", many, "alloc/data/out", "--index", "4-5", "--to", str(tmp_path))

    names = ["plots/again.sh", "plots/nothing", "result.txt"]
    assert [f"g-{index}/out/{name}" for index in (4, 5) for name in names] == list_files(tmp_path)
    assert ["result 4\n", "result 5\n"] == [(tmp_path / f"g-{i}/out/result.txt").read_text() for i in (4, 5)]
    assert (tmp_path / "g-4/out/plots/empty").is_dir()
    assert os.access(tmp_path / "g-4/out/plots/again.sh", os.X_OK)
    assert (
        f"fetched 6 files (38 bytes) of 2 allocations into {tmp_path}/; left out 2 links, special files and secrets\n"
        == process.stdout
    )
    assert (0, "") == (process.returncode, process.stderr)


def test_the_files_of_one_allocation_need_no_folder_of_their_own(node: NodeProcess, many: str, tmp_path: Path) -> None:
    run_wharf(node, "job", "fetch", many, "alloc/data/out/result.txt", "--index", "5", "--to", str(tmp_path / "new"))

    assert ["result.txt"] == list_files(tmp_path / "new")


def test_a_repeated_fetch_downloads_only_what_is_missing(node: NodeProcess, many: str, tmp_path: Path) -> None:
    words = ("job", "fetch", many, "alloc/data/out", "--index", "4-5", "--to", str(tmp_path), "--json")
    run_wharf(node, *words)
    (tmp_path / "g-5/out/result.txt").unlink()

    results = json.loads(run_wharf(node, *words).stdout)

    assert [("many.g[4]", 3, 3), ("many.g[5]", 3, 2)] == [
        (each["Name"], each["Files"], each["UnchangedFiles"]) for each in results
    ]
    assert "result 5\n" == (tmp_path / "g-5/out/result.txt").read_text()


def test_a_local_file_that_differs_is_replaced_only_on_request(node: NodeProcess, many: str, tmp_path: Path) -> None:
    words = ("job", "fetch", many, "alloc/data/out/result.txt", "--index", "5", "--to", str(tmp_path))
    own = tmp_path / "result.txt"
    own.write_text("my own notes")

    refused = run_wharf(node, *words)
    kept = own.read_text()
    replaced = run_wharf(node, *words, "--overwrite")

    assert (1, "my own notes") == (refused.returncode, kept)
    assert f"many.g[5]: {own} exists and differs: add --overwrite, or another --to" in refused.stderr
    assert (0, "result 5\n") == (replaced.returncode, own.read_text())


def test_a_fetch_names_the_allocations_without_such_a_file(node: NodeProcess, many: str, tmp_path: Path) -> None:
    process = run_wharf(node, "job", "fetch", many, "alloc/data/out", "--to", str(tmp_path))

    assert (1, [f"g-{i}" for i in range(COUNT) if i not in FAILED]) == (
        process.returncode,
        sorted(os.listdir(tmp_path), key=lambda name: int(name[2:])),
    )
    assert 'wharf: many.g[3], many.g[7]: file "alloc/data/out" does not exist\n' == process.stderr


def test_a_fetch_of_a_whole_allocation_leaves_out_secrets(node: NodeProcess, many: str, tmp_path: Path) -> None:
    process = run_wharf(node, "job", "fetch", many, "/", "--index", "5", "--to", str(tmp_path))

    assert 0 == process.returncode, process.stderr
    assert "begin 5\nend 5\n" == (tmp_path / "alloc/logs/t.stdout.0").read_text()


# -- completion in shells


@pytest.fixture(scope="module")
def mixed(node: NodeProcess) -> str:
    """A job whose allocations 0 and 1 have ended, and whose allocation 2 runs."""
    node.run(build_raw_job("mixed", "[ $NOMAD_ALLOC_INDEX != 2 ] || exec sleep 1000", count=3))
    wait_until(
        lambda: sorted(a["ClientStatus"] for a in node.allocations("mixed")) == ["complete", "complete", "running"],
        what="two allocations have ended and one runs",
    )
    return "mixed"


@pytest.fixture(scope="module")
def shell_environment(node: NodeProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with the command `wharf`, and its completion scripts as the files `bash`, `zsh` and `fish`."""
    folder = tmp_path_factory.mktemp("shell")
    command = folder / "wharf"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m wharf "$@"\n')
    command.chmod(0o755)
    for shell in ("bash", "zsh", "fish"):
        (folder / shell).write_text(run_wharf(node, "completion", shell).stdout)
    path = f"{folder}:{os.environ['PATH']}"
    return {**build_environment(node), "PATH": path, "HOME": str(folder), "SCRIPTS": str(folder), "TERM": "dumb"}


def run_shell(environment: dict[str, str], *command: str) -> str:
    return subprocess.run(
        command,
        env=environment,
        cwd=environment["HOME"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=ANSWERED_WITHIN_S,
        check=True,
    ).stdout


MIXED = ["mixed.g[2]", "mixed.g[0]", "mixed.g[1]"]
"""The names in the order in which they are offered: the running one first."""


def test_bash_completes_names_of_allocations(shell_environment: dict[str, str], mixed: str) -> None:
    script = f"""
        source $SCRIPTS/bash; COMP_WORDS=(wharf alloc logs {mixed}); COMP_CWORD=3
        _wharf_completion wharf; printf '%s\\n' "${{COMPREPLY[@]}}"
    """

    assert MIXED == run_shell(shell_environment, "bash", "-c", script).split()


@pytest.mark.needs_program("fish")
def test_fish_completes_names_of_allocations(shell_environment: dict[str, str], mixed: str) -> None:
    output = run_shell(shell_environment, "fish", "-c", f"source $SCRIPTS/fish; complete -C 'wharf alloc logs {mixed}'")

    assert MIXED == [line.split("\t")[0] for line in output.splitlines()]
    assert output.splitlines()[0].endswith("running")


@pytest.mark.needs_program("zsh")
def test_zsh_completes_and_quotes_names_of_allocations(shell_environment: dict[str, str], mixed: str) -> None:
    controller, terminal = os.openpty()
    process = subprocess.Popen(
        ["zsh", "-f", "-i"],
        env=shell_environment,
        cwd=shell_environment["HOME"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    output = bytearray()

    def has_printed(text: bytes) -> bool:
        while select.select([controller], [], [], 0)[0]:
            output.extend(os.read(controller, 4096))
        return text in output

    try:
        os.write(controller, b"autoload -U compinit; compinit -u -D; source $SCRIPTS/zsh; PS1=; echo is''_ready\n")
        wait_until(lambda: has_printed(b"is_ready"), what="zsh has read the script", within_s=ANSWERED_WITHIN_S)
        os.write(controller, f"echo=1; wharf alloc logs {mixed}.g\t".encode())
        wait_until(lambda: has_printed(b"mixed.g\\["), what="zsh has completed the name", within_s=ANSWERED_WITHIN_S)
    finally:
        process.kill()
        process.wait()
        os.close(controller)
