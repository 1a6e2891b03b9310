"""Every rule of the specification has a test that names it."""

import re
from pathlib import Path

from tests.spec.rules import RULES

NAMED = re.compile(r'^@rule\(("[^)]*")\)', re.MULTILINE)


def list_tested_rules() -> set[tuple[str, str]]:
    found = set()
    for module in Path(__file__).parent.glob("test_*.py"):
        for names in NAMED.findall(module.read_text("utf-8")):
            section, *rules = [name.strip().strip('"') for name in names.split(",")]
            found |= {(section, name) for name in rules}
    return found


def test_every_rule_is_named_by_a_test() -> None:
    assert {(section, name) for section, rules in RULES.items() for name in rules} - list_tested_rules() == set()
