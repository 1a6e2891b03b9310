"""Endpoints of jobs: every handler of the six rooms that jobs have, under the name of its endpoint."""

from typing import Final

from wharf.api.answers import Act, Reading
from wharf.api.endpoints.jobs import actions as job_actions
from wharf.api.endpoints.jobs import commands as job_commands
from wharf.api.endpoints.jobs import reads as job_reads
from wharf.api.endpoints.jobs import statuses as job_statuses
from wharf.api.endpoints.jobs import submitting as job_submitting
from wharf.api.endpoints.jobs import versions as job_versions
from wharf.server.server import Server

READS: Final[dict[str, Reading]] = {**job_reads.READS, **job_statuses.READS, **job_versions.READS}


def acts_of(server: Server) -> dict[str, Act]:
    """The handlers that do more than read the replica."""
    rooms = (job_submitting, job_versions, job_commands, job_actions)
    return {name: act for room in rooms for name, act in room.acts_of(server).items()}
