"""Checks of vectors, settings, providers and presets: they are those that users chose."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
from sqlalchemy import select

from backend.accounts.auth.identity import open_user_settings
from backend.accounts.models import User
from backend.database.base import split_chunks
from backend.database.engine import Database
from backend.llm.models import Provider, open_provider
from backend.memory.embedding.requests import prepared
from backend.memory.index.protocol import Floats, VectorIndex, point_id
from backend.memory.indexing.collections import dimension_of
from backend.memory.indexing.documents import Document
from backend.memory.indexing.sources import Source
from backend.memory.models import IndexState
from backend.vault.blinding import Blinder
from backend.vault.sealing import Sealer
from scripts.torture.client import Client
from scripts.torture.ledger import Ledger
from scripts.torture.model import (
    EMBEDDERS,
    USER_MARK,
    TaggedModel,
    get_dimension,
    get_server,
    make_vector,
)
from scripts.torture.own_models import NO_TASKS, SETTINGS, OwnModels
from scripts.torture.own_presets import get_block_text
from scripts.torture.worker import Worker

USUAL = "vectors"
"""The installation's embedding model."""

NEAR = 0.999
"""Minimum cosine of a vector with its stored form. Two models reach at most 0.4."""

ROWS = 200


@dataclass(frozen=True)
class ChosenModel:
    """The embedding model that an account ends with. `is_gone`: its provider was deleted."""

    server: str = ""
    name: str = USUAL
    is_own: bool = False
    is_gone: bool = False


async def chosen_model(database: Database, sealer: Sealer) -> ChosenModel:
    """Return the account's embedding model, read with the user's keys."""
    async with database.read() as session:
        user = await session.get_one(User, sealer.user_id)
        model_id = open_user_settings(sealer, user.sealed_settings).task_models.embedding
        if model_id is None:
            return ChosenModel()
        slug, _, name = model_id.partition("/")
        query = select(Provider).where(Provider.user_id == user.id, Provider.slug == slug)
        row = await session.scalar(query)
        if row is None:
            return ChosenModel(is_own=True, is_gone=True)
        url = open_provider(sealer, row).base_url or ""
    return ChosenModel(get_server(url), name, is_own=True)


async def set_final_model(worker: Worker, *, embedding: bool | None) -> list[str]:
    """Remove the chosen models, so that all work can end.

    With `embedding` the account's texts get a model of its own at last; with False the
    installation's. None leaves them what they have.
    """
    found = await _take_back(worker)
    model_id = None
    if embedding:
        thing = await OwnModels(worker).add(is_live=True)
        while worker.pending:
            await worker.pending.pop(0)()
        model_id = f"{thing.slug}/{worker.draw.choice(EMBEDDERS)}"
    if embedding is not None:
        answer = await worker.choose(SETTINGS, "task_models.embedding", model_id)
        if answer.outcome != "ok":
            found.append(f"settings: no embedding model can be chosen ({answer.body})")
    return found


async def _take_back(worker: Worker) -> list[str]:
    """Name no model any more: in the account, in its chats, and in copies of chats."""
    found: list[str] = []
    for place, member in list(worker.ledger.choices):
        chat = worker.ledger.find_chat(place.split("/")[2]) if place.startswith("/chats/") else None
        is_there = place == SETTINGS or (chat is not None and chat.is_usable)
        if is_there and (member == "model" or member.removeprefix("task_models.") in NO_TASKS):
            answer = await worker.choose(place, member, None)
            if answer.outcome != "ok":
                found.append(f"settings: {member} can't be taken back ({answer.body})")
    for chat in worker.ledger.usable("chat"):
        if chat.id in worker.ledger.copies:  # with the models of its original
            body = {"model": None, "task_models": NO_TASKS}
            answer = await worker.ask(
                "settings of a copy", "PATCH", f"/chats/{chat.id}/settings", json=body
            )
            if answer.outcome != "ok":
                found.append(f"settings: a copy's models can't be taken back ({answer.body})")
    return found


async def check_choices(client: Client, ledger: Ledger) -> list[str]:
    """Return settings and presets that differ from the ledger."""
    found: list[str] = []
    read: dict[str, Any] = {}
    for (place, member), choice in ledger.choices.items():
        kind, _, thing_id = place.lstrip("/").partition("/")
        thing_id = thing_id.removesuffix("/settings")
        things = [each for each in ledger.things.values() if each.id == thing_id]
        if place != SETTINGS and not (things and things[0].is_usable):
            continue
        if thing_id in ledger.copies:  # with the settings of its original
            continue
        if place not in read:
            read[place] = (await client.ask("check", "read", "GET", place)).body
        if kind == "presets":
            value = get_block_text(read[place]["blocks"])
        else:
            value = _member(read[place], member)
        if value not in choice.values:
            told = f"{member} of {place} is {value!r}, not one of {choice.values!r}"
            found.append(f"changed: {told}")
    return [f"{client.name}: {each}" for each in found]


def _member(body: dict[str, Any], name: str) -> Any:
    """Return a value of settings by a path with dots, or null."""
    first, _, rest = name.partition(".")
    value = body.get(first)
    return _member(value or {}, rest) if rest else value


