"""The JSON Schema of job files: the job files of this repository are valid, and wrong ones are not."""

import ast
import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tests.job_files.sample_jobs import BASE, SCHEMA, build_job_with_example
from wharf.cli.job.init import init
from wharf.job_files.reference.examples import EXAMPLES
from wharf.job_files.schema import format_schema_comment, load_schema

ROOT = Path(__file__).parents[2]
VALIDATOR = Draft202012Validator(load_schema())
WRONG_ON_PURPOSE = {
    "docs/commands.md",  # The page shows the errors of two wrong files.
    "tests/cli/test_jobs.py",
    "tests/job_files/test_markup_jobs.py",
    "tests/bounded_work/worst_job_files.py",  # Parts of jobs.
    "tests/job_files/test_conversion.py",  # Parts of jobs.
    "tests/job_files/test_template_conversion.py",  # Parts of jobs.
    "tests/job_files/test_formatting.py",
    "tests/job_files/hcl/test_sensitive_variables.py",
}
FRAGMENTS = "docs/job-file"
"""Pages whose examples are blocks, not jobs."""


def list_errors(document: object) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(document)]


def iterate_texts() -> Iterator[tuple[str, str]]:
    """Yield all texts of pages and tests that look like a job file, with the path of their file."""
    for page in [*(ROOT / "docs").glob("*.md"), ROOT / "docs/job-file/README.md", ROOT / "README.md"]:
        for block in re.findall(r"```(?:ya?ml|json)\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            yield str(page.relative_to(ROOT)), block
    for folder in ("tests", "simulation", "benchmarks"):
        for source in (ROOT / folder).rglob("*.py"):
            text = source.read_text("utf-8")
            if "TaskGroups:" in text:
                for node in ast.walk(ast.parse(text)):
                    if isinstance(node, ast.Constant) and isinstance(node.value, str):
                        yield str(source.relative_to(ROOT)), node.value


def iterate_job_files() -> Iterator[tuple[str, Any]]:
    """Yield all job files of pages and tests."""
    for where, text in iterate_texts():
        if re.search(r"TaskGroups[\"']?:", text) is None:
            continue
        try:
            document = YAML(typ="safe").load(text)
        except YAMLError:
            continue
        if isinstance(document, dict) and ("Job" in document or "ID" in document):
            yield where, document


def test_the_schema_is_a_valid_schema() -> None:
    Draft202012Validator.check_schema(load_schema())


def test_the_job_files_of_pages_and_tests_are_valid() -> None:
    found = list(iterate_job_files())
    errors = [
        f"{where}: {error}"
        for where, document in found
        if where not in WRONG_ON_PURPOSE
        for error in list_errors(document)
    ]

    assert errors == []
    assert len(found) > 20


def test_the_wrong_files_of_the_pages_are_not_valid() -> None:
    wrong = [
        document for where, document in iterate_job_files() if where == "docs/commands.md" and list_errors(document)
    ]

    assert len(wrong) == 2


def test_the_example_of_job_init_is_valid(tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"

    result = CliRunner().invoke(init, [str(file)])

    assert result.exit_code == 0
    assert list_errors(YAML(typ="safe").load(file)) == []


@pytest.mark.parametrize("block", EXAMPLES)
def test_the_example_of_a_block_is_valid(block: str) -> None:
    assert list_errors(build_job_with_example(block)) == []


@pytest.mark.parametrize("block", SCHEMA["$defs"])
def test_the_examples_and_defaults_of_fields_are_valid(block: str) -> None:
    invalid = []
    for name, entry in SCHEMA["$defs"][block]["properties"].items():
        validator = Draft202012Validator({**entry, "$defs": SCHEMA["$defs"]})
        values = [*entry.get("examples", ()), *([entry["default"]] if "default" in entry else ())]
        invalid += [f"{name}: {error.message}" for value in values for error in validator.iter_errors(value)]

    assert invalid == []


def change_task(**fields: object) -> dict[str, Any]:
    """Return a valid job whose only task has these fields."""
    job: dict[str, Any] = copy.deepcopy(BASE)
    job["TaskGroups"][0]["Tasks"][0].update(fields)
    return job


def change_group(**fields: object) -> dict[str, Any]:
    job: dict[str, Any] = copy.deepcopy(BASE)
    job["TaskGroups"][0].update(fields)
    return job


VALID: dict[str, dict[str, Any]] = {
    "a request of the API": {"Job": BASE, "EnforceIndex": True},
    "durations as text": change_task(KillTimeout="1h30m", ShutdownDelay="500ms"),
    "durations as numbers": change_task(KillTimeout=5_000_000_000),
    "a constraint as text": change_group(Constraints=["${attr.kernel.name} = linux"]),
    "one constraint as text": change_group(Constraints="${attr.kernel.name} = linux"),
    "variables in all kinds of fields": {
        **change_group(Count="${var.count}", Update="${var.update}", Meta="${var.meta}", Networks="${var.networks}"),
        "Type": "${var.type}", "Datacenters": "${var.datacenters}", "AllAtOnce": "${var.all}",
        "variables": {"count": {"type": "number", "default": 1}}, "locals": {"a": 1},
    },
    "null for missing fields": change_task(Services=None, Resources=None, User=None, Leader=None),
    "names in other cases": {"id": "web", "taskGroups": [{"name": "g", "tasks": [{"name": "t", "driver": "mock"}]}]},
    "names with underscores": {"id": "web", "task_groups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "mock", "kill_timeout": "5s"}]}]},
    "names of HCL": {"ID": "web", "group": {"g": {"count": 2, "task": {"t": {"driver": "mock", "resources": {"memory": 64}}}}}},
    "short forms of constraints": change_group(Constraints=[{"attribute": "${attr.kernel.version}", "version": ">= 5"}]),
    "options of another driver": change_task(Driver="kite", Config={"wind": 3, "tail": {"length": 2}}),
    "options that are converted from HCL": change_task(
        Driver="docker", Config={"image": "x", "labels": [{"a": "b"}], "mount": [{"target": "/a", "type": "tmpfs"}], "tty": "true"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VALID)
def test_all_forms_of_job_files_are_valid(name: str) -> None:
    assert list_errors(VALID[name]) == []


WRONG: dict[str, tuple[object, str]] = {
    "no job": ([1, 2], "$"),
    "no ID": ({"TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "mock"}]}]}, "$"),
    "no groups": ({"ID": "web"}, "$"),
    "an unknown field of a job": ({**BASE, "Prio": 50}, "$"),
    "an unknown field of a group": (change_group(Cuont=2), "$.TaskGroups[0]"),
    "an unknown field of a block": (change_task(Resources={"Memory_MB_": 1}), "$.TaskGroups[0].Tasks[0].Resources"),
    "a text for a number": (change_group(Count="many"), "$.TaskGroups[0].Count"),
    "a number below the limit": (change_group(Count=-1), "$.TaskGroups[0].Count"),
    "a number above the limit": ({**BASE, "Priority": 101}, "$.Priority"),
    "a text for a bool": (change_task(Leader="yes"), "$.TaskGroups[0].Tasks[0].Leader"),
    "a duration without a unit": (change_task(KillTimeout="5"), "$.TaskGroups[0].Tasks[0].KillTimeout"),
    "a duration with a wrong unit": (change_task(KillTimeout="5 min"), "$.TaskGroups[0].Tasks[0].KillTimeout"),
    "an unknown word": ({**BASE, "Type": "deamon"}, "$.Type"),
    "one block for a list": (change_task(Services={"Name": "web"}), "$.TaskGroups[0].Tasks[0].Services"),
    "a number in a map of texts": (change_task(Env={"PORT": 80}), "$.TaskGroups[0].Tasks[0].Env.PORT"),
    "a task without a driver": (change_group(Tasks=[{"Name": "t"}]), "$.TaskGroups[0].Tasks[0]"),
    "an unknown option of docker": (
        change_task(Driver="docker", Config={"image": "x", "privilegd": True}), "$.TaskGroups[0].Tasks[0].Config",
    ),
    "a wrong option inside a block of docker": (
        change_task(Driver="docker", Config={"image": "x", "mount": [{"target": "/a", "kind": "bind"}]}),
        "$.TaskGroups[0].Tasks[0].Config",
    ),
    "docker without an image": (change_task(Driver="docker", Config={"args": []}), "$.TaskGroups[0].Tasks[0].Config"),
    "an unknown option of raw_exec": (
        change_task(Driver="raw_exec", Config={"comand": "/bin/true"}), "$.TaskGroups[0].Tasks[0].Config",
    ),
    "a constraint that is a number": (change_group(Constraints=[5]), "$.TaskGroups[0].Constraints[0]"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_not_valid_and_the_error_names_the_place(name: str) -> None:
    document, place = WRONG[name]

    assert place in {error.json_path for error in VALIDATOR.iter_errors(document)}


def test_the_comment_for_editors_names_the_address_of_the_agent() -> None:
    assert format_schema_comment() == "# yaml-language-server: $schema=http://127.0.0.1:4646/v1/schema/job.json"
    assert format_schema_comment("https://wharf.example.com/").endswith("=https://wharf.example.com/v1/schema/job.json")
