"""PgBouncer in transaction mode, in front of a database on a Unix socket."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import make_url

START_SECONDS = 60.0
SERVER_CONNECTIONS = 4
"""Fewer than the transactions at the same time, so that they change places all the time."""

_SETTINGS = """
[databases]
{name} = host={host} user={user} dbname={name}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 500
server_round_robin = 1
"""


def find_pooler() -> str | None:
    """Return the path of PgBouncer, or None if it is not installed."""
    return shutil.which("pgbouncer", path=f"{os.defpath}:/usr/sbin")


@contextmanager
def run_pooler(program: str, url: str, *, size: int = SERVER_CONNECTIONS) -> Generator[str]:
    """Run PgBouncer until the block ends. Yield the SQLAlchemy URL of the database through it."""
    parsed = make_url(url)
    host = str(parsed.query["host"])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="talekeeper-") as folder:
        path, log = Path(folder, "pgbouncer.ini"), Path(folder, "log")
        values = {"name": parsed.database, "host": host, "user": parsed.username}
        path.write_text(_SETTINGS.format(**values, port=port, size=size))
        command = [program, "--quiet"]
        if os.geteuid() == 0:  # it refuses to run as root
            Path(folder).chmod(0o755)
            command += ["--user", Path(host).owner()]
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603  # the program of `find_pooler`
                [*command, str(path)], stdout=output, stderr=output
            )
        try:
            _wait_until_open(process, port, log)
            pooled = parsed.set(host="127.0.0.1", port=port).difference_update_query(["host"])
            yield pooled.render_as_string(hide_password=False)
        finally:
            process.kill()
            process.wait()


def _wait_until_open(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError(f"PgBouncer does not start: {log.read_text()}")
