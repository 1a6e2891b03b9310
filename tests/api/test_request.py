"""The parameters of a request (conventions 1.1, 1.4)."""

from typing import Any

import pytest

from wharf.api.request import ReadOptions, Request, parse_query, read_options
from wharf.model.refusal import Code, Refusal
from wharf.wire import shapes
from wharf.wire.endpoints import BY_NAME


def options(query: str) -> ReadOptions:
    return read_options(parse_query(query.encode()))


def refusal(query: str) -> str:
    with pytest.raises(Refusal) as refused:
        options(query)
    assert refused.value.code is Code.INVALID
    return refused.value.text


def a_request(body: bytes = b"", query: str = "") -> Request:
    return Request("r1", BY_NAME["job.register"], {}, parse_query(query.encode()), {}, body)


def test_without_parameters_everything_has_its_default() -> None:
    assert options("") == ReadOptions(index=0, wait_s=300.0, stale=False, namespace="default", prefix="", reverse=False)


@pytest.mark.parametrize(
    ("query", "field", "value"),
    [
        ("index=7", "index", 7),
        ("index=", "index", 0),
        ("index=18446744073709551615", "index", 2**64 - 1),
        ("wait=2s", "wait_s", 2.0),
        ("wait=", "wait_s", 300.0),
        ("wait=0", "wait_s", 300.0),
        ("wait=-5s", "wait_s", 300.0),
        ("wait=10m", "wait_s", 600.0),
        ("wait=10h", "wait_s", 600.0),
        ("stale", "stale", True),
        ("stale=", "stale", True),
        ("stale=1", "stale", True),
        ("stale=T", "stale", True),
        ("stale=0", "stale", False),
        ("stale=False", "stale", False),
        ("reverse=true", "reverse", True),
        ("reverse=1", "reverse", False),
        ("reverse=TRUE", "reverse", False),
        ("namespace=", "namespace", "default"),
        ("namespace=*", "namespace", "*"),
        ("prefix=a%2Fb", "prefix", "a/b"),
    ],
)
def test_a_parameter_is_read(query: str, field: str, value: Any) -> None:
    assert getattr(options(query), field) == value


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("index=-1", "Invalid index"),
        ("index=1.5", "Invalid index"),
        ("index=+", "Invalid index"),
        ("index=18446744073709551616", "Invalid index"),
        ("index=" + "9" * 5_000, "Invalid index"),
        ("index=%D9%A3", "Invalid index"),
        ("wait=1d", "Invalid wait time"),
        ("wait=5", "Invalid wait time"),
        ("wait=soon", "Invalid wait time"),
        ("stale=maybe", "Expect `true` or `false` for `stale` query string parameter"),
    ],
)
def test_a_parameter_that_is_wrong_is_told(query: str, text: str) -> None:
    assert refusal(query) == text


def test_of_several_wrong_parameters_the_first_of_the_reference_is_told() -> None:
    assert refusal("index=x&wait=x&stale=x").startswith("Expect `true`")
    assert refusal("index=x&wait=x") == "Invalid wait time"


@pytest.mark.parametrize(
    ("query", "read"),
    [
        ("a=1&a=2", {"a": "1"}),
        ("a=b+c", {"a": "b c"}),
        ("a=b%20c", {"a": "b c"}),
        ("a", {"a": ""}),
        ("=b&&", {}),
        ("a=%zz&b=1", {"b": "1"}),
        ("a=%ff&b=1", {"b": "1"}),
        ("a=1;c=2&b=1", {"b": "1"}),
        ("a=%C3%A9", {"a": "é"}),
        ("a=1=2", {"a": "1=2"}),
    ],
)
def test_a_query_is_split_and_what_cannot_be_decoded_is_dropped(query: str, read: dict[str, str]) -> None:
    assert parse_query(query.encode()) == read


def test_what_stands_in_a_query_as_it_is_is_utf_8() -> None:
    assert parse_query("a=é".encode()) == {"a": "é"}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "Request body is empty"),
        (b"  ", "the JSON is empty"),
        (b'{"Job":', "the JSON ends too early (line 1, column 8)"),
        (b'{"Job": 3}', "Job: expected an object or null, got a whole number"),
        (b'{\n  "Job": x}', "line 2"),
        (b'{"Job": {}}', "Job.ID: Job ID hasn't been provided"),
        (b"[]", "expected an object, got a list"),
        (b"\xff", "malformed"),
    ],
)
def test_a_body_that_cannot_be_read_is_told_with_its_place(body: bytes, text: str) -> None:
    with pytest.raises(Refusal) as refused:
        a_request(body).read_body(shapes.JobRegisterRequest)

    assert refused.value.code is Code.INVALID
    assert text in refused.value.text


def test_null_is_an_object_with_nothing_set() -> None:
    assert a_request(b" null ").read_body(shapes.JobRegisterRequest) == shapes.JobRegisterRequest()


def test_fields_that_nobody_knows_are_warnings() -> None:
    read = a_request(b'{"Job": {"ID": "a", "Colour": "red"}}').read_body_with_warnings(shapes.JobRegisterRequest)

    assert read.warnings == ("Job.Colour is not a known field; it was ignored",)


@pytest.mark.parametrize(("query", "flag"), [("", False), ("purge", False), ("purge=true", True), ("purge=0", False)])
def test_a_flag_is_read(query: str, flag: bool) -> None:
    assert a_request(query=query).flag("purge") is flag


def test_a_flag_or_a_number_that_is_none_is_told_by_name() -> None:
    with pytest.raises(Refusal, match=r'Failed to parse value of "purge" \(maybe\) as a bool'):
        a_request(query="purge=maybe").flag("purge")
    with pytest.raises(Refusal, match=r'Failed to parse value of "n" \(x\) as a int'):
        a_request(query="n=x").number("n")
    assert [a_request(query=q).number("n") for q in ("", "n=", "n=-3", "n=12")] == [0, 0, -3, 12]


@pytest.mark.parametrize("query", ['filter=Status == "dead"', "per_page=2", "next_token=a"])
def test_what_lists_cannot_do_yet_is_refused_and_not_passed_over(query: str) -> None:
    with pytest.raises(Refusal, match="is not served yet") as refused:
        options(query)

    assert refused.value.code is Code.NOT_OURS
