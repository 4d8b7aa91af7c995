"""`talekeeper doctor`: check the configuration, and advise on missing parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Literal

from sqlalchemy import select

from backend.accounts.auth.names import has_root_key, load_database_root_keys
from backend.accounts.profile.settings import UserSettings
from backend.chats.schemas import ChatSettings
from backend.core.logs import get_logger
from backend.core.operating_system import HAS_FILE_MODES, is_readable_by_others
from backend.database.engine import Database
from backend.database.migrate import HEAD, current_revision, is_usable, refuse_unknown
from backend.enrichment.reader import choose_model
from backend.generation.client.provider import ProviderKind
from backend.generation.registry import KINDS, build_registry
from backend.generation.tokens import FALLBACK_TOKENIZER, choose_tokenizer, get_tokenizer
from backend.llm.models import InstallationProvider, ProviderConfig, open_shared
from backend.memory.embedding.local import NOT_INSTALLED, LocalEmbedder, is_installed
from backend.memory.embedding.protocol import EmbedderError
from backend.memory.embedding.registry import allows_provider, build_embedder
from backend.memory.index.edge import can_start_engine
from backend.memory.index.server_cluster import list_notes, list_weaknesses, read_cluster
from backend.memory.models import GONE, IndexState
from backend.memory.runtime import index_folder, list_index_collections
from backend.operations.backup.backup_file import JOURNAL_NAME
from backend.operations.backup.schedule import BackupStateName, examine_backups
from backend.operations.pruning import RuleState, examine_tables
from backend.operations.start_faults import explain, find_folder_fault, find_index_fault
from backend.prompts import load_prompts
from backend.regex.process import RegexProcess
from backend.settings import DATABASE_NAME, Settings
from backend.vault.root import RootKeyError, load_root_keys

log = get_logger(__name__)

State = Literal["ok", "missing", "warning", "fault"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    `missing` means that an optional or later part is absent. A `warning` is about something that
    works, but can fail later.
    """

    name: str
    state: State
    detail: str
    advice: str = ""


async def examine(settings: Settings) -> list[Finding]:
    """Run all checks. Nothing is changed."""
    checks: dict[str, Callable[[Settings], Awaitable[Finding]]] = {
        "data folder": _data_folder,
        "root key": _root_key,
        "database": _database,
        "backups": _backups,
        "prompts": _prompts,
        "token counts": _tokens,
        "models": _models,
        "providers": _providers,
        "agent": _agent,
        **{kind.title: partial(_provider_kind, kind) for kind in KINDS.values()},
        "index": _index,
        "helpers": _helpers,
        "embeddings": _embeddings,
        "own embeddings": _own_embeddings,
        "door": _network,
    }
    findings: list[Finding] = []
    for name, check in checks.items():
        try:
            findings.append(await check(settings))
        except Exception as error:  # logged, unless it can be explained
            explanation = explain(error, settings)
            if explanation is None:
                log.critical("doctor.check_failed", exc_info=error)
                explanation = f"unexpected error ({type(error).__name__}); see the log"
            findings.append(Finding(name, "fault", explanation))
    if await _is_usable(_tables, settings):
        findings += await _list_old_rows(settings)
    return findings


async def _list_old_rows(settings: Settings) -> list[Finding]:
    """Return a finding for each kind of rows that are pruned."""
    async with _open_database(settings) as database:
        states = await examine_tables(database, settings)
    return [
        Finding(
            f"old rows: {each.rule.table.name}",
            "warning" if each.is_late else "ok",
            _describe_table(each, settings),
            "A running server deletes them. If one runs, look for failed jobs in its log."
            if each.is_late
            else "",
        )
        for each in states
    ]


def _describe_table(state: RuleState, settings: Settings) -> str:
    age = state.oldest
    oldest = f", the oldest {age / timedelta(days=1):,.1f} days" if age and age.days >= 0 else ""
    rows = f"about {state.row_count:,} rows in the table{oldest}"
    late = "; some should have been deleted days ago" if state.is_late else ""
    return f"{state.rule.describe(settings)}: {rows}{late}"


async def _data_folder(settings: Settings) -> Finding:
    folder = settings.data_dir
    if fault := find_folder_fault(folder):
        return Finding("data folder", "fault", fault)
    if not folder.exists():
        return Finding("data folder", "missing", f"no {folder} yet; created on first start")
    if (folder / JOURNAL_NAME).exists():
        return Finding(
            "data folder",
            "fault",
            f"a restore of {folder} was interrupted",
            "Start the server, or run talekeeper restore again, to complete it.",
        )
    return Finding("data folder", "ok", str(folder))


