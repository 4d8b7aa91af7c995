r"""Read the saved stories of KoboldAI Lite, and of KoboldAI.

A save is `{gamestarted, prompt, actions: [text], memory, authorsnote, worldinfo, savedsettings}`.
The story is one text: the prompt, then each action, without a separator. `savedsettings.opmode`
says how the text marks who speaks:

| `opmode` | Mode | Mark of the user | Mark of the model |
|---|---|---|---|
| 1 | story | none | none |
| 2 | adventure | a line that begins with `> ` | none |
| 3 | chat | a line that begins with `chatname` and `:` | a line with a name of `chatopponent`, which are separated by `||$||` |
| 4 | instruct | `{{[INPUT]}}`, or `instruct_starttag` | `{{[OUTPUT]}}`, or `instruct_endtag` |

In instruct mode, `{{[SYSTEM]}}` marks a system message, and each mark can have an end such as
`{{[INPUT_END]}}`. The tags in the settings have line breaks as `\n`. The mode of a save without
settings, such as one of KoboldAI, is guessed from the marks in its text. Pictures are `[<|d|data URI|d|>]` in the
text.

In a story every action becomes a message, because no mark says which of them the user wrote. The
memory becomes the chat's scenario.

Left out: world info (the same file can be imported as a lorebook), other texts of an action, and
settings.

Source: https://github.com/LostRuins/lite.koboldai.net (index.html),
https://github.com/KoboldAI/KoboldAI-Client.
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final, Literal, NamedTuple, cast

from backend.characters.cards.codec import Notes, Object, get_object
from backend.core.cpu_pool import check_stopped
from backend.generation.model import Role
from backend.transfer.errors import TransferFileError
from backend.transfer.formats.chat_file import (
    ChatFormat,
    ChatHead,
    ChatReading,
    FileMessage,
    FileReference,
    FileSwipe,
)
from backend.transfer.formats.json_files import (
    find_name,
    find_text,
    get_list,
    get_stem,
    get_text,
    list_top_members,
    load_object,
    make_note,
    make_reading,
    make_scenario,
    split_lines,
)
from backend.transfer.formats.thought_tags import split_thoughts

_Mode = Literal["story", "adventure", "chat", "instruct"]
_MODES: Final[Mapping[object, _Mode]] = {1: "story", 2: "adventure", 3: "chat", 4: "instruct"}
_NAME_SEPARATOR: Final = "||$||"
_MAX_NAMES: Final = 100
_ACTION: Final = "> "
_TAG_SETTINGS: Final[Mapping[str, str]] = {
    "instruct_starttag": "{{[INPUT]}}",
    "instruct_endtag": "{{[OUTPUT]}}",
    "instruct_systag": "{{[SYSTEM]}}",
    "instruct_starttag_end": "{{[INPUT_END]}}",
    "instruct_endtag_end": "{{[OUTPUT_END]}}",
    "instruct_systag_end": "{{[SYSTEM_END]}}",
}
_PLACEHOLDER: Final = re.compile(r"\{\{\[(INPUT|OUTPUT|SYSTEM)(?:_END)?\]\}\}")
_ROLES: Final[Mapping[str, Role]] = {"INPUT": "user", "OUTPUT": "assistant", "SYSTEM": "system"}
_MIN_TAG_CHARACTERS: Final = 3
"""Shorter tags, such as a line break, occur in texts."""

_PICTURE: Final = re.compile(r"\[<\|([dp])\|([^|]*)\|[dp]\|>\]")


class _Turn(NamedTuple):
    role: Role
    author: str
    text: str


class _StoryNames(NamedTuple):
    user: str
    others: Sequence[str]


def matches(head: bytes, _: str) -> bool:
    members = list_top_members(head)
    return "gamestarted" in members or members >= {"prompt", "actions"}


def read(file: BinaryIO, *, name: str) -> Iterator[ChatReading]:
    raw = load_object(file)
    parts = [get_text(raw, "prompt", "The file"), *_list_actions(raw)]
    story = "".join(parts)
    if not story.strip():
        raise TransferFileError("The story is empty.")
    settings = get_object(raw, "savedsettings")
    names = _find_names(settings)
    notes = Notes()
    mode = _MODES.get(_to_key(settings.get("opmode"))) or _guess_mode(story)
    if mode == "chat" and not names.user:
        mode = "story"
    turns = _TURNS[mode](parts, names, settings)
    if mode == "story":
        notes.add("A story does not mark the user's texts: all of it was read as the narrator's")
    if lore := len(get_list(raw, "worldinfo", "The file")):
        notes.add(
            f"The world info was left out: {lore:,} entries. Import the file as a lorebook as well"
        )
    memory = make_scenario(get_text(raw, "memory", "The file"), notes)
    if memory is not None:
        notes.add("The memory became the scenario of the chat")
    head = ChatHead(
        title=get_stem(name),
        user_name=names.user,
        character_names=list(names.others) if mode in ("chat", "instruct") else [],
        authors_note=make_note(get_text(raw, "authorsnote", "The file"), notes),
        scenario=memory,
    )
    yield make_reading(head, _read_turns(turns), notes)


def _to_key(value: object) -> object:
    """Return the number of a mode, which is a text in some files."""
    return (
        int(value)
        if isinstance(value, str) and value in {"1", "2", "3", "4"}
        else (value if isinstance(value, int) else None)
    )


def _list_actions(raw: Object) -> list[str]:
    """Return the actions. KoboldAI also writes them as an object by number."""
    value: Any = raw.get("actions")
    if isinstance(value, dict):
        value = list(cast("Object", value).values())
    actions = get_list({"actions": value}, "actions", "The file")
    for number, each in enumerate(actions, 1):
        if not isinstance(each, str):
            raise TransferFileError(f"Action {number:,} is not a text.")
    return actions


def _find_names(settings: Object) -> _StoryNames:
    listed = find_text(settings, "chatopponent").split(_NAME_SEPARATOR, _MAX_NAMES)[:_MAX_NAMES]
    others = [find_name({"name": each}, "name") for each in listed]
    return _StoryNames(
        find_name(settings, "chatname"),
        list(dict.fromkeys(filter(None, others))),
    )


def _guess_mode(story: str) -> _Mode:
    if _PLACEHOLDER.search(story):
        return "instruct"
    return "adventure" if f"\n{_ACTION}" in story else "story"


def _split_story(parts: list[str], _: _StoryNames, _settings: Object) -> Iterator[_Turn]:
    for each in parts:
        yield _Turn("assistant", "", each)


def _split_adventure(parts: list[str], names: _StoryNames, _: Object) -> Iterator[_Turn]:
    pending: list[str] = []
    for line in split_lines("".join(parts)):
        check_stopped()
        if not line.startswith(_ACTION):
            pending.append(line)
            continue
        yield _Turn("assistant", "", "\n".join(pending))
        yield _Turn("user", names.user, line.removeprefix(_ACTION))
        pending = []
    yield _Turn("assistant", "", "\n".join(pending))


def _split_chat(parts: list[str], names: _StoryNames, _: Object) -> Iterator[_Turn]:
    speakers = {names.user, *names.others}
    role: Role = "system"
    author = ""
    pending: list[str] = []
    for line in split_lines("".join(parts)):
        check_stopped()
        name, mark, rest = line.partition(":")
        if not mark or name.strip() not in speakers:
            pending.append(line)
            continue
        yield _Turn(role, author, "\n".join(pending))
        author = name.strip()
        role = "user" if author == names.user else "assistant"
        pending = [rest]
    yield _Turn(role, author, "\n".join(pending))


def _split_instruct(parts: list[str], names: _StoryNames, settings: Object) -> Iterator[_Turn]:
    authors = {"user": names.user, "assistant": names.others[0] if len(names.others) == 1 else ""}
    story = _replace_tags("".join(parts), settings)
    role: Role = "system"
    start = 0
    for found in _PLACEHOLDER.finditer(story):
        check_stopped()
        yield _Turn(role, authors.get(role, ""), story[start : found.start()])
        role, start = _ROLES[found[1]], found.end()
    yield _Turn(role, authors.get(role, ""), story[start:])


def _replace_tags(story: str, settings: Object) -> str:
    """Replace the tags of the settings with placeholders, the longest first."""
    tags = {
        form: placeholder
        for member, placeholder in _TAG_SETTINGS.items()
        for tag in (find_text(settings, member).replace("\\n", "\n"),)
        for form in (tag, tag.strip())
        if len(form) >= _MIN_TAG_CHARACTERS
    }
    for tag in sorted(tags, key=len, reverse=True):
        story = story.replace(tag, tags[tag])
    return story


_TURNS: Final = {
    "story": _split_story,
    "adventure": _split_adventure,
    "chat": _split_chat,
    "instruct": _split_instruct,
}


def _read_turns(turns: Iterator[_Turn]) -> Iterator[FileMessage]:
    for turn in turns:
        files: list[FileReference] = []

        def take(found: re.Match[str], files: list[FileReference] = files) -> str:
            if found[1] == "d" and found[2].startswith("data:"):
                files.append(FileReference(path=found[2]))
            return ""

        text = _PICTURE.sub(take, turn.text).strip()
        thinking, text = split_thoughts(text) if turn.role == "assistant" else (None, text)
        if text or files or thinking:
            yield FileMessage(
                role=turn.role,
                author=turn.author,
                swipes=[FileSwipe(text=text, thinking=thinking, files=files)],
            )


KOBOLD_LITE = ChatFormat("koboldai_lite", "KoboldAI Lite", matches, read)
