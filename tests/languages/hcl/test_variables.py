"""Variables (reference section 6): declarations, types, defaults, sources of values, validation."""

from typing import Any

import pytest

from tests.languages.hcl.evaluations import PORTS, SCHEMA, evaluate_text, find_errors, list_errors
from wharf.languages.hcl.diagnostics import DocumentErrors, is_secret_name
from wharf.languages.hcl.documents import evaluate_document, parse_document, parse_values
from wharf.languages.hcl.values import to_plain
from wharf.languages.hcl.variables import VariableInputs

JOB = 'job "x" {\n}\n'


def read_variables(text: str, **inputs: Any) -> dict[str, object]:
    """Return the values of all variables of a document."""
    return {name: to_plain(value) for name, value in evaluate_text(text + JOB, **inputs).variables.items()}


def declare(*lines: str, name: str = "v") -> str:
    return "\n".join([f'variable "{name}" {{', *lines, "}", ""])


REPLICAS = """variable "replicas" {
  description = "How many"          # optional, text
  type        = number              # optional
  default     = 3                   # optional: without it a value must be given
  validation {                      # any number
    condition     = var.replicas > 0 && var.replicas < 10
    error_message = "Between 1 and 9."
  }
}
variables { a = 1 }                 # short form: name = default; type is that of the default
"""


def test_a_declaration_has_type_default_and_validation() -> None:
    assert {"replicas": 3, "a": 1} == read_variables(REPLICAS)


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        (["default = 1"], 1),
        (["type = string", "default = 1"], "1"),
        (["type = number", 'default = "1.5"'], 1.5),
        (["type = bool", 'default = "true"'], True),
        (["type = list(string)", "default = [1, true]"], ["1", "true"]),
        (["type = set(string)", 'default = ["b", "a", "b"]'], ["a", "b"]),
        (["type = map(number)", 'default = { a = "1" }'], {"a": 1}),
        (["type = tuple([string, number])", 'default = [1, "2"]'], ["1", 2]),
        (
            ["type = object({ a = string, b = list(number) })", 'default = { a = 1, b = ["2"], c = 3 }'],
            {"a": "1", "b": [2]},
        ),
        (["type = map(list(object({ a = bool })))", 'default = { k = [{ a = "1" }] }'], {"k": [{"a": True}]}),
        (["type = string", "default = null"], None),
        (["default = null"], None),
        (["default = 2 * 3 + 1"], 7),
        (['default = "$${node.class}"'], "${node.class}"),
        (["default = <<EOF", "x", "EOF"], "x\n"),
        (["default = [for v in [1] : v + 1]"], [2]),
    ],
)
def test_a_default_converts_to_the_type(lines: list[str], value: object) -> None:
    assert {"v": value} == read_variables(declare(*lines))


@pytest.mark.parametrize("name", ["a", "_a", "a-b", "é", "a1"])
def test_a_name_is_an_identifier(name: str) -> None:
    assert {name: 1} == read_variables(declare("default = 1", name=name))


@pytest.mark.parametrize("name", ["1a", "a b", "", "a.b"])
def test_another_name_is_an_error(name: str) -> None:
    assert [f'job.hcl:1:10: "{name}" is not a name for a variable'] == list_errors(
        declare("default = 1", name=name) + JOB
    )


@pytest.mark.parametrize(
    "second", ['variable "a" {\n default = 2\n}\n', "variables {\n a = 2\n}\n"], ids=["variable", "variables"]
)
def test_a_name_that_is_declared_twice_names_both_places(second: str) -> None:
    text = find_errors(declare("default = 1", name="a") + second + JOB)

    assert 'the variable "a" is declared twice' in text.splitlines()[0]
    assert "the first is at: job.hcl:1:10" in text


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("any", "the type any is not offered"),
        ("list(any)", "the type any is not offered"),
        ("list", "the type list needs the type of its items"),
        ("map", "the type map needs the type of its items"),
        ('"string"', "a type is written without quotes"),
        ('"list(string)"', "a type is written without quotes"),
        ("object({ a = optional(string) })", "optional attributes are not offered"),
        ("text", 'no type "text" exists'),
        ("strng", 'no type "strng" exists'),
        ("list(string, number)", "the type list takes one argument"),
    ],
)
def test_a_refused_type_has_a_message_of_its_own(kind: str, message: str) -> None:
    errors = list_errors(declare(f"type = {kind}", "default = null") + JOB)

    assert 1 == len(errors)
    assert message in errors[0]


