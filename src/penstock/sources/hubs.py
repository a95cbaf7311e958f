"""Datasets that have a name on a server, such as `org/name`.  What knows such a server is a plugin of the group "hubs"."""

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from penstock import plugins
from penstock.places.files import exists, is_folder, is_remote
from penstock.sources.formats import suffix_of

_log = logging.getLogger("penstock")

# A slice behind a name: org/name@[:1000]
_NAME_AND_SLICE = re.compile(r"(?P<name>.*?)(?P<slice>(?:@\[[^\]/]*\])?)", re.DOTALL)

# Patterns of files, of all files or by split; as the heads of READMEs have them, also a list of {split, path}.
DataFiles = str | Sequence[str | Mapping[str, str | list[str]]] | Mapping[str, str | list[str]]


class Hub(Protocol):
    """A server of datasets."""

    def url_of(self, name: str, revision: str | None) -> str | None:
        """Return the URL of `org/name` or `org/name@revision`; None if the text cannot be such a name."""

    def is_data_set(self, url: str) -> bool:
        """Return whether a URL is a whole dataset, not a file or folder in it."""

    def files_of(
        self,
        url: str,
        *,
        split: str | None,
        config: str | None,
        data_files: DataFiles | None,
        data: Iterable[str],
    ) -> list[str]:
        """Return the files of one split of a dataset.  data: all its files that hold records."""


def hub_of(path: str) -> Hub | None:
    """Return the hub if a path is the URL of a whole dataset on it."""
    if not is_remote(path):
        return None
    return next((hub for hub in _hubs() if hub.is_data_set(path)), None)


def on_hub(path: str, revision: str | None = None, *, folder: str = "") -> str | None:
    """Return the URL of a name such as `org/name` that is not a local path; None for any other path.

    A name whose first part is a local folder, or that ends like a file, is a local path that is missing.
    folder: what paths are relative to.
    """
    parts = _NAME_AND_SLICE.fullmatch(path)
    assert parts is not None  # it matches any text
    name = parts["name"]
    if is_remote(name):
        is_whole = revision is not None and hub_of(name) is not None and "@" not in name
        return f"{name.rstrip('/')}@{revision}{parts['slice']}" if is_whole else None
    if _is_meant_locally(path, name, folder):
        return None
    for hub in _hubs():
        url = hub.url_of(name, revision)
        if url is not None:
            _log.info(
                "%s: no local file or folder of that name, so it is a dataset on the hub", name
            )
            return url + parts["slice"]
    return None


def _is_meant_locally(path: str, name: str, folder: str) -> bool:
    first_part = name.partition("/")[0]
    return (
        bool(suffix_of(name))
        or exists(os.path.join(folder, path))  # noqa: PTH118 - Path would change the text
        or exists(os.path.join(folder, name))  # noqa: PTH118
        or is_folder(os.path.join(folder, first_part))  # noqa: PTH118
    )


def _hubs() -> Iterable[Hub]:
    return (hub for _, hub in plugins.every("hubs"))
