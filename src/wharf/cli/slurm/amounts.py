"""Values of Slurm's options: time limits, file patterns, signals, devices, features and lists of host names."""

import re
import signal
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from wharf.contract.model.times import SECOND

MAX_LOCK_KEY_BYTES: Final = 128
"""The limit of servers for the key of a lock."""
MAX_HOSTS: Final = 100
"""Host names that one option may list; each becomes a condition that every node is compared with."""
_TIME: Final = re.compile(r"(?:(?P<days>\d{1,5})-)?(?P<first>\d{1,7})(?::(?P<second>\d{1,4}))?(?::(?P<third>\d{1,4}))?")
_HOST_RANGE: Final = re.compile(r"([^\[\]]*)\[([0-9,-]+)\]([^\[\]]*)")
_FEATURE: Final = re.compile(r"[A-Za-z0-9_.:/+-]+")
_WORD: Final = re.compile(r"[A-Za-z0-9_.-]+")
_ELEMENT_ID: Final = re.compile(r"\d+_(\d+|\*|\[.*\])")
NO_LIMIT_TIMES: Final = frozenset({"0", "infinite", "unlimited"})
PATTERNS: Final[Mapping[str, str]] = {
    "A": "${WHARF_JOB_ID}",
    "N": "${node.unique.name}",
    "n": "0",
    "s": "batch",
    "t": "0",
    "x": "${WHARF_JOB_NAME}",
}
"""The parts of file names that are the same for every job, by Slurm's letters. `%a`, `%j` and `%u` depend on the job."""
NO_INDEX: Final = "4294967294"
"""What Slurm writes for `%a` in a job that is not an array."""


SINGLETON: Final = "singleton"
"""The kind of dependency that names no job: the job waits for others of the same user and name."""
DEPENDENCY_WORDS: Final[Mapping[str, str]] = {"afterok": "succeeded", "afternotok": "failed", "afterany": "any"}
"""The kinds of dependencies, each with the `When` of the need that it becomes."""
_REFUSED_DEPENDENCIES: Final[Mapping[str, str]] = {
    "after": "a job waits for the end of others, not for their start: use afterany",
    "aftercorr": "elements wait for elements only between steps of one job: write a job file with `Each`",
    "afterburstbuffer": "there are no burst buffers: use afterany",
    "expand": "a job cannot grow: request what it needs at its submission",
}


class SlurmValueError(ValueError):
    """The error for a value that cannot be translated. Its message says what is expected, or what to do instead."""


def parse_time_limit_ns(text: str) -> int:
    """Return a time limit in nanoseconds; 0: none. Raises `SlurmValueError`.

    The forms are minutes, `minutes:seconds`, `hours:minutes:seconds`, `days-hours`, `days-hours:minutes` and
    `days-hours:minutes:seconds`.
    """
    if text.lower() in NO_LIMIT_TIMES:
        return 0
    found = _TIME.fullmatch(text)
    if found is None:
        raise SlurmValueError("expected a time such as 90 (minutes), 2:00:00 or 1-12:00:00")
    first, second, third = (int(found[name]) if found[name] else None for name in ("first", "second", "third"))
    assert first is not None, "the pattern requires it"
    if found["days"]:
        seconds = int(found["days"]) * 86_400 + first * 3_600 + (second or 0) * 60 + (third or 0)
    elif third is not None:
        seconds = first * 3_600 + (second or 0) * 60 + third
    else:
        seconds = first * 60 + (second or 0)
    if not seconds:
        return 0
    return seconds * SECOND


