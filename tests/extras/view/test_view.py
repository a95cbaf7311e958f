"""Is what the page shows what the store holds and the loader delivers?  Each answer is compared with a plain loop over the data."""

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.cache import Cache
from penstock.errors import BadRecord
from penstock.extras.view.facts import Facts
from penstock.extras.view.search import Search, TextIndex, fold, record_strings, uses_tools
from penstock.extras.view.view import Viewer
from penstock.recipe import Recipe
from penstock.recipe.run import prepare_recipe
from tests.extras.view.conftest import ODD, Ask, asking, open_view, wait_for, write_recipe


@pytest.fixture(scope="module")
def table(view: Viewer) -> list[dict[str, Any]]:
    """Every row with its facts, one by one from the stores and files."""
    found = []
    for name, store in view.stores.items():
        reasons = {}
        for reason, part in store.counts.dropped.items():
            reasons |= dict.fromkeys(part.rows, reason)
        for row in range(len(store)):
            sample = store[row]
            try:
                record = store.source[row]
            except BadRecord as error:
                record = {"": str(error)}
            length, targets = len(sample), int(np.count_nonzero(sample.loss_mask[1:]))
            reason = (
                reasons.get(row, "listed no more")
                if not length
                else "overlong"
                if length > 160
                else ""
            )
            found.append(
                {
                    "source": name,
                    "record": record,
                    "length": length,
                    "targets": targets,
                    "reason": reason,
                }
            )
    assert Counter(row["reason"] for row in found)["overlong"] > 5
    return found


def everything(ask: Ask, **asked: Any) -> list[int]:
    """The row numbers of all pages of a list."""
    rows: list[int] = []
    while True:
        page = ask("rows", first=len(rows), count=60, **asked)
        rows += [row["row"] for row in page["rows"]]
        if len(rows) >= page["total"]:
            assert len(rows) == page["total"]
            return rows


def test_rows_come_in_the_order_of_the_data_with_their_facts(
    ask: Ask, table: list[dict[str, Any]]
) -> None:
    assert everything(ask) == list(range(250))
    page = ask("rows", first=150, count=40)
    for row in page["rows"]:
        expected = table[row["row"]]
        assert (row["length"], row["targets"]) == (expected["length"], expected["targets"])
        assert row["reason"] == expected["reason"] or expected["reason"] == "listed no more"
        assert ("first", "second")[row["source"]] == expected["source"]
        text = " ".join(" ".join(record_strings(expected["record"])).split())
        assert row["text"] == text[: len(row["text"])] and len(row["text"]) == min(len(text), 240)
    assert ask("rows", first=10**6)["rows"] == []


FILTERS: list[tuple[dict[str, str], Any]] = [
    ({"length_from": "40"}, lambda row: row["length"] >= 40),
    ({"length_to": "90"}, lambda row: row["length"] <= 90),
    ({"targets_from": "12", "targets_to": "60"}, lambda row: 12 <= row["targets"] <= 60),
    (
        {"share_from": "45"},
        lambda row: row["length"] and row["targets"] * 100 >= 45 * row["length"],
    ),
    ({"share_to": "45"}, lambda row: row["length"] and row["targets"] * 100 <= 45 * row["length"]),
    ({"reason": "overlong"}, lambda row: row["reason"] == "overlong"),
    ({"reason": "none"}, lambda row: not row["reason"]),
    ({"reason": "any"}, lambda row: bool(row["reason"])),
    ({"source": "second"}, lambda row: row["source"] == "second"),
    ({"tools": "yes"}, lambda row: "tools" in row["record"]),
    ({"tools": "no"}, lambda row: "tools" not in row["record"]),
    (
        {"q": "QUICK brown"},
        lambda row: "quick brown" in " ".join(record_strings(row["record"])).lower(),
    ),
    ({"media": "image"}, lambda row: False),
]


@given(st.lists(st.sampled_from(range(len(FILTERS))), min_size=1, max_size=3, unique=True))
def test_filters_together_leave_the_rows_that_pass_each(
    ask: Ask, table: list[dict[str, Any]], chosen: list[int]
) -> None:
    asked: dict[str, str] = {}
    for number in chosen:
        asked |= FILTERS[number][0]
    checks = [check for given, check in FILTERS if given.items() <= asked.items()]
    expected = [place for place, row in enumerate(table) if all(check(row) for check in checks)]
    assert everything(ask, **asked) == expected


