"""Batches of pairs, judged answers, judged steps and prompts: every sequence is a row, on any rank, resumed or not."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.cache import Cache
from penstock.engines import LocalEngine
from penstock.errors import PlanError
from penstock.extras.trainers.sequences import PAIRS_KIND
from penstock.fingerprint import digest
from penstock.loader.kind import BatchSettings
from penstock.loader.layout import BatchForm
from penstock.plan import PlanSettings
from penstock.report import numbers
from penstock.report import text as layout
from penstock.sources import ListSource
from penstock.store import Store, build
from penstock.store.verify import verify
from penstock.testing import check_resume
from penstock.types import (
    DESIRABLE,
    MARGIN,
    PROMPT_LENGTHS,
    SEQUENCE_LENGTHS,
    STEP_LABELS,
    Column,
    Samples,
    Values,
)

Rows = list[dict[str, Any]]
PAD = 999


class Sequences:
    """A record's lists are its sequences, of which the first `prompt` tokens are not trained.  Picklable, for workers."""

    vocab_size = 1000

    def __init__(self, *columns: Column) -> None:
        self.columns = columns

    def identity(self) -> dict[str, Any]:
        return {"template": "sequences"}

    def encode(self, records: Any) -> Samples:
        rows = list(records)
        flat = [sequence for row in rows for sequence in row["sequences"]]
        ids = np.array([token for sequence in flat for token in sequence], np.uint32)
        mask = [np.arange(len(own)) >= row["prompt"] for row in rows for own in row["sequences"]]
        counts = np.cumsum([0, *(len(row["sequences"]) for row in rows)])
        steps = np.where(ids % 3 == 0, 1, -100).astype(np.int8)
        found = {
            SEQUENCE_LENGTHS: Values(
                np.array([len(sequence) for sequence in flat], np.int32), counts
            ),
            PROMPT_LENGTHS: Values(
                np.array([len(sequence) for sequence in flat], np.int32), counts
            ),
            DESIRABLE: Values(np.array([row["label"] for row in rows], np.int8)),
            MARGIN: Values(np.array([row["label"] / 4 for row in rows], np.float32)),
            STEP_LABELS: Values(steps),
        }
        return Samples(
            input_ids=ids,
            loss_mask=np.concatenate([np.zeros(0, np.bool_), *mask]),
            offsets=np.cumsum([0, *(sum(map(len, row["sequences"])) for row in rows)]),
            columns={column.name: found[column] for column in self.columns},
        )

    def decode(self, input_ids: Any) -> str:
        return " ".join(map(str, input_ids))


def make_rows(count: int, sequences: int) -> Rows:
    rng = np.random.default_rng(5)
    rows = []
    for number in range(count):
        prompt = int(rng.integers(1, 9))
        sizes = prompt + rng.integers(1, 20, sequences)
        own = [rng.integers(1, 900, size).tolist() for size in sizes]
        rows.append({"sequences": own, "prompt": prompt, "label": number % 3, "number": number})
    return rows


COLUMNS = {
    "pairs": (SEQUENCE_LENGTHS, MARGIN),
    "judged answers": (SEQUENCE_LENGTHS, DESIRABLE),
    "prompts": (PROMPT_LENGTHS,),
    "judged steps": (STEP_LABELS,),
}


def make(cache: Cache, kind: str, count: int = 40) -> tuple[Store, Rows]:
    rows = make_rows(count, 2 if kind == "pairs" else 1)
    template = Sequences(*COLUMNS[kind])
    return build(ListSource(rows), template, engine=LocalEngine(1), cache=cache, shard_rows=7), rows


def open_loader(store: Store, **options: Any) -> ps.Loader:
    usual = {
        "batch_size": 4,
        "max_length": 64,
        "packing": "none",
        "output": "numpy",
        "pad_token_id": PAD,
        "seed": 1,
    }
    return ps.Loader(store, **{**usual, **options})


def padded(rows: list[list[int]], value: int, width: int | None = None) -> list[list[int]]:
    most = width or max(map(len, rows))
    return [row + [value] * (most - len(row)) for row in rows]


