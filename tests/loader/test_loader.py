"""Batches hold what the plan says, and the state says how far they were handed over."""

import json
import threading
from collections import Counter

import numpy as np
import pytest

import penstock as ps
from penstock.engines import LocalEngine
from penstock.errors import PlanError, PlanMismatch, UnevenTail
from penstock.sources import open_source
from penstock.store import build
from penstock.templates import TextTemplate, open_tokenizer
from tests.raised import raises_code

from .arrays import Loader

WORDS = ["fox", "dog", "runs", "over", "away", "lazy", "home", "and"]


@pytest.fixture
def make_store(tokenizer_path, cache):
    def make(num_records: int, *, seed: int = 0, rows_per_shard: int = 40, name: str = "made"):
        rng = np.random.default_rng(seed)
        records = [
            {"text": " ".join(rng.choice(WORDS, rng.integers(0, 40)).tolist())}
            for _ in range(num_records)
        ]
        source = open_source(records, cache=cache, name=name)
        template = TextTemplate(open_tokenizer(tokenizer_path))
        return build(
            source, template, engine=LocalEngine(1), cache=cache, shard_rows=rows_per_shard
        )

    return make


def contents(batches) -> list:
    return [
        [tuple(span) for span in batch.rows[r].tolist()]
        for batch in batches
        for r in range(len(batch.rows))
    ]


def test_a_batch_holds_the_tokens_of_its_spans(make_store):
    store = make_store(300)
    for batch in Loader(store, batch_size=3, max_length=48, on_overlong="split"):
        assert batch["input_ids"].shape == batch["labels"].shape == (3, 48)
        for r in range(3):
            place = 0
            for number, (_, sample, start, stop) in enumerate(batch.rows[r].tolist()):
                ids = store[sample].input_ids[start:stop]
                end = place + len(ids)
                assert np.array_equal(batch["input_ids"][r, place:end], ids)
                assert batch["labels"][r, place] == -100  # never a target of the sample before it
                assert np.array_equal(batch["labels"][r, place + 1 : end], ids[1:])
                assert np.array_equal(batch["position_ids"][r, place:end], np.arange(len(ids)))
                assert (batch["seq_idx"][r, place:end] == number).all()
                assert r * 48 + place in batch["cu_seqlens"]
                place = end
            assert (batch["labels"][r, place:] == -100).all()
            assert (batch["seq_idx"][r, place:] == -1).all()
        assert batch["cu_seqlens"].dtype == np.int32
        assert batch["cu_seqlens"][0] == 0 and batch["cu_seqlens"][-1] == 3 * 48
        assert batch["max_seqlen"] == np.diff(batch["cu_seqlens"]).max()


def test_an_epoch_is_every_token_once_over_all_ranks(make_store):
    store = make_store(500)
    loaders = [
        Loader(store, batch_size=2, max_length=64, on_overlong="split", rank=r, world_size=3)
        for r in range(3)
    ]
    steps = [list(loader) for loader in loaders]
    assert {len(batches) for batches in steps} == {len(loaders[0])}
    spans = [span for batches in steps for row in contents(batches) for span in row]
    tokens = Counter((sample, t) for _, sample, start, stop in spans for t in range(start, stop))
    assert tokens == Counter((i, t) for i in range(len(store)) for t in range(len(store[i])))


