"""Where do a batch's arrays live?  In memory that earlier batches lived in, as soon as nobody holds those any more.

Fresh memory of a batch's size is given back to the system and faulted in again at every step, which costs more than filling it.
"""

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

_MAX_KEPT = 16  # of each array; a consumer that holds more batches than these gets fresh memory


def _holders(buffers: list[Any], place: int) -> int:
    return sys.getrefcount(buffers[place])


_NOBODY = _holders([np.empty(0)], 0)  # what is counted where the list alone holds it


class Buffers:
    """For one thread that makes batches.  Views and tensors hold what they look into, so a count of holders says who is done."""

    def __init__(self) -> None:
        self._kept: dict[str, list[npt.NDArray[np.uint8]]] = {}

    def take(self, name: str, size: int, dtype: Any) -> npt.NDArray[Any]:
        """An array of `size`, with whatever is in it.  `name` tells apart arrays that are handed over and held separately."""
        dtype = np.dtype(dtype)
        num_bytes = size * dtype.itemsize
        return self._free(self._kept.setdefault(name, []), num_bytes)[:num_bytes].view(dtype)

    def _free(self, kept: list[npt.NDArray[np.uint8]], num_bytes: int) -> npt.NDArray[np.uint8]:
        for place in range(len(kept)):
            if _holders(kept, place) == _NOBODY:
                if kept[place].size < num_bytes:
                    kept[place] = np.empty(num_bytes + num_bytes // 8, np.uint8)  # sizes of flat rows differ a little
                return kept[place]
        buffer = np.empty(num_bytes, np.uint8)
        if len(kept) < _MAX_KEPT:
            kept.append(buffer)
        return buffer
