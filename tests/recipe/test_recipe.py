"""Is a recipe the same job as the keyword arguments, and is every mistake in it named by its line?"""

import inspect
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.aliases import ALIASES
from penstock.api import OpenSettings, PrepareSettings
from penstock.cli.main import run
from penstock.errors import PenstockError, PlanError, RecipeError, SourceError, TemplateError
from penstock.loader.layout import BatchForm, LoaderSettings
from penstock.plan.settings import PlanSettings
from penstock.recipe import Recipe
from penstock.recipe.keys import keys, source_options
from penstock.settings import declared

Write = Callable[..., Path]

TEXTS = [{"text": f"the quick brown fox {row} " * (row % 5 + 1)} for row in range(60)]
CHATS = [
    {
        "messages": [
            {"role": "user", "content": f"fox {row}"},
            {"role": "assistant", "content": "the lazy dog"},
        ]
    }
    for row in range(40)
]


@pytest.fixture
def write(tmp_path: Path, tokenizer_path: Path, write_jsonl: Write) -> Callable[[str], Path]:
    """A recipe next to its data; TOKENIZER and CACHE are filled in."""
    write_jsonl(TEXTS, "text.jsonl")
    write_jsonl(CHATS, "chat.jsonl")

    def make(text: str, name: str = "recipe.yaml") -> Path:
        path = tmp_path / name
        path.write_text(
            text.replace("TOKENIZER", str(tokenizer_path)).replace("CACHE", str(tmp_path / "cache"))
        )
        return path

    return make


def batches(loader: ps.Loader) -> list[dict[str, Any]]:
    return [{name: np.asarray(value).tolist() for name, value in batch.items()} for batch in loader]


# The same job


def test_a_file_is_the_keyword_arguments(write: Any, tokenizer_path: Path, tmp_path: Path) -> None:
    path = write(
        """
        data: text.jsonl
        tokenizer: TOKENIZER
        template: text
        eos: false
        cache_dir: CACHE
        num_proc: 1
        max_length: 64
        batch_size: 2
        seed: 7
        output: numpy
        """
    )
    store = ps.prepare(
        tmp_path / "text.jsonl",
        tokenizer=tokenizer_path,
        template="text",
        eos=False,
        cache_dir=tmp_path / "cache",
        num_proc=1,
    )
    by_hand = ps.Loader(
        store, max_length=64, batch_size=2, seed=7, output="numpy", rank=0, world_size=1
    )
    from_file = ps.load(path, rank=0, world_size=1)
    assert from_file.plan.fingerprint == by_hand.plan.fingerprint
    assert batches(from_file) == batches(by_hand) != []
    same = Recipe.of(
        str(tmp_path / "text.jsonl"),
        tokenizer=str(tokenizer_path),
        template="text",
        eos=False,
        cache_dir=str(tmp_path / "cache"),
        num_proc=1,
        max_length=64,
        batch_size=2,
        seed=7,
        output="numpy",
    )
    assert Recipe.read(path) == same
    assert Recipe.read(path) != same.changed(seed=8)
    assert ps.load(same, rank=0, world_size=1).plan.fingerprint == by_hand.plan.fingerprint


def test_several_data_sets_with_weights_and_words_of_their_own(write: Any, tmp_path: Path) -> None:
    path = write(
        """
        data:
          talk: {path: chat.jsonl, weight: 0.75, template: messages, train_on: all}
          prose:
            path: text.jsonl@[:50]
            weight: 0.25
            template: text
            key: text
            on_bad: skip
            options: {unique_keys: false}
        tokenizer: TOKENIZER
        cache_dir: CACHE
        num_proc: 1
        train_on: last      # of the one whose template has it
        batch_size: 2
        max_length: 64
        output: numpy
        """
    )
    recipe = Recipe.read(path)
    talk, prose = recipe.data
    assert recipe.prepare_options(talk) == {
        "tokenizer": recipe.settings["tokenizer"],
        "template": "messages",
        "train_on": "all",
    }
    assert recipe.open_options(prose) == {"on_bad": "skip", "unique_keys": False}
    assert "train_on" not in recipe.prepare_options(prose)
    loader = ps.load(path, rank=0, world_size=1)
    assert [source.name for source in loader.plan.sources] == ["talk", "prose"]
    assert loader.plan.settings.weights == ("3/4", "1/4")
    assert len(loader.stores[1]) == 50
    assert "talk (0.75), prose (0.25)" in repr(recipe) and "recipe.yaml" in repr(recipe)