@pytest.mark.parametrize("prefetch", [0, 1, 8])
def test_state_counts_what_was_handed_over_not_what_was_read_ahead(make_store, prefetch):
    store = make_store(400)
    options = {"batch_size": 2, "max_length": 64, "prefetch": prefetch, "epochs": 2}
    whole = contents(Loader(store, **options))
    loader = Loader(store, **options)
    states = [loader.state_dict()]
    states += [loader.state_dict() for _ in loader]
    assert len(states) == len(loader) + 1
    for done in (0, 1, 7, len(loader) // 2, len(loader) - 1, len(loader)):
        again = Loader(store, **options)
        state = json.loads(json.dumps(states[done]))
        assert state["step"] == done and len(json.dumps(state)) < 1024
        again.load_state_dict(state)
        assert again.state_dict() == states[done]
        assert contents(again) == whole[2 * done :]


def test_a_second_and_third_resume_under_other_worlds(make_store):
    store = make_store(600)
    whole = [row for row in contents(Loader(store, batch_size=5, max_length=64)) if row]
    seen, state = [], None
    for world_size, batch_size, steps in [(2, 3, 4), (3, 1, 5), (1, 4, 3), (2, 1, None)]:
        loaders = [
            Loader(store, batch_size=batch_size, max_length=64, rank=r, world_size=world_size)
            for r in range(world_size)
        ]
        iterators = []
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
            iterators.append(iter(loader))
        taken = 0
        while steps is None or taken < steps:
            batches = [next(iterator, None) for iterator in iterators]
            if batches[0] is None:
                assert batches == [None] * world_size
                break
            rows = {
                p: row
                for batch in batches
                for p, row in zip(batch.places, contents([batch]), strict=True)
            }
            seen += [rows[place] for place in range(world_size * batch_size)]
            taken += 1
        states = [loader.state_dict() for loader in loaders]
        assert all(other == states[0] for other in states)  # the same on every rank
        state = states[0]
        for iterator in iterators:
            iterator.close()
    assert [row for row in seen if row] == whole


def test_mixture_by_weight(make_store):
    stores = {"chat": (make_store(400, seed=1), 0.75), "math": (make_store(400, seed=2), 0.25)}
    loader = Loader(
        stores,
        batch_size=4,
        max_length=64,
        stopping_strategy="first_exhausted",
        on_overlong="split",
    )
    spans = [span for row in contents(loader) for span in row]
    samples = Counter(source for source, _, start, _ in spans if start == 0)
    assert abs(samples[0] / samples.total() - 0.75) < 0.02
    assert [source.name for source in loader.plan.sources] == ["chat", "math"]


def test_explain_names_the_lines_without_running(make_store):
    store = make_store(200)
    loader = Loader(store, batch_size=2, max_length=64, rank=0, world_size=2)
    other = Loader(store, batch_size=2, max_length=64, rank=1, world_size=2)
    for step, (mine, theirs) in enumerate(zip(loader, other, strict=True)):
        rows = Loader(store, batch_size=2, max_length=64, rank=0, world_size=2).explain(step)
        placed = [
            (place, row)
            for each in (mine, theirs)
            for place, row in zip(each.places, each.provenance, strict=True)
        ]
        assert rows == [row for _, row in sorted(placed, key=lambda each: each[0])]
        break
    where, start, stop = rows[0][0]
    assert start == 0 and stop > 0 and store.source[where.line - 1]["text"]
    with pytest.raises(PlanError, match="step 10000 does not exist: the run has"):
        loader.explain(10_000)


def test_a_foreign_or_damaged_state_is_refused(make_store):
    store = make_store(100)
    state = Loader(store, batch_size=2, max_length=64).state_dict()
    loader = Loader(store, batch_size=2, max_length=64)
    with pytest.raises(PlanMismatch, match="max_length 64 → 128"):
        Loader(store, batch_size=2, max_length=128).load_state_dict(state)
    with pytest.raises(PlanMismatch, match="content of source 'data' "):
        Loader(make_store(100, seed=9), batch_size=2, max_length=64).load_state_dict(state)
    with pytest.raises(PlanMismatch, match="version 1, this release reads version 3"):
        loader.load_state_dict({**state, "version": 1})
    with pytest.raises(PlanMismatch, match="not a Penstock state"):
        loader.load_state_dict({"epoch": 3})
    for key in state:
        with pytest.raises(PlanMismatch):
            loader.load_state_dict({k: v for k, v in state.items() if k != key})
    text = json.dumps(state)
    rng = np.random.default_rng(0)
    for _ in range(300):  # any flipped bit is either no JSON any more or refused
        damaged = bytearray(text.encode())
        damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(7)
        try:
            value = json.loads(damaged)
        except ValueError:
            continue
        if value != state:
            with pytest.raises(PlanMismatch):
                loader.load_state_dict(value)
    loader.load_state_dict(state)


def test_options_that_cannot_be_are_refused(make_store):
    store = make_store(50)
    for options, message in [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"epochs": -1}, "epochs is -1"),
        ({"output": "mlx"}, "output is 'mlx'"),
        ({"rank": 1}, "give both or neither"),
        ({"rank": 3, "world_size": 3}, "rank 3 of world size 3"),
        ({"packing": "ffd"}, "packing 'ffd' is not known"),
        ({"batch_size": 2.0}, "batch_size is 2.0"),
        ({"epochs": True}, "epochs is True"),
        ({"prefetch": -3}, "prefetch is -3"),
        ({"pakcing": "none"}, "no option 'pakcing'; did you mean 'packing'"),
        ({"weights": [1]}, "pass each weight with its store"),
    ]:
        with pytest.raises(PlanError, match=message):
            Loader(store, **{"batch_size": 2, "max_length": 64, **options})
    with pytest.raises(PlanError, match="a weight for all of its stores or for none"):
        Loader({"a": (store, 1.0), "b": store}, batch_size=2)
    with pytest.raises(UnevenTail, match="do not divide into steps"):
        Loader(store, batch_size=10_000, max_length=64, last_step="error")
    for nothing in ("data.jsonl", None, {"a": [store, 0.5]}, [store, 3]):
        with pytest.raises(PlanError, match=r"expected a Store from penstock\.prepare"):
            Loader(nothing, batch_size=2)
    with pytest.raises(PlanError, match="no stores given"):
        Loader([], batch_size=2)
    with pytest.raises(TypeError, match="endless"):
        len(Loader(store, batch_size=2, max_length=64, epochs=None))


