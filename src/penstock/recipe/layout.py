"""Write a drafted recipe as commented YAML."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.recipe.meaning import MEANING
from penstock.recipe.written import default_text, line
from penstock.report.escape import escape

if TYPE_CHECKING:
    from penstock.recipe.draft import Draft, EvalDraft

VARIABLE = "TOKENIZER"  # stands in a recipe for a tokenizer that nobody named

_SHOWN = ("packing", "overflow", "shuffle", "seed", "epochs", "tail", "output")
_TRAIN_ON = ("messages", "sharegpt", "alpaca")


def layout(made: "Draft", output: Path, tokenizer: str | None) -> str:
    """The text of a recipe that will be the file `output`."""
    folder, name = output.parent, json.dumps(output.name, ensure_ascii=False)
    given = line("tokenizer", relative(tokenizer, folder, must_exist=True)) if tokenizer is not None else None
    settings = made.settings
    lines = [
        "# Written by `penstock init` after a look at the data:",
        *(f"#   {escape(finding)}" for finding in made.findings),
        "#",
        "# penstock check, show, stats, plan, prepare: each takes this file.  In Python: penstock.load(" + escape(name) + ")",
        "",
        line("data", _paths(made.path, folder)),
        *([f"{line('options', settings['options'])}  # {MEANING['options']}"] if settings.get("options") else []),
        "# Several data sets, with weights and settings of their own:",
        "#   data:",
        "#     chat: {path: chat.jsonl, weight: 0.7}",
        "#     math: {path: math.jsonl, weight: 0.3, template: alpaca}",
        "",
        *_tokenizer(made, given),
        f"{line('template', made.template)}  # `penstock show` shows a record as a sample",
        *(_option(name, value) for name, value in made.options.items()),
        *([f"# train_on: assistant  # {MEANING['train_on']}"] if made.template in _TRAIN_ON and "train_on" not in made.options else []),
        "",
        f"max_length: {made.max_length}  # {MEANING['max_length']}; `penstock stats` compares others",
        f"batch_size: {made.batch_size}  # {MEANING['batch_size']}",
        *(_option(name, value) for name, value in settings.items() if name != "options"),
        "",
        "# Left at their defaults:",
        *(_default(name) for name in _SHOWN if name not in settings),
        "",
        "# Sets to evaluate on: one pass each, in the order of the file.  penstock.load("
        + escape(name) + f', part="{made.eval_sets[0].name if made.eval_sets else "held_out"}")',
        *(_eval_sets(made.eval_sets, folder) or ["# eval:", "#   held_out: held_out.jsonl"]),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _eval_sets(found: "list[EvalDraft]", folder: Path) -> list[str]:
    if not found:
        return []
    sets: dict[str, Any] = {}
    for each in found:
        path = _paths(each.path, folder)
        sets[each.name] = {"path": path, **each.own} if each.own else path
    return [line("eval", sets)]


def _option(name: str, value: Any) -> str:
    meaning = f"  # {MEANING[name]}" if name in MEANING and not isinstance(value, dict | list) else ""
    return f"{line(name, value)}{meaning}"


def _tokenizer(made: "Draft", given: str | None) -> list[str]:
    if given is not None:
        return [given]
    if made.template == "pretokenized":
        return ["# tokenizer: …  # only to read samples as text; vocab_size below is the largest id seen, plus one"]
    return [
        f"tokenizer: ${{{VARIABLE}}}  # a folder, a tokenizer.json or a name on the hub; or set the variable {VARIABLE}"
    ]


def _default(name: str) -> str:
    return f"# {name}: {default_text(name)}  # {MEANING[name]}"


def _paths(place: str | list[str], folder: Path) -> str | list[str]:
    return relative(place, folder) if isinstance(place, str) else [relative(each, folder) for each in place]


def relative(place: str, folder: Path, *, must_exist: bool = False) -> str:
    """As a recipe in `folder` would name it."""
    if "://" in place or (must_exist and not Path(place).expanduser().exists()):
        return place  # elsewhere, or a name on the hub
    absolute = os.path.abspath(os.path.expanduser(place))  # noqa: PTH100, PTH111 - may be a glob
    home = os.path.abspath(folder)  # noqa: PTH100
    return os.path.relpath(absolute, home) if absolute.startswith(home + os.sep) else absolute
