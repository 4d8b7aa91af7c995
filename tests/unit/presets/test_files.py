"""Chat-completion presets of SillyTavern: read, written and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend.context.blocks import DEFAULT_BLOCKS, Block, PresetFields
from backend.generation.sampling import Sampling
from backend.presets.errors import PresetFileError
from backend.presets.files import PresetFile, read_preset, write_preset

FILE = (Path(__file__).parents[2] / "fixtures/presets/lighthouse.json").read_bytes()


def read(value: object) -> PresetFile:
    return read_preset(json.dumps(value).encode(), name="Lighthouse")


def reread(fields: PresetFields, source: dict[str, Any]) -> PresetFields:
    found = read_preset(msgspec.json.encode(write_preset(fields, source)), name=fields.name)
    return found.fields


def test_a_file_is_read_in_its_order_for_all_characters() -> None:
    found = read_preset(FILE, name="Lighthouse")
    fields = found.fields
    blocks = {block.id: block for block in fields.blocks}
    markers = [block.marker or block.id for block in fields.blocks]
    assert markers[:5] == ["system_prompt", "lore_before", "persona", "character", "personality"]
    assert markers[-6:] == ["campaign", "summary", "history", "memory", "deep", "post_history"]
    assert not fields.squash_system_messages
    assert fields.sampling == Sampling(
        temperature=0.9,
        frequency_penalty=0.25,
        top_p=0.95,
        max_output_tokens=700,
        start_reply_with="The lamp turns.",
    )
    assert blocks["main"].forbid_overrides
    assert not blocks["scenario"].enabled
    deep = blocks["deep"]
    assert (deep.depth, deep.order, deep.triggers) == (1, 50, ("normal", "regenerate"))
    assert (blocks["answer"].role, blocks["answer"].content) == ("assistant", "{{char}} does.")
    assert found.warnings == ["Its order contains the unknown prompt `gone`."]


def test_a_file_comes_out_as_it_came_in() -> None:
    found = read_preset(FILE, name="Lighthouse")
    assert write_preset(found.fields, found.source) == json.loads(FILE)


@pytest.mark.parametrize(
    "file",
    [
        {"prompts": []},
        {"prompts": [{"identifier": "main", "content": "Hello."}]},
        {"prompts": [], "prompt_order": [{"character_id": 7, "order": [{"identifier": "main"}]}]},
        {"prompts": ["odd", {"identifier": ["odd"]}, None], "prompt_order": "odd"},
        {"prompts": [{"identifier": "x", "injection_depth": True, "role": ["odd"]}], "seed": "odd"},
        {"prompts": [], "talekeeper": {"vendor": 1}, "temperature": 99},
    ],
)
def test_odd_files_come_out_as_they_came_in(file: dict[str, Any]) -> None:
    found = read(file)
    assert write_preset(found.fields, found.source) == file


def test_an_own_preset_is_read_back() -> None:
    fields = PresetFields(
        name="Mine",
        blocks=(
            *DEFAULT_BLOCKS[:-2],
            Block(id="own", role="user", content="Hm.", depth=0, order=7, triggers=("quiet",)),
            DEFAULT_BLOCKS[-1],
        ),
        sampling=Sampling(temperature=0.5),
        lore_placement="as_written",
    )
    assert reread(fields, {}) == fields
    assert reread(PresetFields(name="Plain"), {}) == PresetFields(name="Plain")


def test_a_change_is_written_and_all_else_is_kept() -> None:
    found = read_preset(FILE, name="Lighthouse")
    blocks = [block for block in found.fields.blocks if block.id != "nsfw"]
    blocks[0] = msgspec.structs.replace(blocks[0], content="Another.", enabled=False)
    blocks.append(Block(id="new", name="New", content="New."))
    changed = msgspec.structs.replace(
        found.fields, blocks=tuple(blocks), sampling=Sampling(top_p=0.5)
    )
    written = write_preset(changed, found.source)
    assert reread(changed, found.source) == changed
    prompts = {each["identifier"]: each for each in written["prompts"]}
    question = "9f0c2a77-77a1-4c0e-8f4e-0a1b2c3d4e5f"
    assert prompts[question]["vendor"] is True
    assert "nsfw" not in prompts
    assert "unused" in prompts
    assert written["prompt_order"][0] == json.loads(FILE)["prompt_order"][0]
    assert "temperature" not in written
    assert (written["frequency_penalty"], written["openai_max_context"]) == (0, 32000)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "JSON"),
        (b"{", "line 1"),
        (b'{"temp": 0.7, "rep_pen": 1.1}', "text completion"),
        (b'{"prompts": {}}', "prompts"),
        (b'{"name": "G", "members": [], "chat_id": "1"}', "This is a group of SillyTavern, not"),
        (b'{"prompts": [' + b"[" * 100 + b"]" * 100 + b"]}", "nesting"),
        (b'{"prompts": [], "n": ' + b"9" * 5_000 + b"}", "too long"),
        (b" " * 2_000_001, "bytes"),
        (json.dumps({"prompts": [{"identifier": "a", "content": "x" * 200_001}]}).encode(), "`a`"),
        (json.dumps({"prompts": [{"identifier": f"{n}"} for n in range(201)]}).encode(), "200"),
        (json.dumps({"prompts": [{"identifier": "a" * 201}]}).encode(), "cannot be stored"),
    ],
)
def test_a_file_that_is_no_preset_is_refused_with_the_reason(data: bytes, said: str) -> None:
    with pytest.raises(PresetFileError, match=said):
        read_preset(data, name="Lighthouse")
