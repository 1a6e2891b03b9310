"""Following an agent's log: the lines that a follower receives, and the lines that a slow follower misses."""

import logging
import selectors
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress

from tests.waiting import wait_until
from wharf.agent.logs.forwarding import MAX_QUEUED_LINES, ForwardedLine, LogForwarder
from wharf.agent.logs.lines import render_line
from wharf.agent.logs.setup import LogConfiguration, ProcessLogging
from wharf.agent.supervision.channel import MessageDecoder
from wharf.agent.supervision.log_followers import MAX_UNSENT_BYTES, FollowedLogLines, LogFollowers
from wharf.config.settings import LogLevel


class FollowedLogs:
    """A log with followers that are connected by sockets."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.levels: list[int] = []
        self.followers = LogFollowers(self.selector, self.levels.append)

    def follow(self, level: int) -> socket.socket:
        agent_end, follower_end = socket.socketpair()
        self.followers.add(agent_end, level)
        follower_end.settimeout(60)
        assert read_message(follower_end) == FollowedLogLines([])  # It confirms that the next lines are sent.
        return follower_end

    def handle_events(self) -> None:
        for key, _ in self.selector.select(0):
            key.data()

    def close(self) -> None:
        self.followers.close()
        self.selector.close()


def read_message(connection: socket.socket) -> FollowedLogLines:
    """Wait until a whole message has arrived, and return it."""
    inbox, messages = MessageDecoder[FollowedLogLines](FollowedLogLines), list[FollowedLogLines]()
    while not messages:
        messages += inbox.feed(connection.recv(65_536))
    (message,) = messages
    return message


def test_a_follower_receives_lines_of_its_level_and_above() -> None:
    followed = FollowedLogs()
    with followed.follow(logging.INFO) as info_socket, followed.follow(logging.DEBUG) as debug_socket:
        followed.followers.send_lines([ForwardedLine(logging.DEBUG, "small"), ForwardedLine(logging.ERROR, "large")])

        assert read_message(info_socket) == FollowedLogLines(["large"])
        assert read_message(debug_socket) == FollowedLogLines(["small", "large"])
    followed.close()


def test_processes_receive_the_lowest_followed_level_and_the_end_of_following() -> None:
    followed = FollowedLogs()
    info_socket, debug_socket = followed.follow(logging.INFO), followed.follow(logging.DEBUG)
    debug_socket.close()
    followed.handle_events()
    info_socket.close()
    followed.handle_events()

    assert followed.levels == [logging.INFO, logging.DEBUG, logging.INFO, 0]
    followed.close()


def test_a_follower_that_reads_nothing_uses_limited_memory_and_gets_the_number_of_missed_lines() -> None:
    followed = FollowedLogs()
    with followed.follow(logging.INFO) as slow:
        for _ in range(100):
            followed.followers.send_lines([ForwardedLine(logging.INFO, "x" * 100_000)])
        slow.setblocking(False)
        inbox, received, missed = MessageDecoder[FollowedLogLines](FollowedLogLines), 0, 0

        def read_all() -> None:
            nonlocal received, missed
            with suppress(BlockingIOError):
                while True:
                    for message in inbox.feed(slow.recv(1_000_000)):
                        received, missed = received + len(message.lines), missed + message.missed
                    followed.handle_events()

        read_all()
        assert received * 100_000 < 2 * MAX_UNSENT_BYTES
        followed.followers.send_lines([ForwardedLine(logging.INFO, "the last")])
        read_all()

        assert received + missed == 101
        assert missed > 50
    followed.close()


def test_forwarding_never_blocks_and_counts_dropped_lines() -> None:
    may_send = threading.Event()
    sent_counts: list[tuple[int, int]] = []

    def send(lines: Sequence[ForwardedLine], missed: int) -> None:
        may_send.wait(10)
        sent_counts.append((len(lines), missed))

    forwarder = LogForwarder(send)
    for number in range(MAX_QUEUED_LINES + 500):
        forwarder.put(logging.INFO, f"line {number}")
    may_send.set()
    wait_until(
        lambda: sum(map(sum, sent_counts)) == MAX_QUEUED_LINES + 500, what="every line is sent or counted as missed"
    )

    assert sum(missed for _, missed in sent_counts) > 0


def test_a_follower_at_a_lower_level_does_not_change_the_retained_lines() -> None:
    logs, forwarded = ProcessLogging("test"), []
    try:
        logs.apply(LogConfiguration(level=LogLevel.WARN, levels={"quiet": LogLevel.ERROR}, on_terminal=False))
        logs.forward_lines(logging.DEBUG, lambda level, line: forwarded.append((level, "small" in line)))
        logging.getLogger("wharf.some").debug("small")
        logging.getLogger("wharf.some").warning("large")

        assert forwarded == [(logging.DEBUG, True), (logging.WARNING, False)]
        assert [("large" in line) for line in logs.get_retained_lines()] == [True]

        logs.forward_lines(0, lambda *_: None)
        logging.getLogger("wharf.some").debug("small")
        assert len(forwarded) == 2
    finally:
        logs.close()


def test_a_line_is_formatted_as_text_with_its_fields() -> None:
    written = (
        '{"time":"2026-01-02T03:04:05.678Z","level":"info","process":"api","logger":"wharf.x","message":"listening",'
        '"request_id":"r1","fields":{"address":"127.0.0.1:4646"}}'
    )

    assert render_line(written) == "2026-01-02T03:04:05.678Z info  api    listening  address=127.0.0.1:4646  request=r1"
