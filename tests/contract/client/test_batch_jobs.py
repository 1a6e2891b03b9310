"""Batch work without a job file: indexes, amounts, scripts, and the job that is built from them. Pure."""

import subprocess
from typing import Any

import pytest

from wharf.contract.client import ClientSettings, connect
from wharf.contract.client.batch.amounts import AmountError, parse_memory_mb, parse_time_ns
from wharf.contract.client.batch.array_indexes import ArrayError, ArrayIndexes, format_indexes, parse_array
from wharf.contract.client.batch.job_builder import (
    MAX_SCRIPT_BYTES,
    BatchRequest,
    Script,
    ScriptError,
    build_batch_job,
    build_job_name,
    choose_script_name,
    escape_references,
    read_script,
)
from wharf.contract.client.batch.needs import parse_needs
from wharf.contract.client.batch.submission import BatchJob, _list_needed
from wharf.contract.model.decoding import convert_object
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.times import HOUR


@pytest.mark.parametrize(
    ("text", "indexes", "max_running"),
    [
        ("0-4", (0, 1, 2, 3, 4), 0),
        ("0-4%2", (0, 1, 2, 3, 4), 2),
        ("7", (7,), 0),
        ("1,3,7-9", (1, 3, 7, 8, 9), 0),
        ("0-10:5", (0, 5, 10), 0),
        ("3,1,3", (1, 3), 0),
        ("1-9:4,2%1", (1, 2, 5, 9), 1),
    ],
)
def test_indexes_of_an_array(text: str, indexes: tuple[int, ...], max_running: int) -> None:
    assert parse_array(text) == ArrayIndexes(indexes, max_running)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "expected indexes such as 0-499"),
        ("a", "expected indexes such as 0-499"),
        ("-5", "expected indexes such as 0-499"),
        ("1:2", "expected indexes such as 0-499"),
        ("5-1", "range 5-1 ends before it begins"),
        ("0-9:0", "range 0-9:0 has the step 0"),
        ("0-9%0", "expected a number above 0 after %"),
        ("0-9%", "expected a number above 0 after %"),
        ("0-100000", "an array has at most 100,000 elements"),
        ("1-60000", "an array whose indexes do not begin at 0 has at most 50,000 elements"),
        ("2000000000", "index 2000000000 is larger than"),
    ],
)
def test_what_is_no_list_of_indexes_is_an_error(text: str, expected: str) -> None:
    with pytest.raises(ArrayError, match=expected):
        parse_array(text)


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("0-99999", {"Size": 100_000}),
        ("0-4%2", {"Size": 5, "MaxRunning": 2}),
        ("5-7", {"Items": ["5", "6", "7"]}),
        ("0-4:2", {"Items": ["0", "2", "4"]}),
    ],
)
def test_indexes_that_the_cluster_does_not_count_become_items(text: str, block: dict[str, Any]) -> None:
    assert parse_array(text).build_block() == block


def test_indexes_are_shown_as_ranges() -> None:
    assert format_indexes((4, 0, 1, 2, 9, 8)) == "0-2,4,8-9"


@pytest.mark.parametrize(
    ("text", "amount_mb"),
    [
        ("4G", 4_096),
        ("512M", 512),
        ("512", 512),
        ("1T", 1_048_576),
        ("2048K", 2),
        ("1K", 1),
        ("2GiB", 2_048),
        ("2gb", 2_048),
    ],
)
def test_amounts_of_memory(text: str, amount_mb: int) -> None:
    assert parse_memory_mb(text) == amount_mb


@pytest.mark.parametrize("text", ["", "G", "4X", "-1", "1.5G", "9999999T"])
def test_what_is_no_amount_of_memory_is_an_error(text: str) -> None:
    with pytest.raises(AmountError):
        parse_memory_mb(text)


def test_a_time_limit_is_above_0() -> None:
    assert parse_time_ns("2h") == 2 * HOUR
    for text in ("0", "-1h", "2 hours"):
        with pytest.raises(AmountError):
            parse_time_ns(text)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"echo", "the first line must begin with #!"),
        (b"#!/bin/sh\r\necho\r\n", "carriage returns"),
        (b"\x7fELF\x02\x01\xff", "not text in UTF-8"),
        (b"#!/bin/sh\n\0", "zero byte"),
        (b"#!/bin/sh\n" + b"x" * MAX_SCRIPT_BYTES, "at most 262,144 travel with a job"),
    ],
)
def test_a_file_that_no_node_could_run_is_an_error(raw: bytes, expected: str) -> None:
    with pytest.raises(ScriptError, match=expected):
        read_script("x.sh", raw)


