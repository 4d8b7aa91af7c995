from __future__ import annotations

from itertools import product
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from backend.vault.sealing import (
    FORMAT,
    HEADER,
    OVERHEAD,
    Column,
    SealBrokenError,
    Sealer,
    derive,
    digest,
    key_number,
    make_associated_data_prefix,
    seal_under,
    unseal_under,
)

USER = UUID(int=1)
ROW = UUID(int=2)
ROWS = ("1" * 32, "2" * 32, "3" * 32)
TITLE = Column("chats", "sealed_title")
KEYS = {1: b"1" * 32, 2: b"2" * 32}
USER_KEY = b"u" * 32

untimed = settings(deadline=None, database=None)
texts = st.text()
names = st.text(max_size=40)
ids = st.uuids()
places = st.tuples(st.builds(Column, names, names), ids, st.integers(0, 2**32 - 1))


def sealer(*numbers: int, user_id: UUID = USER) -> Sealer:
    return Sealer(user_id, {number: KEYS[number] for number in numbers}, user_key=USER_KEY)


class Place(NamedTuple):
    """The place of a blob. Every user and number has the same key here: the worst case."""

    table: str
    name: str
    row_id: UUID
    user_id: UUID
    number: int

    @property
    def column(self) -> Column:
        return Column(self.table, self.name)

    @property
    def sealer(self) -> Sealer:
        return Sealer(self.user_id, {self.number: b"k" * 32}, user_key=USER_KEY)


PLACES = [
    Place(*fields)
    for fields in product(
        ("chats", "messages"),
        ("sealed_title", "sealed_content"),
        (UUID(int=3), UUID(int=4)),
        (UUID(int=5), UUID(int=6)),
        (1, 2),
    )
]


@untimed
@given(texts, ids, ids, names, names)
def test_a_sealed_text_opens_in_its_place(
    text: str, user_id: UUID, row_id: UUID, table: str, name: str
) -> None:
    mine = sealer(1, 2, user_id=user_id)
    blob = mine.seal(Column(table, name), row_id, text)
    assert mine.open(Column(table, name), row_id, blob) == text
    assert len(blob) == len(text.encode()) + OVERHEAD


@untimed
@given(st.binary())
def test_bytes_come_back_as_they_were(data: bytes) -> None:
    assert sealer(1).open_bytes(TITLE, ROW, sealer(1).seal_bytes(TITLE, ROW, data)) == data


@untimed
@given(st.lists(st.tuples(ids, texts, st.sampled_from((1, 2)))))
def test_rows_under_different_keys_open_in_their_order(rows: list[tuple[UUID, str, int]]) -> None:
    sealed = [(row.bytes, sealer(number).seal(TITLE, row, text)) for row, text, number in rows]
    assert sealer(1, 2).open_many(TITLE, sealed) == [text for _, text, _ in rows]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_damaged_row_among_many_is_not_passed_over(place: int) -> None:
    rows = [(row.bytes, sealer(1).seal(TITLE, row, "")) for row in map(UUID, ROWS)]
    row_id, blob = rows[place]

    for damaged in (b"", blob[:3], blob[:6], blob[:-1], blob[:-1] + bytes([blob[-1] ^ 1])):
        rows[place] = row_id, damaged
        with pytest.raises(SealBrokenError):
            sealer(1).open_many(TITLE, rows)
    rows[place] = rows[place - 1][0], blob
    with pytest.raises(SealBrokenError):
        sealer(1).open_many(TITLE, rows)
    rows[place] = row_id, sealer(2).seal(TITLE, UUID(bytes=row_id), "")
    with pytest.raises(SealBrokenError):
        sealer(1).open_many(TITLE, rows)


def test_the_same_text_never_looks_the_same_twice() -> None:
    blobs = {sealer(1).seal(TITLE, ROW, "Hello") for _ in range(100)}
    assert len(blobs) == 100


@pytest.mark.parametrize("flip", [0x01, 0x03, 0x80, 0xFF])
def test_a_blob_with_any_byte_changed_does_not_open(flip: int) -> None:
    blob = sealer(1).seal(TITLE, ROW, "The lighthouse keeper")
    for place in range(len(blob)):
        changed = bytearray(blob)
        changed[place] ^= flip
        with pytest.raises(SealBrokenError):
            sealer(1, 2).open(TITLE, ROW, bytes(changed))


def test_a_blob_cut_short_anywhere_does_not_open() -> None:
    blob = sealer(1).seal(TITLE, ROW, "The lighthouse keeper")
    for length in range(len(blob)):
        with pytest.raises(SealBrokenError):
            sealer(1).open(TITLE, ROW, blob[:length])
    with pytest.raises(SealBrokenError):
        sealer(1).open(TITLE, ROW, blob + b"\0")


@pytest.mark.parametrize("sealed_for", PLACES, ids=str)
def test_a_blob_opens_in_its_own_place_and_in_no_other(sealed_for: Place) -> None:
    blob = sealed_for.sealer.seal(sealed_for.column, sealed_for.row_id, "Hello")
    opened: list[Place] = []

    for place in PLACES:
        # Also with the number of the data key replaced, as an attacker could do.
        for moved in (blob, HEADER.pack(FORMAT, place.number) + blob[HEADER.size :]):
            try:
                text = place.sealer.open(place.column, place.row_id, moved)
            except SealBrokenError:
                continue
            assert text == "Hello"
            opened.append(place)

    assert opened == [sealed_for, sealed_for]


