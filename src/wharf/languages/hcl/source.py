"""The text of a document, with line and column of each offset, and limits on its length and nesting."""

from typing import Final

from wharf.languages.hcl.errors import HclSyntaxError
from wharf.languages.source_locations import LineIndex, SourceLocation

MAX_DOCUMENT_CHARS: Final = 1_000_000
"""The length of a document, equal to that of a stored job source. Callers that read smaller documents pass a lower limit."""
MAX_DOCUMENT_DEPTH: Final = 64
"""How deep blocks, objects and lists may nest: limits the stack."""
_BYTE_ORDER_MARK: Final = "\ufeff"  # Some editors write a byte order mark at the start of a file.


class SourceText:
    """The text of one document. It also counts the current nesting, so that no document can exhaust the stack.

    Raises `HclSyntaxError` if the text is too long or not UTF-8.
    """

    def __init__(self, text: str, *, max_chars: int) -> None:
        self.text = text
        self.start = len(_BYTE_ORDER_MARK) if text.startswith(_BYTE_ORDER_MARK) else 0
        self._depth = 0
        if len(text) > max_chars:
            # The text is not scanned for lines, so the error has the location of its start.
            raise HclSyntaxError(SourceLocation(1, 1), f"the document is longer than {max_chars} characters")
        self._lines = LineIndex(text)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise self.make_error(error.start, "the document is not UTF-8") from None

    def get_location(self, offset: int) -> SourceLocation:
        """Return line and column of an offset."""
        return self._lines.get_location(offset)

    def make_error(self, offset: int, reason: str) -> HclSyntaxError:
        """Return a syntax error at an offset."""
        return HclSyntaxError(self.get_location(offset), reason)

    def make_unexpected_error(self, offset: int, expected: str, *, fix: str = "") -> HclSyntaxError:
        """Return a syntax error with what was expected at an offset, what was found, and how to fix it."""
        character = self.text[offset : offset + 1]
        found_text = (
            f'"{character}"'
            if character.isprintable() and character not in ("", '"')
            else _CHARACTER_NAMES.get(character, repr(character))
        )
        return self.make_error(offset, f"expected {expected}, found {found_text}" + (f"; {fix}" if fix else ""))

    def enter_nesting(self, offset: int) -> None:
        """Count one more level of nesting. Raises `HclSyntaxError` beyond `MAX_DOCUMENT_DEPTH`."""
        self._depth += 1
        if self._depth > MAX_DOCUMENT_DEPTH:
            raise self.make_error(offset, f"nested more than {MAX_DOCUMENT_DEPTH} deep")

    def leave_nesting(self) -> None:
        self._depth -= 1


_CHARACTER_NAMES: Final = {"": "the end", "\n": "the end of the line", '"': "a quote"}
