"""Requests to remote places: retries for what may pass, errors that say what to do, and a guard against forks.

A request is repeated after 5xx, 408, 409, 425 and 429, after time-outs and broken connections, and after an answer of the wrong length;
never after 401, 403 or 404.  The client library repeats nothing itself: it trusts lengths, and takes 409 for "exists".

The client library has threads.  A process that was forked from one that has made a request would wait for those threads forever, so it is
refused by name; the engine is told to start its workers without a fork.
"""

import errno
import os
import re
import time
from collections.abc import Callable
from typing import TypeVar

from penstock.forks import forbid_forks
from penstock.places.place import Explained

_Answer = TypeVar("_Answer")

_MAX_WAIT = 10.0  # seconds
_MAY_PASS = {408, 409, 425, 429}  # and 5xx
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_KIND = re.compile(r"kind: (\w+)")
_METADATA = re.compile(r"/latest/(api/token|meta-data)|metadata\.google|/metadata/identity")
_QUERY = re.compile(r"(?<=\S)\?[^\s'\")<>]+")
_SHOWN = 200  # characters of a server's answer in an error

_process: int | None = None  # that made the first request


class RemoteError(Explained):
    """A request failed; the text says what to do.  `may_pass`: the same request may succeed later."""

    may_pass = False


class Missing(RemoteError, FileNotFoundError):
    """Nothing has this name."""


class AccessRefused(RemoteError, PermissionError):
    """The store knows who asks, or not, and says no."""


class Changed(RemoteError):
    """The object changed since the version that was asked for."""


class Exists(RemoteError, FileExistsError):
    """An object has this name already."""


class ShortAnswer(Exception):
    """The answer has fewer or more bytes than were asked for."""


def number(name: str, default: float) -> float:
    """Return a setting of the environment, which must be a number above 0."""
    text = os.environ.get(name, "").strip()
    try:
        value = float(text or default)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise RemoteError(
            errno.EINVAL,
            f"{name} is {text!r}, expected a number above 0, such as {default:g}",
            name,
        )
    return value


def max_tries() -> int:
    return int(number("PENSTOCK_REMOTE_TRIES", 8))


def request(call: Callable[[], _Answer], explain: Callable[[Exception], RemoteError]) -> _Answer:
    """Make a request; repeat it while it may pass.  Raise RemoteError, which `explain` makes of an error of the client library."""
    tries = max_tries()
    for number_of_try in range(1, tries + 1):
        try:
            return call()
        except Exception as error:
            failure = explain(error)
            if not failure.may_pass:
                raise failure from error
            if number_of_try == tries:
                again = (
                    f"(tried {tries} times); run again later, or check the network and the endpoint"
                )
                failure.strerror = f"{failure.strerror} {again}"
                raise failure from error
        pause(number_of_try)
    raise AssertionError("a loop of at least one try returns or raises")


def pause(number_of_try: int) -> None:
    """Wait before the next try: twice as long each time, and a random share of it, so that many clients do not come back at once."""
    most = min(_MAX_WAIT, number("PENSTOCK_REMOTE_WAIT", 0.1) * 2 ** (number_of_try - 1))
    time.sleep(most * (0.5 + int.from_bytes(os.urandom(2)) / 131072))


def guard_against_fork(url: str) -> None:
    """Raise RemoteError in a process that was forked from one that has made a request; note the first request."""
    global _process
    if _process is None:
        _process = os.getpid()
        forbid_forks()
    elif _process != os.getpid():
        raise RemoteError(
            errno.EDEADLK,
            "this process was forked from one that has read from a remote place, and its request would never end; start processes with "
            "'spawn' (torch: multiprocessing_context='spawn'), iterate over a Loader of plain records itself, or read nothing "
            "remote before they start",
            url,
        )


def explain_obstore(
    error: Exception, url: str, advice: str, *, creates: bool = False
) -> RemoteError:
    """Return what an error of obstore means.  Its errors have no codes, only types and text.

    advice: what to check if access is denied or nothing is found.  creates: the request makes an object that must be new.
    """
    if isinstance(error, RemoteError):
        return error
    text = str(error)
    status = int(found[1]) if (found := _STATUS.search(text)) else 0
    code = f" {found[1]}" if (found := _CODE.search(text)) else ""
    kind = type(error).__name__
    if isinstance(error, ShortAnswer):
        return passing(errno.EIO, text, url)
    if isinstance(error, FileNotFoundError) or status == 404:
        bucket = "the bucket does not exist" if "NoSuchBucket" in text else "nothing found (404)"
        return Missing(errno.ENOENT, f"{bucket}; check the name; {advice}", url)
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or status in (401, 403):
        return AccessRefused(errno.EACCES, f"access denied ({status or kind}{code}); {advice}", url)
    if "incorrectly configured region" in text:  # S3 answers 301 without saying where to go
        return RemoteError(
            errno.EINVAL, f"the bucket is in another region; set AWS_REGION; {advice}", url
        )
    if status in (304, 412) or kind in ("PreconditionError", "NotModifiedError"):
        return (
            Exists(errno.EEXIST, "already there", url)
            if creates
            else Changed(errno.ESTALE, "has another version now", url)
        )
    if (
        kind == "AlreadyExistsError" or status == 409
    ):  # S3 also says 409 for "two requests at once, try again"
        return (
            Exists(errno.EEXIST, "already there", url)
            if creates
            else passing(errno.EBUSY, f"busy ({status})", url)
        )
    if status == 416:
        return Changed(errno.ESTALE, "is shorter now", url)
    if status >= 500 or status in _MAY_PASS:
        return passing(errno.EAGAIN, f"the server answers {status}", url)
    if status:
        return RemoteError(
            errno.EIO, f"the server answers {status}{code or f': {shorten(text)}'}; {advice}", url
        )
    impossible = ("NotSupportedError", "RangeNotSupportedError", "NotImplementedError")
    if isinstance(error, ValueError | TypeError) or kind in impossible or "Header missing" in text:
        return RemoteError(
            errno.EINVAL, f"not possible here: {shorten(text)}; download the file", url
        )
    what = found[1].lower() if (found := _KIND.search(text)) else shorten(text)
    if _METADATA.search(text):
        why = f"the environment has no credentials, and this machine has no role that gives some ({what}); {advice}"
        return passing(
            errno.EACCES, why, url
        )  # on a machine that has one, the same may succeed later
    return passing(errno.EIO, f"no complete answer ({what})", url)


def passing(number: int, text: str, url: str) -> RemoteError:
    """Return an error after which the request may be repeated."""
    error = RemoteError(number, text, url)
    error.may_pass = True
    return error


def shorten(text: str) -> str:
    """Return the first line of a text, or its beginning, without the queries of URLs: they may hold signatures."""
    line = _QUERY.sub("?…", text.partition("\n")[0].strip())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