@pytest.mark.parametrize(
    ("default", "message"),
    [
        ("var.a", "a default holds no names, but var.a is one"),
        ('"${node.class}"', "a default holds no names, but node.class is one"),
        ("local.a", "a default holds no names, but local.a is one"),
        ("foo", "a default holds no names, but foo is one"),
        ('upper("x")', "a default holds no functions, but upper is one"),
        ("timestamp()", "a default holds no functions, but timestamp is one"),
        ("try(1)", "a default holds no functions, but try, can or convert is one"),
        ("[1, foo]", "a default holds no names, but foo is one"),
    ],
)
def test_a_default_holds_no_names_and_no_functions(default: str, message: str) -> None:
    assert [message] == [error.split(": ", 1)[1] for error in list_errors(declare(f"default = {default}") + JOB)]


def test_a_reference_for_the_node_in_a_default_gets_the_advice_to_double_the_sign() -> None:
    assert 'write "$${node.class}"' in find_errors(declare('default = "${node.class}"') + JOB)


@pytest.mark.parametrize("name", ["nullable", "ephemeral", "typ", "validation"])
def test_another_argument_of_a_variable_is_unknown(name: str) -> None:
    assert [f'job.hcl:2:1: a variable has no argument "{name}"'] == list_errors(
        declare(f"{name} = true", "default = 1") + JOB
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("variable {\n}\n", "a variable has one label, its name"),
        ('variable "a" "b" {\n}\n', "a variable has one label, its name"),
        ('variables "a" {\n}\n', "variables has no label"),
        ("variables {\n a {\n }\n}\n", 'variables has no block "a"'),
        ('variable "a" {\n default = 1\n foo {\n }\n}\n', 'a variable has no block "foo"'),
        ('variable "a" {\n default = 1\n description = 1\n}\n', "the description is a text"),
    ],
)
def test_another_form_of_a_declaration_is_an_error(text: str, message: str) -> None:
    assert message in list_errors(text + JOB)[0]


# -- values from outside


def test_every_declared_variable_needs_a_value() -> None:
    text = find_errors(declare("type = string") + JOB)

    assert text.startswith('job.hcl:1:10: the variable "v" has no value\n')
    assert "set it with --var v=..., in a values file, as WHARF_VAR_v in the environment" in text


def test_an_unset_variable_in_a_local_value_has_one_message() -> None:
    text = declare() + "locals {\n a = upper(var.v)\n b = local.a\n}\n" + JOB

    assert ['job.hcl:1:10: the variable "v" has no value'] == list_errors(text)


def test_flags_are_stronger_than_files_and_files_than_the_environment() -> None:
    text = "variables {\n a = 0\n b = 0\n c = 0\n d = 0\n}\n"
    environment = {f"WHARF_VAR_{name}": "1" for name in ("a", "b", "c", "unknown")}
    files = "b = 2\nc = 2\n"

    assert {"a": 1, "b": 2, "c": 4, "d": 0} == read_variables(
        text, environment=environment, values=files, flags=[("c", "3"), ("c", "4")]
    )


def test_automatic_files_are_stronger_than_the_environment_and_weaker_than_files() -> None:
    text = "variables {\n a = 0\n b = 0\n}\n"
    automatic_files = (parse_values("a = 2\nb = 2\n", "x.auto.vars"),)

    assert {"a": 2, "b": 3} == read_variables(
        text, environment={"WHARF_VAR_a": "1"}, automatic_files=automatic_files, values="b = 3\n"
    )


def test_an_automatic_file_may_name_variables_of_other_jobs_even_in_strict_mode() -> None:
    automatic_files = (parse_values("a = 2\nother = 2\n", "x.auto.vars"),)

    assert {"a": 2} == read_variables("variables {\n a = 0\n}\n", automatic_files=automatic_files, is_strict=True)


