"""Each setting is declared once; signatures, types, the schema and old names come from that."""

import ast
import inspect
import logging
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as ps
from penstock import options
from penstock.errors import RecipeError
from penstock.recipe.options_file import FILE, text
from penstock.recipe.schema import recipe_schema

RIGHT = """
import penstock as ps

store = ps.prepare("a.jsonl", tokenizer="t", template="text", eos=True)
loader = ps.Loader(store, batch_size=2, max_length=64, packing="best_fit", on_overlong="split")
again = ps.load("r.yaml", batch_size=4, shuffle_window=16)
source = ps.open("a.csv", delimiter=";", format="csv")
prompts = ps.Prompts("r.yaml", repeats=4, lease=60.0, seed=1)
"""
WRONG = {  # as above: what a user may write instead, and the keyword that a type checker names
    "eos=True": "eoss=True",
    "max_length=64": "max_lenght=64",
    "shuffle_window=16": "shufle_window=16",
    'delimiter=";"': 'delimeter=";"',
    "repeats=4": "repeat=4",
}


def test_the_written_options_are_those_that_are_declared() -> None:
    """If this fails: python -m penstock.settings"""
    assert ast.dump(ast.parse(FILE.read_text(encoding="utf-8"))) == ast.dump(ast.parse(text()))


def test_a_type_checker_sees_every_keyword(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mypy")
    monkeypatch.setenv("MYPYPATH", str(Path(ps.__file__).parents[1]))
    wrong = RIGHT
    for right_words, wrong_words in WRONG.items():
        wrong = wrong.replace(right_words, wrong_words)
    (tmp_path / "right.py").write_text(RIGHT, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(wrong, encoding="utf-8")
    # what other packages say of their types is not the question, and takes a minute to read
    skipped = "[mypy]\nstrict = True\nfollow_imports = silent\n"
    for package in ("torch", "transformers", "datasets", "ray", "numpy", "pyarrow"):
        skipped += f"[mypy-{package}.*]\nfollow_imports = skip\nignore_missing_imports = True\n"
    (tmp_path / "mypy.ini").write_text(skipped, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "right.py", "wrong.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    for wrong_words in WRONG.values():
        keyword = wrong_words.partition("=")[0]
        assert f'Unexpected keyword argument "{keyword}"' in run.stdout
    assert f"Found {len(WRONG)} errors in 1 file" in run.stdout, run.stdout


@pytest.mark.parametrize(
    ("function", "written"),
    [
        (ps.open, options.OpenOptions),
        (ps.prepare, options.PrepareOptions),
        (ps.Loader, options.LoaderOptions),
        (ps.load, options.RecipeOptions),
        (ps.Prompts, options.PromptOptions),
    ],
)
def test_signatures_show_every_keyword(function: object, written: type) -> None:
    parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
    assert written.__annotations__.keys() <= parameters.keys()
    assert not any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    owner = function.__init__ if inspect.isclass(function) else function  # type: ignore[misc]
    assert all(f"{name}: " in str(owner.__doc__) for name in written.__annotations__)


def test_the_package_tells_type_checkers_that_it_has_types() -> None:
    assert Path(ps.__file__).with_name("py.typed").is_file()


def test_the_schema_knows_the_keys_and_their_choices() -> None:
    schema = recipe_schema()
    assert schema["properties"]["last_step"]["enum"] == ["pad", "drop", "repeat", "error", "wrap"]
    assert schema["properties"]["max_length"]["type"] == ["integer"]
    assert "tail" not in schema["properties"] and "rank" not in schema["properties"]
    of_set = schema["$defs"]["data_set"]["properties"]
    assert "path" in of_set and "train_on" in of_set and "num_proc" not in of_set


def test_old_names_work_and_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.log").write_text("one\ntwo\n")
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        source = ps.open(place=tmp_path / "a.log", shape="text", cache_dir=tmp_path)  # type: ignore[call-arg]
        assert source.where(1) == source.locate(1)
    notices = [line for line in caplog.messages if "is now written" in line]
    assert len(notices) == len(set(notices))
    with pytest.raises(TypeError, match="format is given twice: as format= and as shape="):
        ps.open(tmp_path / "a.log", shape="text", format="text")  # type: ignore[call-arg]
    loader = ps.Loader(source, batch_size=1, tail="drop", window=1)  # type: ignore[call-arg]
    assert loader.plan.settings.last_step == "drop"
    assert loader.plan.settings.shuffle_window == 1


def test_old_names_and_values_work_in_recipes() -> None:
    data = {"a": {"place": "a.jsonl", "weight": 1}, "b": {"path": "b.jsonl", "weight": 2}}
    old = {"tail": "drop", "stop": "all", "mix_by": "rows", "window": 4, "tokenizer": "t"}
    new = {"last_step": "drop", "stopping_strategy": "all_exhausted", "mix_by": "samples"}
    assert ps.Recipe.of(data, **old).settings == {**new, "shuffle_window": 4, "tokenizer": "t"}


def test_num_workers_is_refused_with_both_meanings() -> None:
    with pytest.raises(RecipeError, match=r"num_workers.*num_proc.*DataLoader"):
        ps.Recipe.of("a.jsonl", num_workers=4)


def test_settings_of_a_plugin_are_given_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x;y\n1;2\n")
    source = ps.open(
        tmp_path / "a.csv", plugin_options={"csv": {"delimiter": ";"}}, cache_dir=tmp_path
    )
    assert source[0] == {"x": "1", "y": "2"}
    with pytest.raises(TypeError, match="delimiter is given twice"):
        ps.open(tmp_path / "a.csv", delimiter=",", plugin_options={"csv": {"delimiter": ";"}})
