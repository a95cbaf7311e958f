"""Media from a recipe to a store: by API and command line, in several processes, with and without transformers."""

import json
import re
import shutil
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import penstock as ps
from penstock.cli.main import run as run_here
from penstock.errors import TemplateError
from penstock.extras.media.chat_step import media_reader
from penstock.recipe import Recipe
from penstock.types import unpack_media
from tests.extras.media import processors

ANSWER = {"role": "assistant", "content": "Two dogs."}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return processors.save(processors.qwen2_5_vl(), tmp_path_factory.mktemp("processor"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with 40 images next to a file of 20 conversations about two of them each."""
    root = tmp_path / "data"
    root.mkdir()
    lines = []
    for number in range(40):
        Image.new("RGB", (30 + 9 * number, 200 - 3 * number), "red").save(root / f"{number}.jpg")
    for number in range(0, 40, 2):
        user = {"role": "user", "content": f"<image> Question {number}: <image>?"}
        lines.append({"messages": [user, ANSWER], "images": [f"{number}.jpg", f"{number + 1}.jpg"]})
    (root / "chat.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root


def prepared(place: Any, folder: Path, cache: Path, **options: Any) -> Any:
    return ps.prepare(
        place, tokenizer=folder, cache_dir=cache, progress="none", **{"num_proc": 1, **options}
    )


def rows(store: Any) -> list[tuple[list[int], list[bool], bytes]]:
    return [
        (s.input_ids.tolist(), s.loss_mask.tolist(), s.columns["media"].tobytes())
        for s in map(store.__getitem__, range(len(store)))
    ]


def test_paths_are_relative_to_the_folder_of_the_data(
    data: Path, folder: Path, tmp_path: Path
) -> None:
    store = prepared(data / "chat.jsonl", folder, tmp_path / "cache")
    assert len(store) == 20
    assert media_reader(store.template).root == str(data)
    items = unpack_media(store[3].columns["media"].data)
    assert [item.place for item in items] == ["6.jpg", "7.jpg"]
    assert [item.size for item in items] == [(182, 84), (179, 93)]
    for item in items:
        assert (
            media_reader(store.template).bytes_of(item, lambda: store.source[3])
            == (data / str(item.place)).read_bytes()
        )


def test_several_processes_make_the_same_store(data: Path, folder: Path, tmp_path: Path) -> None:
    one = prepared(data / "chat.jsonl", folder, tmp_path / "one")
    two = prepared(data / "chat.jsonl", folder, tmp_path / "two", num_proc=2)
    assert one.fingerprint == two.fingerprint
    assert rows(one) == rows(two)


def test_another_folder_is_another_store(data: Path, folder: Path, tmp_path: Path) -> None:
    """Equal records in two folders name different images."""
    other = tmp_path / "other"
    other.mkdir()
    for number in range(40):
        Image.new("RGB", (100, 100)).save(other / f"{number}.jpg")
    here = prepared(data / "chat.jsonl", folder, tmp_path / "cache")
    there = prepared(data / "chat.jsonl", folder, tmp_path / "cache", media_root=str(other))
    assert here.fingerprint != there.fingerprint
    assert {item.size for item in unpack_media(there[0].columns["media"].data)} == {(100, 100)}


def test_a_folder_counts_by_what_it_is_and_not_by_its_name(
    data: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, cache, other = data / "chat.jsonl", tmp_path / "cache", tmp_path / "other" / "data"
    shutil.copytree(data, other)
    Image.new("RGB", (300, 300)).save(other / "0.jpg")
    (tmp_path / "link").symlink_to(data)
    here = prepared(file, folder, cache)
    for name in (data / ".." / "data", tmp_path / "link"):
        assert prepared(file, folder, cache, media_root=str(name)).fingerprint == here.fingerprint
    monkeypatch.chdir(tmp_path)
    assert prepared(file, folder, cache, media_root="data").fingerprint == here.fingerprint
    monkeypatch.chdir(tmp_path / "other")  # the same words name another folder here
    there = prepared(file, folder, cache, media_root="data")
    assert there.fingerprint != here.fingerprint
    assert unpack_media(there[0].columns["media"].data)[0].size == (300, 300)


def test_check_does_not_take_one_question_about_two_images_for_a_duplicate(
    data: Path, folder: Path, tmp_path: Path, run: Callable[..., tuple[int, str]]
) -> None:
    for number in range(20):
        Image.new("RGB", (60, 60), (number, 0, 0)).save(data / f"same{number}.png")
    user = {"role": "user", "content": "<image>What is it?"}
    lines = [{"messages": [user, ANSWER], "images": [f"same{number}.png"]} for number in range(20)]
    file = data / "same.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, printed = run("check", str(file), "--tokenizer", str(folder), "-v")
    assert "no duplicates in the 20 records" in printed
    file.write_text("".join(json.dumps(line) + "\n" for line in lines + lines[:5]))
    assert (
        "5 of 25 records (20.0%) repeat an earlier one"
        in run("check", str(file), "--tokenizer", str(folder))[1]
    )


def test_stats_does_not_offer_packings_that_cut_images(
    data: Path, folder: Path, tmp_path: Path, run: Callable[..., tuple[int, str]]
) -> None:
    command = ("stats", str(data / "chat.jsonl"), "--tokenizer", str(folder))
    assert "concat" not in run(*command)[1]
    (line, *_) = [
        line
        for line in run(*command, "--compare-packing", "concat")[1].splitlines()
        if "concat" in line
    ]
    assert "packing='concat' cuts samples" in line and "'media'" in line


def test_another_setting_of_the_processor_is_another_store(
    data: Path, folder: Path, tmp_path: Path
) -> None:
    changed = processors.save(processors.qwen2_5_vl(), tmp_path / "changed")
    settings = json.loads((changed / "processor_config.json").read_text())
    settings["image_processor"]["size"]["longest_edge"] = 28 * 28 * 16
    (changed / "processor_config.json").write_text(json.dumps(settings))
    cache = tmp_path / "cache"
    stores = [prepared(data / "chat.jsonl", one, cache) for one in (folder, changed)]
    assert stores[0].fingerprint != stores[1].fingerprint
    assert max(len(stores[1][row]) for row in range(20)) < max(
        len(stores[0][row]) for row in range(20)
    )


def test_images_in_a_parquet_file_are_read_from_the_record(
    data: Path, folder: Path, tmp_path: Path
) -> None:
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    records = [json.loads(line) for line in (data / "chat.jsonl").read_text().splitlines()]
    for record in records:
        record["images"] = [
            {"bytes": (data / name).read_bytes(), "path": name} for name in record["images"]
        ]
    message = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    schema = pa.schema([("messages", message), ("images", pa.list_(image))])
    pq.write_table(pa.Table.from_pylist(records, schema), tmp_path / "chat.parquet")
    here = prepared(tmp_path / "chat.parquet", folder, tmp_path / "cache")
    there = prepared(data / "chat.jsonl", folder, tmp_path / "cache")
    for row in range(20):
        assert np.array_equal(here[row].input_ids, there[row].input_ids)
    item = unpack_media(here[5].columns["media"].data)[1]
    assert item.place is None
    assert (
        media_reader(here.template).bytes_of(item, lambda: here.source[5])
        == (data / "11.jpg").read_bytes()
    )


_WITHOUT = """
import sys
from base64 import b64encode
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("transformers", "torch"):
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "transformers" else find(name, *more)
import penstock
store = penstock.prepare(sys.argv[1], tokenizer=sys.argv[2], cache_dir=sys.argv[3], progress="none", num_proc=1)
print(store.fingerprint)
"""


def test_without_transformers_the_store_is_the_same(
    data: Path, folder: Path, tmp_path: Path
) -> None:
    here = prepared(data / "chat.jsonl", folder, tmp_path / "one")
    arguments = [str(data / "chat.jsonl"), str(folder), str(tmp_path / "two")]
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [here.fingerprint]


def test_a_second_process_counts_without_loading_transformers(
    data: Path, folder: Path, tmp_path: Path
) -> None:
    """Comparing formulas with transformers happens once for a cache; workers do not load it."""
    prepared(data / "chat.jsonl", folder, tmp_path / "cache")
    code = (
        "import sys, penstock\n"
        "penstock.prepare(sys.argv[1], tokenizer=sys.argv[2], cache_dir=sys.argv[3], progress='none', num_proc=1, refresh=True)\n"
        "assert 'transformers' not in sys.modules and 'torch' not in sys.modules\n"
    )
    arguments = [str(data / "chat.jsonl"), str(folder), str(tmp_path / "cache")]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True)


def recipe(tmp_path: Path, folder: Path, **more: Any) -> Path:
    text = {
        "data": "data/chat.jsonl",
        "tokenizer": str(folder),
        "max_length": 1024,
        "batch_size": 1,
        "cache_dir": "cache",
        **more,
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(text))
    return tmp_path / "recipe.yaml"


def test_a_recipe_says_processor_root_and_policy(data: Path, folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "tokenizer"
    bare.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (bare / name).write_bytes((folder / name).read_bytes())
    (data / "8.jpg").unlink()
    (data / "chat.jsonl").rename(tmp_path / "chat.jsonl")
    own = {"data": "chat.jsonl", "processor": str(folder), "media_root": "data", "on_media": "skip"}
    loader = ps.load(recipe(tmp_path, bare, **own), rank=0, world_size=1, output="numpy")
    (store,) = loader.stores.values() if isinstance(loader.stores, dict) else loader.stores
    assert store.counts.dropped["bad_media"].count == 1
    assert media_reader(store.template).root == str(tmp_path / "data")


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[int, str]]:
    """A command in this process, with a cache of its own: exit code and output."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache of commands"))

    def run(*arguments: str) -> tuple[int, str]:
        code = run_here(list(arguments))
        return code, capsys.readouterr().out

    return run


