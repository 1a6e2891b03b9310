"""How the engine's stamped log is read, however it is cut on its way."""

from wharf.node.docker.frames import Chunk
from wharf.node.docker.stamped import Piece, Stamped, read_stamp

AT_NS = 1_700_000_000_123_456_789
STAMP = b"2023-11-14T22:13:20.123456789Z"


def test_a_stamp_is_read_to_the_nanosecond_in_any_zone() -> None:
    assert AT_NS == read_stamp(STAMP)
    assert AT_NS == read_stamp(b"2023-11-14T23:13:20.123456789+01:00")
    assert AT_NS - 456_789 == read_stamp(b"2023-11-14T22:13:20.123Z")
    assert read_stamp(b"line") is None


def test_a_frame_that_comes_in_pieces_is_one_entry() -> None:
    stamped = Stamped(is_tty=False)
    pieces = [*stamped.feed(Chunk("stderr", STAMP[:10])), *stamped.feed(Chunk("stderr", STAMP[10:] + b" ab", False))]
    pieces += stamped.feed(Chunk("stderr", b"c\n", False))
    assert [Piece("stderr", b"ab", AT_NS), Piece("stderr", b"c\n", None)] == pieces


def test_of_a_terminal_each_line_is_an_entry() -> None:
    stamped = Stamped(is_tty=True)
    data = STAMP + b" one\r\n" + STAMP + b" tw"
    pieces = [*stamped.feed(Chunk("stdout", data)), *stamped.feed(Chunk("stdout", b"o\r\n"))]
    assert [
        Piece("stdout", b"one\r\n", AT_NS),
        Piece("stdout", b"tw", AT_NS),
        Piece("stdout", b"o\r\n", None),
    ] == pieces


def test_what_has_no_stamp_is_kept_whole() -> None:
    line = b"no stamp at all\n"
    assert [Piece("stdout", line, 0)] == list(Stamped(is_tty=False).feed(Chunk("stdout", line)))
