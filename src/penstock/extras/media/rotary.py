"""Positions of multimodal rotary embeddings: time, height and width of each token of one sample, as the Qwen-VL models count them.

A text token has its number in all three rows.  The tokens of an image or a video have their place in its grid, counted from the number of
the text before it; the text after it goes on behind the longer side of the grid.  A test compares this with transformers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.types import Ints

# Families with multimodal rotary positions whose text model finds packed samples only in position_ids of shape [4, rows, length]: row 0
# the positions in the sample, rows 1 to 3 time, height and width, which are equal for text.  A test compares this with transformers.
FOUR_POSITIONS = frozenset(
    {
        *(
            "cohere_compass",
            "cosmos3_edge",
            "ernie4_5_vl_moe",
            "glm4v",
            "glm4v_moe",
            "glm_image",
            "glm_ocr",
            "paddleocr_vl",
        ),
        *(
            "qwen2_5_omni_thinker",
            "qwen2_5_vl",
            "qwen2_vl",
            "qwen3_5",
            "qwen3_5_moe",
            "qwen3_omni_moe_thinker",
        ),
        *("qwen3_vl", "qwen3_vl_moe", "qwen4_exp"),
    }
)

ROWS = 4  # of position_ids: the number in the sample, which says where samples begin, then time, height and width


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Tokens of one image, of one video, or of one moment of a video, from `start` on: time × height × width of them."""

    start: int
    shape: tuple[int, int, int]
    interval: float = 1.0  # positions between two moments

    @property
    def stop(self) -> int:
        return self.start + self.shape[0] * self.shape[1] * self.shape[2]


def rotary_positions(length: int, grids: Sequence[Grid]) -> Ints:
    """Return (3, length) positions of a sample whose grids are in the order of their tokens."""
    out = np.empty((3, length), np.int64)
    done = place = 0  # tokens so far; the position of the next one
    for grid in grids:
        place += _count(out[:, done : grid.start], place)
        times, height, width = grid.shape
        # in 32 bits, as torch multiplies whole numbers with a fraction
        moments = (np.arange(times, dtype=np.float32) * np.float32(grid.interval)).astype(np.int64)
        time, down, across = (row.reshape(grid.shape) for row in out[:, grid.start : grid.stop])
        time[:] = place + moments[:, None, None]
        down[:] = place + np.arange(height)[:, None]
        across[:] = place + np.arange(width)
        place += max(height, width)
        done = grid.stop
    _count(out[:, done:], place)
    return out


def _count(positions: Ints, first: int) -> int:
    """Fill the rows with first, first + 1 …; return how many there are."""
    size = len(positions[0])
    positions[:] = np.arange(first, first + size)
    return size