def test_a_variable_of_the_environment_with_the_prefix_of_wharf_is_stronger_than_with_that_of_nomad() -> None:
    text = "variables {\n a = 0\n b = 0\n}\n"
    environment = {"WHARF_VAR_a": "1", "NOMAD_VAR_a": "2", "NOMAD_VAR_b": "2"}

    assert {"a": 1, "b": 2} == read_variables(text, environment=environment)


def test_a_later_file_replaces_an_earlier_one() -> None:
    files = (parse_values("v = 1\n", "a.vars"), parse_values("v = 2\n", "b.vars"))
    document = parse_document(declare() + JOB)
    evaluation = evaluate_document(document, SCHEMA, ports=PORTS, inputs=VariableInputs(files=files))

    assert {"v": 2} == evaluation.variables


@pytest.mark.parametrize(
    ("lines", "text", "value"),
    [
        (["type = string"], "5", "5"),
        ([], "5", "5"),
        (["type = number"], "5", 5),
        (["type = string"], "a b", "a b"),
        (["type = string"], "", ""),
        (["type = bool"], "true", True),
        (["type = list(string)"], '["x", "y"]', ["x", "y"]),
        (["type = map(number)"], "{ a = 1 }", {"a": 1}),
        (["type = object({ a = string })"], "{ a = 1 }", {"a": "1"}),
        (["default = 1"], "5", 5),
        (["default = true"], "false", False),
        (["default = []"], '["x"]', ["x"]),
        (["type = list(number)"], "[for v in [1] : v + 1]", [2]),
    ],
)
@pytest.mark.parametrize("source", ["environment", "flags"])
def test_a_text_from_outside_is_read_by_the_type(lines: list[str], text: str, value: object, source: str) -> None:
    inputs = {"environment": {"WHARF_VAR_v": text}} if source == "environment" else {"flags": [("v", text)]}

    assert {"v": value} == read_variables(declare(*lines), **inputs)


@pytest.mark.parametrize(
    ("lines", "text", "message"),
    [
        (["type = list(string)"], "x", "--var v: a value holds no names, but x is one"),
        (["type = list(string)"], '["x"', '--var v: expected "," or "]", found the end of the file'),
        (["type = number"], "x", '--var v: the value of variable "v" is not of type number: expected a number'),
        (["type = bool"], "yes", "--var v: a value holds no names, but yes is one"),
        (["type = list(string)"], 'split(",", "a")', "--var v: a value holds no functions, but split is one"),
        (["default = 1"], "x", '--var v: the value of variable "v" is not of type number: expected a number'),
    ],
)
def test_a_wrong_text_from_outside_is_named_by_its_source(lines: list[str], text: str, message: str) -> None:
    assert list_errors(declare(*lines) + JOB, flags=[("v", text)])[0].startswith(message)


def test_a_wrong_text_from_the_environment_is_named_by_its_variable() -> None:
    errors = list_errors(declare("type = number") + JOB, environment={"WHARF_VAR_v": "x"})

    assert errors[0].startswith('environment variable WHARF_VAR_v: the value of variable "v" is not of type number')


def test_without_a_type_the_type_is_that_of_the_default() -> None:
    text = "variables {\n n = 1\n l = [1]\n o = { a = 1 }\n}\n"

    assert {"n": 2, "l": [2, 3], "o": {"a": 2}} == read_variables(
        text, values='n = "2"\nl = ["2", 3]\no = { a = "2", b = 3 }\n'
    )
    assert 'variables:1:5: the value of variable "n" is not of type number' in find_errors(
        text + JOB, values="n = []\n"
    )
    assert 'of variable "l" is not of type' in find_errors(text + JOB, values='l = ["x"]\n')


def test_without_a_type_and_default_a_value_is_taken_as_it_is() -> None:
    assert {"v": [1, "a", {"b": None}]} == read_variables(declare(), values='v = [1, "a", { b = null }]\n')


def test_null_is_accepted_for_every_variable() -> None:
    assert {"v": None} == read_variables(declare("type = number", "default = 1"), values="v = null\n")


# -- values files

VALUES = """# comment
a = 1 // comment
b = "x"
c = [
  1,
  2,
]
d = { k = "v" }
e = <<EOF
text
EOF
f = 1 + 2
g = [for v in [1, 2] : v * 2]
"""


