"""A text for users repeats at most 200 characters of its input: every text of every body, every id and every parameter.

Texts for users are errors, and errors and warnings in replies with status 200.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from msgspec import inspect

from tests.attempts import limited_cpu
from tests.bounded_work.worst_bodies import Path, build_body
from tests.bounded_work.worst_requests import BODY_ENDPOINTS, SHUTTING_DOWN, build_target
from tests.builders import a_job
from tests.cluster.api.test_websocket_relay import EXEC, shake_hands
from tests.fuzz.rounds import IS_FULL_RUN
from tests.kit.cluster import ACluster
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time
from wharf.contract.client import ClientReply
from wharf.contract.model.body_limits import MAX_ECHOED_CHARS, MAX_REPORTED_PROBLEMS
from wharf.contract.model.message_texts import format_message, list_message_fields
from wharf.contract.wire.endpoint_table import ENDPOINTS, Endpoint

INPUT = "zq " * (20_000 if IS_FULL_RUN else 1_000)
"""A value of 60 kB in `make fuzz`. Its words are short, so that only the rules for quotes and lines cut it."""
TARGET_STEP = 1 if IS_FULL_RUN else 17
"""One of this number of ids and parameters is sent. All take 20 s of CPU time."""
PATH_INPUT = "zq " * 12_000
"""The longest value of a path or parameter: as a part of a URL it has 60 kB."""
MAX_DEPTH = 12
QUERY_NAMES = (
    "namespace",
    "region",
    "filter",
    "prefix",
    "next_token",
    "per_page",
    "reverse",
    "index",
    "wait",
    "stale",
    "pretty",
)
"""Parameters that endpoints of a kind share."""


def iter_text_paths(kind: inspect.Type, path: Path = (), parents: frozenset[type] = frozenset()) -> Iterator[Path]:
    """Yield the paths of all texts of a body; "[]" stands for an element of a list or map."""
    if isinstance(kind, inspect.UnionType):
        kind = next(member for member in kind.types if not isinstance(member, inspect.NoneType))
    if len(path) > MAX_DEPTH:
        return
    match kind:
        case inspect.StructType() if kind.cls not in parents:
            for field in kind.fields:
                yield from iter_text_paths(field.type, (*path, field.encode_name), parents | {kind.cls})
        case inspect.VarTupleType() | inspect.ListType():
            yield from iter_text_paths(kind.item_type, (*path, "[]"), parents)
        case inspect.DictType():
            yield from iter_text_paths(kind.value_type, (*path, "[]"), parents)
        case inspect.StrType() | inspect.EnumType():
            yield path


def find_longest_echo(text: str) -> int:
    """Return the number of characters of the input that the text repeats in one piece."""
    count = 0
    while INPUT[: count + 1] in text and count < len(INPUT):
        count += 1
    return count


def list_texts_for_users(reply: ClientReply) -> list[str]:
    """Return the error, or the errors and warnings of a successful reply."""
    if reply.status >= 400:
        return [reply.body.decode()]
    body = json.loads(reply.body) if reply.body.startswith(b"{") else {}
    texts = [body.get(name) for name in ("Error", "error", "Warnings", "Warning", "warning")]
    return [text for text in [*texts, *(body.get("ValidationErrors") or [])] if isinstance(text, str)]


@pytest.mark.fuzz
@in_virtual_time
async def test_a_text_for_users_repeats_at_most_200_characters_of_any_text_of_a_body() -> None:
    too_long, statuses = [], Counter[int]()
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(a_job("web"))
        ids: dict[str, Any] = {"": ("web",)}
        for endpoint in BODY_ENDPOINTS:
            assert endpoint.body_type is not None
            target, values = build_target(endpoint, ids)
            for path in iter_text_paths(inspect.type_info(endpoint.body_type)):
                body = build_body(endpoint.body_type, path, INPUT, next(iter(values.values()), ""))
                reply = await send_raw(server.api, endpoint.method, target, body=json.dumps(body).encode())
                for text in list_texts_for_users(reply):
                    statuses[reply.status // 100] += INPUT[:50] in text
                    if (length := find_longest_echo(text)) > MAX_ECHOED_CHARS or text.endswith("\n"):
                        too_long.append((endpoint.name, reply.status, path, length))
    assert (statuses[4] > 100, statuses[2] > 30) == (True, True)
    assert too_long == []


SHORT_REPLIES = [
    endpoint
    for endpoint in ENDPOINTS
    if endpoint.name not in SHUTTING_DOWN and not endpoint.has_endless_reply and not endpoint.unsupported_reason
]


def iter_long_targets(endpoint: Endpoint) -> Iterator[tuple[str, str, str]]:
    """Yield paths and queries with one long value: each id of the path, and each parameter."""
    target, values = build_target(endpoint, defaultdict(lambda: ("web",)))
    for name in values:
        long_target, _ = build_target(endpoint, {**dict.fromkeys(values, ("web",)), name: (PATH_INPUT,)})
        yield name, long_target, ""
    for name in (*(parameter.name for parameter in endpoint.parameters), *QUERY_NAMES):
        yield name, target, f"{name}={quote(PATH_INPUT)}"


@pytest.mark.fuzz
@in_virtual_time
async def test_an_error_repeats_at_most_200_characters_of_any_id_or_parameter() -> None:
    too_long, statuses, echo_count = [], Counter[int](), 0
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(a_job("web"))
        targets = [(endpoint, *each) for endpoint in SHORT_REPLIES for each in iter_long_targets(endpoint)]
        for endpoint, name, target, query in targets[::TARGET_STEP]:
            reply = await send_raw(server.api, endpoint.method, target, query=query)
            if reply.status < 400:
                continue
            text = reply.body.decode()
            statuses[reply.status] += 1
            echo_count += PATH_INPUT[:50] in text
            if (length := find_longest_echo(text)) > MAX_ECHOED_CHARS or text.endswith("\n") or len(text) > 2_000:
                too_long.append((endpoint.name, reply.status, name, length, len(text)))
    assert statuses[400] > 300 // TARGET_STEP, statuses
    assert echo_count > 30 // TARGET_STEP
    assert too_long == []


@in_virtual_time
async def test_a_validation_with_many_long_operands_returns_twenty_short_errors() -> None:
    constraint = {"LTarget": "a", "RTarget": "b", "Operand": "<" * 131_000}
    async with ACluster() as cluster:
        server = await cluster.a_server()
        body = json.dumps({"Job": {"ID": "shop", "Constraints": [constraint] * 60}}).encode()

        reply = await send_raw(server.api, "PUT", "/v1/validate/job", body=body)

        assert (reply.status, len(json.loads(reply.body)["ValidationErrors"])) == (200, MAX_REPORTED_PROBLEMS)
        assert len(reply.body) < 2 * MAX_REPORTED_PROBLEMS * 600


@in_virtual_time
async def test_a_join_with_a_long_address_repeats_at_most_200_characters_of_it() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        reply = await send_raw(server.api, "PUT", "/v1/agent/join", query="address=" + "a" * 3_000)

        assert (reply.status, json.loads(reply.body)["error"][:204]) == (200, "a" * MAX_ECHOED_CHARS + "... ")


@in_virtual_time
async def test_the_refusal_of_a_handshake_repeats_at_most_200_characters_of_its_query() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        status, text = await shake_hands(server.api, EXEC, "tty=" + "y" * 3_000)

        assert (status, b"y" * (MAX_ECHOED_CHARS + 1) in text, len(text) < 700) == (400, False, True)


def test_every_error_and_warning_of_a_reply_type_is_cut() -> None:
    texts = {
        (endpoint.reply_type, field.name)
        for endpoint in ENDPOINTS
        if isinstance(endpoint.reply_type, type) and issubclass(endpoint.reply_type, msgspec.Struct)
        for field in msgspec.structs.fields(endpoint.reply_type)
        if "error" in field.name or "warning" in field.name
    }

    assert {(kind, name) for kind, _ in texts for name in list_message_fields(kind)} == texts


@pytest.mark.parametrize("part", ["Q", "q ", '"a" ', '"', "\n", "'"])
def test_a_long_text_is_formatted_within_the_time_of_a_slot(part: str) -> None:
    text = part * (10_000_000 // len(part))
    with limited_cpu(0.1, "formatting"):
        formatted = format_message(text)

    assert len(formatted) <= len(text)