def translate_pattern(text: str, *, index_reference: str, user: str) -> str:
    """Return the file name of `--output` or `--error` with references for its patterns. Raises `SlurmValueError`.

    `index_reference` is the reference to the index of an array's element; empty for other jobs.
    """
    pieces: list[str] = []
    letters = iter(text.replace("\\\\", "\\"))
    for letter in letters:
        if letter != "%":
            pieces.append(letter)
            continue
        mark = next(letters, "")
        while mark.isdigit():
            mark = next(letters, "")
        if mark == "%":
            pieces.append("%")
        elif mark == "a":
            pieces.append(index_reference or NO_INDEX)
        elif mark in ("j", "J"):
            pieces.append(f"${{WHARF_JOB_ID}}_{index_reference}" if index_reference else "${WHARF_JOB_ID}")
        elif mark == "u":
            pieces.append(user)
        elif mark in PATTERNS:
            pieces.append(PATTERNS[mark])
        else:
            raise SlurmValueError(f"unknown part %{mark}: use %j, %A, %a, %x, %N or %u")
    return "".join(pieces)


def parse_signal(text: str) -> tuple[str, int]:
    """Return the name of a signal and the seconds before the time limit, of a text such as `B:USR1@300`."""
    options, colon, rest = text.rpartition(":")
    if colon and not set(options) <= {"B", "R"}:
        raise SlurmValueError("expected a signal such as USR1@60 or B:USR1@60")
    name, at, seconds = rest.partition("@")
    if at and not (seconds.isdecimal() and len(seconds) <= 5):
        raise SlurmValueError(f"expected seconds after @, got {seconds!r}")
    name = name.upper().removeprefix("SIG")
    if name.isdecimal():
        try:
            name = signal.Signals(int(name)).name.removeprefix("SIG")
        except ValueError:
            raise SlurmValueError(f"{name} is not the number of a signal") from None
    if f"SIG{name}" not in signal.Signals.__members__:
        raise SlurmValueError(f"unknown signal {name}: use a name such as USR1 or TERM")
    return f"SIG{name}", int(seconds) if at else 60


def parse_devices(text: str) -> list[dict[str, Any]]:
    """Return the devices of `--gres`, such as `gpu:2` or `gpu:a100:1`. Raises `SlurmValueError`."""
    devices: list[dict[str, Any]] = []
    for part in text.split(","):
        words = part.strip().removeprefix("gres/").removeprefix("gres:").split(":")
        count = 1
        if len(words) > 1 and words[-1].isdecimal():
            count = _parse_count(words.pop())
        if not words[0] or len(words) > 2 or not all(_WORD.fullmatch(word) for word in words):
            raise SlurmValueError(f"expected devices such as gpu:2 or gpu:a100:1, got {part!r}")
        if words[0] == "none" or not count:
            continue
        devices.append(build_device(words[0], count, model=words[1] if len(words) > 1 else ""))
    return devices


def build_device(type: str, count: int, *, model: str = "") -> dict[str, Any]:
    """Return a request for devices. `model` is a part of the name of the device, in any case."""
    device: dict[str, Any] = {"Name": type, "Count": count}
    if model:
        device["Constraints"] = [
            {"LTarget": "${device.model}", "Operand": "regexp", "RTarget": f"(?i){re.escape(model)}"}
        ]
    return device


def parse_gpus(text: str) -> tuple[int, str]:
    """Return the number and the model of `--gpus`, such as `2` or `a100:2`. Raises `SlurmValueError`."""
    model, _, count = text.rpartition(":")
    if not (count.isdecimal() and len(count) <= 6) or (model and not _WORD.fullmatch(model)):
        raise SlurmValueError("expected a number such as 2, or a model and a number such as a100:2")
    return int(count), model


def _parse_count(text: str) -> int:
    if len(text) > 6:
        raise SlurmValueError(f"{text} is too large")
    return int(text)


def parse_features(text: str) -> dict[str, Any]:
    """Return the constraint for features joined by `&` or `|`. Raises `SlurmValueError`."""
    separator = "|" if "|" in text else "&"
    words = text.replace(",", "&").split(separator)
    if ("&" in text.replace(",", "&") and "|" in text) or not all(_FEATURE.fullmatch(word) for word in words):
        raise SlurmValueError("expected features joined by & or by |, such as avx512&ib: write more in a job file")
    operand = "set_contains_any" if separator == "|" and len(words) > 1 else "set_contains_all"
    return {"LTarget": "${meta.features}", "Operand": operand, "RTarget": ",".join(words)}


