"""Are steps, positions and losses right for every last step, cut and empty run?  Compared with what the ranks' own loaders deliver."""

import json
from collections import defaultdict
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.cache import Cache
from penstock.extras.view.view import Viewer
from penstock.loader.status import StatusFile
from penstock.recipe import Recipe
from penstock.recipe.run import load_prepared, open_recipe, prepare_recipe
from penstock.report import trace
from tests.extras.view.conftest import PATIENCE, Ask, asking, open_view


def complete(view: Viewer) -> Viewer:
    assert view.facts is not None and view.facts.job.wait(PATIENCE) is not None, (
        "tokens are counted"
    )
    return view


def made(folder: Path, records: list[dict[str, Any]], tokenizer: Path, **keys: Any) -> Viewer:
    """The viewer over one prepared file."""
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    recipe = {
        "data": "rows.jsonl",
        "tokenizer": str(tokenizer),
        "template": "text",
        "cache_dir": "cache",
        "max_dropped": 1,
        "max_length": 64,
        "batch_size": 3,
        "num_proc": 1,
        **keys,
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    prepare_recipe(Recipe.read(folder / "recipe.yaml").changed(progress="none"))
    return complete(open_view(folder / "recipe.yaml"))


@pytest.mark.parametrize("last_step", ["pad", "drop", "repeat", "wrap"])
def test_steps_and_positions_are_those_of_the_batches_with_every_tail(
    recipe_path: Path, last_step: str
) -> None:
    """Of three epochs, because only later ones show what an earlier one has left over."""
    path = recipe_path.with_name(f"{last_step}.yaml")
    path.write_text(
        json.dumps(
            {
                **json.loads(recipe_path.read_text()),
                "last_step": last_step,
                "epochs": 3,
                "batch_size": 5,
            }
        )
    )
    view = complete(open_view(path))
    ask, options = asking(view), {"progress": "none", "output": "numpy", "world_size": 2}
    steps = [
        list(both)
        for both in zip(*(ps.load(path, rank=rank, **options) for rank in (0, 1)), strict=True)
    ]
    expected: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for number, ranks in enumerate(steps):
        for rank, batch in enumerate(ranks):
            for row in range(batch.rows.num_rows):
                for source, sample, start, stop in batch.rows[row].tolist():
                    expected[int(view.starts[source]) + sample].add(
                        (number, rank, row, start, stop)
                    )
    seen: set[int] = set()
    for epoch in range(3):
        found = ask("run", epoch=epoch, bins=1000)
        for number, tokens in enumerate(found["strip"]["tokens"], start=found["first_step"]):
            spans = np.concatenate([batch.rows.spans for batch in steps[number]])
            sizes = np.bincount(spans["source"], spans["stop"] - spans["start"], minlength=2)
            assert tokens == sizes.tolist(), (epoch, number)
            seen.add(number)
    assert seen == set(range(len(steps)))
    for row in range(0, 250, 9):
        found = [
            each
            for epoch in range(3)
            for each in ask("positions", row=row, epoch=epoch)["landings"]
        ]
        got = {(at["step"], at["rank"], at["row"], at["start"], at["stop"]) for at in found}
        repeated = (
            expected[row] - got
        )  # rows that fill up a last step are not positions of their own
        assert got <= expected[row] and (not repeated or last_step == "repeat"), row
    rows = open_view(path)._loader
    assert rows is not None and ask("what_if")["steps"] == rows.plan.num_steps(10, epochs=1)


def test_a_record_after_the_last_full_step_is_in_no_step(recipe_path: Path) -> None:
    path = recipe_path.with_name("last_step.yaml")
    path.write_text(
        json.dumps(
            {
                **json.loads(recipe_path.read_text()),
                "last_step": "drop",
                "epochs": 1,
                "batch_size": 5,
            }
        )
    )
    recipe = Recipe.read(path)
    loader = load_prepared(
        recipe, open_recipe(recipe, rows=1, skip_bad=True), rank=0, world_size=2, output="numpy"
    )
    assert loader is not None
    first, carried, steps = trace.epoch_steps(loader, 0)
    block = loader.plan.blocks.pack(0, 0)
    assert (first, carried) == (0, 0) and block is not None and block.rows.num_rows % 10
    last = block.rows.slice(10 * steps, block.rows.num_rows).spans[0]
    found = trace.record(loader, int(last["sample"]), source=int(last["source"]))
    assert found.landings == () and "last_step: drop" in found.outcome


@pytest.mark.parametrize("count", [0, 20])
def test_a_run_without_a_step_is_shown_as_such(
    tmp_path: Path, tokenizer_path: Path, count: int
) -> None:
    """An empty dataset, and one of which every sample is too long."""
    ask = asking(
        made(tmp_path, [{"text": "the quick fox " * 9}] * count, tokenizer_path, max_length=2)
    )
    found = ask("run")
    assert (
        found["progress"]["error"] is None
        and found["strip"]["steps"] == found["numbers"]["steps"] == 0
    )
    assert ask("overview")["prepared"] is True and ask("rows", reason="any")["total"] == count
    assert ask("what_if")["steps"] == 0


def test_every_piece_of_a_sample_is_listed(tmp_path: Path, tokenizer_path: Path) -> None:
    view = made(
        tmp_path, [{"text": "a fox"}, {"text": "a b c " * 700}], tokenizer_path, on_overlong="split"
    )
    found, (store,) = asking(view)("positions", row=1), view.stores.values()
    assert len(found["landings"]) > 16
    assert sorted((at["start"], at["stop"]) for at in found["landings"]) == [
        (start, min(start + 64, len(store[1]))) for start in range(0, len(store[1]), 64)
    ]
    assert found["outcome"] == f"split into {len(found['landings'])} pieces"


def test_a_sample_that_is_cut_before_its_first_target_has_a_reason(
    tmp_path: Path, tokenizer_path: Path
) -> None:
    rows = [
        {"prompt": "the quick fox " * (row % 30), "completion": " runs" * (row % 7)}
        for row in range(60)
    ]
    view = made(
        tmp_path,
        rows,
        tokenizer_path,
        template="prompt_completion",
        on_overlong="truncate",
        max_length=40,
    )
    ask, (store,) = asking(view), view.stores.values()
    counted = ask("run")["numbers"]["counters"]["samples_dropped"]["nothing_to_train"]
    prepared = store.counts.dropped["nothing_to_train"].count
    assert counted > 3 and prepared > 3
    assert ask("overview")["reasons"] == {"nothing_to_train": counted + prepared}
    found = ask("rows", reason="nothing_to_train", count=200)
    assert found["total"] == counted + prepared and all(
        row["reason"] == "nothing_to_train" for row in found["rows"]
    )
    assert ask("rows", reason="none")["total"] == 60 - found["total"]


def test_a_share_on_the_border_passes_both_filters(tmp_path: Path) -> None:
    """7 of 100 tokens are 7 %, though 100 × 0.07 is more than 7 in floating point."""
    record = {"input_ids": list(range(100)), "labels": [-100] * 93 + list(range(93, 100))}
    (tmp_path / "rows.jsonl").write_text(json.dumps(record) + "\n")
    recipe = {
        "data": "rows.jsonl",
        "template": "pretokenized",
        "vocab_size": 200,
        "cache_dir": "cache",
        "max_dropped": 1,
        "max_length": 128,
        "batch_size": 1,
        "num_proc": 1,
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    prepare_recipe(Recipe.read(tmp_path / "recipe.yaml").changed(progress="none"))
    ask = asking(complete(open_view(tmp_path / "recipe.yaml", world_size=1)))
    assert ask("rows", share_from=7)["total"] == ask("rows", share_to=7)["total"] == 1


def test_numbers_and_names_that_do_not_exist_are_refused(ask: Ask) -> None:
    assert "expected a whole number" in ask("sample", status=400, row="1.5")["error"]
    assert "expected a whole number" in ask("step", status=400, step="0.5")["error"]
    assert (
        "no record is dropped as 'last_step', expected one of any, none"
        in ask("rows", status=400, reason="last_step")["error"]
    )
    assert "its folder cannot be read" in ask("live", status=400, run_id="a" * 5000)["error"]


def test_weights_are_not_compared_with_a_table_of_weights(recipe_path: Path) -> None:
    settings = json.loads(recipe_path.read_text())
    for name, weights in (("first", {0: 3, 4: 1}), ("second", {0: 1, 4: 3})):
        settings["data"][name]["weight"] = weights
    path = recipe_path.with_name("table.yaml")
    path.write_text(json.dumps(settings))
    view = complete(open_view(path))
    ask = asking(view)
    assert "has a table of weights" in ask("what_if", weights="1,1")["problem"]
    own = ask("what_if")
    assert view._loader is not None and own["steps"] == ask("run")["numbers"]["steps"] > 4
    plan = view._loader.plan
    for changes in (
        {},
        {"max_length": 70},
        {"max_length": 50, "on_overlong": "split"},
        {"packing": "concat"},
    ):
        changed = plan.changed(**changes)
        for epoch in (0, 1):
            packed, number = [], 0
            while (block := changed.blocks.pack(epoch, number)) is not None:
                packed, number = [*packed, block.counters], number + 1
            assert changed.blocks.count_dropped(epoch, with_rows=True) == reduce(add, packed), (
                changes,
                epoch,
            )


def test_ranks_of_an_earlier_and_larger_run_are_left_out(recipe_path: Path) -> None:
    view = open_view(recipe_path)
    root = Cache(recipe_path.parent / "cache").root
    for begun, size in (("before", 4), ("now", 2)):
        for rank in range(size):
            StatusFile(root, "restarted", rank, "plan").write(
                {"step": 1, "world_size": size, "begun_as": begun}
            )
    found = asking(view)("live", run_id="restarted")
    assert [(each["rank"], each["begun_as"]) for each in found["ranks"]] == [(0, "now"), (1, "now")]
    assert found["now"] >= found["ranks"][0]["written"]
    (file,) = root.glob("runs/restarted/live/*-0.json")
    file.write_text(file.read_text().replace('"rank": 0', '"rank": "x"'))
    assert "not the state of a run" in asking(view)("live", status=400, run_id="restarted")["error"]


def test_a_tool_filter_that_cannot_read_all_rows_is_not_complete(
    tmp_path: Path, tokenizer_path: Path
) -> None:
    view = made(tmp_path, [{"text": "a fox"}] * 9, tokenizer_path)
    (tmp_path / "rows.jsonl").unlink()
    view._index("record").job._thread.join()
    found = asking(view)("rows", complete=False, tools="no")
    assert found["complete"] is False and "changed while open" in found["index"]["error"]
