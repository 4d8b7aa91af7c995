"""The command line: serve, work, migrate, doctor, import, backup, restore and others."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import getpass
import io
import os
import platform
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError as SettingsFault

import backend
from backend.core.logs import configure_logging, get_logger
from backend.core.operating_system import (
    FileLockedError,
    forbid_core_dumps,
    keep_files_private,
    lock_file,
    stop_signals,
)
from backend.errors import AppError
from backend.settings import Settings


def accept_any_text() -> None:
    """Print `?` for characters that the console cannot encode, such as in a folder's name."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def ask_password() -> str:
    """Ask for the password on a terminal, or read a line of standard input."""
    is_terminal = sys.stdin.isatty()
    return getpass.getpass("Password: ") if is_terminal else sys.stdin.readline().rstrip("\n")


def show_progress(done: int, total: int) -> None:
    """Draw a progress bar if stderr is a terminal."""
    if sys.stderr.isatty() and total:
        bar = "#" * (30 * done // total)
        end = "\n" if done >= total else ""
        sys.stderr.write(f"\r[{bar:<30}] {done:,}/{total:,}{end}")
        sys.stderr.flush()


log = get_logger(__name__)

Command = Callable[[Settings, argparse.Namespace], Coroutine[Any, Any, int]]


class UsageError(Exception):
    """An error that the user of the command line can fix. Its text is the advice."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Return 0, 1 for a failure, or 2 for invalid options or settings."""
    accept_any_text()
    options = _make_parser().parse_args(arguments)
    try:
        settings = _load_settings(options)
    except SettingsFault as fault:
        for each in fault.errors():
            name = "_".join(str(part) for part in each["loc"]).upper()
            print(f"TALEKEEPER_{name}: {each['msg']}".replace("TALEKEEPER_: ", ""), file=sys.stderr)
        return 2
    keep_files_private()
    forbid_core_dumps()
    configure_logging(settings.log_level, settings.log_format)
    command: Command = options.command
    try:
        return _run(command(settings, options))
    except UsageError as error:
        print(f"talekeeper: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001  # logged with its traceback
        print(f"talekeeper: {_explain(error, settings)}", file=sys.stderr)
        return 1


def _explain(error: Exception, settings: Settings) -> str:
    """Return the reason of a failure. An unexpected error is logged with its traceback."""
    from backend.operations.start_faults import explain

    explanation = explain(error, settings)
    if explanation is not None:
        return explanation
    log.critical("process.failed", exc_info=error)
    return (
        f"Unexpected error ({type(error).__name__}); see the log. Start it "
        "again. If it fails again, report the log line process.failed."
    )


def _run(work: Coroutine[Any, Any, int]) -> int:
    try:
        import uvloop  # not available on Windows
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


def _load_settings(options: argparse.Namespace) -> Settings:
    given = {
        name: getattr(options, name)
        for name in ("port", "host", "lan", "data_dir")
        if getattr(options, name, None) is not None
    }
    return Settings(**given)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="talekeeper", description=backend.__doc__)
    parser.add_argument("--version", action="version", version=backend.__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Command, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text)
        added.set_defaults(command=command)
        added.add_argument("--data-dir", type=Path, help="folder of the database and the root key")
        return added

    serve = add("serve", _serve, "migrate the database and start the server")
    serve.add_argument("--host", help="address to listen on")
    serve.add_argument("--port", type=int, help="port to listen on; 0 picks a free one")
    serve.add_argument(
        "--lan",
        action="store_true",
        default=None,
        help="also serve phones on the local network, with TLS and a self-signed certificate",
    )

    add("work", _work, "run jobs in a separate process (PostgreSQL only)")

    migrate = add("migrate", _migrate, "migrate the database and exit")
    migrate.add_argument("--to", metavar="REVISION", help="stop at this revision")
    migrate.add_argument(
        "--check", action="store_true", help="only list what is due; exits with 1 if anything is"
    )
    migrate.add_argument(
        "--down", action="store_true", help="downgrade to --to; newer data is lost"
    )

    add("doctor", _doctor, "check the configuration")

    backup = add("backup", _backup, "back up the database, also beside a running server")
    backup.add_argument("file", type=Path, help="file to write")
    backup.add_argument(
        "--with-root-key", action="store_true", help="include the root key that opens the backup"
    )

    restore = add("restore", _restore, "put the installation of a backup in place")
    restore.add_argument("file", type=Path, help="file that `talekeeper backup` wrote")
    restore.add_argument(
        "--replace", action="store_true", help="replace the installation in the data folder"
    )
    restore.add_argument(
        "--root-key-file", dest="given_root_key", type=Path, help="root key of the backup"
    )

    model = add("model", _model, "list or download embedding models")
    model.add_argument("what", choices=("list", "fetch"))
    model.add_argument(
        "name", nargs="?", default="", help="model to download; default: the first listed"
    )

    bring = add("import", _import, "import a SillyTavern folder, a zip or a file for a user")
    bring.add_argument("path", type=Path, help="folder, zip or file")
    bring.add_argument("--user", help="user to import for; asks for the password")
    bring.add_argument(
        "--api-key-file",
        type=Path,
        help="file with an API key of the user, instead of the password; or set TALEKEEPER_API_KEY",
    )
    bring.add_argument(
        "--secret",
        action="append",
        default=[],
        metavar="NAME",
        help="key of a provider in secrets.json to import; may be repeated; default: none",
    )
    bring.add_argument(
        "--copy", action="store_true", help="also import files that were imported before"
    )

    compare = add("compare", _compare, "compare two archives, or an archive and an account")
    for place in ("first", "second"):
        compare.add_argument(place, help="file of an archive, or user:NAME for an account")
    compare.add_argument(
        "--api-key-file",
        type=Path,
        help="file with an API key of the user, instead of the password; or set TALEKEEPER_API_KEY",
    )

    reindex = add("reindex", _reindex, "update the memory index")
    reindex.add_argument("--user", help="user whose texts to index now; asks for the password")

    index = add("index", _index, "spread the index over the nodes of a Qdrant cluster")
    index.add_argument("what", choices=("replicate",))
    index.add_argument(
        "--replicas",
        type=int,
        choices=range(1, 65),
        metavar="COUNT",
        help="copies of each shard; default: as for a new collection",
    )
    index.add_argument("--dry-run", action="store_true", help="only print the changes")

    rotate = add("rotate-keys", _rotate, "rotate the root key or users' keys")
    rotate.add_argument("what", choices=("root", "user", "data"))
    rotate.add_argument("--user", help="user whose keys to rotate; asks for the password")
    rotate.add_argument(
        "--all", action="store_true", help="new data keys at each user's next sign-in"
    )
    return parser


async def _serve(settings: Settings, _: argparse.Namespace) -> int:
    gc.disable()  # during imports, because nothing can be freed: saves a tenth of the start time
    if not settings.qdrant_url:
        from backend.memory.index.edge import EngineProcess

        await EngineProcess.prepare()
    from backend.app import create_app
    from backend.container import build_services
    from backend.database.engine import persist
    from backend.http.responses import SchemeFinder, observe
    from backend.server import Server, format_address, make_server_config, render_greeting

    with _lock(settings), _listen(settings) as listener, _listen_in_lan(settings) as lan:
        settings = settings.model_copy(
            update={
                "port": listener.getsockname()[1],
                "lan_port": lan.getsockname()[1] if lan else settings.lan_port,
            }
        )
        database, root = await _open_installation(settings, create_root_key=True)
        build = partial(build_services, settings, root, database)
        services = await persist(database, "services", build)
        transport = SchemeFinder(
            settings.public_origin, settings.trusted_proxies, signs_itself=settings.lan
        )
        config = make_server_config(
            observe(create_app(services), transport, services.cross_origin),
            settings,
            shutdown_seconds=10,
        )
        tls = (lan, services.lan.open()) if lan else None
        log.info(
            "server.starting",
            address=format_address(settings.host, listener),
            version=backend.__version__,
            python=platform.python_version(),
            database="sqlite" if settings.embedded else "postgresql",
        )
        embeds = services.memory.embedder is not None
        if settings.plain_http_networks:
            log.warning("server.plain_http", count=len(settings.plain_http_networks))
        shared = services.user_models.shared
        print(render_greeting(settings, shared, listener, services.lan, embeds=embeds), flush=True)
        server = Server(
            config,
            services.drain,
            turns=services.turns,
            jobs=services.jobs,
            worker=services.worker,
            announce=_announce,
            lan=tls,
        )
        await server.serve(sockets=[listener])
    return 130 if server.was_interrupted else 0


async def _work(settings: Settings, _: argparse.Namespace) -> int:
    from backend.container import build_services
    from backend.database.engine import persist
    from backend.jobs.keys import JobKeys
    from backend.jobs.worker import build_worker
    from backend.operations.metrics import serve_metrics

    if settings.embedded:
        raise UsageError(
            "With SQLite there is one process: `talekeeper serve` runs the jobs itself. "
            "Separate workers need PostgreSQL (TALEKEEPER_DATABASE_URL)."
        )
    if not settings.qdrant_url:
        raise UsageError(
            "Without a Qdrant server only one process can open the index, and "
            "`talekeeper serve` runs the jobs itself. Set TALEKEEPER_QDRANT_URL."
        )
    if not settings.job_workers:
        raise UsageError("TALEKEEPER_JOB_WORKERS is 0. Set it to 1 or more.")
    database, root = await _open_installation(settings)
    services = await persist(
        database, "services", partial(build_services, settings, root, database)
    )
    # No one signs in to this process: keys come with the jobs, or from managed accounts.
    keys = JobKeys(root)
    worker = build_worker(settings, services.queue, keys, services.kinds, takes_queued=True)
    drain = services.drain
    if settings.worker_metrics:
        try:
            serve_metrics(database, settings.worker_metrics)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"TALEKEEPER_WORKER_METRICS: {settings.worker_metrics} cannot be used. Choose a "
                "free port at an address of this machine."
            ) from error
    start = partial(services.processes.start, is_server=False)
    await persist(database, "processes", start)
    with stop_signals(lambda _: drain.receive_signal()):
        worker.start()
        log.info("worker.starting", version=backend.__version__, count=settings.job_workers)
        print(f"Talekeeper {backend.__version__} is running jobs", flush=True)
        await drain.wait_for_begin()
        worker.drain()
        _announce(drain.notice)
        await drain.finish(lambda: worker.is_busy)
        await worker.aclose()
        await services.memory.aclose()
        await services.user_models.aclose()
        await services.processes.aclose()
        await database.dispose()
    return 0