def expected(kind: str, rows: Rows) -> dict[str, Any]:
    """What trl's collators make, written down naively."""
    order = [[row["sequences"][side] for row in rows] for side in range(len(rows[0]["sequences"]))]
    flat = [sequence for side in order for sequence in side]
    prompts = [row["prompt"] for _ in order for row in rows]
    made = {
        "input_ids": padded(flat, PAD),
        "attention_mask": padded([[1] * len(each) for each in flat], 0),
    }
    if kind in ("pairs", "judged answers"):
        made["completion_mask"] = padded(
            [
                [0] * prompt + [1] * (len(each) - prompt)
                for each, prompt in zip(flat, prompts, strict=True)
            ],
            0,
        )
    if kind == "pairs":
        made["margin"] = [row["label"] / 4 for row in rows]
    if kind == "judged answers":
        answers = [row["sequences"][0][row["prompt"] :] for row in rows]
        asked = [row["sequences"][0][: row["prompt"]] for row in rows]
        mixed = [(prompt, answers[place - 1]) for place, prompt in enumerate(asked)]
        made["KL_input_ids"] = padded([prompt + answer for prompt, answer in mixed], PAD)
        made["KL_attention_mask"] = padded(
            [[1] * len(prompt + answer) for prompt, answer in mixed], 0
        )
        made["KL_completion_mask"] = padded(
            [[0] * len(prompt) + [1] * len(answer) for prompt, answer in mixed], 0
        )
        made["label"] = [bool(row["label"]) for row in rows]
    if kind == "judged steps":
        made["labels"] = padded(
            [[1 if token % 3 == 0 else -100 for token in each] for each in flat], -100
        )
    return made


def check_batch(kind: str, batch: Any, rows: Rows) -> None:
    mine = [rows[sample] for sample in batch.rows.spans["sample"].tolist()]
    true = expected(kind, mine)
    assert sorted(batch) == sorted(true)
    for name, value in true.items():
        assert batch[name].tolist() == value, name
        assert batch[name].dtype == {"label": np.bool_, "margin": np.float32}.get(name, np.int64)


@pytest.mark.parametrize("kind", COLUMNS)
def test_every_sequence_is_a_row_in_trls_order(cache: Cache, kind: str) -> None:
    store, rows = make(cache, kind)
    loader = open_loader(store)
    batches = list(loader)
    assert loader.kind == kind and len(batches) == 10
    for batch in batches:
        check_batch(kind, batch, rows)
    seen = sorted(sample for batch in batches for sample in batch.rows.spans["sample"].tolist())
    assert seen == list(range(40))


def test_the_store_of_pairs_knows_the_longer_sequence_of_each(cache: Cache) -> None:
    store, rows = make(cache, "pairs")
    longest = [max(map(len, row["sequences"])) for row in rows]
    assert store.longest.tolist() == longest
    assert store.longest_of(np.array([7, 3])).tolist() == [longest[7], longest[3]]
    assert store.lengths.tolist() == [sum(map(len, row["sequences"])) for row in rows]
    assert not verify(store).problems
    answers, _ = make(cache, "judged answers")
    assert answers.longest.tolist() == answers.lengths.tolist()


