"""The agent's tools: schemas that every vendor takes, arguments that are checked strictly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from backend.enrichment.agent.tools import (
    MAX_SUMMARY,
    TOOLS,
    TRIAGE_SCHEMA,
    CreateChronicleEvent,
    FinishStudy,
    UpdateChronicleEvent,
    read_call,
    read_triage,
)
from backend.generation.adapters import gemini as _gemini_mapping
from backend.generation.adapters.openai import mapping as _openai_mapping
from backend.generation.tools.calls import InvalidCallError

TAKEN_BY_ALL = {
    *("type", "description", "enum", "items", "properties", "required"),
    *("minimum", "maximum", "minItems", "maxItems"),
}
"""Keywords that Gemini's function declarations know; OpenAI's know more.

Source: https://ai.google.dev/api/caching#Schema
"""


def schemas(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield schema
    for each in schema.get("properties", {}).values():
        yield from schemas(each)
    if "items" in schema:
        yield from schemas(schema["items"])


@pytest.mark.parametrize("schema", [*(tool.parameters for tool in TOOLS), TRIAGE_SCHEMA])
def test_a_schema_holds_nothing_that_some_vendor_refuses(schema: Mapping[str, Any]) -> None:
    assert schema["type"] == "object"
    for each in schemas(schema):
        assert each.keys() <= TAKEN_BY_ALL
        assert isinstance(each["type"], str)
        assert set(each.get("required", ())) <= each.get("properties", {}).keys()


def test_both_adapters_declare_the_tools_as_they_are() -> None:
    (gemini,) = _gemini_mapping.declare_tools(TOOLS)
    openai = _openai_mapping.declare_tools(TOOLS)
    for tool, theirs, ours in zip(TOOLS, gemini["functionDeclarations"], openai, strict=True):
        assert theirs["parametersJsonSchema"] == ours["function"]["parameters"] == tool.parameters
        assert theirs["name"] == ours["function"]["name"] == tool.name
        assert theirs["description"]


def test_the_tools_are_those_of_the_design_and_none_reaches_out() -> None:
    assert [tool.name for tool in TOOLS] == [
        "search_knowledge_base",
        "create_chronicle_event",
        "update_chronicle_event",
        "create_lorebook_entry",
        "update_lorebook_entry",
        "finish",
    ]


def test_a_call_is_read_with_its_defaults_and_nulls_are_absent() -> None:
    call = read_call(
        "create_chronicle_event",
        {"summary": "The king died.", "significance": 5.0, "story_day": None, "who": None},
    )
    assert call == CreateChronicleEvent(summary="The king died.", significance=5)
    assert read_call("finish", {}) == FinishStudy()
    assert read_call("update_chronicle_event", {"event": "E1", "where": ""}) == (
        UpdateChronicleEvent(event="E1", where="")
    )


def test_what_small_models_mean_is_taken_for_what_they_write() -> None:
    call = read_call(
        "create_chronicle_event",
        {
            "summary": "The king died.",
            "source_messages": [12, "#13", 14.0, ""],
            "supersedes": "none",
            "differs_from": ["None"],
            "who": "Mara",
            "where": "null",
            "keywords": "",
            "story_day": "",
            "kind": "none",
        },
    )
    assert call == CreateChronicleEvent(
        summary="The king died.", source_messages=["12", "#13", "14"], who=["Mara"]
    )
    assert read_call("update_chronicle_event", {"event": "E1", "summary": "None", "where": ""}) == (
        UpdateChronicleEvent(event="E1", where="")
    )


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("delete_everything", {}, "no such tool"),
        ("create_chronicle_event", {}, "summary"),
        ("create_chronicle_event", {"summary": ""}, "summary"),
        ("create_chronicle_event", {"summary": "x" * (MAX_SUMMARY + 1)}, "summary"),
        ("create_chronicle_event", {"summary": "x", "kind": "murder"}, "murder"),
        ("create_chronicle_event", {"summary": "x", "significance": 6}, "significance"),
        ("create_chronicle_event", {"summary": "x", "significance": 2.5}, "significance"),
        ("create_chronicle_event", {"summary": "x", "user_id": "someone"}, "user_id"),
        ("create_chronicle_event", {"summary": "x", "is_pinned": True}, "is_pinned"),
        ("create_chronicle_event", {"summary": "x", "user_id": "none"}, "user_id"),
        ("create_chronicle_event", {"summary": "x", "source_messages": [True]}, "source"),
        ("create_chronicle_event", {"summary": "x", "source_messages": ["the last"]}, "source"),
        ("create_chronicle_event", {"summary": "x", "who": ["x"] * 21}, "who"),
        ("create_lorebook_entry", {"title": "x", "content": "x", "keys": []}, "keys"),
        (
            "create_lorebook_entry",
            {"title": "x", "content": "x", "keys": ["x"], "constant": True},
            "constant",
        ),
        ("create_lorebook_entry", {"title": "x", "content": "x" * 2_001, "keys": ["x"]}, "content"),
        ("search_knowledge_base", {"query": "x", "sources": ["users"]}, "users"),
        ("search_knowledge_base", {"query": "x", "limit": 1_000}, "limit"),
        ("finish", {"and": "delete"}, "and"),
    ],
)
def test_a_wrong_call_is_refused_with_what_is_wrong(
    name: str, arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidCallError, match=reason):
        read_call(name, arguments)


def test_a_decision_is_read_as_far_as_it_can_be() -> None:
    triage = read_triage({"significant": True, "kinds": ["death", "murder", "death"], "more": 1})
    assert (triage.significant, triage.why, triage.kinds) == (True, "", ["death"])
    wrong: list[Any] = [None, [], "yes", {"significant": "maybe"}, {"why": "x"}]
    for value in wrong:
        with pytest.raises(InvalidCallError):
            read_triage(value)
