"""Tensors unless arrays are asked for; a function of the user's own; rows that hold nothing."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.cache import Cache
from penstock.engines import LocalEngine
from penstock.errors import PlanError
from penstock.sources import open_source
from penstock.store import build
from penstock.templates import TextTemplate, open_tokenizer

from .arrays import Loader

WORDS = ["fox", "dog", "runs", "over", "away", "lazy"]
OPTIONS = {"batch_size": 2, "max_length": 64}


def make_records(number: int = 150) -> list[dict[str, str]]:
    rng = np.random.default_rng(8)
    return [
        {"text": " ".join(rng.choice(WORDS, 1 + rng.integers(40)).tolist())} for _ in range(number)
    ]


@pytest.fixture(scope="module")
def store(tokenizer_path, tmp_path_factory):
    cache_dir = tmp_path_factory.mktemp("cache")
    return ps.prepare(
        make_records(), tokenizer=tokenizer_path, template="text", cache_dir=cache_dir, num_proc=1
    )


def test_tensors_unless_arrays_are_asked_for(store):
    torch = pytest.importorskip("torch", reason="tensors need torch")
    batch = next(iter(ps.Loader(store, **OPTIONS)))
    assert isinstance(batch["input_ids"], torch.Tensor) and batch["labels"].dtype == torch.int64
    assert batch["cu_seqlens"].dtype == torch.int32
    assert isinstance(next(iter(Loader(store, **OPTIONS)))["input_ids"], np.ndarray)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # as if it were not installed
import penstock as ps
store = ps.prepare([{"text": "fox runs"}] * 9, tokenizer=sys.argv[1], template="text", cache_dir=sys.argv[2], num_proc=1)
try:
    ps.Loader(store, batch_size=2, max_length=64)
except ps.errors.PlanError as error:
    print(error)
try:
    ps.Loader(store, batch_size=2, max_length=64, output="numpy").as_dataset()
except ps.errors.PlanError as error:
    print(error)
print(len(list(ps.Loader(store, batch_size=2, max_length=64, output="numpy"))))
print(len(list(ps.Loader(ps.open([{"n": 1}] * 9), batch_size=2))))
"""


def test_without_torch_the_error_says_what_to_install_or_to_pass(tokenizer_path, tmp_path):
    job = [sys.executable, "-c", WITHOUT_TORCH, tokenizer_path, tmp_path]
    found = subprocess.run(job, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert found.returncode == 0, found.stderr
    default, data_set, steps, records = found.stdout.splitlines()
    assert (
        "needs torch, which is not installed: pip install 'penstock[torch]', or pass output='numpy'"
        in default
    )
    assert "as_dataset needs torch" in data_set
    assert (int(steps), int(records)) == (1, 5)  # arrays and plain records need none


def test_a_function_of_ones_own_gets_arrays_and_spans(store):
    def collate(arrays, rows):
        first = [rows[r]["sample"].tolist() for r in range(len(rows))]
        return {
            "ids": arrays["input_ids"][:, :8],
            "labels": np.where(arrays["labels"] < 50, -100, 7),
            "samples": first,
        }

    plain, loader = Loader(store, **OPTIONS), Loader(store, **OPTIONS, collate=collate)
    for batch, expected in zip(loader, plain, strict=True):
        assert batch.keys() == {"ids", "labels", "samples"} and batch["ids"].shape == (2, 8)
        assert batch["samples"] == [expected.rows[r]["sample"].tolist() for r in range(2)]
        assert batch.provenance == expected.provenance and batch.trained == np.count_nonzero(
            batch["labels"] == 7
        )
    assert loader.state_dict() == plain.state_dict()
    assert (
        0 < loader.metrics.as_dict()["trained_tokens"] < plain.metrics.as_dict()["trained_tokens"]
    )
    with pytest.raises(PlanError, match="collate gave a list, expected a dict"):
        next(iter(Loader(store, **OPTIONS, collate=lambda arrays, rows: [])))


def test_a_users_function_may_give_tensors_its_arrays_become(store):
    torch = pytest.importorskip("torch", reason="tensors need torch")
    batch = next(
        iter(
            ps.Loader(
                store, **OPTIONS, collate=lambda arrays, rows: {"x": arrays["input_ids"], "n": 3}
            )
        )
    )
    assert isinstance(batch["x"], torch.Tensor) and batch["n"] == 3


def test_a_flat_row_is_never_empty(store):
    """A rank that has no row left in the last step still runs its model, or the others would wait for it."""
    loaders = [
        Loader(store, batch_size=1, max_length=64, rank=r, world_size=40, padding_free=True)
        for r in range(40)
    ]
    last = [list(loader)[-1] for loader in loaders]
    empty = [batch for batch in last if not len(batch.rows.spans)]
    assert empty and len(empty) < 40
    for batch in empty:
        assert batch["input_ids"].shape == (1, 1) and batch["labels"].tolist() == [[-100]]
        assert (
            batch["seq_idx"].tolist() == [[-1]]
            and batch["cu_seqlens"].tolist() == [0, 1]
            and batch.trained == 0
        )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_store_that_is_still_being_made_gives_the_same_batches_to_workers(
    tokenizer_path, tmp_path, workers
):
    if workers:
        pytest.importorskip("torch", reason="workers need torch")
    template = TextTemplate(open_tokenizer(tokenizer_path))

    def make(name: str, *, background: bool):
        cache = Cache(tmp_path / name)
        source = open_source(make_records(600), cache=cache)
        engine = LocalEngine(2, inline=not background)
        return build(
            source, template, engine=engine, cache=cache, background=background, shard_rows=40
        )

    ahead, options = make("ahead", background=False), {**OPTIONS, "shuffle_window": 2, "block": 100}
    whole = [batch["input_ids"].tolist() for batch in Loader(ahead, **options)]
    under_way = make(
        "under way", background=True
    )  # each worker has a copy of it, and makes what it needs, or waits for it

    def batches_of(store):
        loader = Loader(store, **options)
        if not workers:
            return loader
        from torch.utils.data import DataLoader

        return DataLoader(loader.as_dataset(), batch_size=None, num_workers=workers)

    assert [batch["input_ids"].tolist() for batch in batches_of(under_way)] == whole
    assert under_way.wait().counts == ahead.counts
    assert [batch["input_ids"].tolist() for batch in batches_of(under_way)] == whole
