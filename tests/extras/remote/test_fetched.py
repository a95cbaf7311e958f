"""Tokenizers and recipes by URL: the same stores and batches, fetched once per version, with relative paths next to the recipe."""

import json
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.cache import Cache
from penstock.cli.main import run
from penstock.errors import RecipeError, TemplateError
from penstock.recipe import Recipe
from penstock.templates import open_tokenizer
from tests.extras.remote.conftest import Put, write_data
from tests.extras.remote.fault_proxy import FaultProxy
from tests.extras.remote.loose_store import LooseStore


@pytest.fixture
def job(put: Put, tmp_path: Path, tokenizer_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder with a recipe, its data and its tokenizer in a bucket; the URL of the recipe."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    put("job/chat/data.jsonl", write_data(tmp_path / "data.jsonl", 100).read_bytes())
    for path in tokenizer_path.iterdir():
        put(f"job/tok/{path.name}", path.read_bytes())
    recipe = "data: ../job/chat/data.jsonl\ntokenizer: tok\ntemplate: text\nmax_length: 64\nbatch_size: 4\noutput: numpy\n"
    return put("job/recipe.yaml", recipe.encode())


def test_a_recipe_by_url_gives_the_batches_of_a_local_one(
    job: str, tmp_path: Path, tokenizer_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_text(
        f"data: data.jsonl\ntokenizer: {tokenizer_path}\ntemplate: text\nmax_length: 64\nbatch_size: 4\noutput: numpy\n"
    )
    there, here = ps.load(job, num_proc=1), ps.load(tmp_path / "recipe.yaml", num_proc=1)
    assert [batch["input_ids"].tolist() for batch in there] == [
        batch["input_ids"].tolist() for batch in here
    ]
    assert there.plan.fingerprint == here.plan.fingerprint
    recipe = Recipe.read(job)
    assert recipe.data[0].path == "s3://bkt/job/chat/data.jsonl"
    assert (recipe.settings["tokenizer"], recipe.file) == ("s3://bkt/job/tok", job)


def test_commands_take_a_recipe_by_url(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["check"], ["prepare", "--num-proc", "1"], ["plan"], ["verify"]):
        assert run([words[0], job, *words[1:]]) == 0, capsys.readouterr()


def test_a_version_is_fetched_once(
    job: str, proxy: FaultProxy, put: Put, tokenizer_path: Path
) -> None:
    cache = Cache()
    first = open_tokenizer("s3://bkt/job/tok", cache=cache)
    fetched = sorted(path for method, path, *_ in proxy.log if method == "GET" and "/tok/" in path)
    assert fetched == ["/bkt/job/tok/tokenizer.json", "/bkt/job/tok/tokenizer_config.json"]
    proxy.log.clear()
    assert open_tokenizer("s3://bkt/job/tok/tokenizer.json", cache=cache).digest == first.digest
    assert first.digest == open_tokenizer(tokenizer_path).digest
    assert [path for method, path, *_ in proxy.log if method == "GET" and "/tok/" in path] == []
    put(
        "job/tok/tokenizer_config.json",
        json.dumps({"eos_token": "<|endoftext|>", "bos_token": "the"}).encode(),
    )
    assert open_tokenizer("s3://bkt/job/tok", cache=cache).digest != first.digest


def test_what_is_missing_is_said_by_its_url(job: str, put: Put, proxy: FaultProxy) -> None:
    wrong: dict[str, Any] = {
        "s3://bkt/job/none.yaml": (RecipeError, "s3://bkt/job/none.yaml: cannot be read"),
        put("job/bad.yaml", b"data: x.jsonl\nmax_lenght: 3\n"): (
            RecipeError,
            r"s3://bkt/job/bad.yaml:2: unknown key 'max_lenght'",
        ),
        put("job/kept.yaml", b"data: x.jsonl\nquarantine: bad.jsonl\n"): (
            RecipeError,
            "quarantine is a local path, and this recipe",
        ),
    }
    for url, (kind, words) in wrong.items():
        with pytest.raises(kind, match=words):
            Recipe.read(url)
    with pytest.raises(TemplateError, match="s3://bkt/job/chat: no tokenizer there"):
        open_tokenizer("s3://bkt/job/chat")
    with pytest.raises(TemplateError, match="write the name of a model on the hub"):
        open_tokenizer("hf://models/org/name")
    proxy.fault(403, "/tok/", times=99)
    with pytest.raises(
        TemplateError, match=r"cannot fetch the tokenizer: s3://bkt/job/tok/.*access denied \(403\)"
    ):
        open_tokenizer("s3://bkt/job/tok")


def test_a_recipe_is_read_from_a_web_server(
    job: str, proxy: FaultProxy, tokenizer_path: Path
) -> None:
    recipe = f"data: chat/data.jsonl\ntokenizer: {tokenizer_path}\ntemplate: text\nmax_length: 64\nbatch_size: 4\noutput: numpy\n"
    server = LooseStore()
    server.objects = {
        "job/recipe.yaml": recipe.encode(),
        "job/chat/data.jsonl": b'{"text": "the fox"}\n' * 9,
    }
    url = f"http://127.0.0.1:{server.port}/job"
    loader = ps.load(f"{url}/recipe.yaml", num_proc=1)
    assert loader.stores[0][8].where.file == f"{url}/chat/data.jsonl"
    assert len(loader.stores[0]) == 9
    server.stop()