async def check_memory(client: Client, chosen: ChosenModel) -> list[str]:
    """Compare the memory status and a search with the account's model."""
    status = (await client.ask("check", "memory", "GET", "/memory")).body
    kinds = [each["kind"] for each in status["problems"]]
    wanted = ["own_model_gone"] if chosen.is_gone else []
    found = [f"memory: its problems are {kinds}"] if kinds != wanted else []
    if status["move"] is not None:
        found.append(f"memory: texts are still on their way ({status['move']})")
    model: dict[str, Any] = status["model"] or {}
    if not chosen.is_gone and (model.get("model"), model.get("is_own", False)) != (
        chosen.name,
        chosen.is_own,
    ):
        found.append(f"memory: its model is {model}, not {chosen}")
    params = {"q": "a lamp by the harbour"}
    search = (await client.ask("check", "search", "GET", "/search", params=params)).body
    if bool(search["notes"]) != chosen.is_gone:
        found.append(f"memory: a search notes {search['notes']} with {chosen}")
    return [f"{client.name}: {each}" for each in found]


async def check_vectors(
    database: Database,
    index: VectorIndex,
    sealer: Sealer,
    sources: Sequence[Source],
    chosen: ChosenModel,
) -> tuple[list[str], int]:
    """Hold a user's vectors against those of the chosen model; and how many there are."""
    documents = [each for source in sources for each in await _documents(database, sealer, source)]
    wanted = make_expected_vectors(sealer, documents, chosen, dimension_of(index.name) or 0)
    wrong = await count_wrong(index, wanted)
    found = f"vectors: {wrong} of {len(wanted)} in {index.name} are not those of {chosen}"
    return [found] if wrong else [], len(wanted)


def make_expected_vectors(
    sealer: Sealer, documents: Sequence[Document], chosen: ChosenModel, dimension: int
) -> dict[UUID, Floats]:
    """The vectors that points have to have, shape (dimension,) each, by the points' ids."""
    blinder, found = Blinder(sealer), dict[UUID, Floats]()
    for document in documents:
        text = document.text if document.dense_text is None else document.dense_text
        if text:
            vector = make_vector(
                prepared(text), chosen.server, chosen.name, get_dimension(chosen.name)
            )
            longer = np.zeros(max(dimension, len(vector)), np.float32)
            longer[: len(vector)] = vector
            name = point_id(document.kind, document.source_id, document.chunk)
            found[name] = blinder.turn(longer)
    return found


async def count_wrong(index: VectorIndex, wanted: Mapping[UUID, Floats]) -> int:
    """Return the number of points with a missing or wrong vector."""
    wrong = 0
    for some in split_chunks(list(wanted), ROWS):
        kept = await index.dense_vectors(some)
        for each in some:
            near = kept.get(each)
            if near is None or near.shape != wanted[each].shape or near @ wanted[each] < NEAR:
                wrong += 1
    return wrong


async def _documents(database: Database, sealer: Sealer, source: Source) -> list[Document]:
    found: list[Document] = []
    async with database.read() as session:
        for container in await source.containers(session, owner_id=sealer.user_id):
            stored = await source.inventory(session, container, owner_id=sealer.user_id)
            for part in split_chunks(list(stored or ()), ROWS):
                rows = await source.rows(session, sealer, container, part, neighbours=False)
                found += [document for row in rows for document in row.documents()]
    return found


async def check_placements(database: Database, users: Collection[UUID]) -> list[str]:
    """Return users with texts that are in two collections or move, although no job is left."""
    async with database.read() as session:
        query = select(IndexState).where(IndexState.user_id.in_(users))
        rows = list(await session.scalars(query))
    found = [f"left over: {row.user_id} is {row.state} in {row.collection}" for row in rows]
    several = [row.user_id for row in rows]
    return [
        told
        for told, row in zip(found, rows, strict=True)
        if row.state != "ready" or several.count(row.user_id) > 1
    ]


def check_servers(model: TaggedModel, ledgers: Mapping[str, Ledger]) -> list[str]:
    """Lines that went to the server of another account; `ledgers` by the servers' names."""
    found: list[str] = []
    for server, ledger in ledgers.items():
        own = {mark for text in ledger.sent for mark in USER_MARK.findall(text)}
        strange = model.heard[server] - own
        found += [f"another's: server {server} was sent {mark}" for mark in sorted(strange)]
    return found


async def check_prompts(client: Client, ledger: Ledger) -> list[str]:
    """Compare the presets of prompts with those of the chats, if these are certain."""
    found: list[str] = []
    presets = {each.id: each for each in ledger.usable("preset")}
    for chat in ledger.usable("chat"):
        own = ledger.choice(f"/chats/{chat.id}/settings", "preset_id").values
        if len(own) != 1 or str(chat.id) in ledger.copies or own[0] not in presets:
            continue
        seen = await client.ask("check", "preview", "GET", f"/chats/{chat.id}/context")
        preset: dict[str, Any] = (seen.body.get("preset") or {}) if seen.outcome == "ok" else {}
        told = preset.get("name")
        if told != presets[own[0]].name:
            what = f"not by {presets[own[0]].name} but by {told}"
            found.append(f"preset: a prompt of {chat.name} is {what} ({seen.status})")
    return [f"{client.name}: {each}" for each in found]
