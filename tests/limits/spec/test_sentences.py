"""Every testable sentence of the contract, and every numbered rule of the design, has a test."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.limits.spec.sentences import CONTRACT, DESIGN, NUMBERED

TESTS = Path(__file__).parents[2]


@cache
def list_test_names() -> frozenset[str]:
    def generate_names() -> Iterator[str]:
        for file in [*(TESTS / "limits").rglob("test_*.py"), TESTS / "agent" / "test_limiting.py"]:
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    yield node.name

    return frozenset(generate_names())


def test_every_sentence_of_the_contract_has_existing_tests() -> None:
    required_names = {name for sentences in CONTRACT.values() for tests in sentences.values() for name in tests}

    assert required_names - list_test_names() == set()
    assert [sentence for sentences in CONTRACT.values() for sentence, tests in sentences.items() if not tests] == []


def test_every_numbered_rule_of_the_design_has_existing_tests() -> None:
    """A rule has a test with its number in the name, or tests that are listed."""
    prefixes = tuple(f"test_{number.replace('.', '_')}_" for number in NUMBERED)
    numbered = {
        number
        for number, prefix in zip(NUMBERED, prefixes, strict=True)
        for name in list_test_names()
        if name.startswith(prefix)
    }

    assert {name for tests in DESIGN.values() for name in tests} - list_test_names() == set()
    assert set(NUMBERED) - numbered - set(DESIGN) == set()


def test_no_test_is_named_after_a_missing_rule() -> None:
    """The numbers are those of the contract's errors (3) and of the design's rules (3 or 3.1)."""
    numbers = {
        tuple(part for part in name.split("_")[1:3] if part.isdigit() and len(part) == 1) for name in list_test_names()
    }
    known = {tuple(number.split(".")) for number in NUMBERED} | {(str(number),) for number in range(1, 7)}

    assert {
        number for number in numbers if number and not any(number[: len(prefix)] == prefix for prefix in known)
    } == set()
