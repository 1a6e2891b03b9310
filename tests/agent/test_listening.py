"""The socket that HTTP listens on."""

import socket

from wharf.agent.sockets import MAX_UNSENT_SOCKET_BYTES, listen_tcp


def test_the_kernel_buffers_little_for_a_client_that_reads_nothing() -> None:
    with listen_tcp("127.0.0.1", 0) as listening, socket.socket() as caller:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        caller.connect(listening.getsockname())
        listening.setblocking(True)
        accepted, _ = listening.accept()
        with accepted:
            accepted.setblocking(False)
            sent = 0
            try:
                while sent < 64 * MAX_UNSENT_SOCKET_BYTES:
                    sent += accepted.send(b"x" * 65_536)
            except BlockingIOError:
                pass

        assert sent < 2 * MAX_UNSENT_SOCKET_BYTES
