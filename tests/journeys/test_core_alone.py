"""Does the core do its work without extras?  It runs from a copy of the package that has none."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

ROOT = Path(__file__).parents[2]
EXTRAS = ("extras", "trainers", "rl", "sequences", "integrations")

# What the core promises is tested here; tests/house, docs and nets are about the whole tree.
TESTS_OF_THE_CORE = (
    "test_api.py",
    "cache",
    "cli",
    "contracts",
    "engines",
    "laws",
    "loader",
    "places",
    "plan",
    "recipe",
    "report",
    "sources",
    "store",
    "templates",
    "journeys/test_kill_and_resume.py",
    "journeys/test_platforms.py",
    "journeys/test_processes.py",
    "journeys/test_ranks.py",
    "journeys/test_third_party.py",
)
TESTS_OF_THE_WHOLE = {
    "docs",
    "extras",
    "house",
    "nets",
    "journeys/test_core_alone.py",  # it makes the copy
    "journeys/test_examples.py",  # many of them train
    "journeys/test_package.py",  # what is in the wheel, with extras
}

PREPARE = """\
import sys
from pathlib import Path
import numpy as np
import penstock as ps
from penstock import plugins

assert not [name for name in sys.modules if name.startswith("penstock.extras")]
assert plugins.names("formats") == [] and plugins.names("commands") == []
folder, tokenizer = Path(sys.argv[1]), sys.argv[2]
options = dict(tokenizer=tokenizer, cache_dir=folder / "cache")
stores = {
    "text": ps.prepare(folder / "text.jsonl", template="text", num_proc=2, **options),
    "chats": ps.prepare(folder / "chats.jsonl", template="messages", num_proc=1, **options),
    "tokens": ps.prepare(folder / "tokens.jsonl", template="pretokenized", vocab_size=400, cache_dir=folder / "cache", num_proc=1),
}
assert all(store.counts.samples == 40 for store in stores.values()), stores
for output in ("torch", "numpy"):
    loader = ps.Loader(stores, batch_size=2, max_length=128, output=output, rank=0, world_size=1)
    batches = list(loader)
    assert sum(len(row) for batch in batches for row in batch.provenance) == 120
whole = [batch["input_ids"].tolist() for batch in batches]
first = ps.Loader(stores, batch_size=2, max_length=128, output="numpy", rank=0, world_size=1)
seen = [batch["input_ids"].tolist() for _, batch in zip(range(3), first)]
second = ps.Loader(stores, batch_size=2, max_length=128, output="numpy", rank=0, world_size=1)
second.load_state_dict(first.state_dict())
rest = [batch["input_ids"].tolist() for batch in second]
assert seen + rest == whole, (len(seen), len(rest), len(whole))
records = ps.Loader(ps.open(folder / "chats.jsonl"), batch_size=4, rank=0, world_size=1)
assert len(list(records)) == 10
"""

ENDLESS = """\
import json, sys, time
import penstock as ps

loader = ps.load(sys.argv[1], output="numpy", rank=0, world_size=1)
if len(sys.argv) > 3:
    loader.load_state_dict(json.loads(open(sys.argv[2]).read()))
for batch in loader:
    print(json.dumps(batch["input_ids"].tolist()), flush=True)
    with open(sys.argv[2] + ".new", "w") as file:
        json.dump(loader.state_dict(), file)
    import os
    os.replace(sys.argv[2] + ".new", sys.argv[2])
    if len(sys.argv) == 3 and loader.state_dict()["step"] == 3:
        time.sleep(600)  # until it is killed
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package that has no extras."""
    folder = tmp_path_factory.mktemp("core")
    package = Path(penstock.__file__).parent
    without = shutil.ignore_patterns("__pycache__", *EXTRAS)
    shutil.copytree(package, folder / "penstock", ignore=without)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Text, chats and tokens, and a recipe of the chats."""
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"]
    rows = range(40)
    texts = [{"text": " ".join(words[: 2 + row % 7]) + f" {row}"} for row in rows]
    chats = [
        [{"role": "user", "content": text["text"]}, {"role": "assistant", "content": "a dog"}]
        for text in texts
    ]
    tokens = [{"input_ids": list(range(1, 3 + row % 9))} for row in rows]
    for name, records in (
        ("text", texts),
        ("chats", [{"messages": chat} for chat in chats]),
        ("tokens", tokens),
    ):
        lines = "".join(f"{json.dumps(record)}\n" for record in records)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    return tmp_path


