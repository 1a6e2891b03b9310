"""References that are left for the node (reference section 9)."""

import pytest

from tests.languages.hcl.evaluations import evaluate, evaluate_text, find_failure, read_body, read_job


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"${attr.cpu.arch}"', "${attr.cpu.arch}"),
        ("attr.cpu.arch", "${attr.cpu.arch}"),
        ('"${NOMAD_PORT_http}"', "${NOMAD_PORT_http}"),
        ("NOMAD_JOB_NAME", "${NOMAD_JOB_NAME}"),
        ('"${env["HOME"]}"', '${env["HOME"]}'),
        ('"${meta.foo-bar}"', "${meta.foo-bar}"),
        ('meta["a b"]', '${meta["a b"]}'),
        ("x.0.y", "${x.0.y}"),
        ('"${x[0].y}"', "${x[0].y}"),
        ('"${ attr.x }"', "${ attr.x }"),
        ('"a ${  attr.x} b"', "a ${  attr.x} b"),
        ('"${~ attr.x ~}"', "${attr.x}"),
        ('"a ${~ attr.x ~} b"', "a${attr.x}b"),
        ('"$${anything}"', "${anything}"),
        ('"$${a-b:+c}"', "${a-b:+c}"),
        ('"${nope}"', "${nope}"),
        ("path.module", "${path.module}"),
        ("each.value", "${each.value}"),
        ("job.name", "${job.name}"),
        ('[attr.x, {a = "${meta.y}"}]', ["${attr.x}", {"a": "${meta.y}"}]),
        # It behaves as a text.
        ("upper(attr.x)", "${ATTR.X}"),
        ('attr.x == "a"', False),
        ('attr.x == "$${attr.x}"', True),
        ('"${true ? attr.x : attr.y}"', "${attr.x}"),
        ('"a${upper(attr.x)}b"', "a${ATTR.X}b"),
        ('"a${(attr.x)}b"', "a${attr.x}b"),
        ("strlen(attr.x)", 9),
        # A brace after the reference is not doubled.
        ('"{${attr.a}}"', "{${attr.a}}"),
        ('"{${attr.a} }"', "{${attr.a} }"),
        ('"{{${attr.a}}}"', "{{${attr.a}}}"),
        # A reference inside a part that is written as text.
        ('"$${meta.${"k"}}"', "${meta.k}"),
    ],
)
def test_a_reference_for_the_node_stays_as_text(text: str, value: object) -> None:
    assert value == evaluate(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("attr.x + 1", "operator +: expected a number, got a text that is not a number"),
        ("attr.x ? 1 : 2", "condition: expected true or false, got another text"),
        ("[for v in attr.x : v]", "for needs a list, set, map or object, got a text"),
        ("nope[*]", "nope is replaced on the node, so it has no items here"),
        ("nope.*.a", "nope is replaced on the node, so it has no items here"),
        ("nope[other]", "nope is replaced on the node, so it has no items here"),
        ("nope[1 + 1]", "nope is replaced on the node, so it has no items here"),
        ("nope()", 'no function "nope" exists'),
        ("var.nope", 'no variable "nope" is declared'),
        ("local.nope", 'no local value "nope" is declared'),
    ],
)
def test_where_a_value_is_needed_a_reference_for_the_node_is_an_error(text: str, message: str) -> None:
    assert [message] == find_failure(text).messages


def test_an_interpolation_inside_a_reference_is_a_syntax_error() -> None:
    assert find_failure('"${meta.${var.k}}"').messages


def test_references_stay_in_heredocs() -> None:
    assert {"a": "x {${attr.a}} ${NOMAD_IP}\n"} == read_body("a = <<EOF\nx {${attr.a}} ${NOMAD_IP}\nEOF\n")


def test_references_for_the_node_are_listed_with_their_places() -> None:
    text = """variable "v" {
  default = 1
}
locals {
  l = "${node.class}"
}
job "x" {
  a = [var.v, local.l, attr.x, [for k in [1] : k]]
  dynamic "constraint" {
    for_each = [1, 2]
    content {
      value = "${constraint.value}-${nope}"
    }
  }
}
"""
    references = evaluate_text(text).runtime_references.values()

    assert [("attr", "8:24"), ("node", "5:10"), ("nope", "12:38")] == sorted(
        (reference.root, str(reference.place).partition(":")[2]) for reference in references
    )


def test_a_number_in_braces_is_its_value() -> None:
    assert {"a": "echo 1\n"} == read_body("a = <<EOF\necho ${1}\nEOF\n")


def test_the_example_of_the_first_page_is_evaluated() -> None:
    text = """
variable "image" {                       # input, section 6
  type    = string
  default = "web:1"
}

locals {                                 # names for expressions, section 7
  ports = { http = 8080, admin = 9000 }
}

job "shop" {                             # exactly one; the label is ID and Name
  datacenters = ["dc1"]
  group "web" {
    count = 2
    network {
      dynamic "port" {                   # repeated blocks, section 8
        for_each = local.ports
        labels   = [port.key]
        content {
          to = port.value
        }
      }
    }
    task "app" {
      driver = "docker"
      config {
        image = var.image                          # known now
        args  = ["-listen", ":${NOMAD_PORT_http}"] # unknown now: kept as text for the node, section 9
      }
      kill_timeout = "20s"                         # 20000000000 in the JSON
    }
  }
}
"""

    assert {
        "datacenters": ["dc1"],
        "group": [
            (
                "web",
                {
                    "count": 2,
                    "network": [({"port": [("admin", {"to": 9000}), ("http", {"to": 8080})]},)],
                    "task": [
                        (
                            "app",
                            {
                                "driver": "docker",
                                "kill_timeout": "20s",
                                "config": [({"image": "web:1", "args": ["-listen", ":${NOMAD_PORT_http}"]},)],
                            },
                        )
                    ],
                },
            )
        ],
    } == read_job(text)
