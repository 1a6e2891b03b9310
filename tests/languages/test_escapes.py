"""Backslash escapes of quoted strings."""

import pytest

from wharf.languages.escapes import InvalidEscape, replace_escapes


@pytest.mark.parametrize(
    ("text", "expected"),
    [("plain", "plain"), (r"a\nb\t\\\"", 'a\nb\t\\"'), (r"\x41\101", "AA"), (r"\xc3\xa9", "é"),
     (r"\303\251", "é"), (r"\u00e9", "é"), (r"\U0001F600!", "😀!"), (r"é\\", "é\\")],
)  # fmt: skip
def test_escapes_are_replaced_by_their_characters(text: str, expected: str) -> None:
    assert replace_escapes(text) == expected


@pytest.mark.parametrize(
    ("text", "offset"),
    [(r"ab\q", 2), ("a\\", 1), (r"\400", 0), (r"\777", 0), (r"\ud800", 0), (r"\UFFFFFFFF", 0), (r"\x4", 0), (r"\n\u12", 2)],
)  # fmt: skip
def test_the_offset_of_an_invalid_escape_is_reported(text: str, offset: int) -> None:
    with pytest.raises(InvalidEscape) as raised:
        replace_escapes(text)
    assert raised.value.offset == offset


def test_escaped_bytes_must_form_utf_8() -> None:
    with pytest.raises(UnicodeDecodeError):
        replace_escapes(r"\xff")
