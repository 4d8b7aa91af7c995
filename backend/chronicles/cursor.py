"""Where a page of events ends, as a text that leads on to the next one."""

from __future__ import annotations

import binascii
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from backend.chronicles.reading import StoryEvent
from backend.errors import ValidationError

_FORM = struct.Struct(">qi16s")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in story order: that of one event."""

    happened_at: datetime
    place: int
    event_id: UUID

    @classmethod
    def of(cls, event: StoryEvent) -> Cursor:
        """Where an event stands."""
        return cls(event.happened_at, event.place, event.id)

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """The cursor that `str` made a text of. Raises `ValidationError` for any other text."""
        try:
            microseconds, place, raw = _FORM.unpack(urlsafe_b64decode(text.encode("ascii") + b"=="))
            happened_at = _EPOCH + microseconds * _MICROSECOND
        except (binascii.Error, UnicodeEncodeError, struct.error, OverflowError) as error:
            raise ValidationError("after has to be the `next` of an earlier page.") from error
        return cls(happened_at, place, UUID(bytes=raw))

    def __str__(self) -> str:
        microseconds = (self.happened_at - _EPOCH) // _MICROSECOND
        packed = _FORM.pack(microseconds, self.place, self.event_id.bytes)
        return urlsafe_b64encode(packed).rstrip(b"=").decode()
