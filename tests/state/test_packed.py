"""Packed maps: a reader sees a map, memory and the log see bytes."""

import msgspec
import pytest

from tests.state.inventory import PARCELS, Parcel, Stop, a_batch, a_parcel, a_replica, a_write
from wharf.model.changes import Cause, CauseKind
from wharf.model.log import Batch, Change
from wharf.state import Replica
from wharf.state.codec import Damaged, Decoder, encode
from wharf.state.packed import PackedMap, passed_on, unpacked

STOPS = {"first": Stop(place="north", day=1), "last": Stop(place="south", day=2)}


def a_kept_parcel(replica: Replica) -> Parcel:
    replica.apply(a_batch(1, PARCELS.put(a_parcel("p", stops=STOPS))))
    kept = replica.get(PARCELS, "p")
    assert kept is not None
    return kept


def test_a_packed_map_reads_like_the_map_that_was_put() -> None:
    stops = a_kept_parcel(a_replica()).stops

    assert isinstance(stops, PackedMap)
    assert stops["last"] == Stop(place="south", day=2)
    assert stops.get("never") is None
    assert "first" in stops
    assert list(stops) == ["first", "last"]
    assert len(stops) == 2
    assert list(stops.items()) == list(STOPS.items())
    assert list(stops.values()) == list(STOPS.values())
    assert repr(stops) == repr(STOPS)


def test_a_packed_map_equals_the_same_map_packed_or_not() -> None:
    stops, same = a_kept_parcel(a_replica()).stops, a_kept_parcel(a_replica()).stops
    assert isinstance(stops, PackedMap)
    in_another_order = PackedMap(
        msgspec.msgpack.encode(dict(reversed(STOPS.items()))), msgspec.msgpack.Decoder(dict[str, Stop]).decode
    )

    assert stops == same
    assert stops == STOPS
    assert STOPS == stops
    assert stops == in_another_order
    assert stops != {}
    assert stops != ["first", "last"]


def test_a_record_without_the_map_has_none() -> None:
    replica = a_replica()
    replica.apply(a_batch(1, PARCELS.put(a_parcel("p"))))

    assert (kept := replica.get(PARCELS, "p")) is not None
    assert kept.stops is None


def test_a_record_that_is_written_again_passes_its_packed_bytes_on() -> None:
    replica = a_replica()
    moved = msgspec.structs.replace(a_kept_parcel(replica), yard="south")
    logged = replica.encoded(a_write(PARCELS.put(moved)), write_id="w")
    replica.apply(Batch(2, "w", "test", logged.cause, logged.changes))

    assert (kept := replica.get(PARCELS, "p")) is not None
    assert (kept.yard, kept.stops) == ("south", STOPS)
    assert logged.changes[0].data == encode(PARCELS, msgspec.structs.replace(moved, stops=STOPS))


def test_a_packed_map_is_shown_in_json_as_any_other() -> None:
    kept = a_kept_parcel(a_replica())
    plain = msgspec.structs.replace(kept, stops=STOPS)

    assert msgspec.json.encode(kept, enc_hook=unpacked) == msgspec.json.encode(plain)


def test_an_encoder_that_was_not_told_of_packed_maps_refuses_one() -> None:
    with pytest.raises(TypeError, match="PackedMap"):
        msgspec.json.encode(a_kept_parcel(a_replica()))


@pytest.mark.parametrize("hook", [passed_on, unpacked])
def test_what_is_no_packed_map_is_still_refused_with_its_type(hook: object) -> None:
    assert callable(hook)
    with pytest.raises(NotImplementedError, match="complex"):
        hook(1j)


DAMAGED = msgspec.msgpack.encode({"ID": "p", "CreateIndex": 1, "Stops": {"first": 7}})


def test_damage_in_packed_bytes_comes_to_light_where_they_are_read() -> None:
    replica = a_replica()
    replica.apply(Batch(1, "w", "test", Cause(CauseKind.REQUEST), [Change(PARCELS.name, "p", DAMAGED)]))
    kept = replica.get(PARCELS, "p")
    assert kept is not None
    assert kept.stops is not None

    with pytest.raises(Damaged, match=r"parcels\.stops"):
        kept.stops["first"]


def test_a_proof_of_a_copy_opens_what_is_packed() -> None:
    with pytest.raises(Damaged, match=r"parcels\.stops"):
        Decoder(PARCELS, opens_packed=True).record("p", DAMAGED, 1)