def test_eval_sets_are_one_pass_in_the_order_of_the_file(write: Any) -> None:
    path = write(
        """
        data: text.jsonl
        tokenizer: TOKENIZER
        cache_dir: CACHE
        num_proc: 1
        batch_size: 2
        max_length: 64
        epochs: 3
        last_step: drop
        output: numpy
        eval:
          held_out: text.jsonl@[:5]
          short: {path: text.jsonl, batch_size: 1, max_length: 16, on_overlong: truncate, packing: none}
        """
    )
    assert Recipe.read(path).parts == ("train", "held_out", "short")
    held_out = ps.load(path, part="held_out", rank=0, world_size=1)
    assert (
        held_out.epochs == 1
        and held_out.plan.settings.last_step == "pad"
        and not held_out.plan.settings.shuffle
    )
    lines = [where.line for batch in held_out for row in batch.provenance for where, _, _ in row]
    assert sorted(lines) == [1, 2, 3, 4, 5]
    short = ps.load(path, part="short", rank=0, world_size=1)
    assert (
        short.batch_size == 1
        and short.plan.settings.max_length == 16
        and short.plan.settings.packing == "none"
    )
    assert len(list(short)) == 60
    with pytest.raises(
        RecipeError, match=r"unknown part 'eval', expected one of train, held_out, short"
    ):
        ps.load(path, part="eval")
    one = Recipe.of("a.jsonl", eval="b.jsonl")
    assert one.part("eval") == one.part("b") == one.eval_sets


def test_changes_count_for_every_data_set(write: Any) -> None:
    path = write(
        "data: {a: {path: text.jsonl, template: text, eos: false}, b: {path: 'text.jsonl@[:9]', template: text}}\n"
        "tokenizer: TOKENIZER\nbatch_size: 1\ncache_dir: CACHE\nnum_proc: 1\noutput: numpy\n"
    )
    recipe = Recipe.read(path).changed(eos=True, max_length=32)
    assert [recipe.prepare_options(data)["eos"] for data in recipe.data] == [True, True]
    assert (
        recipe.settings["max_length"] == 32 and Recipe.read(path).settings.get("max_length") is None
    )
    loader = ps.load(path, max_length=32, on_overlong="drop", rank=1, world_size=2, batch_size=3)
    assert (loader.world.rank, loader.world.size, loader.batch_size) == (1, 2, 3)
    other = Recipe.read(path).changed(data="chat.jsonl", template="messages")
    assert [data.path for data in other.data] == ["chat.jsonl"]
    with pytest.raises(
        RecipeError, match=r"^unknown key 'max_lenght'; did you mean 'max_length'\?"
    ):
        ps.load(path, max_lenght=32)


def test_paths_are_relative_to_the_recipe(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "template.jinja").write_text("{{ messages[0].content }}")
    (tmp_path / "tok").mkdir()
    path = write(
        "data: [text.jsonl, ~/more.jsonl, s3://bucket/x.jsonl]\ntokenizer: tok\ncache_dir: ../cache\nchat_template: template.jinja\n"
    )
    monkeypatch.setenv("HOME", "/home/somebody")
    recipe = Recipe.read(path)
    (data,) = recipe.data
    assert data.path == (
        f"{tmp_path}/text.jsonl",
        "/home/somebody/more.jsonl",
        "s3://bucket/x.jsonl",
    )
    assert (
        recipe.settings["tokenizer"] == f"{tmp_path}/tok"
        and recipe.settings["cache_dir"] == f"{tmp_path}/../cache"
    )
    assert recipe.prepare_options(data)["chat_template"] == "{{ messages[0].content }}"
    hub = Recipe.read(write("data: text.jsonl\ntokenizer: org/model\nchat_template: tool_use\n"))
    assert (
        hub.settings["tokenizer"] == "org/model"
        and hub.prepare_options(hub.data[0])["chat_template"] == "tool_use"
    )


def test_environment_variables_stand_for_text(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "text.jsonl")
    monkeypatch.setenv("ROWS", "32")
    text = "data: ${PLACE}\nbatch_size: ${ROWS}\nmax_length: ${UNSET_ONE:-128}\nrun_id: '${ROWS}'\ntemplate_kwargs: {a: \"$${ROWS}\"}\n"
    recipe = Recipe.read(write(text))
    assert recipe.data[0].path.endswith("/text.jsonl") and recipe.settings["batch_size"] == 32
    assert recipe.settings["max_length"] == 128 and recipe.settings["run_id"] == "32"
    assert recipe.settings["chat_template_kwargs"] == {"a": "${ROWS}"}
    again = Recipe.read(write(recipe.to_yaml(), "again.yaml"))
    assert again == recipe


