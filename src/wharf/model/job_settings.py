"""What a server's configuration says about jobs: the settings that defaults and bounds of a job are taken from."""

from typing import Final

import msgspec

PRIORITY_CEILING: Final = 32_766


class JobSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults and bounds of jobs. `node_pool` is the default pool of the job's namespace."""

    region: str = "global"
    node_pool: str = "default"
    default_priority: int = 50
    max_priority: int = 100
    # 0 turns the bound off.
    max_count: int = 50_000
    memory_oversubscription: bool = False
    max_source_bytes: int = 1_000_000
    """A source text above this is not kept with its version."""
    versions_kept: int = 6
    """How many versions of a job that have no tag are kept, the newest counted in."""