def test_a_values_file_has_literals_operators_and_for() -> None:
    text = "".join(declare(name=name) for name in "abcdefg")

    assert {"a": 1, "b": "x", "c": [1, 2], "d": {"k": "v"}, "e": "text\n", "f": 3, "g": [2, 4]} == read_variables(
        text, values=VALUES
    )


def test_a_values_file_may_be_json() -> None:
    assert {"v": {"a": [1, None, True, "x"]}} == read_variables(declare(), values=' {"v": {"a": [1, null, true, "x"]}}')


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("v = foo\n", "variables:1:5: a value holds no names, but foo is one"),
        ('v = "${var.x}"\n', "variables:1:8: a value holds no names, but var.x is one"),
        ("v = upper(1)\n", "variables:1:5: a value holds no functions, but upper is one"),
        ("v = 1\nv = 2\n", 'variables:2:1: the argument "v" occurs twice'),
        ('variable "v" {\n}\n', "variables:1:1: a values file has no blocks"),
        ("v = [1\n", 'variables:2:1: expected "," or "]", found the end of the file'),
        ('{"v": }', "variables:1:5: the key has no value"),
        ("v = 1 / 0\n", "variables:1:5: division by zero"),
    ],
)
def test_another_form_of_a_values_file_is_an_error(values: str, message: str) -> None:
    assert [message] == list_errors(declare() + JOB, values=values)


def test_a_declaration_in_a_values_file_gets_the_advice_to_move_it() -> None:
    assert "declarations belong into the job file" in find_errors(declare() + JOB, values='variable "v" {\n}\n')


def test_unknown_names_are_ignored_or_refused() -> None:
    text = declare("default = 1", name="count") + JOB

    assert [] == list_errors(text, values="cuont = 1\n", flags=[("x", "1")])
    errors = find_errors(text, values="cuont = 1\n", flags=[("x", "1")], is_strict=True)
    assert 'variables:1:1: no variable "cuont" is declared in the file' in errors
    assert 'did you mean "count"?' in errors
    assert '--var x: no variable "x" is declared in the file' in errors


# -- use


def test_var_alone_is_the_object_of_all_variables() -> None:
    text = 'variables {\n a = 1\n b = 2\n}\njob "x" {\n a = keys(var)\n b = var["a"]\n}\n'
    attributes = evaluate_text(text).body.blocks[0].body.attributes

    assert (["a", "b"], 1) == (to_plain(attributes["a"].value), attributes["b"].value)


def test_a_variable_with_a_wrong_value_is_named_once_among_the_known_ones() -> None:
    rule = ["type = number", "default = 0", "validation {", "condition = var.v > 0", 'error_message = "Positive."', "}"]
    text = f'{declare(*rule)}\nvariable "w" {{\n default = 1\n}}\njob "j" {{\n a = var.nope\n}}'

    assert find_errors(text).endswith("the variables are v, w")


def test_an_undeclared_variable_is_an_error_at_its_use() -> None:
    text = find_errors('variables {\n image = 1\n}\njob "x" {\n a = var.imge\n}\n')

    assert text.startswith('job.hcl:5:6: no variable "imge" is declared\n')
    assert 'did you mean "image"?' in text


# -- validation


def validate(condition: str, message: str = '"Wrong."', default: str = "1") -> str:
    return declare(
        f"default = {default}", "validation {", f"condition = {condition}", f"error_message = {message}", "}"
    )


@pytest.mark.parametrize(
    "condition", ["var.v > 0", "can(upper(var.v))", '"${var.v > 0}"', "contains([1, 2], var.v)", 'var["v"] == 1']
)
def test_a_condition_may_use_functions_and_its_variable(condition: str) -> None:
    assert {"v": 1} == read_variables(validate(condition))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (validate("true"), "the condition does not use var.v"),
        (validate("var.v > var.w"), "a validation may use only var.v, not var.w"),
        (validate("var.v > local.w"), "a validation may use only var.v, not local.w"),
        (validate("var.v > foo"), "a validation may use only var.v, not foo"),
        (validate("var.v > 0 ? null : false"), "a condition must not be null"),
        (validate("var.v"), "condition: expected true or false, got a number"),
        (validate("var.v > nope()"), 'no function "nope" exists'),
        (validate("var.v > 0", '" "'), "the error_message is blank"),
        (validate("var.v > 0", "1"), "the error_message is blank"),
        (declare("default = 1", "validation {", "condition = var.v > 0", "}"), "the validation has no error_message"),
        (declare("default = 1", "validation {", 'error_message = "x"', "}"), "the validation has no condition"),
        (
            declare("default = 1", "validation {", "condition = var.v > 0", 'error_message = "x"', "foo = 1", "}"),
            'a validation has no argument "foo"',
        ),
    ],
)
def test_a_wrong_validation_is_an_error(text: str, message: str) -> None:
    errors = list_errors(text + JOB)

    assert 1 == len(errors)
    assert errors[0].endswith(message)


