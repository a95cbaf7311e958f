"""Writes docs/reference/api.md from signatures and docstrings: python -m tests.docs.api_page."""

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cached_property
from typing import Annotated, Any, get_origin

import penstock
from penstock import testing
from penstock.loader.batch import Batch
from penstock.loader.layout import BatchForm, LoaderSettings
from penstock.plan.settings import PlanSettings
from penstock.rl import Client, Prompt
from penstock.rl import Prompts as Leased
from penstock.sources.base import RowAccess
from penstock.store import Store
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "reference" / "api.md"

HEAD = """# API

Written from signatures and docstrings by `tests/docs/api_page.py`; a test fails when it is out of date. These names are all that is
public: what `import penstock as ps` shows, what those return, the [modules for trainers and reinforcement learning](#integrations), and
`penstock.testing`. The keys of a recipe are the same names ([list](recipe.md)), and every setting below can be one.
"""
_INTEGRATIONS = """A module needs the library that it is for. [Trainers](../guides/trainers.md) and [prompts](../guides/rl.md)
say how to use them. Arguments that a class passes on to its base are not listed.
"""
SOURCES = ROOT / "src" / "penstock"
PLAN = "[What they do](../concepts/plan.md), [which packing to choose](../guides/packing.md).\n"
FORM = "[What a batch holds](../concepts/loader.md).\n"

# Members that users have a use for, where there are others for the rooms around.
MEMBERS = {
    "Client": [
        *("take", "accept", "renew", "done", "drop", "back", "back_from", "finished", "counts"),
        *("state_dict", "load_state_dict", "close"),
    ],
    "Recipe": ["read", "of", "changed", "parts", "part", "to_yaml"],
    "Source": [
        *(
            "__len__",
            "__getitem__",
            "describe",
            "locate",
            "bad_counts",
            "column_names",
            "select",
            "filter",
            "map",
        ),
        *(
            "rename",
            "remove",
            "sort",
            "shuffle",
            "head",
            "train_test_split",
            "iterate",
            "to_pandas",
        ),
    ],
    "Store": [
        "__len__",
        "__getitem__",
        "counts",
        "describe",
        "lengths",
        "lengths_of",
        "tokens",
        "to_hf",
        "to_megatron",
        "push_to_hub",
        "load_from_hub",
        "wait",
        "close",
    ],
}
SAID = {
    "locate": "Return the file and the line of a record.",
    "__len__": "How many records or samples there are.",
    "__getitem__": "Sample i: `input_ids`, `loss_mask`, `text`, `where`.",
}


def page() -> str:
    parts = [HEAD]
    for name in penstock.__all__:
        value = getattr(penstock, name)
        parts += [
            f"## ps.{name}\n",
            *(_class(name, value) if inspect.isclass(value) else [_function(name, value)]),
        ]
        if name == "Loader":
            parts += ["### Parameters\n", *_settings(LoaderSettings)]
            parts += ["### Settings of the order\n", *_settings(PlanSettings), PLAN]
            parts += ["### Settings of a batch's form\n", *_settings(BatchForm), FORM]
        if name == "Prompts":
            parts = [
                *parts[:-2],
                _function(name, value),
                *_class("Leased", Leased)[1:],
            ]  # its members are those of its base
            parts += ["### Prompt\n", *_fields(Prompt), "### Client\n", *_class("Client", Client)]
    parts += ["## Batch\n", "What a loader hands over.\n", *_class("Batch", Batch)]
    parts += ["## Store\n", "What `prepare` returns.\n", *_class("Store", Store)]
    parts += ["## Source\n", "What `open` returns.\n", *_class("Source", RowAccess)[1:]]
    parts += ["## Integrations\n", _INTEGRATIONS, *integrations()]
    parts += ["## penstock.testing\n", _docstring(testing).split("\n\n")[0] + "\n"]
    for name in testing.__all__:
        parts += [f"### {name}\n", _function(name, getattr(testing, name))]
    parts += ["## Errors\n", _docstring(inspect.getmodule(penstock.errors.PenstockError))]
    return "\n".join(parts).rstrip() + "\n"