@pytest.mark.parametrize(
    ("path", "file", "job"),
    [
        ("train.sh", "train.sh", "train"),
        ("a/b/my train.py", "my_train.py", "my-train"),
        ("v1.2", "v1.2", "v1"),
        (".hidden", "hidden", "hidden"),
        ("ü", "script", "job"),
    ],
)
def test_names_of_scripts_and_their_jobs(path: str, file: str, job: str) -> None:
    assert read_script(path, b"#!/bin/sh\n").name == file
    assert choose_script_name(path) == job


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("${HOME}", "$${HOME}"),
        ("$HOME $$", "$HOME $$"),
        ("${WHARF_ARRAY_INDEX}", "${WHARF_ARRAY_INDEX}"),
        ("${NOMAD_ALLOC_ID}-${x:-${y}}", "${NOMAD_ALLOC_ID}-${x:-$${y}}"),
        ("${WHARF_X:-1}", "$${WHARF_X:-1}"),
        ("$${a}", "$$${a}"),
    ],
)
def test_the_node_replaces_its_own_variables_and_no_others(written: str, sent: str) -> None:
    assert escape_references(written) == sent


def build(**fields: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {"id": "a-1", "name": "a", "driver": "raw_exec"}
    return build_batch_job(BatchRequest(**{**defaults, **fields}))


def get_task(job: dict[str, Any]) -> dict[str, Any]:
    task: dict[str, Any] = job["TaskGroups"][0]["Tasks"][0]
    return task


def test_a_script_travels_as_a_file_in_the_working_folder_of_its_task() -> None:
    task = get_task(build(script=Script("run.sh", "#!/bin/sh\n{{ <% $(x) \n"), arguments=("a b", "${HOME}")))

    (template,) = task["Templates"]
    assert task["Config"] == {
        "command": "${WHARF_TASK_DIR}/run.sh",
        "args": ["a b", "$${HOME}"],
        "work_dir": "${WHARF_TASK_DIR}",
    }
    assert (template["DestPath"], template["Perms"]) == ("local/run.sh", "0755")
    assert template["EmbeddedTmpl"] == "#!/bin/sh\n{{ <% $(x) \n"
    assert template["LeftDelim"] not in template["EmbeddedTmpl"]


def test_a_command_is_not_repeated_after_a_failure() -> None:
    job = build(arguments=("sleep", "5"), cores=2, memory_mb=64, time_ns=HOUR, priority=70, node_pool="gpu")

    (group,) = job["TaskGroups"]
    assert get_task(job)["Config"] == {"command": "sleep", "args": ["5"], "work_dir": "${WHARF_TASK_DIR}"}
    assert get_task(job)["Resources"] == {"Cores": 2, "MemoryMB": 64}
    assert group["RestartPolicy"]["Attempts"] == group["ReschedulePolicy"]["Attempts"] == 0
    assert (job["Type"], job["Priority"], job["NodePool"], group["MaxRunDuration"]) == ("batch", 70, "gpu", HOUR)


def test_the_job_of_a_request_with_everything_can_be_decoded() -> None:
    document = build(
        script=Script("run.sh", "#!/bin/sh\n"),
        array=parse_array("5-9%2"),
        fail_fast=True,
        devices=({"Name": "gpu", "Count": 1},),
        env={"A": "${B}"},
        node_env={"A": "1", "SLURM_JOB_ID": "${WHARF_JOB_ID}"},
        constraints=({"LTarget": "${node.class}", "Operand": "=", "RTarget": "x"},),
        kill_signal="SIGUSR1",
        kill_timeout_ns=HOUR,
        replaces_lost=False,
        disk_mb=500,
        meta={"account": "x"},
        description="text",
    )

    job = convert_object(Job, document).value
    assert job.groups[0].array is not None
    assert job.groups[0].array.items == ("5", "6", "7", "8", "9")
    assert get_task(document)["Env"] == {"A": "$${B}", "SLURM_JOB_ID": "${WHARF_JOB_ID}"}


@pytest.mark.parametrize(
    ("files", "out", "err"),
    [
        ({"output_file": "o/x"}, "1\n2\n", None),
        ({"output_file": "o/x", "error_file": "e/y"}, "1\n", "2\n"),
        ({"error_file": "e/y"}, None, "2\n"),
    ],
)
def test_output_goes_to_files_whose_folders_are_made(
    tmp_path: Any, files: dict[str, str], out: str | None, err: str | None
) -> None:
    config = get_task(build(arguments=("/bin/sh", "-c", "echo 1; echo 2 >&2; exit 5"), **files))["Config"]

    ended = subprocess.run(
        [config["command"], *config["args"]], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 5
    assert [path.read_text() if path.exists() else None for path in (tmp_path / "o/x", tmp_path / "e/y")] == [out, err]
    assert ended.stdout == ("" if out else "1\n")


def test_names_have_no_unusual_characters() -> None:
    assert build_job_name("/usr/bin/my prog") == "my-prog"
    assert build_job_name("///") == "job"


def test_a_job_may_wait_for_jobs_in_python_by_their_ids_or_as_they_were_submitted() -> None:
    first = BatchJob(connect(ClientSettings(addresses=("http://127.0.0.1:1",))), "first", "default")

    assert parse_needs(_list_needed(first)) == ({"On": "first", "When": "succeeded"},)
    assert parse_needs(_list_needed(["a/dispatch-1:any", first])) == (
        {"On": "a/dispatch-1", "When": "any"},
        {"On": "first", "When": "succeeded"},
    )
    assert parse_needs(_list_needed("b:ended")) == ({"On": "b", "When": "ended"},)
