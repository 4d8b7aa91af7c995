"""Texts that take long to read: blanks, line breaks, macros within macros, many entries."""

from __future__ import annotations

import asyncio
from typing import Any

from scripts.torture.hostile_user import HostileUser

BLANKS = " " * 40_000 + "x"
BLANKS_OF_AN_ENTRY = 199_000
"""Nearly the maximum size of an entry."""
GREETINGS = 40
BIG = "The harbour lies still under the rain, and the lamps burn low. " * 3_000


async def blanks_in_a_line(user: HostileUser) -> None:
    """Send a line of 40,000 blanks and a letter, and read it again."""
    chat = await user.chat()
    await user.say(chat, BLANKS)
    await user.preview(chat)
    await user.ask("search", "GET", "/search", params={"q": "x harbour"})


async def blanks_in_a_greeting(user: HostileUser) -> None:
    """The same as a card's greeting."""
    chat = await user.chat(await user.character(first_mes=BLANKS))
    await user.preview(chat)


async def blanks_in_a_reply(user: HostileUser) -> None:
    """The same as a model's reply."""
    chat = await user.chat()
    user.model.literal = BLANKS
    await user.say(chat, "Say nothing, and then something.")
    user.model.literal = None
    await user.preview(chat)


async def blanks_in_a_decorator(user: HostileUser) -> None:
    """A lorebook entry with a decorator that has no end for 199,000 blanks."""
    entry = {"key": ["harbour"], "content": f"@@a b{' ' * BLANKS_OF_AN_ENTRY}c"}
    book = await user.lorebook([entry])
    chat = await user.chat()
    await user.link(chat, book)
    await user.preview(chat)
    body = {"texts": ["What of the harbour?"]}
    await user.ask("test", "POST", f"/lorebooks/{book}/test", json=body)


async def blanks_after_a_bracket(user: HostileUser) -> None:
    """`<` and 100,000 blanks in an entry that is remembered."""
    entry = {"key": ["quay"], "content": f"The harbour of old lamps <{' ' * 100_000}"}
    book = await user.lorebook([entry])
    chat = await user.chat()
    await user.link(chat, book)
    await user.until_quiet()
    text = "What of the harbour of old lamps?"
    await user.preview(chat, text)
    await user.say(chat, text)


async def line_breaks(user: HostileUser) -> None:
    """Lines of one letter, which are indexed in chunks: 50,000 in an entry, 5,000 in a message."""
    await user.lorebook([{"key": ["a"], "content": "a\n" * 50_000}])
    chat = await user.chat()
    await user.say(chat, "a\n" * 5_000)
    await user.preview(chat)


async def long_rows(user: HostileUser) -> None:
    """200 entries of 20,000 characters, indexed."""
    text = (BIG * 2)[:20_000]
    await user.lorebook([{"key": [f"k{n}"], "content": f"{n} {text}"} for n in range(200)])


async def big_cards(user: HostileUser) -> None:
    """Chats opened from a big card with many long greetings."""
    card = await user.character(
        description=BIG,
        first_mes=BIG[:50_000],
        alternate_greetings=[f"{n} {BIG[:50_000]}" for n in range(GREETINGS)],
    )
    await asyncio.gather(*(user.chat(card) for _ in range(5)))


async def macros_in_greetings(user: HostileUser) -> None:
    """A card of 200 KB with 40 greetings that ask for it again and again."""
    card = await user.character(
        description=BIG[:190_000],
        first_mes="{{description}}" * 20,
        alternate_greetings=["{{description}}" * 20 for _ in range(GREETINGS)],
    )
    chat = await user.chat(card)
    if chat:
        await user.preview(chat)


async def previews_at_once(user: HostileUser) -> None:
    """Eight previews at once of a book with 400 constant entries."""
    entry: dict[str, Any] = {"key": [], "constant": True, "content": BIG[:4_000]}
    entries = [entry] * 400
    book = await user.lorebook(entries)
    chat = await user.chat()
    await user.link(chat, book)
    await asyncio.gather(*(user.preview(chat, f"Preview {n}") for n in range(8)))


async def regex_scripts(user: HostileUser) -> None:
    """Run 40 slow scripts on lines, prompts and shown texts, and in 8 concurrent tests."""
    finds = ["/(x*y|x)/g", "/(x+x+)+[yz](?!b)/g", "/(?=x)/g", "/.+/gs"]
    scripts: list[dict[str, Any]] = [
        {
            "findRegex": finds[n % len(finds)],
            "replaceString": "$0" * 5_000 if n % len(finds) == 3 else "$0",
            "placement": [1, 2],
            "promptOnly": n % 3 == 1,
            "markdownOnly": n % 3 == 2,
        }
        for n in range(40)
    ]
    await user.ask("scripts", "PUT", "/me/regex-scripts", json={"scripts": scripts})
    chat = await user.chat()
    for n in range(3):
        await user.say(chat, f"{n} " + "x" * 30_000)
    body = {"scripts": scripts, "text": "x" * 100_000}
    path = f"/chats/{chat}/messages"
    await asyncio.gather(
        *(user.ask("test", "POST", "/me/regex-scripts/test", json=body) for _ in range(8)),
        *(user.ask("messages", "GET", path) for _ in range(8)),
        user.preview(chat),
    )


TEXTS = {
    "40,000 blanks in a line": blanks_in_a_line,
    "40,000 blanks in a greeting": blanks_in_a_greeting,
    "40,000 blanks in a reply": blanks_in_a_reply,
    "199,000 blanks in a decorator": blanks_in_a_decorator,
    "100,000 blanks after a <": blanks_after_a_bracket,
    "50,000 line breaks": line_breaks,
    "200 long entries": long_rows,
    "chats of big cards": big_cards,
    "macros in 40 greetings": macros_in_greetings,
    "8 previews of 400 entries": previews_at_once,
    "40 regex scripts": regex_scripts,
}
