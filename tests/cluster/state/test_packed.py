"""Packed maps: a reader sees a map, memory and the log see bytes."""

import msgspec
import pytest

from tests.cluster.state.inventory import PARCELS, Parcel, Stop, a_batch, a_parcel, a_replica, a_write
from wharf.cluster.state import Replica
from wharf.cluster.state.codec import DamagedRecord, RecordDecoder, encode_record
from wharf.cluster.state.packed_map import PackedMap, encode_packed_as_dict, encode_packed_as_raw
from wharf.contract.model.log import Batch, Cause, CauseKind, EncodedChange

STOPS = {"first": Stop(place="north", day=1), "last": Stop(place="south", day=2)}


def a_kept_parcel(replica: Replica) -> Parcel:
    replica.apply_batch(a_batch(1, PARCELS.build_put(a_parcel("p", stops=STOPS))))
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
    replica.apply_batch(a_batch(1, PARCELS.build_put(a_parcel("p"))))

    assert (kept := replica.get(PARCELS, "p")) is not None
    assert kept.stops is None


def test_a_record_that_is_written_again_passes_its_packed_bytes_on() -> None:
    replica = a_replica()
    moved = msgspec.structs.replace(a_kept_parcel(replica), yard="south")
    logged = replica.encode_write(a_write(PARCELS.build_put(moved)), write_id="w")
    replica.apply_batch(Batch(2, "w", "test", logged.cause, logged.changes))

    assert (kept := replica.get(PARCELS, "p")) is not None
    assert (kept.yard, kept.stops) == ("south", STOPS)
    assert logged.changes[0].data == encode_record(PARCELS, msgspec.structs.replace(moved, stops=STOPS))


def test_a_packed_map_is_shown_in_json_as_any_other() -> None:
    kept = a_kept_parcel(a_replica())
    plain = msgspec.structs.replace(kept, stops=STOPS)

    assert msgspec.json.encode(kept, enc_hook=encode_packed_as_dict) == msgspec.json.encode(plain)


def test_an_encoder_that_was_not_told_of_packed_maps_refuses_one() -> None:
    with pytest.raises(TypeError, match="PackedMap"):
        msgspec.json.encode(a_kept_parcel(a_replica()))


@pytest.mark.parametrize("hook", [encode_packed_as_raw, encode_packed_as_dict])
def test_what_is_no_packed_map_is_still_refused_with_its_type(hook: object) -> None:
    assert callable(hook)
    with pytest.raises(NotImplementedError, match="complex"):
        hook(1j)


DAMAGED = msgspec.msgpack.encode({"ID": "p", "CreateIndex": 1, "Stops": {"first": 7}})


def test_damage_in_packed_bytes_comes_to_light_where_they_are_read() -> None:
    replica = a_replica()
    replica.apply_batch(Batch(1, "w", "test", Cause(CauseKind.REQUEST), [EncodedChange(PARCELS.name, "p", DAMAGED)]))
    kept = replica.get(PARCELS, "p")
    assert kept is not None
    assert kept.stops is not None

    with pytest.raises(DamagedRecord, match=r"parcels\.stops"):
        kept.stops["first"]


def test_a_proof_of_a_copy_opens_what_is_packed() -> None:
    with pytest.raises(DamagedRecord, match=r"parcels\.stops"):
        RecordDecoder(PARCELS, should_open_packed=True).decode_record("p", DAMAGED, 1)
