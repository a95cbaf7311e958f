"""Read the configuration of another tool, and write it as a recipe.

Every key of the configuration is in the recipe: as a key of ours with a comment that names theirs, or as a comment with the reason why
there is none.  Defaults of the other tool that differ from ours are written out.
"""

import os
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from penstock.aliases import ALIASES, HINTS, as_yaml
from penstock.errors import RecipeError
from penstock.extras.imports.foreign_read import CONFIG, Computed, as_list, read_foreign
from penstock.recipe.document import data_set_name
from penstock.recipe.recipe import dump, relative

__all__ = ["Imported", "Settings", "as_list", "import_config", "which_tool"]

_TRAINER = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["trainer"]
_OF_TOOL = {
    "trl": ("transformers", "trl"),
    "llama-factory": ("transformers", "llama-factory"),
    "axolotl": ("axolotl",),
    "lmms-engine": ("transformers", "lmms-engine"),
}
TOOLS = tuple(_OF_TOOL)
_WIDTH = 44  # where comments begin
_BEYOND = "# Not about data, or without an equivalent:"
_OF_A_DATA_SET = re.compile(
    "key$|^(data|eval|path|options|shape|split|config|revision|weight)$"
)  # of ours
# Keys of ours that are for one run.  A recipe is read by every command and by every rank, and each of them would do it again.
# Keys that other tools and a recipe call the same.
_SAME_NAMES = ("chat_template_kwargs", "stopping_strategy")
_ONE_TIME = {
    "refresh": "for one run, and a recipe is for all: `penstock prepare RECIPE --refresh` does it once"
}
_PLACES = {
    "path",
    "tokenizer",
    "processor",
    "chat_template",
    "media_root",
}  # keys of ours that hold paths
Settings = dict[str, tuple[Any, str]]  # our key → value, and what it was


