"""Pipes on the event loop of the product, beside threads that open files."""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvloop

from wharf.world.pipes import connect_reading_end, connect_writing_end

PIPES = 2_000
"""With a descriptor that is closed twice, a tenth of them breaks a file of a thread or aborts the process."""


@contextmanager
def opening_files(problems: list[OSError]) -> Iterator[None]:
    """Open and close files on three threads. Append the error if one of them is closed by somebody else."""
    is_over = threading.Event()

    def open_files() -> None:
        while not is_over.is_set():
            descriptors = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]
            try:
                for descriptor in descriptors:
                    os.fstat(descriptor)
                    os.close(descriptor)
            except OSError as error:
                problems.append(error)

    threads = [threading.Thread(target=open_files) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("is_reading_end", [True, False])
def test_the_end_of_a_pipe_closes_no_file_of_another_thread(is_reading_end: bool) -> None:
    problems: list[OSError] = []

    def build_protocol() -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader())

    async def open_pipes() -> None:
        for _ in range(PIPES):
            reading, writing = os.pipe()
            if is_reading_end:
                (await connect_reading_end(build_protocol, reading))[0].close()
            else:
                (await connect_writing_end(build_protocol, writing))[0].close()
            os.close(writing if is_reading_end else reading)
            await asyncio.sleep(0)

    with opening_files(problems), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(open_pipes())

    assert problems == []


def test_data_passes_through_a_pipe_and_its_end_is_seen() -> None:
    async def read_pipe() -> tuple[bytes, bytes]:
        reading, writing = os.pipe()
        reader = asyncio.StreamReader()
        source, _ = await connect_reading_end(lambda: asyncio.StreamReaderProtocol(reader), reading)
        target, _ = await connect_writing_end(asyncio.BaseProtocol, writing)
        target.write(b"hello")
        first = await reader.readexactly(5)
        target.close()
        rest = await reader.read()
        source.close()
        return first, rest

    for loop_factory in (uvloop.new_event_loop, asyncio.new_event_loop):
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            assert runner.run(read_pipe()) == (b"hello", b"")
