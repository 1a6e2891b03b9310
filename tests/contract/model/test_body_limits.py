"""The limits of request bodies: each is checked while a body is decoded, and the page that lists them is up to date."""

import json
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from wharf.contract.model.body_limits import (
    FURTHER_NAME_FIELDS,
    LIMITS_BY_FIELD,
    MAX_ECHOED_CHARS,
    MAX_INLINE_ITEMS,
    MAX_INLINE_OBJECTS,
    MAX_ITEMS,
    MAX_JSON_VALUES,
    MAX_KEY_CHARS,
    MAX_NAME_BYTES,
    MAX_OBJECT_FIELDS,
    MAX_REPORTED_PROBLEMS,
    MAX_TEXT_CHARS,
    MAX_TOTAL_ITEMS,
    MAX_TOTAL_ITEMS_BY_BODY,
    NAME_KEY_FIELDS,
    NAME_LIST_FIELDS,
    OBJECT_ITEMS,
    UNCHECKED_NAME_FIELDS,
    is_large_body,
    render_page,
)
from wharf.contract.model.decoding import DecodingError, convert_object, decode_json
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.record import Record
from wharf.contract.wire.endpoint_table import ENDPOINTS
from wharf.contract.wire.jobs.messages import JobStatusesRequest

LIMITS_PAGE = Path(__file__).parents[3] / "docs" / "body-limits.md"


class Bag(Record):
    id: str = ""
    title: str = ""
    numbers: tuple[int, ...] | None = None
    labels: dict[str, str] | None = None
    bags: tuple["Bag", ...] | None = None
    free: dict[str, object] | None = None


class CountingDict(dict[str, object]):
    """A dict that counts how many of its entries were read."""

    entries_read = 0

    def items(self) -> Any:
        for entry in super().items():
            self.entries_read += 1
            yield entry


def read_problems(record_type: type, submitted: Any) -> list[tuple[str, str]]:
    with pytest.raises(DecodingError) as caught:
        convert_object(record_type, submitted)
    return [(problem.path, problem.message) for problem in caught.value.problems]


def iter_record_types(value_type: object, seen: set[type]) -> Iterator[type[msgspec.Struct]]:
    """Yield the record types that a type consists of, each once."""
    if isinstance(value_type, type) and issubclass(value_type, msgspec.Struct) and value_type not in seen:
        seen.add(value_type)
        yield value_type
        for field in msgspec.structs.fields(value_type):
            yield from iter_record_types(field.type, seen)
        for further in dict(getattr(value_type, "only_when_submitted", {})).values():
            yield from iter_record_types(further, seen)
    for argument in getattr(value_type, "__args__", ()):
        yield from iter_record_types(argument, seen)


BODY_FIELDS = {
    f"{record_type.__name__}.{name}"
    for seen in [set[type]()]
    for endpoint in ENDPOINTS
    for record_type in iter_record_types(endpoint.body_type, seen)
    for name in record_type.__struct_encode_fields__
}


def test_the_page_of_limits_is_up_to_date() -> None:
    assert LIMITS_PAGE.read_text() == render_page(), (
        "stale: run `python -m wharf.contract.model.body_limits > docs/body-limits.md`"
    )


def test_every_field_with_a_limit_of_its_own_is_a_field_of_a_body() -> None:
    assert (
        sorted({*LIMITS_BY_FIELD, *FURTHER_NAME_FIELDS, *NAME_LIST_FIELDS, *UNCHECKED_NAME_FIELDS} - BODY_FIELDS) == []
    )


def test_every_body_with_a_limit_of_its_own_is_the_body_of_an_endpoint() -> None:
    bodies = {getattr(endpoint.body_type, "__name__", "") for endpoint in ENDPOINTS}

    assert sorted(MAX_TOTAL_ITEMS_BY_BODY.keys() - bodies) == []


