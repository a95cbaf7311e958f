"""Turn a document into data sets and settings.  An unknown key is refused with its line and the key that was meant."""

import math
import os
from pathlib import Path
from typing import Any

from penstock.errors import RecipeError
from penstock.files import is_folder
from penstock.recipe.document import Item
from penstock.recipe.hints import unknown_key
from penstock.recipe.keys import PATHS, Key, keys, shown, wrong
from penstock.recipe.names import CALLED, IMPLIED, OUR_NAMES, STRATEGY, SWITCHES, UNUSED
from penstock.sources.opening import bare_name
from penstock.templates.hub import is_hub_name

_TOP = ("data", "eval")
_OF_SET = ("path", "weight", "name")


class Builder:
    """Walks a document once.  `data` and `eval_sets` are lists of arguments of DataSet."""

    def __init__(self, document: Item, file: Path | None) -> None:
        self._file = file
        self._folder = str(file.absolute().parent) if file else None
        self.settings: dict[str, Any] = {}
        self.lines: dict[str, int] = {}
        self.notices: list[str] = []
        top = self._ours(document.value, _TOP)
        if "data" not in top:
            raise self._fault(0, "no data; expected 'data: chat.jsonl', or data sets by name")
        for name, item in top.items():
            if name not in _TOP:
                self.settings[name] = self._value(name, item, of_data=None)
                self.lines[name] = item.line
        self.data = self._sets(top["data"], "data", is_eval=False)
        self.eval_sets = (
            self._sets(top["eval"], "eval", is_eval=True) if "eval" in top and top["eval"].value is not None else []
        )
        taken = [each["name"] for each in self.eval_sets]
        if "train" in taken:
            raise self._fault(top["eval"].line, "an eval set cannot be called train; choose another name")

    # Names

    def _ours(self, found: dict[str, Item], extra: tuple[str, ...]) -> dict[str, Item]:
        """The same under our names."""
        made: dict[str, Item] = {}
        implied: dict[str, Item] = {}
        for name, item in self._one_packing(found).items():
            if not isinstance(name, str):
                raise self._fault(item.line, f"{name!r} as a key, expected a word")
            translated = self._translated(name, item, extra, written=found)
            if name in IMPLIED:
                implied.update(translated)
                continue
            for ours, value in translated.items():
                if ours in made:
                    raise self._fault(
                        item.line, f"{ours} is given twice: as {name}, and in line {made[ours].line}; keep one"
                    )
                made[ours] = value
        return {**implied, **made}

    def _one_packing(self, found: dict[str, Item]) -> dict[str, Item]:
        """Whether to pack and how, said by two keys: of true, the second counts, of false, the first."""
        switch = next((name for name in SWITCHES if name in found and isinstance(found[name].value, bool)), None)
        if switch is None or STRATEGY not in found:
            return found
        unused = switch if found[switch].value else STRATEGY
        other = STRATEGY if found[switch].value else switch
        self.notices.append(f"{self._place(found[unused].line)}{unused} is not used: {other} decides")
        return {name: item for name, item in found.items() if name != unused}

    def _translated(
        self, name: str, item: Item, extra: tuple[str, ...], *, written: dict[str, Item]
    ) -> dict[str, Item]:
        if name in UNUSED and "path" in extra:
            self.notices.append(f"{self._place(item.line)}{name} is not used here: {UNUSED[name]}")
            return {}
        other_type, turn = OUR_NAMES.get(name, (None, None))
        if turn is None or other_type is None or not isinstance(item.value, other_type):
            if name in extra or name in keys():
                return {name: item}
            turn = CALLED.get(name)
        if turn is None:
            raise self._fault(item.line, self._unknown(name, extra))
        nested = isinstance(item.value, dict | list)
        turned = turn(item if nested else item.value)
        if isinstance(turned, str):
            raise self._fault(item.line, f"{name}: {turned}")
        if name in IMPLIED:
            turned = {ours: value for ours, value in turned.items() if ours not in written}
        if "data" in turned and "path" in extra:
            turned = {"path": turned["data"]}  # inside a data set, its place
        said = ", ".join(f"{ours}: {_said(value)}" for ours, value in turned.items()) or "the default, which is kept"
        self.notices.append(f"{self._place(item.line)}{name} is read as {said}")
        return {ours: value if isinstance(value, Item) else Item(value, item.line) for ours, value in turned.items()}

    def _unknown(self, name: str, extra: tuple[str, ...]) -> str:
        if name in _TOP:
            return f"{name} belongs at the top of a recipe, not inside a data set"
        if name in _OF_SET:
            return f"{name} belongs inside a data set; write data: {{some_name: {{path: …, {name}: …}}}}"
        return unknown_key(name, extra)

    # Values

    def _value(self, name: str, item: Item, *, of_data: bool | None) -> Any:
        """A checked value.  `of_data`: inside a data set, where keys of the whole recipe have no place; None at the top."""
        key = keys()[name]
        if of_data and not key.of_data:
            raise self._fault(item.line, f"{name} applies to the whole recipe; write it at the top")
        if key.room == "process" and self._file:
            raise self._fault(
                item.line, f"{name} differs between the processes that read this recipe; pass it: load(…, {name}=…)"
            )
        value = item.plain()
        why = wrong(key, value) if self._file or key.accepts != {"text"} else None  # from Python, objects too
        if why:
            raise self._fault(item.line, why)
        return self._path(key, value)

    def _path(self, key: Key, value: Any) -> Any:
        if self._folder is None or not isinstance(value, str):
            return value
        if key.name == "tokenizer" and is_hub_name(value) and not Path(self._folder, value).exists():
            return value  # a name on the hub
        if key.name == "chat_template" and ("{" in value or not Path(self._folder, value).is_file()):
            return value
        return self._absolute(value) if key.name in (*PATHS, "chat_template") else value

    def _absolute(self, place: str) -> str:
        if self._folder is None or "://" in place:
            return place
        return os.path.join(self._folder, os.path.expanduser(place))  # noqa: PTH111, PTH118 - may be a glob, or choose rows

    # Data sets

    def _sets(self, item: Item, what: str, *, is_eval: bool) -> list[dict[str, Any]]:
        value = item.value
        if isinstance(value, dict) and not any(self._names_place(name, part) for name, part in value.items()):
            made = [self._set(part, name, is_eval=is_eval) for name, part in value.items()]
        elif isinstance(value, list) and any(isinstance(part.value, dict) and self._file_like(part) for part in value):
            made = [self._set(part, None, is_eval=is_eval) for part in value]
        else:
            made = [self._set(item, None, is_eval=is_eval)]
        if not made:
            raise self._fault(
                item.line, f"{what} has no data sets; expected '{what}: chat.jsonl', or data sets by name"
            )
        names = [each["name"] for each in made]
        for number, each in enumerate(made):
            if each["name"] in names[:number]:
                raise self._fault(
                    each["line"], f"two data sets are called {each['name']!r}; give one of them another name"
                )
        return made

    def _names_place(self, name: object, part: Item) -> bool:
        """Whether a key of a mapping says where data lies, rather than being the name of a data set."""
        return name == "path" or (self._is_path(name) and not isinstance(part.value, dict))

    def _is_path(self, name: object) -> bool:
        return isinstance(name, str) and name in CALLED and not {"path", "data"}.isdisjoint(_targets(name))

    def _file_like(self, part: Item) -> bool:
        """Whether a mapping in a list is a data set, rather than a record given from Python."""
        return self._file is not None or any(name == "path" or self._is_path(name) for name in part.value)

    def _set(self, item: Item, name: str | None, *, is_eval: bool) -> dict[str, Any]:
        is_mapping = isinstance(item.value, dict)
        found = self._ours(item.value, _OF_SET) if is_mapping else {"path": item}
        if "path" not in found:
            which = f"data set {name!r}" if name else "a data set"
            raise self._fault(item.line, f"{which} has no path; expected 'path: chat.jsonl'")
        path = self._place_of(found["path"])
        given = self._text("name", found["name"]) if "name" in found else name
        options = {
            key: self._value(key, part, of_data=not is_eval) for key, part in found.items() if key not in _OF_SET
        }
        if is_eval:
            self._check_eval(options, found)
        weight = self._weight(found["weight"], is_eval=is_eval) if "weight" in found else None
        return {
            "name": given or data_set_name(path),
            "path": path,
            "weight": weight,
            "options": options,
            "is_named": given is not None,
            "line": item.line,
        }

    def _check_eval(self, options: dict[str, Any], found: dict[str, Item]) -> None:
        for key in options:
            if keys()[key].room == "prepare":
                raise self._fault(found[key].line, f"{key} applies to the whole recipe; write it at the top")

    def _place_of(self, item: Item) -> Any:
        value = item.plain()
        places = value if isinstance(value, list) and value and all(isinstance(each, str) for each in value) else None
        if places is not None:
            return tuple(self._absolute(each) for each in places)
        if isinstance(value, str) and value:
            return self._absolute(value)
        if self._file or value is None or value == "":
            raise self._fault(
                item.line, f"path is {shown(value)}, expected a file, a glob or a folder, or a list of those"
            )
        return value  # from Python: records, a source, a data set

    def _text(self, name: str, item: Item) -> str:
        if not isinstance(item.value, str) or not item.value:
            raise self._fault(item.line, f"{name} is {shown(item.plain())}, expected text; put it in quotes")
        return item.value

    def _weight(self, item: Item, *, is_eval: bool) -> float:
        if is_eval:
            raise self._fault(item.line, "eval sets are loaded one by one, so a weight has no use; leave it out")
        value = item.plain()
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value < math.inf:
            raise self._fault(
                item.line, f"weight is {shown(value)}, expected a number above 0; leave the data set out instead of 0"
            )
        return float(value)

    def _place(self, line: int) -> str:
        return "" if not self._file else f"{self._file}:{line}: " if line else f"{self._file}: "

    def _fault(self, line: int, why: str) -> RecipeError:
        return RecipeError(f"{self._place(line)}{why}")


def _targets(name: str) -> set[str]:
    made = CALLED[name]("")
    return set(made) if isinstance(made, dict) else set()


def _said(value: Any) -> str:
    if isinstance(value, Item):
        return "…"
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def data_set_name(path: Any) -> str:
    """What a data set is called where nobody named it: its file without the suffix, or its folder where there are several."""
    first = path[0] if isinstance(path, tuple | list) and path else path
    if not isinstance(first, str):
        return "data"
    parts = [part for part in first.split("@[")[0].replace("\\", "/").split("/") if part]
    plain = [part for part in parts if not any(mark in part for mark in "*?[")]
    if isinstance(path, tuple | list) and len(path) > 1 and len(plain) > 1:
        plain = plain[:-1]
    if not plain:
        return "data"
    return plain[-1] if is_folder(first) else bare_name(plain[-1]) or plain[-1]
