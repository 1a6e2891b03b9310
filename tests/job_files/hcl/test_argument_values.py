"""Arguments of job files: conversion by type, null, durations, maps, and values that are not judged while a file is read."""

from typing import Any

import pytest

from tests.job_files.hcl.job_texts import list_errors, list_task_errors, parse_body, parse_file, parse_group, parse_task
from wharf.contract.model.times import HOUR, MILLISECOND, MINUTE, SECOND
from wharf.languages.hcl.amounts import CORE_SHARE_FIX

# -- durations


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ('"20s"', 20 * SECOND),
        ('"1h30m"', 90 * MINUTE),
        ('"1.5h"', 90 * MINUTE),
        ('".5s"', SECOND // 2),
        ('"5.s"', 5 * SECOND),
        ('"-5s"', -5 * SECOND),
        ('"+5s"', 5 * SECOND),
        ('"0"', 0),
        ('"-0"', 0),
        ('"1h1m1s1ms1us1ns"', HOUR + MINUTE + SECOND + MILLISECOND + 1_001),
        ('"1µs"', 1_000),
        ('"1m1h"', HOUR + MINUTE),
        ('"1s1s"', 2 * SECOND),
        ('"0.000000001s"', 1),
        ('"2540400h10m10.000000001s"', 2_540_400 * HOUR + 10 * MINUTE + 10 * SECOND + 1),
        ("20000000000", 20 * SECOND),
        ("0", 0),
        ("5.0", 5),
        ('"${5}s"', 5 * SECOND),
        ('"${10 * 6}s"', MINUTE),
    ],
)
def test_a_duration_is_a_text_with_units_or_a_number_of_nanoseconds(text: str, nanoseconds: int) -> None:
    assert parse_task(f"kill_timeout = {text}")["KillTimeout"] == nanoseconds


@pytest.mark.parametrize(
    ("text", "found", "fix"),
    [
        ('"20"', '"20"', 'write kill_timeout = "20s"'),
        ('"1d"', '"1d"', 'write kill_timeout = "24h"'),
        ('"2 days"', '"2 days"', 'write kill_timeout = "48h"'),
        ('"5 min"', '"5 min"', 'write kill_timeout = "5m"'),
        ('"5 s"', '"5 s"', 'write kill_timeout = "30s", with a unit: ns, us, ms, s, m or h'),
        ('""', '""', 'write kill_timeout = "30s", with a unit: ns, us, ms, s, m or h'),
        ('"${meta.t}"', "a text", 'a text such as "30s", or a number of nanoseconds'),
        ("1.5", "1.5", 'write kill_timeout = "30s", with a unit: ns, us, ms, s, m or h'),
        ("true", "a bool", 'write kill_timeout = "30s", with a unit: ns, us, ms, s, m or h'),
        ("[]", "a list", 'a text such as "30s", or a number of nanoseconds'),
        ('"300000000h"', '"300000000h"', 'write kill_timeout = "30s", with a unit: ns, us, ms, s, m or h'),
    ],
)
def test_another_value_is_not_a_duration(text: str, found: str, fix: str) -> None:
    expected = f'"kill_timeout" takes a duration such as "30s" or "1h30m", not {found} | {fix}'

    assert list_task_errors(f"kill_timeout = {text}") == [expected]


# -- conversions


@pytest.mark.parametrize(
    ("argument", "field", "value"),
    [
        ('count = "5"', "Count", 5),
        ("count = 5.0", "Count", 5),
        ("count = 2 * 3", "Count", 6),
        ("count = -1", "Count", -1),
        ("count = 1e3", "Count", 1_000),
        ("count = 9223372036854775807", "Count", 2**63 - 1),
        ('prevent_reschedule_on_lost = "true"', "PreventRescheduleOnLost", True),
        ('prevent_reschedule_on_lost = "1"', "PreventRescheduleOnLost", True),
    ],
)
def test_a_text_that_reads_as_a_number_or_bool_is_converted(argument: str, field: str, value: object) -> None:
    assert parse_group(argument)[field] == value