def test_a_recipe_is_written_back(write: Any, tmp_path: Path) -> None:
    path = write(
        """
        data:
          a: {path: [text.jsonl, chat.jsonl], weight: 2, options: {unique_keys: true}}
          b: {path: chat.jsonl, weight: 0.5, template: messages, role_map: {assistant: [bot, 'no']}}
        eval: {c: {path: text.jsonl, batch_size: 1}}
        tokenizer: TOKENIZER
        run_id: '1e5'
        today: '012'
        skip_steps: [1, 2]
        epochs: null
        shuffle: false
        chat_template_kwargs: {words: 'on', line: "a\\nb", number: 1e-3}
        """
    )
    recipe = Recipe.read(path)
    for folder in (None, tmp_path):
        again = Recipe.read(write(recipe.to_yaml(folder), "again.yaml"))
        assert again == recipe, recipe.to_yaml(folder)
    assert "path: chat.jsonl" in recipe.to_yaml(tmp_path)
    with pytest.raises(RecipeError, match="holds a value that YAML cannot"):
        Recipe.of("a.jsonl", collate=len).to_yaml()


# One definition


@pytest.mark.extra("all")  # the signatures name the settings of every extra
def test_every_setting_of_the_verbs_is_a_key_with_its_default() -> None:
    for owner in (OpenSettings, PrepareSettings, LoaderSettings, PlanSettings, BatchForm):
        for name, setting in declared(owner).items():
            if name not in ("name", "weights"):  # a recipe has other places for them
                assert keys()[name].default == setting.default
    in_options = source_options().keys() | {"plugin_options", "version", "spool_bytes"}
    for verb in (ps.open, ps.prepare, ps.Loader):
        names = inspect.signature(verb).parameters.keys() - {"path", "stores", "name"}
        assert names - in_options <= keys().keys()


# Names of other tools


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("packing_length: 99", {"max_length": 99}),
        ("cutoff_len: 99", {"max_length": 99}),
        ("packing_strategy: first_fit", {"packing": "first_fit"}),
        ("packing_strategy: window_8", {"packing": "window_8"}),
        ("packing_strategy: bfd", {"packing": "best_fit"}),
        ("sample_packing: false", {"packing": "none"}),
        ("packing: true", {"packing": "mixed_fit"}),
        ("filter_overlong: true", {"on_overlong": "drop"}),
        ("force_recache: true", {"refresh": True}),
        ("disable_cache: true", {"cache": False}),
        ("dataset_num_proc: 3", {"num_proc": 3}),
        ("sampling_strategy: exact", {"last_step": "pad"}),
        ("label_key: answer", {"output_key": "answer"}),
        ("tools_key: t", {"tool_key": "t"}),
        ("dataset_format: jsonl", {"format": "jsonl"}),
        ("train_on_what: last_assistant_message", {"train_on": "last"}),
        ("train_on_inputs: false", {}),
        ("sampler: sequential", {"shuffle": False}),
        ("streaming: true", {"background": True, "shuffle_window": 16}),
        ("streaming: false", {}),
        ("dataset_type: vision_iterable", {"background": True, "shuffle_window": 16}),
        ("dataset_type: fineweb_edu", {"background": True, "shuffle_window": 16}),
        ("dataset_type: vision", {}),
    ],
)
def test_names_of_other_tools_come_with_a_notice(
    write: Any, caplog: pytest.LogCaptureFixture, line: str, expected: dict[str, Any]
) -> None:
    path = write(f"data: text.jsonl\n{line}\n")
    with caplog.at_level(logging.WARNING, "penstock"):
        recipe = Recipe.read(path)
    assert dict(recipe.settings) == expected
    (notice,) = recipe.notices
    assert notice.startswith(f"{path}:2: {line.partition(':')[0]} is ") and notice in caplog.text


