"""The pieces of a turn's reply, without speaker labels and without lines of other speakers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from backend.chats.speaker_labels import SpeakerFilter
from backend.generation.model import (
    Finish,
    Piece,
    TextPiece,
    TextReset,
)
from backend.turns.prompt_context import LoadedChat


def make_speaker_filter(loaded: LoadedChat, *, has_text: bool) -> SpeakerFilter:
    """Return the filter for the text of one request; `has_text`: the reply has text before it."""
    cast = [loaded.speaker.name, *loaded.others]
    speaker, *others = (
        [loaded.user_name, *cast]
        if loaded.target.kind == "impersonate"
        else [*cast, loaded.user_name]
    )
    return SpeakerFilter(
        speaker,
        others,
        has_text=has_text,
        joins_text=has_text and loaded.target.kind == "continue",
        keeps_others=loaded.keeps_other_speakers,
    )


async def filter_speakers(
    pieces: AsyncGenerator[Piece, None], make_filter: Callable[[], SpeakerFilter]
) -> AsyncGenerator[Piece, None]:
    """Yield a reply's pieces with its text filtered.

    Where another speaker's line begins, the reply is finished, and the model is hung up on. Close
    it early to hang up: iterate inside `contextlib.aclosing`.
    """
    speakers = make_filter()
    async with aclosing(pieces):
        async for piece in pieces:
            match piece:
                case TextPiece(text):
                    if said := speakers.feed(text):
                        yield TextPiece(said)
                    if speakers.is_over:
                        yield Finish("stop")
                        return
                case TextReset():
                    speakers = make_filter()
                    yield piece
                case _:
                    if rest := speakers.close():
                        yield TextPiece(rest)
                    yield piece