def test_a_store_of_pairs_without_its_longer_sequences_is_completed(cache: Cache) -> None:
    """As stores of earlier versions are: their file of lengths ends with the lengths of samples."""
    _, rows = make(cache, "pairs")
    (path,) = cache.root.glob("stores/*/*.lengths")
    data = path.read_bytes()
    half = data[: (len(data) - 16) // 2]
    path.unlink()
    path.write_bytes(half + bytes.fromhex(digest(half)))
    again, _ = make(cache, "pairs")
    assert path.read_bytes() == data
    assert again.longest.tolist() == [max(map(len, row["sequences"])) for row in rows]


@pytest.mark.parametrize("kind", COLUMNS)
def test_the_last_batch_is_shorter_and_ranks_share_a_step(cache: Cache, kind: str) -> None:
    store, rows = make(cache, kind, 28)
    one = [batch.rows.spans["sample"].tolist() for batch in open_loader(store, batch_size=8)]
    assert [len(samples) for samples in one] == [8, 8, 8, 4]
    ranks = [list(open_loader(store, rank=rank, world_size=2)) for rank in range(2)]
    for samples, *both in zip(one, *ranks, strict=True):
        for batch in both:
            check_batch(kind, batch, rows)  # answers are mixed within a rank's own batch
            assert batch.rows.spans["sample"].tolist() == [
                samples[place] for place in batch.places if place < len(samples)
            ]
        assert sorted(place for batch in both for place in batch.places) == list(range(8))


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_run_is_resumed_on_any_number_of_ranks(cache: Cache, kind: str) -> None:
    """Where a rank would have too few rows of the last step, the loader says so; with last_step="drop" there is no such step."""
    store, _ = make(cache, kind, 36)
    options = (
        {"last_step": "drop", "epochs": 2}
        if kind == "judged answers"
        else {"last_step": "wrap", "epochs": 2}
    )

    def start(rank: int, size: int) -> ps.Loader:
        return open_loader(store, rank=rank, world_size=size, batch_size=2, **options)

    check_resume(start, cuts=5, world_sizes=(1, 2))


def test_tensors_are_torchs_and_tokens_are_counted(cache: Cache) -> None:
    store, rows = make(cache, "judged answers")
    batch = next(iter(open_loader(store, output="torch")))
    check_batch(
        "judged answers",
        type(batch)({name: value.numpy() for name, value in batch.items()}, batch.share, [], 0),
        rows,
    )
    mine = [rows[sample] for sample in batch.rows.spans["sample"].tolist()]
    assert batch.trained == sum(len(row["sequences"][0]) - row["prompt"] for row in mine)
    assert [len(spans) for spans in batch.provenance] == [1] * 4


def test_prompts_are_padded_on_the_left_for_generation(cache: Cache) -> None:
    store, rows = make(cache, "prompts")
    batch = next(iter(open_loader(store, pad_side="left")))
    flat = [rows[sample]["sequences"][0] for sample in batch.rows.spans["sample"].tolist()]
    most = max(map(len, flat))
    assert batch["input_ids"].tolist() == [[PAD] * (most - len(each)) + each for each in flat]
    assert batch["attention_mask"].sum() == sum(map(len, flat)) and set(batch) == {
        "input_ids",
        "attention_mask",
    }
    assert batch.trained == 0


def test_rows_are_padded_as_asked(cache: Cache) -> None:
    store, _ = make(cache, "pairs")
    assert next(iter(open_loader(store, padding="max_length")))["input_ids"].shape == (8, 64)
    assert next(iter(open_loader(store, pad_to_multiple_of=16)))["input_ids"].shape[1] % 16 == 0


def test_what_is_too_long_is_dropped_and_counted_and_a_mixed_answer_is_cut_as_trl_does(
    cache: Cache,
) -> None:
    store, rows = make(cache, "judged answers")
    loader = open_loader(store, max_length=20, last_step="drop")
    batches = list(loader)
    short = [number for number, row in enumerate(rows) if len(row["sequences"][0]) <= 20]
    assert loader.counters.samples_dropped["overlong"] == 40 - len(short)
    assert all(batch["KL_input_ids"].shape[1] <= 20 for batch in batches)
    cut = 0
    for batch in batches:
        mine = [rows[sample] for sample in batch.rows.spans["sample"].tolist()]
        for place, row in enumerate(mine):
            other = mine[place - 1]
            mixed = row["sequences"][0][: row["prompt"]] + other["sequences"][0][other["prompt"] :]
            size = int(batch["KL_attention_mask"][place].sum())
            assert batch["KL_input_ids"][place, :size].tolist() == mixed[:20]
            cut += len(mixed) > 20
    assert cut


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (
            "pairs",
            {"packing": "best_fit"},
            "packs several samples, but each sequence of pairs needs its own row",
        ),
        (
            "pairs",
            {"on_overlong": "truncate"},
            "on_overlong='truncate' cuts samples, and column 'sequence_lengths' is a list",
        ),
        (
            "judged steps",
            {"on_overlong": "split"},
            "on_overlong='split' would cut judged steps; choose on_overlong='drop'",
        ),
        ("pairs", {"padding_free": True}, "padding_free=True has no effect on batches of pairs"),
        ("pairs", {"labels": "shifted"}, "labels='shifted' has no effect on batches of pairs"),
        (
            "prompts",
            {"attention_mask": "none"},
            "attention_mask='none' has no effect on batches of prompts",
        ),
        ("pairs", {"pad_side": "left"}, "batches of pairs are padded on the right"),
        ("pairs", {"align": 8}, "align=8 has no effect on batches of pairs"),
        (
            "judged answers",
            {"batch_size": 1},
            "this batch has only one row; set batch_size to 2 or more",
        ),
        (
            "judged answers",
            {"batch_size": 13},
            "the last step has 1 of 13 rows; for judged answers, every rank must get",
        ),
        ("pairs", {"world_size": 3, "rank": 0, "batch_size": 8}, "has 16 of 24 rows on 3 ranks"),
        (
            "pairs",
            {"world_size": 3, "rank": 0, "last_step": "wrap", "batch_size": 6, "epochs": 2},
            "last_step='wrap': the last step has 8 of 18",
        ),
        (
            "pairs",
            {"world_size": 8, "rank": 0, "batch_size": 2, "max_length": 19},
            "choose last_step='drop'",
        ),
    ],
)
def test_what_cannot_be_right_is_refused_by_name(
    cache: Cache, kind: str, options: dict[str, Any], said: str
) -> None:
    store, _ = make(cache, kind)
    with pytest.raises(PlanError) as error:
        open_loader(store, **options)
    assert said in str(error.value)