def test_commands_show_media(
    data: Path, folder: Path, tmp_path: Path, run: Callable[..., tuple[int, str]]
) -> None:
    Image.new("RGB", (3000, 2000)).save(data / "3.jpg")
    path = str(recipe(tmp_path, folder))
    code, shown = run("check", path)
    assert code == 0
    assert "40 of kind image in the checked records" in shown
    assert (
        "1 of 40 are shrunk to less than half of their pixels, the largest from 2,000 × 3,000 to"
        in shown
    )
    assert run("prepare", path)[0] == 0
    code, shown = run("show", path, "--row", "1")
    assert code == 0
    assert "image 0: 2.jpg, 194 × 48 pixels (height × width)" in shown
    assert "image 1: 3.jpg, 2000 × 3000 pixels (height × width)" in shown
    assert "<|vision_start|><|image_pad|><|vision_end|>" in shown  # each token once
    assert "[1 assistant]" in shown
    code, shown = run("stats", path)
    assert "image\t40\t20\t" in shown
    found = json.loads(run("stats", path, "--json")[1])["media"]
    assert found[0]["kind"] == "image"
    assert found[0]["count"] == 40


@pytest.mark.parametrize("inline", [False, True])
def test_rows_with_the_same_words_and_other_images_are_no_duplicates(
    data: Path, folder: Path, tmp_path: Path, run: Callable[..., tuple[int, str]], inline: bool
) -> None:
    for number, color in enumerate(("red", "blue", "green")):
        Image.new("RGB", (60, 60), color).save(
            data / f"{number}.bmp"
        )  # as many bytes and tokens in each
    names: list[str] = [str(data / f"{number}.bmp") for number in (0, 1, 2, 1)]
    if inline:
        names = [
            f"data:image/bmp;base64,{b64encode(Path(name).read_bytes()).decode()}" for name in names
        ]
    user = {"role": "user", "content": "<image> What is it?"}
    lines = [json.dumps({"messages": [user, ANSWER], "images": [name]}) + "\n" for name in names]
    (data / "chat.jsonl").write_text("".join(lines))
    code, shown = run("check", str(recipe(tmp_path, folder)))
    assert code == 0
    assert re.search(
        r"1 of 4 records \(25.0%\) repeat an earlier one \(first \S+chat.jsonl:4\)", shown
    )
    assert (
        "concat" not in run("stats", str(recipe(tmp_path, folder)))[1]
    )  # it would cut samples, which media forbid


