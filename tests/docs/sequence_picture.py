"""Draws the picture in docs/guides/sequences.md: python -m tests.docs.sequence_picture.  It runs the code of that page."""

import os
import re
import tempfile
from pathlib import Path
from typing import Any

from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "guides" / "sequences.md"
PICTURE = PAGE.with_name("sequences.svg")
_WIDTH, _HEIGHT, _EDGE = 360, 200, 34


def _line(values: list[float], low: float, high: float, left: int, color: str) -> str:
    step = (_WIDTH - 2 * _EDGE) / (len(values) - 1)
    points = [
        f"{left + _EDGE + number * step:.1f},"
        f"{_HEIGHT - _EDGE - (value - low) / (high - low) * (_HEIGHT - 2 * _EDGE):.1f}"
        for number, value in enumerate(values)
    ]
    return (
        f'<polyline fill="none" stroke="{color}" stroke-width="1.5" points="{" ".join(points)}"/>'
    )


def _frame(left: int, title: str, below: str) -> list[str]:
    width, height = _WIDTH - 2 * _EDGE, _HEIGHT - 2 * _EDGE
    return [
        f'<rect x="{left + _EDGE}" y="{_EDGE}" width="{width}" height="{height}" fill="none" stroke="#999"/>',
        f'<text x="{left + _EDGE}" y="{_EDGE - 10}">{title}</text>',
        f'<text x="{left + _EDGE}" y="{_HEIGHT - 12}" fill="#666">{below}</text>',
    ]


def run_page(folder: Path) -> dict[str, Any]:
    """Run the Python blocks of the page in a folder; return its names."""
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    before = Path.cwd()
    os.chdir(folder)
    try:
        for block in blocks:
            exec(block, names)  # the page's own code
    finally:
        os.chdir(before)
    return names


def picture(names: dict[str, Any]) -> str:
    """Return the SVG: the loss of each step, and the forecast of one step ahead for a held-out machine."""
    losses = names["losses"]
    batch = names["whole"]
    with names["torch"].no_grad():
        predicted = names["model"](batch.inputs)
    decode = names["encoding"].decode
    real = decode("value", batch.targets["value"][1])
    forecast = decode("value", predicted[1])
    low, high = min(real + forecast), max(real + forecast)
    drawn = [
        *_frame(0, "squared error", f"{len(losses)} steps"),
        _line(losses, 0, max(losses), 0, "#1f77b4"),
        *_frame(_WIDTH, "value: real (grey), forecast (orange)", "32 steps of a held-out machine"),
        _line(real, low, high, _WIDTH, "#777"),
        _line(forecast, low, high, _WIDTH, "#ff7f0e"),
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * _WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">'
    return (
        "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *drawn, "</svg>"])
        + "\n"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        PICTURE.write_text(picture(run_page(Path(folder))), encoding="utf-8")