def expand_hosts(text: str) -> list[str]:
    """Return the names in a list such as `n1,gpu[01-04]`. Raises `SlurmValueError`."""
    hosts: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text):
        found = _HOST_RANGE.fullmatch(part.strip())
        if found is None:
            if not _WORD.fullmatch(part.strip()):
                raise SlurmValueError(f"expected names such as node1 or node[1-4], got {part!r}")
            hosts.append(part.strip())
            continue
        for piece in found[2].split(","):
            first, dash, last = piece.partition("-")
            last = last if dash else first
            if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) and len(last) <= 9):
                raise SlurmValueError(f"expected a range such as [1-4], got [{found[2]}]")
            if int(last) - int(first) >= MAX_HOSTS:
                raise SlurmValueError(f"lists more than {MAX_HOSTS} nodes: use a node pool (--partition)")
            hosts += [f"{found[1]}{number:0{len(first)}d}{found[3]}" for number in range(int(first), int(last) + 1)]
    if len(hosts) > MAX_HOSTS:
        raise SlurmValueError(f"lists more than {MAX_HOSTS} nodes: use a node pool (--partition)")
    return hosts


def parse_number(text: str, *, lowest: int = 1, highest: int = 1_000_000) -> int:
    """Return a whole number. Raises `SlurmValueError`."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 7 and lowest <= int(text) <= highest):
        raise SlurmValueError(f"expected a number from {lowest:,} to {highest:,}")
    return int(text)


class Dependency(NamedTuple):
    """What a job waits for."""

    needs: tuple[dict[str, str], ...]
    is_singleton: bool
    """Whether it also waits for other jobs of the same user and name."""


def parse_dependency(text: str) -> Dependency:
    """Return what a job waits for, from a list such as `afterok:1:2,afterany:3,singleton`. Raises `SlurmValueError`."""
    if "?" in text:
        raise SlurmValueError("not supported: a job waits for all that it names, not for any of them: write a comma")
    needs: dict[str, dict[str, str]] = {}
    is_singleton = False
    for part in text.split(","):
        kind, *job_ids = part.strip().split(":")
        if kind == SINGLETON and not job_ids:
            is_singleton = True
            continue
        if kind in _REFUSED_DEPENDENCIES:
            raise SlurmValueError(f"not supported: {_REFUSED_DEPENDENCIES[kind]}")
        if kind not in DEPENDENCY_WORDS:
            raise SlurmValueError(
                f"expected {', '.join(DEPENDENCY_WORDS)} with jobs, such as afterok:1:2, or the word {SINGLETON}"
            )
        if not job_ids or not all(job_ids):
            raise SlurmValueError(f"{kind} names no job: write its ID, such as {kind}:1")
        for job_id in job_ids:
            if _ELEMENT_ID.fullmatch(job_id):
                raise SlurmValueError(f"not supported: {job_id} is an element of an array: name the whole job")
            if job_id in needs:
                raise SlurmValueError(f"the job {job_id} is named twice: remove one")
            needs[job_id] = {"On": job_id, "When": DEPENDENCY_WORDS[kind]}
    return Dependency(tuple(needs.values()), is_singleton)


def build_singleton_lock(user: str, name: str) -> dict[str, Any]:
    """Return the lock that all singleton jobs of a user with one name share. Raises `SlurmValueError` if its key is too long."""
    key = f"{SINGLETON}/{user}/{name}"
    if (size := len(key.encode())) > MAX_LOCK_KEY_BYTES:
        raise SlurmValueError(
            f"--dependency={SINGLETON}: the lock {key} has {size} bytes, and at most {MAX_LOCK_KEY_BYTES} are possible: "
            "use a shorter --job-name"
        )
    return {"Key": key}
