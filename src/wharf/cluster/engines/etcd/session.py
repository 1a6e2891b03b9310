"""One process's standing with the log in etcd: its epoch, how far it has seen, when it was last there.

Guards against a log that was replaced beneath us by an older copy of itself (etcd restored from a snapshot). A reply
must never fall behind what was known when its question was sent; one that does proves the replacement, and the door
then begins the next epoch, in which every index exceeds all that were told before.
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
"""The kind of the head that a new epoch puts. No follower sees it as a batch: it is Behind by then."""

EPOCH_INDEX_HEADROOM: Final = 1_000_000
"""How far a new epoch stays above the greatest index known here: another member may have been told greater ones."""


class EtcdLogStatus(NamedTuple):
    """A linearizable look at the log. `head` is the revision of the newest write, 0 when there is none."""

    epoch: Epoch
    revision: int
    head_revision: int
    head_write_id: str


class RequestContext(NamedTuple):
    """What was known when a question was sent."""

    sent_s: float
    replacement_count: int
    seen_revision: int
    epoch: Epoch


class EtcdSession:
    def __init__(self, settings: EtcdSettings, world: World) -> None:
        self.settings = settings
        self.world = world
        self.client = EtcdClient(settings, world)
        self.keys = LogKeys(settings.prefix)
        self.epoch = EMPTY_LOG_EPOCH
        self.generation_keys = self.keys.build_generation_keys(EMPTY_LOG_EPOCH.generation)
        self.last_contact_s: float | None = None
        self.replacement_count = (
            0  # Counts the replacements noticed here; what was asked before one proves nothing after it.
        )
        self.on_new_epoch: Callable[[], None] = lambda: None
        self._seen = 0  # The greatest revision that the log has proved.
        self._told = 0  # The greatest index of earlier epochs that anybody may have been told by this door.
        self._head: tuple[int, str] | None = None  # The newest write seen: its revision and id.
        self._succession = asyncio.Lock()
        self._look = messages.build_transaction(
            success=[messages.build_read(self.keys.epoch), messages.build_read(self.keys.head)],
        )

    # --- what is known ---

    def begin_request(self) -> RequestContext:
        return RequestContext(self.world.monotonic_s(), self.replacement_count, self._seen, self.epoch)

    def is_current(self, sent: RequestContext) -> bool:
        return sent.replacement_count == self.replacement_count

    def record_revision(self, revision: int, sent: RequestContext | None = None) -> None:
        """The log has come as far as this; if it answered a question of ours, it was there when that was sent."""
        self._seen = max(self._seen, revision)
        if sent is not None and (self.last_contact_s is None or sent.sent_s > self.last_contact_s):
            self.last_contact_s = sent.sent_s

    def record_write(self, revision: int, write_id: str) -> None:
        if self._head is None or revision > self._head[0]:
            self._head = (revision, write_id)

    def adopt_epoch(self, epoch: Epoch) -> None:
        """Count by this epoch from now on, if it is newer than the one that is known."""
        known = self.epoch
        if (epoch.number, epoch.fence) <= (known.number, known.fence):
            return
        if epoch.number > known.number:
            if known.fence:
                self._told = max(self._told, known.to_index(min(self._seen, epoch.since)))
            self._head = None
            self.on_new_epoch()
        self.epoch = epoch
        if epoch.generation != known.generation:
            self.generation_keys = self.keys.build_generation_keys(epoch.generation)

    def decode_epoch_pair(self, pair: ProtobufMessage | None) -> Epoch:
        return EMPTY_LOG_EPOCH if pair is None else decode_epoch(pair.value, pair.mod_revision)

    def make_first_epoch(self, revision: int) -> Epoch:
        """The epoch of a log that a write of ours has just founded."""
        return decode_epoch(encode_value(make_first_epoch_value()), revision)

    # --- looking ---

    async def read_status(self) -> EtcdLogStatus:
        """Read epoch and head, linearizable. Raises `Unavailable`."""
        while True:
            sent = self.begin_request()
            reply = await self.send_request("txn", self._look)
            if not self.is_current(sent):
                continue
            pair, head = messages.get_only_pair(reply.responses[0]), messages.get_only_pair(reply.responses[1])
            epoch = self.decode_epoch_pair(pair)
            if self._contradicts(sent, reply.header.revision, epoch):
                await self.begin_epoch()
                continue
            self.adopt_epoch(epoch)
            if epoch.number and epoch.to_index(1) <= self._told:
                # Another member began this epoch and had been told less than we.
                await self.begin_epoch()
                continue
            self.record_revision(reply.header.revision, sent)
            write_id = decode_head(head.value).id if head is not None else ""
            if head is not None:
                self.record_write(head.mod_revision, write_id)
            return EtcdLogStatus(epoch, reply.header.revision, head.mod_revision if head is not None else 0, write_id)

    def _contradicts(self, sent: RequestContext, revision: int, epoch: Epoch) -> bool:
        return revision < sent.seen_revision or (epoch.number, epoch.fence) < (sent.epoch.number, sent.epoch.fence)

    async def verify_log(self) -> None:
        """Make sure that this is still the log that we knew, though we were away for a while.

        A copy may have been restored and have moved past what we had seen; but then our newest write is not in it.
        """
        known = self._head
        if known is None:
            return
        revision, write_id = known
        lineage = self.replacement_count
        try:
            reply = await self.send_request("range", messages.build_range(self.keys.head, b"", revision=revision))
        except EtcdRefusal as error:
            if error.reason is EtcdRefusalReason.COMPACTED:
                return  # Too long ago to be proved; whoever follows from there is Behind anyway.
            if error.reason is not EtcdRefusalReason.FUTURE:
                raise LogUnavailable(str(error)) from error
            is_same = False
        else:
            is_same = any(
                pair.mod_revision == revision and decode_head(pair.value).id == write_id for pair in reply.kvs
            )
        if not is_same and lineage == self.replacement_count and known == self._head:
            await self.begin_epoch()

    async def send_request(self, method: str, request: ProtobufMessage) -> ProtobufMessage:
        """A request that may be repeated. A compacted or future revision is `EtcdRefusal`; all else `Unavailable`."""
        try:
            return await self.client.send_request(method, request)
        except EtcdRefusal as error:
            if error.reason in (EtcdRefusalReason.COMPACTED, EtcdRefusalReason.FUTURE, EtcdRefusalReason.NO_SPACE):
                raise
            if error.reason is EtcdRefusalReason.DENIED:
                raise self._denied(error) from error
            raise LogUnavailable(str(error)) from error

    def _denied(self, error: EtcdRefusal) -> LogMisconfigured:
        settings = self.settings
        if not settings.user:
            return LogMisconfigured(f"{error}: it asks for a user, and the configuration names none (state.etcd.user)")
        return LogMisconfigured(
            f"{error}: the user {settings.user} needs the right to read and write under {settings.prefix}/"
        )

    # --- epochs ---

    async def begin_epoch(self) -> None:
        """The log was replaced by an older copy: put its indexes above all that were told."""
        lineage = self.replacement_count
        async with self._succession:
            if lineage != self.replacement_count:
                return
            told = max(self._told, self.epoch.to_index(self._seen) if self.epoch.fence else 0)
            reply = await self.send_request("txn", self._look)
            found = self.decode_epoch_pair(messages.get_only_pair(reply.responses[0]))
            if found.number <= self.epoch.number or found.to_index(1) <= told:
                number = max(found.number, self.epoch.number) + 1
                value = make_next_epoch_value(
                    number=number, generation=found.generation, base=told + EPOCH_INDEX_HEADROOM
                )
                over = encode_value(PastEpoch(found.since, found.base))
                past = (
                    [messages.build_put(self.get_generation_keys(found).build_past_key(found.number), over)]
                    if found.fence
                    else []
                )
                await self.put_epoch(found, encode_value(value), past)
            self.replacement_count += 1
            self._told = told
            self._seen = 0
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
        """Put the epoch's key, with a head, unless somebody else did; answer the revision."""
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
        """End every write that is still on its way: none that was sent before can happen after."""
        while True:
            epoch = (await self.read_status()).epoch
            value = make_fence_value(epoch) if epoch.fence else make_first_epoch_value()
            request = messages.build_transaction(
                [messages.compare_revision(self.keys.epoch, epoch.fence)],
                [messages.build_put(self.keys.epoch, encode_value(value))],
            )
            if not epoch.fence:
                return  # Nothing was ever written. A founding write must carry conditions: no fence stops it, they do.
            try:
                reply = await self.client.commit_transaction(request)
            except EtcdRefusal as error:
                if error.reason is EtcdRefusalReason.NO_SPACE:
                    return  # Then no write can happen at all.
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
