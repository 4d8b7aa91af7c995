"""Import and export of SillyTavern's chat-completion presets.

A file contains `prompts`, the order of the prompts to send in `prompt_order` (one list for each
kind of chat), samplers, and more. The imported file is stored as the source. An export starts from
the source and changes only members that would be read differently, so an unchanged preset is
exported as it was imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast, get_args

import msgspec

from backend.characters.cards.kinds import find_kind
from backend.characters.cards.text import parse_json
from backend.characters.errors import CardError
from backend.context.blocks import (
    BLOCK_IDS,
    MARKERS,
    MAX_BLOCKS,
    MAX_CONTENT,
    Block,
    BlockTrigger,
    PresetFields,
    check_blocks,
    marker_block,
)
from backend.errors import ValidationError
from backend.generation.model import Role
from backend.generation.sampling import Sampling
from backend.presets.errors import PresetFileError

Object = dict[str, Any]

MAX_FILE_BYTES: Final = 2_000_000
OWN_MEMBER: Final = "talekeeper"
"""The member of a file for settings that the format does not have."""

SHARED_ORDER_IDS: Final = (100001, 100000)
"""Ids of the lists in `prompt_order` that apply to all characters, the current one first."""

SAMPLERS: Final[Mapping[str, tuple[str, Any]]] = {
    "temperature": ("temperature", None),
    "top_p": ("top_p", 1),
    "top_k": ("top_k", 0),
    "top_a": ("top_a", 0),
    "min_p": ("min_p", 0),
    "repetition_penalty": ("repetition_penalty", 1),
    "frequency_penalty": ("frequency_penalty", 0),
    "presence_penalty": ("presence_penalty", 0),
    "openai_max_tokens": ("max_output_tokens", None),
    "seed": ("seed", -1),
    "reasoning_effort": ("reasoning_effort", "auto"),
    "assistant_prefill": ("start_reply_with", ""),
}
"""Setting and neutral value of each member of a file."""

_EFFORTS: Final = {"min": "minimal", "max": "high"}
MARKERS_WITH_CONTENT: Final = frozenset({"system_prompt", "post_history"})
OWN_BLOCK_IDS: Final = frozenset(each for each in MARKERS if each.startswith(OWN_MEMBER))
_BEFORE_HISTORY: Final = (marker_block("campaign"), marker_block("summary"))
_AFTER_HISTORY: Final = (marker_block("memory"),)


@dataclass(frozen=True, slots=True)
class PresetFile:
    """A preset, its file without the stored texts, and warnings for the user."""

    fields: PresetFields
    source: Object
    warnings: list[str]


def read_preset(data: bytes, *, name: str) -> PresetFile:
    """Read a file. CPU-bound. Raises `PresetFileError`."""
    if len(data) > MAX_FILE_BYTES:
        raise PresetFileError(
            f"The file has {len(data):,} bytes; {MAX_FILE_BYTES:,} are allowed.",
            extra={"limit": "preset_bytes", "allowed": MAX_FILE_BYTES, "found": len(data)},
        )
    try:
        file = parse_json(data)
    except CardError as error:
        raise PresetFileError(error.detail) from error
    if not isinstance(file, dict) or not isinstance(cast("Object", file).get("prompts"), list):
        kind = find_kind(cast("object", file))
        raise PresetFileError(
            kind.explain("a chat-completion preset")
            if kind
            else "This is not a chat-completion preset: it has no list of `prompts`. "
            "Text-completion presets are not supported."
        )
    source = cast("Object", file)
    warnings: list[str] = []
    blocks = _read_blocks(source, warnings)
    own = read_object(source.get(OWN_MEMBER))
    if not own.get("all_blocks"):
        blocks = add_own_blocks(blocks)
    try:
        fields = PresetFields(
            name=name,
            blocks=tuple(blocks),
            sampling=read_sampling(source, warnings),
            squash_system_messages=source.get("squash_system_messages") is True,
            lore_placement=(
                "as_written" if own.get("lore_placement") == "as_written" else "after_history"
            ),
        )
        check_blocks(fields.blocks)
        msgspec.convert(msgspec.to_builtins(fields), PresetFields)
    except ValidationError as error:
        raise PresetFileError(f"{error.detail}") from error
    except msgspec.ValidationError as error:
        raise PresetFileError(f"The preset cannot be stored: {error}.") from error
    if read_object(source.get("extensions")).get("regex_scripts"):
        warnings.append("Its regex scripts are kept for export, but they do not run.")
    return PresetFile(fields, _remove_contents(source, fields.blocks), warnings)


def _read_blocks(source: Object, warnings: list[str]) -> list[Block]:
    """Return the blocks of the file, in order."""
    listed = list_ordered_prompts(source, warnings)
    if len(listed) > MAX_BLOCKS:
        raise PresetFileError(
            f"The preset has {len(listed):,} blocks in its order; {MAX_BLOCKS} are allowed.",
            extra={"limit": "preset_blocks", "allowed": MAX_BLOCKS, "found": len(listed)},
        )
    prompts = index_prompts(source)
    return [
        make_block(block_id, prompts.get(block_id, {}), enabled=enabled)
        for block_id, enabled in listed
    ]


def list_ordered_prompts(
    source: Object, warnings: list[str] | None = None
) -> list[tuple[str, bool]]:
    """Return (id, enabled) of the prompts in the file's order, each once."""
    prompts, found = index_prompts(source), dict[str, bool]()
    order = find_order(source)
    entries = list(prompts.values()) if order is None else _read_objects(order.get("order"))
    for entry in entries:
        block_id = read_id(entry)
        if not block_id or block_id in found:
            continue
        if block_id in prompts or block_id in MARKERS:
            found[block_id] = entry.get("enabled", True) is True
        elif warnings is not None:
            warnings.append(f"Its order contains the unknown prompt `{block_id[:100]}`.")
    return list(found.items())


