"""The parameters of a request (conventions 1.1, 1.4)."""

from typing import Any

import pytest

from tests.kit.cluster import ACluster
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.api.requests.parameters import (
    MAX_PARAMETERS,
    QueryOptions,
    parse_endpoint_parameters,
    parse_query,
    parse_query_options,
    parse_query_strict,
)
from wharf.cluster.api.requests.request import Request
from wharf.cluster.state.tables import VARIABLES
from wharf.contract.model.acl.permissions import PUBLIC_ACCESS
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.wire.endpoint import duration, flag, integer, text, text_list, unsigned
from wharf.contract.wire.endpoint_table import ENDPOINT_BY_NAME, Endpoint, EndpointKind
from wharf.contract.wire.jobs import messages


def options(query: str) -> QueryOptions:
    return parse_query_options(parse_query(query.encode()))


def refusal(query: str) -> str:
    with pytest.raises(Refusal) as caught:
        options(query)
    assert caught.value.code is RefusalCode.INVALID
    return caught.value.text


def a_request(body: bytes = b"", query: str = "") -> Request:
    return Request("r1", ENDPOINT_BY_NAME["job.register"], {}, parse_query(query.encode()), {}, body)


def test_query_options_have_defaults() -> None:
    assert options("") == QueryOptions(index=0, wait_s=300.0, is_stale_allowed=False, namespace="default", per_page=0)


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
        ("stale", "is_stale_allowed", True),
        ("stale=", "is_stale_allowed", True),
        ("stale=1", "is_stale_allowed", True),
        ("stale=T", "is_stale_allowed", True),
        ("stale=0", "is_stale_allowed", False),
        ("stale=False", "is_stale_allowed", False),
        ("reverse=true", "is_reversed", True),
        ("reverse=1", "is_reversed", False),
        ("reverse=TRUE", "is_reversed", False),
        ("namespace=", "namespace", "default"),
        ("namespace=*", "namespace", "*"),
        ("prefix=a%2Fb", "prefix", "a/b"),
    ],
)
def test_a_query_option_is_parsed(query: str, field: str, value: Any) -> None:
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
def test_an_invalid_query_option_is_refused(query: str, text: str) -> None:
    assert refusal(query) == text


def test_of_several_invalid_options_the_one_that_nomad_checks_first_is_reported() -> None:
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
def test_a_query_is_split_into_pairs_and_undecodable_pairs_are_dropped(query: str, read: dict[str, str]) -> None:
    assert parse_query(query.encode()) == read


@in_virtual_time
async def test_an_undecodable_query_is_refused_and_changes_nothing() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        before = server.server.replica.index
        replies = [
            await send_raw(server.api, method, "/v1/jobs", query=query, body=b"{}")
            for method in ("GET", "PUT")
            for query in ("filter=%ff", "a=%zz", "a=1;b=2", "%ff=1")
        ]

        assert {400} == {reply.status for reply in replies}
        assert b"the query holds filter=%ff, which cannot be decoded: escape it as UTF-8" == replies[0].body
        assert before == server.server.replica.index


@in_virtual_time
async def test_a_parameter_with_two_values_is_refused_and_changes_nothing() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        body = b'{"Items": {"a": "1"}}'

        refused = [
            await send_raw(server.api, "PUT", "/v1/var/db", query="cas=0&cas=5", body=body),
            await send_raw(server.api, "DELETE", "/v1/job/shop", query="purge=false&purge=true"),
            await send_raw(server.api, "GET", "/v1/jobs", query="namespace=default&namespace=*"),
            await send_raw(server.api, "GET", "/v1/jobs", query="filter=ID+is+empty&filter="),
        ]
        repeated = await send_raw(server.api, "PUT", "/v1/var/db", query="cas=0&cas=0", body=body)

        assert [reply.status for reply in refused] == [400] * 4
        assert refused[0].body == b'conflicting parameters: cas has the values "0" and "5"; send it once'
        assert repeated.status == 200
        assert server.server.replica.count_records(VARIABLES) == 1


def test_a_parameter_that_accepts_several_values_may_occur_several_times() -> None:
    query = b"topic=Job&topic=Node&index=1"

    assert parse_query_strict(query, ENDPOINT_BY_NAME["event.stream"]) == {"topic": "Job", "index": "1"}


def test_a_query_with_too_many_parameters_is_refused() -> None:
    endpoint = ENDPOINT_BY_NAME["event.stream"]
    largest = b"&".join([b"topic=Job"] * MAX_PARAMETERS)

    assert parse_query_strict(largest, endpoint) == {"topic": "Job"}
    with pytest.raises(Refusal, match="the query has 1001 parameters: at most 1000 are allowed"):
        parse_query_strict(largest + b"&", endpoint)


def test_only_the_first_parameters_of_a_too_long_query_are_read_before_it_is_refused() -> None:
    assert parse_query(b"&" * (MAX_PARAMETERS - 1) + b"a=1&b=2") == {"a": "1"}


def test_unescaped_bytes_of_a_query_are_utf_8() -> None:
    assert parse_query("a=é".encode()) == {"a": "é"}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "Request body is empty"),
        (b"  ", "EOF"),
        (b'{"Job":', "the JSON ends too early (line 1, column 8)"),
        (b'{"Job": 3}', "Job: expected an object or null, got a whole number"),
        (b'{\n  "Job": x}', "line 2"),
        (b'{"Job": {}}', "Job.ID: Job ID hasn't been provided"),
        (b"[]", "expected an object, got a list"),
        (b"\xff", "the JSON is not UTF-8 (line 1, column 1)"),
    ],
)
def test_an_undecodable_body_is_refused_with_the_position(body: bytes, text: str) -> None:
    with pytest.raises(Refusal) as caught:
        a_request(body).decode_body(messages.JobRegisterRequest)

    assert caught.value.code is RefusalCode.INVALID
    assert text in caught.value.text


