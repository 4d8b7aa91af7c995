"""Zip files, made and read by tests."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

SEAGATE = Path(__file__).parents[1] / "fixtures" / "seagate-vault"


def zipped(files: Mapping[str, bytes | str]) -> bytes:
    """A zip of these files, by path."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return target.getvalue()


def unzipped(data: bytes) -> dict[str, bytes]:
    """The files of a zip, by path."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def seagate_vault(folder: str = "seagate-vault/") -> dict[str, bytes]:
    """The vault of the fixtures, in a folder."""
    files = sorted(path for path in SEAGATE.rglob("*") if path.is_file())
    return {f"{folder}{path.relative_to(SEAGATE).as_posix()}": path.read_bytes() for path in files}
