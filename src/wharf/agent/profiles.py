"""Profiles of this process: sampled stacks and measured allocations, as text or in the format that `go tool pprof` reads.

The format is the message `Profile` of `profile.proto`, compressed with gzip. It is encoded here, because the message is small.
"""

import collections
import gzip
import resource
import sys
import threading
import tracemalloc
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Final

import msgspec

from wharf.contract.model.refusal import Refusal, RefusalCode

SAMPLES_PER_S: Final = 100
"""How often `sample_stacks` samples each thread."""
MAX_STACK_FRAMES: Final = 100
"""Limits the length of a sampled stack in deep recursion."""
MAX_TRACED_FRAMES: Final = 16
"""Limits the memory and the time of tracing: this many frames of each allocation are stored, the innermost."""
MAX_TRACED_S: Final = 10.0
"""Limits how long allocations are traced. Tracing makes the process several times slower."""
MAX_TRACING_BYTES: Final = 1_500_000
"""Memory of the tracing itself, after which it ends early: some 30,000 allocations. Copying them is one call of the interpreter, which
holds all threads for 15 ms, the event loop too."""
TRACING_CHECK_INTERVAL_S: Final = 0.01
"""How often this memory is checked: a busy process has some thousand allocations in this time."""
MAX_TEXT_STACKS: Final = 200
"""Limits the text of a memory profile: this many stacks, those with the most bytes."""
NANOSECONDS_PER_SAMPLE: Final = 1_000_000_000 // SAMPLES_PER_S


class StackFrame(msgspec.Struct, frozen=True):
    """A line of a function in a stack."""

    function: str
    file: str
    line: int


class StackSample(msgspec.Struct, frozen=True):
    """The values that were measured for one stack, such as a count and a time. The innermost frame is first."""

    stack: tuple[StackFrame, ...]
    values: tuple[int, ...]


_SAMPLING_LOCK: Final = threading.Lock()
"""Held while stacks are sampled. Each profile occupies one of the few threads of the process for its whole duration."""


def sample_stacks(seconds: float) -> list[StackSample]:
    """Sample the stacks of all threads: each with its number of samples and their time in nanoseconds, most frequent first.

    The outermost frame is the name of the thread. Call it on a thread of its own, which it does not sample. Raises `Refusal`
    while another profile is measured.
    """
    if not _SAMPLING_LOCK.acquire(blocking=False):
        raise Refusal(RefusalCode.CONFLICT, "another CPU profile is being measured: try again when it has ended")
    try:
        return _sample_stacks(seconds)
    finally:
        _SAMPLING_LOCK.release()


def _sample_stacks(seconds: float) -> list[StackSample]:
    """Sample the stacks of all threads but this one."""
    own_ident = threading.get_ident()
    counts: collections.Counter[tuple[StackFrame, ...]] = collections.Counter()
    pause = threading.Event()
    for _ in range(max(1, round(seconds * SAMPLES_PER_S))):
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if ident != own_ident:
                counts[*_list_frames(frame), StackFrame(str(names.get(ident, ident)), "", 0)] += 1
        pause.wait(1 / SAMPLES_PER_S)
    return [StackSample(stack, (count, count * NANOSECONDS_PER_SAMPLE)) for stack, count in counts.most_common()]


