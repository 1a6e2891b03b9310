"""Functions of texts."""

from collections.abc import Mapping
from typing import Final

from wharf.languages.graphemes import count_graphemes, split_graphemes
from wharf.languages.hcl.calls import CallContext, FunctionError, FunctionSpec, define_function
from wharf.languages.hcl.conversions import ConversionError, to_text
from wharf.languages.hcl.values import STRING, HclList, HclTuple, Value
from wharf.languages.patterns import PatternError, compile_pattern, count_compile_steps

_UNICODE_SPACES: Final = (
    "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
MATCH_STEPS: Final = 5
"""The steps of one replacement of a pattern, beside its text."""


def _indent(context: CallContext, spaces: int, text: str) -> Value:
    if spaces < 0:
        raise FunctionError("the number of spaces is not negative", argument=0)
    context.budget.use_bytes(text.count("\n") * spaces)
    return text.replace("\n", "\n" + " " * spaces)


def join_texts(context: CallContext, separator: str, *lists: HclTuple | HclList) -> Value:
    """Return the items of all lists as one text."""
    texts: list[str] = []
    for position, items in enumerate(lists, 1):
        context.budget.use_steps(len(items.items))
        for number, item in enumerate(items.items):
            if item is None:
                raise FunctionError(f"item {number} is null", argument=position, fix="use compact to drop null items")
            try:
                texts.append(to_text(item))
            except ConversionError as error:
                raise FunctionError(f"item {number}: {error.message}", argument=position, fix=error.fix) from None
    context.budget.use_bytes(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def _split(context: CallContext, separator: str, text: str) -> Value:
    parts = text.split(separator) if separator else split_graphemes(text)
    context.budget.use_bytes(8 * len(parts))
    return HclList(tuple(parts), STRING)


def change_case(text: str, *, is_upper: bool) -> str:
    """Return the text in upper or lower case, one character for each. `ß` has no single upper case character."""
    if text.isascii():
        return text.upper() if is_upper else text.lower()
    if is_upper:
        return "".join([upper if len(upper := char.upper()) == 1 else char for char in text])
    return "".join([char.lower()[0] for char in text])


def _capitalize_words(context: CallContext, text: str) -> Value:
    context.budget.use_steps(len(text))
    characters = []
    is_word_start = True
    for char in text:
        characters.append(change_case(char, is_upper=True) if is_word_start and char.isalpha() else char)
        is_word_start = not (char.isalnum() or char == "_") if char.isascii() else char.isspace()
    return "".join(characters)


def _replace(context: CallContext, text: str, old: str, new: str) -> Value:
    context.budget.use_bytes(len(text) + text.count(old) * len(new))
    return text.replace(old, new)


def _replace_pattern(context: CallContext, text: str, pattern_text: str, replacement: str) -> Value:
    context.budget.use_steps(count_compile_steps(pattern_text))
    try:
        pattern = compile_pattern(pattern_text)
    except PatternError as error:
        raise FunctionError(f"invalid pattern: {error}", argument=1) from None
    size = len(text) if text.isascii() else len(text.encode())
    context.budget.use_steps(2 * pattern.count_steps(size) + (size >> 3))
    budget = context.budget

    def count_chars(count: int) -> None:
        budget.use_bytes(count)
        budget.use_steps(MATCH_STEPS + (len(replacement) >> 3))

    return pattern.replace(text, replacement, count_chars=count_chars)


def _reverse(context: CallContext, text: str) -> Value:
    context.budget.use_steps(len(text) >> 2)
    return "".join(reversed(split_graphemes(text)))


def _count(context: CallContext, text: str) -> Value:
    context.budget.use_steps(len(text))
    return count_graphemes(text)


def _cut(context: CallContext, text: str, offset: int, length: int) -> Value:
    context.budget.use_steps(len(text) >> 2)
    characters = split_graphemes(text)
    if length < -1:
        raise FunctionError("the length is -1 for the rest of the text, or not negative", argument=2)
    start = max(len(characters) + offset, 0) if offset < 0 else offset
    return "".join(characters[start : len(characters) if length == -1 else start + length])


FUNCTIONS: Final[Mapping[str, FunctionSpec]] = dict(
    (
        define_function("chomp", "s:text", lambda _, s: s.rstrip("\r\n")),
        define_function("indent", "spaces:whole s:text", _indent),
        define_function("join", "separator:text lists...:list", join_texts, min_variadic=1),
        define_function("split", "separator:text s:text", _split),
        define_function("lower", "s:text", lambda _, s: change_case(s, is_upper=False)),
        define_function("upper", "s:text", lambda _, s: change_case(s, is_upper=True)),
        define_function("title", "s:text", _capitalize_words),
        define_function("replace", "s:text from:text to:text", _replace),
        define_function("regex_replace", "s:text pattern:text to:text", _replace_pattern),
        define_function("reverse", "s:text", _reverse),
        define_function("strrev", "s:text", _reverse),
        define_function("strlen", "s:text", _count),
        define_function("substr", "s:text from:whole length:whole", _cut),
        define_function("trim", "s:text characters:text", lambda _, s, characters: s.strip(characters)),
        define_function("trimprefix", "s:text prefix:text", lambda _, s, prefix: s.removeprefix(prefix)),
        define_function("trimsuffix", "s:text suffix:text", lambda _, s, suffix: s.removesuffix(suffix)),
        define_function("trimspace", "s:text", lambda _, s: s.strip(_UNICODE_SPACES)),
    )
)
