"""H1: a stream is trained while it is read: on its prefix, in the order of the whole, resumed from a journal, and within a limit."""

import itertools
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import PlanError, PlanMismatch, SourceError
from penstock.sources import stream as stream_module
from tests.policy import first_in_short_runs

from .arrays import Loader

ORDERS: list[dict[str, Any]] = [{"shuffle": False}, {"shuffle_window": 1}, {"shuffle_window": 3}]
IDS = ["in order", "window 1", "window 3"]


class Counting:
    """A function that yields records, and counts how many were taken."""

    def __init__(self, total: int | None = None, start_word: str = "fox") -> None:
        self.total = total
        self.word = start_word
        self.taken = 0
        self.calls = 0

    def __call__(self) -> Iterator[dict[str, Any]]:
        self.calls += 1
        for n in itertools.count() if self.total is None else range(self.total):
            self.taken += 1
            yield {"n": n, "text": f"{self.word} {n} " * (1 + n % 7)}


def numbers(batch: Any) -> list[int]:
    return [record["n"] for record in batch["records"]]


@pytest.fixture
def prepare(tmp_path: Path, tokenizer_path: Path) -> Callable[..., Any]:
    def make(stream: Any, **options: Any) -> Any:
        usual = {"tokenizer": tokenizer_path, "template": "text", "num_proc": 1}
        folder = {"cache_dir": tmp_path / "cache", "progress": "none"}
        return ps.prepare(stream, **{**usual, **folder, **options})

    return make


def tokens(store: Any, **options: Any) -> Loader:
    return Loader(store, **{"batch_size": 4, "max_length": 64, "on_overlong": "split", **options})


@pytest.mark.parametrize("order", ORDERS, ids=IDS)
def test_an_endless_stream_is_trained_on_its_prefix(order: dict[str, Any]) -> None:
    """H1: it was read without end before the first batch, also with shuffle=False and shuffle_window=1."""
    stream = Counting()
    source = ps.open(stream)
    assert stream.taken == 0
    loader = Loader(source, batch_size=8, **order)
    batches = iter(loader)
    next(batches)
    assert stream.taken <= 256 * (1 + 2 + 4)  # the shards of a window: they begin small and double
    seen = [number for _ in range(300) for number in numbers(next(batches))]
    assert len(set(seen)) == len(seen) == 2400 and stream.taken < 17_000
    batches.close()


@pytest.mark.parametrize("order", ORDERS, ids=IDS)
def test_tokens_of_an_endless_stream_are_trained_on_its_prefix(
    order: dict[str, Any], prepare: Callable[..., Any]
) -> None:
    """H1, with background=True, which still read the stream to its end."""
    stream = Counting()
    store = prepare(stream, background=True, template="auto")
    assert stream.taken <= 200  # rows that a template is detected from
    batches = iter(tokens(store, **order))
    assert next(batches)["input_ids"].shape == (4, 64)
    assert stream.taken <= 256 * (1 + 2 + 4) + 64  # rows are looked at 64 at a time
    batches.close()


@pytest.mark.parametrize("count", [255, 256, 1500])
def test_tokens_of_a_generator_object_are_trained_while_it_is_read(
    count: int, prepare: Callable[..., Any]
) -> None:
    """Only functions were: a generator of 256 records or more was refused as "sent to another process", which it was not."""
    counting = Counting(count)
    loader = tokens(prepare(counting(), background=True), shuffle=False)
    batches = iter(loader)
    ids = [next(batches)["input_ids"].tolist()]
    assert counting.taken <= 256 * (1 + 2) + 64
    ids += [batch["input_ids"].tolist() for batch in batches]
    whole = tokens(prepare(Counting(count)), shuffle=False)
    assert ids == [batch["input_ids"].tolist() for batch in whole]
    assert loader.counters.samples_out == count


