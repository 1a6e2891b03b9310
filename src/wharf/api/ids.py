"""Ids of work as paths give them: whole UUIDs, with or without their dashes. What is none is told so, not looked for."""

from typing import Final

from wharf.model.refusal import invalid

LENGTH: Final = 36
DIGITS: Final = 32
HEX: Final = frozenset("0123456789abcdef")
DASHES_AT: Final = (8, 13, 18, 23)


def read_id(given: str, *, where: str) -> str:
    """The id in the form that records have. `where` begins what is said of one that is none."""
    text = given.lower()
    digits = text.replace("-", "")
    if len(text) != LENGTH:
        raise invalid(f"{where}UUID must be {LENGTH} characters")
    wrong = next((letter for letter in digits if letter not in HEX), None)
    if wrong is not None:
        raise invalid(f"{where}Invalid UUID: encoding/hex: invalid byte: {wrong!r} is no hex digit")
    return text