def _announce(text: str) -> None:
    with contextlib.suppress(OSError):  # the reader of the output may have ended
        print(text, flush=True)


async def _migrate(settings: Settings, options: argparse.Namespace) -> int:
    from backend.database.engine import Database
    from backend.database.migrate import current_revision, downgrade, upgrade

    if options.check:
        return await _list_due_migrations(settings)
    if options.down and options.to in {None, "head"}:
        print(
            "talekeeper: migrate --down needs --to REVISION (base removes all tables).",
            file=sys.stderr,
        )
        return 2
    with _lock(settings):
        database = Database(settings.resolved_database_url, direct_url=settings.database_direct_url)
        try:
            if options.down:
                await downgrade(database, options.to)
            else:
                await upgrade(database, options.to or "head")
            print(f"The database is at revision {await current_revision(database) or 'base'}.")
        finally:
            await database.dispose()
    return 0


async def _list_due_migrations(settings: Settings) -> int:
    from backend.database.engine import Database
    from backend.database.migrate import HEAD, find_due, list_migrations
    from backend.settings import DATABASE_NAME

    if not settings.database_url and not (settings.data_dir / DATABASE_NAME).exists():
        due = list_migrations(HEAD)  # opening the database would create it
    else:
        database = Database(settings.resolved_database_url)
        try:
            due = await find_due(database)
        finally:
            await database.dispose()
    for each in due:
        print(f"{each.revision:<12} {each.phase:<9} {each.title}")
    print(f"{len(due)} due." if due else "Nothing is due.")
    return 1 if due else 0


