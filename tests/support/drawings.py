"""Drawn pictures: portraits for cards, a background, and a page of a ledger."""

from __future__ import annotations

import io

from PIL import Image, ImageDraw

NIGHT = "#12161f"
INK = "#0d1017"


def portrait(tint: str, shape: str) -> bytes:
    """Draw a lighthouse, or a person with a hat, a hood, a cap or a bun, in front of the sky."""
    size = 384
    picture = sky(size, size, tint)
    draw = ImageDraw.Draw(picture, "RGBA")
    if shape == "lighthouse":
        draw_lighthouse(draw, 192, 384)
    else:
        draw.ellipse((250, 50, 310, 110), fill="#f6e7c6")
        draw.pieslice((72, 250, 312, 520), 180, 360, fill=INK)
        draw.ellipse((138, 124, 246, 250), fill=INK)
        draw_headwear(draw, shape)
    return to_png(picture)


def draw_headwear(draw: ImageDraw.ImageDraw, shape: str) -> None:
    match shape:
        case "hat":
            draw.polygon([(82, 150), (192, 84), (302, 150), (192, 136)], fill=INK)
            draw.polygon([(132, 132), (192, 62), (252, 132)], fill=INK)
        case "hood":
            draw.polygon([(192, 72), (92, 300), (292, 300)], fill=INK)
            draw.ellipse((118, 96, 266, 270), fill=INK)
        case "cap":
            draw.pieslice((132, 100, 252, 220), 180, 360, fill=INK)
            draw.rectangle((236, 152, 284, 164), fill=INK)
        case "bun":
            draw.ellipse((162, 72, 222, 132), fill=INK)
            draw.ellipse((126, 110, 258, 214), fill=INK)
        case _:
            draw.polygon([(120, 190), (130, 330), (254, 330), (264, 190)], fill=INK)
            draw.ellipse((120, 104, 264, 250), fill=INK)


def seascape() -> bytes:
    """Draw a sea at dusk with a lighthouse on a rock."""
    picture = sky(1600, 1000, "#3d5b78")
    draw = ImageDraw.Draw(picture, "RGBA")
    draw.ellipse((1180, 150, 1300, 270), fill="#f6e7c6")
    draw.rectangle((0, 700, 1600, 1000), fill="#16222e")
    for row in range(14):
        y, gap = 716 + row * 20, 90 + row * 14
        for x in range(-(row * 37) % gap - gap, 1600, gap):
            draw.line((x, y, x + gap // 2, y), fill="#2c4257", width=2 + row // 4)
    draw_lighthouse(draw, 260, 690, beam=1400)
    draw.polygon([(0, 1000), (0, 690), (240, 660), (520, 700), (760, 1000)], fill=INK)
    return to_png(picture)


def ledger_page() -> bytes:
    """Draw a page of a ledger with a sketch of a stair, a well and a door."""
    picture = Image.new("RGB", (900, 640), "#e8d9b8")
    draw = ImageDraw.Draw(picture, "RGBA")
    for y in range(60, 640, 46):
        draw.line((0, y, 900, y), fill="#b9a47a88", width=2)
    draw.line((110, 0, 110, 640), fill="#b0524a88", width=3)
    ink = "#3b2c1c"
    stair = [(190, 130)]
    for step in range(9):
        stair += [
            (190 + 46 * (step + 1), 130 + 38 * step),
            (190 + 46 * (step + 1), 168 + 38 * step),
        ]
    draw.line(stair, fill=ink, width=7, joint="curve")
    draw.arc((600, 430, 760, 500), 0, 360, fill=ink, width=6)
    draw.line((606, 470, 606, 590), fill=ink, width=6)
    draw.line((754, 470, 754, 590), fill=ink, width=6)
    draw.rectangle((700, 130, 810, 330), outline=ink, width=7)
    for row in range(4):
        for column in range(2):
            left = 706 + column * 52 + (row % 2) * 12
            draw.rectangle((left, 140 + row * 46, left + 40, 178 + row * 46), outline=ink, width=3)
    draw.line((330, 560, 250, 470, 300, 480), fill="#a33a2c", width=6)
    draw.line((250, 470, 256, 520), fill="#a33a2c", width=6)
    return to_png(picture)


def draw_lighthouse(draw: ImageDraw.ImageDraw, x: int, ground: int, *, beam: int = 192) -> None:
    """Draw a lighthouse 330 pixels high, with a beam to the right."""
    top = ground - 330
    light = [(x, top + 42), (x + beam, top - beam // 6), (x + beam, top + 42 + beam // 4)]
    draw.polygon(light, fill="#f2c27b66")
    draw.polygon(
        [(x - 32, ground), (x + 32, ground), (x + 20, top + 66), (x - 20, top + 66)],
        fill="#efe7d8",
    )
    draw.rectangle((x - 26, top + 166, x + 26, top + 208), fill="#b4541a")
    draw.rectangle((x - 20, top + 30, x + 20, top + 66), fill="#f2c27b")
    draw.polygon([(x - 28, top + 30), (x + 28, top + 30), (x, top + 2)], fill="#b4541a")


def sky(width: int, height: int, tint: str) -> Image.Image:
    shade = Image.linear_gradient("L").resize((width, height))
    above, below = (Image.new("RGB", (width, height), colour) for colour in (NIGHT, tint))
    return Image.composite(below, above, shade)


def to_png(picture: Image.Image) -> bytes:
    data = io.BytesIO()
    picture.save(data, "PNG")
    return data.getvalue()
