"""The exceptions of `zipfile`, and the properties of entries that every reader can read."""

from __future__ import annotations

import struct
import zipfile
import zlib

DAMAGED_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    NotImplementedError,
    RuntimeError,
    EOFError,
    ValueError,
    OverflowError,
)
"""Exceptions that `zipfile` raises for invalid, encrypted or unsupported content."""

ZIP_ERRORS = (*DAMAGED_ZIP_ERRORS, OSError)
"""The same, with the errors of offsets outside the file. Not if the disk may fail."""

COMPRESSION_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
ENCRYPTED_FLAG = 0x1
