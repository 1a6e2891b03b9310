"""Decoding of submitted JSON: lenient with names and nulls, precise about problems."""

from typing import Any

import msgspec
import pytest

from wharf.contract.model.decoding import (
    MAX_JSON_DEPTH,
    MAX_UNKNOWN_FIELDS,
    DecodingError,
    DecodingProblem,
    convert_object,
    decode_json,
    decode_record,
)
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.record import Record


class Leaf(Record):
    node_id: str
    cpu: int = 1
    data: bytes = b""
    free: dict[str, object] | None = None


class Tree(Record):
    leaves: tuple[Leaf, ...] | None = None
    by_name: dict[str, Leaf] | None = None
    labels: dict[str, str] | None = None
    inner: "Tree | None" = None


def list_problems(record_type: type, submitted: Any) -> list[tuple[str, str]]:
    with pytest.raises(DecodingError) as caught:
        convert_object(record_type, submitted)
    return [(problem.path, problem.message) for problem in caught.value.problems]


@pytest.mark.parametrize("name", ["NodeID", "nodeid", "NODEID", "nodeId"])
def test_names_match_in_any_case(name: str) -> None:
    assert convert_object(Leaf, {name: "n"}).value == Leaf(node_id="n")


@pytest.mark.parametrize("submitted", [{"NodeID": "exact", "nodeid": "other"}, {"nodeid": "other", "NodeID": "exact"}])
def test_the_exact_case_wins(submitted: dict[str, str]) -> None:
    decoded = convert_object(Leaf, submitted)

    assert (decoded.value.node_id, decoded.unknown_paths) == ("exact", ())


def test_the_url_of_a_ui_link_may_be_spelled_in_two_ways() -> None:
    job = convert_object(Job, {"ID": "x", "UI": {"Links": [{"Label": "a", "URL": "u"}]}}).value

    assert job.ui is not None
    assert [link.url for link in job.ui.links or ()] == ["u"]


def test_null_means_that_the_field_is_missing() -> None:
    submitted = {"Leaves": [{"NodeID": "n", "CPU": None, "Data": None}], "Inner": None, "Labels": {"a": None}}

    assert convert_object(Tree, submitted).value == Tree(leaves=(Leaf(node_id="n"),), labels={"a": ""})


def test_unknown_fields_are_ignored_and_their_paths_reported() -> None:
    submitted = {
        "Leaves": [{"NodeID": "n"}, {"NodeID": "m", "Foo": 1}],
        "ByName": {"a.b": {"NodeID": "k", "Bar": None}},
        "Inner": {"Baz": {}},
        "Free": 1,
    }

    assert convert_object(Tree, submitted).unknown_paths == ("Leaves[1].Foo", "ByName[a.b].Bar", "Inner.Baz", "Free")


def test_unknown_fields_become_warning_sentences() -> None:
    assert convert_object(Leaf, {"NodeID": "n", "Foo": 1}).warnings == ("Foo is not a known field; it was ignored",)


def test_the_number_of_reported_unknown_fields_is_limited() -> None:
    submitted: dict[str, object] = {f"Field{n}": n for n in range(900)}

    assert len(convert_object(Leaf, submitted | {"NodeID": "n"}).unknown_paths) == MAX_UNKNOWN_FIELDS


@pytest.mark.parametrize(
    ("submitted", "path", "message"),
    [
        ({"Leaves": [{"NodeID": "n"}, {"NodeID": 7}]}, "Leaves[1].NodeID", "expected text, got a whole number"),
        ({"Leaves": [{"NodeID": "n", "CPU": "x"}]}, "Leaves[0].CPU", "expected a whole number, got text"),
        (
            {"Leaves": [{"NodeID": "n", "CPU": 1.5}]},
            "Leaves[0].CPU",
            "expected a whole number, got 1.5: write it without a decimal point and an exponent",
        ),
        ({"Leaves": [{"NodeID": "n", "CPU": True}]}, "Leaves[0].CPU", "expected a whole number, got true or false"),
        (
            {"Leaves": [{"NodeID": "n", "CPU": 2**63}]},
            "Leaves[0].CPU",
            "the number is too large: write one from -9223372036854775808 to 9223372036854775807",
        ),
        ({"Leaves": [{"NodeID": "n", "Data": "%%"}]}, "Leaves[0].Data", "invalid base64 encoded string"),
        ({"Leaves": [{}]}, "Leaves[0].NodeID", "is required"),
        ({"Leaves": [{"NodeID": None}]}, "Leaves[0].NodeID", "is required"),
        ({"Leaves": {}}, "Leaves", "expected a list or null, got an object"),
        ({"Leaves": [None]}, "Leaves[0]", "expected an object, got null"),
        ({"ByName": {"a.b": {"NodeID": []}}}, "ByName[a.b].NodeID", "expected text, got a list"),
        ({"Labels": {"x": 1}}, "Labels.x", "expected text, got a whole number"),
        ({"Inner": {"Inner": {"Labels": 1}}}, "Inner.Inner.Labels", "expected an object or null, got a whole number"),
        ([], "", "expected an object, got a list"),
    ],
)
def test_a_wrong_type_is_reported_with_its_path_and_the_expected_type(submitted: Any, path: str, message: str) -> None:
    assert list_problems(Tree, submitted) == [(path, message)]