# Sizes of the batches of each rank, with batch_size 32: observed by running SequifierDatasetFromFolderPt of sequifier 1.2.0.0, the last
# release with sampling_strategy, under gloo with 1 and 2 ranks, over 4 files of about 30 samples.
SEQUIFIER = {
    ("exact", 120, 1): [[32, 32, 32, 24]],
    ("exact", 120, 2): [[32, 28], [32, 28]],
    ("exact", 121, 1): [[32, 32, 32, 25]],
    ("exact", 121, 2): [[32, 29], [32, 28]],
    ("oversampling", 120, 1): [[32, 32, 32, 24]],
    ("oversampling", 121, 2): [[32, 29], [32, 29]],  # one sample twice
    ("undersampling", 120, 1): [[32, 32, 32, 24]],
    ("undersampling", 121, 2): [[32, 28], [32, 28]],  # one sample never
}


@pytest.mark.parametrize(("strategy", "count", "ranks"), SEQUIFIER)
def test_sampling_strategy_means_what_sequifier_means(
    write: Any, strategy: str, count: int, ranks: int
) -> None:
    """Q1: it was read as what becomes of the last step; it is about ranks with different numbers of samples."""
    path = write(f"data: text.jsonl\nsampling_strategy: {strategy}\n")
    if strategy != "exact":
        with pytest.raises(
            RecipeError, match=f"{strategy} .*which no last step does; write last_step: pad"
        ):
            Recipe.read(path)
        return
    last_step = Recipe.read(path).settings["last_step"]
    records = [{"n": n} for n in range(count)]
    delivered = []
    sizes = []
    for rank in range(ranks):
        source = ps.open(records)
        loader = ps.Loader(
            source, batch_size=32, last_step=last_step, rank=rank, world_size=ranks, output="numpy"
        )
        batches = [[record["n"] for record in batch["records"]] for batch in loader]
        sizes.append([len(batch) for batch in batches])
        delivered += [n for batch in batches for n in batch]
    assert sizes == SEQUIFIER[strategy, count, ranks]
    assert sorted(delivered) == list(range(count))


@pytest.mark.parametrize("kind", ["rae", "sit", "bagel_iterable", "nit", "llava_video", "vison"])
def test_l1_types_of_lmms_engine_without_an_equivalent_are_refused(write: Any, kind: str) -> None:
    """L1: they were called the default, and a run on text was planned."""
    said = f"dataset_type: {kind} has no equivalent.*: vision, vision_audio, .*fineweb_edu"
    with pytest.raises(RecipeError, match=said):
        Recipe.read(write(f"data: text.jsonl\ndataset_type: {kind}\n"))


def test_a_foreign_key_that_asks_for_the_default_is_said_to_be_not_needed(write: Any) -> None:
    recipe = Recipe.read(write("data: text.jsonl\ndataset_type: vision\n"))
    assert recipe.notices[0].endswith("dataset_type is not needed: what it asks for is the default")


def test_streaming_gives_way_to_what_is_written_beside_it(write: Any) -> None:
    lines = ["dataset_type: qwen3_vl_iterable", "shuffle_window: 4", "streaming: true"]
    recipe = Recipe.read(write("\n".join(["data: text.jsonl", *lines])))
    assert dict(recipe.settings) == {"background": True, "shuffle_window": 4}
    assert [notice.partition(": ")[2] for notice in recipe.notices] == [
        f"{name} is read as background: true" for name in ("dataset_type", "streaming")
    ]


@pytest.mark.parametrize("lines", ["", "shuffle_window: auto\n", "shuffle_window: all\n"])
def test_background_without_a_window_of_some_shards_is_refused_with_the_reason(
    write: Any, lines: str
) -> None:
    path = write(f"data: text.jsonl\n{lines}background: true\n")
    line = 2 + bool(lines)
    with pytest.raises(
        RecipeError,
        match=rf":{line}: background: true .* would need every one of them; write shuffle_window: 16",
    ):
        Recipe.read(path)
    with pytest.raises(RecipeError, match="write shuffle_window: 16"):
        Recipe.of("text.jsonl", background=True)
    for allowed in ({"shuffle_window": 16}, {"shuffle": False}):
        assert Recipe.of("text.jsonl", background=True, **allowed).settings["background"]


def test_data_of_other_tools(write: Any) -> None:
    recipe = Recipe.read(
        write(
            "dataset_path: text.jsonl\neval_datasets:\n  - path: chat.jsonl\n    name: held\n    type: chat_template\n"
        )
    )
    assert recipe.data[0].path.endswith("/text.jsonl") and recipe.eval_sets[0].name == "held"
    assert recipe.eval_sets[0].options == {"template": "messages"}
    listed = Recipe.read(
        write(
            "datasets:\n  - json_path: text.jsonl\n    sampling_ratio: 2\n  - {data_path: chat.jsonl, ratio: 1}\n"
        )
    )
    assert [(data.name, data.weight) for data in listed.data] == [("text", 2.0), ("chat", 1.0)]