@pytest.mark.parametrize("body", [b"[" * 5_000, b'{"a":' * 3_000, b'{"Job":' + b"[" * 5_000])
def test_a_too_deeply_nested_body_is_refused(body: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        a_request(body).decode_body(messages.JobRegisterRequest)

    assert caught.value.code is RefusalCode.INVALID


@pytest.mark.parametrize("after", [b" garbage", b"{", b'{"Job": 3}', b"\n\x00"])
def test_text_after_the_first_value_of_a_body_is_ignored(after: bytes) -> None:
    read = a_request(b'{"Job": {"ID": "a"}} ' + after).decode_body(messages.JobRegisterRequest)

    assert read.job is not None
    assert read.job.id == "a"


def test_null_is_an_empty_object() -> None:
    assert a_request(b" null ").decode_body(messages.JobRegisterRequest) == messages.JobRegisterRequest()


def test_unknown_fields_of_a_body_are_warnings() -> None:
    read = a_request(b'{"Job": {"ID": "a", "Colour": "red"}}').decode_body_with_warnings(messages.JobRegisterRequest)

    assert read.warnings == ("Job.Colour is not a known field; it was ignored",)


DECLARING = Endpoint(
    name="test", method="PUT", path="/v1/test", kind=EndpointKind.WRITE, need=PUBLIC_ACCESS, summary="",
    parameters=(
        flag("purge", ""), integer("n", ""), unsigned("u", ""), text("word", ""), text_list("address", ""),
        duration("after", ""), flag("os", "", refusal_prefix="Failed to parse node list fields: "),
    ),
)  # fmt: skip


def build_request_with_query(query: str) -> Request:
    submitted = parse_query(query.encode())
    return Request(
        "r1", DECLARING, {}, submitted, {}, parameters=parse_endpoint_parameters(DECLARING, submitted, query.encode())
    )


@pytest.mark.parametrize(
    ("query", "value"),
    [("", False), ("purge", False), ("purge=true", True), ("purge=0", False), ("purge=T", True)],
)
def test_a_flag_is_parsed(query: str, value: bool) -> None:
    assert build_request_with_query(query).get_flag("purge") is value


def test_a_missing_flag_has_the_default_of_the_handler() -> None:
    assert [build_request_with_query(query).get_flag("purge", default=True) for query in ("", "purge=", "purge=f")] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        (
            "purge=maybe",
            'Failed to parse value of "purge" (maybe) as a bool: strconv.ParseBool: parsing "maybe": invalid syntax',
        ),
        ("n=x", 'Failed to parse value of "n" (x) as a int: strconv.Atoi: parsing "x": invalid syntax'),
        ("u=-1", 'Failed to parse value of "u" (-1) as a uint64: strconv.ParseUint: parsing "-1": invalid syntax'),
        (
            "n=9223372036854775808",
            'Failed to parse value of "n" (9223372036854775808) as a int: strconv.Atoi: '
            'parsing "9223372036854775808": value out of range',
        ),
        (
            "os=x",
            'Failed to parse node list fields: Failed to parse value of "os" (x) as a bool: '
            'strconv.ParseBool: parsing "x": invalid syntax',
        ),
        ("after=soon", 'Failed to parse value of "after" (soon)'),
    ],
)
def test_an_invalid_parameter_is_refused_by_name(query: str, text: str) -> None:
    with pytest.raises(Refusal) as caught:
        build_request_with_query(query)

    assert (caught.value.code, caught.value.text[: len(text)]) == (RefusalCode.INVALID, text)


def test_numbers_durations_and_texts_are_parsed() -> None:
    assert [build_request_with_query(q).get_number("n") for q in ("", "n=", "n=-3", "n=%2B12")] == [0, 0, -3, 12]
    assert build_request_with_query("after=1m30s").get_number("after") == 90_000_000_000
    assert (build_request_with_query("word=a%20b").get_text("word"), build_request_with_query("").get_text("word")) == (
        "a b",
        "",
    )


def test_all_values_of_a_repeatable_parameter_are_returned() -> None:
    assert build_request_with_query("address=b&word=x&address=a").get_texts("address") == ("b", "a")
    assert build_request_with_query("").get_texts("address") == ()


def test_reading_an_undeclared_parameter_is_an_error() -> None:
    with pytest.raises(AssertionError, match="test does not declare `other`"):
        build_request_with_query("").get_flag("other")


@pytest.mark.parametrize(
    ("query", "field", "value"),
    [
        ("per_page=2", "per_page", 2),
        ("per_page=", "per_page", 0),
        ("next_token=default.caf%25C3%25A9", "next_token", "default.café"),
        ("filter=Status+%3D%3D+dead", "filter", "Status == dead"),
        ("filter=+", "filter", " "),
    ],
)
def test_page_parameters_are_parsed(query: str, field: str, value: Any) -> None:
    assert getattr(options(query), field) == value


@pytest.mark.parametrize("per_page", ["x", "1.5", "2147483648", "-2147483649", "+"])
def test_an_invalid_page_size_is_refused(per_page: str) -> None:
    query = f"per_page={per_page.replace('+', '%2B')}&index=x"
    assert refusal(query) == "Expect a number for `per_page` query string parameter"