@pytest.mark.parametrize("count", [1, 255, 256, 257, 768, 3000])
@pytest.mark.parametrize("order", ORDERS, ids=IDS)
def test_the_order_does_not_depend_on_how_much_was_read(
    count: int, order: dict[str, Any], tmp_path: Path
) -> None:
    """Laws 1 and 2: every record once, and the same order whether the stream was read before or while it is trained."""
    streamed = [numbers(batch) for batch in Loader(ps.open(Counting(count)), batch_size=8, **order)]
    source = ps.open(Counting(count))
    assert len(source) == count
    whole = Loader(source, batch_size=8, **order)
    assert [numbers(batch) for batch in whole] == streamed and len(whole) == len(streamed)
    assert sorted(n for batch in streamed for n in batch) == list(range(count))
    assert whole.counters.samples_out == count


@pytest.mark.parametrize("packing", ["best_fit", "concat"])
@pytest.mark.parametrize("order", ORDERS, ids=IDS)
def test_a_store_that_was_prepared_ahead_gives_the_same_batches(
    packing: str, order: dict[str, Any], prepare: Callable[..., Any], tmp_path: Path
) -> None:
    """Law 1 for tokens: preparing ahead and streaming are the same store and the same batches."""
    options: dict[str, Any] = {**order, "packing": packing}
    if packing == "concat":
        options["on_overlong"] = "drop"
    streamed = list(tokens(prepare(Counting(1500), background=True), **options))
    ahead = prepare(Counting(1500), cache_dir=tmp_path / "other")
    whole = list(tokens(ahead, **options))
    assert len(streamed) == len(whole) > 100
    for one, other in zip(streamed, whole, strict=True):
        assert np.array_equal(one["input_ids"], other["input_ids"])
        assert np.array_equal(one["labels"], other["labels"])
    later = prepare(Counting(1500), background=True).wait()
    assert later.fingerprint == ahead.fingerprint and later.counts == ahead.counts


@pytest.mark.parametrize("order", first_in_short_runs(ORDERS), ids=IDS)
def test_a_state_resumes_on_other_ranks_in_the_same_order(order: dict[str, Any]) -> None:
    """Law 3: cut anywhere; another process opens the stream again, on another number of ranks."""
    whole = [numbers(batch) for batch in Loader(ps.open(Counting(2000)), batch_size=6, **order)]
    flat = [n for batch in whole for n in batch]
    for cut in (0, 1, 43, 128, 200, len(whole)):
        begun = Loader(ps.open(Counting(2000)), batch_size=6, **order)
        batches = iter(begun)
        for _ in range(cut):
            next(batches)
        state = json.loads(json.dumps(begun.state_dict()))
        batches.close()
        found: list[list[list[int]]] = []
        for rank in range(3):
            rest = Loader(ps.open(Counting(2000)), batch_size=2, rank=rank, world_size=3, **order)
            rest.load_state_dict(state)
            found.append([numbers(batch) for batch in rest])
        assert len({len(each) for each in found}) == 1  # law 4
        steps = [sorted(n for share in step for n in share) for step in zip(*found, strict=True)]
        expected = flat[6 * cut :]
        assert steps == [sorted(expected[at : at + 6]) for at in range(0, len(expected), 6)]


def test_the_state_of_another_stream_is_refused() -> None:
    """Law 8: what the run has used of the stream is in the state, as a digest."""
    begun = Loader(ps.open(Counting(2000)), batch_size=8, shuffle=False)
    next(iter(begun))
    state = begun.state_dict()
    assert state["journal"]["stream"][0] == 1 and len(json.dumps(state)) < 600
    with pytest.raises(PlanMismatch, match="the first 1 shards of the stream hold other records"):
        Loader(ps.open(Counting(2000, "dog")), batch_size=8, shuffle=False).load_state_dict(state)
    with pytest.raises(PlanMismatch, match="has used 1 shards of the stream, and it has fewer"):
        Loader(ps.open(Counting(0)), batch_size=8, shuffle=False).load_state_dict(state)
    with pytest.raises(PlanMismatch, match="belongs to plan"):
        Loader(ps.open(Counting(2000)), batch_size=8, shuffle_window=2).load_state_dict(state)
    files = Loader(ps.open([{"n": 1}]), batch_size=8, shuffle=False)
    with pytest.raises(PlanMismatch):
        files.load_state_dict(state)
    with pytest.raises(PlanMismatch):
        begun.load_state_dict(files.state_dict())


