"""How long does each interaction with the viewer take on 1,000,000 records?  Over HTTP, as the page asks.

python benchmarks/view.py [--tiny]

Makes records of about 200 characters, prepares them with a small tokenizer that it trains here, starts the viewer and asks what the page
asks.  What counts is the slowest of several requests of one kind, by the wall clock: that is what a user waits.
"""

import json
import random
import socket
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from data import library_lines, train_tokenizer
from stand import Benchmark, Report, sized

from penstock.extras.view.server import serve
from penstock.extras.view.view import Viewer
from penstock.recipe import Recipe
from penstock.recipe.run import load_prepared, open_recipe, prepare_recipe

ROWS = sized(1_000_000, 400)
MOST = 1.0  # seconds of an interaction
REPEAT = 7

BENCHMARK = Benchmark(
    title="What an interaction with the viewer costs",
    question=f"How long does each interaction with the viewer take on {ROWS:,} records?",
    measures=("extras.view", "report", "plan", "recipe"),
    packages=("starlette", "uvicorn", "numpy"),
    notes=(
        f"{ROWS:,} records of 2 data sets with weights, over HTTP on this machine; {REPEAT} different requests of each kind",
    ),
)


def make_recipe(folder: Path, rows: int) -> Path:
    """Two data sets with weights, of words; one row in a hundred is long."""
    chance = random.Random(0)
    words = [
        f"{first}{second}"
        for first in ("data", "loss", "step", "row", "mask")
        for second in ("set", "less", "wise", "s", "ing")
    ]
    for name, count in (("first", rows * 3 // 4), ("second", rows - rows * 3 // 4)):
        with (folder / f"{name}.jsonl").open("w") as file:
            for row in range(count):
                size = 400 if row % 100 == 7 else 8 + row % 40
                file.write(
                    json.dumps({"text": f"record {row} {' '.join(chance.choices(words, k=size))}"})
                    + "\n"
                )
    train_tokenizer(library_lines()[::20], folder / "tokenizer")
    sets = {
        name: {"path": f"{name}.jsonl", "weight": weight}
        for name, weight in (("first", 3), ("second", 1))
    }
    recipe = {
        "data": sets,
        "tokenizer": "tokenizer",
        "template": "text",
        "cache_dir": "cache",
        "max_length": 512,
        "batch_size": 8,
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    return path


def get(url: str, name: str, **asked: Any) -> Any:
    with urllib.request.urlopen(
        f"{url}api/{name}?{urllib.parse.urlencode(asked)}", timeout=600
    ) as answer:
        return json.load(answer)


def until(url: str, name: str, **asked: Any) -> tuple[float, float, Any]:
    """Ask until the answer is complete: seconds in all, the slowest single answer, and the last."""
    begin, slowest = time.perf_counter(), 0.0
    while True:
        before = time.perf_counter()
        found = get(url, name, **asked)
        slowest = max(slowest, time.perf_counter() - before)
        if found.get("complete", True) and found.get("progress", {}).get("over", True):
            return time.perf_counter() - begin, slowest, found
        time.sleep(0.05)


def interactions(url: str, rows: int) -> dict[str, Callable[[int], Any]]:
    """What a user does, by name; each takes the number of the repetition, so that no answer is an old one."""
    return {
        "open the page": lambda n: get(url, "overview"),
        "jump to a row": lambda n: get(url, "rows", first=n * rows // REPEAT, count=50),
        "filter by length": lambda n: get(
            url, "rows", length_from=100 + n, length_to=900, count=50, first=1000
        ),
        "filter by trained share and reason": lambda n: get(
            url, "rows", share_from=50 + n, reason="overlong", count=50
        ),
        "search a rare text": lambda n: get(url, "rows", q=f"record {rows // 2 + n} ", count=50),
        "search a common text": lambda n: get(
            url,
            "rows",
            q=["dataset", "losswise", "rowing", "masks", "steps", "lossing", "record"][n],
            count=50,
        ),
        "open a sample": lambda n: get(url, "sample", row=n * rows // REPEAT + 5),
        "steps of a sample": lambda n: get(url, "positions", row=n * rows // REPEAT + 5),
        "the run as a strip": lambda n: get(url, "run", bins=300 + n),
        "rows of a step": lambda n: get(url, "step", step=n * rows // 2000),
        "what if: another max_length": lambda n: get(url, "what_if", max_length=200 + 100 * n),
        "what if: other weights": lambda n: get(url, "what_if", weights=f"{1 + n},2"),
    }


def main(report: Report) -> None:
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as listener:
        path = make_recipe(Path(name), ROWS)
        recipe = Recipe.read(path).changed(progress="none")
        prepare_recipe(recipe)
        begin = time.perf_counter()
        opened = open_recipe(recipe, rows=1)
        view = Viewer(
            load_prepared(recipe, opened, rank=0, world_size=1, output="numpy"),
            opened,
            settings=recipe.plan_settings(),
        )
        seconds_open = time.perf_counter() - begin
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/token/"
        threading.Thread(
            target=serve, args=(view, listener, "token", "127.0.0.1"), daemon=True
        ).start()
        background = {"open the recipe": (seconds_open, seconds_open)}
        background["count tokens of every row"] = until(url, "rows", share_from=1)[:2]
        background["pack the epoch"] = until(url, "run")[:2]
        background["index of records: first search"] = until(url, "rows", q="dataless")[:2]
        timed: dict[str, list[float]] = {}
        for what, work in interactions(url, ROWS).items():
            for number in range(REPEAT):
                before = time.perf_counter()
                work(number)
                timed.setdefault(what, []).append(time.perf_counter() - before)
    worst = max(timed, key=lambda what: max(timed[what]))
    what = f"slowest request of all interactions on {ROWS:,} records"
    report.number("slowest", what, max(timed[worst]), "s", at_most=MOST, note=worst)
    what = "the same, by median of its kind"
    report.number("median", what, max(median(each) for each in timed.values()), "s", at_most=MOST)
    lines = [[what, f"{median(each):.3f}", f"{max(each):.3f}"] for what, each in timed.items()]
    header = ["interaction", f"median of {REPEAT}", "slowest"]
    report.table("Seconds of one request, by the clock", header, lines)
    once = [
        [what, f"{seconds:.1f}", f"{slowest:.2f}"]
        for what, (seconds, slowest) in background.items()
    ]
    header = ["work", "seconds", "slowest answer meanwhile"]
    report.table("In the background, once", header, once)


if __name__ == "__main__":
    BENCHMARK.run(main)
