"""The text of a document: bounded, and its places by line and column."""

from bisect import bisect_right
from typing import Final

from wharf.hcl.errors import NotADocument
from wharf.hcl.tree import Place

LENGTH_MAX: Final = 1_000_000
"""As long as a job's source may be that is kept. Who reads smaller documents asks for less."""
DEPTH_MAX: Final = 64
_MARK: Final = "\ufeff"  # Some editors put it in front of a file.


class Source:
    """Also counts how deep the reading of it is, so that no document can use up the stack."""

    def __init__(self, text: str, *, length_max: int) -> None:
        self.text = text
        self.start = len(_MARK) if text.startswith(_MARK) else 0
        self._lines = [0]
        self._depth = 0
        if len(text) > length_max:
            # Nothing of it is looked at, so the place is said without its line.
            raise NotADocument(Place(1, 1, 0), f"the document is longer than {length_max} characters")
        while newline := text.find("\n", self._lines[-1]) + 1:
            self._lines.append(newline)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise self.refusal(error.start, "the document is not UTF-8") from None

    def place(self, offset: int) -> Place:
        line = bisect_right(self._lines, offset)
        return Place(line, offset - self._lines[line - 1] + 1, offset)

    def refusal(self, offset: int, reason: str) -> NotADocument:
        return NotADocument(self.place(offset), reason)

    def unexpected(self, offset: int, expected: str, *, mend: str = "") -> NotADocument:
        """Says what should stand here and what does."""
        found = self.text[offset : offset + 1]
        standing = f'"{found}"' if found.isprintable() and found not in ("", '"') else _NAMES.get(found, repr(found))
        return self.refusal(offset, f"expected {expected}, found {standing}" + (f"; {mend}" if mend else ""))

    def descend(self, offset: int) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self.refusal(offset, f"nested more than {DEPTH_MAX} deep")

    def ascend(self) -> None:
        self._depth -= 1


_NAMES: Final = {"": "the end", "\n": "the end of the line", '"': "a quote"}
