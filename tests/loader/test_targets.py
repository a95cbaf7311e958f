"""No batch without a target: pieces in which nothing is trained are dropped and counted before they are packed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock as ps
from penstock.report import trace
from penstock.store import Store
from penstock.testing import check_resume

IGNORE = -100


def mask_of(row: int) -> list[int]:
    """A chat of which only the last answer is trained, somewhere near its end; every seventh is short."""
    length = 20 + row * 37 % 60 if row % 7 == 0 else 150 + row * 131 % 700
    answer = 3 + row % 11
    return [0] * (length - answer) + [1] * answer


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    masks = [mask_of(row) for row in range(120)]
    records = [
        {"input_ids": [(row + place) % 90 for place in range(len(mask))], "loss_mask": mask}
        for row, mask in enumerate(masks)
    ]
    folder = tmp_path_factory.mktemp("cache")
    return ps.prepare(records, template="pretokenized", vocab_size=90, cache_dir=folder, num_proc=1)


def loader(store: Store, **options: Any) -> ps.Loader:
    given = {
        "batch_size": 1,
        "max_length": 256,
        "rank": 0,
        "world_size": 1,
        "output": "numpy",
        "max_dropped": 1,  # most of these chats are longer than the rows
        **options,
    }
    return ps.Loader(store, **given)


@pytest.mark.parametrize("labels", ["unshifted", "shifted"])
@pytest.mark.parametrize(
    ("on_overlong", "packing"),
    [
        *(
            (on_overlong, packing)
            for on_overlong in ("truncate", "split", "drop")
            for packing in ("best_fit", "none", "next_fit")
        ),
        ("split", "concat"),
        ("drop", "concat"),
    ],
)
def test_no_batch_is_without_a_target_when_long_chats_are_cut(
    store: Store, on_overlong: str, packing: str, labels: str
) -> None:
    made = loader(store, on_overlong=on_overlong, packing=packing, labels=labels)
    batches = list(made)
    assert len(batches) == len(made) > 10
    assert all((batch["labels"] != IGNORE).any() for batch in batches)
    assert all(np.count_nonzero(batch["labels"] != IGNORE) == batch.trained for batch in batches)
    counts = made.counters
    assert counts.tokens_in == counts.tokens_out + counts.tokens_dropped.total()
    assert counts.samples_in == counts.samples_out + counts.samples_dropped.total() == 120
    handed = sum(int((batch["seq_idx"] >= 0).sum()) for batch in batches)
    assert handed == counts.tokens_out
    if on_overlong != "drop" or packing == "concat":
        assert counts.tokens_dropped["nothing_to_train"] > 0


def test_a_chat_that_is_truncated_before_its_answer_is_dropped_as_nothing_to_train(
    store: Store,
) -> None:
    made = loader(store, on_overlong="truncate")
    cut = [mask for mask in map(mask_of, range(120)) if len(mask) > 256]
    lost = [mask for mask in cut if not any(mask[1:256])]
    assert lost and len(lost) < len(cut)
    list(made)
    assert made.counters.samples_dropped["nothing_to_train"] == len(lost)
    assert made.counters.tokens_dropped["nothing_to_train"] == sum(map(len, lost))
    assert made.counters.samples_truncated == len(cut) - len(lost)


def test_the_loss_of_every_step_is_finite(store: Store) -> None:
    torch.manual_seed(0)
    weight = torch.randn(90, 90)
    for on_overlong in ("truncate", "split"):
        for batch in loader(store, on_overlong=on_overlong, output="torch"):
            logits = weight[batch["input_ids"]]
            labels = torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=IGNORE)
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE
            )
            assert torch.isfinite(loss)


@pytest.mark.parametrize(
    "options", [{"on_overlong": "truncate"}, {"on_overlong": "split"}, {"packing": "concat"}]
)
def test_a_run_that_drops_pieces_resumes_exactly(store: Store, options: dict[str, str]) -> None:
    check_resume(
        lambda rank, world_size: loader(store, rank=rank, world_size=world_size, **options)
    )


def test_a_store_knows_which_pieces_hold_a_target(store: Store) -> None:
    rng = np.random.default_rng(0)
    samples = rng.integers(0, 120, 4000)
    lengths = store.lengths_of(samples)
    starts = (rng.random(4000) * lengths).astype(np.int64)
    stops = starts + 1 + (rng.random(4000) * (lengths - starts)).astype(np.int64)
    found = store.has_target(samples, starts, stops)
    pieces = zip(samples.tolist(), starts.tolist(), stops.tolist(), strict=True)
    assert found.tolist() == [
        bool(store[sample].loss_mask[start + 1 : stop].any()) for sample, start, stop in pieces
    ]
    assert 0 < np.count_nonzero(found) < 4000


def test_a_record_that_is_cut_before_its_answer_is_shown_as_dropped(store: Store) -> None:
    row = next(row for row in range(120) if not any(mask_of(row)[1:256]))
    assert trace.record(loader(store, on_overlong="truncate"), row).outcome.startswith(
        "dropped as nothing_to_train: cut at"
    )
    found = trace.record(loader(store, on_overlong="split"), row)
    assert 0 < sum(at.stop - at.start for at in found.landings) < len(mask_of(row))


class OwnTemplate:
    """A template of a user's, which says nothing of samples that hold no target."""

    vocab_size = 10

    def identity(self) -> dict[str, Any]:
        return {"template": "own"}

    def encode(self, records: Any) -> Any:
        from penstock.types import Samples

        masks = [record["mask"] for record in records]
        flat = np.array([bit for mask in masks for bit in mask], np.bool_)
        offsets = np.cumsum([0, *map(len, masks)])
        return Samples(input_ids=np.ones(flat.size, np.uint32), loss_mask=flat, offsets=offsets)

    def decode(self, input_ids: Any) -> str:
        return ""


def test_a_whole_sample_without_a_target_is_dropped_when_the_store_is_made(tmp_path: Path) -> None:
    masks = [[1], [0, 1], [1, 0, 0], [0, 0], [1, 1]]
    records = [{"mask": mask} for mask in masks]
    own = ps.prepare(records, template=OwnTemplate(), cache_dir=tmp_path / "own", num_proc=1)
    ids = [{"input_ids": [1] * len(mask), "loss_mask": mask} for mask in masks]
    ready = ps.prepare(
        ids, template="pretokenized", vocab_size=10, cache_dir=tmp_path / "ready", num_proc=1
    )
    for store in (own, ready):
        assert [len(sample) for sample in store] == [0, 2, 0, 0, 2]
        assert store.counts.dropped["nothing_to_train"].count == 3
        batches = list(loader(store, max_length=2, packing="none", on_overlong="split"))
        assert all((batch["labels"] != IGNORE).any() for batch in batches) and len(batches) == 2


def test_the_warning_states_what_the_whole_epoch_drops(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    made = loader(store, on_overlong="drop", block=10, shuffle_window=1)
    next(iter(made))
    overlong = sum(len(mask_of(row)) > 256 for row in range(120))
    assert (
        f"{overlong} samples dropped ({overlong / 120:.1%}): overlong (of 120 samples in epoch 0)"
        in caplog.text
    )
    assert made.counters.samples_in < 120  # the loader has not come so far yet


def test_a_run_without_targets_says_to_raise_max_length(store: Store) -> None:
    with pytest.raises(
        ps.errors.PlanError,
        match=r"\d+ samples dropped \(100.0%\): nothing_to_train; raise max_length; ",
    ):
        list(loader(store, max_length=16, on_overlong="truncate", packing="none"))
