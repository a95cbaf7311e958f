"""Draws docs/images/order.svg: one global order of rows, cut for four ranks and, after a stop, for six.

    python -m tests.docs.order_picture

The numbers in the picture are what loaders of these ranks deliver.
"""

from dataclasses import dataclass
from typing import Any

import penstock as ps
from tests.docs.pages import ROOT

PICTURE = ROOT / "docs" / "images" / "order.svg"

RECORDS = 24
BEFORE = 4  # ranks until the stop
AFTER = 6  # ranks after it
STEPS_BEFORE = 3

CELL = 30
LEFT = 150
TOP = 40
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """A record that a rank got: which one, and in which step of its run."""

    record: int
    rank: int
    column: int  # the place of its step in the picture


def open_loader(rank: int, ranks: int) -> ps.Loader:
    source = ps.open([{"n": number} for number in range(RECORDS)])
    return ps.Loader(
        source,
        batch_size=1,
        rank=rank,
        world_size=ranks,
        seed=4,
        output="numpy",
        collate=lambda records: {"n": [record["n"] for record in records]},
    )


def deliver() -> tuple[list[int], list[Delivered]]:
    """Return the global order, and who gets what: four ranks, a state, six ranks."""
    alone = open_loader(0, 1)
    order = [number for batch in alone for number in batch["n"]]
    delivered: list[Delivered] = []
    state: dict[str, Any] = {}
    for rank in range(BEFORE):
        loader = open_loader(rank, BEFORE)
        for column, batch in zip(range(STEPS_BEFORE), loader, strict=False):
            delivered.append(Delivered(record=batch["n"][0], rank=rank, column=column))
        state = loader.state_dict()
    for rank in range(AFTER):
        loader = open_loader(rank, AFTER)
        loader.load_state_dict(state)
        for column, batch in enumerate(loader, start=STEPS_BEFORE):
            delivered.append(Delivered(record=batch["n"][0], rank=rank, column=column))
    return order, delivered


def picture() -> str:
    """Return the picture as SVG."""
    order, delivered = deliver()
    parts = [_text(10, TOP + 20, "one global order", bold=True)]
    rank_of = {item.record: item.rank for item in delivered}
    for place, record in enumerate(order):
        parts.append(_cell(LEFT + place * CELL, TOP, record, COLOURS[rank_of[record]]))
    stop = LEFT + BEFORE * STEPS_BEFORE * CELL
    parts.append(_line(stop, TOP - 12, TOP + CELL + 12))
    parts.append(_text(stop - 134, TOP - 16, "4 ranks, then killed"))
    parts.append(_text(stop + 8, TOP - 16, "resumed on 6 ranks"))
    below = TOP + 2 * CELL
    for rank in range(AFTER):
        parts.append(_text(10, below + rank * CELL + 20, f"rank {rank} gets"))
    for item in delivered:
        # a step of four ranks is as wide as four records of the order, a step of six as six
        if item.column < STEPS_BEFORE:
            left = LEFT + item.column * BEFORE * CELL
        else:
            left = stop + (item.column - STEPS_BEFORE) * AFTER * CELL
        parts.append(_cell(left, below + item.rank * CELL, item.record, COLOURS[item.rank]))
    width = LEFT + RECORDS * CELL + 10
    height = below + AFTER * CELL + 10
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="13" role="img">\n'
        f"<title>One global order of rows, cut for 4 ranks, then for 6</title>\n"
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _cell(x: int, y: int, number: int, colour: str) -> str:
    box = f'<rect x="{x + 1}" y="{y + 1}" width="{CELL - 2}" height="{CELL - 2}" rx="4" fill="{colour}"/>'
    label = f'<text x="{x + CELL // 2}" y="{y + 20}" text-anchor="middle" fill="#ffffff">{number}</text>'
    return f"{box}{label}"


def _text(x: int, y: int, words: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" fill="#222222"{weight}>{words}</text>'


def _line(x: int, top: int, bottom: int) -> str:
    return f'<line x1="{x}" y1="{top}" x2="{x}" y2="{bottom}" stroke="#222222" stroke-width="2" stroke-dasharray="4 3"/>'


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