async def _root_key(settings: Settings) -> Finding:
    path, value = settings.resolved_root_key_file, settings.root_key_text
    is_needed = False
    # Without usable tables, check only the key itself. The finding of the database has the reason.
    if await _is_usable(_tables, settings):
        async with _open_database(settings) as database:
            is_needed = await has_root_key(database)
            if is_needed:
                await load_database_root_keys(database, path, value=value)
    if value is None and not is_needed and not path.exists():
        return Finding("root key", "missing", f"none at {path} yet; created on first start")
    keys = load_root_keys(path, value=value)
    if settings.root_key is not None:
        return Finding("root key", "ok", f"version {keys.current}, from TALEKEEPER_ROOT_KEY")
    if is_readable_by_others(path):
        return Finding(
            "root key",
            "fault",
            f"{path} can be read by others",
            f"Run: chmod 600 {path}",
        )
    note = "" if HAS_FILE_MODES else "; the permissions of its folder decide who can read it"
    return Finding(
        "root key",
        "ok",
        f"version {keys.current}, in {path}{note}",
        "Keep a copy apart from the database backups: without it no data can be read.",
    )


@asynccontextmanager
async def _open_database(settings: Settings) -> AsyncGenerator[Database]:
    database = Database(settings.resolved_database_url, direct_url=settings.database_direct_url)
    try:
        yield database
    finally:
        await database.dispose()


async def _is_usable(check: Callable[[Settings], Awaitable[Finding]], settings: Settings) -> bool:
    """True if the checked part exists and can be used."""
    try:
        return (await check(settings)).state != "missing"
    except Exception:  # noqa: BLE001  # as above
        return False


async def _database(settings: Settings) -> Finding:
    finding = await _tables(settings)
    if finding.state == "ok":
        async with _open_database(settings) as database:
            await database.check()
            if await database.find_pooler():
                return await _pooler(settings, finding)
    return finding


async def _pooler(settings: Settings, finding: Finding) -> Finding:
    """Complete the finding of a database behind a pooler."""
    name = "TALEKEEPER_DATABASE_DIRECT_URL"
    if not settings.database_direct_url:
        advice = f"Set {name}, so that migrations and heartbeats do not wait for the pooler."
        return replace(finding, advice=advice)
    direct = Database(settings.database_direct_url)
    try:
        is_pooler = await direct.find_pooler()
    finally:
        await direct.dispose()
    if not is_pooler:
        return finding
    detail, advice = f"{name} is a pooler", "Set it to the address of PostgreSQL itself."
    return Finding(finding.name, "fault", detail, advice)


async def _tables(settings: Settings) -> Finding:
    kind = "SQLite" if settings.embedded else "PostgreSQL"
    path = settings.data_dir / DATABASE_NAME
    if settings.embedded and not settings.database_url and not path.exists():
        return Finding("database", "missing", f"no {path} yet; created on first start")
    async with _open_database(settings) as database:
        revision = await current_revision(database)
        if revision and await is_usable(database, revision):
            detail = f"{kind}, revision {revision} of a newer version, which this one can use"
            return Finding("database", "ok", detail)
        refuse_unknown(revision, database)
        kind += ", through a pooler" if await database.find_pooler() else ""
    if revision != HEAD:
        return Finding(
            "database",
            "missing",
            f"{kind}, revision {revision or 'none'}; this version needs {HEAD}",
            "Run: talekeeper migrate (serve does it automatically)",
        )
    return Finding("database", "ok", f"{kind}, revision {revision}")


async def _backups(settings: Settings) -> Finding:
    if not settings.embedded:
        advice = "Back up PostgreSQL with pg_dump, and keep the root key in another place."
        return Finding("backups", "missing", "not made by Talekeeper", advice)
    state = await asyncio.to_thread(examine_backups, settings)
    folder, age = settings.backup_folder, f"{state.age / timedelta(hours=1):,.1f} hours old"
    where = state.path or folder
    findings: dict[BackupStateName, tuple[State, str, str]] = {
        "off": ("missing", "no schedule", "Set TALEKEEPER_BACKUP_FOLDER, or run backups yourself."),
        "absent": ("fault", f"there is no folder {where}", "Create it, or mount its disk."),
        "none": ("missing", f"none in {where} yet", "A running server makes them."),
        "damaged": ("fault", f"{where} is damaged", "Delete the file, and check the disk."),
        "late": (
            "fault",
            f"the last one is {age}: {where}",
            "A running server makes them. If it runs, look for backup.failed in its log.",
        ),
        "good": ("ok", f"the last one is {age}, and can be read: {where}", ""),
    }
    return Finding("backups", *findings[state.name])


