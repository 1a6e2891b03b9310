"""Rights by the policies they come from. Rights hang on nothing but the texts, so the texts are what they are kept by.

So a policy that is written again changes the rights of everybody who has it with the next request, and a server that
is restored from a snapshot, or runs beside another in one process, can never be answered from the past of another.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from wharf.access.document import read_rules
from wharf.access.errors import InvalidRules
from wharf.access.grants import merge
from wharf.access.rights import NO_RIGHTS, Rights

KEPT_MAX: Final = 1_000
KEPT_CHARACTERS_MAX: Final = 4_000_000
"""What is kept weighs a few times its texts."""


class CompiledRights:
    """The rights that were asked for last, up to a number and a weight."""

    def __init__(self) -> None:
        self._kept: OrderedDict[frozenset[str], Rights] = OrderedDict()
        self._weight = 0

    def of(self, texts: Iterable[str]) -> Rights:
        """The rights that these policies give together."""
        key = frozenset(texts)
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept
        made = compile_rights(key)
        self._kept[key] = made
        self._weight += _weight(key)
        while len(self._kept) > 1 and (len(self._kept) > KEPT_MAX or self._weight > KEPT_CHARACTERS_MAX):
            oldest, _ = self._kept.popitem(last=False)
            self._weight -= _weight(oldest)
        return made


def compile_rights(texts: Iterable[str]) -> Rights:
    """The same, made anew. One text that cannot be read leaves no rights at all: nobody knows what it would deny."""
    try:
        return Rights(merge([read_rules(text) for text in texts]))
    except InvalidRules:
        return NO_RIGHTS


def _weight(texts: frozenset[str]) -> int:
    return sum(map(len, texts))


_COMPILED: Final = CompiledRights()


def rights_of(texts: Iterable[str]) -> Rights:
    """The rights that these policies give together, kept for the next who has the same."""
    return _COMPILED.of(texts)
