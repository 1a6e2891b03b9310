"""The text of a document: bounded, and its places by line and column."""

from bisect import bisect_right
from typing import Final

from wharf.languages.hcl.errors import HclSyntaxError
from wharf.languages.hcl.tree import SourceLocation

MAX_DOCUMENT_CHARS: Final = 1_000_000
"""As long as a job's source may be that is kept. Who reads smaller documents asks for less."""
MAX_DOCUMENT_DEPTH: Final = 64
_MARK: Final = "\ufeff"  # Some editors put it in front of a file.


class SourceText:
    """Also counts how deep the reading of it is, so that no document can use up the stack."""

    def __init__(self, text: str, *, max_chars: int) -> None:
        self.text = text
        self.start = len(_MARK) if text.startswith(_MARK) else 0
        self._lines = [0]
        self._depth = 0
        if len(text) > max_chars:
            # Nothing of it is looked at, so the place is said without its line.
            raise HclSyntaxError(SourceLocation(1, 1, 0), f"the document is longer than {max_chars} characters")
        while newline := text.find("\n", self._lines[-1]) + 1:
            self._lines.append(newline)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise self.make_error(error.start, "the document is not UTF-8") from None

    def get_location(self, offset: int) -> SourceLocation:
        line = bisect_right(self._lines, offset)
        return SourceLocation(line, offset - self._lines[line - 1] + 1, offset)

    def make_error(self, offset: int, reason: str) -> HclSyntaxError:
        return HclSyntaxError(self.get_location(offset), reason)

    def make_unexpected_error(self, offset: int, expected: str, *, fix: str = "") -> HclSyntaxError:
        """Says what should stand here and what does."""
        found = self.text[offset : offset + 1]
        standing = f'"{found}"' if found.isprintable() and found not in ("", '"') else _NAMES.get(found, repr(found))
        return self.make_error(offset, f"expected {expected}, found {standing}" + (f"; {fix}" if fix else ""))

    def enter_nesting(self, offset: int) -> None:
        self._depth += 1
        if self._depth > MAX_DOCUMENT_DEPTH:
            raise self.make_error(offset, f"nested more than {MAX_DOCUMENT_DEPTH} deep")

    def leave_nesting(self) -> None:
        self._depth -= 1


_NAMES: Final = {"": "the end", "\n": "the end of the line", '"': "a quote"}
