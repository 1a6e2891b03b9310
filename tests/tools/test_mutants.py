"""The mistakes that `make mutants` plants."""

import ast

import pytest

from tools.findings import ROOT
from tools.mutants.__main__ import (
    HANG_FACTOR,
    HANG_SECONDS,
    PACKAGES,
    ChosenTests,
    draw_sample,
    interpret_exit,
    list_package_mutations,
)
from tools.mutants.mutations import find_function_lines, list_mutations


def mutate_expression(expression: str) -> set[str]:
    """Return each mutated form of an expression that a function returns."""
    source = f"def f(a, b, c):\n    return {expression}\n".encode()
    mutated = [mutation.apply(source).decode() for mutation in list_mutations("f.py", source)]
    return {text.splitlines()[1].removeprefix("    return ") for text in mutated}


@pytest.mark.parametrize(
    ("expression", "mutated"),
    [
        ("a < b", {"a <= b"}),
        ("a >= b", {"a > b"}),
        ("a is not b", {"a is b"}),
        ("a not in b", {"a in b"}),
        ("a in ('x', 'y')", {"a not in ('x', 'y')"}),
        ("isinstance(a, (b, c))", {"isinstance((b, c), a)"}),
        ("f(a, (b, c))", {"f((b, c), a)", "f(a, (c, b))"}),
        ("a and b", {"a or b", "((a))", "((b))"}),
        (
            "(a or b) and c",
            {"(a or b) or c", "(a and b) and c", "((c))", "((a or b))", "(((a))) and c", "(((b))) and c"},
        ),
        ("not a", {"(a)"}),
        ("a + 1", {"a - 1", "a + 2"}),
        ("'x' + a", set()),
        ("True", {"False"}),
        ("f(a, b, c)", {"f(b, a, c)"}),
        ("f(*a, b)", set()),
        ("hmac.compare_digest(a, b)", set()),
        ("zip(a, strict=True)", set()),
        ("min(a, b)", {"max(a, b)"}),
        ("zip(a, b, strict=True)", {"zip(b, a, strict=True)"}),
        ("a if b else c", {"a if (not (b)) else c"}),
        ("[x for x in a if b]", {"[x for x in a if True]"}),
        ("(a, b)", {"(b, a)"}),
        ("'é' < a", {"'é' <= a"}),
    ],
)
def test_an_expression_is_mutated_into(expression: str, mutated: set[str]) -> None:
    assert mutate_expression(expression) == mutated


def list_mutated_lines(body: str) -> set[str]:
    source = f"def f(a: int, log):\n{body}".encode()
    return {
        mutation.apply(source).decode().splitlines()[mutation.line - 1].strip()
        for mutation in list_mutations("f.py", source)
    }


def test_a_call_whose_value_is_not_used_is_dropped() -> None:
    assert list_mutated_lines("    a.close()\n") == {"pass"}


def test_the_kinds_of_caught_errors_are_not_exchanged() -> None:
    assert list_mutated_lines("    try:\n        x = a\n    except (KeyError, OSError):\n        x = a\n") == set()


def test_the_end_of_a_loop_and_of_one_round_are_exchanged() -> None:
    assert list_mutated_lines("    for _ in a:\n        break\n") == {"continue"}


@pytest.mark.parametrize(
    "body",
    [
        '    """Compare 1 < 2."""\n',
        "    log.warning('%d', a + 1)\n",
        "    assert a < 1\n",
        "    raise ValueError(a + 1)\n",
        "    b: tuple[int, str]\n",
    ],
)
def test_texts_for_readers_and_types_are_not_mutated(body: str) -> None:
    assert list_mutated_lines(body) == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_mutated_file_of_a_package_is_valid_python(package: str) -> None:
    for _, mutation in draw_sample([package], count=40, seed=1):
        source = (ROOT / mutation.path).read_bytes()
        assert ast.dump(ast.parse(mutation.apply(source))) != ast.dump(ast.parse(source))


def test_a_seed_draws_the_same_mistakes_again() -> None:
    assert draw_sample(["node/core"], count=5, seed=7) == draw_sample(["node/core"], count=5, seed=7)


def test_no_more_mistakes_are_drawn_than_there_are() -> None:
    assert len(draw_sample(["node/core"], count=10**9, seed=7)) == len(list_package_mutations("node/core"))


@pytest.mark.parametrize(
    ("code", "is_hang", "outcome"),
    [
        (0, False, "survived"),
        (1, False, "caught"),
        (2, False, "caught"),
        (5, False, "not reached"),
        (None, True, "caught"),
        (None, False, "out of time"),
    ],
)
def test_the_end_of_pytest_says_whether_a_mistake_was_caught(code: int | None, is_hang: bool, outcome: str) -> None:
    assert interpret_exit(code, "", is_hang=is_hang)[0] == outcome


def test_a_hang_is_a_multiple_of_the_recorded_time_of_each_test_and_of_all_tests() -> None:
    tests = ChosenTests({"fast": 0.0, "slow": 10.0})

    assert tests.compute_test_seconds() == {"fast": HANG_SECONDS, "slow": HANG_SECONDS + HANG_FACTOR * 10.0}
    assert tests.compute_hang_seconds() == HANG_SECONDS + HANG_FACTOR * 10.0


@pytest.mark.parametrize(
    ("line", "lines"),
    [(1, range(0)), (3, range(3, 9)), (4, range(3, 9)), (6, range(6, 8)), (8, range(3, 9)), (9, range(0))],
)
def test_the_lines_of_the_innermost_function_are_found(line: int, lines: range) -> None:
    source = "import abc\nasync def outer():\n    x = 1\n    y = 2\n    def inner():\n        a = 1\n        return a\n    return 2\nz = 1\n"

    assert find_function_lines(source, line) == lines
