"""Tell training files from files for evaluation, by their names.  This is the only place for that rule.

The words are those of Hugging Face `datasets`.  A word counts if no letter touches it: `dev.tools.jsonl` is dev, `latest.jsonl` is
not test.  The name of the file counts first, then the folders above it, up to the folder that was given.

A folder that is opened for training leaves out its evaluation files, and one that is opened for evaluation leaves out everything
else.  Files that are named one by one, or by a glob such as `data/*.jsonl`, are always used: then the user chose them.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from penstock.places.files import is_folder, open_place

Purpose = Literal["train", "eval"]

# Each split and the words for it, in the order in which a dataset lists its splits.
SPLIT_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
TRAIN = SPLIT_WORDS["train"]
EVAL = (*SPLIT_WORDS["validation"], *SPLIT_WORDS["test"])
_WORD = re.compile(rf"(?<![a-z])({'|'.join((*TRAIN, *EVAL))})(?![a-z])", re.IGNORECASE)
_EVERYTHING = re.compile(r"\*\*?$")  # a glob that selects all files of a folder


def split_of(path: str) -> str | None:
    """Return the split that a path names: "train", or the word for evaluation, or None.

    A part of the path with words for both, such as `train_test.jsonl`, is passed over.  Of several words for evaluation, as in
    `dev_test.jsonl`, the first one counts.
    """
    for part in reversed(path.replace(os.sep, "/").split("/")):
        words = [match[1].lower() for match in _WORD.finditer(part)]
        for_training = [word for word in words if word in TRAIN]
        for_evaluation = [word for word in words if word in EVAL]
        if for_training and not for_evaluation:
            return "train"
        if for_evaluation and not for_training:
            return for_evaluation[0]
    return None


def selects_everything(place: str, *, is_folder: bool) -> bool:
    """Return whether a place means all files of a folder, so that the user named none of them."""
    return is_folder or _EVERYTHING.search(place) is not None


@dataclass(frozen=True, slots=True)
class ChosenFiles:
    """The files of a folder that are used, and those that their names rule out."""

    used: list[str]
    left_out: list[str]
    are_of_other_purpose: bool = False  # every file is named for the other purpose, so all are used


def choose_files(place: str, files: Sequence[str], purpose: Purpose) -> ChosenFiles:
    """Choose the files of a folder, or of a glob of everything, that serve a purpose.

    For training: all but evaluation files.  For evaluation: evaluation files only, if the folder has any.
    """
    names = dict(zip(files, map(split_of, _below(place, files)), strict=True))
    evaluation = [file for file in files if names[file] not in (None, "train")]
    others = [file for file in files if names[file] in (None, "train")]
    if purpose == "train":
        if not others:
            return ChosenFiles(evaluation, [], are_of_other_purpose=True)
        return ChosenFiles(others, evaluation)
    if evaluation:
        return ChosenFiles(evaluation, others)
    only_training = all(split == "train" for split in names.values())
    return ChosenFiles(others, [], are_of_other_purpose=only_training)


def describe_choice(place: str, chosen: ChosenFiles, purpose: Purpose) -> str | None:
    """Say which files were left out and how to use them; None if there is nothing to say."""
    if chosen.are_of_other_purpose:
        meant = "an evaluation set" if purpose == "train" else "training data"
        names = _few(_below(place, chosen.used))
        use = "trained on" if purpose == "train" else "evaluated on"
        return f"{place}: every file has the name of {meant} ({names}); all of them are {use}"
    if not chosen.left_out:
        return None
    names = _few(_below(place, chosen.left_out))
    if purpose == "train":
        left_out = f"left out, because their names say that they are for evaluation: {names}"
    else:
        left_out = f"left out, because their names do not say that they are for evaluation: {names}"
    return f"{place}: {left_out}; to use them, name the files, write a glob such as *.jsonl, or choose a split"


def describe_glob(place: str, files: Sequence[str]) -> str | None:
    """Say which files of a glob are used for training although they are named as evaluation sets; None if there are none.

    A glob that matches evaluation files only was written for them.
    """
    below = _below(place, files)
    evaluation = [name for name in below if split_of(name) not in (None, "train")]
    if not evaluation or len(evaluation) == len(below):
        return None
    return (
        f"{place}: matches files that are named as evaluation sets, and they are used like the others: {_few(evaluation)}; "
        "to leave them out, name the folder or the files"
    )


def _below(place: str, files: Sequence[str]) -> list[str]:
    """Return the paths of files below the folder that a place names."""
    fixed = re.split(r"[*?[]", place, maxsplit=1)[0]
    is_glob = fixed != place and not is_folder(place)  # a folder may be called `exp-test[1]`
    folder = (fixed.rpartition("/")[0] or ".") if is_glob else place
    at, name = open_place(folder)
    start = at.absolute(name).rstrip("/") + "/"
    return [
        file[len(start) :] if file.startswith(start) else file.rpartition("/")[2] for file in files
    ]


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