async def _doctor(settings: Settings, _: argparse.Namespace) -> int:
    from backend.operations.doctor import examine

    findings = await examine(settings)
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark = {"ok": "ok  ", "missing": "-   ", "warning": "WARN", "fault": "FAIL"}[finding.state]
        print(f"{mark} {finding.name:<{width}}  {finding.detail}")
        if finding.advice:
            print(f"     {'':<{width}}  {finding.advice}")
    return 1 if any(finding.state == "fault" for finding in findings) else 0


async def _backup(settings: Settings, options: argparse.Namespace) -> int:
    from backend.operations.backup.writer import describe_backup, find_source, write_backup

    source = find_source(settings, with_root_key=options.with_root_key)
    with _stoppable_progress() as report:
        manifest = await asyncio.to_thread(write_backup, source, options.file, report)
    print(describe_backup(settings, options.file, manifest))
    return 0


async def _restore(settings: Settings, options: argparse.Namespace) -> int:
    from backend.operations.backup.restore import describe_restore, restore_backup

    with _lock(settings), _stoppable_progress() as report:
        work = partial(
            restore_backup,
            settings,
            options.file,
            replace=options.replace,
            root_key_file=options.given_root_key,
            report=report,
        )
        result = await asyncio.to_thread(work)
    print(describe_restore(options.file, result))
    return 0