async def _prompts(_: Settings) -> Finding:
    count = sum(1 for _prompt in load_prompts())
    return Finding("prompts", "ok", f"{count} files, all valid")


async def _tokens(_: Settings) -> Finding:
    get_tokenizer(FALLBACK_TOKENIZER).count("A line to count.")
    own = {k.title: k.tokenizer for k in KINDS.values() if k.tokenizer != FALLBACK_TOKENIZER}
    names = ", ".join(own)
    if all(choose_tokenizer(tokenizer) == tokenizer for tokenizer in own.values()):
        detail = f"exact for {names}; {FALLBACK_TOKENIZER} for others"
        return Finding("token counts", "ok", detail)
    return Finding(
        "token counts",
        "missing",
        f"{FALLBACK_TOKENIZER}, times a learned ratio",
        f"For exact counts with {names}: uv sync --inexact --extra exact-tokens",
    )


async def _models(settings: Settings) -> Finding:
    registry = build_registry(settings)
    try:
        names = ", ".join(spec.id for spec in registry.specs())
        return Finding("models", "ok", f"{names}; default {registry.default_id}")
    finally:
        await registry.aclose()


async def _providers(settings: Settings) -> Finding:
    shared = await _load_shared(settings)
    if not shared:
        detail = "none shared; users can add their own"
        return Finding("providers", "missing", detail)
    if damaged := [slug for slug, config in shared.items() if config is None]:
        advice = "An administrator has to delete them under Settings, Models, and add them again."
        return Finding("providers", "fault", f"cannot be decrypted: {', '.join(damaged)}", advice)
    return Finding("providers", "ok", f"shared: {', '.join(shared)}")


async def _load_shared(settings: Settings) -> dict[str, ProviderConfig | None]:
    """Return the shared providers by slug; None for one that cannot be decrypted."""
    if not await _is_usable(_tables, settings) or not await _is_usable(_root_key, settings):
        return {}
    root = load_root_keys(settings.resolved_root_key_file, value=settings.root_key_text)
    async with _open_database(settings) as database, database.read() as session:
        query = select(InstallationProvider).order_by(InstallationProvider.id)
        rows = list(await session.scalars(query))
    found: dict[str, ProviderConfig | None] = {}
    for row in rows:
        try:
            found[row.slug] = open_shared(root, row)
        except RootKeyError:
            found[row.slug] = None
    return found


async def _agent(settings: Settings) -> Finding:
    registry, chat, account = build_registry(settings), ChatSettings(), UserSettings()
    try:
        model = choose_model(registry, settings, "agent", chat, account, registry.default_id)
        is_demo = registry.spec(model).provider == "demo"
    finally:
        await registry.aclose()
    return Finding(
        "agent",
        "ok",
        f"{model} writes chronicles and summaries in chats that enable them",
        "It follows simple rules. For a real model, set an API key." if is_demo else "",
    )


async def _provider_kind(kind: ProviderKind, settings: Settings) -> Finding:
    found = kind.read_settings(settings)
    variables = " and ".join(kind.variables)
    if found is None:
        key_url = kind.presets[0].key_url if kind.needs_key else None
        advice = f"Set {variables}." + (f" Create a key at {key_url}." if key_url else "")
        return Finding(kind.title, "missing", "not configured", advice)
    if not found.config.models:
        return Finding(kind.title, "fault", "no models", f"Set {variables}.")
    detail = found.config.base_url or "key is set (not tested, because that would cost money)"
    return Finding(kind.title, "ok", detail)


async def _index(settings: Settings) -> Finding:
    if fault := find_index_fault(settings):
        return Finding("index", "fault", fault)
    if not settings.qdrant_url:
        folder = index_folder(settings)
        state = "exists" if folder.is_dir() else "created on first start"
        return Finding("index", "ok", f"Qdrant Edge, in {folder} ({state})")
    cluster = await read_cluster(settings)
    version = max(filter(None, cluster.versions.values()))
    nodes = f", a cluster of {len(cluster.peers)} nodes" if cluster.is_cluster else ""
    parts = [f"Qdrant {version}, at {', '.join(settings.qdrant_urls)}{nodes}"]
    weaknesses = list(list_weaknesses(settings, cluster))
    found = [*weaknesses, *list_notes(settings)]
    parts += [text for text, _ in found]
    advice = " ".join(dict.fromkeys(advice for _, advice in found))
    return Finding("index", "warning" if weaknesses else "ok", "; ".join(parts), advice)


