"""Push a finished store to the hub, and load it back: its own files under the names of a cache, an index, and a card, as one commit."""

import errno
import logging
import os
import re
import urllib.parse
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import penstock
from penstock.cache import Cache, open_cache
from penstock.cache.cache import explained
from penstock.errors import StoreError
from penstock.extras.remote.card import Licence, card_of
from penstock.extras.remote.hub import HubPlace, explain, forget, hub_library, is_hub_name
from penstock.extras.remote.requests import RemoteError, passing, request
from penstock.store.loaded import INDEX, StoreIndex, load_from
from penstock.store.manifest import Manifest, lengths_name, manifest_name
from penstock.store.verify import verify
from penstock.templates import open_tokenizer
from penstock.types import MEDIA
from penstock.words import plural, size

if TYPE_CHECKING:
    from penstock.store.store import Store

_log = logging.getLogger("penstock")

_LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_OURS = ("shards/", "stores/")
_OF_NEW = re.compile(
    r"README\.md|\.gitattributes|LICENSE[\w.]*"
)  # a dataset without data has these
_LOGIN = "log in with `hf auth login`, or set HF_TOKEN to a token that may write"


def push_store(
    store: "Store",
    repo: str,
    *,
    recipe: Any,
    tokenizer: str | None,
    license: str | None,
    license_name: str | None,
    license_link: str | None,
    source_licenses: Mapping[str, str] | None,
    private: bool | None,
    commit_message: str | None,
    revision: str | None,
    token: str | None,
) -> str:
    """Push a store; return the id of the commit."""
    name = repo.removeprefix("hf://datasets/") if isinstance(repo, str) else ""
    if not is_hub_name(name):
        raise StoreError(f"{repo!r}: expected the name of a dataset on the hub, such as org/name")
    licence = _read_licence(license, license_name, license_link, source_licenses)
    manifest = _finished(store)
    hub = hub_library()
    if hub.is_offline_mode():
        raise StoreError(f"cannot push to {name}: HF_HUB_OFFLINE is set; unset it")
    if token is None and hub.get_token() is None:
        raise StoreError(f"cannot push to {name}: no token was found; {_LOGIN}")
    card = card_of(store, name, manifest, licence, recipe=recipe, tokenizer=tokenizer)
    report = verify(store)
    if not report.is_whole:
        raise StoreError(
            f"{store!r} is not pushed: {len(report.problems)} of {plural(report.num_files, 'file')} are damaged: {report.problems[0]}"
        )
    push = _Push(hub, name, revision=revision or "main", token=token)
    parent = push.prepare_data_set(private=private)
    index = StoreIndex.of(store, penstock.__version__)
    written = {"README.md": card.encode(), INDEX: index.to_json()}
    message = (
        commit_message
        or f"Store {store.fingerprint[:8]}: {plural(manifest.counts.samples, 'sample')}"
    )
    commit = push.commit(manifest, store.cache, written, message=message, parent=parent)
    forget(name)
    _log.info(
        "%s: pushed as hf://datasets/%s@%s, %s", store.name, name, commit, size(report.num_bytes)
    )
    return commit


def load_store(
    name: str, *, revision: str | None, tokenizer: Any, cache_dir: str | os.PathLike[str] | None
) -> "Store":
    """Load a store that was pushed under this name."""
    repo, _, at = name.removeprefix("hf://datasets/").partition("@")
    if not is_hub_name(repo):
        raise StoreError(f"{name!r}: expected the name of a dataset on the hub, such as org/name")
    at = revision or at
    folder = f"hf://datasets/{repo}" + (f"@{urllib.parse.quote(at, safe='')}" if at else "")
    cache = open_cache(cache_dir)
    opened = None if tokenizer is None else open_tokenizer(tokenizer, cache=cache)
    return load_from(folder, cache, tokenizer=opened)


def _finished(store: "Store") -> Manifest:
    manifest = store.manifest
    if manifest is None:
        raise StoreError(
            f"{store!r} is not complete yet, so it cannot be pushed; call store.wait() first"
        )
    if MEDIA in store.columns:
        raise StoreError(
            f"{store!r} has images, video or audio, whose bytes are in files next to the store and would not be pushed; push the records "
            f"and the files, and prepare them where they are used"
        )
    return manifest


def _read_licence(
    license: str | None,
    name: str | None,
    link: str | None,
    of_sources: Mapping[str, str] | None,
) -> Licence:
    if license is not None and not (isinstance(license, str) and _LICENCE.fullmatch(license)):
        raise StoreError(
            f"license={license!r}, expected an identifier of the hub in small letters, such as cc-by-4.0, mit or other"
        )
    if license == "other" and not name:
        raise StoreError("license='other' needs license_name=, which is shown in its place")
    if license != "other" and (name or link):
        raise StoreError(
            f"license_name and license_link are for license='other', and license is {license!r}; leave them out"
        )
    return Licence(license or "unknown", name, link, dict(of_sources or {}))


