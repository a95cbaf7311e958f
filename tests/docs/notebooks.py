"""Makes an executed notebook of each tutorial, docs/tutorials/NAME.ipynb:

    python -m tests.docs.notebooks [NAME]
    python -m tests.docs.notebooks --text      the text of the pages has changed, and no code: nothing is executed

The text and the code are those of the page; a few cells that show values as notebooks draw them are added.  They are executed in a real
kernel, in an empty folder; what is printed to stderr is left out, and so are the names of folders of this machine.  Needs nbclient and
ipykernel.  `as_page` draws a notebook as a page of HTML, with its HTML outputs as they are, for a browser.
"""

import hashlib
import html
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import markdown

from tests.docs.pages import ROOT, Block, blocks, commands
from tests.docs.world import make_commands

FOLDER = ROOT / "docs" / "tutorials"
TUTORIALS = ("sft", "pretraining", "rl")
_FENCE = re.compile(r"^```[^\n]*\n.*?^```\n", flags=re.MULTILINE | re.DOTALL)
_PATIENCE = 900  # seconds for one cell
_OWN_LINK = re.compile(r"\nThe page as an executed notebook: .*")
_COUNTED = re.compile(r"\bobject at 0x[0-9a-f]+")

# What is shown in a notebook and needs no block on the page: after which heading, an introduction, and the cells.
SHOWN: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "sft": (
        "## 4. Write the training script",
        "A notebook shows values when they are the last line of a cell: records, a store, a batch with its tokens in colour (trained "
        "ones are green), the plan, and what a loader has delivered and dropped.",
        (
            'import penstock as ps\n\nps.open("example-chat/chat.jsonl")',
            'loader = ps.load("example-chat/recipe.yaml")\nloader.stores[0]',
            "batch = next(iter(loader))\nbatch",
            "loader.plan",
            "loader",
            "loader.counters",
        ),
    ),
    "pretraining": (
        "## 5. Train",
        "A notebook shows values when they are the last line of a cell. With `packing: concat`, a row holds pieces of several documents.",
        (
            "import penstock as ps\n\n"
            'loader = ps.load("example-text/recipe.yaml", cache_dir="shared")\nnext(iter(loader))',
            "loader",
        ),
    ),
    "rl": (
        "## 2. Train with GRPO",
        "A notebook shows values when they are the last line of a cell: here the records that become prompts.",
        ('import penstock as ps\n\nps.open("example-prompts/questions.jsonl")',),
    ),
}


def cells(tutorial: str) -> list[tuple[str, str]]:
    """Return the cells of a tutorial's notebook, as (kind, source)."""
    page = FOLDER / f"{tutorial}.md"
    text = page.read_text(encoding="utf-8")
    heading, introduction, shown = SHOWN[tutorial]
    made: list[tuple[str, str]] = []
    done = 0
    for fence, block in zip(_FENCE.finditer(text), blocks(page), strict=True):
        code = list(_cells_of_block(block))
        if not code:  # a block that is not run stays part of the text
            continue
        made += _prose(text[done : fence.start()])
        made += [("code", source) for source in code]
        done = fence.end()
    made += _prose(text[done:])
    made[0] = ("markdown", _OWN_LINK.sub("", made[0][1]))
    place = next(number for number, (_, source) in enumerate(made) if heading in source)
    before, _, after = made[place][1].partition(heading)
    first = f"{before.strip()}\n\n{introduction}".strip()
    added = [("markdown", first), *(("code", source) for source in shown)]
    return [*made[:place], *added, ("markdown", f"{heading}{after}".strip()), *made[place + 1 :]]


def _prose(text: str) -> list[tuple[str, str]]:
    return [("markdown", text.strip())] if text.strip() else []


def _cells_of_block(block: Block) -> Iterator[str]:
    if block.why_not_run is None and block.file:
        yield f"%%writefile {block.file}\n{block.text.rstrip()}"
    elif block.runs and block.language == "python":
        yield block.text.rstrip()
    elif block.runs:
        for command, _ in commands(block):
            yield f"%%bash\n{command}"


