"""Write the page's icons as PNG, from its SVG icon.

    .venv/bin/python scripts/write_icons.py

Phones do not accept the SVG alone for an installed page.
"""

from __future__ import annotations

import io
import shutil

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from backend.web.controller import FOLDER

SOURCE = FOLDER / "icon.svg"
BACKGROUND = "#1d2733"
"""The colour of the icon's tile, for icons that fill their square."""

ICONS: dict[str, tuple[int, str, int]] = {
    "192": (192, "transparent", 100),
    "512": (512, "transparent", 100),
    "512-maskable": (512, BACKGROUND, 88),
    "180": (180, BACKGROUND, 100),
}
"""Name of each icon to its size, its background, and the width of the drawing in percent.

A system may cut a maskable icon to a circle of 80% of its width.
"""


def draw(browser: Browser, size: int, background: str, percent: int) -> Image.Image:
    """Render the icon in a square of `size` pixels."""
    page = browser.new_page(viewport={"width": size, "height": size})
    page.set_content(
        "<style>body { margin: 0; height: 100vh; display: grid; place-items: center; "
        f"background: {background} }} svg {{ width: {percent}% }}</style>"
        + SOURCE.read_text(encoding="utf-8")
    )
    data = page.screenshot(omit_background=True)
    page.close()
    return Image.open(io.BytesIO(data))


def main() -> None:
    folder = FOLDER / "icons"
    folder.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, options in ICONS.items():
            # 64 colours take a third of the bytes, and the edges stay smooth.
            picture = draw(browser, *options).quantize(64, Image.Quantize.FASTOCTREE)
            picture.save(folder / f"{name}.png", optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