def test_rank_and_world_size_come_from_the_environment(make_store, monkeypatch):
    store = make_store(50)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert Loader(store, batch_size=1, max_length=64).world.rank == 3
    assert Loader(store, batch_size=1, max_length=64, model_parallel_size=2).world.size == 2
    assert Loader(store, batch_size=1, max_length=64, rank=0, world_size=1).world.size == 1
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(PlanError, match="RANK=3, WORLD_SIZE=None; set both"):
        Loader(store, batch_size=1, max_length=64)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "many")
    with pytest.raises(PlanError, match="RANK='many'"):
        Loader(store, batch_size=1, max_length=64)


def test_an_error_while_reading_ahead_reaches_the_consumer(make_store):
    store = make_store(300)
    loader = Loader(store, batch_size=1, max_length=64, prefetch=4)
    iterator = iter(loader)
    next(iterator)
    for shard in store.cache.root.rglob("*.arrow"):
        shard.unlink()
    store._shards.clear()
    with pytest.raises(ps.errors.StoreError, match=r"No such file.*prepare the store again"):
        list(iterator)


def test_an_abandoned_iteration_leaves_no_thread(make_store):
    before = threading.active_count()
    loader = Loader(make_store(300), batch_size=1, max_length=64, prefetch=4)
    for _ in range(20):
        iterator = iter(loader)
        next(iterator)
        iterator.close()
    assert threading.active_count() == before


def test_steps_after_a_resume_with_another_size_are_counted_and_explained(make_store):
    store = make_store(400)
    before = Loader(store, batch_size=10, max_length=64)
    for batch in before:
        if batch.step == 4:
            break
    after = Loader(store, batch_size=np.int64(5), max_length=64)
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    batches = list(after)
    assert [batch.step for batch in batches] == list(range(5, len(after)))
    assert after.explain(7) == batches[2].provenance
    with pytest.raises(PlanError, match="before step 5, where this loader resumed"):
        after.explain(4)


def test_an_older_iteration_does_not_go_on_beside_a_newer_one(make_store):
    loader = Loader(make_store(200), batch_size=1, max_length=64)
    older = iter(loader)
    next(older)
    state = loader.state_dict()
    newer = iter(loader)
    assert next(newer).step == 1
    with raises_code("iteration_ended"):
        next(older)
    loader.load_state_dict(state)
    with raises_code("iteration_ended"):
        next(newer)
    assert next(iter(loader)).step == 1


