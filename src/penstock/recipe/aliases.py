"""Keys of other tools: aliases of our own keys, and for keys without an equivalent a hint.  aliases.toml holds both."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Alias:
    """A key of another tool.

    keys: the keys of a recipe that it sets.
    values: its value, or a pattern of values → our settings, or a text that says what to write instead.  Without values, the value
    is taken as it is.
    """

    keys: tuple[str, ...]
    values: Mapping[str, Settings | str] | None = None

    def translate(self, value: Any) -> Settings | str:
        """Return our settings for a value of theirs, or the text of an error."""
        if self.values is None:
            return {self.keys[0]: value}
        given = as_yaml(value)
        for pattern, ours in self.values.items():
            if given == pattern if isinstance(value, bool) else isinstance(value, str) and fnmatchcase(value, pattern):
                return ours if isinstance(ours, str) else {key: value if v == "*" else v for key, v in ours.items()}
        expected = "text" if "*" in self.values else f"one of {', '.join(self.values)}"
        return f"{given} is not known, expected {expected}; or write {': and '.join(self.keys)}: instead"


def as_yaml(value: Any) -> str:
    """A short value as YAML has it."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _translated(values: dict[str, Settings | str]) -> Alias:
    keys = dict.fromkeys(key for ours in values.values() if isinstance(ours, dict) for key in ours)
    return Alias(tuple(keys), values)


_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

ALIASES: dict[str, Alias] = {
    **{name: Alias((ours,)) for ours, names in _DATA["same_value"].items() for name in names.split()},
    **{name: _translated(values) for names, values in _DATA["translated"].items() for name in names.split()},
}
HINTS: dict[str, str] = {name: hint for hint, names in _DATA["hints"].items() for name in names.split()}

# Names of a data set's path.
PLACES = {"path", *(name for name, alias in ALIASES.items() if alias.keys[0] in ("path", "data"))}

# Other tools have one key for whether to pack, and another for how.  The first may be our own key with a boolean.
PACKING_SWITCHES = ("packing", "sample_packing", "neat_packing", "use_sequence_packing")
PACKING_STRATEGY = "packing_strategy"

# Aliases of several keys; each of these keys may also be written, and then the written value counts.
GIVES_WAY = ("streaming", "dataset_type")

# Keys inside a data set that have no effect.
UNUSED = {"data_folder": "records are given as written, and no file that they name is opened"}
