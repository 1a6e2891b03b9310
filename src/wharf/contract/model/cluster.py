"""Records of the cluster about itself: its servers, its leader, its keys, its format, and what guards its writes.

The records that a cluster has from its first moment on.
"""

import enum

import msgspec

from wharf.contract.model import namespaces, node_pools
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.node_pools import NodePool
from wharf.contract.model.operator.scheduler_configuration import PreemptionConfig, SchedulerConfiguration
from wharf.contract.model.record import Record, hash_content


class MemberStatus(enum.StrEnum):
    ALIVE = "alive"
    LEAVING = "leaving"
    LEFT = "left"
    FAILED = "failed"


class Member(Record):
    """A server. Its record lives on a lease, so that it goes when the server is gone."""

    id: str
    name: str = ""
    region: str = "global"
    datacenter: str = "dc1"
    address: str = ""  # host:port of its HTTP
    build: str = ""
    status: MemberStatus = MemberStatus.ALIVE
    oldest_format: int = 0  # The formats of the log that it can read.
    newest_format: int = 0
    started_at: int = 0  # ns since the epoch
    tags: dict[str, str] | None = None
    folder: str = ""  # Which data folder on which machine it runs in; empty from programs that did not tell.
    door_secret: str = ""  # What another member says to be let in; made at each start, never in a reply.
    create_index: int = 0
    modify_index: int = 0


class Leader(Record):
    """Which server leads. Its create index is the condition of every write that only a leader may make."""

    member_id: str
    elected_at: int = 0  # ns since the epoch
    heir: str = ""  # The member that the leadership is offered to: it alone may take this record's place.
    create_index: int = 0
    modify_index: int = 0


class KeyState(enum.StrEnum):
    ACTIVE = "active"
    INACTIVE = "inactive"
    REKEYING = "rekeying"
    PREPUBLISHED = "prepublished"
    DEPRECATED = "deprecated"


class KeyringKey(Record):
    """A key of the ring, wrapped by a key that is not in the log."""

    key_id: str
    algorithm: str = "aes256-gcm"
    state: KeyState = KeyState.ACTIVE
    wrapped: bytes = b""  # Never in a reply.
    wrapped_with: str = ""  # The fingerprint of the wrapping key.
    create_time: int = 0  # ns since the epoch
    publish_time: int = 0
    create_index: int = 0
    modify_index: int = 0


class RecordFormat(Record):
    """The version of all records that is in force. Raised only when every member can read the new one."""

    version: int
    create_index: int = 0
    modify_index: int = 0


class IdempotencyKey(Record):
    """A write that was already made, and its answer. It is found by its token and key.

    The same key with another method, path or body is another request, and refused.
    """

    scope: str  # The accessor of the token that sent it.
    key: str
    method: str
    path: str
    body_digest: str  # SHA-256 in hex
    status: int
    answer_sealed: bytes = b""  # The answer's body, encrypted by the keyring.
    sealed_with: str = ""
    expires_at: int = 0  # ns since the epoch
    create_index: int = 0
    modify_index: int = 0


class NodeCapacityVersion(Record):
    """The mark of a node's room. Its version is a condition of every plan that places something there.

    Whoever lowers the node's capacity, changes its eligibility or drain, or makes an allocation occupy it again,
    writes it; it holds nothing, because only its version matters. Plans write one that stands for all nodes.
    """

    node_id: str
    create_index: int = 0
    modify_index: int = 0


FIRST_FORMAT = 1
"""The format of the first clusters. A new one begins with the newest that its founder knows."""


def list_bootstrap_records(
    configuration: SchedulerConfiguration | None = None, *, cluster_format: int = FIRST_FORMAT
) -> list[msgspec.Struct]:
    """What the creation batch holds. `configuration`: the scheduler's, where the server's settings give one."""
    named = [
        Namespace(name=namespaces.DEFAULT_NAMESPACE, description="Default shared namespace"),
        NodePool(name=node_pools.ALL_NODE_POOL, description="Node pool with all nodes in the cluster."),
        NodePool(name=node_pools.DEFAULT_NODE_POOL, description="Default node pool."),
    ]
    return [
        *(msgspec.structs.replace(record, hash=hash_content(record)) for record in named),
        configuration if configuration is not None else make_default_scheduler_configuration(),
        RecordFormat(version=cluster_format),
    ]


def make_default_scheduler_configuration() -> SchedulerConfiguration:
    """Preemption is on for system jobs; everything else is as in an empty document."""
    return SchedulerConfiguration(preemption_config=PreemptionConfig(system_scheduler_enabled=True))
