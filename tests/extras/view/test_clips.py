"""Are audio and video sent so that a browser plays them, and never as anything else?"""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")
import soundfile
from starlette.testclient import TestClient

from penstock.extras.view import server
from penstock.extras.view.view import Viewer
from penstock.recipe import Recipe
from penstock.recipe.run import prepare_recipe
from tests.extras.media import processors
from tests.extras.view.chromium import browser, executable
from tests.extras.view.conftest import TOKEN, client_of, open_view
from tests.extras.view.test_browser import Page, served

NAMES = ("tone.wav", "tone.flac", "page.wav", "link.wav", "gone.wav")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Conversations with a clip each, prepared."""
    made = tmp_path_factory.mktemp("clips")
    processors.save(processors.qwen2_audio(), made / "model")
    lines = []
    for name in NAMES:
        soundfile.write(
            made / name, (np.sin(np.arange(16_000) / 20) / 3).astype(np.float32), 16_000
        )
        parts = [{"type": "audio", "audio": name}, {"type": "text", "text": "What is it?"}]
        turns = [{"role": "user", "content": parts}, {"role": "assistant", "content": "A tone."}]
        lines.append(json.dumps({"messages": turns}) + "\n")
    (made / "data.jsonl").write_text("".join(lines))
    recipe = {
        "data": "data.jsonl",
        "tokenizer": "model",
        "processor": "model",
        "template": "messages",
        "cache_dir": "cache",
        "max_length": 512,
        "batch_size": 1,
        "num_proc": 1,
    }
    (made / "recipe.yaml").write_text(json.dumps(recipe))
    prepare_recipe(Recipe.read(made / "recipe.yaml").changed(progress="none"))
    return made


@pytest.fixture(scope="module")
def view(folder: Path) -> Viewer:
    return open_view(folder / "recipe.yaml", world_size=1)


@pytest.fixture(scope="module")
def client(view: Viewer) -> TestClient:
    return client_of(view)


@pytest.mark.parametrize("row", [0, 1])
def test_parts_of_a_clip_join_to_its_file(
    client: TestClient, folder: Path, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_CLIP_BYTES", 9_000)
    data, got = (folder / NAMES[row]).read_bytes(), b""
    while len(got) < len(data):
        answer = client.get(f"/{TOKEN}/media/{row}/0", headers={"range": f"bytes={len(got)}-"})
        assert answer.status_code == 206 and 0 < len(answer.content) <= 9_000
        last = len(got) + len(answer.content) - 1
        assert answer.headers["content-range"] == f"bytes {len(got)}-{last}/{len(data)}"
        assert answer.headers["content-type"] == ("audio/wav", "audio/flac")[row]
        assert (
            answer.headers["x-content-type-options"] == "nosniff"
            and "content-security-policy" in answer.headers
        )
        got += answer.content
    assert got == data == client.get(f"/{TOKEN}/media/{row}/0").content
    assert (
        client.get(f"/{TOKEN}/media/{row}/0", headers={"range": "bytes=3-5"}).content == data[3:6]
    )
    beyond = client.get(f"/{TOKEN}/media/{row}/0", headers={"range": f"bytes={len(data)}-"})
    assert beyond.status_code == 416 and beyond.headers["content-range"] == f"bytes */{len(data)}"


def test_a_clip_of_data_that_is_not_prepared_is_sent_too(folder: Path) -> None:
    path = folder / "unprepared.yaml"
    path.write_text(
        json.dumps({**json.loads((folder / "recipe.yaml").read_text()), "cache_dir": "other"})
    )
    view = open_view(path, world_size=1)
    assert not view.stores
    assert client_of(view).get(f"/{TOKEN}/media/1/0").content == (folder / NAMES[1]).read_bytes()


def test_a_clip_needs_the_token_and_must_exist(client: TestClient) -> None:
    assert client.get("/wrong/media/0/0").status_code == 403
    assert (
        client.get(f"/{TOKEN}/media/0/0", headers={"origin": "http://evil.example"}).status_code
        == 403
    )
    for place, words in (
        ("0/1", "record 0 has no video or audio clip 1"),
        ("9/0", "record 9 does not exist"),
        ("x/0", "row is 'x'"),
        ("0/-1", "number is '-1'"),
    ):
        answer = client.get(f"/{TOKEN}/media/{place}")
        assert answer.status_code == 400 and words in answer.json()["error"]


def test_a_file_that_became_a_page_or_a_link_to_another_file_is_not_sent(
    client: TestClient, folder: Path
) -> None:
    page = folder / "page.wav"
    page.write_bytes(
        b"<script>alert(1)</script>".ljust(page.stat().st_size)
    )  # as many bytes as before
    answer = client.get(f"/{TOKEN}/media/2/0")
    assert answer.status_code == 400 and "not a file that browsers play" in answer.json()["error"]
    assert answer.headers["content-type"] == "application/json"
    (folder / "secret.txt").write_text("a secret")
    (folder / "link.wav").unlink()
    (folder / "link.wav").symlink_to(folder / "secret.txt")
    answer = client.get(f"/{TOKEN}/media/3/0")
    assert answer.status_code == 400 and "changed since it was prepared" in answer.json()["error"]
    assert "a secret" not in answer.text


@pytest.mark.skipif(executable() is None, reason="no browser")
def test_a_browser_plays_a_clip_and_says_why_it_cannot(
    view: Viewer, folder: Path, tmp_path: Path
) -> None:
    with served(view) as url, browser(tmp_path) as found:
        page = Page(found, url)
        page.visit("#/samples?row=0&at=0")
        page.see(
            "document.querySelector('audio').duration === 1 && document.querySelector('audio').controls"
        )
        assert found.errors == []
        (folder / "gone.wav").write_bytes(b"")
        page.visit("#/samples?row=4&at=4")
        page.text("changed since it was prepared")
