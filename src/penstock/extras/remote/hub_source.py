"""Which files of a dataset on the hub are asked for: by `data_files`, by the configurations that its README lists, or by their names.

| asked for | files |
|---|---|
| `data_files` | those that match; a mapping names the files of each split |
| `config`, or the README lists configurations | those of that configuration, by split |
| neither | data files whose folder or name says train, validation or test; all of them are train if none does |

A dataset with several splits is refused without `split`: training on the test split must not happen by default.
"""

import logging
import re
from collections.abc import Iterable
from typing import Any

from penstock.errors import SourceError
from penstock.extras.remote.hub import hub_url
from penstock.places.files import find, is_file, is_folder, natural, read
from penstock.sources.hubs import DataFiles
from penstock.sources.splits import SPLIT_WORDS
from penstock.words import did_you_mean

_log = logging.getLogger("penstock")

_ROOT = re.compile(r"hf://datasets/[^/@]+/[^/@]+(@[^/]+)?/?")

Files = dict[str, list[str]]  # split → files


class HuggingFaceHub:
    """The hub as the core sees it: a plugin of the group "hubs"."""

    def url_of(self, name: str, revision: str | None) -> str | None:
        return hub_url(name, revision)

    def is_data_set(self, url: str) -> bool:
        return _ROOT.fullmatch(url) is not None

    def files_of(
        self,
        url: str,
        *,
        split: str | None,
        config: str | None,
        data_files: DataFiles | None,
        data: Iterable[str],
    ) -> list[str]:
        return _files_of(url, split=split, config=config, data_files=data_files, data=data)


HUB = HuggingFaceHub()


def _files_of(
    place: str,
    *,
    split: str | None,
    config: str | None,
    data_files: DataFiles | None,
    data: Iterable[str],
) -> list[str]:
    root = place.rstrip("/")
    if data_files is not None:
        if config is not None:
            raise SourceError(
                f"{place}: config={config!r} and data_files={data_files!r} both choose files; leave one of them out"
            )
        found = _matching(root, data_files)
    else:
        configs = _configs(root)
        found = _of_config(root, configs, config) if configs else _by_name(root, config, data)
    if split is None:
        if len(found) > 1:
            raise SourceError(
                f"{place}: has the splits {', '.join(found)}; choose with split=, such as split: {next(iter(found))}"
            )
        split = next(iter(found))
        if split not in ("train", "all"):
            _log.warning("%s: its only split is %s, so that one is used", place, split)
    if split not in found:
        raise SourceError(
            f"{place}: no split {split!r}, expected one of {', '.join(found)}{did_you_mean(split, found)}"
        )
    return sorted(dict.fromkeys(found[split]), key=natural)


def _matching(root: str, patterns: Any, folder: str = "") -> Files:
    """Return files by split: patterns are a text, a list of texts, a mapping by split, or a list of {split, path}."""
    if isinstance(patterns, str):
        patterns = [patterns]
    if isinstance(patterns, list) and all(
        isinstance(each, dict) and {"split", "path"} <= each.keys() for each in patterns
    ):
        patterns = {str(each["split"]): each["path"] for each in patterns}
    named = patterns if isinstance(patterns, dict) else {"train": patterns}
    found: Files = {}
    for split, some in named.items():
        texts = [some] if isinstance(some, str) else some
        if (
            not isinstance(texts, list | tuple)
            or not texts
            or not all(isinstance(text, str) and text for text in texts)
        ):
            raise SourceError(
                f"{root}: data_files is {patterns!r}, expected patterns such as data/*.parquet, or those of each split"
            )
        found[str(split)] = [path for text in texts for path in find(f"{root}/{folder}{text}")]
    return found


def _configs(root: str) -> dict[str, dict[str, Any]]:
    """Return the configurations that the head of the README lists, by name."""
    path = f"{root}/README.md"
    if not is_file(path):
        return {}
    import yaml  # only here: local files do without it

    head = re.match(r"---\r?\n(.*?)\r?\n---", read(path).decode("utf-8", "replace"), re.DOTALL)
    try:
        card = yaml.safe_load(head[1]) if head else None
    except yaml.YAMLError as error:
        raise SourceError(
            f"{path}: its head is not YAML: {error}; choose the files with data_files="
        ) from error
    listed = card.get("configs") if isinstance(card, dict) else None
    return {
        str(each["config_name"]): each
        for each in (listed if isinstance(listed, list) else [])
        if isinstance(each, dict)
        and "config_name" in each
        and ("data_files" in each or "data_dir" in each)
    }


def _of_config(root: str, configs: dict[str, dict[str, Any]], name: str | None) -> Files:
    chosen = [each for each in configs if each == name] if name is not None else [*configs]
    if name is None and len(chosen) > 1:
        chosen = [
            each for each in configs if each == "default" or configs[each].get("default") is True
        ][:1]
    if not chosen:
        what = (
            f"no configuration {name!r}"
            if name
            else "several configurations, and none is the default"
        )
        hint = did_you_mean(name, configs) if name else ""
        raise SourceError(f"{root}: {what}; choose with config= one of {', '.join(configs)}{hint}")
    config = configs[chosen[0]]
    folder = f"{str(config['data_dir']).strip('/')}/" if config.get("data_dir") else ""
    return _matching(root, config.get("data_files", "**"), folder)


def _by_name(root: str, config: str | None, data: Iterable[str]) -> Files:
    """Sort files into splits by the words in their folders, else in their names, as `datasets` does."""
    start = f"{root}/"
    if config is not None:
        start = f"{root}/{config}/"
        if not is_folder(start):
            raise SourceError(
                f"{root}: no configuration {config!r}: its README lists none, and no folder has that name"
            )
    paths = [path for path in data if _below(path, start)]
    found: Files = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        split = _split_of(_below(folder + "/", start)) or _split_of(name)
        if split is not None:
            found.setdefault(split, []).append(path)
    if not paths:
        raise SourceError(
            f"{root}: no file with a known format; choose files with data_files=, or another revision="
        )
    if found and (left := len(paths) - sum(map(len, found.values()))):
        _log.warning(
            "%s: %d of %d data files name no split and are left out; choose them with data_files=",
            root,
            left,
            len(paths),
        )
    return {split: found[split] for split in SPLIT_WORDS if split in found} or {"train": paths}


def _below(path: str, start: str) -> str:
    """Return the part of a path behind `start`, whose revision may be written in another way."""
    wanted = re.sub(r"^(hf://datasets/[^/@]+/[^/@]+)(@[^/]+)?", r"\1", start)
    whole = re.sub(r"^(hf://datasets/[^/@]+/[^/@]+)(@[^/]+)?", r"\1", path)
    return whole[len(wanted) :] if whole.startswith(wanted) else ""


def _split_of(text: str) -> str | None:
    words = re.split(r"[^a-z]+", text.lower())
    return next(
        (split for split, names in SPLIT_WORDS.items() if any(name in words for name in names)),
        None,
    )
