"""Prompts of a stream: given while it is read, in the order of a Loader over it, counted, resumed, and refused where its end is needed."""

import json
import random
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import BadRecord, PlanError, PlanMismatch

COUNT = 700


def endless() -> Iterator[dict[str, Any]]:
    for n in count():
        yield {"n": n, "prompt": f"question {n}"}


def finite() -> Iterator[dict[str, Any]]:
    for n in range(COUNT):
        yield {"n": n}


def numbers(prompts: list[Any]) -> list[int]:
    return [prompt.record["n"] for prompt in prompts]


@pytest.mark.parametrize("order", [{"shuffle": False}, {"shuffle_window": 2, "seed": 5}])
def test_prompts_come_in_the_order_of_a_loader_and_read_no_more_than_they_need(
    order: dict[str, Any],
) -> None:
    source: Any = ps.open(endless)
    prompts = ps.Prompts(source, **order)
    taken = numbers(prompts.take(100))
    assert source.num_known < 1000
    loader = ps.Loader(
        ps.open(endless, name="endless"),
        batch_size=100,
        collate=lambda records: {"n": [record["n"] for record in records]},
        prefetch=0,
        **order,
    )
    batch = next(iter(loader))
    if order == {"shuffle": False}:
        assert taken == list(range(100)) == batch["n"]
    else:
        assert sorted(taken) != list(range(100)) and len(set(taken)) == 100
    prompt = prompts.take(1)[0]
    assert prompt.epoch == 0 and prompt.where.line == prompt.record["n"] + 1


def test_a_stream_that_ends_gives_each_prompt_once() -> None:
    prompts = ps.Prompts(ps.open(finite), shuffle_window=2)
    taken = prompts.take(COUNT - 10)
    assert prompts.counts["total"] is None
    taken += prompts.take(50)
    assert sorted(numbers(taken)) == list(range(COUNT)) and prompts.take(1) == []
    assert prompts.counts["total"] == COUNT and not prompts.finished
    prompts.done(taken)
    assert prompts.finished


@given(st.integers(0, 10_000), st.sampled_from([{"shuffle_window": 2}, {"shuffle": False}]))
@settings(max_examples=15, deadline=None)
def test_every_prompt_is_given_once_over_any_history_of_stops(
    history: int, order: dict[str, Any]
) -> None:
    chance = random.Random(history)

    def open_prompts() -> Any:
        return ps.Prompts(ps.open(finite), filter=lambda record: record["n"] % 3 > 0, **order)

    prompts = open_prompts()
    trained: list[int] = []
    while not prompts.finished:
        taken = prompts.take(chance.randint(50, 400))
        num_done = chance.randint(0, len(taken))
        prompts.done(taken[:num_done])
        trained += numbers(taken[:num_done])
        if chance.random() < 0.5:
            state = json.loads(json.dumps(prompts.state_dict()))
            prompts = open_prompts()
            prompts.load_state_dict(state)
        else:
            prompts.back(taken[num_done:])
    assert sorted(trained) == [n for n in range(COUNT) if n % 3]
    assert prompts.counts["dropped"] == {"filter": len([n for n in range(COUNT) if not n % 3])}


def _changed_at(row: int) -> Callable[[], Iterator[dict[str, Any]]]:
    def stream() -> Iterator[dict[str, Any]]:
        for record in endless():
            yield {"n": -1} if record["n"] == row else record

    return stream


def test_the_state_of_other_records_is_refused() -> None:
    prompts = ps.Prompts(ps.open(endless, name="a"), shuffle=False)
    prompts.done(prompts.take(300))
    state = prompts.state_dict()
    ps.Prompts(ps.open(_changed_at(5000), name="a"), shuffle=False).load_state_dict(state)
    other = ps.Prompts(ps.open(_changed_at(7), name="a"), shuffle=False)
    with pytest.raises(PlanMismatch, match="hold other records than when the state was saved"):
        other.load_state_dict(state)
    filtered = ps.Prompts(ps.open(endless, name="a"), shuffle=False, filter=len)
    with pytest.raises(PlanMismatch, match="content of source 'data'"):
        filtered.load_state_dict(state)


def test_what_needs_the_end_is_refused() -> None:
    with pytest.raises(PlanError, match="epochs=2 needs the number of prompts in an epoch"):
        ps.Prompts(ps.open(endless), shuffle=False, epochs=2)
    with pytest.raises(PlanError, match="is not known before its end"):
        _ = ps.Prompts(ps.open(endless), shuffle=False, epochs=1).prompts_per_epoch
    with pytest.raises(PlanError, match="the stream 'data' has no records"):
        ps.Prompts(ps.open(lambda: iter([])), shuffle=False)


def test_prompts_that_cannot_be_given_go_back() -> None:
    prompts = ps.Prompts(
        ps.open(endless), shuffle=False, filter=lambda record: 1 / (record["n"] - 3)
    )
    with pytest.raises(BadRecord, match=r"filter function .* raised ZeroDivisionError"):
        prompts.take(5)
    assert prompts.counts["leased"] == 0 and prompts.counts["returned"] == 5


def test_rendered_prompts_of_a_stream_are_made_while_they_are_given(
    tmp_path: Path, tokenizer_path: Path
) -> None:
    def stream() -> Iterator[dict[str, Any]]:
        for record in endless():
            long = "far away " * 300 if record["n"] == 2 else ""
            yield {**record, "prompt": record["prompt"] + long}

    source: Any = ps.open(stream)
    store = ps.prepare(
        source,
        tokenizer=tokenizer_path,
        template="prompt",
        background=True,
        cache_dir=tmp_path,
        num_proc=1,
    )
    prompts = ps.Prompts(store, shuffle=False, max_length=100)
    taken = prompts.take(5)
    assert numbers(taken) == [0, 1, 3, 4, 5] and all(len(each.input_ids) for each in taken)
    assert prompts.counts["dropped"] == {"overlong": 1} and source.num_known < 3000


def test_views_of_a_stream_become_a_stream_by_their_iteration() -> None:
    def view() -> Any:
        return ps.open(endless).filter(lambda record: record["n"] % 2).iterate()

    assert numbers(ps.Prompts(ps.open(view), shuffle=False).take(3)) == [1, 3, 5]
