"""Bodies with any content: the `config` of tasks, the `policy` of scaling, and the `config` of secrets and the mesh."""

from typing import Any

import pytest

from tests.job_files.hcl.job_texts import list_task_errors, parse_file, parse_task


def read_config(body: str) -> Any:
    return parse_task(f"config {{\n{body}\n}}")["Config"]


@pytest.mark.parametrize(
    ("body", "config"),
    [
        ('a = "x"\nb = 1\nc = 1.5\nd = true\ne = [1, "a", null]', {"a": "x", "b": 1, "c": 1.5, "d": True, "e": [1, "a", None]}),
        ("a = 1.0\nb = 1e3", {"a": 1, "b": 1_000}),
        ("a = 9223372036854775807\nb = 9223372036854775808", {"a": 2**63 - 1, "b": 9.223372036854775808e18}),
        ("a = null\nb = [null]\nc = jsondecode(\"{\\\"d\\\": null}\")", {"b": [None], "c": {"d": None}}),
        ('a = "${attr.x}"\nb = [NOMAD_PORT_http]', {"a": "${attr.x}", "b": ["${NOMAD_PORT_http}"]}),
    ],
)  # fmt: skip
def test_types_are_kept_and_null_disappears(body: str, config: dict[str, object]) -> None:
    assert read_config(body) == config
    assert [type(value) for value in read_config(body).values()] == [type(value) for value in config.values()]


def test_a_nested_block_is_a_list_with_one_object_for_each() -> None:
    assert read_config('mount {\n type = "bind"\n}\nmount {}') == {"mount": [{"type": "bind"}, {}]}
    assert read_config('auth {\n username = "u"\n}') == {"auth": [{"username": "u"}]}
    assert read_config("a {\n b {\n c = 1\n }\n}") == {"a": [{"b": [{"c": 1}]}]}


def test_labels_nest() -> None:
    assert read_config('check "cpu" {\n strategy "x" {}\n}') == {"check": [{"cpu": [{"strategy": [{"x": [{}]}]}]}]}
    assert read_config('a "b" "c" {\n d = 1\n}') == {"a": [{"b": [{"c": [{"d": 1}]}]}]}
    assert read_config('a "b" {}\na "c" {}\na {}') == {"a": [{"b": [{}]}, {"c": [{}]}, {}]}


@pytest.mark.parametrize(
    ("body", "config"),
    [
        ("labels = { a = 1 }", {"labels": [{"a": 1}]}),
        ("labels = {}", {"labels": [{}]}),
        ("o = { p = { q = 1 } }", {"o": [{"p": {"q": 1}}]}),
        ("l = [{ a = 1 }]", {"l": [{"a": 1}]}),
        ("x = merge({ a = 1 }, { b = 2 })", {"x": {"a": 1, "b": 2}}),
        ("x = ({ a = 1 })", {"x": {"a": 1}}),
        ("x = true ? { a = 1 } : { a = 2 }", {"x": {"a": 1}}),
        ("x = { for k in [\"a\"] : k => 1 }", {"x": {"a": 1}}),
        ("x = local.o", {"x": {"a": 1}}),
        ("mount {\n options = { a = 1 }\n}", {"mount": [{"options": [{"a": 1}]}]}),
        ('labels = { "a.b" = 1, (upper("c")) = 2 }', {"labels": [{"a.b": 1, "C": 2}]}),
    ],
)  # fmt: skip
def test_only_an_object_literal_is_wrapped_in_a_list(body: str, config: dict[str, object]) -> None:
    text = (
        f'locals {{\n o = {{ a = 1 }}\n}}\njob "j" {{\ngroup "g" {{\ntask "t" {{\nconfig {{\n{body}\n}}\n}}\n}}\n}}\n'
    )

    assert parse_file(text).document["TaskGroups"][0]["Tasks"][0]["Config"] == config


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("config = {\n a = 1\n}", '"config" is a block, not an argument | delete the =: write config {'),
        ("config {}\nconfig {}", 'the block "config" may occur only once | join both into one'),
        ("config {\n a = 1\n a {}\n}", '"a" is both an argument and a block | rename one of them'),
        (
            'config {\n dynamic "mount" {\n for_each = []\n content {}\n }\n}',
            'dynamic is not allowed inside config | write dynamic "config" around the whole block',
        ),
    ],
)
def test_a_wrong_config_is_an_error(body: str, message: str) -> None:
    assert list_task_errors(body) == [message]


def test_a_config_may_be_a_dynamic_block() -> None:
    body = 'dynamic "config" {\n for_each = ["web:1"]\n content {\n image = config.value\n mount {}\n }\n}'

    assert parse_task(body)["Config"] == {"image": "web:1", "mount": [{}]}