def test_another_key_opens_nothing() -> None:
    blob = Sealer(USER, {1: b"1" * 32}, user_key=USER_KEY).seal(TITLE, ROW, "Hello")
    with pytest.raises(SealBrokenError):
        Sealer(USER, {1: b"x" * 32}, user_key=USER_KEY).open(TITLE, ROW, blob)


def test_an_error_shows_neither_text_nor_key() -> None:
    blob = sealer(1).seal(TITLE, ROW, "Hello")
    with pytest.raises(SealBrokenError) as caught:
        sealer(1).open(TITLE, USER, blob)
    assert str(caught.value) == "Stored text could not be decrypted"
    assert "1111" not in repr(sealer(1))


def test_new_texts_are_under_the_newest_data_key_and_older_ones_still_open() -> None:
    old = sealer(1).seal(TITLE, ROW, "before")
    new = sealer(1, 2).seal(TITLE, ROW, "after")
    assert (key_number(old), key_number(new)) == (1, 2)
    assert sealer(1, 2).open(TITLE, ROW, old) == "before"
    with pytest.raises(SealBrokenError):
        sealer(1).open(TITLE, ROW, new)


def test_resealing_moves_a_text_under_the_newest_key_once() -> None:
    old = sealer(1).seal(TITLE, ROW, "Hello")
    new = sealer(1, 2).reseal(TITLE, ROW, old)
    assert new is not None
    assert sealer(2).open(TITLE, ROW, new) == "Hello"
    assert sealer(1, 2).reseal(TITLE, ROW, new) is None


def test_resealing_does_not_launder_a_blob_that_was_moved() -> None:
    moved = sealer(1).seal(TITLE, UUID(int=99), "Hello")
    with pytest.raises(SealBrokenError):
        sealer(1, 2).reseal(TITLE, ROW, moved)


@untimed
@given(st.integers(min_value=0, max_value=2**32 - 1))
def test_a_blob_names_its_data_key(number: int) -> None:
    blob = Sealer(USER, {number: b"k" * 32}, user_key=USER_KEY).seal(TITLE, ROW, "")
    assert key_number(blob) == number


@pytest.mark.parametrize("length", range(OVERHEAD))
def test_bytes_too_short_for_a_blob_have_no_key_number(length: int) -> None:
    with pytest.raises(SealBrokenError):
        key_number(bytes(length))


@untimed
@given(names, st.data())
def test_a_boundary_between_table_and_column_cannot_be_shifted(
    joined: str, data: st.DataObject
) -> None:
    one, other = (data.draw(st.integers(0, len(joined))) for _ in range(2))
    assume(one != other)

    def prefix(cut: int) -> bytes:
        return make_associated_data_prefix(Column(joined[:cut], joined[cut:]), USER, 1)

    assert prefix(one) != prefix(other)


@untimed
@given(places, places)
def test_no_two_places_have_the_same_associated_data(
    one: tuple[Column, UUID, int], other: tuple[Column, UUID, int]
) -> None:
    assume(one != other)
    assert make_associated_data_prefix(*one) != make_associated_data_prefix(*other)


@untimed
@given(st.binary(max_size=40), st.data())
def test_a_digest_depends_on_the_boundary_between_its_parts(
    joined: bytes, data: st.DataObject
) -> None:
    one, other = (data.draw(st.integers(0, len(joined))) for _ in range(2))
    assume(one != other)

    def of(cut: int) -> bytes:
        return digest(USER_KEY, joined[:cut], joined[cut:])

    assert of(one) != of(other)


def test_an_empty_part_changes_a_digest() -> None:
    assert len({digest(USER_KEY), digest(USER_KEY, b""), digest(USER_KEY, b"", b"")}) == 3


def test_keys_for_different_purposes_have_nothing_in_common() -> None:
    derived = {sealer(1).derive_key(purpose) for purpose in ("a", "b", "a/b", "")}
    assert len(derived) == 4
    assert sealer(1).derive_key("a") == derive(USER_KEY, "a")
    assert derive(b"x" * 32, "a") not in derived


@untimed
@given(st.binary(max_size=100), st.binary(max_size=40))
def test_a_wrapped_key_opens_in_its_context_alone(secret: bytes, context: bytes) -> None:
    blob = seal_under(USER_KEY, secret, context=context)
    assert unseal_under(USER_KEY, blob, context=context) == secret
    with pytest.raises(SealBrokenError):
        unseal_under(USER_KEY, blob, context=context + b"\0")
    with pytest.raises(SealBrokenError):
        unseal_under(b"x" * 32, blob, context=context)


def test_a_wrapped_key_that_was_damaged_anywhere_does_not_open() -> None:
    blob = seal_under(USER_KEY, b"s" * 32, context=b"slot")
    for place in range(len(blob)):
        changed = bytearray(blob)
        changed[place] ^= 1
        for damaged in (bytes(changed), blob[:place]):
            with pytest.raises(SealBrokenError):
                unseal_under(USER_KEY, damaged, context=b"slot")
