"""A small prepared recipe of two datasets, and the viewer over it."""

import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from penstock.cache import Cache
from penstock.extras.view.server import application
from penstock.extras.view.view import Viewer
from penstock.recipe import Recipe
from penstock.recipe.run import load_prepared, open_recipe, prepare_recipe
from tests.cli.conftest import CHAT_TEMPLATE
from tests.words import WORDS

TOKEN = "a-token"
PATIENCE = 120.0  # seconds for work in the background, on a busy machine
ODD = [
    "Straße ŒUVRE",
    "日本語のテキスト",
    "naïve café",
    "a\nb\tc",
    'she said "no"',
    "<script>alert(1)</script>",
]

Ask = Callable[..., Any]


def conversations(count: int, seed: int) -> list[dict[str, Any]]:
    """Rows of all kinds: long and short, with tools, without an answer, in other alphabets."""
    chance, rows = random.Random(seed), []
    for row in range(count):
        turns = []
        for _ in range(chance.randint(1, 3)):
            words = " ".join(chance.choices(WORDS, k=chance.randint(2, 30)))
            odd = f" {chance.choice(ODD)}" if row % 5 == 0 else ""
            turns += [
                {"role": "user", "content": f"{words}{odd}"},
                {"role": "assistant", "content": words.capitalize()[:200]},
            ]
        if row % 11 == 3:
            turns = turns[:1]
        record: dict[str, Any] = {"messages": turns, "number": row}
        if row % 7 == 2:
            record["tools"] = [{"name": "look_up"}]
        rows.append(record)
    return rows


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer_path: Path) -> Path:
    """The small tokenizer with a chat template."""
    folder = tmp_path_factory.mktemp("view") / "instruct"
    shutil.copytree(tokenizer_path, folder)
    config = {"eos_token": "<|endoftext|>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_recipe(
    folder: Path, tokenizer: Path, *, weights: tuple[int, int] | None = (3, 1), **keys: Any
) -> Path:
    """A recipe of two files, one of them with lines that cannot be read."""
    lines = [json.dumps(record) for record in conversations(160, 1)]
    lines[20], lines[41] = "{broken", '["not", "an", "object"]'
    (folder / "first.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (folder / "second.jsonl").write_text(
        "".join(f"{json.dumps(record)}\n" for record in conversations(90, 2))
    )
    sets: dict[str, Any] = {name: {"path": f"{name}.jsonl"} for name in ("first", "second")}
    for (_, one), weight in zip(sets.items(), weights or (), strict=False):
        one["weight"] = weight
    settings = {
        "data": sets,
        "tokenizer": str(tokenizer),
        "template": "messages",
        "cache_dir": "cache",
        "max_dropped": 1,
        "max_length": 160,
        "batch_size": 3,
        "epochs": 2,
        "on_bad": "skip",
        "num_proc": 1,
        **keys,
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(settings))
    return path


def open_view(path: Path, *, world_size: int = 2, **options: Any) -> Viewer:
    """The viewer as the command makes it."""
    recipe = Recipe.read(path)
    opened = open_recipe(recipe, rows=1, skip_bad=True)
    loader = load_prepared(recipe, opened, rank=0, world_size=world_size, output="numpy")
    cache = Cache(recipe.settings["cache_dir"]).root
    return Viewer(
        loader,
        opened,
        settings=recipe.plan_settings(),
        title=path.name,
        command="penstock prepare x",
        cache=cache,
        **options,
    )


def client_of(view: Viewer) -> TestClient:
    return TestClient(application(view, TOKEN), base_url="http://127.0.0.1:8000")


def wait_for(condition: Callable[[], Any]) -> Any:
    """What a condition gives, as soon as it is true."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.02)
    return found


def asking(view: Viewer) -> Ask:
    """Ask the viewer over HTTP; `complete` waits until a search or a count is through."""
    client = client_of(view)

    def ask(name: str, *, status: int = 200, complete: bool = True, **asked: Any) -> Any:
        def once() -> Any:
            answer = client.get(f"/{TOKEN}/api/{name}", params=asked)
            assert answer.status_code == status, answer.text
            value = answer.json()
            is_under_way = value.get("complete") is False or (
                "progress" in value and not value["progress"]["over"]
            )
            return None if complete and is_under_way else value

        return wait_for(once)

    return ask


@pytest.fixture(scope="session")
def recipe_path(tmp_path_factory: pytest.TempPathFactory, chat_folder: Path) -> Path:
    path = write_recipe(tmp_path_factory.mktemp("recipe"), chat_folder)
    prepare_recipe(Recipe.read(path).changed(progress="none"))
    return path


@pytest.fixture(scope="session")
def view(recipe_path: Path) -> Viewer:
    made = open_view(recipe_path)
    assert made.facts is not None
    assert made.facts.job.wait(PATIENCE) is not None
    return made


@pytest.fixture(scope="session")
def ask(view: Viewer) -> Ask:
    return asking(view)
