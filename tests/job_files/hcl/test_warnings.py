"""Warnings about references that stay as text although no node knows their first name."""

import pytest

from tests.job_files.hcl.job_texts import parse_file


def list_warnings(text: str, *, before: str = "", task: str = "") -> list[str]:
    """Return the warnings of a job file whose group has this meta value."""
    body = f'{before}job "j" {{\ngroup "g" {{\nmeta {{\na = "{text}"\n}}\ntask "t" {{\n{task}\n}}\n}}\n}}\n'
    return parse_file(body).warnings


@pytest.mark.parametrize(
    "text",
    [
        "${attr.cpu.arch}", "${node.class}", "${meta.rack}", "${env[\\\"HOME\\\"]}", "${device.model}", "${unique.a}",
        "${NOMAD_PORT_http}", "${NOMAD_META_x}", "${WHARF_ALLOC_ID}", "${VAULT_TOKEN}", "${JOB}-${TASKGROUP}-${TASK}-${BASE}",
        "$${nope}",
    ],
)  # fmt: skip
def test_a_reference_that_a_node_replaces_has_no_warning(text: str) -> None:
    assert list_warnings(text.replace('\\"', '"')) == []


@pytest.mark.parametrize(
    ("text", "name", "fix"),
    [
        ("${nope}", "nope", "write $${...} if a program is to read nope"),
        ("${vars.x}", "vars", 'did you mean "var"?'),
        ("${locals.x}", "locals", 'did you mean "local"?'),
        ("${nodes.class}", "nodes", 'did you mean "node"?'),
        ("${path.module}", "path", "write $${...} if a program is to read path"),
        ("${HOME}", "HOME", "write $${...} if a program is to read HOME"),
    ],
)
def test_a_reference_with_another_name_has_a_warning(text: str, name: str, fix: str) -> None:
    assert list_warnings(text) == [
        f'job.hcl:4:8: "{name}" is no variable, local value or value of a node: the reference stays as text; {fix}'
    ]


def test_a_name_in_the_environment_of_a_task_has_no_warning() -> None:
    assert list_warnings("${PORT}", task="env {\nPORT = 1\n}") == []


def test_a_name_has_one_warning() -> None:
    assert len(list_warnings("${nope.a} ${nope.b} ${other}")) == 2


def test_names_of_loops_and_dynamic_blocks_have_no_warning() -> None:
    assert list_warnings('${join(",", [for x in ["a"] : x])}') == []
    text = 'job "j" {\ndynamic "group" {\nfor_each = ["a"]\nlabels = [group.value]\ncontent {\nmeta {\na = group.key\n}\n}\n}\n}\n'
    assert parse_file(text).warnings == []


def test_a_reference_in_a_local_value_has_a_warning() -> None:
    before = "locals {\nx = nope.y\n}\n"

    (warning,) = list_warnings("${local.x}", before=before)
    assert warning.startswith('job.hcl:2:5: "nope"')


def test_warnings_are_limited() -> None:
    assert len(list_warnings(" ".join(f"${{name{number}}}" for number in range(30)))) == 20


def test_a_text_without_quotes_has_a_warning() -> None:
    (warning,) = parse_file('job "j" {\n  type = batch\n}\n').warnings

    assert warning == (
        'job.hcl:2:10: "batch" is no variable, local value or value of a node: the reference stays as text; '
        "write it in quotes if it is a text"
    )


def test_the_json_form_has_the_same_warnings() -> None:
    (warning,) = parse_file('{"job": {"j": {"type": "${nope.x}"}}}').warnings

    assert warning.startswith('job.hcl:1:27: "nope" is no variable')
    assert warning.endswith("write $${...} if a program is to read nope")
