"""Dynamic blocks (reference section 8)."""

import pytest

from tests.languages.hcl.evaluations import find_errors, list_errors, read_job


def expand(*lines: str, inside: str = "network") -> object:
    """Return the ports of a network with these lines."""
    text = "\n".join(['job "x" {', ' group "g" {', f" {inside} {{", *lines, " }", " }", "}", ""])
    return read_job(text)["group"][0][1]["network"][0][0].get("port")


def dynamic(for_each: str, *, labels: str = "[port.key]", to: str = "port.value", more: str = "") -> list[str]:
    return [
        'dynamic "port" {',
        f"for_each = {for_each}",
        f"labels = {labels}",
        more,
        "content {",
        f"to = {to}",
        "}",
        "}",
    ]


@pytest.mark.parametrize(
    ("lines", "ports"),
    [
        (dynamic("{ http = 8080, admin = 9000 }"), [("admin", {"to": 9000}), ("http", {"to": 8080})]),
        (dynamic("[7, 8]", labels='["p${port.key}"]'), [("p0", {"to": 7}), ("p1", {"to": 8})]),
        (dynamic('convert(["b", "a"], set(string))', to="port.key"), [("a", {"to": "a"}), ("b", {"to": "b"})]),
        (dynamic("[7]", labels="[it.key]", to="it.value", more="iterator = it"), [("0", {"to": 7})]),
        (dynamic("[]"), None),
        (dynamic("{}"), None),
        (dynamic("[for v in [1, 2] : v * 2]"), [("0", {"to": 2}), ("1", {"to": 4})]),
    ],
)
def test_a_dynamic_block_stands_for_one_block_of_each_item(lines: list[str], ports: object) -> None:
    assert ports == expand(*lines)


def test_the_blocks_stand_in_the_place_of_the_dynamic_block() -> None:
    lines = ['port "a" {}', *dynamic("[1, 2]", labels='["d${port.key}"]'), 'port "z" {}']

    assert ["a", "d0", "d1", "z"] == [port[0] for port in expand(*lines)]  # type: ignore[attr-defined]


def test_names_of_outer_iterators_stay_visible() -> None:
    text = """job "x" {
  dynamic "group" {
    for_each = { web = [80], api = [81, 82] }
    labels   = [group.key]
    content {
      dynamic "network" {
        for_each = [1]
        iterator = net
        content {
          mode = "m-${group.key}-${net.value}"
          dynamic "port" {
            for_each = group.value
            labels   = ["${group.key}${port.key}"]
            content {
              to = port.value
            }
          }
        }
      }
    }
  }
}
"""

    assert {
        "group": [
            ("api", {"network": [({"mode": "m-api-1", "port": [("api0", {"to": 81}), ("api1", {"to": 82})]},)]}),
            ("web", {"network": [({"mode": "m-web-1", "port": [("web0", {"to": 80})]},)]}),
        ]
    } == read_job(text)


def test_a_dynamic_block_may_give_the_whole_body_of_a_map_or_free_form() -> None:
    text = """job "x" {
  group "g" {
    task "t" {
      dynamic "config" {
        for_each = ["i"]
        content {
          image = config.value
          mount {
            source = config.value
          }
        }
      }
      dynamic "env" {
        for_each = [1]
        content {
          A = env.value
        }
      }
    }
  }
}
"""
    task = read_job(text)["group"][0][1]["task"][0][1]

    assert {"config": [({"image": "i", "mount": [({"source": "i"},)]},)], "env": [({"A": 1},)]} == task


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (dynamic('"abc"'), "for_each needs a list, set, map or object, got a text"),
        (dynamic("null"), "for_each needs a list, set, map or object, got null"),
        (dynamic("3"), "for_each needs a list, set, map or object, got a number"),
        (dynamic("[1]", labels='"a"'), "labels is a list of texts, not a text"),
        (dynamic("[1]", labels='["a", "b"]'), "labels has 2 texts, and the block has 1"),
        (dynamic("[1]", labels="[null]"), "labels: expected a text, got null"),
        (dynamic("[1]", more='iterator = "it"'), "iterator is a name without quotes"),
        (dynamic("[1]", more="foo = 1"), 'dynamic has no argument "foo"'),
        (dynamic("[1]", to="it.value"), None),
        (['dynamic "port" {', "for_each = [1]", "content {", "}", "}"], "a port has a label, so dynamic needs labels"),
        (['dynamic "port" {', "labels = []", "content {", "}", "}"], "dynamic has no for_each"),
        (['dynamic "port" {', "for_each = [1]", 'labels = ["a"]', "}"], "dynamic has no content"),
        (
            ['dynamic "port" {', "for_each = [1]", 'labels = ["a"]', "content {", "}", "content {", "}", "}"],
            'the block "content" may occur only once',
        ),
        (['dynamic "prot" {', "for_each = [1]", "content {", "}", "}"], 'no block "prot" is allowed here'),
        (["dynamic {", "}"], "dynamic has one label, the type of its blocks"),
        (dynamic("[1]", more="to = 1"), 'dynamic has no argument "to"'),
    ],
)  # fmt: skip
def test_a_wrong_dynamic_block_is_an_error(lines: list[str], message: str | None) -> None:
    text = "\n".join(['job "x" {', ' group "g" {', " network {", *lines, " }", " }", "}", ""])
    errors = list_errors(text)

    assert ([] if message is None else [message]) == [error.split(": ", 1)[1] for error in errors]


def test_a_block_without_labels_needs_no_labels() -> None:
    text = 'job "x" {\n dynamic "constraint" {\n for_each = [1]\n labels = ["a"]\n content {\n }\n }\n}\n'

    assert ["job.hcl:4:2: a constraint has no label"] == list_errors(text)


def test_two_items_for_a_block_that_may_occur_once_are_a_duplicate() -> None:
    text = 'job "x" {\n dynamic "update" {\n for_each = [1, 2]\n content {\n }\n }\n}\n'

    assert ['job.hcl:2:2: the block "update" may occur only once'] == list_errors(text)


def test_an_error_in_the_content_is_reported_once() -> None:
    text = 'job "x" {\n dynamic "constraint" {\n for_each = range(100)\n content {\n value = nope()\n }\n }\n}\n'

    assert ['job.hcl:5:10: no function "nope" exists'] == list_errors(text)


def test_dynamic_is_refused_inside_a_free_form_body_and_at_the_top_level() -> None:
    text = 'job "x" {\n group "g" {\n task "t" {\n config {\n dynamic "mount" {\n for_each = [1]\n content {\n }\n }\n }\n }\n }\n}\n'
    errors = find_errors(text)

    assert errors.startswith("job.hcl:5:2: dynamic is not allowed inside config\n")
    assert 'write dynamic "config" around the whole block' in errors
    assert ["job.hcl:1:1: dynamic is not allowed at the top level"] == list_errors(
        'dynamic "job" {\n for_each = ["a"]\n labels = ["a"]\n content {\n }\n}\n'
    )