@contextlib.contextmanager
def _stoppable_progress() -> Generator[Callable[[int, int], None]]:
    """Yield a progress bar for work in a thread. The work stops when the block is cancelled."""
    is_over = threading.Event()

    def report(done: int, total: int) -> None:
        if is_over.is_set():
            raise KeyboardInterrupt
        show_progress(done, total)

    try:
        yield report
    finally:
        is_over.set()


async def _model(settings: Settings, options: argparse.Namespace) -> int:
    from backend.memory.embedding.catalogue import describe_models, find_model
    from backend.memory.embedding.download import fetch_model
    from backend.memory.embedding.registry import choose_embedder, find_local_model

    if options.what == "list":
        in_use = find_local_model(settings)
        print(*describe_models(settings.models_dir, in_use=in_use and in_use[0]), sep="\n")
        return 0

    async def report(done: int, total: int) -> None:
        show_progress(done, total)

    model = find_model(options.name)
    if model is None:
        raise UsageError(
            f"Unknown model {options.name}. `talekeeper model list` shows the available models."
        )
    await fetch_model(model, settings.models_dir, report, hub=settings.hf_endpoint)
    print(f"{model.folder} was downloaded to {settings.models_dir}.")
    if find_local_model(settings) is None:
        print(f"It is not used: TALEKEEPER_EMBEDDER selects {choose_embedder(settings)}.")
    return 0