@pytest.mark.parametrize(
    ("submitted", "path", "message"),
    [
        ({"Numbers": [1] * (MAX_ITEMS + 1)}, "Numbers", "holds 5001 items, more than the limit of 5000"),
        ({"Labels": dict.fromkeys(map(str, range(MAX_ITEMS + 1)), "")}, "Labels", "holds 5001 items"),
        ({"Free": {"a": [0] * (MAX_ITEMS + 1)}}, "Free", "holds 5001 items"),
        ({"Title": "x" * (MAX_TEXT_CHARS + 1)}, "Title", "is 131073 characters long, more than the limit of 131072"),
        ({"Labels": {"a": "x" * (MAX_TEXT_CHARS + 1)}}, "Labels.a", "is 131073 characters long"),
        ({"Free": {"a": "x" * (MAX_TEXT_CHARS + 1)}}, "Free", "is 131073 characters long"),
        ({"Labels": {"k" * (MAX_KEY_CHARS + 1): ""}}, "Labels", "the key is longer than 1024 characters"),
        ({"Free": {"k" * (MAX_KEY_CHARS + 1): 1}}, "Free", "the key is longer than 1024 characters"),
        ({f"F{n}": n for n in range(MAX_OBJECT_FIELDS + 1)}, "", "has 1001 fields, more than the limit of 1000"),
        (
            {"Numbers": [2**63]},
            "Numbers[0]",
            "the number is too large: write one from -9223372036854775808 to 9223372036854775807",
        ),
    ],
)
def test_a_value_above_a_limit_is_refused_with_its_path(submitted: Any, path: str, message: str) -> None:
    ((found_path, found_message),) = read_problems(Bag, submitted)

    assert found_path.startswith(path)
    assert found_message.startswith(message)


def test_values_at_the_limits_are_accepted() -> None:
    submitted = {
        "ID": "x" * MAX_NAME_BYTES,
        "Title": "x" * MAX_TEXT_CHARS,
        "Numbers": [1] * MAX_ITEMS,
        "Labels": {"k" * MAX_KEY_CHARS: "x" * MAX_TEXT_CHARS},
    }

    assert convert_object(Bag, submitted).value.title == submitted["Title"]


def test_the_items_of_a_whole_body_are_limited() -> None:
    lists = MAX_TOTAL_ITEMS // (MAX_ITEMS + OBJECT_ITEMS)
    submitted = {"Bags": [{"Numbers": [1] * MAX_ITEMS}] * (lists + 1)}

    ((path, message),) = read_problems(Bag, submitted)

    assert path == f"Bags[{lists}].Numbers"
    assert message == "the body holds more than 100000 list items and map entries in all"