@pytest.mark.parametrize(
    "text", [*ODD, "fox", "OVER A", "o", "run", "nothing has this", "strasse œuvre", " "]
)
def test_a_search_finds_every_row_that_holds_the_text(
    ask: Ask, table: list[dict[str, Any]], text: str
) -> None:
    holds = ["\n".join(record_strings(row["record"])).casefold() for row in table]
    expected = [row for row, found in enumerate(holds) if text.casefold() in found]
    bad = [
        row for row, each in enumerate(table) if "" in each["record"]
    ]  # their message is searched, in other words
    assert [row for row in everything(ask, q=text) if row not in bad] == [
        row for row in expected if row not in bad
    ]


def test_a_search_in_rendered_text_finds_what_the_chat_template_adds(
    ask: Ask, view: Viewer, table: list[dict[str, Any]]
) -> None:
    texts = [
        store[row].text.casefold() for store in view.stores.values() for row in range(len(store))
    ]
    for wanted in ("<|assistant|>", "dog<|endoftext|><|assistant|>", "look_up"):
        assert everything(ask, q=wanted, **{"in": "rendered"}) == [
            n for n, text in enumerate(texts) if wanted in text
        ]


def test_both_reasons_of_one_shard_are_told_apart(ask: Ask, view: Viewer) -> None:
    assert view.facts is not None and view.stores["first"].num_shards == 1
    counted = {reason: part.count for reason, part in view.stores["first"].counts.dropped.items()}
    assert set(counted) == {"bad_json", "not_an_object", "nothing_to_train"}
    for reason, count in counted.items():
        assert ask("rows", reason=reason, source="first")["total"] == count
    overview = ask("overview")
    assert overview["reasons"]["bad_json"] == 1
    assert overview["meanings"]["bad_json"] == "not valid JSON"
    assert overview["meanings"].keys() == overview["reasons"].keys()
    assert [row["own"] for row in ask("rows", reason="bad_json")["rows"]] == [20]


# The index


@given(
    st.lists(st.text("aAbß é\n日", max_size=6), max_size=30),
    st.text("aAbß é\n日", min_size=1, max_size=3),
)
def test_a_scan_is_the_same_as_looking_into_each_text(texts: list[str], wanted: str) -> None:
    index = TextIndex(
        lambda start, stop: ((text, False) for text in texts[start:stop]),
        len(texts),
        threading.Lock(),
    )
    assert wait_for(lambda: index.job.state["over"]) and index.job.error is None
    search = Search(index, wanted)
    wait_for(lambda: search.advance(0.001) or search.is_complete)
    assert search.found.tolist() == [
        row for row, text in enumerate(texts) if fold(wanted) in fold(text)
    ]


def test_results_of_a_search_under_way_are_marked_and_grow() -> None:
    gate, texts = threading.Event(), ["needle", "hay"] * 200

    def read(start: int, stop: int) -> Iterator[tuple[str, bool]]:
        if start >= 128:
            gate.wait()
        yield from ((text, False) for text in texts[start:stop])

    index = TextIndex(read, len(texts), threading.Lock())
    search = Search(index, "needle")
    try:
        # the thread waits inside of a part of rows, so what it has published before can be none of them
        search.advance()
        assert not search.is_complete and len(search.found) <= 64 and index.state["over"] is False
    finally:
        gate.set()
    wait_for(lambda: search.advance() or search.is_complete)
    assert search.found.tolist() == list(range(0, 400, 2))


def test_tools_are_known_of_the_rows_that_are_written_and_of_no_other() -> None:
    goes_on = threading.Event()

    def read(start: int, stop: int) -> Iterator[tuple[str, bool]]:
        for row in range(start, stop):
            yield "a row", True
            if row == 70:  # six rows of this part are marked, and none of them is written yet
                assert goes_on.wait(30)

    index = TextIndex(read, 100, threading.Lock())
    wait_for(lambda: bool(index.tools[70]))
    is_complete, uses_tools = index.tools_so_far()
    assert not is_complete
    assert len(uses_tools) == index.num_rows < 70
    goes_on.set()
    wait_for(lambda: index.job.result is not None)
    is_complete, uses_tools = index.tools_so_far()
    assert is_complete
    assert uses_tools.tolist() == [True] * 100


