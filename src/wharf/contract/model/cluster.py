"""Records of the cluster itself: members, known servers, leader, keyring keys, record format, idempotency keys and node
capacity versions.

Also lists the records that a new cluster starts with.
"""

import enum

import msgspec

from wharf.contract.model import namespaces, node_pools
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.node_pools import NodePool
from wharf.contract.model.operator.scheduler_configuration import PreemptionConfig, SchedulerConfiguration
from wharf.contract.model.record import Record, hash_content


class MemberStatus(enum.StrEnum):
    """The state of a server in the cluster."""

    ALIVE = "alive"
    LEAVING = "leaving"
    LEFT = "left"  # Shut down on purpose.
    FAILED = "failed"  # Out of contact.


class Member(Record):
    """A server of the cluster. Its record is tied to a time-limited lease, so it is deleted when the server is gone."""

    id: str
    name: str = ""
    region: str = "global"
    datacenter: str = "dc1"
    address: str = ""  # host:port of its HTTP API
    build: str = ""  # The version of the program.
    status: MemberStatus = MemberStatus.ALIVE
    oldest_format: int = 0  # The lowest version of the record format that it can read.
    newest_format: int = 0  # The highest one.
    started_at: int = 0  # ns since the epoch
    tags: dict[str, str] | None = None  # Extra fields for the list of members.
    folder: str = ""  # Identifies the machine and its data folder; empty for older programs, which do not report it.
    door_secret: str = ""  # What other members send to prove themselves; new at each start, never in a reply.
    create_index: int = 0
    modify_index: int = 0


class KnownServer(Record):
    """A server that has joined the cluster and has not left it, whether it runs or not.

    The leader writes this record. It is on no lease, so it remains when the server's member record expires.
    """

    id: str
    name: str = ""
    region: str = "global"
    datacenter: str = "dc1"
    address: str = ""  # host:port of its HTTP API
    build: str = ""  # The version of the program.
    newest_format: int = 0  # The highest version of the record format that it can read.
    started_at: int = 0  # ns since the epoch
    failed_at: int = 0  # When the leader found that its member record had expired, in ns since the epoch; 0: it runs.
    create_index: int = 0
    modify_index: int = 0


class Leader(Record):
    """The record that names the leading server.

    Every write that only a leader may make requires that its create index is unchanged, so a former leader can no
    longer write.
    """

    member_id: str
    elected_at: int = 0  # ns since the epoch
    heir: str = ""  # The member to which leadership is being transferred; only this member may replace the record.
    create_index: int = 0
    modify_index: int = 0


class KeyState(enum.StrEnum):
    """The state of a keyring key."""

    ACTIVE = "active"  # Encrypts and signs.
    INACTIVE = "inactive"  # Only decrypts and verifies.
    REKEYING = "rekeying"  # Secrets are being re-encrypted with the active key.
    PREPUBLISHED = "prepublished"  # Becomes active at its publish time.
    DEPRECATED = "deprecated"  # To be deleted.


class KeyringKey(Record):
    """A key that encrypts secrets and signs identities.

    It is stored encrypted with a wrapping key that is not in the log.
    """

    key_id: str
    algorithm: str = "aes256-gcm"
    state: KeyState = KeyState.ACTIVE
    wrapped: bytes = b""  # The encrypted key; never in a reply.
    wrapped_with: str = ""  # The fingerprint of the wrapping key.
    create_time: int = 0  # ns since the epoch
    publish_time: int = 0  # ns since the epoch; when a prepublished key becomes active.
    create_index: int = 0
    modify_index: int = 0


class RecordFormat(Record):
    """The version of the schemas of all records. It is raised only when every server can read the new version."""

    version: int
    cluster_id: str = ""
    """A random id of the cluster, by which nodes notice that their servers have lost all data; empty: not known yet."""
    longest_heartbeat_ttl: int = 0
    """The longest heartbeat TTL that a node may have, in nanoseconds; 0 means 20 s. A new leader waits at least this long."""
    deadlines_epoch: int = 0
    """The epoch of the log whose stored deadlines were restarted. Each restore begins an epoch; 0: before the first one."""
    create_index: int = 0
    modify_index: int = 0


class IdempotencyKey(Record):
    """A write that was requested with an idempotency key, and its reply (empty while the write is in progress).

    The record is found by caller and key. The same key with another method, path or body is a different request and is
    refused.
    """

    scope: str  # The caller; for callers without a token also the request, after a space.
    key: str  # As the client sent it.
    method: str
    path: str
    body_digest: str  # SHA-256 in hex
    status: int  # The HTTP status of the reply.
    answer_sealed: bytes = b""  # The body of the reply, encrypted by the keyring.
    sealed_with: str = ""  # The ID of the keyring key that encrypted `answer_sealed`.
    expires_at: int = 0  # ns since the epoch
    create_index: int = 0
    modify_index: int = 0

    @property
    def caller(self) -> str:
        """The caller whose keys count together; all callers without a token are one."""
        return self.scope.partition(" ")[0]


class NodeCapacityVersion(Record):
    """A record without content whose version changes whenever the free capacity of a node may have become smaller.

    Its version is a condition of every plan that places allocations on the node. Every write that lowers the node's
    capacity, changes its eligibility or drain, or makes an allocation occupy it again, writes this record too. Plans
    also use one such record for all nodes.
    """

    node_id: str
    create_index: int = 0
    modify_index: int = 0


FIRST_FORMAT = 1
"""The oldest record format. A new cluster starts with the newest format that its first server supports."""


def list_bootstrap_records(
    configuration: SchedulerConfiguration | None = None, *, cluster_format: int = FIRST_FORMAT, cluster_id: str = ""
) -> list[msgspec.Struct]:
    """Return the records of the first batch of a new cluster.

    They are the built-in namespace and node pools, the scheduler configuration and the version of the record format.
    `configuration` comes from the settings of the first server; `None` selects the default.
    """
    named = [
        Namespace(name=namespaces.DEFAULT_NAMESPACE, description="Default shared namespace"),
        NodePool(name=node_pools.ALL_NODE_POOL, description="Node pool with all nodes in the cluster."),
        NodePool(name=node_pools.DEFAULT_NODE_POOL, description="Default node pool."),
    ]
    return [
        *(msgspec.structs.replace(record, hash=hash_content(record)) for record in named),
        configuration if configuration is not None else make_default_scheduler_configuration(),
        RecordFormat(version=cluster_format, cluster_id=cluster_id),
    ]


def make_default_scheduler_configuration() -> SchedulerConfiguration:
    """Return the scheduler configuration of a new cluster.

    Preemption is on for system jobs; every other field is as in an empty document.
    """
    return SchedulerConfiguration(preemption_config=PreemptionConfig(system_scheduler_enabled=True))