def test_an_object_counts_as_several_items_of_the_body() -> None:
    count = MAX_TOTAL_ITEMS // (OBJECT_ITEMS + 1)
    bags: list[dict[str, Any]] = [{"Bags": [{}] * (count // 10)}] * 10

    ((path, message),) = read_problems(Bag, {"Bags": bags})

    assert path.startswith("Bags[9].Bags[")
    assert message == "the body holds more than 100000 list items and map entries in all"


def test_a_field_with_a_limit_of_its_own_is_checked_against_it() -> None:
    ((path, message),) = read_problems(Job, {"ID": "x", "TaskGroups": [{}] * 1_001})

    assert (path, message) == ("TaskGroups", "holds 1001 items, more than the limit of 1000")


def test_a_field_with_a_higher_limit_accepts_more_items() -> None:
    submitted = {"Jobs": [{"ID": "x", "Namespace": "default"}] * (MAX_ITEMS + 1)}

    assert len(convert_object(JobStatusesRequest, submitted).value.jobs or ()) == MAX_ITEMS + 1


def test_decoding_stops_at_a_list_above_its_limit() -> None:
    unread = CountingDict({"Numbers": [1]})

    read_problems(Bag, {"Bags": [{"Numbers": [1] * (MAX_ITEMS + 1)}, unread]})

    assert unread.entries_read == 0


def test_at_most_twenty_problems_are_reported() -> None:
    problems = read_problems(
        Bag, {"Bags": [{"Numbers": ["x"] * 30}, {"Labels": dict.fromkeys(map(str, range(30)), 1)}]}
    )

    assert [path for path, _ in problems] == [f"Bags[0].Numbers[{n}]" for n in range(MAX_REPORTED_PROBLEMS)]


def test_the_search_for_problems_stops_after_the_reported_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    conversions: list[object] = []
    convert = msgspec.convert

    def count_conversion(value: Any, type: Any, **options: Any) -> Any:
        conversions.append(value)
        return convert(value, type, **options)

    monkeypatch.setattr(msgspec, "convert", count_conversion)

    read_problems(Bag, {"Numbers": ["x"] * MAX_ITEMS})

    # The body, its list, and the first items.
    assert len(conversions) <= MAX_REPORTED_PROBLEMS + 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x" * 257, "is 257 bytes long; ids and names have at most 256 bytes"),
        ("é" * 129, "is 258 bytes long"),
        ("a\nb", "contains the character U+000A at position 2"),
        ("a\x00", "contains the character U+0000"),
        ("a\x7f", "contains the character U+007F"),
        ("a\x85", "contains the character U+0085"),
        ("a\u202eb", "contains the character U+202E"),
        ("a\u2066b", "contains the character U+2066"),
        ("a\u2028b", "contains the character U+2028"),
        ("..", 'contains the path segment "." or ".."'),
        ("a/./b", 'contains the path segment "." or ".."'),
    ],
)
def test_a_name_that_no_path_or_log_line_can_hold_is_refused(name: str, message: str) -> None:
    ((path, found),) = read_problems(Bag, {"ID": name})

    assert path == "ID"
    assert found.startswith(message)


@pytest.mark.parametrize("name", ["web", "a/b/c", "v1.2", "x..y", "späti", "名前", "é" * 128, "a b"])
def test_an_ordinary_name_is_accepted(name: str) -> None:
    assert convert_object(Bag, {"ID": name}).value.id == name


@pytest.mark.parametrize(
    "field", ["Job.ID", "TaskGroup.Name", "Task.Name", "Namespace.Name", "Quota.Name", "Node.Name"]
)
def test_the_names_of_every_noun_are_checked(field: str) -> None:
    record, _, name = field.partition(".")

    ((path, message),) = read_problems(find_record_type(record), {name: "a\u202eb"})

    assert path == name
    assert message.startswith("contains the character U+202E")


def find_record_type(name: str) -> type[msgspec.Struct]:
    return next(
        record_type
        for endpoint in ENDPOINTS
        for record_type in iter_record_types(endpoint.body_type, set())
        if record_type.__name__ == name
    )


@pytest.mark.parametrize("key", ["a\u202eb", "a\nb", "d" * (MAX_NAME_BYTES + 1), ".."])
@pytest.mark.parametrize("field", sorted(NAME_KEY_FIELDS))
def test_the_keys_of_maps_by_name_follow_the_rule_of_names(field: str, key: str) -> None:
    record, _, name = field.partition(".")

    ((path, message),) = read_problems(find_record_type(record), {name: {"ordinary": {}, key: {}}})

    assert path == name
    assert message.startswith("has a key that ")


def test_the_key_of_a_volume_of_a_group_follows_the_rule_of_names() -> None:
    ((path, message),) = read_problems(Job, {"TaskGroups": [{"Volumes": {"da\u202eta": {"Source": "data"}}}]})

    assert path == "TaskGroups[0].Volumes"
    assert message.startswith("has a key that contains the character U+202E at position 3")


FREE_KEY_FIELDS = {"AllocationUpdate.TaskStates", "NodeDevice.Attributes"}
"""Maps of records whose keys are not checked: names of tasks of stored jobs, and attributes."""


def test_the_keys_of_each_map_of_records_are_checked_or_known_to_be_free() -> None:
    maps = {
        f"{record_type.__name__}.{field.encode_name}"
        for endpoint in ENDPOINTS
        for record_type in iter_record_types(endpoint.body_type, set())
        for field in msgspec.structs.fields(record_type)
        if any(is_map_of_records(member) for member in (field.type, *getattr(field.type, "__args__", ())))
    }

    assert maps == (NAME_KEY_FIELDS - {"Service.TaggedAddresses"}) | FREE_KEY_FIELDS


def is_map_of_records(value_type: object) -> bool:
    if typing.get_origin(value_type) is not dict:
        return False
    _, value = typing.get_args(value_type)
    return isinstance(value, type) and issubclass(value, msgspec.Struct)


def test_a_problem_repeats_at_most_200_characters_of_input() -> None:
    ((path, _),) = read_problems(Bag, {"Labels": {"k" * 900: 1}})

    assert path == "Labels[" + "k" * MAX_ECHOED_CHARS + "...]"


@pytest.mark.parametrize("name", ["dc\n1", "dc\u202e1", "d" * (MAX_NAME_BYTES + 1), "../dc1"])
@pytest.mark.parametrize(
    ("path", "build"),
    [
        ("Datacenters[1]", lambda name: {"Datacenters": ["dc1", name]}),
        ("TaskGroups[0].Tasks[0].Driver", lambda name: {"TaskGroups": [{"Tasks": [{"Driver": name}]}]}),
        (
            "TaskGroups[0].Networks[0].DynamicPorts[0].HostNetwork",
            lambda name: {"TaskGroups": [{"Networks": [{"DynamicPorts": [{"HostNetwork": name}]}]}]},
        ),
    ],
)
def test_names_of_datacenters_drivers_and_host_networks_follow_the_rule_of_names(
    name: str, path: str, build: Any
) -> None:
    ((found_path, _message),) = read_problems(Job, build(name))

    assert found_path == path


@pytest.mark.parametrize(
    ("value", "path", "message"),
    [
        ([1] * (MAX_ITEMS + 1), "Unknown", "holds 5001 items"),
        ({"a": {f"k{n}": n for n in range(MAX_ITEMS + 1)}}, "Unknown.a", "holds 5001 items"),
        ([[1] * MAX_ITEMS] * 20, "Unknown[19]", "the body holds more than 100000 list items"),
        ("x" * (MAX_TEXT_CHARS + 1), "Unknown", "is 131073 characters long"),
        (json.loads("[" * 70 + "]" * 70), "Unknown", "nested deeper than 64 levels"),
    ],
    ids=["a long list", "a long map", "many items in all", "a long text", "a deep list"],
)
def test_a_field_that_is_not_known_has_the_limits_of_a_free_value(value: Any, path: str, message: str) -> None:
    ((found_path, found_message),) = read_problems(Bag, {"Unknown": value})

    assert (found_path[: len(path)], found_message[: len(message)]) == (path, message)


@pytest.mark.parametrize("name", ["Status", "iD"], ids=["ignored", "submitted twice"])
def test_a_dropped_field_has_the_limits_of_a_free_value(name: str) -> None:
    submitted = {"ID": "web", name: [1] * (MAX_ITEMS + 1)}

    ((path, message),) = read_problems(Job, submitted)

    assert (path, message) == (name, "holds 5001 items, more than the limit of 5000")


def test_unknown_fields_of_many_objects_count_as_items_of_the_body() -> None:
    unknown = {f"unknown{number}": 1 for number in range(MAX_OBJECT_FIELDS)}
    submitted = {"Bags": [unknown] * (MAX_TOTAL_ITEMS // MAX_OBJECT_FIELDS)}

    ((_, message),) = read_problems(Bag, submitted)

    assert message == "the body holds more than 100000 list items and map entries in all"


def test_a_small_unknown_field_is_dropped() -> None:
    decoded = convert_object(Bag, {"ID": "a", "Unknown": {"a": [1, {"b": None}]}})

    assert (decoded.value, decoded.unknown_paths) == (Bag(id="a"), ("Unknown",))


def test_a_json_text_of_too_many_values_is_not_decoded() -> None:
    with pytest.raises(DecodingError) as caught:
        decode_json(b"[" + b"[]," * (MAX_JSON_VALUES // 2) + b"[]]")

    assert str(caught.value) == "the JSON holds more than 2000000 values, lists and objects"


def test_commas_and_braces_in_texts_are_no_values() -> None:
    text = ',{["\\' * (MAX_JSON_VALUES // 2)

    assert decode_json(json.dumps({"a": text}).encode()) == {"a": text}


@pytest.mark.parametrize("part", [b"{}", b"[]", b"\\u007b"], ids=["objects", "lists", "escapes"])
def test_a_small_body_with_many_objects_counts_as_large(part: bytes) -> None:
    few, many = (
        b'{"x": [' + b" ".join([part] * count) + b"]}" for count in (MAX_INLINE_OBJECTS - 2, MAX_INLINE_OBJECTS)
    )
    padding = b" " * 4_096

    assert [is_large_body(body + padding, "JobRegisterRequest") for body in (few, many)] == [False, True]


def test_a_small_body_with_many_items_counts_as_large() -> None:
    few, many = (b"[" + b"," * count + b"]" + b" " * 4_096 for count in (MAX_INLINE_ITEMS, MAX_INLINE_ITEMS + 1))

    assert (is_large_body(few, "JobRegisterRequest"), is_large_body(many, "JobRegisterRequest")) == (False, True)


@pytest.mark.parametrize("name", ["If", "if", "\\u0049f", "i\\u0066"])
def test_a_small_body_with_a_condition_counts_as_large(name: str) -> None:
    body = f'{{"{name}": "a == b"}}'.encode()

    assert is_large_body(body + b" " * 1_024, "JobRegisterRequest")
    assert not is_large_body(body, "JobRegisterRequest")