@pytest.mark.parametrize(
    ("lines", "expected", "unused"),
    [
        ("packing: true\npacking_strategy: next_fit", "next_fit", "packing"),
        ("packing_strategy: bfd\nsample_packing: true", "best_fit", "sample_packing"),
        ("packing: false\npacking_strategy: next_fit", "none", "packing_strategy"),
    ],
)
def test_whether_and_how_to_pack_may_be_two_keys(
    write: Any, lines: str, expected: str, unused: str
) -> None:
    recipe = Recipe.read(write(f"data: text.jsonl\n{lines}\n"))
    assert recipe.settings["packing"] == expected
    assert any(f": {unused} is not used: " in notice for notice in recipe.notices)


@pytest.mark.extra("media")
def test_the_configuration_of_lmms_engine_with_media_is_understood(write: Any) -> None:
    path = write(
        """
dataset_type: qwen3_vl_iterable
dataset_format: jsonl
datasets:
  - path: text.jsonl
    data_folder: media
    data_type: jsonl
processor_config:
  processor_name: models/qwen
  processor_type: qwen3_vl
packing: true
packing_strategy: first_fit
"""
    )
    folder = Path(path).parent
    (folder / "models/qwen").mkdir(parents=True)
    recipe = Recipe.read(path)
    assert recipe.data[0].options == {"format": "jsonl", "media_root": str(folder / "media")}
    ours = {
        "tokenizer": str(folder / "models/qwen"),
        "processor": str(folder / "models/qwen"),
        "packing": "first_fit",
    }
    assert recipe.settings.items() >= {**ours, "background": True, "shuffle_window": 16}.items()
    assert any(":6: data_folder is read as media_root: media" in each for each in recipe.notices)


@pytest.mark.extra("media")
def test_a_tokenizer_beside_a_processor_config_counts(write: Any) -> None:
    lines = "data: text.jsonl\nprocessor_config: {processor_name: vlm, processor_type: qwen2_5_vl}\ntokenizer: own\n"
    recipe = Recipe.read(write(lines))
    assert {name: Path(recipe.settings[name]).name for name in ("tokenizer", "processor")} == {
        "tokenizer": "own",
        "processor": "vlm",
    }


@pytest.mark.extra("media")  # some lead to keys of media
def test_every_foreign_name_leads_to_a_key() -> None:
    for name, alias in ALIASES.items():
        assert name not in keys(), f"{name} is our own"
        assert alias.keys and set(alias.keys) <= {
            *keys(),
            "data",
            "eval",
            "path",
            "weight",
            "options",
        }, name


# Mistakes


