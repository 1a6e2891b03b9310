"""One process's standing with the log in etcd: its epoch, how far it has seen, when it was last there.

Guards against a log that was replaced beneath us by an older copy of itself (etcd restored from a snapshot). A reply
must never fall behind what was known when its question was sent; one that does proves the replacement, and the door
then begins the next epoch, in which every index exceeds all that were told before.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from wharf.engines import etcd_messages as messages
from wharf.engines.etcd_client import EtcdClient, EtcdRefusal, Reason, ReplyLost
from wharf.engines.etcd_layout import (
    FORMAT,
    UNFOUNDED,
    Epoch,
    GenerationKeys,
    Head,
    Keys,
    PastEpoch,
    decode_epoch,
    decode_head,
    encode,
    fencing_value,
    founding_value,
    next_epoch_value,
)
from wharf.engines.etcd_messages import Message
from wharf.engines.etcd_settings import EtcdSettings
from wharf.engines.port import Misconfigured, Unavailable
from wharf.model.changes import Cause, CauseKind
from wharf.world import World

EPOCH_BEGINS: Final = "epoch-begins"
"""The kind of the head that a new epoch puts. No follower sees it as a batch: it is Behind by then."""

HEADROOM: Final = 1_000_000
"""How far a new epoch stays above the greatest index known here: another member may have been told greater ones."""


class Look(NamedTuple):
    """A linearizable look at the log. `head` is the revision of the newest write, 0 when there is none."""

    epoch: Epoch
    revision: int
    head: int
    head_id: str


class Sent(NamedTuple):
    """What was known when a question was sent."""

    at_s: float
    lineage: int
    seen: int
    epoch: Epoch


class EtcdDoor:
    def __init__(self, settings: EtcdSettings, world: World) -> None:
        self.settings = settings
        self.world = world
        self.client = EtcdClient(settings, world)
        self.keys = Keys(settings.prefix)
        self.epoch = UNFOUNDED
        self.rows = self.keys.generation(UNFOUNDED.generation)
        self.contact_s: float | None = None
        self.lineage = 0  # Counts the replacements noticed here; what was asked before one proves nothing after it.
        self.on_new_epoch: Callable[[], None] = lambda: None
        self._seen = 0  # The greatest revision that the log has proved.
        self._told = 0  # The greatest index of earlier epochs that anybody may have been told by this door.
        self._head: tuple[int, str] | None = None  # The newest write seen: its revision and id.
        self._succession = asyncio.Lock()
        self._look = messages.transaction(
            success=[messages.read(self.keys.epoch), messages.read(self.keys.head)],
        )

    # --- what is known ---

    def sent(self) -> Sent:
        return Sent(self.world.monotonic_s(), self.lineage, self._seen, self.epoch)

    def is_current(self, sent: Sent) -> bool:
        return sent.lineage == self.lineage

    def saw(self, revision: int, sent: Sent | None = None) -> None:
        """The log has come as far as this; if it answered a question of ours, it was there when that was sent."""
        self._seen = max(self._seen, revision)
        if sent is not None and (self.contact_s is None or sent.at_s > self.contact_s):
            self.contact_s = sent.at_s

    def saw_write(self, revision: int, write_id: str) -> None:
        if self._head is None or revision > self._head[0]:
            self._head = (revision, write_id)

    def adopt(self, epoch: Epoch) -> None:
        """Count by this epoch from now on, if it is newer than the one that is known."""
        known = self.epoch
        if (epoch.number, epoch.fence) <= (known.number, known.fence):
            return
        if epoch.number > known.number:
            if known.fence:
                self._told = max(self._told, known.index_of(min(self._seen, epoch.since)))
            self._head = None
            self.on_new_epoch()
        self.epoch = epoch
        if epoch.generation != known.generation:
            self.rows = self.keys.generation(epoch.generation)

    def epoch_of(self, pair: Message | None) -> Epoch:
        return UNFOUNDED if pair is None else decode_epoch(pair.value, pair.mod_revision)

    def epoch_founded_at(self, revision: int) -> Epoch:
        """The epoch of a log that a write of ours has just founded."""
        return decode_epoch(encode(founding_value()), revision)

    # --- looking ---

    async def look(self) -> Look:
        """Read epoch and head, linearizable. Raises `Unavailable`."""
        while True:
            sent = self.sent()
            reply = await self.ask("txn", self._look)
            if not self.is_current(sent):
                continue
            pair, head = messages.only_pair(reply.responses[0]), messages.only_pair(reply.responses[1])
            epoch = self.epoch_of(pair)
            if self._contradicts(sent, reply.header.revision, epoch):
                await self.begin_epoch()
                continue
            self.adopt(epoch)
            if epoch.number and epoch.index_of(1) <= self._told:
                # Another member began this epoch and had been told less than we.
                await self.begin_epoch()
                continue
            self.saw(reply.header.revision, sent)
            write_id = decode_head(head.value).id if head is not None else ""
            if head is not None:
                self.saw_write(head.mod_revision, write_id)
            return Look(epoch, reply.header.revision, head.mod_revision if head is not None else 0, write_id)

    def _contradicts(self, sent: Sent, revision: int, epoch: Epoch) -> bool:
        return revision < sent.seen or (epoch.number, epoch.fence) < (sent.epoch.number, sent.epoch.fence)

    async def verify(self) -> None:
        """Make sure that this is still the log that we knew, though we were away for a while.

        A copy may have been restored and have moved past what we had seen; but then our newest write is not in it.
        """
        known = self._head
        if known is None:
            return
        revision, write_id = known
        lineage = self.lineage
        try:
            reply = await self.ask("range", messages.page(self.keys.head, b"", revision=revision))
        except EtcdRefusal as error:
            if error.reason is Reason.COMPACTED:
                return  # Too long ago to be proved; whoever follows from there is Behind anyway.
            if error.reason is not Reason.FUTURE:
                raise Unavailable(str(error)) from error
            is_same = False
        else:
            is_same = any(
                pair.mod_revision == revision and decode_head(pair.value).id == write_id for pair in reply.kvs
            )
        if not is_same and lineage == self.lineage and known == self._head:
            await self.begin_epoch()

    async def ask(self, method: str, request: Message) -> Message:
        """A request that may be repeated. A compacted or future revision is `EtcdRefusal`; all else `Unavailable`."""
        try:
            return await self.client.ask(method, request)
        except EtcdRefusal as error:
            if error.reason in (Reason.COMPACTED, Reason.FUTURE, Reason.NO_SPACE):
                raise
            if error.reason is Reason.DENIED:
                raise self._denied(error) from error
            raise Unavailable(str(error)) from error

    def _denied(self, error: EtcdRefusal) -> Misconfigured:
        settings = self.settings
        if not settings.user:
            return Misconfigured(f"{error}: it asks for a user, and the configuration names none (state.etcd.user)")
        return Misconfigured(
            f"{error}: the user {settings.user} needs the right to read and write under {settings.prefix}/"
        )

    # --- epochs ---

    async def begin_epoch(self) -> None:
        """The log was replaced by an older copy: put its indexes above all that were told."""
        lineage = self.lineage
        async with self._succession:
            if lineage != self.lineage:
                return
            told = max(self._told, self.epoch.index_of(self._seen) if self.epoch.fence else 0)
            reply = await self.ask("txn", self._look)
            found = self.epoch_of(messages.only_pair(reply.responses[0]))
            if found.number <= self.epoch.number or found.index_of(1) <= told:
                number = max(found.number, self.epoch.number) + 1
                value = next_epoch_value(number=number, generation=found.generation, base=told + HEADROOM)
                over = encode(PastEpoch(found.since, found.base))
                past = [messages.put(self.rows_of(found).past_of(found.number), over)] if found.fence else []
                await self.put_epoch(found, encode(value), past)
            self.lineage += 1
            self._told = told
            self._seen = 0
            self._head = None
            self.epoch = UNFOUNDED
            self.rows = self.keys.generation(UNFOUNDED.generation)
            self.on_new_epoch()

    async def put_epoch(
        self, known: Epoch, value: bytes, more: Sequence[Message] = (), *, compare: Sequence[Message] = ()
    ) -> int | None:
        """Put the epoch's key, with a head, unless somebody else did; answer the revision."""
        head = Head(FORMAT, self.world.new_id(), EPOCH_BEGINS, Cause(CauseKind.OPERATOR), 0, [])
        request = messages.transaction(
            [messages.moved_at(self.keys.epoch, known.fence), *compare],
            [messages.put(self.keys.epoch, value), messages.put(self.keys.head, encode(head)), *more],
        )
        try:
            reply = await self.client.commit(request)
        except (EtcdRefusal, ReplyLost) as error:
            raise Unavailable(str(error)) from error
        return int(reply.header.revision) if reply.succeeded else None

    async def fence(self) -> None:
        """End every write that is still on its way: none that was sent before can happen after."""
        while True:
            epoch = (await self.look()).epoch
            value = fencing_value(epoch) if epoch.fence else founding_value()
            request = messages.transaction(
                [messages.moved_at(self.keys.epoch, epoch.fence)],
                [messages.put(self.keys.epoch, encode(value))],
            )
            if not epoch.fence:
                return  # Nothing was ever written. A founding write must carry conditions: no fence stops it, they do.
            try:
                reply = await self.client.commit(request)
            except EtcdRefusal as error:
                if error.reason is Reason.NO_SPACE:
                    return  # Then no write can happen at all.
                raise Unavailable(str(error)) from error
            except ReplyLost as error:
                raise Unavailable(str(error)) from error
            if reply.succeeded:
                return

    def rows_of(self, epoch: Epoch) -> GenerationKeys:
        return self.rows if epoch.generation == self.epoch.generation else self.keys.generation(epoch.generation)