def execute(tutorial: str) -> dict[str, Any]:
    """Return the executed notebook of a tutorial."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook()
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    for number, (kind, source) in enumerate(cells(tutorial)):
        new = nbformat.v4.new_code_cell if kind == "code" else nbformat.v4.new_markdown_cell
        notebook.cells.append(new(source, id=cell_id(tutorial, number)))
    with tempfile.TemporaryDirectory(prefix="tutorial-") as name:
        folder = Path(name) / "work"
        folder.mkdir()
        path = os.pathsep.join([str(make_commands(Path(name) / "bin")), os.environ["PATH"]])
        python_path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        environment = {
            **os.environ,
            "PATH": path,
            "PYTHONPATH": python_path,
            "PENSTOCK_CACHE": str(Path(name) / "cache"),
            "CUDA_VISIBLE_DEVICES": "",
        }
        client = NotebookClient(
            notebook,
            timeout=_PATIENCE,
            kernel_name="python3",
            resources={"metadata": {"path": str(folder)}},
        )
        client.execute(env=environment)
        notebook.metadata["language_info"] = {"name": "python"}
        found: dict[str, Any] = json.loads(nbformat.writes(notebook))
        for cell in found["cells"]:
            cell["metadata"] = {}
            if cell["cell_type"] == "code":
                cell["outputs"] = [
                    _without_places(output, [f"{folder}/", name])
                    for output in _joined(cell["outputs"])
                ]
    return found


def _joined(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return outputs without stderr, with neighbouring pieces of stdout as one."""
    made: list[dict[str, Any]] = []
    for output in outputs:
        if output.get("name") == "stderr":
            continue
        if made and output.get("name") == "stdout" and made[-1].get("name") == "stdout":
            made[-1]["text"] = text_of(made[-1]["text"]) + text_of(output["text"])
        else:
            made.append(output)
    return made


def _without_places(output: Any, places: list[str]) -> Any:
    """Return an output without names of folders of this machine, and without addresses of objects."""
    text = json.dumps(output)
    for place in (*places, f"{ROOT}/"):
        text = text.replace(place, "")
    return json.loads(_COUNTED.sub("object", text))


def write(tutorial: str) -> Path:
    return _save(tutorial, execute(tutorial))


def _save(tutorial: str, notebook: dict[str, Any]) -> Path:
    target = FOLDER / f"{tutorial}.ipynb"
    target.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return target


def refresh(tutorial: str) -> Path:
    """Take the text of a page into its notebook; the outputs stay, so no code may have changed."""
    notebook = read(tutorial)
    kept = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    wanted = cells(tutorial)
    code = [source for kind, source in wanted if kind == "code"]
    if code != [text_of(cell["source"]) for cell in kept]:
        sys.exit(
            f"{tutorial}: its code has changed; run: python -m tests.docs.notebooks {tutorial}"
        )
    for cell in kept:
        cell["outputs"] = _joined(cell["outputs"])
    executed = iter(kept)
    notebook["cells"] = [
        next(executed) if kind == "code" else _text_cell(tutorial, number, source)
        for number, (kind, source) in enumerate(wanted)
    ]
    return _save(tutorial, notebook)


def _text_cell(tutorial: str, number: int, source: str) -> dict[str, Any]:
    name = cell_id(tutorial, number)
    return {"cell_type": "markdown", "id": f"{name}-text", "metadata": {}, "source": source}


def cell_id(tutorial: str, number: int) -> str:
    return hashlib.sha256(f"{tutorial} {number}".encode()).hexdigest()[:8]


def read(tutorial: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{tutorial}.ipynb").read_text(encoding="utf-8"))
    return found


def text_of(value: str | list[str]) -> str:
    """Return a text of a notebook, which is kept as a string or as lines."""
    return value if isinstance(value, str) else "".join(value)


def as_page(notebook: dict[str, Any]) -> str:
    """Draw a notebook as a page: what a cell shows as HTML is there as it is."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        "<style>:root{color-scheme:light dark}body{font:15px/1.5 sans-serif;max-width:60rem;margin:1rem auto;padding:0 1rem}",
        "pre{overflow:auto;background:#8881;padding:.5rem}.out{overflow:auto;margin:.5rem 0 1.5rem}img{max-width:100%}",
        "p,li,code{overflow-wrap:anywhere}body>table{display:block;overflow:auto}</style>",
    ]
    for cell in notebook["cells"]:
        source = text_of(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(markdown.markdown(source, extensions=["tables", "fenced_code"]))
            continue
        parts.append(f"<pre class=in>{html.escape(source)}</pre><div class=out>")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "text/html" in data:
                parts.append(text_of(data["text/html"]))
            else:
                shown = output.get("text", data.get("text/plain", ""))
                parts.append(f"<pre>{html.escape(text_of(shown))}</pre>")
        parts.append("</div>")
    return "\n".join([*parts, "</html>"])


if __name__ == "__main__":
    is_text = "--text" in sys.argv
    for each in [name for name in sys.argv[1:] if name != "--text"] or TUTORIALS:
        print(refresh(each) if is_text else write(each))