def test_check_names_broken_media_under_both_policies(
    data: Path, folder: Path, tmp_path: Path, run: Callable[..., tuple[int, str]]
) -> None:
    (data / "4.jpg").write_bytes((data / "4.jpg").read_bytes()[:300])
    code, shown = run("check", str(recipe(tmp_path, folder)))
    assert code == 1
    assert "4.jpg: the image is broken or cut off" in shown
    assert "chat.jsonl:3" in shown
    code, shown = run("check", str(recipe(tmp_path, folder, on_media="skip")))
    assert code == 0
    assert "4.jpg: the image is broken or cut off" in shown
    with pytest.raises(TemplateError, match=r"chat.jsonl:3.*4.jpg"):
        prepared(data / "chat.jsonl", folder, tmp_path / "cache")


def test_an_unknown_policy_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        TemplateError, match="on_media='drop' is not known, expected one of 'stop', 'skip'"
    ):
        prepared(
            [{"messages": [{"role": "user", "content": "?"}, ANSWER]}],
            folder,
            tmp_path,
            on_media="drop",
        )


def test_init_measures_records_with_images(data: Path, folder: Path, tmp_path: Path) -> None:
    from penstock.recipe.draft import Draft

    draft = Draft([str(data / "chat.jsonl")], rows=20, given={}, tokenizer=str(folder))
    assert draft.problems == []
    assert draft.lengths.count == 20


