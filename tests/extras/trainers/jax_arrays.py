"""What `output="jax"` makes: python -m tests.extras.trainers.jax_arrays FOLDER.  test_streams.py runs it in a process of its own."""

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from penstock.errors import PlanError
from penstock.loader.layout import as_jax

from .runs import open_loader


def check_shapes(folder: Path) -> None:
    options: dict[str, Any] = {"max_segments": 40}
    plain = list(open_loader(folder, output="numpy"))
    made = list(open_loader(folder, output="jax", **options))
    assert len(made) == len(plain)
    shapes = {
        tuple((name, value.shape, str(value.dtype)) for name, value in batch.items())
        for batch in made
    }
    assert len(shapes) == 1, "a jitted step is compiled once"
    for batch, expected in zip(made, plain, strict=True):
        assert all(isinstance(value, jax.Array) for value in batch.values())
        for name in ("input_ids", "labels", "position_ids"):
            assert batch[name].dtype == np.int32 and np.array_equal(batch[name], expected[name])
        assert (
            np.array_equal(batch["segment_ids"], expected["seq_idx"] + 1) and "seq_idx" not in batch
        )
        borders = expected["cu_seqlens"]
        assert np.array_equal(batch["cu_seqlens"][: borders.size], borders)
        assert batch["cu_seqlens"].size == 41 and set(
            np.asarray(batch["cu_seqlens"][borders.size :])
        ) <= {borders[-1]}
    assert "cu_seqlens" not in next(iter(open_loader(folder, output="jax")))


def check_refusals() -> None:
    fits = as_jax(
        {"when": np.array([2**31 - 1, -(2**31)]), "size": np.array([2**32 - 1], np.uint64)},
        fixed_borders=False,
    )
    assert fits["when"].tolist() == [2**31 - 1, -(2**31)] and fits["size"].tolist() == [2**32 - 1]
    for value in (np.array([2**31]), np.array([2**32], np.uint64)):
        with pytest.raises(
            PlanError, match=r"array 'when' holds u?int64 values that do not fit into u?int32"
        ):
            as_jax({"when": value}, fixed_borders=False)


if __name__ == "__main__":
    check_shapes(Path(sys.argv[1]))
    check_refusals()
    sys.stdout.write("shapes, refusals\n")