@pytest.mark.parametrize(
    ("text", "value"), [("5", "5"), ("1.50", "1.5"), ("true", "true"), ('"${1e21}"', "1" + "0" * 21)]
)
def test_a_number_or_bool_is_converted_to_a_text(text: str, value: str) -> None:
    assert parse_task(f"user = {text}")["User"] == value


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("count = 1.5", '"count" takes a whole number, not 1.5'),
        ('count = "a"', '"count" takes a whole number, not "a"'),
        ('count = "5x"', '"count" takes a whole number, not "5x"'),
        ("count = true", '"count" takes a whole number, not a bool'),
        ("count = [1]", '"count" takes a whole number, not a list'),
        ("count = NOMAD_META_N", '"count" takes a whole number, not a text'),
        ("count = 9223372036854775808", '"count" takes a whole number, not 9223372036854775808'),
        ("count = 1e300", '"count" takes a whole number, not such a large number'),
        ('prevent_reschedule_on_lost = "yes"',
         '"prevent_reschedule_on_lost" takes true or false, not "yes" | write true or false'),
        ('prevent_reschedule_on_lost = "True"',
         '"prevent_reschedule_on_lost" takes true or false, not "True" | write true in lower case'),
        ("prevent_reschedule_on_lost = 1", '"prevent_reschedule_on_lost" takes true or false, not 1'),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_an_error(argument: str, message: str) -> None:
    assert list_errors(f'group "g" {{\n{argument}\n}}') == [message]


def test_a_list_of_texts_takes_numbers_and_an_empty_list() -> None:
    assert parse_body('datacenters = ["a", 5, true]')["Datacenters"] == ["a", "5", "true"]
    assert parse_body("datacenters = []")["Datacenters"] == []
    assert parse_body('datacenters = convert(["b", "a"], set(string))')["Datacenters"] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"dc1"', '"datacenters" takes a list of texts, not "dc1" | write datacenters = ["dc1"]'),
        ('["dc1", null]', '"datacenters" takes a list of texts, and item 1 is null'),
        ('["dc1", ["dc2"]]', '"datacenters" takes a list of texts, and item 1 is a list'),
        ("{}", '"datacenters" takes a list of texts, not an object | put the value in [ ]'),
    ],
)
def test_a_list_of_texts_takes_no_single_text_and_no_null(text: str, message: str) -> None:
    assert list_errors(f"datacenters = {text}") == [message]


def test_a_list_of_numbers_reports_the_item_that_is_none() -> None:
    text = 'group "g" {\nservice {\nconnect {\nsidecar_service {\nproxy {\ntransparent_proxy {\nexclude_outbound_ports = ["1", 70000]\n'

    assert list_errors(text + "}\n" * 6) == [
        '"exclude_outbound_ports" takes a list of whole numbers, and item 1 is a number'
    ]


def test_numbers_have_the_range_of_their_field() -> None:
    assert list_errors("spread {\nweight = 200\n}") == ['"weight" takes a whole number from -128 to 127, not 200']
    assert list_errors('spread {\ntarget "a" {\npercent = -1\n}\n}') == [
        '"percent" takes a whole number of percent from 0 to 255, not -1'
    ]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ("driver = null", "Driver"),
        ("leader = null", "Leader"),
        ("kill_timeout = null", "KillTimeout"),
        ("shutdown_delay = null", "ShutdownDelay"),
        ("env = null", "Env"),
        ("meta = true ? null : {}", "Meta"),
    ],
)
def test_null_counts_as_absent(body: str, path: str) -> None:
    assert parse_task(body)[path] == parse_task("")[path]


def test_values_are_not_judged() -> None:
    body = 'count = -1\nconstraint {\n operator = "~"\n}\nrestart {\n mode = "never"\n}'
    group = parse_group(body)

    assert (group["Count"], group["Constraints"][0]["Operand"], group["RestartPolicy"]["Mode"]) == (-1, "~", "never")


# -- maps


@pytest.mark.parametrize("read", [parse_body, parse_group, parse_task], ids=["job", "group", "task"])
def test_meta_may_be_a_block_an_argument_or_an_expression(read: Any) -> None:
    assert read("meta {\n a = 1\n b-c = true\n}")["Meta"] == {"a": "1", "b-c": "true"}
    assert read('meta = { "a.b" = 1, (upper("x")) = "${attr.y}" }')["Meta"] == {"a.b": "1", "X": "${attr.y}"}
    assert read("meta = merge({ a = 1 }, { b = 2 })")["Meta"] == {"a": "1", "b": "2"}
    assert read("meta {}")["Meta"] == {}


def test_meta_may_be_an_expression_in_the_json_form() -> None:
    text = '{"job": {"j": {"meta": "${merge({ a = 1 }, { b = 2 })}", "group": {"g": {"meta": null}}}}}'
    document = parse_file(text).document

    assert (document["Meta"], document["TaskGroups"][0]["Meta"]) == ({"a": "1", "b": "2"}, None)


def test_env_may_be_an_argument() -> None:
    assert parse_task('env = { A = 1, "B.C" = "x" }')["Env"] == {"A": "1", "B.C": "x"}