def find_order(source: Object) -> Object | None:
    """Return the list of `prompt_order` for all characters, else the longest one."""
    orders = [each for each in _read_objects(source.get("prompt_order")) if "order" in each]
    for wanted in SHARED_ORDER_IDS:
        for each in orders:
            if each.get("character_id") == wanted:
                return each
    return max(orders, key=lambda each: len(_read_objects(each["order"])), default=None)


def index_prompts(source: Object) -> dict[str, Object]:
    """Return the file's prompts by id, and the first one of several with the same id."""
    found: dict[str, Object] = {}
    for prompt in _read_objects(source.get("prompts")):
        if block_id := read_id(prompt):
            found.setdefault(block_id, prompt)
    return found


def read_id(prompt: object) -> str:
    """Return the id of a prompt or of an entry of an order, or an empty text."""
    return read_text(read_object(prompt), "identifier")


def make_block(block_id: str, prompt: Object, *, enabled: bool) -> Block:
    marker = MARKERS.get(block_id)
    has_content = marker is None or marker in MARKERS_WITH_CONTENT
    content = read_text(prompt, "content") if has_content else ""
    if len(content) > MAX_CONTENT:
        raise PresetFileError(
            f"The block `{block_id[:100]}` has {len(content):,} characters; "
            f"{MAX_CONTENT:,} are allowed.",
            extra={"limit": "preset_content", "allowed": MAX_CONTENT, "found": len(content)},
        )
    role, triggers = prompt.get("role"), prompt.get("injection_trigger")
    listed = cast("list[object]", triggers) if isinstance(triggers, list) else []
    return Block(
        id=block_id,
        name=read_text(prompt, "name")[:300],
        role=cast("Role", role) if role in get_args(Role) else "system",
        content=content,
        marker=marker,
        enabled=enabled,
        depth=(
            _read_integer(prompt.get("injection_depth"), 4, 0, 10_000)
            if prompt.get("injection_position") == 1
            else None
        ),
        order=_read_integer(prompt.get("injection_order"), 100, -1_000_000, 1_000_000),
        triggers=tuple(each for each in get_args(BlockTrigger) if each in listed),
        forbid_overrides=prompt.get("forbid_overrides") is True,
    )


def add_own_blocks(blocks: Sequence[Block]) -> list[Block]:
    """Add missing blocks that the format does not have around the history.

    Otherwise prompts with an imported preset would lack the chat's memory.
    """
    present = {block.id for block in blocks}
    before, after = (
        [each for each in own if each.id not in present]
        for own in (_BEFORE_HISTORY, _AFTER_HISTORY)
    )
    history = BLOCK_IDS["history"]
    at = next((place for place, each in enumerate(blocks) if each.id == history), None)
    if at is None:
        return [*blocks, *before, marker_block("history"), *after]
    return [*blocks[:at], *before, blocks[at], *after, *blocks[at + 1 :]]


def _remove_contents(source: Object, blocks: Sequence[Block]) -> Object:
    """Return the file without the texts of its blocks, which are stored in the preset."""
    texts, known = {block.id: block.content for block in blocks}, index_prompts(source)
    prompts: list[Any] = []
    for prompt in cast("list[Any]", source["prompts"]):
        block_id = read_id(prompt)
        is_kept = texts.get(block_id) and known.get(block_id) is prompt
        prompts.append({**prompt, "content": ""} if is_kept else prompt)
    return {**source, "prompts": prompts}


def read_sampling(source: Object, warnings: list[str]) -> Sampling:
    """Return the samplers with values that are not neutral."""
    sampling = Sampling()
    for member, (name, neutral) in SAMPLERS.items():
        value = source.get(member)
        if value is None or value == neutral or name not in Sampling.__struct_fields__:
            continue
        value = _EFFORTS.get(value, value) if isinstance(value, str) else value
        try:
            one = msgspec.convert({name: value}, Sampling)
        except msgspec.ValidationError as error:
            warnings.append(f"`{member}` is not set: {error}.")
        else:
            sampling = msgspec.structs.replace(sampling, **{name: getattr(one, name)})
    return sampling


