"""Draws docs/images/walk.svg: records become samples, samples are packed into rows, and a rank gets rows as a batch.

    python -m tests.docs.walk_picture

Lengths, masks and positions in the picture are what the package gives for its three records.
"""

import tempfile

import numpy as np

import penstock as ps
from tests.docs.pages import ROOT

PICTURE = ROOT / "docs" / "images" / "walk.svg"
RECORDS = [
    ([5, 6, 7, 8, 9, 10], [0, 0, 0, 1, 1, 1]),
    ([11, 12, 13, 14], [0, 0, 1, 1]),
    ([15, 16, 17, 18, 19, 20, 21], [0, 0, 0, 0, 1, 1, 1]),
]
MAX_LENGTH = 10
CELL = 28
LEFT = 190
COLOURS = ("#4c78a8", "#b45f06", "#3d7a37")
PALE = ("#c6d6e6", "#f3d9c0", "#c8dfc5")


def batch() -> dict[str, np.ndarray]:
    """Return the one batch of the three records."""
    records = [
        {
            "input_ids": ids,
            "labels": [token if flag else -100 for token, flag in zip(ids, mask, strict=True)],
        }
        for ids, mask in RECORDS
    ]
    with tempfile.TemporaryDirectory() as cache:
        store = ps.prepare(
            ps.open(records),
            template="pretokenized",
            vocab_size=32,
            cache_dir=cache,
            progress="none",
        )
        loader = ps.Loader(
            store,
            batch_size=2,
            max_length=MAX_LENGTH,
            shuffle=False,
            packing="best_fit",
            output="numpy",
        )
        (found,) = loader
        return {name: np.asarray(found[name]) for name in ("input_ids", "labels", "position_ids")}


def picture() -> str:
    """Return the picture as SVG."""
    parts: list[str] = []
    y = 10
    for number, (ids, mask) in enumerate(RECORDS):
        parts.append(_text(10, y + 19, f"record {number} → sample"))
        for place, (token, flag) in enumerate(zip(ids, mask, strict=True)):
            parts.append(_cell(LEFT + place * CELL, y, str(token), number, is_trained=bool(flag)))
        y += CELL + 4
    parts.append(_text(LEFT + 8 * CELL, 29, "dark: in the loss (the loss mask)"))
    y += 14
    arrays = batch()
    owner = {token: number for number, (ids, _) in enumerate(RECORDS) for token in ids}
    trained = {
        token for ids, mask in RECORDS for token, flag in zip(ids, mask, strict=True) if flag
    }
    for row, ids in enumerate(arrays["input_ids"].tolist()):
        for name in ("input_ids", "position_ids", "labels"):
            parts.append(_text(10, y + 19, f"row {row}: {name}"))
            for place, value in enumerate(arrays[name][row].tolist()):
                number = owner.get(ids[place])
                flag = name != "position_ids" and ids[place] in trained
                shown = "–" if value == -100 else str(value)
                parts.append(_cell(LEFT + place * CELL, y, shown, number, is_trained=flag))
            y += CELL + 2
        y += 10
    width = LEFT + 17 * CELL
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" '
        f'font-family="sans-serif" font-size="13" role="img">\n'
        f"<title>Three records become samples; two rows hold them in a batch</title>\n"
        f'<rect width="{width}" height="{y}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _cell(x: int, y: int, words: str, number: int | None, *, is_trained: bool) -> str:
    colour = "#eeeeee" if number is None else (COLOURS if is_trained else PALE)[number]
    ink = "#ffffff" if is_trained and number is not None else "#222222"
    box = f'<rect x="{x + 1}" y="{y + 1}" width="{CELL - 2}" height="{CELL - 2}" rx="4" fill="{colour}"/>'
    return f'{box}<text x="{x + CELL // 2}" y="{y + 19}" text-anchor="middle" fill="{ink}">{words}</text>'


def _text(x: int, y: int, words: str) -> str:
    return f'<text x="{x}" y="{y}" fill="#222222">{words}</text>'


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
