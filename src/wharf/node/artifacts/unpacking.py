"""Has a process unpack an archive, so that it can delay nothing in the agent and can be ended at any time."""

import os
import sys
from typing import Final

import msgspec

from wharf.node.fair_queue import ItemOwner
from wharf.node.subprocesses import run_program
from wharf.node.threads import find_unpacking_slots
from wharf.node.unpacking.errors import ArtifactError
from wharf.node.unpacking.messages import UnpackOrder, UnpackReply

INHERITED_VARIABLES: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR")
"""The variables of the agent that the process gets. It needs none of the agent's secrets."""
MAX_REPLY_BYTES: Final = 64 << 10
"""Far more than a reply has; protects the memory of the agent."""


async def unpack_in_process(order: UnpackOrder, owner: ItemOwner) -> UnpackReply:
    """Unpack an archive in a process of its own, in a slot of this owner. The process ends if the caller is canceled.

    Raises ArtifactError, QueueFull and OSError.
    """
    async with find_unpacking_slots().hold(owner):
        result = await run_program(
            [sys.executable, "-m", "wharf.node.unpacking.worker"],
            environment={name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ},
            input_data=msgspec.msgpack.encode(order),
            max_output_bytes=MAX_REPLY_BYTES,
        )
    try:
        reply = msgspec.msgpack.decode(result.output, type=UnpackReply)
    except msgspec.MsgspecError:
        reason = "was killed, perhaps because the node has no memory left" if result.exit_code < 0 else "failed"
        raise ArtifactError(f"the process that unpacks the archive {reason}") from None
    if reply.error:
        raise ArtifactError(reply.error, is_permanent=reply.is_permanent)
    return reply