@dataclass
class Imported:
    """A configuration on its way to a recipe.  `take` marks a key as read; `text` lists what nothing has read."""

    tool: str
    file: Path
    given: dict[str, Any]
    method: str | None = None  # how trl trains, where the file says so: sft, dpo …
    top: Settings = field(default_factory=dict)
    sets: dict[str, Settings] = field(default_factory=dict)
    evals: dict[str, Settings] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    computed: dict[str, str] = field(
        default_factory=dict
    )  # by a script: expressions without a value
    num_translated: int = 0
    _taken: set[str] = field(default_factory=set)

    def take(self, key: str, default: Any = None) -> Any:
        """Return the value of a key of theirs, or their default."""
        self._taken.add(key)
        value = self.given.get(key)
        return default if value is None else value

    def listed(self, key: str) -> list[Any]:
        """Return the list under a key of theirs."""
        value = self.take(key, [])
        if not isinstance(value, list):
            raise RecipeError(f"{self.file}: {key} is {_short(value)}, expected a list")
        return value

    def was(self, key: str, value: Any, note: str = "") -> str:
        """Return a comment: the key of theirs, whether it is their default, and what differs."""
        text = f"{key}: {_short(value)}" + (
            "" if self.given.get(key) is not None else f" (default of {self.tool})"
        )
        if key in self.computed:
            text = f"{key}: {_short(self.computed[key])}, which the script computes: WRITE ITS VALUE here"
        return f"{text}; {note}" if note else text

    def put(self, ours: str, value: Any, key: str, theirs: Any, note: str = "") -> None:
        """Write a key of ours at the top."""
        self.top[ours] = (value, self.was(key, theirs, note))

    def same(self, ours: str, key: str, default: Any = None, note: str = "") -> Any:
        """Write the value of a key of theirs under our name, if it or a default is there."""
        value = self.take(key, default)
        if value is not None:
            self.put(ours, value, key, value, note)
        return value

    def leave(self, key: str, why: str) -> None:
        """List a key without an equivalent, if it is there."""
        self._taken.add(key)
        if key in self.given:
            self.left.append(f"{key}: {_short(self.given[key])}  ({why})")

    def leave_all(self, reasons: dict[str, str]) -> None:
        """List those of several keys that are there."""
        for key, why in reasons.items():
            self.leave(key, why)

    def part(self, given: Any, was: str) -> dict[str, Any]:
        """Return a copy of the description of one dataset."""
        if not isinstance(given, dict) or "path" not in given:
            raise RecipeError(
                f"{self.file}: {was} is {_short(given)}, expected a mapping with a path"
            )
        return dict(given)

    def settings_of(self, part: dict[str, Any], keys: dict[str, str], was: str) -> Settings:
        """Take members of a mapping under our names."""
        found: Settings = {}
        for key in [key for key in keys if key in part]:
            if part[key] is None or keys[key] in found:
                why = "not set" if part[key] is None else f"{found[keys[key]][1]} is read"
                self.leave_part({key: part[key]}, was, why)
            else:
                found[keys[key]] = (part[key], f"{was}.{key}")
            del part[key]
        return found

    def leave_part(self, part: dict[str, Any], was: str, why: str) -> None:
        """List the members of a mapping."""
        self.left += [
            f"{_short(f'{was}.{key}: {as_yaml(value)}')}  ({why})" for key, value in part.items()
        ]

    def add(
        self,
        path: Any,
        settings: Settings,
        was: str,
        *,
        name: str | None = None,
        of_eval: bool = False,
        cut: str = "",
    ) -> None:
        """Add a dataset.  cut: the slice of its records, such as "[:1000]"."""
        sets = self.evals if of_eval else self.sets
        called = base = name or ("held_out" if of_eval else data_set_name(path))
        while called in sets:
            called = f"{base}_{sum(each.startswith(base) for each in sets) + 1}"
        sets[called] = {"path": (_sliced(self.place(path), cut), was), **settings}

    def hold_out(self, key: str, *, seed: int, is_random: bool = True) -> None:
        """Write the share, or the number, of the records that are held out for evaluation.

        is_random: their tool chooses them at random; else it takes the last records of all data.
        """
        size = self.take(key)
        parts = _random_parts(size, seed) if is_random else _last_rows(size)
        if parts is None or not self._can_hold_out(size, is_random=is_random):
            self.leave(key, self._why_not_held_out(size))
            return
        note = f"as many records by another random choice than {self.tool}'s" if is_random else ""
        if len(self.sets) > 1:
            note += f", of each dataset; {self.tool} chooses from all of them together"
        comment = self.was(key, size, note)
        of_train, of_eval = parts
        for name, settings in self.sets.items():
            path, was = settings["path"]
            held_out = {**settings, "path": (_sliced(path, of_eval), comment)}
            held_out.pop("weight", None)
            self.evals[f"{name}_held_out"] = held_out
            settings["path"] = (_sliced(path, of_train), was)

    def _can_hold_out(self, size: Any, *, is_random: bool) -> bool:
        """Return whether a recipe can hold out that much of its datasets."""
        if self.evals:
            return False
        if len(self.sets) == 1:
            return True
        # a number of rows, and the last rows of all data, say nothing about one dataset of several
        return is_random and isinstance(size, float)

    def _why_not_held_out(self, size: Any) -> str:
        if not size:
            return "nothing is held out"
        if self.evals:
            return "eval: names other data"
        return "no equivalent for this value: write eval: with separate files, or with one part of a random split"

    def pack_evals(self, key: str) -> None:
        """Write whether eval sets are packed, if it is said."""
        value = self.take(key)
        for settings in self.evals.values() if value is not None else ():
            settings["packing"] = ("best_fit" if value else "none", self.was(key, value))
        if not self.evals:
            self.leave(key, "there are no eval sets")

    def place(self, path: Any) -> Any:
        """Return a path that the recipe can be read with from anywhere: of a file here, or next to the configuration, absolute."""
        if isinstance(path, list):
            return [self.place(each) for each in path]
        for folder in (Path(), self.file.parent):
            if (found := folder / str(path)).exists():
                return os.path.abspath(found)  # noqa: PTH100 - without ..
        return path

    def epochs(self, key: str, default: float, max_steps: str = "max_steps") -> None:
        """Write how long training takes."""
        steps = self.take(max_steps, -1)
        epochs = self.take(key, default)
        if isinstance(steps, int) and steps > 0:
            note = f"{max_steps} decides ({key} has no effect there either)"
            self.put("epochs", None, max_steps, steps, note)
            self.put("max_steps", steps, max_steps, steps)
            return
        try:
            number = float(epochs)
            number = int(number) if number.is_integer() else number
        except (TypeError, ValueError, OverflowError) as error:
            raise RecipeError(
                f"{self.file}: {key} is {_short(epochs)}, expected a number"
            ) from error
        self.put("epochs", number, key, epochs)

    def text(self, output: Path) -> str:
        """Return the recipe for the file `output`; paths below its folder are relative."""
        self._take_the_rest()
        folder = str(output.absolute().parent)
        for settings in (self.top, *self.sets.values(), *self.evals.values()):
            for key in settings.keys() & _PLACES:
                settings[key] = (relative(settings[key][0], folder), settings[key][1])
        self.num_translated = sum(not self._is_left(key) for key in self.given)
        source = f"# Imported from {self.file.name} ({self.tool}) by `penstock import`; `penstock check` looks at the result.\n"
        parts = [
            source,
            "data:\n",
            *(_block(name, settings) for name, settings in self.sets.items()),
        ]
        if self.evals:
            parts += ["eval:\n", *(_block(name, settings) for name, settings in self.evals.items())]
        parts += [_line(key, *entry) for key, entry in self.top.items()]
        comments = "".join(parts)
        for key, value in (
            self.given | self.computed
        ).items():  # a key that was read must be seen, too
            if not any(f"# {key}{mark}" in comments for mark in (": ", "[")) and not self._is_left(
                key
            ):
                why = (
                    "computed by the script"
                    if key in self.computed
                    else "read; the settings above decide"
                )
                self.left.append(f"{key}: {_short(value)}  ({why})")
        if self.left:
            parts += [f"\n{_BEYOND}\n", *(f"#   {each}\n" for each in self.left)]
        return "".join(parts)

    def _is_left(self, key: str) -> bool:
        return any(each.startswith(f"{key}: ") for each in self.left)

    def _take_the_rest(self) -> None:
        """Translate the other keys that a recipe knows as aliases; list the rest."""
        patterns = [each for group in _OF_TOOL[self.tool] for each in _TRAINER[group].split()]
        for key in [key for key in self.given if key not in self._taken]:
            value = self.take(key)
            ours: dict[str, Any] | str = HINTS.get(key, "")
            if key in _SAME_NAMES and value is not None:
                ours = {key: value}
            elif key in ALIASES and value is not None:
                ours = ALIASES[key].translate(value)
            one_time = next((name for name in _ONE_TIME if name in ours), None)
            if isinstance(ours, dict) and one_time is not None:
                self.leave(key, _ONE_TIME[one_time])
            elif isinstance(ours, dict) and ours and not any(map(_OF_A_DATA_SET.search, ours)):
                if taken := ours.keys() & self.top.keys():
                    self.leave(key, f"{', '.join(sorted(taken))}: above decides")
                for name in ours.keys() - taken:
                    self.put(name, ours[name], key, value)
            elif any(fnmatchcase(key, pattern) for pattern in patterns):
                self.leave(key, "the trainer's or the model's")
            elif ours and isinstance(ours, str):
                self.leave(key, ours)
            else:
                self.unknown.append(key)
                self.leave(key, "NOT KNOWN here: find out whether it changes the data")


