"""Does a real browser show the exported file, run nothing but its script, and request nothing?  With data that mean harm."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.extras.view import export
from tests.extras.view import hostile
from tests.extras.view.chromium import NAMES, Browser, browser, executable, pixels, trap
from tests.extras.view.conftest import wait_for

pytestmark = pytest.mark.skipif(
    executable() is None,
    reason=f"no browser: none of {', '.join(NAMES)} is on the PATH; install chromium, or set PENSTOCK_CHROMIUM",
)

SIZES = {"desktop": (1280, 900), "phone": (390, 800)}
SCALE = 0.25


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, tokenizer_path: Path) -> Path:
    """Hostile records under a hostile name, one of a megabyte, among plain ones."""
    folder = tmp_path_factory.mktemp("hostile")
    plain = [
        {"text": f"the quick brown fox {row} runs far away\n" * (1 + row % 9)} for row in range(60)
    ]
    records = [{"text": text} for text in [*hostile.TEXTS, hostile.LONG, ""]] + plain
    path = folder / hostile.FILE_NAME
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    store = ps.prepare(
        path, tokenizer=tokenizer_path, template="text", cache_dir=folder / "cache", num_proc=1
    )
    loader = ps.Loader(
        {hostile.SOURCE_NAME: store, "again": store},
        batch_size=2,
        max_length=512,
        rank=0,
        world_size=2,
        output="numpy",
        max_dropped=1,
    )
    target = folder / "report.html"
    title = "A page " + hostile.TEXTS[0] + "\ud800"
    wanted = export.Export(
        title=title, recipe=hostile.TEXTS[1] + "\x00", num_samples=60, num_steps=2
    )
    export.write(loader, target, wanted)
    return target


@pytest.fixture(scope="module")
def heard() -> list[bytes]:
    """What reached the trap, to which every request of the browser goes."""
    return []


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory, heard: list[bytes]) -> Iterator[Browser]:
    with trap(heard) as port, browser(tmp_path_factory.mktemp("browser"), trap=port) as found:
        yield found


def count(chromium: Browser, selector: str) -> int:
    return int(chromium.value(f"document.querySelectorAll({json.dumps(selector)}).length"))


def called_home(heard: list[bytes]) -> list[bytes]:
    """The browser itself may look for its maker; what counts is what a page could have caused."""
    return [request for request in heard if hostile.CANARY.encode() in request]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_a_file_is_seen_and_asks_nobody(
    page: Path, chromium: Browser, heard: list[bytes], theme: str, size: str
) -> None:
    width, height = SIZES[size]
    chromium.visit(page.as_uri(), width=width, height=height, theme=theme)
    wait_for(lambda: count(chromium, ".histogram rect") > 10)
    assert "A page </script><script>" in chromium.value("document.title")
    seen = pixels(chromium.screenshot(width=width, height=height, scale=SCALE))
    colours = len(np.unique(seen.reshape(-1, 3), axis=0))
    assert colours > 60, "words and bars, not a blank sheet"
    background = np.median(seen, axis=(0, 1)).mean()
    assert background > 235 if theme == "light" else background < 60
    assert chromium.value("document.documentElement.scrollWidth") <= width, "nothing sticks out"
    assert chromium.requests == [page.as_uri()], "but itself"
    assert called_home(heard) == [] and chromium.errors == [] and chromium.lines == []


def test_views_follow_links_without_a_server(
    page: Path, chromium: Browser, heard: list[bytes]
) -> None:
    chromium.visit(page.as_uri())
    wait_for(lambda: count(chromium, ".histogram rect") > 10)
    shown = (
        "[...document.querySelectorAll('.bar nav a:not([hidden])')].map((link) => link.textContent)"
    )
    assert chromium.value(shown) == ["Samples", "Run", "Data"]
    chromium.value("document.querySelector('[data-view=samples]').click()")
    wait_for(lambda: count(chromium, ".tokens.text b") > 10)
    listed = count(chromium, ".list-row")
    find = "const find = document.querySelector('[name=q]'); find.value = 'bidi '; find.dispatchEvent(new Event('input', {bubbles: true}))"
    chromium.value(f"{{ {find} }}")
    wait_for(lambda: 1 <= count(chromium, ".list-row") < listed)
    chromium.value("document.querySelector('.list-row').click()")
    text = "document.querySelector('.tokens.text')?.textContent ?? ''"
    wait_for(lambda: "\\u202e" in chromium.value(text))
    chromium.value("document.querySelector('[data-view=run]').click()")
    wait_for(lambda: count(chromium, ".frame") >= 3)
    chromium.value("location.hash = '#/run?step=0'")
    wait_for(lambda: "Step 0" in chromium.value("document.querySelector('.step').textContent"))
    chromium.value("location.hash = '#/run?step=1'")
    said = "document.querySelector('.step').textContent"
    wait_for(lambda: "This file does not have step 1" in chromium.value(said))
    assert chromium.requests == [page.as_uri()] and called_home(heard) == []
    assert chromium.errors == [] and chromium.lines == []
