"""Starts the loopback interface of a new network namespace, then runs a command: `python -m tests.agent.loopback COMMAND`."""

import fcntl
import os
import socket
import struct
import sys
from typing import Final

SIOCSIFFLAGS: Final = 0x8914
IFF_UP_AND_RUNNING: Final = 0x1 | 0x40

if __name__ == "__main__":
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control_socket:
        fcntl.ioctl(control_socket.fileno(), SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP_AND_RUNNING))
    os.execv(sys.argv[1], sys.argv[1:])
