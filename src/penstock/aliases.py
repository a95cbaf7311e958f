"""Names of settings in other tools: aliases of our own names, and for names without an equivalent a hint.  aliases.toml has both.

Recipes translate them.  Functions do not: their errors say what to write instead.  Names of 0.2 stand with each setting, as `former`.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from penstock.options import (
    FORMER_NAMES,
    LoaderOptions,
    OpenOptions,
    PrepareOptions,
    PromptOptions,
)

Settings = dict[str, Any]

_NUMBER = "<number>"  # a pattern of any number
_NEAR_ALIAS = 0.8  # how like an alias a misspelt word is, from 0 to 1
# Public functions in the order in which data passes them, and the keyword arguments that each takes.
_KEYWORDS: Mapping[str, type] = {
    "open": OpenOptions,
    "prepare": PrepareOptions,
    "Loader": LoaderOptions,
    "Prompts": PromptOptions,
}


@dataclass(frozen=True, slots=True)
class Alias:
    """A key of another tool.

    keys: the keys of a recipe that it sets.
    values: its value, or a pattern of values (`<number>`: any number) → our settings, or a text that says what to write instead, in which
    {value} stands for the value.  Without values, the value is taken as it is.
    members: of a mapping, each member → the keys that it sets; none: it has no effect.
    """

    keys: tuple[str, ...]
    values: Mapping[str, Settings | str] | None = None
    members: Mapping[str, list[str]] | None = None

    def translate(self, value: Any) -> Settings | str:
        """Return our settings for a value of theirs, or the text of an error."""
        if self.members is not None:
            return self._of_members(value, self.members)
        if self.values is None:
            return {self.keys[0]: value}
        given = as_yaml(value)
        for pattern, ours in self.values.items():
            if _fits(value, given, pattern):
                if isinstance(ours, str):
                    return " ".join(ours.replace("{value}", given).split())
                return {key: value if v == "*" else v for key, v in ours.items()}
        expected = "text" if "*" in self.values else f"one of {', '.join(self.values)}"
        return f"{given} is not known, expected {expected}; or write {': and '.join(self.keys)}: instead"

    def _of_members(self, value: Any, members: Mapping[str, list[str]]) -> Settings | str:
        expected = f"expected a mapping with {' and '.join(members)}; or write {': and '.join(self.keys)}: instead"
        if not isinstance(value, dict):
            return f"{as_yaml(value)} is not known, {expected}"
        if unknown := [name for name in value if name not in members]:
            return f"{unknown[0]} is not known: set it in the processor's own files; {expected}"
        return {ours: given for name, given in value.items() for ours in members[name]}


def _fits(value: Any, given: str, pattern: str) -> bool:
    """Return whether a value is meant by a pattern.  given: the value as YAML has it."""
    if isinstance(value, str):
        return fnmatchcase(value, pattern)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return given == pattern or (pattern == _NUMBER and is_number)


def as_yaml(value: Any) -> str:
    """A short value as YAML has it."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _translated(values: dict[str, Settings | str]) -> Alias:
    keys = dict.fromkeys(key for ours in values.values() if isinstance(ours, dict) for key in ours)
    return Alias(tuple(keys), values)


def _of_mapping(members: dict[str, list[str]]) -> Alias:
    return Alias(
        tuple(dict.fromkeys(key for ours in members.values() for key in ours)), members=members
    )


_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

ALIASES: dict[str, Alias] = {
    **{former: Alias((name,)) for names in FORMER_NAMES.values() for former, name in names.items()},
    **{
        name: Alias((ours,))
        for ours, names in _DATA["same_value"].items()
        for name in names.split()
    },
    **{
        name: _translated(values)
        for names, values in _DATA["translated"].items()
        for name in names.split()
    },
    **{name: _of_mapping(members) for name, members in _DATA["members"].items()},
}
# Template → names that mean something else with it: `label_key` is the answer of a chat, and what the reward of a prompt compares with.
OF_TEMPLATES: dict[str, dict[str, str]] = _DATA["of_template"]
HINTS: dict[str, str] = {
    name: hint for hint, names in _DATA["hints"].items() for name in names.split()
}


def did_you_mean_setting(name: str, known: Iterable[str]) -> str:
    """; did you mean 'max_length'? or nothing, to append to an error.  A word that is near an alias means the setting itself."""
    from difflib import get_close_matches  # only for an error

    settings = list(known)
    aliases = [
        other for other, alias in ALIASES.items() if alias.keys and alias.keys[0] in settings
    ]
    # there are many aliases, so a word that is only a little like one means nothing
    near = get_close_matches(name, settings, n=1)
    near += get_close_matches(name, aliases, n=1, cutoff=_NEAR_ALIAS)
    nearest = get_close_matches(name, near, n=1)
    if not nearest:
        return ""
    meant = nearest[0] if nearest[0] in settings else ALIASES[nearest[0]].keys[0]
    return f"; did you mean {meant!r}?"


def instead(name: str, value: Any, known: Iterable[str], *, function: str) -> str:
    """Return what to write for an unknown keyword argument of a function, or nothing.

    That is our name of an alias, its hint, the other function that takes the argument, or a name that is near.
    """
    settings = list(known)
    if name in HINTS:
        return f"; {HINTS[name]}"
    alias = ALIASES.get(name)
    if alias is None or not set(alias.keys) <= {*settings}:
        return _other_function(name, function) or did_you_mean_setting(name, settings)
    translated = alias.translate(value)
    if isinstance(translated, str):
        return f"; {translated}"
    if not translated:
        return "; leave it out: what it asks for is the default"
    return f"; write {', '.join(f'{ours}={given!r}' for ours, given in translated.items())}"


def _other_function(name: str, function: str) -> str:
    """; it is an option of penstock.Loader, or nothing if no other function takes it."""
    takers = [other for other, keywords in _KEYWORDS.items() if name in keywords.__annotations__]
    if not takers or function in takers:
        return ""
    return f"; it is an option of penstock.{takers[0]}"


# Names of a dataset's path.
PLACES = {"path", *(name for name, alias in ALIASES.items() if alias.keys[0] in ("path", "data"))}

# Other tools have one key for whether to pack, and another for how.  The first may be our own key with a boolean.
PACKING_SWITCHES = ("packing", "sample_packing", "neat_packing", "use_sequence_packing")
PACKING_STRATEGY = "packing_strategy"

# Aliases of several keys; each of these keys may also be written, and then the written value counts.
GIVES_WAY = ("streaming", "dataset_type", "processor_config")
