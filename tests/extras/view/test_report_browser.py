"""Does a real browser show the page, run nothing but its script, and request nothing?  With data that mean harm."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.extras.view import html
from tests.extras.view import hostile
from tests.extras.view.chromium import NAMES, Browser, browser, executable, pixels, trap

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
    html.write(loader, target, title=title, recipe=hostile.TEXTS[1] + "\x00", num_samples=60)
    return target


@pytest.fixture(scope="module")
def heard() -> list[bytes]:
    """What reached the trap, to which every request of the browser goes."""
    return []


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory, heard: list[bytes]) -> Iterator[Browser]:
    with trap(heard) as port, browser(tmp_path_factory.mktemp("browser"), trap=port) as found:
        yield found


def called_home(heard: list[bytes]) -> list[bytes]:
    """The browser itself may look for its maker; what counts is what a page could have caused."""
    return [request for request in heard if hostile.CANARY.encode() in request]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_a_page_is_seen_and_asks_nobody(
    page: Path, chromium: Browser, heard: list[bytes], theme: str, size: str
) -> None:
    width, height = SIZES[size]
    chromium.visit(page.as_uri(), width=width, height=height, theme=theme)
    assert chromium.value("document.title").startswith("A page </script><script>")
    seen = pixels(chromium.screenshot(width=width, height=height, scale=SCALE))
    assert seen.shape == (round(height * SCALE), round(width * SCALE), 3)
    colours = len(np.unique(seen.reshape(-1, 3), axis=0))
    assert colours > 60, "words and bars, not a blank sheet"
    background = np.median(seen, axis=(0, 1)).mean()
    assert background > 235 if theme == "light" else background < 40
    whole = chromium.value("document.documentElement.scrollHeight")
    assert 2_000 < whole < 60_000
    assert chromium.value("document.documentElement.scrollWidth") <= width, "nothing sticks out"
    assert chromium.requests == [page.as_uri()], "but itself"
    assert called_home(heard) == [] and chromium.errors == [] and chromium.lines == []


def test_all_that_can_be_clicked_works(page: Path, chromium: Browser) -> None:
    chromium.visit(page.as_uri())
    show = "[...document.querySelectorAll('article')].filter((each) => !each.hidden).map((each) => each.id)"
    assert chromium.value(show) == ["sample-0"]
    chromium.value("document.querySelectorAll('.browser nav a')[3].click()")
    assert chromium.value(show) == ["sample-3"]
    chromium.value("document.getElementById('after').click()")
    assert chromium.value(show) == ["sample-4"]
    find = "const find = document.getElementById('search'); find.value = 'bidi '; find.dispatchEvent(new Event('input'))"
    chromium.value(f"{{ {find} }}")
    listed = "document.querySelectorAll('.browser nav li:not([hidden])').length"
    assert (
        1
        <= chromium.value(listed)
        < chromium.value("document.querySelectorAll('.browser nav li').length")
    )
    assert "\\u202e" in chromium.value(
        "document.querySelector('article:not([hidden])').textContent"
    )
    over = "document.querySelector('article:not([hidden]) .text b').dispatchEvent(new PointerEvent('pointerover', {bubbles: true}))"
    chromium.value(over)
    token = chromium.value("document.getElementById('token').textContent")
    assert re.fullmatch(r"token 1, id \d+, trained", token), (
        "nothing predicts token 0, so it is no target"
    )
    chromium.value("for (const each of document.querySelectorAll('details')) each.open = true")
    assert chromium.value("document.documentElement.scrollWidth <= innerWidth"), (
        "also with every table open"
    )
    assert chromium.errors == [] and chromium.lines == []


def test_a_theme_can_be_chosen(page: Path, chromium: Browser) -> None:
    chromium.visit(page.as_uri(), theme="light")
    back = "getComputedStyle(document.body).backgroundColor"
    system = chromium.value(back)
    seen = []
    for _ in range(3):
        chromium.value("document.getElementById('theme').click()")
        seen.append(
            (chromium.value("document.getElementById('theme').textContent"), chromium.value(back))
        )
    assert [name for name, _ in seen] == ["Theme: light", "Theme: dark", "Theme: system"]
    assert seen[0][1] == system == seen[2][1] != seen[1][1]
    chromium.look(width=800, height=600, theme="dark")
    assert chromium.value(back) == seen[1][1]


def test_without_scripts_and_on_paper_all_is_there(page: Path, chromium: Browser) -> None:
    shown = "[...document.querySelectorAll('article')].every((each) => each.offsetHeight > 0)"
    buttons = (
        "[...document.querySelectorAll('button')].filter((each) => each.offsetHeight > 0).length"
    )
    chromium.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        chromium.visit(page.as_uri())
        assert chromium.value(shown) and chromium.value(buttons) == 0
    finally:
        chromium.ask("Emulation.setScriptExecutionDisabled", value=False)
    chromium.visit(page.as_uri(), theme="dark")
    assert chromium.value(buttons) == 3
    chromium.value("document.documentElement.dataset.theme = 'dark'")
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    chromium.ask("Emulation.setEmulatedMedia", media="print", features=dark)
    assert (
        chromium.value(buttons) == 0
        and chromium.value("document.querySelector('.browser nav').offsetHeight") == 0
    )
    colours = chromium.value(
        "(({backgroundColor, color}) => [backgroundColor, color])(getComputedStyle(document.body))"
    )
    assert colours == ["rgb(255, 255, 255)", "rgb(23, 33, 45)"], "dark words on white paper"
    assert (
        len(base64.b64decode(chromium.ask("Page.printToPDF", printBackground=True)["data"]))
        > 20_000
    )
    chromium.ask("Emulation.setEmulatedMedia", media="")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_can_be_read(page: Path, chromium: Browser, theme: str) -> None:
    """4.5 to 1, as WCAG asks for small text; 3 to 1 for what is drawn."""
    chromium.visit(page.as_uri(), theme=theme)
    assert chromium.value("CSS.supports('color', 'color-mix(in srgb, red, blue)')")
    colours = chromium.value(
        """Object.fromEntries(['page', 'card', 'ink', 'soft', 'accent', 'accent-soft', 'trained', 'trained-soft', 'trained-ink', 'special',
        'warn', 'warn-soft', 'hidden', 'hidden-soft', 'lost', 'fill', 'c0', 'c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'cx'].map(
        (name) => [name, getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim()]))"""
    )
    words = [
        *(("ink", back) for back in ("page", "card", "warn-soft", "accent-soft")),
        *(("soft", back) for back in ("page", "card")),
        *[
            ("accent", "page"),
            ("accent", "accent-soft"),
            ("trained-ink", "trained-soft"),
            ("special", "trained-soft"),
        ],
        *[("special", "page"), ("warn", "warn-soft"), ("hidden", "hidden-soft"), ("lost", "card")],
    ]
    faint = [(f, b) for f, b in words if contrast(colours[f], colours[b]) < 4.5]
    assert faint == [], [(f, b, round(contrast(colours[f], colours[b]), 2)) for f, b in faint]
    drawn = [name for name in colours if re.fullmatch(r"c[0-6x]|trained|fill", name)]
    assert [name for name in drawn if contrast(colours[name], colours["card"]) < 3] == []


def contrast(first: str, second: str) -> float:
    """Of two colours as #rrggbb, as WCAG defines it."""

    def light(colour: str) -> float:
        parts = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    bright, dark = sorted((light(first), light(second)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_text_that_came_through_unescaped_could_not_call_home(
    page: Path, chromium: Browser, heard: list[bytes], tmp_path: Path
) -> None:
    """The policy holds where escaping would have failed; what would lead the reader elsewhere is left out, no policy holds that."""
    raw = "".join(
        text for text in hostile.TEXTS if "refresh" not in text and "javascript:" not in text
    )
    broken = tmp_path / "broken.html"
    broken.write_text(page.read_text().replace("<main>", f"<main>{raw}", 1))
    chromium.visit(broken.as_uri())
    chromium.value("new Promise((done) => setTimeout(done, 100))")
    assert any("Content Security Policy" in error for error in chromium.errors), "it has tried"
    assert not any("ran" in line for line in chromium.lines) and called_home(heard) == []


def test_the_watch_would_see_a_request_and_a_script(
    chromium: Browser, heard: list[bytes], tmp_path: Path
) -> None:
    """Without a policy the same data do call home: what finds nothing above finds it here."""
    bare = tmp_path / "bare.html"
    bare.write_text(
        f"<!doctype html><title>x</title>{hostile.TEXTS[1]}<img src=http://{hostile.CANARY}/picture>"
    )
    chromium.visit(bare.as_uri())
    assert [request for request in chromium.requests if hostile.CANARY in request]
    assert chromium.lines == ['["ran"]'] and chromium.errors
    assert called_home(heard)
    heard.clear()