def _random_parts(size: Any, seed: int) -> tuple[str, str] | None:
    """Return the names of the two parts of a random split; None for a size that is none."""
    is_share = isinstance(size, float) and 0 < size < 1
    if not is_share and not (type(size) is int and size > 0):
        return None
    return random_part("train", size, seed), random_part("test", size, seed)


def random_part(part: str, size: int | float, seed: int) -> str:
    """Return the name of one part of a random split, as penstock.sources.names reads it."""
    return f"[split={part}, test_size={size}, seed={seed}]"


def _last_rows(size: Any) -> tuple[str, str] | None:
    """Return the names of the first and the last records; None for a share that is not a whole percentage."""
    share = isinstance(size, float) and 0 < size < 1 and round(100 * size, 9)
    edge = None
    if share and share == int(share):
        edge = f"{100 - int(share)}%"
    elif type(size) is int and size > 0:
        edge = f"-{size}"
    return None if edge is None else (f"[:{edge}]", f"[{edge}:]")


def _sliced(path: Any, cut: str) -> Any:
    """Return a path, or each of several, with a slice of its records."""
    return (
        [_sliced(each, cut) for each in path]
        if isinstance(path, list)
        else f"{path}@{cut}"
        if cut
        else path
    )


def _short(value: Any) -> str:
    text = " ".join(as_yaml(value).split())
    return text if len(text) <= 100 else f"{text[:99]}…"