JOB = """
import json, os, sys
import penstock as ps
from tests.loader.test_stream_sources import Counting

folder = sys.argv[1]
source = ps.open(Counting(5000), name="numbers", version=1, cache_dir=f"{folder}/cache")
loader = ps.Loader(source, batch_size=8, shuffle_window=2, output="numpy")
for batch in loader:
    if loader.state_dict()["step"] == 60:
        with open(f"{folder}/state.json", "w") as file:
            json.dump(loader.state_dict(), file)
        os._exit(9)
"""


def test_after_a_kill_the_stream_is_read_again_and_goes_on_where_it_was(tmp_path: Path) -> None:
    """The journal names what was read."""
    job = subprocess.run([sys.executable, "-c", JOB, tmp_path], check=False)
    assert job.returncode == 9
    stream = Counting(5000)
    source = ps.open(stream, name="numbers", version=1, cache_dir=tmp_path / "cache")
    loader = Loader(source, batch_size=8, shuffle_window=2)
    loader.load_state_dict(json.loads((tmp_path / "state.json").read_text()))
    assert stream.calls == 1
    rest = [numbers(batch) for batch in loader]
    whole = [
        numbers(batch) for batch in Loader(ps.open(Counting(5000)), batch_size=8, shuffle_window=2)
    ]
    assert rest == whole[60:]


def test_every_pass_over_a_stream_has_all_of_it() -> None:
    both = Loader(ps.open(Counting(900)), batch_size=9, shuffle_window=2, epochs=2)
    seen = [n for batch in both for n in numbers(batch)]
    assert sorted(seen[:900]) == sorted(seen[900:]) == list(range(900))
    assert seen[:900] != seen[900:]


def test_what_needs_the_end_of_a_stream_is_refused_by_name(prepare: Callable[..., Any]) -> None:
    source = ps.open(Counting())
    loader = Loader(source, batch_size=8, shuffle=False)
    with pytest.raises(TypeError, match="the number of steps of a stream is not known"):
        len(loader)
    for last_step in ("repeat", "wrap", "error"):
        with pytest.raises(PlanError, match=f"last_step='{last_step}' needs the number of rows"):
            Loader(source, batch_size=8, shuffle=False, last_step=last_step)
    with pytest.raises(PlanError, match="the mixture of a run over a stream cannot change"):
        loader.change_mixture(ps.open([{"n": 1}]))
    store = prepare(Counting(), background=True)
    with pytest.raises(
        PlanError, match=r"shuffles the whole stream together.*pass shuffle_window=16"
    ):
        tokens(store)
    with pytest.raises(PlanError, match="a mixture needs the number of its samples"):
        tokens({"a": (store, 0.5), "b": (prepare([{"text": "a fox"}]), 0.5)}, shuffle_window=2)
    loader.seek(7)
    assert numbers(next(iter(loader))) == list(range(56, 64))
    assert loader.explain(3)[0][0][0].line == 25


def test_an_endless_stream_never_fills_the_disk(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: it was written to the cache without end and without a word."""
    monkeypatch.setattr(stream_module, "_SAY_SECONDS", 0.0)
    limit = 200_000
    endless = ps.open(Counting(), spool_bytes=limit)
    refusal = f"has not ended; pass spool_bytes={2 * limit} to"
    with caplog.at_level(logging.WARNING, "penstock"), pytest.raises(SourceError, match=refusal):
        Loader(endless, batch_size=8)  # shuffles all of it
    assert (
        "the stream is read to its end, because the number of its records is needed" in caplog.text
    )
    with pytest.raises(SourceError, match="has not ended"):
        list(Loader(ps.open(Counting(), spool_bytes=limit), batch_size=8, shuffle=False))
    assert len(ps.open(Counting(), spool_bytes=limit)[:1000]) == 1000
    with pytest.raises(SourceError, match="spool_bytes is 0, expected a number of bytes"):
        ps.open(Counting(), spool_bytes=0)
