"""The normal form of the path of a request, and the ways in which services read it.

The limiter judges the normal form, and the gateway forwards it. So no other spelling of a path selects other limits than
the path that the service receives. Where services differ, a path has several readings. This module knows no patterns.
"""

import functools
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from wharf.limits.core.rule import EscapedSlash, PathDifference, PathRules, SegmentTreatment

MAX_PATH_CHARACTERS: Final = 8_192
"""Longer paths are refused; limits the time to split a path in all its readings, and the length of log lines."""

MAX_CACHED_READINGS: Final = 2
"""The readings of the last paths are stored, because several steps of a decision need them. Limits memory to 10 MB."""
_NEEDS_NORMALIZING: Final = re.compile(r"[%;\\]|//|/\.")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ESCAPE: Final = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:@")
# `:` and `@` are reserved, but have no meaning of their own inside a path.
_CONTROL: Final = re.compile(r"%(?:[01][0-9A-F]|7F)")
_OVERLONG: Final = re.compile(r"%C[01]%[89AB]|%E0%[89]|%F0%8")
_ESCAPED_SLASH: Final = re.compile(r"%2F|%5C")
_TWICE_ESCAPED: Final = re.compile(r"%25(?:25)*(2[EeFf]|5[Cc])")
_PARAMETERS: Final = re.compile(r"(?:;|%3B)[^/]*")
_FORMAT: Final = re.compile(r"[A-Za-z0-9]{1,16}")
_DOT_SEGMENTS: Final = frozenset({".", ".."})
_SAFE_CHARACTERS: Final = "!$&'()*+,-./:;=@_~"
"""Characters of a decoded path that its normal form does not escape."""
_UNSAFE_IN_RAW_PATHS: Final = "%\\"
"""Characters of a raw path that `normalize_path` interprets."""