MISTAKES = [
    (
        "data: text.jsonl\nprocessor_config: qwen",
        r":2: processor_config: qwen is not known, expected a mapping with processor_name",
    ),
    (
        "data: text.jsonl\nprocessor_config: {max_pixels: 3}",
        r":2: processor_config: max_pixels is not known: set it in the",
    ),
    (
        "data: text.jsonl\nvideo_max_pixels: 3",
        r":2: unknown key 'video_max_pixels': write video_options",
    ),
    (
        "data: text.jsonl\nmax_lenght: 3",
        r":2: unknown key 'max_lenght'; did you mean 'max_length'\?",
    ),
    (
        "data: text.jsonl\ncutoff_length: 3",
        r":2: unknown key 'cutoff_length'; did you mean 'max_length'\?",
    ),
    (
        "data: text.jsonl\nzzz: 3",
        r":2: unknown key 'zzz'; `penstock init` writes a recipe with the usual keys",
    ),
    ("data: text.jsonl\nseed: 1\nseed: 2", r":3: seed is given twice, in line 2 too; keep one"),
    (
        "data: text.jsonl\nmax_length: 1\nseq_len: 2",
        r":3: max_length is given twice: as seq_len, and as max_length in line 2; keep one",
    ),
    (
        "data: text.jsonl\nshuffle: no",
        r":2: 'no' is ambiguous in YAML: false for some readers and text for others; write false, or 'no' in quotes",
    ),
    ("data: text.jsonl\nrun_id: on", r":2: 'on' is ambiguous in YAML: true for some readers"),
    (
        "data: text.jsonl\nmax_length: 1e5",
        r":2: max_length is 100000.0, expected a whole number ≥ 1; write 100000",
    ),
    (
        "data: text.jsonl\nmax_length: '4,096'",
        r":2: max_length is '4,096', expected a whole number ≥ 1; write 4096",
    ),
    (
        "data: text.jsonl\nmax_length: 010",
        r":2: 010 is octal to some YAML readers; write 10, or '010' in quotes",
    ),
    (
        "data: text.jsonl\nbatch_size: true",
        r":2: batch_size is True, expected a whole number",
    ),
    ("data: text.jsonl\nbatch_size:", r":2: batch_size is None, expected a whole number"),
    (
        "data: text.jsonl\nrun_id: 17",
        r":2: run_id is 17, expected text; put it in quotes: '17'",
    ),
    (
        "data: text.jsonl\nskip_steps: 17",
        r":2: skip_steps is 17, expected a list",
    ),
    ("data: text.jsonl\nshuffle_window: .inf", r":2: .inf is not a finite number"),
    ("data: text.jsonl\nshuffle_window: 1e999", r":2: 1e999 is not a finite number"),
    (
        f"data: text.jsonl\nshuffle_window: {'9' * 6000}",
        r":2: a whole number of 6,000 digits, expected at most 100",
    ),
    ("data: text.jsonl\ntokenizer: [a]", r":2: tokenizer is \['a'\], expected text"),
    (
        "data: text.jsonl\npacking: bestfit",
        r":2: packing 'bestfit' is not known; choose mixed_fit.*did you mean 'best_fit'",
    ),
    (
        "data: text.jsonl\non_overlong: cut",
        r":2: on_overlong is 'cut', expected one of drop, truncate, split, error",
    ),
    ("data: text.jsonl\nmax_length: 0", r":2: max_length is 0, expected a whole number ≥ 1"),
    ("data: text.jsonl\npad_side: up", r":2: pad_side is 'up', expected one of right, left"),
    (
        "data: text.jsonl\neval: {a: {path: b, last_step: cut}}",
        r":2: last_step is 'cut', expected one of pad",
    ),
    (
        "data: text.jsonl\nmix_by: rows",
        r": mix_by='samples' has no effect without weights",
    ),
    (
        "data: text.jsonl\nrank: 0",
        r":2: rank differs between the processes that read this recipe; pass it: load\(…, rank=…\)",
    ),
    ("data: text.jsonl\nweight: 2", r":2: weight belongs inside a dataset; write data:"),
    (
        "data: {a: {path: x, max_length: 3}}",
        r":1: max_length applies to the whole recipe; write it at the top",
    ),
    (
        "data: {a: {path: x}}\neval: {b: {path: y, num_proc: 3}}",
        r":2: num_proc applies to the whole recipe; write it at the top",
    ),
    (
        "data: {a: {path: x, data: y}}",
        r":1: data belongs at the top of a recipe, not inside a dataset",
    ),
    ("data: {a: {weight: 1}}", r":1: dataset 'a' has no path; expected 'path: chat.jsonl'"),
    ("data: [{weight: 1}]", r":1: a dataset has no path"),
    (
        "data:\n- {path: a.jsonl}\n- {path: x/a.jsonl}",
        r":3: two datasets are called 'a'; give one of them another name",
    ),
    (
        "data:\n  a: {path: x, weight: 1}\n  b: {path: y}",
        r":3: dataset 'b' has no weight and others have; give all of them one, or none",
    ),
    ("data: {a: {path: x, weight: 0}}", r":1: weight is 0, expected a number above 0"),
    ("data: {a: {path: x, weight: '1'}}", r":1: weight is '1', expected a number above 0"),
    ("data: {a: {path: x, name: 3}}", r":1: name is 3, expected text; put it in quotes"),
    (
        "data: {a: {path: x, options: 3}}",
        r":1: options is 3, expected a mapping",
    ),
    ("data: 3", r":1: path is 3, expected a file, a glob or a folder, or a list of those"),
    ("data:", r":1: path is None, expected a file"),
    ("data: {}", r":1: data has no datasets"),
    ("seed: 3", r": no data; expected 'data: chat.jsonl', or datasets by name"),
    ("data: x\neval: {train: y}", r":2: an eval set cannot be called train; choose another name"),
    (
        "data: x\neval: {b: {path: y, weight: 1}}",
        r":2: eval sets are loaded one by one and take no weight; leave it out",
    ),
    (
        "data: ${NO_SUCH}",
        r":1: the environment variable NO_SUCH is not set; set it, or give a default: \$\{NO_SUCH:-…\}",
    ),
    ("data: ${EMPTY_VARIABLE}", r":1: the environment variable EMPTY_VARIABLE is empty; set it"),
    (
        "data: ${a b}",
        r":1: \$\{a b\} names no variable, expected \$\{NAME\} or \$\{NAME:-default\}",
    ),
    (
        "data: text.jsonl\ntemplate: chatty",
        r":2: template 'chatty' is not known; did you mean 'chat'\?",
    ),
    (
        "data: text.jsonl\ntemplate: text\ntrain_on: last",
        r":3: none of the templates here \(text\) has an option train_on; leave it out",
    ),
    (
        "data: text.jsonl\npacking_strategy: balanced",
        r":2: packing_strategy: balanced is not known, expected one of mixed_fit",
    ),
    (
        "data: text.jsonl\nfilter_overlong: false",
        r":2: filter_overlong: false is not known; write on_overlong: truncate, split or error",
    ),
    (
        "data: text.jsonl\ndisable_cache: 3",
        r":2: disable_cache: 3 is not known, expected one of true, false; or write cache: instead",
    ),
    (
        "data: text.jsonl\nstreaming: [a, b]",
        r":2: streaming: \['a', 'b'\] is not known, expected one of true, false; or write",
    ),
    ("data: [x\nseed: 1", r":2: not YAML: "),
    (
        "data: {a: {path: ${HOME}}}",
        r":1: not YAML: .*; inside \{ \} or \[ \], put what holds \$\{…\} in quotes",
    ),
    ("- a\n- b", r":1: found a list, expected keys such as 'data: chat.jsonl'"),
    ("", r":1: found nothing, expected keys"),
    (
        "data: !!python/object:os.system x",
        r":1: the tag tag:yaml.org,2002:python/object:os.system is not known, expected plain values",
    ),
    ("? [a, b]\n: c", r":1: a list or mapping as a key, expected a word"),
    ("data: &a [*a]", r":1: nested more than 20 deep, expected a flat list or mapping"),
    (
        "a: &a [1, 2, 3, 4, 5, 6, 7, 8]\nb: &b ["
        + "*a, " * 99
        + "]\nc: &c ["
        + "*b, " * 99
        + "]\ndata: ["
        + "*c, " * 99
        + "]",
        r":4: more than 100,000 values; write out what the aliases repeat",
    ),
    (
        "data: " + "[" * 30 + "]" * 30,
        r":1: nested more than 20 deep, expected a flat list or mapping",
    ),
    ("<<: 3\ndata: x", r":1: << takes one mapping"),
    ("data: &a {<<: *a}", r":1: nested more than 20 deep, expected a flat list or mapping"),
    (
        "a0: &a0 {}\n"
        + "".join(f"a{n}: &a{n} {{<<: *a{n - 1}, <<: *a{n - 1}}}\n" for n in range(1, 20)),
        r"more than 100,000 values; write out what the aliases repeat",
    ),
    (
        "a: &a ["
        + "1, " * 999
        + "]\nb: &b {"
        + "".join(f"k{n}: *a, " for n in range(110))
        + "}\n<<: *b",
        r":3: more than 100,000 values; write out what the aliases repeat",
    ),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_a_mistake_is_named_by_its_line(
    write: Any, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.setenv("EMPTY_VARIABLE", "")
    path = write(text)
    with pytest.raises(RecipeError, match=message) as raised:
        Recipe.read(path)
    assert str(raised.value).startswith(str(path))


def test_data_that_is_taken_for_a_recipe_says_what_makes_a_loader(tmp_path: Path) -> None:
    record = '{"messages": [{"role": "user", "content": "a"}]}\n'
    (tmp_path / "one.jsonl").write_text(record)
    (tmp_path / "chat.jsonl").write_text(record * 3)
    (tmp_path / "big.csv").write_text("a,b\n" * (1 << 19))
    (tmp_path / "table.parquet").write_bytes(b"PAR1\x15\x04\x89\x00")
    (tmp_path / "folder").mkdir()
    for name in ("one.jsonl", "chat.jsonl", "big.csv", "table.parquet", "folder"):
        file = tmp_path / name
        with pytest.raises(RecipeError, match=r"this is data, expected a recipe") as caught:
            ps.load(file, tokenizer="t")
        assert f"`penstock init {file}`" in str(caught.value)
        assert f"penstock.Loader(penstock.prepare('{file}', tokenizer=" in str(caught.value)
    for data in ({"messages": []}, [{"text": "a"}]):
        with pytest.raises(
            RecipeError, match=r"expected the path of a recipe; .*penstock\.prepare"
        ):
            ps.load(data)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"penstock\.load\(RECIPE, batch_size=…\) makes a Loader"):
        ps.Loader("recipe.yaml", batch_size=2)  # type: ignore[arg-type]
    recipe = tmp_path / "recipe.conf"
    recipe.write_text("data: chat.jsonl\n")
    assert Recipe.read(recipe).data
    recipe.write_text("data: [\n")
    with pytest.raises(RecipeError, match="not YAML"):
        Recipe.read(recipe)


def test_files_that_are_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"none.yaml: cannot be read: No such file"):
        Recipe.read(tmp_path / "none.yaml")
    (tmp_path / "big.yaml").write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(
        RecipeError, match=r"1,048,577 bytes, expected at most 1,048,576; is this data\?"
    ):
        Recipe.read(tmp_path / "big.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"data: \xff\n")
    with pytest.raises(RecipeError, match=r"byte 6 is not UTF-8"):
        Recipe.read(tmp_path / "binary.yaml")


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (
            "data: none.jsonl\nbatch_size: 1",
            SourceError,
            r"recipe.yaml:1: dataset 'none': .*none.jsonl",
        ),
        (
            "seed: 1\ndata:\n  a: {path: text.jsonl, options: {colums: 3}}\nbatch_size: 1",
            SourceError,
            r"recipe.yaml:3: dataset 'a': unknown option 'colums'",
        ),
        (
            "data: text.jsonl\ntokenizer: nowhere/at/all\nbatch_size: 1",
            TemplateError,
            r"recipe.yaml:1: dataset 'text': .*nowhere/at/all: no tokenizer there",
        ),
        (
            "data: text.jsonl\nbatch_size: 1",
            TemplateError,
            r"recipe.yaml:1: dataset 'text': no tokenizer given",
        ),
        ("data: text.jsonl", RecipeError, r"recipe.yaml: no batch_size; add 'batch_size: 8'"),
        (
            "data: chat.jsonl\ntokenizer: TOKENIZER\nchat_template: none.jinja\nbatch_size: 1",
            RecipeError,
            r"none.jinja: cannot read a chat template there",
        ),
    ],
)
def test_what_goes_wrong_while_loading_names_the_data_set(
    write: Any, text: str, error: type[PenstockError], message: str
) -> None:
    path = write(text + "\ncache_dir: CACHE\nnum_proc: 1\n")
    with pytest.raises(error, match=message):
        ps.load(path)