def environment(core: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(core), "PENSTOCK_CACHE": str(core / "cache")}


def run(core: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment(core),
        cwd=core,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_text_chats_tokens_and_records_are_prepared_loaded_and_resumed(
    core: Path, data: Path, tokenizer_path: Path
) -> None:
    run(core, "-c", PREPARE, data, tokenizer_path)


SETTING_OF_AN_EXTRA = """\
import sys
import penstock as ps

try:
    ps.Loader(ps.open(sys.argv[1]), batch_size=1, mirror_bytes=1)
except ps.errors.PlanError as error:
    assert "no option 'mirror_bytes'; it belongs to an extra" in str(error), error
else:
    raise AssertionError("it was taken")
"""


def test_a_setting_of_an_extra_that_is_not_installed_is_refused(core: Path, data: Path) -> None:
    run(core, "-c", SETTING_OF_AN_EXTRA, data / "text.jsonl")


def write_recipe(data: Path, tokenizer: Path) -> Path:
    recipe = data / "recipe.yaml"
    keys = {
        "data": "chats.jsonl",
        "template": "messages",
        "tokenizer": str(tokenizer),
        "max_length": 64,
        "batch_size": 2,
        "num_proc": 1,
    }
    recipe.write_text(json.dumps(keys))
    return recipe


def test_the_command_line_has_the_commands_of_the_core(
    core: Path, data: Path, tokenizer_path: Path
) -> None:
    recipe = write_recipe(data, tokenizer_path)
    shown = run(core, "-m", "penstock", "--help").stdout
    assert "check " in shown and "view " not in shown and "import " not in shown
    for command in ("check", "prepare", "stats", "plan", "show"):
        assert run(core, "-m", "penstock", command, recipe).stdout
    assert "step 0" in run(core, "-m", "penstock", "trace", recipe, "--step", "0").stdout
    assert run(core, "-m", "penstock", "verify", recipe).stdout


def test_a_command_of_an_extra_that_is_not_installed_is_named(core: Path) -> None:
    command = [sys.executable, "-m", "penstock", "view", "recipe.yaml"]
    done = subprocess.run(
        command, env=environment(core), cwd=core, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "'view' belongs to penstock.extras.view, which this installation does not have" in (
        done.stderr
    )


def test_a_killed_run_is_resumed(core: Path, data: Path, tokenizer_path: Path) -> None:
    recipe = write_recipe(data, tokenizer_path)
    state = data / "state.json"
    run(core, "-m", "penstock", "prepare", recipe)
    whole = run(core, "-c", ENDLESS.replace("len(sys.argv) == 3", "False"), recipe, data / "x.json")
    killed = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, recipe, state],
        env=environment(core),
        cwd=core,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert killed.stdout is not None
    before = [killed.stdout.readline() for _ in range(3)]
    while not state.exists() or json.loads(state.read_text())["step"] < 3:
        assert killed.poll() is None
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    after = run(core, "-c", ENDLESS, recipe, state, "resume").stdout
    assert "".join(before) + after == whole.stdout


@pytest.mark.soak
@pytest.mark.parametrize("tests", TESTS_OF_THE_CORE)
def test_the_tests_of_the_core_pass_without_extras(core: Path, tests: str) -> None:
    """All but those with the mark `extra`: they stand in a table of the core, and need what an extra adds to it."""
    left_out = ("PENSTOCK_SOAK", "PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not extra"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"tests/{tests}"],
        cwd=ROOT,
        env={**kept, "PYTHONPATH": str(core), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-2000:]


def test_every_test_is_one_of_the_core_or_of_the_whole() -> None:
    tests = ROOT / "tests"
    folders = [
        file.parent for file in tests.glob("*/__init__.py") if file.parent.name != "journeys"
    ]
    files = [*tests.glob("test_*.py"), *tests.glob("journeys/test_*.py")]
    names = {path.relative_to(tests).as_posix() for path in (*folders, *files)}
    assert names == {*TESTS_OF_THE_CORE} | TESTS_OF_THE_WHOLE


def test_the_copy_without_extras_is_what_a_process_imports(core: Path) -> None:
    shown = run(core, "-c", "import penstock; print(penstock.__file__)").stdout
    assert Path(shown.strip()).is_relative_to(core)