def test_a_failed_validation_names_the_value_and_the_rule() -> None:
    text = find_errors(REPLICAS + JOB, values="replicas = 12\n")

    assert 'variables:1:12: invalid value 12 for variable "replicas": Between 1 and 9.' in text
    assert "the rule is at: job.hcl:6:21" in text


def test_a_failed_validation_of_a_flag_names_the_flag() -> None:
    errors = list_errors(REPLICAS + JOB, flags=[("replicas", "0")])

    assert ['--var replicas: invalid value 0 for variable "replicas": Between 1 and 9.'] == errors


def test_a_default_is_validated_too() -> None:
    assert ['job.hcl:2:11: invalid value 1 for variable "v": Wrong.'] == list_errors(validate("var.v > 5") + JOB)


# -- secrets


@pytest.mark.parametrize("name", ["db_password", "api_key", "API_TOKEN", "client-secret", "credentials", "private_key"])
def test_some_names_hint_at_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["image", "replicas", "keyboard", "count", "monkey"])
def test_other_names_do_not(name: str) -> None:
    assert not is_secret_name(name)


SECRET = "hunter2"


@pytest.mark.parametrize(
    ("text", "inputs"),
    [
        (declare("type = number", f'default = "{SECRET}"', name="db_password"), {}),
        (declare("type = number", f"default = {SECRET}", name="db_password"), {}),
        (declare("type = number", f"default = {SECRET} x", name="db_password"), {}),
        (declare("type = number", f'default = ["{SECRET}"', name="db_password"), {}),
        (declare("type = number", name="db_password"), {"values": f'db_password = "{SECRET}"\n'}),
        (declare("type = number", name="db_password"), {"values": f'db_password = "{SECRET}" x\n'}),
        (declare("type = number", name="db_password"), {"values": f"db_password = {SECRET}\n"}),
        (declare("type = number", name="db_password"), {"values": f'{{"db_password": "{SECRET}", }}'}),
        (declare("type = number", name="db_password"), {"values": f'db_password = [\n"{SECRET}" 1\n]\n'}),
        (declare("type = number", name="db_password"), {"flags": [("db_password", SECRET)]}),
        (declare("type = bool", name="db_password"), {"flags": [("db_password", SECRET)]}),
        (declare("type = number", name="db_password"), {"environment": {"db_password": SECRET}}),
        (
            declare(
                "validation {", "condition = var.db_password == 1", 'error_message = "not ${var.db_password}"', "}", name="db_password"
            ),
            {"flags": [("db_password", SECRET)]},
        ),
        ("", {"values": f'db_password = "{SECRET}"\n', "is_strict": True}),
    ],
)  # fmt: skip
def test_no_message_shows_the_value_of_a_secret(text: str, inputs: dict[str, Any]) -> None:
    errors = find_errors(text + JOB, **inputs)

    assert "db_password" in errors or "job.hcl:" in errors or "variables:" in errors
    assert SECRET not in errors


def test_errors_of_the_job_hide_secrets_too() -> None:
    errors = find_errors(f'job "x" {{\n meta = {{\n DB_PASSWORD = "{SECRET}" y\n }}\n}}\n')

    assert errors.startswith("job.hcl:3:")
    assert SECRET not in errors


def test_a_parsed_values_file_raises_its_syntax_errors() -> None:
    with pytest.raises(DocumentErrors, match=r"prod\.vars:1:5: expected a value"):
        parse_values("v = \u201cx\u201d\n", "prod.vars")