def test_merged_keys_stand_behind_written_ones(write: Any) -> None:
    recipe = Recipe.read(
        write(
            "data:\n  a: &same {path: text.jsonl, template: text, eos: false}\n  b: {<<: *same, path: chat.jsonl, eos: true}\n"
        )
    )
    assert [data.options["eos"] for data in recipe.data] == [False, True]
    assert recipe.data[1].options["template"] == "text" and recipe.data[1].path.endswith(
        "chat.jsonl"
    )


def test_records_from_python_are_data_too(tokenizer_path: Path, tmp_path: Path) -> None:
    recipe = Recipe.of(
        TEXTS,
        tokenizer=tokenizer_path,
        batch_size=1,
        cache_dir=tmp_path,
        num_proc=1,
        output="numpy",
    )
    assert len(ps.load(recipe, rank=0, world_size=1).stores[0]) == 60
    state = json.dumps(ps.load(recipe, rank=0, world_size=1).state_dict())
    assert json.loads(state)["step"] == 0


def test_the_folder_of_a_recipe_may_be_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "talk").mkdir()
    (tmp_path / "talk" / "a.jsonl").write_text('{"text": "one two"}\n' * 9)
    monkeypatch.chdir(tmp_path / "talk")
    assert run(["init", "."]) == 0
    text = Path("recipe.yaml").read_text()
    assert "\ndata: .\n" in text and "#   talk: jsonl, 9 records" in text
    Path("recipe.yaml").write_text(text.replace("tokenizer: ", "# "))
    assert [each.name for each in Recipe.read("recipe.yaml").data] == ["talk"]
