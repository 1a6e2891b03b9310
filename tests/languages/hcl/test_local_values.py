"""Local values (reference section 7)."""

import pytest

from tests.languages.hcl.evaluations import list_errors, read_job

JOB = 'job "x" {\n}\n'


def read_local(text: str, name: str = "a") -> object:
    """Return one local value of a document."""
    return read_job(f'{text}job "x" {{\n a = local.{name}\n}}\n')["a"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("locals {\n a = 1\n}\n", 1),
        ("locals { a = 1 }\n", 1),
        ("locals {\n a = local.b\n}\nlocals {\n b = local.c\n c = 3\n}\n", 3),
        ('variables {\n v = "x"\n}\nlocals {\n a = upper(var.v)\n}\n', "X"),
        ('locals {\n a = "${node.class}-1"\n}\n', "${node.class}-1"),
        ("locals {\n a = [for local in [1] : local]\n}\n", [1]),
        ("locals {\n a = local.o.k[0]\n o = { k = [7] }\n}\n", 7),
        ('locals {\n a = local["b"]\n b = 2\n}\n', 2),
    ],
)
def test_local_values_use_variables_functions_and_each_other(text: str, value: object) -> None:
    assert value == read_local(text)


def test_local_alone_is_the_object_of_all_local_values() -> None:
    assert ["b", "c"] == read_job('locals {\n b = 1\n c = 2\n}\njob "x" {\n a = keys(local)\n}\n')["a"]


def test_a_long_chain_of_local_values_uses_no_stack() -> None:
    lines = [f"a{number} = local.a{number + 1}" for number in range(5_000)]

    assert 1 == read_local("\n".join(["locals {", *lines, "a5000 = 1", "}", ""]), "a0")


@pytest.mark.parametrize(
    ("lines", "ring"),
    [
        (["a = local.a"], "local.a -> local.a"),
        (["a = local.b", "b = local.c", "c = local.a"], "local.a -> local.b -> local.c -> local.a"),
        (["x = local.a", "a = local.b", "b = local.a"], "local.a -> local.b -> local.a"),
        (["a = [for v in [1] : local.b]", 'b = "${local.a}x"'], "local.a -> local.b -> local.a"),
        (["a = true ? 1 : local.a"], "local.a -> local.a"),
        (["a = local"], "local.a -> local.a"),
    ],
)
def test_a_ring_is_an_error_that_names_it(lines: list[str], ring: str) -> None:
    errors = list_errors("\n".join(["locals {", *lines, "}", ""]) + JOB)

    assert 1 == len(errors)
    assert errors[0].endswith(f"local values need each other in a ring: {ring}")


def test_a_missing_local_value_is_an_error_at_its_use() -> None:
    assert ['job.hcl:2:6: no local value "b" is declared'] == list_errors("locals {\n a = local.b\n}\n" + JOB)
    assert ['job.hcl:2:6: no local value "b" is declared'] == list_errors('job "x" {\n a = local.b\n}\n')


@pytest.mark.parametrize(
    "text",
    ["locals {\n a = 1\n a = 2\n}\n", "locals {\n a = 1\n}\nlocals {\n a = 2\n}\n"],
    ids=["one block", "two blocks"],
)
def test_a_name_that_occurs_twice_is_an_error(text: str) -> None:
    errors = list_errors(text + JOB)

    assert 1 == len(errors)
    assert errors[0].endswith('"a" occurs twice')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('locals "a" {\n}\n', "job.hcl:1:1: locals has no label"),
        ("locals {\n a {\n }\n}\n", 'job.hcl:2:2: locals has no block "a"'),
    ],
)
def test_locals_has_no_labels_and_blocks(text: str, message: str) -> None:
    assert [message] == list_errors(text + JOB)


def test_an_error_in_a_local_value_has_no_consequences() -> None:
    text = 'locals {\n a = 1 / 0\n b = local.a + 1\n}\njob "x" {\n a = local.b\n}\n'

    assert ["job.hcl:2:6: division by zero"] == list_errors(text)
