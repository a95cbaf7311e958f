"""What do `import penstock`, the public functions and the commands import?  A fresh process runs each and lists its modules."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HEAVY = {
    *(
        "torch",
        "transformers",
        "datasets",
        "ray",
        "pyarrow.dataset",
        "pandas",
        "scipy",
        "trl",
        "accelerate",
    ),
    *("lightning", "huggingface_hub", "obstore", "matplotlib", "IPython"),
}


def imported(statement: str) -> set[str]:
    """Modules that a fresh interpreter holds after the statement, or imported on the way and let go."""
    probe = f"{statement}\nimport json, sys\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", probe],
        env=os.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    held = set(json.loads(result.stdout.splitlines()[-1]))
    passed = set(re.findall(r"^import time:.*\|\s*(\S+)$", result.stderr, flags=re.MULTILINE))
    assert "json" in held and "json" in passed  # both lists were read
    return held | passed


def brought_along(statement: str) -> set[str]:
    return imported(statement) & HEAVY


def rooms(modules: set[str]) -> set[str]:
    """The parts of penstock that these modules belong to."""
    return {name.split(".")[1] for name in modules if name.startswith("penstock.")}


@pytest.mark.parametrize(
    "statement", ["import penstock", "from penstock import *", "import penstock.errors"]
)
def test_import_brings_nothing_heavy(statement: str) -> None:
    assert brought_along(statement) == set()


def test_a_heavy_import_is_noticed() -> None:
    assert "pyarrow.dataset" in brought_along("import pyarrow.dataset")
    assert "pyarrow.dataset" in brought_along(
        "import pyarrow.dataset, sys; del sys.modules['pyarrow.dataset']"
    )


@pytest.fixture
def recipe(tokenizer_path: Path, write_jsonl: Callable[..., Path], tmp_path: Path) -> Path:
    """A recipe of conversations, prepared."""
    turns = [{"role": "user", "content": "the fox"}, {"role": "assistant", "content": "a dog"}]
    write_jsonl([{"messages": turns, "row": row} for row in range(30)], "chat.jsonl")
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"data: chat.jsonl\ntemplate: messages\ntokenizer: {tokenizer_path}\ncache_dir: cache\nmax_length: 64\nbatch_size: 2\n"
    )
    imported(command("prepare", path))
    return path


def command(*words: object) -> str:
    return f"from penstock.cli.main import run\nassert run({[str(word) for word in words]!r}) == 0"


def test_open_imports_the_sources_and_nothing_else(
    write_jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    path = write_jsonl([{"text": "a"}, {"text": "b"}])
    found = imported(
        f"import penstock as ps\nassert ps.open({str(path)!r}, cache_dir={str(tmp_path)!r})[1]['text'] == 'b'"
    )
    assert rooms(found) == {
        "api",
        "cache",
        "errors",
        "fingerprint",
        "notebook",
        "options",
        "places",
        "plugins",
        "settings",
        "sources",
        "types",
        "words",
    }
    assert found.isdisjoint(
        {"jinja2", "yaml", "tokenizers", "fastokens", "pyarrow", "numpy.ma", "click"}
    )


def test_api_does_not_import_recipe() -> None:
    assert not any(name.startswith("penstock.recipe") for name in imported("import penstock.api"))


def test_preparing_again_imports_no_engine_no_chat_template_and_no_process_pool(
    recipe: Path,
) -> None:
    found = imported(command("prepare", recipe))
    assert found.isdisjoint({"jinja2", "tokenizers", "fastokens", "pyarrow", "numpy.ma", "rich"})
    assert found.isdisjoint(
        {"multiprocessing", "tempfile", "importlib.metadata", "pydantic", "typer"}
    )
    assert found.isdisjoint({"penstock.templates.chat.template", "penstock.templates.render"})


def test_a_recipe_is_checked_without_the_engines_of_templates(recipe: Path) -> None:
    found = imported(f"import penstock as ps\nps.Recipe.read({str(recipe)!r})")
    assert found.isdisjoint({"jinja2", "tokenizers", "fastokens", "pyarrow"})


def test_a_command_imports_nothing_that_only_another_command_needs(recipe: Path) -> None:
    found = imported(command("plan", recipe))
    others = {
        "recipe.draft",
        "report.checks",
        "store.verify",
        "store.miss",
        "aliases",
    }
    assert found.isdisjoint({f"penstock.{name}" for name in others} | {"tomllib"})
