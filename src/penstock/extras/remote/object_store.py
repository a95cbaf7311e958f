"""Objects in buckets (`s3://`, `gs://`, `az://`), by obstore, and files on web servers (`http://`, `https://`), by `web`.

Names are URLs.  A version is an ETag, a size and a time; every read asks for that version and compares what comes back, so an object that
is replaced while it is read is an error, never a mixture.  Credentials, region and endpoint come from the environment (AWS_…, GOOGLE_…,
AZURE_…), as obstore reads them.
"""

import contextlib
import errno
import fnmatch
import re
import urllib.parse
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import lru_cache, partial
from typing import IO, Any, Literal, TypeVar

from penstock.errors import SourceChanged, SourceError
from penstock.extras.remote.object_file import AHEAD, ObjectFile, changes_named
from penstock.extras.remote.requests import (
    Changed,
    Exists,
    Missing,
    RemoteError,
    ShortAnswer,
    explain_obstore,
    guard_against_fork,
    max_tries,
    number,
    pause,
    request,
)
from penstock.places.place import FileId

_Answer = TypeVar("_Answer")

_MAGIC = re.compile(r"[*?[]")
_MAX_REQUEST = 1 << 24  # bytes of one request
# bytes of a part of an upload; objects above the second have parts
_PART = 1 << 23
_MULTIPART = 1 << 25
_NOT_ENCODED = ("", "identity", "aws-chunked")
_COMPRESSED = (".gz", ".tgz", ".zst", ".bz2", ".xz")
_WEB = ("http", "https")

_ADVICE = {
    "s3": "check the bucket, AWS_REGION, AWS_ENDPOINT_URL and the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, "
    "AWS_SESSION_TOKEN), and the clock of this machine; a public bucket needs AWS_SKIP_SIGNATURE=true",
    "gs": "check the bucket and the credentials (GOOGLE_APPLICATION_CREDENTIALS); a public bucket needs GOOGLE_SKIP_SIGNATURE=true",
    "az": "check the container, AZURE_STORAGE_ACCOUNT_NAME and the credentials (AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN); "
    "a public container needs AZURE_SKIP_SIGNATURE=true",
    "http": "check the address; Penstock sends no credentials to a web server: download files that need some",
}
_ADVICE["https"] = _ADVICE["http"]


@lru_cache(maxsize=256)
def place_of(root: str) -> "ObjectPlace":
    """Return the place of a bucket or a web server, such as `s3://bucket`."""
    return ObjectPlace(root)


def open_object_place(url: str) -> "ObjectPlace":
    """Return the place that a URL belongs to."""
    scheme, _, rest = url.partition("://")
    bucket = rest.partition("/")[0]
    # a name and password, or a query with a signature, are not printed
    if "@" in bucket:
        shown = f"{scheme}://…@{bucket.rpartition('@')[2]}"
        raise SourceError(
            f"{shown}: a URL with a user or password in it, which Penstock would store; leave it out"
        )
    if scheme in _WEB and "?" in rest:
        shown = url.partition("?")[0]
        raise SourceError(
            f"{shown}?…: a URL with a query, which Penstock does not send; download the file"
        )
    if not bucket:
        raise SourceError(f"{url}: no bucket, expected {scheme}://bucket/name")
    return place_of(f"{scheme}://{bucket}")