async def _helpers(settings: Settings) -> Finding:
    """Start each helper process once, because only this check reports a failed start."""
    faults: list[str] = []
    regexes = RegexProcess()
    try:
        if not await asyncio.to_thread(regexes.prepare):
            faults.append("regular expressions (keys and scripts that need it are skipped)")
    finally:
        await asyncio.to_thread(regexes.close)
    if not settings.qdrant_url and not await can_start_engine():
        faults.append("the index (turns continue without memory)")
    if faults:
        return Finding(
            "helper processes",
            "fault",
            f"failed to start: {'; '.join(faults)}",
            "Check limits on memory and processes, and security programs that may stop them.",
        )
    return Finding("helper processes", "ok", "start on demand")


async def _own_embeddings(settings: Settings) -> Finding:
    name = "own embeddings"
    if not await _is_usable(_tables, settings):
        return Finding(name, "missing", "not checked: the database is not ready yet")
    columns = IndexState.model, IndexState.state, IndexState.collection
    async with _open_database(settings) as database, database.read() as session:
        query = select(*columns).where(IndexState.is_chosen.is_(True))
        rows = (await session.execute(query)).all()
    if not rows:
        return Finding(name, "ok", "no account has its own model")
    moving = sum(row.state == "due" for row in rows)
    gone = sum(row.model == GONE for row in rows if row.state == "ready")
    detail = f"accounts with their own model: {len(rows):,}"
    more = {"moving to it": moving, "whose provider was deleted": gone}
    parts = [detail, *(f"{label}: {count:,}" for label, count in more.items() if count)]
    lost = {row.collection for row in rows} - await list_index_collections(settings)
    if lost:
        parts.append(f"lost: {', '.join(sorted(lost))}")
        return Finding(
            name,
            "fault",
            "; ".join(parts),
            "Restart Talekeeper: lost indexes are created again, and filled when their users' keys "
            "are available. No text is lost, but until then these users get no search results.",
        )
    return Finding(name, "ok", "; ".join(parts))


async def _embeddings(settings: Settings) -> Finding:
    if allows_provider(settings):
        for slug, config in (await _load_shared(settings)).items():
            if config is not None and config.embedding_model:
                detail = (
                    f"{slug}, {config.embedding_model} (not tested, because that would cost money)"
                )
                return Finding("embeddings", "ok", detail)
    embedder = build_embedder(settings)
    if embedder is None:
        return _no_embeddings(settings)
    try:
        if isinstance(embedder, LocalEmbedder):
            # Only a local model can be tested for free.
            await embedder.embed(["A line to embed."], "query")
            where = f"computed locally, from {embedder.folder}"
        else:
            where = "not tested, because that would cost money"
        try:
            spec = embedder.spec
        except EmbedderError:
            name = settings.embedding_model
            detail = f"{settings.embedder}, {name}; dimension not known yet ({where})"
            return Finding("embeddings", "ok", detail)
        return Finding(
            "embeddings", "ok", f"{spec.provider}, {spec.model}, {spec.dimension} numbers ({where})"
        )
    finally:
        await embedder.aclose()


def _no_embeddings(settings: Settings) -> Finding:
    """Return the finding for an installation without embeddings, with advice that fits it."""
    if settings.embedder == "none":
        advice = "TALEKEEPER_EMBEDDER is none. Set it to auto."
    elif is_installed():
        advice = (
            "Run: talekeeper model fetch (or use the page); no key is needed. Or add a provider "
            "with an embedding model on the page."
        )
    else:
        advice = f"{NOT_INSTALLED} Or add a provider with an embedding model on the page."
    return Finding("embeddings", "missing", "none: search uses keywords only", advice)


async def _network(settings: Settings) -> Finding:
    if settings.lan:
        return Finding("network", "ok", f"port {settings.lan_port} on the local network, with TLS")
    if settings.host in {"127.0.0.1", "::1", "localhost"}:
        return Finding("network", "ok", f"{settings.host}:{settings.port}, this machine only")
    return Finding(
        "network",
        "ok",
        f"{settings.host}:{settings.port}, sign-up: {settings.registration}",
        "Sessions need https: use `talekeeper serve --lan` on your own network. For the "
        "internet, put a TLS proxy in front and set TALEKEEPER_TRUSTED_PROXIES.",
    )