def test_a_text_longer_than_the_limit_is_searched_in_part_and_that_is_said() -> None:
    texts = ["x" * 1000] * 500 + ["needle"]
    index = TextIndex(
        lambda start, stop: ((text, False) for text in texts[start:stop]),
        501,
        threading.Lock(),
        most_bytes=1000,
    )
    wait_for(lambda: index.state["over"])
    assert index.num_rows == 64
    assert (
        index.state["limit"]
        == "only the first 64 records are searched: their text fills 1,000 bytes"
    )
    search = Search(index, "needle")
    search.advance()
    assert search.is_complete and not search.found.size


def test_tools_are_noticed_in_every_form() -> None:
    yes: list[dict[str, Any]] = [
        {"tools": [{"name": "x"}]},
        {"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "y"}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"name": "x"}]}]},
        {"conversations": [{"from": "function_call", "value": "x"}]},
    ]
    no: list[dict[str, Any]] = [
        {},
        {"tools": []},
        {"messages": [{"role": "user", "content": "tool"}]},
        {"text": "tool_calls"},
    ]
    assert all(map(uses_tools, yes)) and not any(map(uses_tools, no))


# One sample


def test_a_sample_is_shown_with_the_tokens_of_the_store(
    ask: Ask, view: Viewer, table: list[dict[str, Any]]
) -> None:
    stores = [(store, row) for store in view.stores.values() for row in range(len(store))]
    for row in (0, 5, 20, 25, 41, 163, 249):
        store, own = stores[row]
        found, sample = ask("sample", row=row), store[own]
        assert [token[0] for token in found["tokens"]] == sample.input_ids.tolist()
        assert [token[2] for token in found["tokens"]] == [False, *sample.loss_mask.tolist()[1:]][
            : len(sample)
        ]
        assert found["where"] == str(store.source.locate(own)) and found["length"] == len(sample)
        if len(sample):
            assert json.loads(found["raw"]) == store.source[own]
            assert (
                "".join(token[1] for token in found["tokens"])
                == found["rendered"]
                == store.template.rendering(store.source[own]).text
            )
            roles = [turn["role"] for turn in store.source[own]["messages"]]
            assert list(
                dict.fromkeys((token[3], token[4]) for token in found["tokens"] if token[4])
            ) == list(enumerate(roles))
        else:
            assert found["rendered"] == "" and found["reason"] in (
                "bad_json",
                "not_an_object",
                "nothing_to_train",
            )
        assert set(found["special"]) <= set(sample.input_ids.tolist())


def test_a_long_sample_comes_in_parts_that_join(tmp_path: Path, tokenizer_path: Path) -> None:
    words = " ".join(str(n) for n in range(9_000))
    (tmp_path / "long.jsonl").write_text(
        json.dumps({"text": words}) + "\n" + json.dumps({"text": "b " * 1_000_000}) + "\n"
    )
    recipe = {
        "data": "long.jsonl",
        "tokenizer": str(tokenizer_path),
        "template": "text",
        "cache_dir": "cache",
        "max_dropped": 1,
        "max_length": 64,
        "batch_size": 1,
        "on_overlong": "split",
        "num_proc": 1,
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    prepare_recipe(Recipe.read(tmp_path / "recipe.yaml").changed(progress="none"))
    view = open_view(tmp_path / "recipe.yaml", world_size=1)
    ask, ids, texts = asking(view), [], []
    (store,) = view.stores.values()
    while len(ids) < len(store[0]):
        part = ask("sample", row=0, **{"from": len(ids)})
        assert 0 < len(part["tokens"]) <= 2_000 and part["first"] == len(ids)
        ids += [token[0] for token in part["tokens"]]
        texts += [token[1] for token in part["tokens"]]
    assert ids == store[0].input_ids.tolist() and "".join(texts).startswith(words)
    large = ask("sample", row=1)
    assert len(large["raw"]) == 200_000 < large["raw_size"] and len(large["tokens"]) == 2_000
    assert ask("rows")["rows"][1]["text"] == "b " * 120


# The run


@pytest.fixture(scope="module")
def delivered(recipe_path: Path) -> list[list[Any]]:
    """What each rank's own Loader delivers: for each step, the batches of the ranks."""
    options = {"progress": "none", "output": "numpy", "world_size": 2}
    return [
        list(both)
        for both in zip(
            *(ps.load(recipe_path, rank=rank, **options) for rank in (0, 1)), strict=True
        )
    ]


def test_every_step_in_which_a_record_is_trained_is_named(
    ask: Ask, view: Viewer, delivered: list[list[Any]]
) -> None:
    expected: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for number, ranks in enumerate(delivered):
        for rank, batch in enumerate(ranks):
            for row in range(batch.rows.num_rows):
                for source, sample, start, stop in batch.rows[row].tolist():
                    expected[int(view.starts[source]) + sample].add(
                        (number, rank, row, start, stop)
                    )
    assert len(delivered) > 20 and len(expected) > 100
    for row in range(0, 250, 7):
        found = [
            each for epoch in (0, 1) for each in ask("positions", row=row, epoch=epoch)["landings"]
        ]
        assert {
            (at["step"], at["rank"], at["row"], at["start"], at["stop"]) for at in found
        } == expected[row]


def test_a_step_is_what_the_ranks_are_given(ask: Ask, delivered: list[list[Any]]) -> None:
    names = {"first": 0, "second": 1}
    for number in (0, 7, len(delivered) - 1):
        found = ask("step", step=number)
        for row in found["rows"]:
            given = delivered[number][row["rank"]].rows[row["row"]].tolist()
            assert [
                (names[part["source"]], part["sample"], part["start"], part["stop"])
                for part in row["segments"]
            ] == given
        assert sum(row["trained"] for row in found["rows"]) == sum(
            batch.trained for batch in delivered[number]
        )


def test_the_strip_adds_up_to_what_the_ranks_are_given(
    ask: Ask, delivered: list[list[Any]]
) -> None:
    for epoch in (0, 1):
        whole = ask("run", epoch=epoch, bins=1000)
        first, steps = whole["first_step"], whole["numbers"]["steps"]
        assert whole["strip"]["starts"] == list(range(steps)) and whole["numbers"][
            "steps_of_run"
        ] == len(delivered)
        for number in range(steps):
            ranks = [batch.rows for batch in delivered[first + number]]
            sizes = [rows.spans["stop"] - rows.spans["start"] for rows in ranks]
            by_source = sum(
                np.bincount(rows.spans["source"], size, minlength=2)
                for rows, size in zip(ranks, sizes, strict=True)
            )
            assert whole["strip"]["tokens"][number] == by_source.tolist()
            total, most = float(by_source.sum()), float(max(size.sum() for size in sizes))
            assert whole["strip"]["balance"][number] == pytest.approx(most / (total / 2))
            assert whole["strip"]["fill"][number] == pytest.approx(total / (6 * 160))
            assert whole["strip"]["mean_length"][number] == pytest.approx(
                total / sum(len(size) for size in sizes)
            )
        few = ask("run", epoch=epoch, bins=4)["strip"]
        assert len(few["starts"]) <= 4 and np.sum(few["tokens"]) == np.sum(whole["strip"]["tokens"])
        part = ask("run", epoch=epoch, bins=1000, **{"from": first + 2, "to": first + 5})["strip"]
        assert part["starts"] == [2, 3, 4] and part["tokens"] == whole["strip"]["tokens"][2:5]


CHANGES: list[dict[str, Any]] = [
    {},
    {"max_length": 100},
    {"max_length": 80, "on_overlong": "truncate"},
    {"max_length": 64, "on_overlong": "split"},
    {"packing": "none"},
    {"packing": "concat"},
    {"weights": "1,4"},
    {"max_length": 300, "weights": "1,1"},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_other_settings_give_the_numbers_of_a_loader_that_has_them(
    ask: Ask, view: Viewer, changes: dict[str, Any]
) -> None:
    found = ask("what_if", **changes)
    options = {"max_length": 160, "max_dropped": 1, **changes}
    weights = [int(each) for each in options.pop("weights", "3,1").split(",")]
    stores = {
        name: (store, weight)
        for (name, store), weight in zip(view.stores.items(), weights, strict=True)
    }
    loader = ps.Loader(
        stores, batch_size=3, rank=0, world_size=2, output="numpy", prefetch=0, **options
    )
    assert found["steps"] == len(loader)
    rows = [loader.look_up(step).rows for step in range(len(loader))]
    tokens = sum(int((each.spans["stop"] - each.spans["start"]).sum()) for each in rows)
    assert found["tokens"] == tokens
    assert found["fill"] == pytest.approx(tokens / (found["rows"] * options["max_length"]))
    lost, most = 0, options["max_length"]
    for store in view.stores.values():
        for row in range(len(store)):
            mask = store[row].loss_mask
            if len(mask) > most:
                starts = {"split": range(0, len(mask), most), "truncate": (0,)}.get(
                    options.get("on_overlong", ""), ()
                )
                kept = sum(int(mask[start + 1 : start + most].sum()) for start in starts)
                lost += int(mask[1:].sum()) - kept
    assert found["targets_lost"] == (None if options.get("packing") == "concat" else lost)


def test_settings_that_contradict_each_other_are_a_problem_not_a_number(ask: Ask) -> None:
    assert "has no effect" in ask("what_if", packing="concat", on_overlong="truncate")["problem"]
    assert "not positive" in ask("what_if", weights="0,1")["problem"]
    assert "packing" in ask("what_if", packing="tight")["problem"]


# Not prepared


def test_data_that_is_not_prepared_is_shown_as_records_and_stays_so(
    tmp_path: Path, chat_folder: Path
) -> None:
    path = write_recipe(tmp_path, chat_folder)
    view = open_view(path)
    ask = asking(view)
    assert ask("overview")["prepared"] is False and ask("overview")["num_rows"] == 250
    assert len(everything(ask)) == 250 and 0 < len(everything(ask, q="lazy dog")) < 250
    found = [ask("sample", row=row) for row in range(6)]
    outcomes = [each["outcome"].partition(":")[0] for each in found if each["tokens"]]
    assert len(outcomes) == 5 and set(outcomes) == {"not known", "dropped as too long"}
    for name, asked in (
        ("run", {}),
        ("step", {}),
        ("what_if", {}),
        ("positions", {"row": 1}),
        ("rows", {"length_from": "3"}),
    ):
        assert "run penstock prepare x" in ask(name, status=400, **asked)["error"]
    assert (
        "rendered if the data is prepared"
        in ask("rows", status=400, q="fox", **{"in": "rendered"})["error"]
    )
    assert not [
        entry
        for entry in Cache(tmp_path / "cache").entries()
        if entry.name.startswith(("shards", "stores"))
    ]


def test_requests_at_once_get_what_one_after_another_would(recipe_path: Path) -> None:
    """A new viewer, asked by many threads for the same search, epoch and samples from its first moment on."""
    view, found = open_view(recipe_path), []
    assert view.facts is not None

    def comparable(value: Any) -> str:
        kept = {
            name: part for name, part in value.items() if name not in ("index", "facts", "scanned")
        }  # how far it was
        return json.dumps(kept, sort_keys=True)

    asked: list[tuple[str, dict[str, str]]] = [
        ("rows", {"q": "o", "count": "200"}),
        ("rows", {"q": "fox", "tools": "yes"}),
        ("positions", {"row": "5"}),
        ("step", {"step": "3"}),
        ("sample", {"row": "7"}),
        ("run", {}),
        ("rows", {"q": "endoftext", "in": "rendered"}),
    ]

    def work(name: str, parameters: dict[str, str]) -> None:
        def once() -> Any:
            is_counted = view.facts.is_complete  # before: the answer has the numbers of that moment
            value = view.answer(name, parameters)
            assert value is not None
            is_over = value.get("complete", True) and value.get("progress", {"over": True})["over"]
            return comparable(value) if is_over and is_counted else None

        found.append((name, str(parameters), wait_for(once)))

    threads = [threading.Thread(target=work, args=each) for each in asked * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 * len(asked)
    assert (
        len({(name, parameters) for name, parameters, _ in found}) == len(set(found)) == len(asked)
    )
    for name, parameters in asked:
        assert comparable(view.answer(name, parameters)) in {value for _, _, value in found}


def test_a_number_that_is_not_counted_yet_is_left_out(
    recipe_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, read = threading.Event(), Facts._read_shard
    monkeypatch.setattr(Facts, "_read_shard", lambda *given: (gate.wait(), read(*given))[1])
    view = open_view(recipe_path)
    ask = asking(view)
    try:
        before = ask("rows", count=2)["rows"][0]
        assert before["length"] > 0 and "targets" not in before and "reason" not in before
        assert ask("rows", share_from=1, complete=False)["complete"] is False
        assert ask("overview")["facts"]["over"] is False and ask("what_if")["targets_lost"] is None
    finally:
        gate.set()
    wait_for(lambda: view.facts is not None and view.facts.is_complete)
    assert (
        ask("rows", count=2)["rows"][0]["targets"] > 0
        and ask("what_if")["targets_lost"] is not None
    )
