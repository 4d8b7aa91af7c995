"""QR codes for the page and for terminals."""

from __future__ import annotations

import io


def make_qr_rows(text: str) -> list[str]:
    """Return the rows of a QR code, `1` for a dark module, without the margin of 4 modules.

    Takes about 10 ms: call it in a thread.
    """
    import segno  # noqa: PLC0415 - rarely needed; its import takes 50 ms

    code = segno.make_qr(text, error="m")
    return ["".join(str(module & 1) for module in row) for row in code.matrix]


def draw_qr(text: str) -> str:
    """Draw a QR code in half blocks, for a terminal with a dark background."""
    import segno  # noqa: PLC0415 - as above

    drawing = io.StringIO()
    segno.make_qr(text, error="l").terminal(drawing, border=2, compact=True)
    return drawing.getvalue()
