"""Encoding of large values as JSON piece by piece."""

import random
import string
from typing import Any

import msgspec
import pytest

from tests.builders import a_group, a_job, a_task
from wharf.cluster.api.replies.encoding import encode_body
from wharf.cluster.api.replies.pieces import (
    MAX_LIGHT_RECORDS,
    PIECE_WEIGHT,
    LazyList,
    LightRecords,
    is_heavy,
    iterate_pieces,
)
from wharf.contract.model.jobs.job import Job

LONG_TEXT = '"quoted"\n\t\x00\\u0041é\U0001f6a2' * 20_000
CHARACTERS = string.printable + "é\x00\x1f\U0001f6a2"


def encode_in_one_step(value: object, *, is_pretty: bool) -> bytes:
    return b"".join(encode_body(value, is_pretty=is_pretty).chunks)


def large_values() -> dict[str, object]:
    """Return heavy values of all kinds."""
    many_fields = msgspec.defstruct("Wide", [(f"field{number}", str) for number in range(60)])
    task = a_task("server", config={"nested": [{"a": [number, None, True, 1.5]} for number in range(5_000)]})
    return {
        "a long text": LONG_TEXT,
        "binary data": bytes(range(256)) * 1_001,
        "a list of numbers": list(range(50_000)),
        "a tuple of long texts": (LONG_TEXT, "short", LONG_TEXT),
        "a map of short texts": {f"key{number}": "x" * 20 for number in range(20_000)},
        "a map with numbers as keys": {number: LONG_TEXT if number == 7 else "x" for number in range(9)},
        "a map with one long text": {"a": 1, LONG_TEXT[:100]: LONG_TEXT, "z": [], "": {}},
        "nested lists": [[[list(range(30_000))], []], {}],
        "a record of fields below the limit": many_fields(*["x" * 8_000] * 60),
        "a job with long texts": a_job("shop", a_group("web", task), meta={"a": LONG_TEXT}),
        "a job with many groups": a_job("shop", *(a_group(f"web{number}", a_task("server")) for number in range(500))),
        "already encoded JSON": [msgspec.Raw(msgspec.json.encode({"a": list(range(60_000)), "b": "\\u0041"})), 1],
        "the placeholder in encoded JSON": many_fields(LONG_TEXT, msgspec.Raw(b'"\\u0041"'), *["x" * 100] * 58),
    }


@pytest.mark.parametrize("is_pretty", [False, True])
@pytest.mark.parametrize("name", large_values())
def test_the_pieces_of_a_heavy_value_are_what_one_step_would_encode(name: str, is_pretty: bool) -> None:
    value = large_values()[name]

    pieces = list(iterate_pieces(value, is_pretty=is_pretty))

    assert is_heavy(value)
    assert b"".join(pieces) == encode_in_one_step(value, is_pretty=is_pretty)


@pytest.mark.parametrize("is_pretty", [False, True])
def test_no_piece_is_much_larger_than_its_limit(is_pretty: bool) -> None:
    job = large_values()["a job with long texts"]

    longest = max(map(len, iterate_pieces(job, is_pretty=is_pretty)))

    assert longest < 8 * PIECE_WEIGHT


def a_random_value(rng: random.Random, depth: int) -> Any:
    """Return a value of up to a few hundred kB."""
    match rng.randrange(7 if depth else 4):
        case 0:
            return rng.choice([None, True, 17, -1.25, "", [], {}])
        case 1 | 2:
            return "".join(rng.choices(CHARACTERS, k=rng.choice([3, 50])))
        case 3:
            return "".join(rng.choices(CHARACTERS, k=20)) * rng.choice([1, 500, 9_000])
        case 4 | 5:
            return [a_random_value(rng, depth - 1) for _ in range(rng.choice([1, 5, 30]))]
        case _:
            return {f"{number}\n": a_random_value(rng, depth - 1) for number in range(rng.choice([1, 5, 30]))}


@pytest.mark.parametrize("seed", range(20))
def test_the_pieces_of_any_value_are_what_one_step_would_encode(seed: int) -> None:
    value = a_random_value(random.Random(seed), 4)

    for is_pretty in (False, True):
        assert b"".join(iterate_pieces(value, is_pretty=is_pretty)) == encode_in_one_step(value, is_pretty=is_pretty)


@pytest.mark.parametrize("is_pretty", [False, True])
@pytest.mark.parametrize("count", [0, 1, 30_000])
def test_a_lazy_list_is_encoded_as_a_list(count: int, is_pretty: bool) -> None:
    lazy = {"a": LazyList(lambda: iter(range(count))), "b": 1}
    pieces = b"".join(iterate_pieces(lazy, is_pretty=is_pretty))

    assert pieces == encode_in_one_step({"a": list(range(count)), "b": 1}, is_pretty=is_pretty)


def test_a_small_job_is_light_and_remembered_only_while_there_is_room() -> None:
    light_records = LightRecords()
    job = a_job("shop")

    assert light_records.is_light(job)
    assert all(light_records.is_light(a_job(f"job{number}")) for number in range(MAX_LIGHT_RECORDS + 5))
    assert light_records.is_light(job)
    assert len(light_records._records) <= MAX_LIGHT_RECORDS


def test_a_heavy_job_is_never_light() -> None:
    light_records = LightRecords()
    job = large_values()["a job with long texts"]

    assert isinstance(job, Job)
    assert [light_records.is_light(job) for _ in range(2)] == [False, False]
