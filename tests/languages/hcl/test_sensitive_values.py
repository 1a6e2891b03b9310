"""Which values come from sensitive variables: the mark passes through every operation of the language (record 0249)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.languages.hcl.evaluations import FREE_SCHEMA, evaluate_text, find_errors
from wharf.job_files.hcl.places import list_marked_paths
from wharf.languages.hcl.documents import EvaluatedAttribute
from wharf.languages.hcl.functions import FUNCTIONS

DECLARATIONS = """
variable "pw" {
  type      = string
  default   = "correct-horse-1"
  sensitive = true
}
variable "n" {
  type      = number
  default   = 41
  sensitive = true
}
variable "on" {
  type      = bool
  default   = true
  sensitive = true
}
variable "list" {
  type      = list(string)
  default   = ["first-secret", "second-secret"]
  sensitive = true
}
variable "map" {
  type      = map(string)
  default   = { key-of-secret = "value-of-secret" }
  sensitive = true
}
variable "plain" {
  default = "plain"
}
locals {
  copy    = var.pw
  upper   = upper(local.copy)
  config  = { user = "app", password = var.pw, nested = { token = var.pw, port = 80 } }
  servers = [{ name = "a", password = var.pw }, { name = "b", password = "" }]
}
"""

CALLS = {
    "abs": "abs(var.n)",
    "abspath": "",
    "base64decode": 'base64decode(base64encode(var.pw))',
    "basename": "",
    "bcrypt": "bcrypt(var.pw, 4)",
    "ceil": "ceil(var.n)",
    "chunklist": "chunklist(var.list, 1)",
    "cidrhost": 'cidrhost("10.0.0.0/8", var.n)',
    "cidrnetmask": 'cidrnetmask("10.0.0.0/${var.n - 30}")',
    "cidrsubnet": 'cidrsubnet("10.0.0.0/8", 8, var.n)',
    "cidrsubnets": 'cidrsubnets("10.0.0.0/8", var.n - 33)',
    "coalescelist": "coalescelist(var.list)",
    "compact": "compact(var.list)",
    "concat": 'concat(["x"], var.list)',
    "contains": 'contains(["x"], var.pw)',
    "csvdecode": 'csvdecode("a,b\\n${var.pw},1")',
    "dirname": "",
    "distinct": "distinct(var.list)",
    "element": "element(var.list, 0)",
    "file": "",
    "filebase64": "",
    "fileexists": "",
    "fileset": "",
    "flatten": "flatten([var.list])",
    "floor": "floor(var.n)",
    "format": 'format("%s", var.pw)',
    "formatdate": 'formatdate("YYYY", "20${var.n}-01-01T00:00:00Z")',
    "formatlist": 'formatlist("%s", var.list)',
    "indent": "indent(2, var.pw)",
    "index": "index(var.list, 0)",
    "join": 'join("-", var.list)',
    "jsondecode": "jsondecode(jsonencode(var.pw))",
    "keys": "keys(var.map)",
    "length": "length(var.list)",
    "log": "log(var.n, 2)",
    "lookup": 'lookup(var.map, "x", "y")',
    "max": "max(var.n, 1)",
    "merge": "merge(var.map, { a = 1 })",
    "min": "min(var.n, 100)",
    "parseint": 'parseint("1${var.n}", 10)',
    "pathexpand": "",
    "pow": "pow(var.n, 2)",
    "range": "range(var.n)",
    "regex_replace": 'regex_replace(var.pw, "horse", "")',
    "replace": 'replace(var.pw, "horse", "")',
    "reverse": "reverse(var.pw)",
    "rsadecrypt": "",
    "setintersection": "setintersection(var.list, var.list)",
    "setproduct": 'setproduct(var.list, ["x"])',
    "setunion": 'setunion(var.list, ["x"])',
    "signum": "signum(var.n)",
    "slice": "slice(var.list, 0, 1)",
    "sort": "sort(var.list)",
    "split": 'split("-", var.pw)',
    "substr": "substr(var.pw, 0, 3)",
    "timeadd": 'timeadd("2020-01-01T00:00:00Z", "${var.n}h")',
    "trim": 'trim(var.pw, "1")',
    "trimprefix": 'trimprefix(var.pw, "c")',
    "trimsuffix": 'trimsuffix(var.pw, "1")',
    "uuidv4": "",
    "uuidv5": 'uuidv5("dns", var.pw)',
    "values": "values(var.map)",
    "yamldecode": "yamldecode(yamlencode(var.pw))",
    "zipmap": 'zipmap(["a", "b"], var.list)',
}  # fmt: skip
"""A call of each function with a sensitive argument; others take one text. Empty: no result depends on a text, or files."""


def evaluate_argument(expression: str) -> EvaluatedAttribute:
    """Return the argument `a` of a document with sensitive variables."""
    return evaluate_text(f"{DECLARATIONS}\na = {expression}\n", FREE_SCHEMA).body.attributes["a"]


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if CALLS.get(name) != ""])
def test_the_result_of_every_function_with_a_sensitive_argument_is_sensitive(name: str) -> None:
    assert evaluate_argument(CALLS.get(name, f"{name}(var.pw)")).is_sensitive


@pytest.mark.parametrize(
    "expression",
    [
        "var.pw",
        "(var.pw)",
        "local.copy",
        "local.upper",
        "local.config.password",
        'local.config["password"]',
        'local.config[lower("PASSWORD")]',
        "local.config.nested.token",
        "local.servers[0].password",
        "local.servers[*].password",
        "local.servers.*.name",
        "{ a = var.pw }.a",
        "[var.pw][0]",
        "{ a = local.config }.a.user",
        '"pg://${var.pw}@host"',
        '"%{ if var.on }a%{ else }b%{ endif }"',
        '"%{ for v in var.list }${v}%{ endfor }"',
        '"%{ for v in var.list }x%{ endfor }"',
        "<<-EOT\n  a ${var.pw}\nEOT",
        "var.n + 1",
        "-var.n",
        "!var.on",
        "var.n > 3",
        'var.pw == "x"',
        "var.on && true",
        "var.on ? 1 : 2",
        'var.plain == "x" ? var.pw : "y"',
        "[for v in var.list : upper(v)]",
        "[for v in var.list : 1]",
        '[for v in ["a"] : "${v}${var.pw}"]',
        "{for k, v in var.map : k => 1}",
        '{for v in ["a"] : v => var.pw}',
        "[for k, v in local.config.nested : k]",
        "[for s in local.servers : s.name]",
        "{ (var.pw) = 1 }",
        "var.list[0]",
        'var.map[var.plain == "plain" ? "key-of-secret" : "x"]',
        'try(var.pw.x, "y")',
        "can(var.pw.x)",
        "convert(var.n, string)",
        "convert(local.config, any)",
        "merge(local.config, var.map)",
        "merge([local.config]...)",
        "merge(local.config, { a = 1 }).password",
        "jsonencode(local.config)",
        "var",
        "[var][0]",
        "local.config == {}",
    ],
)
def test_a_value_that_is_computed_from_a_sensitive_variable_is_sensitive(expression: str) -> None:
    if expression == "var":
        assert set(list_marked_paths(evaluate_argument(expression).value)) == {
            ("pw",), ("n",), ("on",), ("list",), ("map",),
        }  # fmt: skip
        return
    assert evaluate_argument(expression).is_sensitive


@pytest.mark.parametrize(
    "expression",
    [
        '"x"',
        "var.plain",
        "local.config.user",
        "local.config.nested.port",
        "local.servers[1].name",
        "[for v in [1] : v]",
    ],
)
def test_a_value_without_sensitive_parts_is_not_sensitive(expression: str) -> None:
    argument = evaluate_argument(expression)

    assert (argument.is_sensitive, list(list_marked_paths(argument.value))) == (False, [])


@pytest.mark.parametrize(
    ("expression", "paths"),
    [
        ("{ a = 1, b = var.pw }", {("b",)}),
        ("[1, var.pw]", {(1,)}),
        ('({ a = ["x", "${var.pw}y"] })', {("a", 1)}),
        ("local.config", {("password",), ("nested", "token")}),
        ("merge(local.config, { password = 1, x = var.pw })", {("nested", "token"), ("x",)}),
        ("{ a = local.config, b = local.copy }", {("a", "password"), ("a", "nested", "token"), ("b",)}),
        ("[local.servers[0], local.config.nested]", {(0, "password"), (1, "token")}),
        ("{ a = { b = var.on ? local.config.nested : {} } }", {("a", "b")}),
        ("local", {
            ("copy",), ("upper",), ("config", "password"), ("config", "nested", "token"), ("servers", 0, "password"),
        }),
    ],
)  # fmt: skip
def test_only_the_sensitive_parts_of_a_literal_are_marked(expression: str, paths: set[tuple[str | int, ...]]) -> None:
    argument = evaluate_argument(expression)

    assert (argument.is_sensitive, set(list_marked_paths(argument.value))) == (False, paths)


def test_blocks_of_a_dynamic_block_have_the_marks_of_their_item() -> None:
    text = """
