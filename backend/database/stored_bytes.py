"""Triggers that count the bytes that each user stores. Migrations create them.

Every insert, update and delete of a counted row adds a row to `storage_ledger` in the same
transaction, also for cascades, bulk statements and other processes. The sum of a user's ledger rows
is the user's storage. Ledger rows are only inserted, so transactions of one user do not block each
other.
"""

# ruff: noqa: S608  # the names of tables and columns come from migrations

from __future__ import annotations

from collections.abc import Iterator, Sequence

import sqlalchemy as sa

ROW_BYTES = 200
"""Estimated bytes of a row without its texts: its other columns and index entries."""


def count_table(connection: sa.Connection, table: str, columns: Sequence[str]) -> None:
    """Begin to count a table's rows: `ROW_BYTES` and the lengths of these columns.

    The table needs a column `user_id`.
    """
    setup = _postgresql if connection.dialect.name == "postgresql" else _sqlite
    for statement in setup(table, columns):
        connection.exec_driver_sql(statement)


def stop_counting(connection: sa.Connection, table: str) -> None:
    """Stop counting a table. Recount the ledger afterwards."""
    is_postgres = connection.dialect.name == "postgresql"
    for event in ("insert", "update", "delete"):
        on = f" ON {table}" if is_postgres else ""
        connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {table}_stored_{event}{on}")
    if is_postgres:
        connection.exec_driver_sql(f"DROP FUNCTION IF EXISTS {table}_stored()")


_INSERT = "INSERT INTO storage_ledger (user_id, bytes)"


def _size(row: str, columns: Sequence[str]) -> str:
    lengths = (f"coalesce(length({row}{column}), 0)" for column in columns)
    return " + ".join([str(ROW_BYTES), *lengths])


def _sqlite(table: str, columns: Sequence[str]) -> Iterator[str]:
    new, old = _size("NEW.", columns), _size("OLD.", columns)
    yield f"""
        CREATE TRIGGER {table}_stored_insert AFTER INSERT ON {table}
        BEGIN {_INSERT} VALUES (NEW.user_id, {new}); END
    """
    yield f"""
        CREATE TRIGGER {table}_stored_update AFTER UPDATE OF {", ".join(columns)} ON {table}
        WHEN ({new}) <> ({old})
        BEGIN {_INSERT} VALUES (NEW.user_id, ({new}) - ({old})); END
    """
    # The ledger of a deleted user is deleted as well.
    yield f"""
        CREATE TRIGGER {table}_stored_delete AFTER DELETE ON {table}
        WHEN EXISTS (SELECT 1 FROM users WHERE id = OLD.user_id)
        BEGIN {_INSERT} VALUES (OLD.user_id, -({old})); END
    """


def _postgresql(table: str, columns: Sequence[str]) -> Iterator[str]:
    """Yield triggers per statement for inserts and deletes, and per row for updates.

    A trigger cannot have a list of columns and a transition table at the same time.
    """
    new, old, size = _size("NEW.", columns), _size("OLD.", columns), _size("", columns)
    yield f"""
        CREATE FUNCTION {table}_stored() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP = 'INSERT' THEN
                {_INSERT} SELECT user_id, sum({size}) FROM changed GROUP BY user_id;
            ELSIF TG_OP = 'UPDATE' THEN
                {_INSERT} VALUES (NEW.user_id, ({new}) - ({old}));
            ELSE
                {_INSERT} SELECT user_id, -sum({size}) FROM changed
                    WHERE EXISTS (SELECT 1 FROM users WHERE users.id = changed.user_id)
                    GROUP BY user_id;
            END IF;
            RETURN NULL;
        END $$
    """
    yield f"""
        CREATE TRIGGER {table}_stored_insert AFTER INSERT ON {table}
        REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION {table}_stored()
    """
    yield f"""
        CREATE TRIGGER {table}_stored_update AFTER UPDATE OF {", ".join(columns)} ON {table}
        FOR EACH ROW WHEN (({new}) <> ({old})) EXECUTE FUNCTION {table}_stored()
    """
    yield f"""
        CREATE TRIGGER {table}_stored_delete AFTER DELETE ON {table}
        REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION {table}_stored()
    """
