"""Prompts(filter=...): run in processes, remembered by content, text and version, counted, and part of what a state is tied to."""

import functools
import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import BadRecord, PlanError, PlanMismatch, SourceError
from tests.sources.filters import fails, is_easy, is_easy_and_counted

COUNT = 300


@pytest.fixture
def source(tmp_path: Path):
    (tmp_path / "data.jsonl").write_text(
        "".join(json.dumps({"id": n}) + "\n" for n in range(COUNT))
    )
    return ps.open(tmp_path / "data.jsonl", cache_dir=tmp_path / "cache")


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The number of calls of is_easy_and_counted so far, by process."""
    monkeypatch.setenv("PENSTOCK_TEST_CALLS", str(tmp_path / "calls"))
    (tmp_path / "calls").mkdir()
    return lambda: {
        int(each.name): len(each.read_text()) for each in (tmp_path / "calls").iterdir()
    }


def ids(prompts: ps.Prompts) -> list[int]:
    return [each.record["id"] for each in prompts.take(10 * COUNT)]


def test_what_a_filter_leaves_out_is_counted_shown_and_never_given(source, caplog):
    with caplog.at_level(logging.WARNING, "penstock"):
        prompts = ps.Prompts(source, epochs=2, filter=is_easy, filter_version="1")
    assert (
        "data: 60 prompts left out by the filter" in caplog.text
        and "filter_version" not in caplog.text
    )
    assert prompts.filtered == {"data": 60} and prompts.prompts_per_epoch == 240
    found = ids(prompts)
    for epoch in (found[:240], found[240:]):
        assert sorted(epoch) == [n for n in range(COUNT) if n % 5]


def test_it_runs_in_processes_and_its_answers_are_remembered(source, calls):
    for _ in range(2):
        prompts = ps.Prompts(
            source, epochs=1, filter=is_easy_and_counted, filter_version="1", num_proc=2
        )
        assert prompts.prompts_per_epoch == 240
        assert sum(calls().values()) == COUNT  # also after the second start
    source.filter(is_easy_and_counted, version="1").rows  # the same question, without prompts
    assert sum(calls().values()) == COUNT


def test_without_a_version_nothing_is_remembered_and_the_user_is_informed(source, calls, caplog):
    for _ in range(2):
        with caplog.at_level(logging.WARNING, "penstock"):
            ps.Prompts(source, filter=is_easy_and_counted, num_proc=1)
    assert sum(calls().values()) == 2 * COUNT
    assert (
        "filter is_easy_and_counted is called on every record at each start; give it a filter_version"
        in caplog.text
    )


def test_a_function_that_may_change_unseen_is_not_remembered(source):
    border = 5

    def inner(record):
        return record["id"] > border

    for keep in (
        inner,
        functools.partial(is_easy),
        lambda record, border=border: record["id"] > border,
    ):
        with pytest.raises(
            SourceError,
            match="cannot be remembered: it is an object, or a function with default arguments",
        ):
            ps.Prompts(source, filter=keep, filter_version="1")
    assert len(ids(ps.Prompts(source, epochs=1, filter=inner))) == COUNT - 6


def test_a_state_belongs_to_what_the_filter_keeps(source):
    state = ps.Prompts(source, filter=is_easy, filter_version="1").state_dict()
    ps.Prompts(source, filter=lambda record: record["id"] % 5).load_state_dict(
        state
    )  # keeps the same
    with pytest.raises(PlanMismatch, match="content of source 'data'"):
        ps.Prompts(source).load_state_dict(state)
    whole = ps.Prompts(source, seed=2).state_dict()
    ps.Prompts(source, seed=2, filter=lambda record: True).load_state_dict(whole)


def test_an_error_of_the_function_names_the_record_and_mistakes_are_refused(source):
    with pytest.raises(
        BadRecord, match=r"data.jsonl:8: the filter function fails raised ZeroDivisionError"
    ):
        ps.Prompts(source, filter=fails, filter_version="1")
    with pytest.raises(PlanError, match="there are no prompts: 300 left out by the filter"):
        ps.Prompts(source, filter=lambda record: False)
    with pytest.raises(PlanError, match="filter is 'easy', expected a function"):
        ps.Prompts(source, filter="easy")
    with pytest.raises(PlanError, match="filter_version='1' and num_proc=None belong to a filter"):
        ps.Prompts(source, filter_version="1")


async def later(record):
    return False


def one_by_one(record):
    yield False


@pytest.mark.parametrize("keep", [later, one_by_one])
def test_a_filter_that_gives_no_answer_is_refused(source, keep):
    """A coroutine and a generator are true, whatever they would return."""
    with pytest.raises(
        BadRecord, match=rf"filter function {keep.__name__} .*without async and yield"
    ):
        ps.Prompts(source, filter=keep, num_proc=1)


def test_rendered_prompts_are_filtered_by_length_and_by_record_and_the_store_is_shared(
    tmp_path, tokenizer_path, caplog
):
    rows = [
        {"id": n, "prompt": f"what is {n} {'far away ' * (200 if n == 7 else 0)}"}
        for n in range(20)
    ]
    (tmp_path / "math.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "recipe.yaml").write_text(
        f"data: math.jsonl\ntokenizer: {tokenizer_path}\ntemplate: prompt\nmax_length: 64\ncache_dir: cache\nnum_proc: 1\n"
    )
    with caplog.at_level(logging.WARNING, "penstock"):
        prompts = ps.Prompts(tmp_path / "recipe.yaml", epochs=1, filter=is_easy, filter_version="1")
    assert (
        prompts.filtered == {"data": 4} and prompts.dropped_before.samples_dropped["overlong"] == 1
    )
    taken = prompts.take(99)
    assert sorted(each.record["id"] for each in taken) == [n for n in range(20) if n % 5 and n != 7]
    assert all(
        each.where.line == each.record["id"] + 1 and len(each.input_ids) > 0 for each in taken
    )
    assert (
        prompts.stores[0].fingerprint == ps.Prompts(tmp_path / "recipe.yaml").stores[0].fingerprint
    )


@given(
    st.lists(st.sets(st.integers(0, 39)), min_size=2, max_size=2), st.integers(0, 3), st.booleans()
)
def test_a_mixture_gives_every_kept_record_of_an_epoch_once_and_no_other(out, seed, shuffle):
    kept = [sorted(set(range(40)) - each) for each in out]
    sources = {
        name: ps.open([{"id": n, "out": n in out[k]} for n in range(40)])
        for k, name in enumerate("ab")
    }
    if not kept[0] and not kept[1]:
        return
    prompts = ps.Prompts(
        sources, epochs=2, seed=seed, shuffle=shuffle, filter=lambda record: not record["out"]
    )
    taken = [(each.epoch, each.source, each.record["id"]) for each in prompts.take(200)]
    assert sorted(taken) == [
        (epoch, name, n) for epoch in (0, 1) for k, name in enumerate("ab") for n in kept[k]
    ]
    assert {name: prompts.filtered[name] for name in "ab"} == {
        name: len(out[k]) for k, name in enumerate("ab")
    }