class BadPath(ValueError):
    """A path that is refused, because services read it differently. The text is the error message for the caller."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class PathReading(msgspec.Struct, frozen=True, gc=False):
    """One way to read a path: its decoded segments."""

    segments: tuple[str, ...]
    is_folded: bool = False
    """Whether the segments are case-folded, to compare them with patterns in any case."""


def normalize_path(path: str, rules: PathRules) -> str:
    """Return the normal form of the path of a request target, which has no query.

    Escapes of characters that need none are decoded, and the others are in upper case. Dot segments and empty segments are
    treated as the rules say. Raises `BadPath` if services read the path differently.
    """
    if len(path) > MAX_PATH_CHARACTERS:
        raise BadPath(f"The path has {len(path)} characters: at most {MAX_PATH_CHARACTERS} are allowed.", 414)
    if _NEEDS_NORMALIZING.search(path) is None:
        return path
    if "\\" in path:
        raise BadPath("The path contains a backslash: write / between its segments, or %5C inside a segment.")
    if _BAD_ESCAPE.search(path) is not None:
        raise BadPath(
            "The path contains a % that is not followed by two hexadecimal digits: write %25 for the sign itself."
        )
    path = _ESCAPE.sub(_normalize_escape, path)
    if _CONTROL.search(path) is not None:
        raise BadPath("The path contains an escaped control character: leave it out.")
    if _OVERLONG.search(path) is not None:
        raise BadPath("The path contains a character in an overlong form of UTF-8: send its shortest form.")
    if rules.escaped_slash is EscapedSlash.REFUSE and _ESCAPED_SLASH.search(path) is not None:
        raise BadPath("The path contains an escaped slash (%2F or %5C): leave it out.")
    if rules.dot_segments is SegmentTreatment.REMOVE:
        path = _remove_dot_segments(path)
    if rules.empty_segments is SegmentTreatment.REMOVE:
        path = re.sub("//+", "/", path)
    _check_segments(path, rules)
    return path


def normalize_decoded_path(path: str, rules: PathRules) -> str:
    """Return the normal form of a path that a server has decoded for its application.

    An escaped slash has become a separator. Raises `BadPath` if the path is refused.
    """
    try:
        escaped = quote(path, safe=_SAFE_CHARACTERS, errors="surrogateescape")
    except UnicodeEncodeError:
        escaped = quote(path, safe=_SAFE_CHARACTERS, errors="replace")
    return normalize_path(escaped, rules)


def normalize_raw_path(raw_path: bytes, rules: PathRules) -> str:
    """Return the normal form of the path of a request as a server received it. Raises `BadPath` if the path is refused."""
    return normalize_path(quote(raw_path, safe=_SAFE_CHARACTERS + _UNSAFE_IN_RAW_PATHS), rules)


def _normalize_escape(match: re.Match[str]) -> str:
    """Return an escape in upper case, or the character itself if it needs no escape."""
    character = chr(int(match[1], 16))
    return character if character in _UNRESERVED else match[0].upper()


def _remove_dot_segments(path: str) -> str:
    """Return the path without `.` and `..`, as RFC 3986 resolves them. Empty segments stay."""
    segments: list[str] = []
    parts = path[1:].split("/")
    for part in parts:
        if part == "..":
            del segments[-1:]
        elif part != ".":
            segments.append(part)
    if parts[-1] in (".", "..") and segments:
        segments.append("")
    return "/" + "/".join(segments)


def _check_segments(path: str, rules: PathRules) -> None:
    """Check that no service can find dot segments or empty segments in a path, unless the rules allow to keep them.

    Also found are those that only some services see: after an escaped slash, before parameters, or escaped twice.
    Raises `BadPath`.
    """
    has_separators = rules.escaped_slash in (EscapedSlash.BOTH, EscapedSlash.SEPARATOR)
    once = _ESCAPED_SLASH.sub("/", path) if has_separators else path
    twice = _TWICE_ESCAPED.sub(lambda match: _decode_twice_escaped(match[1], has_separators), once)
    has_parameters = rules.parameters is not PathDifference.EXACT
    for text in {once, *((_PARAMETERS.sub("", once),) if has_parameters else ())}:
        if rules.empty_segments is not SegmentTreatment.KEEP and "" in text[1:].split("/")[:-1]:
            raise BadPath(
                "The path contains an empty segment, which services read differently: write one slash instead of two."
            )
    for text in {twice, *((_PARAMETERS.sub("", twice),) if has_parameters else ())}:
        if rules.dot_segments is not SegmentTreatment.KEEP and not _DOT_SEGMENTS.isdisjoint(text[1:].split("/")):
            raise BadPath(
                "The path contains a segment `.` or `..`, which services read differently: send the path without it."
            )


def _decode_twice_escaped(digits: str, has_separators: bool) -> str:
    """Return the character of a dot or slash that was escaped twice; a slash stays escaped if it is no separator."""
    if digits in ("2E", "2e"):
        return "."
    return "/" if has_separators else f"%25{digits}"


def split_path(path: str) -> tuple[str, ...]:
    """Return the segments of a path as they are written; empty for `/`. A target that is no path, such as `*`, is one."""
    if path[:1] != "/":
        return (path,) if path else ()
    return tuple(path[1:].split("/")) if len(path) > 1 else ()


def read_segments(path: str) -> tuple[str, ...]:
    """Return the decoded segments of a path in normal form, with escaped slashes as text. A slash at the end is ignored."""
    segments = split_path(path[:-1] if path[-1:] == "/" else path)
    return tuple(map(_decode, segments)) if "%" in path else segments


def encode_segment(segment: str) -> str:
    """Return a decoded segment in the form of a path."""
    if segment.isalnum() and segment.isascii():
        return segment
    return quote(segment, safe=_SAFE_CHARACTERS.replace("/", ""), errors="surrogateescape")


def _decode(segment: str) -> str:
    return unquote(segment, errors="surrogateescape") if "%" in segment else segment


@functools.lru_cache(MAX_CACHED_READINGS)
def list_readings(path: str, rules: PathRules) -> tuple[PathReading, ...]:
    """Return the ways in which services read a path in normal form: at least one, without repetitions.

    The first one names the endpoint if no pattern does.
    """
    readings: dict[PathReading, None] = {}
    for segments in _iter_splits(path, rules):
        for variant in _iter_formats(segments, rules):
            if rules.case is not PathDifference.EXACT:
                readings[PathReading(tuple([segment.casefold() for segment in variant]), True)] = None
            if rules.case is not PathDifference.IGNORE:
                readings[PathReading(variant)] = None
    return tuple(readings)


def _iter_splits(path: str, rules: PathRules) -> Iterator[tuple[str, ...]]:
    """Yield the decoded segments of a path, with escaped slashes as text, then as separators, with and without parameters."""
    written = read_segments(path)
    splits = []
    has_escaped_slash = "%2F" in path or "%5C" in path
    if not has_escaped_slash or rules.escaped_slash is not EscapedSlash.SEPARATOR:
        splits.append(written)
    if has_escaped_slash and rules.escaped_slash is EscapedSlash.BOTH:
        splits.append(read_segments(_ESCAPED_SLASH.sub("/", path)))
        if "%5C" in path:
            splits.append(read_segments(path.replace("%2F", "/")))
    elif has_escaped_slash and rules.escaped_slash is EscapedSlash.SEPARATOR:
        splits.append(read_segments(path.replace("%2F", "/")))
    has_parameters = any(";" in segment for segment in written)
    for segments in splits:
        if has_parameters and rules.parameters is not PathDifference.EXACT:
            yield tuple([segment.partition(";")[0] for segment in segments])
        if not has_parameters or rules.parameters is not PathDifference.IGNORE:
            yield segments


def _iter_formats(segments: tuple[str, ...], rules: PathRules) -> Iterator[tuple[str, ...]]:
    """Yield the segments as they are, and without a format such as `.json` at the end."""
    yield segments
    if not segments or not rules.formats:
        return
    name, _, suffix = segments[-1].rpartition(".")
    if name and _FORMAT.fullmatch(suffix) and ("*" in rules.formats or suffix.lower() in rules.formats):
        yield (*segments[:-1], name)
