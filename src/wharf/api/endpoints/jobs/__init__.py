"""Endpoints of jobs: every handler of the five rooms that jobs have, under the name of its endpoint."""

from typing import Final

from wharf.api.answers import Act, Reading
from wharf.api.endpoints.jobs import commands as job_commands
from wharf.api.endpoints.jobs import reads as job_reads
from wharf.api.endpoints.jobs import statuses as job_statuses
from wharf.api.endpoints.jobs import submitting as job_submitting
from wharf.api.endpoints.jobs import versions as job_versions
from wharf.server.server import Server

READS: Final[dict[str, Reading]] = {**job_reads.READS, **job_statuses.READS, **job_versions.READS}


def acts_of(server: Server) -> dict[str, Act]:
    """The handlers that do more than read the replica."""
    return {**job_submitting.acts_of(server), **job_versions.acts_of(server), **job_commands.acts_of(server)}