async def _import(settings: Settings, options: argparse.Namespace) -> int:
    from backend.operations import imports
    from backend.transfer.contracts import ImportOptions

    token = _read_api_key(settings, options)
    if token is None and not options.user:
        raise UsageError("import needs --user NAME, or an API key (--api-key-file).")
    if not options.path.exists():
        raise UsageError(f"{options.path} does not exist.")
    password = ask_password() if token is None else ""
    choices = ImportOptions(copy=options.copy, secrets=frozenset(options.secret))
    async with _open_services(settings) as services:
        try:
            if token is None:
                identity = await imports.open_with_password(services, options.user, password)
            else:
                identity = await imports.open_with_api_key(services, token, options.user)
            work = imports.import_path(services, identity, options.path, choices, _show_files)
            task = asyncio.create_task(work)

            def stop(_: int) -> None:
                task.cancel()

            with stop_signals(stop):
                found = await task
        except AppError as error:
            raise UsageError(error.detail or error.title) from error
        except asyncio.CancelledError:
            print("Stopped. Run the command again to import the rest.", file=sys.stderr)
            return 130
    print(*found.lines, sep="\n")
    counts = found.counts
    print(
        f"{counts.imported:,} imported, {counts.already_there:,} already there, "
        f"{counts.skipped:,} skipped, {counts.failed:,} failed."
    )
    return 0 if found.is_complete else 1


async def _compare(settings: Settings, options: argparse.Namespace) -> int:
    """Return 0 for equal content, 1 for differences, and 2 if a source cannot be read."""
    from backend.operations import comparisons

    sources = [options.first, options.second]
    names = [comparisons.find_user(each) for each in sources]
    token = _read_api_key(settings, options) if any(names) else None
    async with contextlib.AsyncExitStack() as stack:
        try:
            accounts = None
            if any(names):
                services = await stack.enter_async_context(_open_services(settings))
                accounts = comparisons.AccountOpener(services, token, ask_password, show_progress)
            lines = await comparisons.compare(accounts, sources)
        except AppError as error:
            print(f"talekeeper: {error.detail or error.title}", file=sys.stderr)
            return 2
    print(*(lines or ["equal"]), sep="\n")
    return 1 if lines else 0


@contextlib.asynccontextmanager
async def _open_services(settings: Settings) -> AsyncGenerator[Any]:
    """Open the installation for a command, while no other process uses it."""
    from backend.container import build_services

    with _lock(settings):
        database, root = await _open_installation(settings)
        services = await build_services(settings, root, database)
        try:
            yield services
        finally:
            await services.memory.aclose()
            await services.user_models.aclose()
            await services.cpu_pool.aclose()
            await database.dispose()


def _read_api_key(settings: Settings, options: argparse.Namespace) -> str | None:
    if options.api_key_file is None:
        return settings.api_key.get_secret_value().strip() if settings.api_key else None
    try:
        key: str = options.api_key_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{options.api_key_file} cannot be read.") from error
    return key


def _show_files(done: int, total: int, _: Mapping[str, int]) -> None:
    show_progress(done, total)


async def _reindex(settings: Settings, options: argparse.Namespace) -> int:
    from backend.operations import maintenance

    password = ask_password() if options.user else ""
    async with _open_locked(settings) as database:
        if options.user:
            message = await maintenance.reindex_user(
                database, settings, name=options.user, password=password, report=show_progress
            )
        else:
            message = await maintenance.reindex_all_users(database, settings, show_progress)
    print(message)
    return 0


async def _index(settings: Settings, options: argparse.Namespace) -> int:
    from backend.memory.index.server_cluster import (
        plan_replication,
        read_cluster,
        replicate,
    )

    if not settings.qdrant_url:
        raise UsageError("The index is in the data folder. Set TALEKEEPER_QDRANT_URL.")
    state = await read_cluster(settings)
    if not state.is_cluster:
        raise UsageError("The Qdrant server is no cluster: it has one node.")
    copies = options.replicas or settings.qdrant_replication_factor or 2
    plan = plan_replication(state, copies)
    for name in plan.changed:
        print(f"set replication_factor of {name} to {plan.factor}")
    for each in plan.transfers:
        print(each.render())
    for name, shard in plan.skipped:
        print(
            f"talekeeper: shard {shard} of {name} is skipped, because no node has an active copy. "
            "Start the nodes that have it, and run the command again.",
            file=sys.stderr,
        )
    status = 1 if plan.skipped else 0
    if options.dry_run:
        print("Nothing was changed.")
        return status
    await replicate(settings, plan, show_progress)
    others = "Each other shard" if plan.skipped else "Each shard"
    print(f"{others} has {plan.factor} or more copies.")
    return status


