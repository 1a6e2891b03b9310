"""Profiles of a process: what is measured, and the format of pprof."""

import gzip
import threading

import pytest

from wharf.agent.profiles import (
    CPU_VALUE_TYPES,
    MAX_TRACED_S,
    NANOSECONDS_PER_SAMPLE,
    StackFrame,
    StackSample,
    encode_pprof,
    render_folded,
    render_memory,
    sample_stacks,
    trace_allocations,
)
from wharf.contract.model.refusal import Refusal, RefusalCode

INNER, OUTER = StackFrame("m.inner", "/m.py", 7), StackFrame("m.outer", "/m.py", 300)


def decode_fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """Return the fields of a message of protocol buffers: numbers and bytes only."""
    fields: list[tuple[int, int | bytes]] = []
    position = 0

    def read_varint() -> int:
        nonlocal position
        number = shift = 0
        while True:
            byte = data[position]
            position += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return number

    while position < len(data):
        key = read_varint()
        if key & 7 == 0:
            fields.append((key >> 3, read_varint()))
        else:
            length = read_varint()
            fields.append((key >> 3, data[position : position + length]))
            position += length
    return fields


def test_a_profile_has_the_stacks_values_and_names_that_pprof_reads() -> None:
    samples = [StackSample((INNER, OUTER), (3, 30_000_000)), StackSample((OUTER,), (1, 10_000_000))]

    fields = decode_fields(gzip.decompress(encode_pprof(samples, CPU_VALUE_TYPES, time_ns=5, seconds=2.0)))

    def list_messages(number: int) -> list[list[tuple[int, int | bytes]]]:
        return [decode_fields(value) for field, value in fields if field == number and isinstance(value, bytes)]

    texts = [value for field, value in fields if field == 6]
    assert texts[0] == b""
    assert [[texts[int(value)] for _, value in each] for each in list_messages(1)] == [
        [b"samples", b"count"],
        [b"cpu", b"nanoseconds"],
    ]
    assert list_messages(2)[0] == [(1, bytes([1, 2])), (2, bytes([3]) + b"\x80\x87\xa7\x0e")]
    assert list_messages(2)[1][0] == (1, bytes([2]))
    lines = [dict(decode_fields(bytes(dict(each)[4]))) for each in list_messages(4)]
    assert lines == [{1: 1, 2: 7}, {1: 2, 2: 300}]
    functions = [dict(each) for each in list_messages(5)]
    assert [(texts[int(each[2])], texts[int(each[4])]) for each in functions] == [
        (b"m.inner", b"/m.py"),
        (b"m.outer", b"/m.py"),
    ]
    numbers = {field: value for field, value in fields if isinstance(value, int)}
    assert (numbers[9], numbers[10], numbers[12]) == (5, 2_000_000_000, NANOSECONDS_PER_SAMPLE)
    assert texts[int(numbers[14])] == b"cpu"


def test_folded_stacks_begin_with_the_thread() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="measured")
    thread.start()
    try:
        samples = sample_stacks(0.05)
    finally:
        stop.set()
        thread.join()

    (line,) = [each for each in render_folded(samples).splitlines() if each.startswith("measured;")]
    assert "threading.Event.wait:" in line
    assert line.rpartition(" ")[2] == "5"


def test_allocations_that_are_still_in_use_are_measured() -> None:
    held: list[bytes] = []
    timer = threading.Timer(0.05, lambda: held.append(bytes(3_000_000)))
    timer.start()

    profile = trace_allocations(0.3)
    timer.join()

    (largest, *_) = profile.samples
    assert (len(held), largest.stack[0].file) == (1, __file__)
    assert 3_000_000 < largest.values[1] < 3_001_000
    assert f"{largest.values[1]} bytes in {largest.values[0]} allocations\n" in render_memory(profile)


def test_a_memory_profile_ends_early_if_many_allocations_are_in_use() -> None:
    """To copy them holds all threads of the process, the event loop too."""
    held: list[bytes] = []
    should_stop = threading.Event()

    def allocate() -> None:
        while not should_stop.is_set():
            held.extend([bytes(100) for _ in range(10_000)])

    thread = threading.Thread(target=allocate)
    thread.start()
    profile = trace_allocations(MAX_TRACED_S)
    should_stop.set()
    thread.join()

    assert profile.seconds < MAX_TRACED_S
    assert profile.samples[0].stack[0].file == __file__


def test_a_second_memory_profile_is_refused_while_one_is_measured() -> None:
    refusals: list[RefusalCode] = []
    begun = threading.Event()

    def measure() -> None:
        begun.set()
        trace_allocations(0.3)

    first = threading.Thread(target=measure)
    first.start()
    begun.wait()
    first.join(0.1)
    with pytest.raises(Refusal) as refused:
        trace_allocations(0.01)
    refusals.append(refused.value.code)
    first.join()

    assert refusals == [RefusalCode.CONFLICT]
    assert trace_allocations(0.0) is not None


def test_a_second_cpu_profile_is_refused_while_one_is_measured() -> None:
    """Each takes one of the few threads of a process. Several would stop the writes of an api process for a minute."""
    begun = threading.Event()

    def measure() -> None:
        begun.set()
        sample_stacks(0.5)

    first = threading.Thread(target=measure)
    first.start()
    begun.wait()
    first.join(0.1)
    with pytest.raises(Refusal) as refused:
        sample_stacks(0.01)
    first.join()

    assert refused.value.code is RefusalCode.CONFLICT
    assert sample_stacks(0.01) is not None