def test_all_wrong_types_are_reported_at_once() -> None:
    submitted = {"ID": 1, "TaskGroups": [{"Tasks": [{}, {"Resources": {"CPU": "x"}, "Env": {"A": 1}}]}]}

    assert [path for path, _ in list_problems(Job, submitted)] == [
        "ID",
        "TaskGroups[0].Tasks[1].Resources.CPU",
        "TaskGroups[0].Tasks[1].Env.A",
    ]


def test_a_duration_as_text_is_reported_with_the_right_notation() -> None:
    ((path, message),) = list_problems(Job, {"ID": "x", "TaskGroups": [{"Tasks": [{"KillTimeout": "30s"}]}]})

    assert path == "TaskGroups[0].Tasks[0].KillTimeout"
    assert "nanoseconds (30s is 30000000000)" in message


@pytest.mark.parametrize("submitted", [{}, {"ID": None}])
def test_a_job_without_an_id_gets_the_error_text_of_the_reference(submitted: dict[str, None]) -> None:
    assert list_problems(Job, submitted) == [("ID", "Job ID hasn't been provided")]


def test_fields_that_only_the_server_sets_are_dropped() -> None:
    submitted = {
        "ID": "x",
        "Status": 7,
        "ModifyIndex": "never",
        "Stable": True,
        "NomadTokenID": "t",
        "Dispatched": True,
    }

    assert convert_object(Job, submitted).value == convert_object(Job, {"ID": "x"}).value
    assert convert_object(Job, submitted).unknown_paths == ()


def test_dropped_known_fields_cause_no_warnings() -> None:
    tasks = [{"Vault": {"Policies": ["p"]}, "Resources": {"DiskMB": 9, "Networks": [{"Device": "eth0"}]}}]

    decoded = convert_object(Job, {"ID": "x", "TaskGroups": [{"Tasks": tasks}]})

    assert decoded.unknown_paths == ()
    assert (decoded.value.groups[0].tasks or ())[0].resources.disk_mb == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"ID": "x",\n  "Name": nul}', "the JSON is malformed: expecting value (line 2, column 11)"),
        (b'{"ID": "x"', "the JSON ends too early (line 1, column 11)"),
        (b'{"ID": "x"} y', "the JSON is malformed: extra data (line 1, column 13)"),
        (b'{"ID": NaN}', "the JSON is malformed: invalid character (byte 7)"),
        (b"", "the JSON is empty"),
        (b" \n", "the JSON is empty"),
        (b"[" * 100_000, "the JSON is nested too deeply"),
    ],
)
def test_malformed_json_is_reported_with_line_and_column(body: bytes, message: str) -> None:
    with pytest.raises(DecodingError) as caught:
        decode_record(Job, body)

    assert caught.value.problems == (DecodingProblem("", message),)


def test_text_that_is_not_utf_8_is_reported() -> None:
    with pytest.raises(DecodingError, match="not UTF-8"):
        decode_json(b'{"ID": "\xff"}')


def test_an_opaque_value_is_stored_unchanged() -> None:
    config = {"command": "/bin/sh", "args": ["-c", None, {"a": 1.5}], "n": None}

    job = convert_object(Job, {"ID": "x", "TaskGroups": [{"Tasks": [{"Config": config}]}]}).value

    assert (job.groups[0].tasks or ())[0].config == config


def test_the_depth_of_an_opaque_value_is_limited() -> None:
    deep: dict[str, Any] = {}
    for _ in range(MAX_JSON_DEPTH + 2):
        deep = {"a": deep}

    assert list_problems(Leaf, {"NodeID": "n", "Free": deep}) == [("Free.a", "nested deeper than 64 levels")]


def test_decoding_does_not_modify_its_input() -> None:
    submitted = {"ID": "x", "Update": {"Canary": 1}, "TaskGroups": [{"Name": "g", "Scaling": {"Max": 3}}]}
    before = msgspec.json.encode(submitted)

    convert_object(Job, submitted)

    assert msgspec.json.encode(submitted) == before
