"""The function `bcrypt` (reference section 11)."""

import bcrypt
import pytest

from tests.languages.hcl.evaluations import evaluate, find_failure
from wharf.languages.hcl.budget import BudgetExceeded


def test_a_password_matches_its_hash() -> None:
    hashed = evaluate('bcrypt("secret", 4)')

    assert hashed.startswith("$2a$04$")
    assert bcrypt.checkpw(b"secret", hashed.encode())


def test_the_default_cost_is_ten() -> None:
    assert evaluate('bcrypt("secret")').startswith("$2a$10$")


def test_a_cost_that_takes_too_long_is_refused_before_hashing() -> None:
    assert ["bcrypt: a cost above 13 takes longer than a second"] == find_failure('bcrypt("secret", 14)').messages


def test_hashes_that_take_too_long_together_are_refused() -> None:
    with pytest.raises(BudgetExceeded, match="steps"):
        evaluate('[bcrypt("a", 13), bcrypt("b", 13)]')


def test_a_password_beyond_72_bytes_is_refused() -> None:
    assert "longer than 72 bytes" in find_failure(f'bcrypt("{"x" * 73}", 4)').messages[0]
