"""One process's view of the log in etcd: its epoch, the greatest revision seen, and the time of the last contact.

Detects a log that was replaced by an older copy (etcd restored from a snapshot). A reply must never be older than what
was known when its request was sent. A reply that is older proves the replacement; the session then begins the next
epoch, in which every index exceeds all that were returned before.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from wharf.cluster.engines.etcd import messages
from wharf.cluster.engines.etcd.client import EtcdClient, EtcdRefusal, EtcdRefusalReason, ReplyLost
from wharf.cluster.engines.etcd.layout import (
    EMPTY_LOG_EPOCH,
    LAYOUT_FORMAT,
    Epoch,
    GenerationKeys,
    HeadValue,
    LogKeys,
    PastEpoch,
    decode_epoch,
    decode_head,
    encode_value,
    make_fence_value,
    make_first_epoch_value,
    make_next_epoch_value,
)
from wharf.cluster.engines.etcd.messages import ProtobufMessage
from wharf.cluster.engines.etcd.settings import EtcdSettings
from wharf.cluster.engines.port import LogMisconfigured, LogUnavailable
from wharf.contract.model.log import Cause, CauseKind
from wharf.world import World

EPOCH_BEGINS_KIND: Final = "epoch-begins"
"""The kind of the head that begins a new epoch. No follower gets it as a batch, because `FollowerBehind` comes first.
"""

EPOCH_INDEX_HEADROOM: Final = 1_000_000
"""How far a new epoch starts above the greatest index known here: other members may have seen greater ones."""


class EtcdLogStatus(NamedTuple):
    """The state of the log by a linearizable read. `head_revision` is that of the newest write, 0 if there is none."""

    epoch: Epoch
    revision: int
    head_revision: int
    head_write_id: str


class RequestContext(NamedTuple):
    """What the session knew when a request was sent."""

    sent_s: float
    replacement_count: int
    seen_revision: int
    epoch: Epoch


class EtcdSession:
    """Epoch and progress of one process, and the requests that change epochs."""

    def __init__(self, settings: EtcdSettings, world: World) -> None:
        self.settings = settings
        self.world = world
        self.client = EtcdClient(settings, world)
        self.keys = LogKeys(settings.prefix)
        self.epoch = EMPTY_LOG_EPOCH
        self.generation_keys = self.keys.build_generation_keys(EMPTY_LOG_EPOCH.generation)
        self.last_contact_s: float | None = None
        self.replacement_count = 0
        """Counts the replacements noticed here. A reply to a request from before a replacement proves nothing afterwards."""
        self.on_new_epoch: Callable[[], None] = lambda: None
        self._seen_revision = 0  # The greatest revision that etcd has reported.
        self._max_returned_index = 0  # The greatest index of earlier epochs that this session may have returned.
        self._head: tuple[int, str] | None = None  # The newest write seen: its revision and id.
        self._epoch_lock = asyncio.Lock()
        self._status_request = messages.build_transaction(
            success=[messages.build_read(self.keys.epoch), messages.build_read(self.keys.head)],
        )

    # --- what is known ---

    def begin_request(self) -> RequestContext:
        return RequestContext(self.world.monotonic_s(), self.replacement_count, self._seen_revision, self.epoch)

    def is_current(self, sent: RequestContext) -> bool:
        return sent.replacement_count == self.replacement_count

    def record_revision(self, revision: int, sent: RequestContext | None = None) -> None:
        """Record that the log has reached this revision. If it is a reply to a request, the log was reachable when that
        was sent."""
        self._seen_revision = max(self._seen_revision, revision)
        if sent is not None and (self.last_contact_s is None or sent.sent_s > self.last_contact_s):
            self.last_contact_s = sent.sent_s

    def record_write(self, revision: int, write_id: str) -> None:
        if self._head is None or revision > self._head[0]:
            self._head = (revision, write_id)

    def adopt_epoch(self, epoch: Epoch) -> None:
        """Use this epoch from now on, if it is newer than the known one."""
        known = self.epoch
        if (epoch.number, epoch.fence) <= (known.number, known.fence):
            return
        if epoch.number > known.number:
            if known.fence:
                self._max_returned_index = max(
                    self._max_returned_index, known.to_index(min(self._seen_revision, epoch.since))
                )
            self._head = None
            self.on_new_epoch()
        self.epoch = epoch
        if epoch.generation != known.generation:
            self.generation_keys = self.keys.build_generation_keys(epoch.generation)

    def decode_epoch_pair(self, pair: ProtobufMessage | None) -> Epoch:
        return EMPTY_LOG_EPOCH if pair is None else decode_epoch(pair.value, pair.mod_revision)

    def make_first_epoch(self, revision: int) -> Epoch:
        """Return the epoch of a log that was first written at this revision."""
        return decode_epoch(encode_value(make_first_epoch_value()), revision)

    # --- status ---

    async def read_status(self) -> EtcdLogStatus:
        """Read epoch and head, linearizable; begin a new epoch if the log was replaced. Raises `LogUnavailable`."""
        while True:
            sent = self.begin_request()
            reply = await self.send_request("txn", self._status_request)
            if not self.is_current(sent):
                continue
            pair, head = messages.get_only_pair(reply.responses[0]), messages.get_only_pair(reply.responses[1])
            epoch = self.decode_epoch_pair(pair)
            if self._is_older_copy(sent, reply.header.revision, epoch):
                await self.begin_epoch()
                continue
            self.adopt_epoch(epoch)
            if epoch.number and epoch.to_index(1) <= self._max_returned_index:
                # Another member began this epoch and had seen smaller indexes than this session has returned.
                await self.begin_epoch()
                continue
            self.record_revision(reply.header.revision, sent)
            write_id = decode_head(head.value).id if head is not None else ""
            if head is not None:
                self.record_write(head.mod_revision, write_id)
            return EtcdLogStatus(epoch, reply.header.revision, head.mod_revision if head is not None else 0, write_id)

    def _is_older_copy(self, sent: RequestContext, revision: int, epoch: Epoch) -> bool:
        """Return whether a reply is older than what was known when the request was sent."""
        return revision < sent.seen_revision or (epoch.number, epoch.fence) < (sent.epoch.number, sent.epoch.fence)

    async def verify_log(self) -> None:
        """Check after a disconnection that the log was not replaced; begin a new epoch if it was.

        A restored copy may have advanced beyond the revision seen here, but it does not contain the newest write seen
        here.
        """
        known = self._head
        if known is None:
            return
        revision, write_id = known
        replacement_count = self.replacement_count
        try:
            reply = await self.send_request("range", messages.build_range(self.keys.head, b"", revision=revision))
        except EtcdRefusal as error:
            if error.reason is EtcdRefusalReason.COMPACTED:
                return  # Too old to check; a feed from there raises `FollowerBehind` anyway.
            if error.reason is not EtcdRefusalReason.FUTURE:
                raise LogUnavailable(str(error)) from error
            is_same = False
        else:
            is_same = any(
                pair.mod_revision == revision and decode_head(pair.value).id == write_id for pair in reply.kvs
            )
        if not is_same and replacement_count == self.replacement_count and known == self._head:
            await self.begin_epoch()

    async def send_request(self, method: str, request: ProtobufMessage) -> ProtobufMessage:
        """Send a request that is safe to repeat. Raises `EtcdRefusal` for a compacted or future revision or a full
        etcd, else `LogUnavailable`."""
        try:
            return await self.client.send_request(method, request)
        except EtcdRefusal as error:
            if error.reason in (EtcdRefusalReason.COMPACTED, EtcdRefusalReason.FUTURE, EtcdRefusalReason.NO_SPACE):
                raise
            if error.reason is EtcdRefusalReason.DENIED:
                raise self._build_denied_error(error) from error
            raise LogUnavailable(str(error)) from error

    def _build_denied_error(self, error: EtcdRefusal) -> LogMisconfigured:
        """Return the error for a request that etcd denied, with the setting or right that is missing."""
        settings = self.settings
        if not settings.user:
            return LogMisconfigured(f"{error}: etcd requires a user; set state.etcd.user")
        return LogMisconfigured(
            f"{error}: the user {settings.user} needs the right to read and write under {settings.prefix}/"
        )

    # --- epochs ---

    async def begin_epoch(self) -> None:
        """Begin a new epoch, because the log was replaced by an older copy. Its indexes exceed all that were returned
        before."""
        replacement_count = self.replacement_count
        async with self._epoch_lock:
            if replacement_count != self.replacement_count:
                return
            max_index = max(
                self._max_returned_index, self.epoch.to_index(self._seen_revision) if self.epoch.fence else 0
            )
            reply = await self.send_request("txn", self._status_request)
            epoch_found = self.decode_epoch_pair(messages.get_only_pair(reply.responses[0]))
            if epoch_found.number <= self.epoch.number or epoch_found.to_index(1) <= max_index:
                number = max(epoch_found.number, self.epoch.number) + 1
                value = make_next_epoch_value(
                    number=number, generation=epoch_found.generation, base=max_index + EPOCH_INDEX_HEADROOM
                )
                over = encode_value(PastEpoch(epoch_found.since, epoch_found.base))
                past = (
                    [messages.build_put(self.get_generation_keys(epoch_found).build_past_key(epoch_found.number), over)]
                    if epoch_found.fence
                    else []
                )
                await self.put_epoch(epoch_found, encode_value(value), past)
            self.replacement_count += 1
            self._max_returned_index = max_index
            self._seen_revision = 0
            self._head = None
            self.epoch = EMPTY_LOG_EPOCH
            self.generation_keys = self.keys.build_generation_keys(EMPTY_LOG_EPOCH.generation)
            self.on_new_epoch()

    async def put_epoch(
        self,
        known: Epoch,
        value: bytes,
        more: Sequence[ProtobufMessage] = (),
        *,
        compare: Sequence[ProtobufMessage] = (),
    ) -> int | None:
        """Put the epoch key, with a head, unless another process changed it first. Return the revision; None if it was
        changed."""
        head = HeadValue(LAYOUT_FORMAT, self.world.new_id(), EPOCH_BEGINS_KIND, Cause(CauseKind.OPERATOR), 0, [])
        request = messages.build_transaction(
            [messages.compare_revision(self.keys.epoch, known.fence), *compare],
            [messages.build_put(self.keys.epoch, value), messages.build_put(self.keys.head, encode_value(head)), *more],
        )
        try:
            reply = await self.client.commit_transaction(request)
        except (EtcdRefusal, ReplyLost) as error:
            raise LogUnavailable(str(error)) from error
        return int(reply.header.revision) if reply.succeeded else None

    async def fence_writes(self) -> None:
        """Prevent every write that is still in flight from being committed later, by moving the fence."""
        while True:
            epoch = (await self.read_status()).epoch
            value = make_fence_value(epoch) if epoch.fence else make_first_epoch_value()
            request = messages.build_transaction(
                [messages.compare_revision(self.keys.epoch, epoch.fence)],
                [messages.build_put(self.keys.epoch, encode_value(value))],
            )
            if not epoch.fence:
                return  # Nothing was ever written. The first write is protected by its conditions, not by a fence.
            try:
                reply = await self.client.commit_transaction(request)
            except EtcdRefusal as error:
                if error.reason is EtcdRefusalReason.NO_SPACE:
                    return  # A full etcd commits no writes anyway.
                raise LogUnavailable(str(error)) from error
            except ReplyLost as error:
                raise LogUnavailable(str(error)) from error
            if reply.succeeded:
                return

    def get_generation_keys(self, epoch: Epoch) -> GenerationKeys:
        return (
            self.generation_keys
            if epoch.generation == self.epoch.generation
            else self.keys.build_generation_keys(epoch.generation)
        )