@pytest.mark.parametrize("kind", COLUMNS)
def test_numbers_show_what_such_a_loader_takes_and_delivers(cache: Cache, kind: str) -> None:
    loader = open_loader(make(cache, kind)[0], batch_size=6)
    *_, last_batch = loader
    assert len(last_batch["input_ids"]) == (40 % 6) * (
        2 if kind == "pairs" else 1
    )  # no row is added
    found = numbers.epoch(loader)
    assert (found.last_step_rows, found.counters.rows_padded) == (40 % 6, 0)
    last = next(row for row in layout.epoch(found)[1].rows if row[0] == "last step")
    assert last[1] == "4 of 6 rows, a shorter batch: no row is added (last_step: pad)"
    assert {fit.packing for fit in numbers.fits(loader)} == {"none"}


def test_other_columns_are_carried_or_refused(cache: Cache) -> None:
    rows = make_rows(8, 3)
    three = build(ListSource(rows), Sequences(SEQUENCE_LENGTHS), engine=LocalEngine(1), cache=cache)
    with pytest.raises(
        PlanError,
        match="sequence_lengths must be 2 lengths whose sum is the number of its tokens; fix the template",
    ):
        next(iter(open_loader(three)))
    steps = build(
        ListSource(rows),
        Sequences(SEQUENCE_LENGTHS, STEP_LABELS, DESIRABLE),
        engine=LocalEngine(1),
        cache=cache,
    )
    assert open_loader(steps).kind == "judged answers"
    weights = Column(name="other", dtype="int8", per="token")
    with pytest.raises(
        PlanError,
        match="column 'other' has values per token, but batches of pairs can carry only columns per sample",
    ):
        PAIRS_KIND.check(
            BatchSettings(
                order=PlanSettings(max_length=8, packing="none"),
                form=BatchForm(),
                columns=(SEQUENCE_LENGTHS, weights),
                batch_size=2,
                prefetch=0,
                collate=None,
            )
        )


def test_a_loaded_state_with_another_batch_size_is_checked_again(cache: Cache) -> None:
    store, _ = make(cache, "judged answers")
    loader = open_loader(store)
    next(iter(loader))
    state = loader.state_dict()
    other = open_loader(store, batch_size=5)
    with pytest.raises(PlanError, match="the last step has 1 of 5 rows"):
        other.load_state_dict(state)


def test_a_store_of_other_samples_in_the_mixture_is_refused(cache: Cache) -> None:
    pairs, _ = make(cache, "pairs")
    answers, _ = make(cache, "judged answers")
    with pytest.raises(PlanError, match="has no column"):
        open_loader({"pairs": pairs, "answers": answers})
    steps, _ = make(cache, "judged steps")
    others = build(ListSource(make_rows(8, 1)), Sequences(), engine=LocalEngine(1), cache=cache)
    with pytest.raises(PlanError, match="store 'others' has no judged steps"):
        open_loader({"steps": steps, "others": others})


class Gated(Sequences):
    """Waits for a file before it encodes any but the first rows, so that a store stays unfinished."""

    def __init__(self, gate: Path, *columns: Column) -> None:
        super().__init__(*columns)
        self._gate = gate

    def encode(self, records: Any) -> Samples:
        rows = list(records)
        while any(row["number"] >= 7 for row in rows) and not self._gate.exists():
            time.sleep(0.01)
        return super().encode(rows)


def test_a_store_that_is_being_made_needs_a_tail_that_fills_or_drops(
    cache: Cache, tmp_path: Path
) -> None:
    rows = make_rows(40, 2)
    template = Gated(tmp_path / "gate", *COLUMNS["pairs"])
    store = build(
        ListSource(rows),
        template,
        engine=LocalEngine(1, inline=False),
        cache=cache,
        shard_rows=7,
        background=True,
    )
    with pytest.raises(PlanError, match="the number of rows in the last step is not known"):
        open_loader(store, shuffle=False)
    loader = open_loader(store, shuffle=False, last_step="drop")
    (tmp_path / "gate").touch()
    for batch in loader:
        check_batch("pairs", batch, rows)
