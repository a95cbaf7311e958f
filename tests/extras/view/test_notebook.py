"""Values in notebooks: escaped, with their tokens in colour; as the repr where the extra is missing."""

import re
from pathlib import Path

import pytest

import penstock as ps
from penstock import plugins
from penstock.extras.view.view import Viewer
from tests.extras.view import hostile


def shown(value: object) -> str:
    page = value._repr_html_()  # type: ignore[attr-defined]
    assert page.startswith('<div class="penstock">') and "<script" not in page
    return str(page)


def test_every_value_has_its_page(view: Viewer) -> None:
    loader = view._loader
    assert loader is not None
    batch = next(iter(loader))
    store = loader.stores[0]
    assert '<th scope="col">record</th>' in shown(store.source)
    assert '<th scope="col">record</th>' in shown(store.source[1:5])
    assert "<b>" in shown(store) and "<b>" in shown(store[0])
    assert "step 1, epoch 0" in shown(loader)
    assert "<summary>settings</summary>" in shown(loader.plan)
    assert "dropped: overlong" in shown(loader.counters)
    page = shown(batch)
    assert "input_ids" in page and "row 0" in page
    for row in batch.provenance[:1]:
        where, start, stop = row[0]
        assert f"{where}, tokens {start:,}–{stop - 1:,}" in page


def test_trained_tokens_of_a_batch_are_those_with_a_label(view: Viewer) -> None:
    loader = view._loader
    assert loader is not None
    batch = next(iter(loader))
    page = batch._repr_html_()
    first_row = page.split("<p><b>row 0</b></p>")[1].split("<p><b>row 1</b></p>")[0]
    green = len(re.findall(r"<b>", first_row))
    tokens = int((batch.rows[0]["stop"] - batch.rows[0]["start"]).sum())
    assert tokens <= 160
    assert green == int((batch["labels"][0] != -100).sum()) > 0


def test_text_that_means_harm_is_escaped(tmp_path: Path, tokenizer_path: Path) -> None:
    records = [{"text": text} for text in hostile.TEXTS]
    store = ps.prepare(
        records, tokenizer=tokenizer_path, template="text", cache_dir=tmp_path / "cache", num_proc=1
    )
    loader = ps.Loader(store, batch_size=4, max_length=512, output="numpy", max_dropped=1)
    for value in (store.source, store, next(iter(loader))):
        page = shown(value)
        assert "<img" not in page and "\u202e" not in page


def test_without_the_extra_a_notebook_shows_the_repr(
    view: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "names", lambda group: [])
    assert view._loader is not None and view._loader._repr_html_() is None
