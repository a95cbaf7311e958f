"""Does `prepare` run on an engine of the user's own, and is the store the same?"""

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.engines import run_task
from penstock.errors import StoreError
from penstock.testing import check_engine


class Threads:
    """Runs the tasks that there are in two threads, then the ones that came since."""

    def __init__(self) -> None:
        self.num_tasks = 0

    def run(
        self,
        work: Callable[[Any], Any],
        tasks: Iterable[Any],
        *,
        on_note: Callable[[Any, Any], object] | None = None,
    ) -> Iterator[Any]:
        waiting = iter(tasks)
        with ThreadPoolExecutor(2) as pool:
            while (batch := [task for _, task in zip(range(2), waiting, strict=False)]) != []:
                given = [
                    pool.submit(run_task, work, task, on_note) for task in batch if task is not None
                ]
                self.num_tasks += len(given)
                yield from (each.result() for each in given)


def shards(root: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in root.rglob("*")
        if path.suffix in (".arrow", ".lengths")
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for file in range(4):
        lines = [json.dumps({"text": f"the fox {file} {row}"}) + "\n" for row in range(50)]
        (tmp_path / f"{file}.jsonl").write_text("".join(lines))
    return tmp_path


def test_an_engine_of_the_user_keeps_the_contract() -> None:
    check_engine(Threads())


@pytest.mark.parametrize("background", [False, True])
def test_prepare_runs_on_an_engine_of_the_user_and_gives_the_same_bytes(
    data: Path, tokenizer_path: Path, background: bool
) -> None:
    engine = Threads()
    source = ps.concat(
        [ps.open(data / f"{file}.jsonl", cache_dir=data / "index") for file in range(4)]
    )
    settings = {"tokenizer": tokenizer_path, "template": "text", "progress": "none"}
    own = ps.prepare(
        source, cache_dir=data / "own", engine=engine, background=background, **settings
    ).wait()
    local = ps.prepare(source, cache_dir=data / "local", engine="local", num_proc=2, **settings)
    assert engine.num_tasks >= own.num_shards == local.num_shards >= 4
    assert own.fingerprint == local.fingerprint and shards(data / "own") == shards(data / "local")


@pytest.mark.extra("ray")
def test_a_recipe_names_its_engine_and_load_takes_an_object(
    data: Path, tokenizer_path: Path
) -> None:
    text = f"data: ['0.jsonl', '1.jsonl']\ntokenizer: {tokenizer_path}\ntemplate: text\nbatch_size: 2\nmax_length: 64\n"
    recipe = data / "recipe.yaml"
    recipe.write_text(text + "engine: local\ncache_dir: first\n")
    named = [
        batch["input_ids"].tolist() for batch in ps.load(recipe, output="numpy", progress="none")
    ]
    engine = Threads()
    changes = {
        "engine": engine,
        "cache_dir": str(data / "second"),
        "output": "numpy",
        "progress": "none",
    }
    assert [batch["input_ids"].tolist() for batch in ps.load(recipe, **changes)] == named
    assert engine.num_tasks > 0
    recipe.write_text(text + "engine: locl\ncache_dir: third\n")
    with pytest.raises(
        StoreError,
        match=r"engine is 'locl', expected 'local', 'ray' or an object .*did you mean 'local'\?",
    ):
        ps.load(recipe, progress="none")


@pytest.mark.extra("ray")
def test_a_wrong_engine_and_a_num_proc_that_it_would_not_follow_are_refused(
    data: Path, tokenizer_path: Path
) -> None:
    settings = {"tokenizer": tokenizer_path, "template": "text", "cache_dir": data / "cache"}
    with pytest.raises(
        StoreError, match=r"engine is 7, expected 'local', 'ray' or an object with a method run"
    ):
        ps.prepare(data / "0.jsonl", engine=7, **settings)
    with pytest.raises(
        StoreError, match=r"num_proc is 2, but .* is your own engine; set the number there"
    ):
        ps.prepare(data / "0.jsonl", engine=Threads(), num_proc=2, **settings)
