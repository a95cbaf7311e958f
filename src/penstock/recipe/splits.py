"""Sort the files of folders into splits, for `penstock init`, and write them as short places.  sources/splits.py has the rule."""

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import SourceError
from penstock.places.files import find, is_folder, local
from penstock.sources.formats import data_files, is_data_set_folder
from penstock.sources.splits import EVAL, split_of

_MOST_LISTED = 8  # files that a recipe lists; more are written as a glob


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """The files of folders by split."""

    folders: list[str]
    train: list[str]
    eval_sets: dict[str, list[str]]
    others: list[str]  # without a split in their name, next to training files; not used
    named: list[str]  # places that are not such folders: they are trained on


def find_splits(places: Sequence[str]) -> Splits | None:
    """Find the splits in the plain folders among `places`, each folder by itself.

    None if no name in them is a split's and no file lies in a folder below: then the places themselves can be opened.
    """
    found: dict[str, dict[str, list[str]]] = {}  # place → split, "" for none → files
    is_flat = True
    for place in places:
        if "://" in place or not is_folder(place) or is_data_set_folder(place):
            continue
        folder = os.path.abspath(local(place))  # noqa: PTH100 - a name only
        for file in _data_files(folder):
            below = os.path.relpath(file, folder)
            split = split_of(below)
            found.setdefault(place, {}).setdefault(split or "", []).append(file)
            is_flat = is_flat and split is None and os.sep not in below
    if is_flat:
        return None
    train = []
    others = []
    eval_sets = dict[str, list[str]]()
    for by_split in found.values():
        rest = by_split.pop("", [])
        others += rest if "train" in by_split else []
        train += by_split.pop(
            "train", rest
        )  # next to test files, the files without a split are the training data
        for name in sorted(by_split, key=EVAL.index):
            eval_sets.setdefault(name, []).extend(by_split[name])
    folders = [os.path.abspath(local(place)) for place in found]  # noqa: PTH100
    named = [
        place for place in places if place not in found
    ]  # opening a folder without data is an error
    return Splits(folders=folders, train=train, eval_sets=eval_sets, others=others, named=named)


def _data_files(folder: str) -> list[str]:
    """Data files in a folder; also those below it if there are none directly in it, or if a folder in it is named after a split."""
    inside = list(Path(folder).iterdir())
    folders = [path.name for path in inside if path.is_dir() and not path.name.startswith(".")]
    files = data_files(find(folder)) if any(path.is_file() for path in inside) else []
    if folders and (not files or any(map(split_of, folders))):
        return data_files(find(f"{_literal(folder)}/**"))
    return files


def eval_files(places: Iterable[str], files: Iterable[str]) -> list[str]:
    """Return those of `files` that are named as data for evaluation, relative to the folder above their place.

    So the name of the place itself counts, too: a file of the place `dev/` is data for evaluation.
    """
    roots = {_folder_above(place) for place in places}
    nearest_first = sorted(roots, key=len, reverse=True)
    names = [_below_nearest(file, nearest_first) for file in files]
    return [name for name in names if split_of(name) not in (None, "train")]


def _below_nearest(file: str, roots: Iterable[str]) -> str:
    """Return the path of a file below the first of the folders that holds it, or its name if none does."""
    for root in roots:
        folder = f"{root.rstrip('/')}/"
        if file.startswith(folder):
            return file.removeprefix(folder).lstrip("/")
    return os.path.basename(file)  # noqa: PTH119


def _folder_above(place: str) -> str:
    """Return the folder above a place; for a glob, above the last folder that is written out."""
    plain = place.partition("@[")[0].rstrip("/")
    fixed = re.split(r"[*?[]", plain, maxsplit=1)[0]
    named = plain if fixed == plain else os.path.dirname(fixed)  # noqa: PTH120
    return os.path.dirname(named if "://" in place else os.path.abspath(local(named or ".")))  # noqa: PTH100, PTH120


def short_places(files: Sequence[str], folders: Sequence[str] = ()) -> list[str]:
    """The shortest list of places that means exactly these files: for each folder its name, a glob, or its files."""
    groups = [[path for path in files if path.startswith(f"{folder}/")] for folder in folders]
    if len(folders) > 1 and sum(map(len, groups)) == len(files):
        return [place for group in groups if group for place in short_places(group)]
    paths = list(files)
    if len(paths) > 1:
        folder = os.path.commonpath([os.path.dirname(path) for path in paths])  # noqa: PTH120
        for place in (folder, *_globs(folder, paths)):
            with suppress(SourceError):
                if find(place) == paths:
                    return [place]
    return paths


def _globs(folder: str, paths: list[str]) -> list[str]:
    names = [os.path.basename(path) for path in paths]  # noqa: PTH119
    prefix = os.path.commonprefix(names)  # noqa: RUF071 - by character
    suffix = _literal(os.path.commonprefix([name[len(prefix) :][::-1] for name in names])[::-1])  # noqa: RUF071
    if any(os.path.dirname(path) != folder for path in paths):  # noqa: PTH120
        return [f"{_literal(folder)}/**", f"{_literal(folder)}/**/*{suffix}"]
    return [f"{_literal(folder)}/{_literal(prefix)}*{suffix}"] if len(paths) > _MOST_LISTED else []


def _literal(text: str) -> str:
    """Escape the special characters of a glob."""
    return re.sub(r"([*?[])", r"[\1]", text)
