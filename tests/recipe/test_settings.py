"""Each setting is declared once; signatures, types, the schema and old names come from that."""

import ast
import inspect
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock import options
from penstock.errors import PlanError, RecipeError, SourceError, TemplateError
from penstock.recipe.options_file import FILE, text
from penstock.recipe.schema import recipe_schema
from penstock.settings import notice_once
from penstock.store import Store

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


@pytest.mark.extra("all")
def test_the_written_options_are_those_that_are_declared() -> None:
    """If this fails: python -m penstock.settings"""
    assert ast.dump(ast.parse(FILE.read_text(encoding="utf-8"))) == ast.dump(ast.parse(text()))


@pytest.mark.extra("rl")  # whose options stand in the script, too
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
    ("name", "written"),
    [
        ("open", options.OpenOptions),
        ("prepare", options.PrepareOptions),
        ("Loader", options.LoaderOptions),
        ("load", options.RecipeOptions),
        pytest.param("Prompts", options.PromptOptions, marks=pytest.mark.extra("rl")),
    ],
)
def test_signatures_show_every_keyword(name: str, written: type) -> None:
    function = getattr(ps, name)
    parameters = inspect.signature(function).parameters
    assert written.__annotations__.keys() <= parameters.keys()
    assert not any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    owner = function.__init__ if inspect.isclass(function) else function
    assert all(f"{keyword}: " in str(owner.__doc__) for keyword in written.__annotations__)


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


def test_an_old_name_is_logged_once_per_process_also_by_recipes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "data: {a: {path: a.jsonl, weight: 1}, b: {path: b.jsonl, weight: 1}}\nstop: first\nmix_by: rows\n"
    )
    for _ in range(2):
        ps.Recipe.read(recipe)
    assert caplog.messages == [
        f"{recipe}:2: stop is read as stopping_strategy: first_exhausted",
        f"{recipe}:3: mix_by: rows is read as mix_by: samples",
    ]


def test_an_old_name_with_an_old_value_is_one_notice(
    stored: Store, caplog: pytest.LogCaptureFixture
) -> None:
    notice_once.cache_clear()
    loader = ps.Loader({"a": (stored, 1.0)}, batch_size=1, stop="first")  # type: ignore[call-arg]
    assert loader.plan.settings.stopping_strategy == "first_exhausted"
    assert [line for line in caplog.messages if "stop" in line] == [
        "stop='first' is now written stopping_strategy='first_exhausted'; the old name still works"
    ]


@pytest.fixture
def stored(tmp_path: Path) -> Store:
    records = [{"input_ids": [1, 2, 3]}] * 4
    return ps.prepare(
        records, template="pretokenized", vocab_size=9, cache_dir=tmp_path, progress="none"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mesh": 3}, "mesh is 3, expected a device mesh"),
        ({"collate": 3}, "collate is 3, expected a function"),
        ({"interpolate": True}, "interpolate=True needs a table of weights"),
        ({"drop_last": True}, "no option 'drop_last'; write last_step='drop'"),
        ({"overflw": "drop"}, "did you mean 'on_overlong'?"),
        ({"sequence_le": 8}, "did you mean 'max_length'?"),
        ({"skip_steps": "17"}, "skip_steps is '17', expected a list"),
        ({"max_dropped": True}, "max_dropped is True, expected a number"),
        ({"model_parallel_size": 0}, "model_parallel_size is 0, expected a whole number ≥ 1"),
    ],
)
def test_a_wrong_argument_of_a_loader_is_an_error_with_advice(
    stored: Store, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlanError, match=re.escape(message)):
        ps.Loader(stored, batch_size=1, **options)


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ({"max_length": 8}, "it is an option of penstock.Loader"),
        ({"delimiter": ";"}, "it is an option of penstock.open"),
        ({"ky": "text"}, "did you mean 'key'?"),
    ],
)
def test_an_option_of_another_function_is_answered_with_that_function(
    tokenizer_path: Path, option: dict[str, Any], advice: str
) -> None:
    for template in ("auto", "text"):
        with pytest.raises(TemplateError, match=re.escape(advice)):
            ps.prepare([{"text": "a"}], tokenizer=tokenizer_path, template=template, **option)


def test_a_word_that_is_only_a_little_like_an_alias_is_not_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(SourceError, match=r"'tokenizer'; it is an option of penstock\.prepare;"):
        ps.open(tmp_path / "a.jsonl", tokenizer="t")  # type: ignore[call-arg]


@pytest.mark.extra("rl")
def test_a_misspelt_option_of_prompts_is_answered() -> None:
    with pytest.raises(
        PlanError, match="unknown option 'repeat' of Prompts; did you mean 'repeats'"
    ):
        ps.Prompts(ps.open([{"prompt": "a"}]), repeat=3)  # type: ignore[call-arg]


def test_a_key_that_is_given_under_two_names_names_both(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: a.jsonl\ntokenizer: t\n")
    with pytest.raises(RecipeError, match="given twice: as last_step, and as tail; keep one"):
        ps.load(recipe, tail="drop", last_step="pad")  # type: ignore[call-arg]


@pytest.mark.extra("all")
def test_the_documentation_of_format_names_every_format(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(SourceError, match="expected one of") as error:
        ps.open(tmp_path / "a.jsonl", format="0")
    listed = str(error.value).partition("expected one of ")[2].partition(";")[0].split(", ")
    documented = str(inspect.getdoc(ps.open)).partition(" format: ")[2].partition("\n    split:")[0]
    assert len(listed) > 20 and set(listed) <= set(re.findall(r"\w+", documented))


def test_quotes_are_proposed_only_where_any_text_is_allowed(stored: Store) -> None:
    with pytest.raises(PlanError, match=r"labels is 3, expected one of unshifted, shifted$"):
        ps.Loader(stored, batch_size=1, labels=3)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"run_id is 3, expected text; put it in quotes: '3'$"):
        ps.Loader(stored, batch_size=1, run_id=3)  # type: ignore[arg-type]


def test_the_store_of_a_mixture_that_is_none_is_named(stored: Store) -> None:
    with pytest.raises(PlanError, match=r"^'chat': found int, expected a Store"):
        ps.Loader({"math": stored, "chat": 3}, batch_size=1)  # type: ignore[dict-item]


@pytest.mark.parametrize("wrong", [3, {"a": 3}])
@pytest.mark.parametrize("function", [ps.open, ps.prepare])
def test_options_of_plugins_are_given_by_plugin(function: Any, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"plugin_options is .*, expected the options of each"):
        function([{"text": "a"}], plugin_options=wrong)


@pytest.mark.parametrize(
    ("word", "meant"), [("overflw", "on_overlong"), ("sequence_le", "max_length")]
)
def test_a_misspelt_alias_is_answered_with_the_name_itself(word: str, meant: str) -> None:
    with pytest.raises(RecipeError, match=f"unknown key '{word}'; did you mean '{meant}'\\?$"):
        ps.Recipe.of("a.jsonl", **{word: 1})


def test_an_error_about_a_data_set_has_its_place_once(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: a.jsonl\ntemplate: text\nbatch_size: 1\noptions: {bogus: 1}\n")
    with pytest.raises(SourceError) as caught:
        ps.load(recipe)
    assert str(caught.value).count("dataset 'a'") == 1
    assert caught.value.code == "source_error"


def test_num_workers_0_of_skyrl_means_in_this_process() -> None:
    recipe = ps.Recipe.of("a.jsonl", tokenizer="t", num_workers=0)
    assert recipe.run_options() == {"num_proc": 1}
    assert any("num_workers is read as num_proc: 1" in notice for notice in recipe.notices)


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
