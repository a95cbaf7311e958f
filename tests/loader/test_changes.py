"""A run changes its mixture: now, at a later step, by a table, at a resume; each source goes on where it was, and the journal says so."""

import json
from collections import Counter

import numpy as np
import pytest

import penstock as ps
from penstock.errors import PlanError, PlanMismatch, StoreError
from tests.loader.test_state import sealed

from .arrays import Loader

SIZES = {"web": 90, "code": 60, "chat": 40}


@pytest.fixture(scope="module")
def make_store(tokenizer_path, tmp_path_factory):
    """Store `name` of its first `count` samples; all in one cache."""
    cache = tmp_path_factory.mktemp("cache")

    def make(name: str, count: int | None = None, *, word: str = "fox", cache_dir=cache):
        rng = np.random.default_rng(sum(map(ord, name)))
        records = [
            {"text": f"{word} " * int(rng.integers(1, 20))} for _ in range(SIZES.get(name, 300))
        ][:count]
        return ps.prepare(
            records, tokenizer=tokenizer_path, template="text", cache_dir=cache_dir, num_proc=1
        )

    return make


@pytest.fixture(scope="module")
def stores(make_store):
    return {name: make_store(name) for name in SIZES}


def make(mixture, **options) -> ps.Loader:
    return Loader(mixture, **{"batch_size": 4, "max_length": 32, "block": 64, **options})


def spans(loader, batches) -> list[tuple[str, int]]:
    """(source, sample) of every span, in order."""
    names = [source.name for source in loader.plan.sources]
    return [
        (names[s], i)
        for batch in batches
        for r in range(batch.rows.num_rows)
        for s, i, _, _ in batch.rows[r].tolist()
    ]


def run(loader, steps=None) -> list:
    """So many batches; then the loop is broken off."""
    batches = []
    for batch in loader:
        batches.append(batch)
        if len(batches) == steps:
            break
    return batches


def rows_of(loader, batches) -> list:
    return [
        batch.rows[r].tolist()
        for batch in batches
        for r in range(batch.rows.num_rows)
        if len(batch.rows[r])
    ]


def test_a_change_inside_a_loop_takes_effect_at_the_next_step_and_nothing_is_lost_or_repeated(
    stores,
):
    loader, before, after = make({"web": stores["web"], "code": stores["code"]}), [], []
    for batch in loader:
        (after if batch.step > 2 else before).append(batch)
        if batch.step == 2:
            loader.change_mixture({"web": stores["web"], "chat": stores["chat"]})
    seen, later = Counter(spans(loader, before)), Counter(spans(loader, after))
    assert {name for name, _ in seen} == {"web", "code"} and {name for name, _ in later} == {
        "web",
        "chat",
    }
    assert set((seen + later).values()) == {1}, "a sample came twice"
    assert sum(name == "web" for name, _ in seen + later) == SIZES["web"]
    assert sum(name == "chat" for name, _ in later) == SIZES["chat"]
    assert (
        loader.counters.samples_in == len(seen + later)
        and loader.counters.rows == loader.metrics.as_dict()["rows"]
    )
    assert [batch.step for batch in before + after] == list(range(len(loader)))
    assert loader.look_up(1).rows.spans.tolist() == before[1].rows.spans.tolist(), (
        "a step before the change"
    )