def _line(key: str, value: Any, comment: str, indent: str = "") -> str:
    body = dump({key: value}).rstrip("\n").splitlines()
    if len(body) == 1:
        return f"{indent + body[0]:<{_WIDTH}}  # {comment}\n"
    return "".join(f"{indent}{each}\n" for each in (f"# {comment}", *body))


def _block(name: str, settings: Settings) -> str:
    head = dump({name: None}).partition(":")[0]
    return f"  {head}:\n" + "".join(
        _line(key, *entry, indent="    ") for key, entry in settings.items()
    )


_MARKS = {  # keys that only one tool has, in the order in which they decide
    "llama-factory": {
        "cutoff_len",
        "finetuning_type",
        "stage",
        "dataset_dir",
        "preprocessing_num_workers",
    },
    "trl": {
        "model_name_or_path",
        "dataset_name",
        "max_length",
        "packing_strategy",
        "per_device_train_batch_size",
    },
    "axolotl": {
        "base_model",
        "sequence_len",
        "micro_batch_size",
        "datasets",
        "pretraining_dataset",
    },
}


def which_tool(given: Iterable[str]) -> str:
    """Return the tool that these keys belong to."""
    keys = set(given)
    if "base_model" in keys:
        return "axolotl"
    if "processor_config" in keys and "dataset_type" in keys:
        return "lmms-engine"
    if "model_class" in keys and "train_dataset" in keys:
        raise RecipeError(
            "keys of LLaMA-Factory's v1 (model_class, train_dataset), which import does not read; open the datasets that train_dataset "
            "names: penstock init"
        )
    for tool, marks in _MARKS.items():
        if keys & marks:
            return tool
    raise RecipeError(
        f"cannot tell which tool wrote this file (keys: {', '.join(sorted(keys)[:8])}); pass --from with the name of the tool: "
        f"{', '.join((*_MARKS, 'lmms-engine'))}"
    )


def import_config(
    path: Path, *, tool: str | None = None, dataset_info: Path | None = None
) -> Imported:
    """Read a configuration of trl, axolotl, LLaMA-Factory or LMMS-Engine as a recipe."""
    from penstock.extras.imports.foreign_factory import llama_factory
    from penstock.extras.imports.foreign_lmms import lmms_engine
    from penstock.extras.imports.foreign_tools import axolotl, trl

    foreign = read_foreign(path)
    given = {
        key: {"true": True, "false": False}.get(str(value).lower(), value)
        for key, value in foreign.keys.items()
    }
    computed = {key: str(value) for key, value in given.items() if type(value) is Computed}
    plain = {key: value for key, value in given.items() if key not in computed}
    name = tool or ("trl" if foreign.method is not None else which_tool(given))
    made = Imported(name, path, plain, method=foreign.method, computed=computed)
    made.left += foreign.remarks
    made.leave(CONFIG, "its settings are here, too")
    if made.tool == "llama-factory":
        llama_factory(made, dataset_info=dataset_info)
    else:
        {"trl": trl, "axolotl": axolotl, "lmms-engine": lmms_engine}[made.tool](made)
    if not made.sets:
        made.sets["data"] = {
            "path": ("data.jsonl", "the configuration names no data: write its path here")
        }
    return made