job "j" {
  dynamic "constraint" {
    for_each = local.servers
    content {
      attribute = constraint.value.name
      value     = constraint.value.password
    }
  }
}
"""
    blocks = evaluate_text(DECLARATIONS + text).body.blocks[0].body.blocks

    assert [
        (block.body.attributes["attribute"].is_sensitive, block.body.attributes["value"].is_sensitive)
        for block in blocks
    ] == [(False, True), (False, False)]


def test_blocks_over_a_sensitive_collection_are_sensitive() -> None:
    text = """
job "j" {
  dynamic "group" {
    for_each = var.map
    iterator = each
    labels   = [each.key]
    content {
      count = strlen(each.value)
    }
  }
}
"""
    block = evaluate_text(DECLARATIONS + text).body.blocks[0].body.blocks[0]

    assert block.body.attributes["count"].is_sensitive
    assert block.has_sensitive_labels


@pytest.mark.parametrize(
    "expression",
    [
        "{ b = 1 }[strrev(var.pw)]",
        "{ x = { b = 1 }[substr(var.pw, 0, 14)] }",
        "[1][length(var.pw) + 4000]",
        'regex_replace("x", "${upper(var.pw)}(", "")',
        "parseint(strrev(var.pw), 10)",
        'yamldecode("!!${title(var.pw)} x")',
        'jsondecode("{\\"a\\": ${title(var.pw)}}")',
        'formatdate("${title(var.pw)}", "2020-01-01T00:00:00Z")',
        "{ for v in [1, 2] : title(var.pw) => v }",
        "lookup({ a = 1 }, title(var.pw))",
        'csvdecode("${title(var.pw)},${title(var.pw)}\\n1,2")',
        "var.map.missing",
        "keys(var.map)[0].x",
        "true ? { (title(var.pw)) = 1 } : [1]",
        "{ for k, v in var.map : upper(k) => v }.missing",
    ],
)
def test_an_error_does_not_show_a_computed_value(expression: str) -> None:
    errors = find_errors(f"{DECLARATIONS}\na = {expression}\n", FREE_SCHEMA)
    secrets = ("correct-horse-1", "key-of-secret", "1-esroh-tcerroc", "correct-horse-", "4015", "Correct-Horse-1")
    shown = errors.replace(expression, "").lower()

    assert errors.startswith("job.hcl:")
    assert [secret for secret in secrets if secret.lower() in shown] == []


TEXT_FUNCTIONS = st.sampled_from(
    ["upper", "strrev", "title", "base64encode", "jsonencode", "sha256", "urlencode", "trimspace", "yamlencode"]
)


@given(
    st.recursive(
        st.sampled_from(["var.pw", "local.copy", "local.config.password", "var.list[0]"]),
        lambda inner: st.one_of(
            st.builds(lambda name, text: f"{name}({text})", TEXT_FUNCTIONS, inner),
            inner.map(lambda text: f'"a-${{{text}}}"'),
            inner.map(lambda text: f"[{text}][0]"),
            inner.map(lambda text: f"{{ a = {text}, b = 1 }}.a"),
            inner.map(lambda text: f'[for v in ["x"] : "${{v}}${{{text}}}"][0]'),
            inner.map(lambda text: f'{text} == "x" ? "a" : "b"'.join("()")),
            inner.map(lambda text: f'join("", [{text}])'),
            inner.map(lambda text: f'try({text}, "x")'),
        ),
        max_leaves=6,
    )
)
def test_every_expression_around_a_sensitive_value_is_sensitive(expression: str) -> None:
    assert evaluate_argument(expression).is_sensitive