def read_text(source: Object, member: str) -> str:
    """Return a member if it is a text, else an empty text."""
    value = source.get(member)
    return value if isinstance(value, str) else ""


def _read_integer(value: object, default: int, least: int, most: int) -> int:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return min(max(int(cast("float", value)), least), most) if is_number else default


def read_object(value: object) -> Object:
    """Return a value if it is an object, else an empty one."""
    return cast("Object", value) if isinstance(value, dict) else {}


def _read_objects(value: object) -> list[Object]:
    values = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("Object", each) for each in values if isinstance(each, dict)]


def write_preset(fields: PresetFields, source: Object) -> Object:
    """Return the file of a preset: the source, with members that would be read differently."""
    file = _write_sampling(fields.sampling, source)
    if fields.squash_system_messages != (source.get("squash_system_messages") is True):
        file["squash_system_messages"] = fields.squash_system_messages
    own = {
        key: value
        for key, value in read_object(source.get(OWN_MEMBER)).items()
        if key not in {"lore_placement", "all_blocks"}
    }
    if fields.lore_placement == "as_written":
        own["lore_placement"] = fields.lore_placement
    listed = list_ordered_prompts(source)
    added = set(OWN_BLOCK_IDS)
    if source and BLOCK_IDS["history"] not in dict(listed):
        added.add(BLOCK_IDS["history"])
    blocks = [block for block in fields.blocks if block.id not in added]
    if tuple(add_own_blocks(blocks)) != fields.blocks or read_object(source.get(OWN_MEMBER)).get(
        "all_blocks"
    ):
        blocks = list(fields.blocks)
        own["all_blocks"] = True
    file.pop(OWN_MEMBER, None)
    if own:
        file[OWN_MEMBER] = own
    file["prompts"] = _write_prompts(blocks, source)
    if listed != [(block.id, block.enabled) for block in blocks]:
        file["prompt_order"] = _write_orders(blocks, source)
    return file


def _write_sampling(sampling: Sampling, source: Object) -> Object:
    """Return a copy of the source with changed samplers."""
    file, was = dict(source), read_sampling(source, [])
    for member, (name, neutral) in SAMPLERS.items():
        value = getattr(sampling, name, None)
        if value == getattr(was, name, None):
            continue
        if value is None and neutral is None:
            del file[member]
        else:
            file[member] = neutral if value is None else value
    return file


def _write_prompts(blocks: Sequence[Block], source: Object) -> list[Any]:
    """Return the file's `prompts`: changed ones in place, new ones last, without deleted ones."""
    known, sent = index_prompts(source), {block.id: block for block in blocks}
    listed = {block_id for block_id, _ in list_ordered_prompts(source)}
    written: list[Any] = []
    for prompt in cast("list[Any]", source.get("prompts", [])):
        block_id = read_id(prompt)
        is_read = known.get(block_id) is prompt
        if is_read and block_id in sent:
            written.append(_write_prompt(sent[block_id], prompt))
        elif not is_read or block_id not in listed:
            written.append(prompt)
    for block in blocks:
        # A marker may be listed only in the order.
        is_bare = block.id in listed and block == make_block(block.id, {}, enabled=block.enabled)
        if block.id not in known and not is_bare:
            written.append(_write_prompt(block, {}))
    return written


def _write_prompt(block: Block, prompt: Object) -> Object:
    """Return a prompt of the file with the values of its block."""
    has_content = block.marker is None or block.marker in MARKERS_WITH_CONTENT
    whole = dict(prompt)
    if has_content and (block.content or "content" in prompt):
        whole["content"] = block.content
    if prompt and make_block(block.id, whole, enabled=block.enabled) == block:
        return whole
    whole |= {
        "identifier": block.id,
        "name": block.name,
        "role": block.role,
        "system_prompt": prompt.get("system_prompt", block.marker is not None),
        "marker": not has_content,
        "injection_position": 0 if block.depth is None else 1,
        "injection_depth": 4 if block.depth is None else block.depth,
        "injection_order": block.order,
        "injection_trigger": list(block.triggers),
        "forbid_overrides": block.forbid_overrides,
    }
    if has_content:
        whole["content"] = block.content
    return whole


def _write_orders(blocks: Sequence[Block], source: Object) -> list[Any]:
    """Return the file's `prompt_order` with the list for all characters replaced."""
    order = [{"identifier": block.id, "enabled": block.enabled} for block in blocks]
    was, orders = find_order(source), source.get("prompt_order")
    if was is None or not isinstance(orders, list):
        return [{"character_id": SHARED_ORDER_IDS[0], "order": order}]
    return [
        {**was, "order": order} if each is was else each for each in cast("list[object]", orders)
    ]