class _Push:
    """Requests about one dataset."""

    def __init__(self, hub: Any, name: str, *, revision: str, token: str | None) -> None:
        self._hub = hub
        self._api = hub.HfApi(token=token)
        self._revision = revision
        self._name = name
        self._url = f"hf://datasets/{name}"
        self._explain = partial(explain, url=self._url, place=HubPlace(name, revision))
        self._files: list[str] = []  # that the dataset has now

    def prepare_data_set(self, *, private: bool | None) -> str:
        """Make the dataset and its branch if they do not exist; return the commit that the branch is at."""
        with explained("push to", self._url):
            try:
                info = request(self._info, self._explain_write)
            except FileNotFoundError:
                request(partial(self._create, private=private), self._explain_write)
                info = request(self._info, self._explain_write)
            if self._revision != "main":
                request(self._create_branch, self._explain_write)
                info = request(
                    lambda: self._api.dataset_info(self._name, revision=self._revision),
                    self._explain_write,
                )
        if private and not info.private:
            raise StoreError(
                f"{self._url} exists and everybody can read it, but private=True was given; choose another name, or change it on its page"
            )
        self._files = [file.rfilename for file in info.siblings or ()]
        foreign = [file for file in self._files if not _OF_NEW.fullmatch(file)]
        if foreign and INDEX not in self._files:
            raise StoreError(
                f"{self._url} has other data, such as {foreign[0]}, and no store; push to a dataset of another name"
            )
        return str(info.sha)

    def commit(
        self,
        manifest: Manifest,
        cache: Cache,
        written: dict[str, bytes],
        *,
        message: str,
        parent: str,
    ) -> str:
        """Upload all files and make them one commit, which removes the files of an earlier store; return the commit."""
        names = [manifest_name(manifest.name), lengths_name(manifest.name), *manifest.shard_files]
        stale = {file for file in self._files if file.startswith(_OURS)} - set(names)
        operations = [
            self._hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=data)
            for name, data in written.items()
        ]
        operations += [
            self._hub.CommitOperationDelete(path_in_repo=name, is_folder=False)
            for name in sorted(stale)
        ]
        with explained("push to", self._url):
            operations += [self._addition(name, cache) for name in names]
            made = self._send(operations, message, parent)
        return str(made.oid)

    def _addition(self, name: str, cache: Cache) -> Any:
        """Return the operation that adds a file of the cache.  One of a bucket is uploaded at once, as its mirror may remove it."""
        if not cache.is_remote:
            return self._hub.CommitOperationAdd(
                path_in_repo=name, path_or_fileobj=str(cache.path(name))
            )
        addition = self._hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=cache.read(name))
        self._once(
            lambda: self._api.preupload_lfs_files(
                self._name, [addition], repo_type="dataset", revision=self._revision
            )
        )
        return addition

    def _send(self, operations: list[Any], message: str, parent: str) -> Any:
        return self._once(
            lambda: self._api.create_commit(
                self._name,
                operations,
                commit_message=message,
                repo_type="dataset",
                parent_commit=parent,
                revision=self._revision,
            )
        )

    def _once(self, call: Any) -> Any:
        """Make requests that huggingface_hub repeats itself where that is safe."""
        try:
            return call()
        except Exception as error:
            raise self._explain_write(error) from error

    def _info(self) -> Any:
        return self._api.dataset_info(self._name)

    def _create(self, *, private: bool | None) -> None:
        self._api.create_repo(self._name, repo_type="dataset", private=private, exist_ok=True)

    def _create_branch(self) -> None:
        self._api.create_branch(
            self._name, branch=self._revision, repo_type="dataset", exist_ok=True
        )

    def _explain_write(self, error: Exception) -> RemoteError:
        """Return what an error means for a writer."""
        status = _status(error)
        if status == 412:
            return passing(
                errno.EAGAIN, "another commit was made at the same time; push again", self._url
            )
        if status in (401, 403) and not _is_gated(error):
            return RemoteError(
                errno.EACCES,
                f"the hub refuses this token ({status}); check the name of the organization, and {_LOGIN}",
                self._url,
            )
        return self._explain(error)


def _status(error: BaseException | None) -> int:
    """Return the status of the answer that an error is about; huggingface_hub wraps those of uploads."""
    while error is not None:
        status = getattr(getattr(error, "response", None), "status_code", 0)
        if status:
            return int(status)
        error = error.__cause__
    return 0


def _is_gated(error: Exception) -> bool:
    return any(base.__name__ == "GatedRepoError" for base in type(error).__mro__)
