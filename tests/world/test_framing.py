"""Frames survive any division of the byte stream, and a frame that is too long is rejected before it is buffered."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wharf.world.framing import FrameDecoder, FrameTooLong, encode_frame


class Greeting(msgspec.Struct, tag="greeting"):
    text: str


def test_a_frame_is_the_length_and_the_msgpack_message() -> None:
    body = msgspec.msgpack.encode(Greeting("hello"))
    assert encode_frame(Greeting("hello")) == bytes([0, 0, 0, len(body)]) + body


@given(st.lists(st.text(max_size=300), max_size=6), st.lists(st.integers(1, 50), min_size=1))
def test_frames_arrive_whole_however_the_stream_is_divided(texts: list[str], sizes: list[int]) -> None:
    stream = b"".join(encode_frame(Greeting(text)) for text in texts)
    decoder = FrameDecoder(10_000)
    bodies: list[bytes] = []
    position = 0
    while position < len(stream):
        size = sizes[position % len(sizes)]
        bodies += decoder.feed(stream[position : position + size])
        position += size
    assert [msgspec.msgpack.decode(body, type=Greeting).text for body in bodies] == texts


def test_an_empty_body_is_a_frame() -> None:
    assert FrameDecoder(10).feed(bytes(8)) == [b"", b""]


def test_the_longest_frame_is_accepted() -> None:
    decoder = FrameDecoder(10)
    assert decoder.feed(bytes([0, 0, 0, 10])) == []
    assert decoder.feed(bytes(10)) == [bytes(10)]


@pytest.mark.parametrize("parts", [[b"\0\0\0\x0b"], [b"\0\0", b"\0\x0b"], [b"\0\0\0\x01a\0\0", b"\0\x0b"]])
def test_a_longer_frame_is_rejected_before_its_body_arrives(parts: list[bytes]) -> None:
    decoder = FrameDecoder(10)
    for part in parts[:-1]:
        decoder.feed(part)
    with pytest.raises(FrameTooLong, match="a frame of 11 bytes exceeds the limit of 10 bytes"):
        decoder.feed(parts[-1])
