"""Each tutorial has an executed notebook: its cells are those of the page, it ran without an error, and a browser shows it.

Run again by hand: python -m tests.docs.notebooks, which needs nbclient and ipykernel.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs import notebooks
from tests.docs.notebooks import TUTORIALS, as_page, cells, read, text_of
from tests.extras.view.chromium import Browser, browser, executable

needs_browser = pytest.mark.skipif(executable() is None, reason="no Chromium here")
TRAINED = "[...document.querySelectorAll('.penstock .tokens b')]"


def html_outputs(notebook: dict[str, Any]) -> Iterator[str]:
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            if "text/html" in output.get("data", {}):
                yield text_of(output["data"]["text/html"])


@pytest.mark.parametrize("tutorial", TUTORIALS)
def test_a_notebook_has_the_cells_of_its_tutorial(tutorial: str) -> None:
    """If this fails, the page has changed: python -m tests.docs.notebooks, with --text if its code is the same."""
    found = [(cell["cell_type"], text_of(cell["source"])) for cell in read(tutorial)["cells"]]
    assert found == cells(tutorial)


@pytest.mark.parametrize("tutorial", TUTORIALS)
def test_a_notebook_was_executed_from_top_to_bottom_without_an_error(tutorial: str) -> None:
    code = [cell for cell in read(tutorial)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert len(outputs) >= len(code) / 2


@pytest.mark.parametrize("tutorial", TUTORIALS)
def test_a_notebook_names_no_folder_of_the_machine_that_made_it(tutorial: str) -> None:
    text = (notebooks.FOLDER / f"{tutorial}.ipynb").read_text(encoding="utf-8")
    assert not re.findall(r"/(?:tmp|home|root|work|usr|Users)/[\w.-]+", text)


def test_values_are_drawn_with_their_tokens() -> None:
    pages = list(html_outputs(read("sft")))
    assert len(pages) >= 6 and all(page.startswith('<div class="penstock">') for page in pages)
    assert sum('<div class="tokens">' in page for page in pages) >= 2
    assert any("input_ids" in page and "<b>" in page for page in pages)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@needs_browser
@pytest.mark.parametrize("tutorial", TUTORIALS)
@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_a_browser_shows_a_notebook(
    chromium: Browser, tmp_path: Path, tutorial: str, width: int, theme: str
) -> None:
    page = tmp_path / f"{tutorial}.html"
    page.write_text(as_page(read(tutorial)), encoding="utf-8")
    chromium.visit(page.as_uri(), width=width, theme=theme)
    assert chromium.errors == [] and chromium.requests == [page.as_uri()]
    assert chromium.value("document.querySelectorAll('.penstock').length") >= 1
    assert chromium.value("document.documentElement.scrollWidth") <= width
    if tutorial == "rl":
        return  # prompts have no tokens
    colours = chromium.value(
        f"[...new Set({TRAINED}.map((token) => getComputedStyle(token).backgroundColor))]"
    )
    assert colours == ["rgba(47, 168, 104, 0.267)"], "every trained token is green"
    assert chromium.value(f"{TRAINED}.every((token) => token.getBoundingClientRect().height > 0)")
