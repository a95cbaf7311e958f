"""Are the numbers what the loader then does?  Held against batches, token by token."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import PlanError
from penstock.report import numbers, trace
from penstock.report import text as layout
from penstock.report.sampling import lost_share, sensible_length
from tests.words import WORDS

Write = Callable[..., Path]


def text(row: int) -> str:
    return " ".join(WORDS[(row * 7 + place) % len(WORDS)] for place in range(1 + row * 13 % 60))


@pytest.fixture
def stores(write_jsonl: Write, tokenizer_path: Path, tmp_path: Path) -> dict[str, Any]:
    """Two sources; every tenth record of the first is empty, and two of the others have one token, which is no target."""
    options: dict[str, Any] = {
        "tokenizer": tokenizer_path,
        "template": "text",
        "cache_dir": tmp_path / "cache",
        "num_proc": 1,
    }
    first = write_jsonl(
        [{"text": "" if row % 10 == 9 else text(row)} for row in range(120)], "first.jsonl"
    )
    second = write_jsonl([{"text": text(row + 1000)} for row in range(80)], "second.jsonl")
    return {
        "first": ps.prepare(first, **{**options, "eos": False}),
        "second": ps.prepare(second, **options),
    }


def loader(stores: Any, **options: Any) -> ps.Loader:
    given = {
        "batch_size": 2,
        "max_length": 64,
        "rank": 0,
        "world_size": 1,
        "output": "numpy",
        "max_dropped": 1,
        **options,
    }
    return ps.Loader(stores, **given)


def test_a_source_is_its_samples_and_its_drops(stores: dict[str, Any]) -> None:
    first, second = numbers.sources(loader(stores))
    assert (first.name, second.name) == ("first", "second")
    assert first.rows == 120 == first.samples + sum(drop.count for drop in first.dropped)
    (drop,) = first.dropped
    assert (
        drop.count == 12 + 2 and drop.first[1].endswith("first.jsonl:10") and len(drop.first) == 5
    )
    assert second.dropped == () and second.samples == 80
    sizes = np.array([len(sample) for sample in stores["first"]])
    kept = np.sort(sizes[sizes > 0])
    assert first.tokens == kept.sum() == first.lengths.total
    assert (first.lengths.min, first.lengths.max, first.lengths.count) == (
        kept[0],
        kept[-1],
        kept.size,
    )
    assert first.lengths.p50 == kept[kept.size // 2] and first.num_bytes > 0
    assert (
        first.trained
        == sum(int(sample.loss_mask[1:].sum()) for sample in stores["first"])
        == first.tokens - first.samples
    )


@pytest.mark.parametrize(
    "sizes", [[1], [1, 2, 3, 4, 5], [7], list(range(1, 300)), [0, 0, 4096], [5_000_000]]
)
def test_a_histogram_holds_every_sample_once(sizes: list[int]) -> None:
    found = numbers.length_numbers(np.array(sizes))
    histogram = found.histogram
    kept = [size for size in sizes if size]
    assert sum(histogram.counts) == len(kept) and sum(histogram.tokens) == sum(kept)
    assert len(histogram.edges) == len(histogram.counts) + 1 and list(histogram.edges) == sorted(
        set(histogram.edges)
    )
    for low, high, count in zip(
        histogram.edges, histogram.edges[1:], histogram.counts, strict=False
    ):
        assert count == sum(low < size <= high for size in kept)


def test_no_samples_are_numbers_too() -> None:
    found = numbers.length_numbers(np.zeros(3, np.int64))
    assert (found.count, found.total, found.max) == (0, 0, 0) and sum(found.histogram.counts) == 0


@pytest.mark.parametrize(
    ("lengths", "model", "expected"),
    [
        ([100] * 50, None, 1_024),  # never shorter
        ([1_024] * 99, None, 1_024),  # samples of exactly max_length fit
        ([1_025] * 99, None, 2_048),
        ([100] * 999 + [3_000], None, 4_096),  # one sample holds 3 % of what is trained
        ([1_000] * 9_999 + [5_000], None, 1_024),  # it holds 0.05 %
        ([70_000] * 9, None, 32_768),  # more is the user's to ask for
        ([70_000] * 9, 4_096, 4_096),
        ([100] * 9, 512, 512),
        ([], None, 1_024),
    ],
)
def test_the_chosen_max_length_keeps_nearly_all_trained_tokens(
    lengths: list[int], model: int | None, expected: int
) -> None:
    sizes = np.array(lengths, np.int64)
    assert sensible_length(sizes, sizes, model) == expected


def test_a_max_length_is_chosen_by_trained_tokens_not_by_samples() -> None:
    lengths, trained = np.array([100] * 98 + [9_000] * 2), np.array([90] * 98 + [1] * 2)
    assert sensible_length(lengths, trained) == 1_024, "the long samples hold hardly any target"
    lost = lost_share(lengths, trained, 1_024)
    assert (lost.samples, lost.tokens, lost.trained) == (
        2,
        18_000,
        2,
    ) and lost.of_trained == 98 * 90 + 2
    assert lost.describe() == (
        "2 of 100 samples (2.0%) are longer and will be dropped, with 64.7% of the tokens and <0.1% of the trained tokens"
    )


@pytest.mark.parametrize("last_step", ["pad", "drop", "repeat", "wrap"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_an_epoch_is_what_the_loader_hands_over(
    stores: dict[str, Any], last_step: str, world_size: int
) -> None:
    made = loader(stores, last_step=last_step, world_size=world_size, on_overlong="split")
    found = numbers.epoch(made)
    assert found.steps == found.steps_of_run == len(list(made))
    assert (
        found.rows_per_step == 2 * world_size
        and found.last_step_rows == found.rows % found.rows_per_step
    )
    lost = found.counters.tokens_dropped["nothing_to_train"]  # last pieces of one token
    assert (
        sum(share.tokens for share in found.shares)
        == sum(source.tokens for source in numbers.sources(made)) - lost
    )
    assert abs(sum(share.share for share in found.shares) - 1) < 1e-9
    assert found.fill == pytest.approx(
        sum(share.tokens for share in found.shares) / found.rows / 64
    )
    assert found.order == numbers.epoch(loader(stores, batch_size=5, on_overlong="split")).order, (
        "the order knows no ranks"
    )
    assert found.order != numbers.epoch(loader(stores, seed=1)).order


@pytest.mark.parametrize("balance", ["none", "rank", "block"])
def test_the_slowest_rank_is_that_of_the_batches(stores: dict[str, Any], balance: str) -> None:
    """Without balance is what balance: none would give, also where block changes the order."""

    def slowest(balance: str) -> float:
        ranks = [
            list(loader(stores, world_size=3, rank=r, balance=balance, last_step="drop"))
            for r in range(3)
        ]
        ratios = []
        for batches in zip(*ranks, strict=True):
            sizes = [
                (batch.rows.spans["stop"] - batch.rows.spans["start"]).tolist() for batch in batches
            ]
            work = [sum(n * n + 24_576 * n for n in each) for each in sizes]
            ratios.append(max(work) * 3 / sum(work))
        return sum(ratios) / len(ratios)

    found = numbers.epoch(loader(stores, world_size=3, balance=balance)).balance
    assert found.balance == balance and found.steps == len(
        loader(stores, world_size=3, last_step="drop")
    )
    assert found.slowest == pytest.approx(
        slowest(balance)
    ) and found.slowest_in_turn == pytest.approx(slowest("none"))
    assert f"{found.slowest:.3f} × the mean cost of a rank (balance: {balance}" in str(found)


def test_skipped_steps_are_not_among_those_that_are_shown(stores: dict[str, Any]) -> None:
    whole = loader(stores, epochs=2)
    steps = numbers.epoch(whole).steps
    made = loader(stores, epochs=2, skip_steps=[0, 2, steps, 100_000])
    found = numbers.epoch(made)
    assert (found.steps, found.steps_skipped) == (steps, 2)
    assert found.steps_of_run is not None
    assert found.steps_of_run - found.steps_of_run_skipped == len(list(made))
    (table,) = [
        piece for piece in layout.epoch(found) if piece.rows and piece.rows[0][0] == "steps"
    ]
    assert table.rows[0][1] == (
        f"{steps - 2} per epoch ({steps} steps without the 2 that skip_steps leaves out), "
        f"{2 * steps - 3} in the whole run (3 left out)"
    )


def test_shares_follow_weights(stores: dict[str, Any]) -> None:
    made = loader({"a": (stores["first"], 3), "b": (stores["second"], 1)}, mix_by="samples")
    found = numbers.epoch(made)
    assert [share.samples for share in found.shares] == pytest.approx([108, 40], abs=14)
    assert [source.weight for source in numbers.sources(made)] == ["3", "1"]
    shown = layout.epoch(found)[-1]
    assert shown.columns == ("dataset", "#samples", "#of samples", "#tokens", "#of tokens")
    assert [float(row[2].rstrip("%")) for row in shown.rows] == pytest.approx(
        [75, 25], abs=10
    )  # as the weights say


def test_a_packing_that_takes_nothing_has_no_fill(stores: dict[str, Any]) -> None:
    fit = numbers.fits(loader(stores), max_lengths=[16], packings=["best_fit"])[0]
    for rows, shown in ((0, "–"), (fit.rows, f"{fit.fill:.2%}")):
        (row,) = layout.fits([replace(fit, rows=rows)], chosen=(64, "none"))[1].rows
        assert row[4] == shown


def test_fits_are_what_such_a_loader_would_do(stores: dict[str, Any]) -> None:
    made = loader(stores, max_length=32)
    found = numbers.fits(made, max_lengths=[16, 64], packings=["none", "concat"])
    assert [(fit.max_length, fit.packing) for fit in found] == [
        (length, packing) for length in (16, 32, 64) for packing in ("mixed_fit", "none", "concat")
    ]
    for fit in found:
        there = numbers.epoch(loader(stores, max_length=fit.max_length, packing=fit.packing))
        assert (fit.rows, fit.steps, fit.fill) == (
            there.rows,
            there.steps,
            pytest.approx(there.fill),
        )
        assert fit.samples_dropped == there.counters.samples_dropped["overlong"]
    refused = numbers.fits(
        loader(stores, max_length=64, on_overlong="error"), max_lengths=[16], packings=["none"]
    )
    assert refused[0].problem and "max_length is 16" in refused[0].problem


@pytest.mark.parametrize("last_step", ["pad", "drop", "repeat", "wrap"])
def test_known_counters_save_a_packing_and_change_nothing(
    stores: dict[str, Any], last_step: str
) -> None:
    made = loader(stores, last_step=last_step, batch_size=7)
    known = numbers.epoch(made).counters
    assert numbers.fits(made, known=known) == numbers.fits(made)
    assert known == made.plan.count(0, 7)


@pytest.mark.parametrize(
    "options",
    [{}, {"world_size": 3}, {"packing": "none"}, {"on_overlong": "split", "max_length": 16}],
)
def test_a_record_lands_where_its_tokens_are(
    stores: dict[str, Any], options: dict[str, Any]
) -> None:
    made = loader(stores, pad_token_id=399, **options)
    ranks = [
        list(loader(stores, pad_token_id=399, **{**options, "rank": rank}))
        for rank in range(made.world.size)
    ]
    for source, name, row in ((0, "first", 17), (1, "second", 41), (0, "first", -1)):
        sample = stores[name][row]
        found = trace.record(made, row, source=source)
        assert found.where.endswith(f"{name}.jsonl:{sample.row + 1}") and found.sample == sample.row
        assert [token.id for token in found.tokens] == sample.input_ids.tolist()
        if not len(sample):
            assert found.landings == () and "dropped when it was prepared" in found.outcome
            continue
        assert json.loads(found.raw)["text"] == "".join(
            token.text for token in found.tokens
        ).removesuffix("<|endoftext|>")
        assert sum(landing.stop - landing.start for landing in found.landings) == len(sample), (
            found.outcome
        )
        for landing in found.landings:
            batch = ranks[landing.rank][landing.step]
            size = landing.stop - landing.start
            ids = batch["input_ids"][landing.row, landing.place : landing.place + size]
            assert ids.tolist() == sample.input_ids[landing.start : landing.stop].tolist()


def test_what_is_overlong_is_said_to_be(stores: dict[str, Any]) -> None:
    longest = int(np.argmax(stores["second"].lengths))
    assert trace.record(loader(stores, max_length=16), longest, source=1).outcome.startswith(
        "dropped as too long: "
    )
    cut = trace.record(loader(stores, max_length=16, on_overlong="truncate"), longest, source=1)
    assert cut.outcome.startswith("cut: 16 of ") and cut.landings[0].stop == 16


def test_a_row_is_drawn_as_its_batch_is_filled(stores: dict[str, Any]) -> None:
    made = loader(stores, align=8)
    batch = list(made)[3]
    for place in range(2):
        found = trace.row(loader(stores, align=8), 3, place)
        ids = [token.id if token.id >= 0 else 0 for token in found.tokens]
        assert ids == batch["input_ids"][place].tolist()
        labels = batch["labels"][place]
        assert found.trained == int((labels >= 0).sum()) and found.padding + found.used == 64
        assert [segment.where for segment in found.segments] == [
            str(where) for where, _, _ in batch.provenance[place]
        ]


def test_a_step_is_its_ranks(stores: dict[str, Any]) -> None:
    made = loader(stores, world_size=3)
    whole = trace.step(made, 2)
    assert len(whole.rows) == 6 and whole.num_real == 6
    for rank in range(3):
        mine = trace.step(made, 2, rank=rank)
        assert mine.rows == tuple(row for row in whole.rows if row.rank == rank)
        batch = list(loader(stores, world_size=3, rank=rank))[2]
        assert [[segment.where for segment in row.segments] for row in mine.rows] == [
            [str(where) for where, _, _ in spans] for spans in batch.provenance
        ]


def test_values_are_plain_json(stores: dict[str, Any]) -> None:
    made = loader(stores)
    for value in (
        numbers.sources(made),
        numbers.epoch(made),
        numbers.fits(made),
        trace.record(made, 3),
        trace.step(made, 0),
    ):
        assert json.loads(json.dumps(numbers.plain(value))) == numbers.plain(value)


def test_what_is_not_there_is_refused(stores: dict[str, Any], write_jsonl: Write) -> None:
    made = loader(stores)
    with pytest.raises(
        PlanError, match=r"record 120 does not exist: 'first' has 120 records, counted from 0"
    ):
        trace.record(made, 120)
    with pytest.raises(PlanError, match=r"step 9999 does not exist: the run has \d+ steps"):
        trace.step(made, 9999)
    with pytest.raises(
        PlanError,
        match=r"rank 1 does not exist: the loader has world size 1; ranks are counted from 0",
    ):
        trace.step(made, 0, rank=1)
    with pytest.raises(PlanError, match=r"row 2 does not exist: step 0 has 2 rows, counted from 0"):
        trace.row(made, 0, 2)
    state = json.loads(json.dumps((next(iter(made)), made.state_dict())[1]))
    resumed = loader(stores)
    resumed.load_state_dict(state)
    with pytest.raises(PlanError, match=r"step 0 is before step 1"):
        trace.step(resumed, 0)
    assert trace.step(resumed, 4).rows == trace.step(loader(stores), 4).rows
    records = ps.Loader(ps.open([{"a": 1}]), batch_size=1, rank=0, world_size=1)
    with pytest.raises(PlanError, match="plain records, which have no tokens"):
        numbers.sources(records)
