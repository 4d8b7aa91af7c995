"""A preset into a file of SillyTavern's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from backend.context.blocks import BLOCK_IDS, Block, PresetFields
from backend.generation.sampling import Sampling
from backend.presets.tavern_reader import (
    ORDERS,
    OURS,
    OWN,
    SAMPLERS,
    WITH_CONTENT,
    Object,
    as_listed,
    block_of,
    by_id,
    id_of,
    object_of,
    order_of,
    sampling_of,
    with_own,
)


def write_preset(fields: PresetFields, source: Object) -> Object:
    """The file of a preset: the source, and what is not as reading the source would give."""
    file = _with_samplers(fields.sampling, source)
    if fields.squash_system_messages != (source.get("squash_system_messages") is True):
        file["squash_system_messages"] = fields.squash_system_messages
    own = {
        key: value
        for key, value in object_of(source.get(OURS)).items()
        if key not in {"lore_placement", "all_blocks"}
    }
    if fields.lore_placement == "as_written":
        own["lore_placement"] = fields.lore_placement
    listed = as_listed(source)
    added = set(OWN)
    if source and BLOCK_IDS["history"] not in dict(listed):
        added.add(BLOCK_IDS["history"])
    blocks = [block for block in fields.blocks if block.id not in added]
    if tuple(with_own(blocks)) != fields.blocks or object_of(source.get(OURS)).get("all_blocks"):
        blocks = list(fields.blocks)
        own["all_blocks"] = True
    file.pop(OURS, None)
    if own:
        file[OURS] = own
    file["prompts"] = _prompts(blocks, source)
    if listed != [(block.id, block.enabled) for block in blocks]:
        file["prompt_order"] = _orders(blocks, source)
    return file


def _with_samplers(sampling: Sampling, source: Object) -> Object:
    """The source with samplers that are not as it has them."""
    file, was = dict(source), sampling_of(source, [])
    for member, (name, neutral) in SAMPLERS.items():
        value = getattr(sampling, name, None)
        if value == getattr(was, name, None):
            continue
        if value is None and neutral is None:
            del file[member]
        else:
            file[member] = neutral if value is None else value
    return file


def _prompts(blocks: Sequence[Block], source: Object) -> list[Any]:
    """The file's `prompts`: changed in place, new ones last, none that was deleted here."""
    known, sent = by_id(source), {block.id: block for block in blocks}
    listed = {block_id for block_id, _ in as_listed(source)}
    written: list[Any] = []
    for prompt in cast("list[Any]", source.get("prompts", [])):
        block_id = id_of(prompt)
        is_read = known.get(block_id) is prompt
        if is_read and block_id in sent:
            written.append(_prompt(sent[block_id], prompt))
        elif not is_read or block_id not in listed:
            written.append(prompt)
    for block in blocks:
        # A marker may be in the order alone.
        is_bare = block.id in listed and block == block_of(block.id, {}, enabled=block.enabled)
        if block.id not in known and not is_bare:
            written.append(_prompt(block, {}))
    return written


def _prompt(block: Block, prompt: Object) -> Object:
    """A prompt of the file, with what its block says."""
    has_content = block.marker is None or block.marker in WITH_CONTENT
    whole = dict(prompt)
    if has_content and (block.content or "content" in prompt):
        whole["content"] = block.content
    if prompt and block_of(block.id, whole, enabled=block.enabled) == block:
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


def _orders(blocks: Sequence[Block], source: Object) -> list[Any]:
    """The file's `prompt_order`, its list that counts here written again."""
    order = [{"identifier": block.id, "enabled": block.enabled} for block in blocks]
    was, orders = order_of(source), source.get("prompt_order")
    if was is None or not isinstance(orders, list):
        return [{"character_id": ORDERS[0], "order": order}]
    return [
        {**was, "order": order} if each is was else each for each in cast("list[object]", orders)
    ]