def test_env_and_meta_may_be_dynamic_blocks() -> None:
    text = 'dynamic "env" {\n for_each = ["x"]\n content {\n A = env.value\n }\n}'

    assert parse_task(text)["Env"] == {"A": "x"}


@pytest.mark.parametrize(
    ("body", "messages"),
    [
        ("env {\n A = null\n}", ['"A" takes a text, not null | delete the line']),
        ("env {\n A = [1]\n}", ['"A" takes a text, not a list | use jsonencode for a list or map']),
        ("env = { A = { b = 1 } }", ['"A" takes a text, not an object | use jsonencode for a list or map']),
        ("env = { A = null }", ['"A" takes a text, not null | delete the line']),
        ("env = [1]", ['"env" takes a map of texts, not a list | write env = { name = ... }']),
        ("env {}\nenv {}", ['the block "env" may occur only once | join both into one']),
        ("env = {}\nenv {}", ['"env" is a block here, and an argument before | join both into one']),
    ],
)
def test_a_map_takes_texts_and_occurs_once(body: str, messages: list[str]) -> None:
    assert list_task_errors(body) == messages


@pytest.mark.parametrize(
    "body",
    ["service {\n meta = {}\n}", "artifact {\n options = {}\n}", "artifact {\n headers = {}\n}", "config = {}"],
)
def test_other_maps_take_the_form_of_a_block_only(body: str) -> None:
    (message,) = list_task_errors(body)

    assert " is a block, not an argument | delete the =: write " in message


def test_a_header_takes_lists_of_texts() -> None:
    header = "service {\n check {\n header {\n X = %s\n }\n }\n}"

    assert list_task_errors(header % '"v"') == ['"X" takes a list of texts, not "v" | put the value in [ ]']
    assert parse_task(header % '["v", 1]')["Services"][0]["Checks"][0]["Header"] == {"X": ["v", "1"]}


# -- blocks


def test_a_block_that_may_occur_once_names_both_places() -> None:
    assert list_errors("update {}\nupdate {}") == ['the block "update" may occur only once | join both into one']


def test_repeated_blocks_have_the_order_of_the_file() -> None:
    body = "constraint {\n value = 1\n}\nmeta {}\nconstraint {\n value = 2\n}"

    assert [each["RTarget"] for each in parse_body(body)["Constraints"]] == ["1", "2"]


def test_dynamic_blocks_are_at_the_place_of_the_dynamic_block() -> None:
    body = 'port "a" {}\ndynamic "port" {\n for_each = ["b", "c"]\n labels = [port.value]\n content {}\n}\nport "d" {}'
    network = parse_group(f"network {{\n{body}\n}}")["Networks"][0]

    assert [port["Label"] for port in network["DynamicPorts"]] == ["a", "b", "c", "d"]


def test_an_empty_block_is_an_object_and_an_absent_one_is_null() -> None:
    assert parse_body("update {}")["Update"] == dict.fromkeys(
        ("MaxParallel", "Stagger", "HealthCheck", "MinHealthyTime", "HealthyDeadline", "ProgressDeadline", "Canary",
         "AutoRevert", "AutoPromote")
    )  # fmt: skip
    assert parse_body("")["Update"] is None
    assert parse_task("config {}")["Config"] == {}
    assert parse_task("")["Config"] is None


def test_the_arguments_of_cni_are_a_map_but_no_block() -> None:
    assert list_errors('group "g" {\nnetwork {\ncni {\nargs {}\n}\n}\n}') == [
        '"args" is an argument, not a block | write args = ...'
    ]
    assert list_errors('group "g" {\nnetwork {\ncni {\nargs = { a = null }\n}\n}\n}') == [
        '"args" takes a map of texts, and "a" is null'
    ]
    assert list_errors('group "g" {\nnetwork {\ncni {\nargs = ["a"]\n}\n}\n}') == [
        '"args" takes a map of texts, not a list'
    ]


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ('memory = "1 GB"', "write memory = 1024"),
        ('cpu = "2GHz"', "write cpu = 2000"),
        ('cpu = "500 mhz"', "write cpu = 500"),
        ('cpu = "500m"', CORE_SHARE_FIX),
        ('cpu = "0.5"', CORE_SHARE_FIX),
        ("cpu = 0.5", CORE_SHARE_FIX),
    ],
)
def test_a_number_with_a_unit_is_suggested_in_the_unit_of_the_argument(line: str, fix: str) -> None:
    (error,) = list_task_errors(f"resources {{\n{line}\n}}")

    assert error.partition(" | ")[2] == fix