def _list_frames(frame: FrameType | None) -> list[StackFrame]:
    """Return the frames of a stack, innermost first."""
    frames: list[StackFrame] = []
    while frame is not None and len(frames) < MAX_STACK_FRAMES:
        code = frame.f_code
        module = frame.f_globals.get("__name__", "?")
        frames.append(StackFrame(f"{module}.{code.co_qualname}", code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return frames


def render_folded(samples: Iterable[StackSample]) -> str:
    """Return one line for each stack: its functions from the outermost on, joined by `;`, then the number of samples."""
    return "".join(f"{';'.join(map(_fold_frame, reversed(each.stack)))} {each.values[0]}\n" for each in samples)


def _fold_frame(frame: StackFrame) -> str:
    return f"{frame.function}:{frame.line}" if frame.line else frame.function


# -- memory


_TRACING_LOCK: Final = threading.Lock()
"""Held while allocations are traced: the interpreter can trace for one profile at a time."""


class MemoryProfile(msgspec.Struct, frozen=True):
    """Allocations that are still in use: by stack, their number and bytes. Those with the most bytes are first."""

    samples: Sequence[StackSample]
    seconds: float
    """For how long allocations were traced."""


def trace_allocations(seconds: float) -> MemoryProfile:
    """Trace allocations for at most `MAX_TRACED_S`, or until there are too many, and return those that are still in use.

    The interpreter knows nothing of allocations before that. Call it on a thread of its own. Raises `Refusal` while another
    profile is measured.
    """
    if not _TRACING_LOCK.acquire(blocking=False):
        raise Refusal(RefusalCode.CONFLICT, "another memory profile is being measured: try again when it has ended")
    try:
        tracemalloc.start(MAX_TRACED_FRAMES)
        try:
            traced_s = _wait_for_allocations(min(seconds, MAX_TRACED_S))
            snapshot = tracemalloc.take_snapshot()
        finally:
            tracemalloc.stop()
    finally:
        _TRACING_LOCK.release()
    own_files = [tracemalloc.Filter(False, tracemalloc.__file__), tracemalloc.Filter(False, __file__)]
    samples = [
        StackSample(
            tuple(
                StackFrame(f"{frame.filename}:{frame.lineno}", frame.filename, frame.lineno)
                for frame in reversed(each.traceback)
            ),
            (each.count, each.size),
        )
        for each in snapshot.filter_traces(own_files).statistics("traceback")
    ]
    return MemoryProfile(sorted(samples, key=lambda each: each.values[1], reverse=True), traced_s)


def _wait_for_allocations(seconds: float) -> float:
    """Wait for these seconds, or until the traces need `MAX_TRACING_BYTES`. Return for how long it has waited."""
    pause, waited_s = threading.Event(), 0.0
    while waited_s < seconds and tracemalloc.get_tracemalloc_memory() < MAX_TRACING_BYTES:
        step_s = min(TRACING_CHECK_INTERVAL_S, seconds - waited_s)
        pause.wait(step_s)
        waited_s += step_s
    return waited_s


def render_memory(profile: MemoryProfile) -> str:
    """Return a memory profile as text: totals of the process, then each stack with its bytes and allocations."""
    samples = profile.samples
    lines = [
        f"memory profile: allocations of {profile.seconds:.3g} s that are still in use",
        f"bytes: {sum(each.values[1] for each in samples)}",
        f"allocations: {sum(each.values[0] for each in samples)}",
        f"blocks of the interpreter in use: {sys.getallocatedblocks()}",
        f"largest resident memory of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024} bytes",
    ]
    for each in samples[:MAX_TEXT_STACKS]:
        lines += ["", f"{each.values[1]} bytes in {each.values[0]} allocations"]
        lines += [f"  {frame.file}:{frame.line}" for frame in each.stack]
    if len(samples) > MAX_TEXT_STACKS:
        lines += ["", f"({len(samples) - MAX_TEXT_STACKS} further stacks)"]
    return "\n".join(lines) + "\n"


# -- the format of pprof


CPU_VALUE_TYPES: Final = (("samples", "count"), ("cpu", "nanoseconds"))
"""Name and unit of the values of a CPU profile, as pprof names them."""
MEMORY_VALUE_TYPES: Final = {
    "heap": (("inuse_objects", "count"), ("inuse_space", "bytes")),
    "allocs": (("alloc_objects", "count"), ("alloc_space", "bytes")),
}
"""Name and unit of the values of a memory profile, by the name of the profile, as pprof names them."""


def encode_pprof(
    samples: Iterable[StackSample], value_types: Sequence[tuple[str, str]], *, time_ns: int, seconds: float
) -> bytes:
    """Return the samples in the format that `go tool pprof` reads. The last value type is shown by default."""
    texts: dict[str, int] = {"": 0}
    functions: dict[tuple[str, str], int] = {}
    locations: dict[StackFrame, int] = {}
    encoded_samples = []
    for sample in samples:
        ids = [locations.setdefault(frame, len(locations) + 1) for frame in sample.stack]
        encoded_samples.append(_encode_packed(1, ids) + _encode_packed(2, sample.values))
    encoded_locations = []
    for frame, location_id in locations.items():
        function_id = functions.setdefault((frame.function, frame.file), len(functions) + 1)
        line = _encode_number(1, function_id) + _encode_number(2, frame.line)
        encoded_locations.append(_encode_number(1, location_id) + _encode_bytes(4, line))
    encoded_functions = [
        _encode_number(1, function_id)
        + _encode_number(2, _intern(texts, name))
        + _encode_number(4, _intern(texts, file))
        for (name, file), function_id in functions.items()
    ]
    encoded_types = [_encode_value_type(texts, *value_type) for value_type in value_types]
    default_type = _intern(texts, value_types[-1][0])
    parts = [
        *(_encode_bytes(1, each) for each in encoded_types),
        *(_encode_bytes(2, each) for each in encoded_samples),
        *(_encode_bytes(4, each) for each in encoded_locations),
        *(_encode_bytes(5, each) for each in encoded_functions),
        *(_encode_bytes(6, text.encode("utf-8", "replace")) for text in texts),
        _encode_number(9, time_ns),
        _encode_number(10, round(seconds * 1_000_000_000)),
        _encode_bytes(11, encoded_types[-1]),
        _encode_number(12, NANOSECONDS_PER_SAMPLE if value_types is CPU_VALUE_TYPES else 1),
        _encode_number(14, default_type),
    ]
    return gzip.compress(b"".join(parts), mtime=0)


def _intern(texts: dict[str, int], text: str) -> int:
    """Return the position of the text in the table of texts, to which it is added if it is missing."""
    return texts.setdefault(text, len(texts))


def _encode_value_type(texts: dict[str, int], name: str, unit: str) -> bytes:
    return _encode_number(1, _intern(texts, name)) + _encode_number(2, _intern(texts, unit))


def _encode_varint(number: int) -> bytes:
    """Return a number that is not negative in the variable length of protocol buffers."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _encode_number(field: int, number: int) -> bytes:
    return _encode_varint(field << 3) + _encode_varint(number)


def _encode_bytes(field: int, data: bytes) -> bytes:
    return _encode_varint(field << 3 | 2) + _encode_varint(len(data)) + data


def _encode_packed(field: int, numbers: Iterable[int]) -> bytes:
    return _encode_bytes(field, b"".join(map(_encode_varint, numbers)))