def test_keys_of_media_are_keys_of_a_recipe(data: Path, folder: Path, tmp_path: Path) -> None:
    made = Recipe.read(recipe(tmp_path, folder, max_image_pixels=10_000, on_media="skip"))
    assert made.settings["max_image_pixels"] == 10_000


def test_a_processor_beside_the_tokenizer_is_not_used_for_texts(
    data: Path, folder: Path, tmp_path: Path
) -> None:
    """Text data has no media column, so it may be cut, and transformers is not imported; media in rows between the samples are refused."""
    said = {"messages": [{"role": "user", "content": "What is an <image>?"}, ANSWER]}
    (data / "texts.jsonl").write_text((json.dumps(said) + "\n") * 5000)
    script = (
        "import sys, penstock as ps\n"
        "store = ps.prepare(sys.argv[1], tokenizer=sys.argv[2], cache_dir=sys.argv[3], num_proc=1, progress='none')\n"
        "assert not store.columns and 'transformers' not in sys.modules, store.columns\n"
        "ps.Loader(store, batch_size=1, max_length=64, packing='concat', output='numpy')\n"
    )
    command = [
        sys.executable,
        "-c",
        script,
        str(data / "texts.jsonl"),
        str(folder),
        str(tmp_path / "cache"),
    ]
    subprocess.run(command, check=True)
    shown = {
        **said,
        "messages": [{"role": "user", "content": "<image>What?"}, ANSWER],
        "images": ["same.png"],
    }
    lines = (data / "texts.jsonl").read_text().splitlines()
    (data / "texts.jsonl").write_text(
        "\n".join([*lines[:4990], json.dumps(shown), *lines[4990:]]) + "\n"
    )
    with pytest.raises(
        TemplateError,
        match=r"texts.jsonl:4991: the record has media \(tags\), and no sampled record has any; set processor=",
    ):
        prepared(data / "texts.jsonl", folder, tmp_path / "cache")


def test_shards_with_images_have_few_rows_and_every_command_finds_them(
    data: Path, folder: Path, tmp_path: Path, run: Callable[..., tuple[int, str]]
) -> None:
    """A process holds the tokens of a shard, and an image makes many of a short record; all who cut the rows must cut them alike."""
    Image.new("RGB", (60, 60)).save(data / "one.png")
    user = {"role": "user", "content": "<image>What?"}
    line = json.dumps({"messages": [user, ANSWER], "images": ["one.png"]}) + "\n"
    (data / "many.jsonl").write_text(line * 2100)
    found = run("prepare", str(data / "many.jsonl"), "--tokenizer", str(folder))
    assert found[0] == 0, found
    status = run("prepare", "--status", str(data / "many.jsonl"), "--tokenizer", str(folder))[1]
    assert "complete: 2,100 records in 2 shards" in status
    shown = run(
        "show", str(data / "many.jsonl"), "--tokenizer", str(folder), "--row", "0", "--json"
    )[1]
    assert json.loads(shown)["packed_row"] is not None  # found in the cache, not prepared alone