def test_samples_that_are_dropped_behind_the_last_step_are_counted_and_said(
    write_jsonl, tokenizer_path, tmp_path, caplog
):
    """The blocks at the end of an epoch hold nothing but samples that are too long: no step begins in them."""
    texts = [{"text": "the dog" if row < 32 else "the dog " * 50} for row in range(64)]
    store = ps.prepare(
        write_jsonl(texts), tokenizer=tokenizer_path, template="text", cache_dir=tmp_path / "cache"
    )
    loader = Loader(
        store,
        batch_size=2,
        max_length=16,
        shuffle=False,
        block=16,
        epochs=2,
        output="numpy",
        max_dropped=1,
    )
    assert len(list(loader)) == len(loader)
    assert loader.counters == loader.plan.count(0, 2) + loader.plan.count(1, 2)
    assert (
        loader.counters.samples_dropped["overlong"] == 64 and "32 samples dropped (" in caplog.text
    )
    list(loader)  # the next pass counts on
    assert loader.counters.samples_in == 4 * 64


def test_what_the_plan_drops_is_counted_and_said(make_store, caplog):
    store = make_store(300)
    loader = Loader(store, batch_size=2, max_length=24, max_dropped=1)
    with caplog.at_level("INFO", logger="penstock"):
        handed = sum(int((batch["seq_idx"] >= 0).sum()) for batch in loader)
    counts = loader.counters
    assert counts.samples_dropped["overlong"] > 0 and handed == counts.tokens_out
    assert counts.tokens_in == counts.tokens_out + counts.tokens_dropped.total()
    assert "%): overlong" in caplog.text and "epoch 0 ends at step" in caplog.text
    with raises_code("no_step"):
        list(Loader(store, batch_size=2, max_length=1, on_overlong="drop"))


def test_the_warning_names_a_dropped_tail_if_nothing_else_is_dropped(make_store, caplog):
    store, options = make_store(100), {"max_length": 64, "last_step": "drop", "packing": "none"}
    rows = len(Loader(store, batch_size=1, **options))
    loader = Loader(store, batch_size=rows - 1, **options)
    assert len(list(loader)) == 1 and loader.counters.samples_dropped["last_step"] == 1
    assert "1 sample dropped (1.0%): last_step (of " in caplog.text
    assert "; last_step= decides this, see loader.counters" in caplog.text


def test_the_warning_names_the_settings_of_the_reasons_that_occurred(make_store, caplog):
    list(Loader(make_store(100), batch_size=2, max_length=24, max_dropped=1))
    assert "; on_overlong= and max_length= decide this, see loader.counters" in caplog.text


def test_asking_for_the_length_while_iterating_changes_nothing(make_store):
    """The thread that reads ahead and the caller learn lengths through the same caches."""
    stores = {
        "a": (make_store(900, seed=1, rows_per_shard=5), 0.5),
        "b": (make_store(900, seed=2, rows_per_shard=5), 0.5),
    }
    options = {
        "batch_size": 4,
        "max_length": 64,
        "mix_by": "tokens",
        "shuffle_window": 1,
        "block": 50,
        "on_overlong": "split",
    }
    whole = contents(Loader(stores, **options, prefetch=0))
    for _ in range(5):
        loader, seen = Loader(stores, **options, prefetch=8), []
        for batch in loader:
            seen += contents([batch])
            if batch.step == 0:
                assert len(loader) > 10
        assert seen == whole


def test_a_loader_can_seek_skip_and_stop_at_an_epochs_end(make_store):
    store = make_store(300)
    options = {"batch_size": 2, "max_length": 64, "epochs": 3}
    whole = list(Loader(store, **options))
    loader = Loader(store, **options)
    loader.seek(7)
    assert contents(loader) == contents(whole[7:])
    skipping = Loader(store, **options, skip_steps=[3, 4])
    assert [batch.step for batch in skipping] == [
        batch.step for batch in whole if batch.step not in (3, 4)
    ]
    by_epoch = Loader(store, **options, per_epoch=True)
    seen = []
    for epoch in range(3):
        by_epoch.set_epoch(epoch)
        expected = len(by_epoch)
        batches = list(by_epoch)
        assert len(batches) == expected
        seen += batches
    assert contents(seen) == contents(whole)


