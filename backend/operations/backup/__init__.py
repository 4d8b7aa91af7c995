"""Backups of an embedded installation: one zip with the database and a manifest.

`writer` makes a backup while a server may run. `schedule` does so regularly. `restore` puts the
installation of a backup in place.

The index is left out. It is derived from the database, and Qdrant Edge can load snapshots but not
make them. A copy of its files at another moment than the database's would contain stale points.
"""