async def _rotate(settings: Settings, options: argparse.Namespace) -> int:
    from backend.operations import maintenance

    if options.what == "data" and bool(options.user) == options.all:
        raise UsageError("rotate-keys data needs either --user NAME or --all.")
    if options.what == "user" and not options.user:
        raise UsageError("rotate-keys user needs --user NAME.")
    password = ask_password() if options.user else ""
    async with _open_locked(settings) as database:
        if options.what == "root":
            message = await maintenance.rotate_root_keys(database, settings, show_progress)
        elif options.what == "user":
            message = await maintenance.rotate_user_key(
                database, settings, name=options.user, password=password
            )
        elif options.all:
            message = await maintenance.schedule_new_data_keys(database)
        else:
            message = await maintenance.rotate_user_data_key(
                database, settings, name=options.user, password=password, report=show_progress
            )
    print(message)
    return 0


@contextlib.asynccontextmanager
async def _open_locked(settings: Settings) -> AsyncGenerator[Any]:
    with _lock(settings):
        database, _ = await _open_installation(settings)
        try:
            yield database
        finally:
            await database.dispose()


async def _open_installation(settings: Settings, *, create_root_key: bool = False) -> Any:
    """Open the database and its root key, and migrate the tables.

    The key is checked first, so that a database of another key is not changed.
    """
    from backend.accounts.auth.names import load_database_root_keys
    from backend.database.engine import Database, persist
    from backend.database.migrate import HEAD, upgrade

    database = Database(
        settings.resolved_database_url,
        pool_size=settings.database_pool_size,
        direct_url=settings.database_direct_url,
    )
    path, value = settings.resolved_root_key_file, settings.root_key_text
    load = partial(load_database_root_keys, database, path, value=value, create=create_root_key)
    root = await persist(database, "root_key", load)
    if await persist(database, "tables", partial(upgrade, database)):
        gc.collect()  # 4 MiB, which `gc.freeze` would otherwise keep
        log.info("database.migrated", revision=HEAD)
    if settings.embedded:
        from backend.operations.backup.restore import settle_restored

        await settle_restored(database, settings.data_dir)
    return database, root


@contextlib.contextmanager
def _lock(settings: Settings) -> Generator[None]:
    """Lock the data folder, because with SQLite only one process can use it."""
    if not settings.embedded:
        yield
        return
    from backend.operations.backup.restore import complete_restore

    settings.data_dir.mkdir(parents=True, exist_ok=True)
    try:
        lock = lock_file(settings.data_dir / "lock")
    except FileLockedError:
        raise UsageError(
            f"Another process uses {settings.data_dir}. With SQLite there is one process: "
            "stop the other one, choose another folder with --data-dir, or use PostgreSQL "
            "(TALEKEEPER_DATABASE_URL) for several processes."
        ) from None
    with lock:
        if complete_restore(settings):
            print("An interrupted restore was completed.", flush=True)
        yield


def _listen(settings: Settings) -> contextlib.AbstractContextManager[socket.socket]:
    return _open_listener(settings.host, settings.port, "--port")


def _listen_in_lan(
    settings: Settings,
) -> contextlib.AbstractContextManager[socket.socket | None]:
    if not settings.lan:
        return contextlib.nullcontext()
    # All addresses, because those of the machine may change. `LanProtocol` checks the clients.
    return _open_listener("0.0.0.0", settings.lan_port, "TALEKEEPER_LAN_PORT")  # noqa: S104


@contextlib.contextmanager
def _open_listener(host: str, port: int, option: str) -> Generator[socket.socket]:
    from backend.server import open_listener

    try:
        listener = open_listener(host, port)
    except OSError as error:
        raise UsageError(
            f"Cannot listen on {host}:{port} ({os.strerror(error.errno or 0)}). Choose another "
            f"port with {option}."
        ) from None
    with listener:
        yield listener