class ObjectPlace:
    """All objects of one bucket, or all files of one web server.  A web server lists nothing."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._scheme = root.partition("://")[0]
        self._advice = _ADVICE[self._scheme]
        self._client: Any = None
        self.creates_new = (
            False  # whether the store is known to refuse to create an object that exists
        )
        self.num_requests = self.num_bytes = 0  # made, and read, by this process

    def client(self) -> Any:
        """Return obstore's client, made at the first use: it holds no connection before a request."""
        if self._client is None and self._scheme in _WEB:
            from penstock.extras.remote.web import WebClient  # it imports half of urllib

            self._client = WebClient(self.root, seconds=number("PENSTOCK_REMOTE_TIMEOUT", 60))
        if self._client is None:
            try:
                from obstore.store import from_url
            except ImportError as error:
                raise SourceError(
                    f"{self.root}: needs obstore; run: pip install 'penstock[s3]'"
                ) from error
            seconds = number("PENSTOCK_REMOTE_TIMEOUT", 60)
            limits: Any = {
                "timeout": timedelta(seconds=seconds),
                "connect_timeout": timedelta(seconds=min(seconds, 10)),
            }
            retries: Any = {"max_retries": 0, "retry_timeout": timedelta(seconds=seconds)}
            try:
                # plain http is the user's own choice, in the URL or in AWS_ENDPOINT_URL
                self._client = from_url(
                    self.root, client_options={**limits, "allow_http": True}, retry_config=retries
                )
            except Exception as error:
                raise SourceError(
                    f"{self.root}: {str(error).partition(chr(10))[0]}; {self._advice}"
                ) from error
        return self._client

    def _ask(
        self, url: str, call: Callable[[Any, Any], _Answer], *, creates: bool = False
    ) -> _Answer:
        """Make a request: `call` gets the module obstore and the client."""
        client = self.client()
        api: Any = client  # of a web server: our own, which does not follow every redirect
        if self._scheme not in _WEB:
            import obstore

            api = obstore
        guard_against_fork(url)
        explain = partial(explain_obstore, url=url, advice=self._advice, creates=creates)

        def counted() -> _Answer:
            self.num_requests += 1
            return call(api, client)

        return request(counted, explain)

    def _key(self, url: str) -> str:
        key = url[len(self.root) + 1 :]
        return urllib.parse.unquote(key) if self._scheme in _WEB else key

    def _id(self, url: str, meta: Any) -> FileId:
        written = int(meta["last_modified"].timestamp()) * 1_000_000_000
        return FileId(url, meta["size"], written, ctime_ns=written, etag=meta["e_tag"] or "")

    def absolute(self, name: str) -> str:
        return name or self.root

    def stat(self, name: str) -> FileId:
        key = self._key(name)
        if not key or key.endswith("/"):
            raise Missing(
                errno.ENOENT, f"the name of a folder, expected a file; {self._advice}", name
            )
        found = self._id(name, self._ask(name, lambda obstore, client: obstore.head(client, key)))
        if not found.etag and not found.mtime_ns:
            why = "the server gives neither an ETag nor Last-Modified, so a change could not be noticed"
            raise RemoteError(errno.ENOTSUP, f"{why}; download the file", name)
        return found

    def kind(self, name: str) -> Literal["file", "folder", "other", ""]:
        key = self._key(name)
        if key and not key.endswith("/"):
            try:
                self.stat(name)
                return "file"
            except (
                Missing,
                PermissionError,
            ):  # S3 says 403 for a missing name to those who may not list
                pass
        if self._scheme in _WEB:
            return ""
        try:
            return (
                "folder"
                if self._ask(name, lambda obstore, client: _any(obstore.list(client, key or None)))
                else ""
            )
        except (Missing, PermissionError):
            return ""

    def _listable(self, folder: str) -> str:
        if self._scheme in _WEB:
            raise RemoteError(
                errno.ENOTSUP, "a web server does not list its files; name each file", folder
            )
        return self._key(folder).rstrip("/")

    def entries(self, folder: str) -> list[tuple[str, bool]]:
        key = self._listable(folder)
        found = self._ask(
            folder, lambda obstore, client: obstore.list_with_delimiter(client, key or None)
        )
        files = [
            (meta["path"], False) for meta in found["objects"] if meta["path"] != key
        ]  # an empty object marks a folder
        return [
            (path.rpartition("/")[2], is_folder)
            for path, is_folder in [*files, *((p, True) for p in found["common_prefixes"])]
        ]

    def scan(self, folder: str) -> Iterator[FileId]:
        key = self._listable(folder)
        pages = self._ask(folder, lambda obstore, client: [*obstore.list(client, key or None)])
        found = [meta for page in pages for meta in page if meta["path"] != key]
        folders = {above for meta in found for above in _folders(meta["path"])}
        for meta in found:
            url = f"{self.root}/{meta['path']}"
            if meta["size"] or (
                meta["path"] not in folders and self.kind(url) == "file"
            ):  # else an empty object that marks a folder
                yield self._id(url, meta)

    def glob(self, pattern: str) -> list[str]:
        """Find objects that match.  Lists one folder at a time, and everything below a folder only for `**`."""
        self._listable(pattern)
        return [*dict.fromkeys(self._matching(self.root, tuple(self._key(pattern).split("/"))))]

    def _matching(self, folder: str, parts: tuple[str, ...]) -> Iterator[str]:
        head = parts[0]
        rest = parts[1:]
        if head == "**":
            for file in self.scan(folder):
                if fits(tuple(file.path[len(folder) + 1 :].split("/")), parts):
                    yield file.path
        elif not _MAGIC.search(head):
            if rest:
                yield from self._matching(f"{folder}/{head}", rest)
            elif self.kind(f"{folder}/{head}") == "file":
                yield f"{folder}/{head}"
        else:
            for name, is_folder in self.entries(folder):
                if is_folder == bool(rest) and _fits_part(name, head):
                    yield from (
                        self._matching(f"{folder}/{name}", rest) if rest else (f"{folder}/{name}",)
                    )

    def open(self, name: str, version: FileId) -> ObjectFile:
        return ObjectFile(self, version)

    def read(self, name: str, version: FileId | None = None) -> bytes:
        if version is None:
            version = self.stat(name)
        with changes_named(version):
            return b"".join(self.pieces(version, 0, version.size))

    def read_now(self, name: str) -> bytes:
        """Return an object that others may replace at any time: one version of it, whole, by one request for each 16 MiB."""
        try:
            return b"".join(self.pieces_now(name))
        except Changed:  # the answer to any range of an empty object
            if self.stat(name).size:
                raise
            return b""

    def pieces(self, version: FileId, start: int, stop: int) -> Iterator[bytes | memoryview]:
        """Yield the bytes start..stop of a version, one piece for each request."""
        for begin in range(start, stop, _MAX_REQUEST):
            yield self._range(version.path, begin, min(stop, begin + _MAX_REQUEST), version)[0]

    def pieces_now(self, name: str, size: int | None = None) -> Iterator[bytes | memoryview]:
        """Yield the bytes of the version that the first answer has, one piece for each request; raise Changed if it has another size."""
        data, version = self._range(
            name, 0, _MAX_REQUEST if size is None else min(size, _MAX_REQUEST), None
        )
        if size not in (None, version.size):
            raise Changed(errno.ESTALE, f"has {version.size} bytes, expected {size}", name)
        yield data
        yield from self.pieces(version, len(data), version.size)

    def _range(
        self, url: str, start: int, stop: int, version: FileId | None
    ) -> tuple[memoryview, FileId]:
        """Return the bytes start..stop of a version, or of the one that is there now, as far as it reaches."""
        key = self._key(url)
        options: dict[str, Any] = {"range": (start, stop)}
        if version is not None and version.has_strong_etag:
            options["if_match"] = version.etag

        def get(obstore: Any, client: Any) -> tuple[memoryview, FileId]:
            # a range also of what may be shorter, as then the answer says how long the object is in all
            answer = _get(
                obstore,
                client,
                key,
                options,
                whole=version is None or (start, stop) == (0, version.size),
            )
            found = self._id(url, answer.meta)
            if version not in (None, found):  # a server may ignore the condition
                raise Changed(errno.ESTALE, f"has {found.size} bytes, ETag {found.etag}", url)
            encoding = answer.attributes.get("Content-Encoding", "identity")
            if encoding not in _NOT_ENCODED and not key.endswith(_COMPRESSED):
                what = f"comes with Content-Encoding {encoding}, and its name does not say that it is compressed"
                raise RemoteError(
                    errno.ENOTSUP, f"{what}; give it a name that does, such as {key}.gz", url
                )
            data = memoryview(answer.bytes())
            self.num_bytes += len(data)
            ranges = (
                {(start, stop)}
                if version is not None
                else {(start, min(stop, found.size)), (0, found.size)}
            )
            if tuple(answer.range) not in ranges or len(data) != answer.range[1] - answer.range[0]:
                raise ShortAnswer(
                    f"{len(data)} bytes came, expected {stop - start} (bytes {start}..{stop})"
                )
            return data, found

        return self._ask(url, get)

    def create(
        self, name: str, write: Callable[[IO[bytes]], object], *, replace: bool = False
    ) -> int:
        """Write an object, in parts if it is large: it has its name when its last byte has arrived, never before."""
        import tempfile

        with tempfile.SpooledTemporaryFile(_MULTIPART) as file:
            write(file)
            size = file.seek(0, 2)
            for number_of_try in range(1, max_tries() + 1):
                try:
                    if replace or self.creates_new or not self._has(name):
                        self._put(name, file, size, new=not replace)
                        return size
                except (
                    Exists
                ):  # by another writer, or by ourselves if the answer to a request was lost
                    pass
                try:
                    if not self._is_same(name, file, size):
                        raise FileExistsError(
                            errno.EEXIST, "already there with other content", name
                        )
                    return size
                except (
                    Missing,
                    SourceChanged,
                ):  # S3 says 409 also for two requests at once; or it was removed since
                    pause(number_of_try)
        raise RemoteError(
            errno.EBUSY, "other writers create and remove it again and again; run again later", name
        )

    def _has(self, name: str) -> bool:
        try:
            return bool(self.stat(name))
        except Missing:
            return False

    def creates_once(self, name: str) -> bool:
        """Try whether the store refuses to create an object that exists.  Some ignore the condition and overwrite it.

        name: of an object for this test; it is written and removed again.
        """
        key = self._key(name)
        self._ask(name, lambda obstore, client: obstore.put(client, key, b"1", mode="overwrite"))
        try:
            self._ask(
                name,
                lambda obstore, client: obstore.put(client, key, b"2", mode="create"),
                creates=True,
            )
        except Exists:
            self.creates_new = True
            return True
        except RemoteError as error:
            if error.may_pass:  # the network failed, so the store has not answered
                raise
            return False  # it does not know the condition
        finally:
            # A user may be allowed to write and not to remove.
            with contextlib.suppress(RemoteError):
                self.remove(name)
        return False  # it has overwritten the object

    def _put(self, name: str, file: IO[bytes], size: int, *, new: bool) -> None:
        # parts have no condition; `create` has looked before
        key = self._key(name)
        in_parts = size > _MULTIPART

        def put(obstore: Any, client: Any) -> None:
            file.seek(0)
            mode = "create" if new and not in_parts else "overwrite"
            try:
                obstore.put(client, key, file, mode=mode, use_multipart=in_parts, chunk_size=_PART)
            except Exception as error:
                if not in_parts or "performing DELETE" not in str(error):
                    raise
                # After a part failed, the client could not end the upload, and says only that; a user may not be allowed to.
                raise ShortAnswer("a part of the upload did not arrive") from error

        self._ask(name, put, creates=new)
        if size <= AHEAD:  # one request, which a store takes as a whole
            return
        found = self.stat(name).size
        if found != size:
            raise RemoteError(
                errno.EIO,
                f"has {found} bytes after {size} were written; is another program writing it?",
                name,
            )

    def _is_same(self, name: str, file: IO[bytes], size: int) -> bool:
        version = self.stat(name)
        file.seek(0)
        with changes_named(version):
            return version.size == size and all(
                file.read(len(piece)) == piece for piece in self.pieces(version, 0, size)
            )

    def remove(self, name: str) -> None:
        key = self._key(name)
        try:
            self._ask(name, lambda obstore, client: obstore.delete(client, key))
        except Missing:
            return

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return place_of, (self.root,)  # without the client, whose pickle has the secret key in it


def fits(names: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Return whether a path matches a pattern, part by part, as for local files: `**` is any number of folders, none of them hidden."""
    if not parts:
        return not names
    if parts[0] == "**":
        if len(parts) == 1:
            return bool(names) and not any(name.startswith(".") for name in names)
        return fits(names, parts[1:]) or (
            len(names) > 1 and names[0][:1] != "." and fits(names[1:], parts)
        )
    return bool(names) and _fits_part(names[0], parts[0]) and fits(names[1:], parts[1:])


def _fits_part(name: str, part: str) -> bool:
    if not _MAGIC.search(part):
        return name == part
    return fnmatch.fnmatchcase(name, part) and (name[:1] != "." or part[0] == ".")


def _folders(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _get(obstore: Any, client: Any, key: str, options: dict[str, Any], *, whole: bool) -> Any:
    """Ask for a range.  Some stores answer a range that is the whole object as if none was asked for: then none is."""
    try:
        return obstore.get(client, key, options=options)
    except Exception as error:
        if not whole or "non-partial" not in str(error):
            raise
        return obstore.get(
            client, key, options={name: value for name, value in options.items() if name != "range"}
        )


def _any(pages: Any) -> bool:
    return any(len(page) for page in pages)
