"""Tell the training files of a folder from those that are for evaluation, by their names.

The words are those that Hugging Face `datasets` knows.  A word counts where no letter touches it, so `dev.tools.jsonl` is
dev and `latest.jsonl` is not test.  A file's own name counts first, then the folders above it, up to the folder given.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.files import find, has_folders, is_folder, local
from penstock.sources.opening import is_data_file, is_data_set_folder

TRAIN = ("train", "training")
EVAL = ("validation", "valid", "dev", "val", "test", "testing", "eval", "evaluation")
_WORD = re.compile(rf"(?<![a-z])({'|'.join((*TRAIN, *EVAL))})(?![a-z])", re.IGNORECASE)
_MOST_LISTED = 8  # files in a recipe, where no glob stands for exactly them


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """The files of a folder by what they are for.  `others` have no split in their name and are not taken."""

    folder: str
    train: tuple[str, ...]
    eval_sets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    others: tuple[str, ...] = ()


def split_of(path: str) -> str | None:
    """The split that a path names: "train", or a word for evaluation as it is written there; None where it names none.

    A name with words for both, such as `train_test.jsonl`, says nothing, and the folders above it are asked.
    """
    for part in reversed(path.replace(os.sep, "/").split("/")):
        found = {word.lower() for word in _WORD.findall(part)}
        splits = {"train" if word in TRAIN else word for word in found}
        if len(splits) == 1:
            return splits.pop()
    return None


def find_splits(place: str) -> Splits | None:
    """The files of a folder by split; None where the place is no plain folder, or no name in it is a split's."""
    if "://" in place or not is_folder(place) or is_data_set_folder(place):
        return None
    folder = os.path.abspath(local(place))  # noqa: PTH100 - a name only
    files = _files(folder)
    named: dict[str, list[str]] = {}
    for file in files:
        named.setdefault(split_of(os.path.relpath(file, folder)) or "", []).append(file)
    if not set(named) - {""}:
        return None
    train, others = named.pop("train", []), named.pop("", [])
    if not train:
        train, others = others, []  # beside test files, a file without a split is what is left to train on
    eval_sets = {name: tuple(named[name]) for name in sorted(named, key=EVAL.index)}
    return Splits(folder=folder, train=tuple(train), eval_sets=eval_sets, others=tuple(others))


def held_out_files(places: Iterable[str], files: Iterable[str]) -> list[str]:
    """Of files that are read, those whose name is one for evaluation: each as written below the place that was given."""
    roots = sorted({_root(place) for place in places}, key=len, reverse=True)  # the nearest above a file is its own
    found = []
    for file in files:
        root = next((root for root in roots if file.startswith(f"{root.rstrip('/')}/")), os.path.dirname(file))  # noqa: PTH120
        below = file[len(root) :].lstrip("/")
        if split_of(below) not in (None, "train"):
            found.append(below)
    return found


def _root(place: str) -> str:
    """The folder above what a place names; of a glob, above the last folder that is written out."""
    plain = place.partition("@[")[0].rstrip("/")
    fixed = re.split(r"[*?[]", plain, maxsplit=1)[0]
    named = plain if fixed == plain else os.path.dirname(fixed)  # noqa: PTH120
    return os.path.dirname(named if "://" in place else os.path.abspath(local(named or ".")))  # noqa: PTH100, PTH120


def _files(folder: str) -> list[str]:
    """Data files in a folder, and in those below it where that is where splits, or all data, lie."""
    below = [path.name for path in Path(folder).iterdir() if path.is_dir() and not path.name.startswith(".")]
    inside = [path for path in _found(folder) if is_data_file(path)]
    if has_folders(folder) and (not inside or any(map(split_of, below))):
        return [path for path in _found(f"{_plain(folder)}/**") if is_data_file(path)]
    return inside


def _found(place: str) -> list[str]:
    return find(place) if "*" in place or any(path.is_file() for path in Path(place).iterdir()) else []


def written(files: Iterable[str]) -> str | list[str]:
    """The shortest way to name exactly these files: the file, its folder, a glob, or a list."""
    paths = list(files)
    if len(paths) == 1:
        return paths[0]
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])  # noqa: PTH120
    for place in (folder, *_globs(folder, paths)):
        try:
            found = find(place)
        except ValueError:
            continue
        if found == paths and (place != folder or all(map(is_data_file, found))):
            return place
    return paths


def _globs(folder: str, paths: list[str]) -> list[str]:
    names = [os.path.basename(path) for path in paths]  # noqa: PTH119
    prefix = _shared(names)
    suffix = _shared([name[len(prefix) :][::-1] for name in names])[::-1]
    flat = [f"{_plain(folder)}/{_plain(prefix)}*{_plain(suffix)}"]
    return flat if len(paths) > _MOST_LISTED else []


def _shared(names: list[str]) -> str:
    """What all names begin with."""
    first, last = min(names), max(names)
    same = next((place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:same]


def _plain(text: str) -> str:
    """A piece of a glob that stands for itself."""
    return re.sub(r"([*?[])", r"[\1]", text)
