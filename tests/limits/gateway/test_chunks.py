"""Chunked bodies: what is decoded, and what is refused at which byte."""

import pytest

from wharf.limits.gateway.chunks import (
    MAX_SIZE_LINE_BYTES,
    MAX_TRAILER_BYTES,
    BadChunk,
    ChunkReader,
    encode_chunk,
)


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (b"0\r\n\r\n", b""),
        (b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
        (b"a\r\n0123456789\r\n00F\r\n0123456789abcde\r\n0\r\n\r\n", b"01234567890123456789abcde"),
        (b"5;name=value\r\nhello\r\n0 ; x\r\n\r\n", b"hello"),
        (b"5\r\nhello\r\n0\r\nX-Trailer: 1\r\nY:\r\n\r\n", b"hello"),
        (b"000000000000005\r\nhello\r\n0\r\n\r\n", b"hello"),
    ],
)
def test_a_body_is_decoded_whole_and_byte_by_byte(sent: bytes, body: bytes) -> None:
    whole, by_byte = ChunkReader(), ChunkReader()

    assert (whole.feed(sent + b"next"), whole.is_done, whole.rest) == (body, True, b"next")
    decoded = b"".join(by_byte.feed(sent[index : index + 1]) for index in range(len(sent)))
    assert (decoded, by_byte.is_done, by_byte.rest) == (body, True, b"")


def test_an_incomplete_body_is_not_done() -> None:
    reader = ChunkReader()

    for part, decoded in ((b"5\r", b""), (b"\nhe", b"he"), (b"llo", b"llo"), (b"\r", b""), (b"\n0\r\n\r", b"")):
        assert (reader.feed(part), reader.is_done) == (decoded, False)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"5\r\nhelloX", "longer than its size"),
        (b"5\r\nhello\n", "longer than its size"),
        (b"5\r\nhello\rX", "longer than its size"),
        (b"x\r\n", "not a hexadecimal number"),
        (b"\r\n", "not a hexadecimal number"),
        (b" 5\r\n", "not a hexadecimal number"),
        (b"0" * 16 + b"\r\n", "not a hexadecimal number"),
        (b"5\n", "does not end with CR LF"),
        (b"\n", "does not end with CR LF"),
        (b"0\r\nX-Trailer\r\n", "is not a header"),
        (b"0\r\n: 1\r\n", "is not a header"),
        (b"0\r\nX: 1\n", "does not end with CR LF"),
    ],
)
def test_a_malformed_body_is_refused(sent: bytes, message: str) -> None:
    with pytest.raises(BadChunk, match=message):
        ChunkReader().feed(sent)


@pytest.mark.parametrize(
    ("before", "line_bytes"),
    [(b"1;", MAX_SIZE_LINE_BYTES), (b"0\r\nX:", MAX_TRAILER_BYTES)],
)
def test_a_line_has_a_maximum_length(before: bytes, line_bytes: int) -> None:
    start = before.rpartition(b"\n")[2]
    longest = before + b"x" * (line_bytes - len(start))

    for end in (b"", b"x", b"x\r\n"):
        reader = ChunkReader()
        if end:
            with pytest.raises(BadChunk, match=f"longer than {line_bytes} bytes"):
                reader.feed(longest + end)
        else:
            assert reader.feed(longest) == b""


def test_all_trailers_together_have_a_maximum_length() -> None:
    trailer = b"X: " + b"x" * 1_019 + b"\r\n"  # 1,024 bytes.
    reader = ChunkReader()
    reader.feed(b"0\r\n" + trailer * 8)

    with pytest.raises(BadChunk, match="the trailers are longer than 8192 bytes"):
        reader.feed(b"Y:\r\n")


def test_the_longest_trailers_are_accepted() -> None:
    trailer = b"X: " + b"x" * 1_019 + b"\r\n"
    reader = ChunkReader()
    reader.feed(b"0\r\n" + trailer * 8 + b"\r\n")

    assert reader.is_done


@pytest.mark.parametrize(("data", "encoded"), [(b"x", b"1\r\nx\r\n"), (b"x" * 26, b"1a\r\n" + b"x" * 26 + b"\r\n")])
def test_data_is_encoded_as_one_chunk(data: bytes, encoded: bytes) -> None:
    assert encode_chunk(data) == encoded
