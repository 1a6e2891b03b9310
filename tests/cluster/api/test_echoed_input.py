"""An error text repeats at most 200 characters of its input: every text of every body, one at a time."""

import json
from collections.abc import Iterator
from typing import Any

from msgspec import inspect

from tests.bounded_work.worst_bodies import Path, build_body
from tests.bounded_work.worst_requests import BODY_ENDPOINTS, build_target
from tests.builders import a_job
from tests.kit.cluster import ACluster
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time
from wharf.contract.model.body_limits import MAX_ECHOED_CHARS

INPUT = "zq " * 1_000
MAX_DEPTH = 12


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


@in_virtual_time
async def test_an_error_text_repeats_at_most_200_characters_of_any_text_of_a_body() -> None:
    too_long, refused_count = [], 0
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
                if reply.status >= 400:
                    refused_count += 1
                    if (length := find_longest_echo(reply.body.decode())) > MAX_ECHOED_CHARS:
                        too_long.append((endpoint.name, path, length))
    assert refused_count > 100
    assert too_long == []