def integrations() -> list[str]:
    """Public modules of extras: their names with parameters, read without importing the libraries that they need."""
    parts = []
    for package in ("trainers", "rl", "sequences"):
        for path in sorted((SOURCES / package).glob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            rows = [
                row
                for part in tree.body
                if isinstance(part, ast.ImportFrom)
                for row in _names(part)
            ]
            if rows:
                module = f"penstock.{package}" + (
                    "" if path.stem == "__init__" else f".{path.stem}"
                )
                doc = " ".join((ast.get_docstring(tree) or "").split("\n\n")[0].split())
                parts += [f"### {module}\n", f"{doc}\n", "| name | |", "|---|---|", *rows, ""]
    return parts


def _names(imported: ast.ImportFrom) -> list[str]:
    """A line for each class and function that a public module takes from an extra."""
    if not (imported.module or "").startswith("penstock.extras"):
        return []
    place = SOURCES.parent.joinpath(*str(imported.module).split("."))
    file = place.with_suffix(".py") if place.with_suffix(".py").is_file() else place / "__init__.py"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    wanted = {alias.name for alias in imported.names}
    rows = []
    for part in tree.body:
        if isinstance(part, ast.ImportFrom):
            rows += _names(
                ast.ImportFrom(part.module, [each for each in part.names if each.name in wanted], 0)
            )
        elif isinstance(part, ast.ClassDef | ast.FunctionDef) and part.name in wanted:
            made = part
            if isinstance(part, ast.ClassDef):
                inits = [each for each in part.body if getattr(each, "name", "") == "__init__"]
                made = inits[0] if inits else part
            names = [each.arg for each in _arguments(made) if each.arg != "self"]
            doc = " ".join((ast.get_docstring(part) or "").split("\n\n")[0].split())
            shown = f"{part.name}({', '.join(names)})" if names else part.name
            rows.append(f"| `{shown}` | {doc.replace('|', chr(92) + '|')} |")
    return rows


def _arguments(part: ast.stmt) -> list[ast.arg]:
    given = part.args if isinstance(part, ast.FunctionDef) else None
    return [*given.posonlyargs, *given.args, *given.kwonlyargs] if given else []


def _fields(cls: type[Any]) -> list[str]:
    """The fields and properties of a dataclass that users read."""
    names = [each.name for each in fields(cls) if not each.name.startswith("find_")]
    return [_docstring(cls), f"It has `{'`, `'.join([*names, 'where'])}`.\n"]


def _class(name: str, cls: type[Any]) -> list[str]:
    parts = [_docstring(cls)]
    if "__init__" in vars(cls) and name == "Loader":
        parts.append(_function(name, cls))
    rows = []
    for member in MEMBERS.get(name, vars(cls)):
        value = inspect.getattr_static(cls, member)
        if member.startswith("_") and member not in ("__len__", "__iter__", "__getitem__"):
            continue
        if isinstance(value, property | cached_property):
            rows.append(f"| `{member}` | {_line(value)} |")
        elif callable(value) or isinstance(value, staticmethod | classmethod):
            said = _line(getattr(cls, member)) or SAID.get(member, "")
            called = _call(member, getattr(cls, member), is_method=inspect.isfunction(value))
            rows.append(f"| `{called}` | {said} |")
    return [*parts, "| member | |\n|---|---|", *rows, ""]


def _call(name: str, value: Callable[..., Any], *, is_method: bool) -> str:
    special = {"__len__": "len(…)", "__iter__": "for … in …", "__getitem__": "…[i]"}
    if name in special:
        return special[name]
    parameters = _parameters(value)
    if is_method and "self" not in inspect.signature(value).parameters:
        parameters = parameters[1:]  # a function of a module: the object is its first parameter
    return f"{name}({', '.join(parameters)})"


def _parameters(value: Callable[..., Any]) -> list[str]:
    made = []
    for parameter in inspect.signature(value).parameters.values():
        if parameter.name == "self":
            continue
        star = {parameter.VAR_KEYWORD: "**", parameter.VAR_POSITIONAL: "*"}.get(parameter.kind, "")
        given = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        made.append(f"{star}{parameter.name}{given}")
    return made


def _function(name: str, value: Callable[..., Any]) -> str:
    shown = f"{name}({', '.join(_typed(value))})"
    if len(shown) > 110:
        shown = f"{name}(\n    " + ",\n    ".join(_typed(value)) + ",\n)"
    text = _docstring(value.__init__ if inspect.isclass(value) else value)
    documented = [f"- `{name}`: {doc}\n" for name, doc in _documented(value).items()]
    return f"```text\n{shown}\n```\n\n{text}{''.join(documented)}"


def _documented(value: Callable[..., Any]) -> dict[str, str]:
    """The documentation that parameters are annotated with."""
    parameters = inspect.signature(value).parameters.items()
    return {
        name: each.annotation.__metadata__[0]
        for name, each in parameters
        if get_origin(each.annotation) is Annotated
    }


def _typed(value: Callable[..., Any]) -> list[str]:
    """Parameters with their types, and a bare star where the rest are keywords."""
    made, keyword_only = [], False
    for parameter in inspect.signature(value).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            made.append("*")
            keyword_only = True
        if get_origin(parameter.annotation) is Annotated:
            parameter = parameter.replace(annotation=parameter.annotation.__origin__)
        made.append(
            re.sub(
                r"\b(?:penstock\.\w+(?:\.\w+)*|collections\.abc|typing|os)\.(?=\w)",
                "",
                str(parameter),
            )
        )
    return made


def _settings(settings: type[Any]) -> list[str]:
    parts = [_docstring(settings), "| name | default | what |", "|---|---|---|"]
    for name, field in settings.__dataclass_fields__.items():
        if name == "weights":
            continue  # given with the stores
        default = "required" if field.default is MISSING else f"`{field.default!r}`"
        parts.append(f"| `{name}` | {default} | {field.metadata['doc']} |")
    return [*parts, ""]


def _docstring(value: Any) -> str:
    """As paragraphs; what says `name: what it is` becomes a list, what is indented a block."""
    text = inspect.getdoc(value) or ""
    made: list[str] = []
    for line in re.sub(r"(?<=[.)])  (?=\w+(?:=\w+)?: )", "\n", text).splitlines():
        if line.startswith("    "):
            is_new = not made or not made[-1].startswith("    ")
            made += ["", line] if is_new and made and made[-1] else [line]
        elif found := re.match(r"(\w+(?:=\w+)?): (.*)", line):
            made += (
                ["", f"- `{found[1]}`: {found[2]}"]
                if made and made[-1] and "- `" not in made[-1]
                else [f"- `{found[1]}`: {found[2]}"]
            )
        elif line and made and made[-1].startswith("- `"):
            made[-1] += f" {line}"
        else:
            made.append(line)
    return re.sub(r"(?<=\S)  (?=\S)", " ", "\n".join(made)) + "\n"


def _line(value: Any) -> str:
    return (
        (inspect.getdoc(value) or "")
        .split("\n\n")[0]
        .replace("\n", " ")
        .replace("  ", " ")
        .replace("|", "\\|")
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
