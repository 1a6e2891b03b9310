"""The client and the endpoint table agree: every row has a method, and the method has the row's types."""

import inspect
import typing
from typing import Any, Final

import msgspec
import pytest

import wharf.contract.client.nouns  # noqa: F401  # Declares the methods.
from wharf.contract.client.calls import AllCallOptions, CallSpec, ListSpec, ReadSpec, StreamSpec, build_path
from wharf.contract.client.methods import METHODS_BY_ENDPOINT
from wharf.contract.wire.endpoint_table import ENDPOINT_BY_NAME, ENDPOINTS, Endpoint, EndpointKind

WITHOUT: Final = {
    "server.ask": "between servers only, with a secret that lies in the log",
    "client.exec": "a websocket: `open_command` speaks it",
    "job.action": "a websocket: `open_action` speaks it",
    "node.channel": "a websocket that nodes keep open; they speak it themselves",
    "client.gc": "`client.gc_now` does the same and is no GET",
    "client.alloc_gc": "`client.alloc_gc_now` does the same and is no GET",
    "client.checks_by_allocation": "the same as `client.checks`",
    "operator.license": "there is no licence to ask for: 204",
    "document.page": "for people with a browser",
}
"""Rows without a method, and why."""

STREAMED: Final = frozenset({
    "agent.monitor", "agent.monitor_export", "operator.save_snapshot",
    "client.fs_cat", "client.fs_read_at", "client.fs_stream", "client.fs_logs", "client.snapshot",
})  # fmt: skip
"""Come as pieces of bytes, whatever the table says of the whole."""

METHODS: Final = [
    (row, name, describe) for row, found in sorted(METHODS_BY_ENDPOINT.items()) for name, describe in found
]
ROWS: Final = [row for row in ENDPOINTS if not row.unsupported_reason]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_has_a_method_or_a_reason(row: Endpoint) -> None:
    assert (row.name in METHODS_BY_ENDPOINT) != (row.name in WITHOUT)


def test_reasons_are_about_rows_that_are_there() -> None:
    assert [name for name in WITHOUT if name not in ENDPOINT_BY_NAME] == []


def returned(describe: Any) -> Any:
    return typing.get_type_hints(describe)["return"]


def as_list(kind: Any) -> Any:
    """A noun that has a method `list` cannot say `list[...]`: there it says tuple."""
    if typing.get_origin(kind) is tuple:
        return list[typing.get_args(kind)[0]]  # type: ignore[misc]  # whatever is in it
    if type(None) in typing.get_args(kind):
        return typing.Union[tuple(as_list(each) for each in typing.get_args(kind))]  # noqa: UP007  # made of a tuple
    return kind


@pytest.mark.parametrize(
    ("name", "method", "describe"), METHODS, ids=[f"{name}-{method}" for name, method, _ in METHODS]
)
def test_a_method_promises_what_its_row_returns(name: str, method: str, describe: Any) -> None:
    row, told = ENDPOINT_BY_NAME[name], returned(describe)
    (kind,) = typing.get_args(told)
    origin = typing.get_origin(told)

    if name in STREAMED:
        assert (origin, kind) == (StreamSpec, bytes)
    elif origin is ListSpec:
        assert (row.kind, list.__class_getitem__(kind)) == (EndpointKind.READ, row.reply_type)
    elif origin is StreamSpec:
        assert kind == row.reply_type
    else:
        assert origin is (ReadSpec if row.kind is EndpointKind.READ else CallSpec), method
        assert as_list(kind) == as_list(row.reply_type if row.reply_type is not None else type(None))


def arguments_for(describe: Any) -> dict[str, Any]:
    """Something for every argument that must be given."""
    hints = typing.get_type_hints(describe)
    given: dict[str, Any] = {}
    for name, parameter in inspect.signature(describe).parameters.items():
        if name in ("self", "options") or parameter.default is not inspect.Parameter.empty:
            continue
        given[name] = {str: "x", int: 1, bool: True, bytes: b"x"}.get(hints[name])
        if given[name] is None:
            given[name] = example(hints[name])
    return given


def example(kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        required = {field.encode_name: "x" for field in msgspec.structs.fields(kind) if field.required}
        return msgspec.convert(required, kind)
    if typing.get_origin(kind) in (tuple, list) or "Sequence" in str(kind):
        return ()
    if str(kind).startswith(("collections.abc.Mapping", "dict")):
        return {}
    options = [each for each in typing.get_args(kind) if each is not type(None)]
    return example(options[0]) if options else None


@pytest.mark.parametrize(
    ("name", "method", "describe"), METHODS, ids=[f"{name}-{method}" for name, method, _ in METHODS]
)
def test_a_method_fills_the_path_of_its_row_and_sends_the_rows_body(name: str, method: str, describe: Any) -> None:
    row = ENDPOINT_BY_NAME[name]
    if "report" in inspect.signature(describe).parameters:
        from wharf.contract.wire.nodes.messages import NodeReportRequest

        given = {"node_id": "x", "secret_id": "x", "report": NodeReportRequest(report_id="x")}
    elif name == "node.register":
        from wharf.contract.model.nodes.node import Node

        given = {"node": Node(id="x"), "secret_id": "x"}
    else:
        given = arguments_for(describe)

    ask = describe(None, **given)

    assert "{" not in build_path(row, ask.path_values), method
    assert [own for own in ask.query if own not in {parameter.name for parameter in row.parameters}] == []
    if isinstance(ask.body, msgspec.Struct):
        assert row.body_type is not None
        assert isinstance(ask.body, row.body_type) or issubclass(row.body_type, type(ask.body))
    if row.body_type is not None and not row.is_body_optional:
        assert ask.body is not None, method


def test_options_hold_the_keys_of_all_kinds() -> None:
    kinds = typing.get_type_hints(AllCallOptions)

    assert {"namespace", "region", "index", "wait_s", "stale", "filter", "idempotency_key"} <= set(kinds)
