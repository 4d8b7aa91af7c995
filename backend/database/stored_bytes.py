"""Triggers that note how many bytes of texts each user stores, for migrations to set up.

Every insert, change and delete of a counted row adds a line to `storage_ledger`, in the same
transaction and whatever caused it: a cascade, a bulk statement, another process. The sum of a
user's lines is what the user stores. Lines are added and never changed, so two transactions of one
user do not wait for each other.
"""

# ruff: noqa: S608  # tables and columns are named by our own migrations

from __future__ import annotations

from collections.abc import Iterator, Sequence

import sqlalchemy as sa

ROW_BYTES = 200
"""What a row counts beside its texts: its other columns and its place in indexes, about."""


def count_table(connection: sa.Connection, table: str, columns: Sequence[str]) -> None:
    """Count a table's rows from now on: `ROW_BYTES` and the lengths of these columns.

    The table names its owner in `user_id`.
    """
    setup = _postgresql if connection.dialect.name == "postgresql" else _sqlite
    for statement in setup(table, columns):
        connection.exec_driver_sql(statement)


def stop_counting(connection: sa.Connection, table: str) -> None:
    """Count a table no more. What its rows counted has to be taken off the ledger by a recount."""
    is_postgres = connection.dialect.name == "postgresql"
    for event in ("insert", "update", "delete"):
        on = f" ON {table}" if is_postgres else ""
        connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {table}_stored_{event}{on}")
    if is_postgres:
        connection.exec_driver_sql(f"DROP FUNCTION IF EXISTS {table}_stored()")


_INSERT = "INSERT INTO storage_ledger (user_id, bytes)"


def _size(row: str, columns: Sequence[str]) -> str:
    """An expression for what a row counts; `row` is `NEW.` or `OLD.`."""
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
    # With its account gone a user has no ledger, and needs none.
    yield f"""
        CREATE TRIGGER {table}_stored_delete AFTER DELETE ON {table}
        WHEN EXISTS (SELECT 1 FROM users WHERE id = OLD.user_id)
        BEGIN {_INSERT} VALUES (OLD.user_id, -({old})); END
    """


def _postgresql(table: str, columns: Sequence[str]) -> Iterator[str]:
    """One line a statement where rows come and go, one a row where a text changes its length.

    A trigger can't have both a list of columns and all the rows of a statement.
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
