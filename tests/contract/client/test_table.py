"""Every endpoint of the table has a client method, and the method has the endpoint's types."""

import inspect
import typing
from typing import Any, Final

import msgspec
import pytest

import wharf.contract.client.nouns  # noqa: F401  # Declares the methods.
from wharf.contract.client.calls import AllCallOptions, CallSpec, ListSpec, ReadSpec, StreamSpec, build_path
from wharf.contract.client.methods import METHODS_BY_ENDPOINT
from wharf.contract.client.streams import LogChunk
from wharf.contract.wire.endpoint_table import ENDPOINT_BY_NAME, ENDPOINTS, Endpoint, EndpointKind

WITHOUT_METHOD: Final = {
    "server.ask": "only for other servers, with a secret from the log",
    "client.exec": "a websocket, implemented by `open_command`",
    "job.action": "a websocket, implemented by `open_action`",
    "node.channel": "a websocket, implemented by nodes",
    "client.gc": "`client.gc_now` does the same and is not a GET",
    "client.alloc_gc": "`client.alloc_gc_now` does the same and is not a GET",
    "client.checks_by_allocation": "the same as `client.checks`",
    "operator.license": "always an empty reply",
    "document.page": "for web browsers",
}
"""Endpoints without a method, and why."""

STREAMED: Final = frozenset({
    "agent.monitor", "agent.monitor_export", "operator.save_snapshot",
    "client.fs_cat", "client.fs_read_at", "client.fs_stream", "client.fs_logs", "client.snapshot",
})  # fmt: skip
"""Streams of bytes, whatever type the table declares for the whole reply."""

METHODS: Final = [
    (endpoint, name, describe) for endpoint, found in sorted(METHODS_BY_ENDPOINT.items()) for name, describe in found
]
ROWS: Final = [endpoint for endpoint in ENDPOINTS if not endpoint.unsupported_reason]


@pytest.mark.parametrize("endpoint", ROWS, ids=lambda endpoint: endpoint.name)
def test_every_endpoint_has_a_method_or_a_reason(endpoint: Endpoint) -> None:
    assert (endpoint.name in METHODS_BY_ENDPOINT) != (endpoint.name in WITHOUT_METHOD)


def test_reasons_name_existing_endpoints() -> None:
    assert [name for name in WITHOUT_METHOD if name not in ENDPOINT_BY_NAME] == []


def get_return_type(describe: Any) -> Any:
    return typing.get_type_hints(describe)["return"]


def as_list(value_type: Any) -> Any:
    """Return a tuple type as a list type, because annotations in a class with a method `list` cannot use `list[...]`."""
    if typing.get_origin(value_type) is tuple:
        return list[typing.get_args(value_type)[0]]  # type: ignore[misc]  # whatever is in it
    if type(None) in typing.get_args(value_type):
        return typing.Union[tuple(as_list(member) for member in typing.get_args(value_type))]  # noqa: UP007  # made of a tuple
    return value_type


@pytest.mark.parametrize(
    ("name", "method", "describe"), METHODS, ids=[f"{name}-{method}" for name, method, _ in METHODS]
)
def test_a_method_returns_the_type_of_its_endpoint(name: str, method: str, describe: Any) -> None:
    endpoint, return_type = ENDPOINT_BY_NAME[name], get_return_type(describe)
    (value_type,) = typing.get_args(return_type)
    origin = typing.get_origin(return_type)

    if name in STREAMED:
        assert (origin, value_type) == (StreamSpec, LogChunk if name == "client.fs_logs" else bytes)
    elif origin is ListSpec:
        assert (endpoint.kind, list.__class_getitem__(value_type)) == (EndpointKind.READ, endpoint.reply_type)
    elif origin is StreamSpec:
        assert value_type == endpoint.reply_type
    else:
        assert origin is (ReadSpec if endpoint.kind is EndpointKind.READ else CallSpec), method
        assert as_list(value_type) == as_list(endpoint.reply_type if endpoint.reply_type is not None else type(None))


def build_arguments(describe: Any) -> dict[str, Any]:
    """Return an example value for every required argument."""
    hints = typing.get_type_hints(describe)
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(describe).parameters.items():
        if name in ("self", "options") or parameter.default is not inspect.Parameter.empty:
            continue
        arguments[name] = {str: "x", int: 1, bool: True, bytes: b"x"}.get(hints[name])
        if arguments[name] is None:
            arguments[name] = build_example(hints[name])
    return arguments


def build_example(value_type: Any) -> Any:
    """Return a minimal value of a type."""
    if isinstance(value_type, type) and issubclass(value_type, msgspec.Struct):
        required = {field.encode_name: "x" for field in msgspec.structs.fields(value_type) if field.required}
        return msgspec.convert(required, value_type)
    if typing.get_origin(value_type) in (tuple, list) or "Sequence" in str(value_type):
        return ()
    if str(value_type).startswith(("collections.abc.Mapping", "dict")):
        return {}
    options = [member for member in typing.get_args(value_type) if member is not type(None)]
    return build_example(options[0]) if options else None


@pytest.mark.parametrize(
    ("name", "method", "describe"), METHODS, ids=[f"{name}-{method}" for name, method, _ in METHODS]
)
def test_a_method_fills_the_path_and_sends_the_body_type_of_its_endpoint(name: str, method: str, describe: Any) -> None:
    endpoint = ENDPOINT_BY_NAME[name]
    if "report" in inspect.signature(describe).parameters:
        from wharf.contract.wire.nodes.messages import NodeReportRequest

        arguments = {"node_id": "x", "secret_id": "x", "report": NodeReportRequest(report_id="x")}
    elif name == "node.register":
        from wharf.contract.model.nodes.node import Node

        arguments = {"node": Node(id="x"), "secret_id": "x"}
    else:
        arguments = build_arguments(describe)

    spec = describe(None, **arguments)

    assert "{" not in build_path(endpoint, spec.path_values), method
    assert [own for own in spec.query if own not in {parameter.name for parameter in endpoint.parameters}] == []
    if isinstance(spec.body, msgspec.Struct):
        assert endpoint.body_type is not None
        assert isinstance(spec.body, endpoint.body_type) or issubclass(endpoint.body_type, type(spec.body))
    if endpoint.body_type is not None and not endpoint.is_body_optional:
        assert spec.body is not None, method


def test_all_call_options_contain_the_keys_of_all_kinds() -> None:
    kinds = typing.get_type_hints(AllCallOptions)

    assert {"namespace", "region", "index", "wait_s", "stale", "filter", "idempotency_key"} <= set(kinds)
