"""Backups of an embedded installation: one zip with the database and a manifest.

A backup is made beside a running server (`writer`), by a command or by the server itself
(`schedule`). `restore` replaces an installation by one.

The index is left out. It is derived from the database, and Qdrant Edge can load snapshots but not
make them. A copy of its files at another moment than the database's would contain stale points.
"""