def test_a_removed_source_that_comes_back_goes_on_where_it_was(stores):
    loader = make({"web": stores["web"], "code": stores["code"]})
    batches = run(loader, 2)
    loader.change_mixture({"web": stores["web"]})
    batches += run(loader, 2)
    loader.change_mixture({"code": stores["code"], "web": stores["web"]})
    batches += run(loader)
    seen = Counter(spans(loader, batches))
    assert set(seen.values()) == {1} and len(seen) == SIZES["web"] + SIZES["code"]
    assert len(loader.journal) == 3 and loader.journal[1]["sources"] == {"web": None}


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_loader_of_the_last_mixture_resumes_with_any_number_of_ranks(stores, ranks):
    loader = make({"web": (stores["web"], 3), "code": (stores["code"], 1)})
    run(loader, 3)
    loader.change_mixture({"code": (stores["code"], 1), "chat": (stores["chat"], 2)})
    run(loader, 1)
    state = json.loads(json.dumps(loader.state_dict()))
    expected = rows_of(loader, run(loader))
    own = {"code": (stores["code"], 1), "chat": (stores["chat"], 2)}
    each = [make(own, rank=rank, world_size=ranks, batch_size=4 // ranks) for rank in range(ranks)]
    for one in each:
        one.load_state_dict(state)
    found = [list(one) for one in each]
    step_by_step = []
    for step in zip(*found, strict=True):
        rows = {
            place: batch.rows[r].tolist()
            for batch in step
            for r, place in enumerate(batch.places.tolist())
        }
        step_by_step += [rows[place] for place in sorted(rows)]
    assert [row for row in step_by_step if row] == expected
    assert each[0].plan.fingerprint == loader.plan.fingerprint and each[0].journal == loader.journal


def test_a_run_goes_on_without_the_store_of_a_removed_source_and_says_which_is_missing(
    make_store, tmp_path
):
    web, code = make_store("web", cache_dir=tmp_path), make_store("code", cache_dir=tmp_path)
    loader = make({"web": web, "code": code})
    first = run(loader, 2)
    loader.change_mixture({"code": code})
    state, expected = loader.state_dict(), rows_of(loader, run(loader))
    again = make({"code": code})
    again.load_journal(state)
    assert rows_of(again, run(again, 2)) == rows_of(loader, first), (
        "the whole run is replayed from its journal"
    )
    key = web.fingerprint
    (tmp_path / "stores" / key[:2] / f"{key}.json").unlink()
    again = make({"code": code})
    again.load_state_dict(state)
    assert rows_of(again, again) == expected
    assert f"MissingStore('web', not in the cache, {key[:8]})" in repr(again.stores)
    again.load_journal(state)
    with pytest.raises(
        StoreError, match=f"the store of source 'web', {key[:8]}, is not in .*prepare it again"
    ):
        again.explain(0)


def test_a_change_at_a_later_step_comes_there_whatever_the_batch_size(stores):
    loader = make({"web": stores["web"]})
    loader.change_mixture({"code": stores["code"]}, at=3)
    state, found = loader.state_dict(), list(loader)
    by_step = [{name for name, _ in spans(loader, [batch])} for batch in found[:-1]]
    assert by_step[:3] == [{"web"}] * 3 and set(map(tuple, by_step[3:])) == {("code",)}
    other = make({"code": stores["code"]}, batch_size=3)
    other.load_state_dict(state)
    assert rows_of(other, other) == rows_of(loader, found)


def test_without_the_word_for_it_another_mixture_is_refused_and_with_it_the_run_changes(stores):
    loader = make({"web": (stores["web"], 3), "code": (stores["code"], 1)})
    first = run(loader, 3)
    state = loader.state_dict()
    own = {"web": (stores["web"], 1), "chat": (stores["chat"], 1)}
    with pytest.raises(
        PlanMismatch,
        match=r"weights .*penstock state --changes, or load_state_dict\(state, changes=True\)",
    ):
        make(own).load_state_dict(state)
    for changes in (False, True):
        with pytest.raises(PlanMismatch, match=r"max_length .*start a new run \(the state"):
            make(
                {"web": (stores["web"], 3), "code": (stores["code"], 1)}, max_length=99
            ).load_state_dict(state, changes=changes)
    with pytest.raises(PlanMismatch, match=r"max_length .*start a new run \(the state"):
        make(own, max_length=99).load_state_dict(state, changes=True)
    changed = make(own)
    changed.load_state_dict(state, changes=True)
    step, rows, words = changed.run.last_change()
    assert (step, rows) == (3, 12) and any(
        word.startswith("source 'code' removed") for word in words
    )
    loader.change_mixture(own)
    assert loader.state_dict() == changed.state_dict()
    rest = list(changed)
    assert rows_of(loader, loader) == rows_of(changed, rest)
    counts = Counter(spans(loader, first) + spans(changed, rest))
    assert {name for name, _ in counts} == {"web", "code", "chat"} and set(counts.values()) == {1}
    again = make({"code": (stores["code"], 1)})
    again.load_state_dict(changed.state_dict(), changes=True)
    assert len(again.journal) == 3
    with pytest.raises(PlanMismatch, match=r"another mixture now: .*source 'chat'"):
        make({"code": (stores["code"], 1)}).load_state_dict(changed.state_dict())


def test_a_store_that_has_grown_goes_on_with_its_unseen_and_its_new_samples(make_store):
    small, grown = make_store("web", 50), make_store("web", 90)
    loader = make({"web": small})
    first = run(loader, 1)
    loader.change_mixture({"web": grown})
    state = loader.state_dict()
    rest = list(loader)
    seen = Counter(spans(loader, first + rest))
    assert set(seen.values()) == {1} and len(seen) == 90
    new = [place for place, (_, sample) in enumerate(spans(loader, rest)) if sample >= 50]
    assert len(new) == 40
    again = make({"web": grown})
    again.load_state_dict(state)
    assert rows_of(again, again) == rows_of(loader, rest)


def test_what_cannot_be_proven_is_refused_by_name(stores, make_store):
    web = make_store("web", 50)
    loader = make({"web": web})
    run(loader, 2)
    before = loader.state_dict()
    for mixture, options, problem in (
        ({"again": web}, {}, "dataset 'again' contains the same data as 'web'"),
        (
            {"web": make_store("web", 40)},
            {},
            "source 'web' has other data than before: 40 samples instead of 50",
        ),
        (
            {"web": make_store("web", 60, word="dog")},
            {},
            "source 'web' has other data than before: sample 0 differs",
        ),
        ({"web": web}, {"at": 1}, "cannot change the mixture at step 1: the run is at step 2"),
        ({"web": ps.open([{"n": 1}])}, {}, "one run cannot hold records and tokens"),
        ({"web": (web, 0)}, {}, "weight 0 is not positive"),
    ):
        with pytest.raises(PlanError, match=problem):
            loader.change_mixture(mixture, **options)
        assert loader.state_dict() == before, problem


@pytest.mark.parametrize("last_step", ["pad", "drop"])
def test_plain_records_resume_after_a_change_that_removed_a_source(last_step):
    """The removed source is not open, and was asked for its columns: an AttributeError."""
    web = ps.open([{"n": number} for number in range(40)])
    code = ps.open([{"n": 100 + number} for number in range(30)])
    loader = Loader({"web": web, "code": code}, batch_size=4, last_step=last_step)
    batches = iter(loader)
    next(batches)
    loader.change_mixture({"code": code})
    next(batches)
    state = loader.state_dict()
    rest = [batch["records"] for batch in batches]
    resumed = Loader({"code": code}, batch_size=4, last_step=last_step)
    resumed.load_state_dict(state)
    assert [batch["records"] for batch in resumed] == rest
    assert rest
    size = sum(map(len, rest)) - 1  # all ranks but one have no record in the last step
    found = []
    for rank in range(size):
        loader = Loader(
            {"code": code}, batch_size=1, last_step=last_step, rank=rank, world_size=size
        )
        loader.load_state_dict(state)
        found += [record for batch in loader for record in batch["records"]]
    assert len(found) == size + (last_step == "pad")


def test_a_table_of_weights_changes_them_at_its_steps_on_any_number_of_ranks(stores):
    table = {"web": (stores["web"], {0: 9, 3: 1}), "code": (stores["code"], {0: 1, 3: 9})}
    loader = make(table, epochs=None)
    found = run(loader, 3)
    state = loader.state_dict()
    later = run(loader, 5)
    shares = [Counter(name for name, _ in spans(loader, part))["web"] for part in (found, later)]
    assert (
        shares[0] > 4 * (len(spans(loader, found)) - shares[0])
        and 4 * shares[1] < len(spans(loader, later)) - shares[1]
    )
    assert [entry["rows"] for entry in loader.journal] == [0, 12]
    other = make(table, epochs=None, batch_size=2, rank=0, world_size=1)
    assert [entry["rows"] for entry in other.journal] == [0, 6]
    other.load_state_dict(state)
    assert [entry["rows"] for entry in other.journal] == [0, 12], (
        "the steps of the run's start count"
    )
    assert rows_of(other, run(other, 10)) == rows_of(loader, later)
    changed = {"web": (stores["web"], {0: 9, 4: 1}), "code": (stores["code"], {0: 1, 4: 9})}
    with pytest.raises(PlanMismatch, match="another mixture now: the table of weights"):
        make(changed, epochs=None).load_state_dict(state)


def test_a_table_counts_tokens_and_goes_from_point_to_point_in_stages(stores):
    weights = {0: 1, 3200: 0.5}
    loader = make(
        {"web": (stores["web"], weights), "code": (stores["code"], 1)},
        schedule="tokens",
        interpolate=True,
    )
    journal = loader.journal
    assert len(journal) == 17 and journal[8]["sources"] == {"web": "3/4", "code": "1"}
    assert [journal[number]["rows"] for number in (0, 8, 16)] == [0, 50, 100]
    with pytest.raises(PlanError, match="schedule='tokens' needs a table of weights"):
        make(stores, schedule="tokens")
    with pytest.raises(PlanError, match="a table of weights begins at 0, and this one at 5"):
        make({"web": (stores["web"], {5: 1})})


@pytest.mark.parametrize("options", [{"packing": "concat"}, {"on_overlong": "split"}])
def test_where_samples_are_cut_the_change_comes_at_the_end_of_the_block(stores, options):
    loader = make({"web": stores["web"], "code": stores["code"]}, **options)
    first = run(loader, 1)
    loader.change_mixture({"web": stores["web"]})
    step, rows, _ = loader.run.last_change()
    assert rows > 4 and step == rows // 4
    state, rest = loader.state_dict(), list(loader)
    names = [
        {loader.plan.sources[s].name for s, *_ in row} for row in rows_of(loader, first + rest)
    ]
    assert "code" in set().union(*names[:rows]) and set().union(*names[rows:]) == {"web"}
    tokens = Counter(
        (s, i, t)
        for row in rows_of(loader, first + rest)
        for s, i, a, b in row
        for t in range(a, b)
    )
    assert set(tokens.values()) == {1}
    again = make({"web": stores["web"]}, **options)
    again.load_state_dict(state)
    assert rows_of(again, again) == rows_of(loader, rest)


def test_a_state_stays_small_over_many_changes(make_store):
    stores = {name: make_store(name) for name in ("large", "larger")}
    loader = make(
        {"large": (stores["large"], 1), "larger": (stores["larger"], 1)}, epochs=None, block=65_536
    )
    plain, sizes = len(json.dumps(loader.state_dict())), []
    for number in range(8):
        run(loader, 3)
        loader.change_mixture(
            {"large": (stores["large"], number + 1), "larger": (stores["larger"], 1)}
        )
        sizes.append(len(json.dumps(loader.state_dict())))
    assert sizes[-1] < plain + 9 * 200 + 1000, (
        sizes
    )  # entries of the journal, and one bit for each waiting sample
    assert max(np.diff(sizes)) < 600


def test_a_damaged_journal_is_refused(stores):
    loader = make({"web": stores["web"]})
    run(loader, 1)
    loader.change_mixture({"web": stores["web"], "code": stores["code"]})
    state = json.loads(json.dumps(loader.state_dict()))
    own = {"web": stores["web"], "code": stores["code"]}
    with pytest.raises(PlanMismatch, match="the state is damaged"):
        make(own).load_state_dict({**state, "journal": {**state["journal"], "mixtures": []}})
    for journal in (
        {},
        [],
        None,
        {"mixtures": [[1]], "start": []},
        {**state["journal"], "start": [9, [0, 0, 0], [0, 0], 0, {}]},
    ):
        with pytest.raises(PlanMismatch, match=r"damaged|cannot resume"):
            make(own).load_state_dict(sealed({**state, "journal": journal}))