def test_metrics_before_the_first_batch_invent_no_number(make_store):
    """A relative of T2: the rows were said to be full before there was one."""
    metrics = Loader(make_store(4), batch_size=1, max_length=64).metrics
    found = metrics.as_dict()
    assert found["fill"] is found["row_length"]["mean"] is found["ranks"]["slowest"] is None


def test_metrics_add_up(make_store):
    stores = {"a": (make_store(200, seed=1), 1), "b": (make_store(200, seed=2), 1)}
    loader = Loader(stores, batch_size=3, max_length=64, on_overlong="split")
    batches = list(loader)
    metrics = loader.metrics.as_dict()
    tokens = sum(int((batch["seq_idx"] >= 0).sum()) for batch in batches)
    assert metrics["tokens"] == tokens == loader.counters.tokens_out
    assert metrics["trained_tokens"] == sum(int((batch["labels"] >= 0).sum()) for batch in batches)
    assert metrics["steps"] == len(batches) and metrics["rows"] == loader.counters.rows
    assert metrics["padding_tokens"] == sum(int((batch["seq_idx"] < 0).sum()) for batch in batches)
    assert (
        sum(metrics["shares"].values()) == pytest.approx(1) and 0.4 < metrics["shares"]["a"] < 0.6
    )
    assert (
        metrics["row_length"]["min"]
        <= metrics["row_length"]["mean"]
        <= metrics["row_length"]["max"]
        <= 64
    )
    assert json.loads(json.dumps(metrics)) == metrics


def test_every_rank_knows_what_all_ranks_were_given_in_a_step(make_store):
    """Without communication: the numbers are those of all ranks' own batches."""
    options = {
        "batch_size": 3,
        "max_length": 64,
        "cost_attention": 5,
        "cost_linear": 100,
    }
    ranks = [Loader(make_store(150), rank=rank, world_size=3, **options) for rank in range(3)]
    assert ranks[0].metrics.as_dict()["ranks"]["tokens"] == {"min": 0, "mean": 0.0, "max": 0}
    ratios = []
    for batches in zip(*ranks, strict=True):
        spans = [[(b - a) for _, _, a, b in batch.rows.spans.tolist()] for batch in batches]
        work = [sum(5 * n * n + 100 * n for n in sizes) for sizes in spans]
        ratios.append(max(work) / (sum(work) / 3))
        for loader in ranks if batches[0].step % 5 == 0 else ():
            found = loader.metrics.as_dict()["ranks"]
            assert found["cost"] == {
                "min": min(work),
                "mean": pytest.approx(sum(work) / 3),
                "max": max(work),
            }
            tokens = [sum(sizes) for sizes in spans]
            assert found["tokens"] == {
                "min": min(tokens),
                "mean": pytest.approx(sum(tokens) / 3),
                "max": max(tokens),
            }
            assert found["slowest"] == pytest.approx(sum(ratios) / len(ratios))


def test_records_are_served_by_the_same_plan(make_store):
    records = [{"n": n, "text": f"record {n}"} for n in range(50)]
    source = ps.open(records)
    loaders = [Loader(source, batch_size=3, rank=r, world_size=2) for r in range(2)]
    seen = [record["n"] for loader in loaders for batch in loader for record in batch["records"]]
    assert sorted(seen) == list(range(50)) and seen != list(range(50))
    assert len(loaders[0]) == len(list(Loader(source, batch_size=3, rank=1, world_size=2)))
    texts = list(Loader(source, batch_size=4, shuffle=False, collate=lambda r: [x["n"] for x in r]))
    assert [n for batch in texts for n in batch] == list(range(50))
    loader = Loader(source, batch_size=4)
    for batch in loader:
        if batch.step == 5:
            break
    again = Loader(source, batch_size=4)
    again.load_state_dict(loader.state_dict())
    rest = [record["n"] for batch in again for record in batch["records"]]
    assert len(rest) == 50 - 24
