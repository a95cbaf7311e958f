"""Work on other machines: whether they see the same files, and what their workers leave behind when they end."""

import contextlib
import os
from collections.abc import Callable, Generator, Sequence
from typing import Any

from penstock.cache.claims import Claim, sees_claim, sweep_claims, take_claim
from penstock.cache.owner import Owner, report_dead
from penstock.errors import StoreError
from penstock.types import WorkOnFiles


class RemoteWork:
    """Wraps work on files, and is sent to other machines in its place."""

    def __init__(self, work: WorkOnFiles) -> None:
        self._work = work
        self._cache = work.cache

    def __call__(self, task: Any) -> Any:
        return self._work(task)

    def describe(self, task: Any, note: Any) -> str:
        return self._work.describe(task, note)

    @contextlib.contextmanager
    def announced(self) -> Generator[str, None, None]:
        """Leave a file in the cache by which workers on other machines see that they share it."""
        sign = f"sign-{os.urandom(8).hex()}"
        claim = None if self._cache is None else take_claim(sign, self._cache)
        with claim if isinstance(claim, Claim) else contextlib.nullcontext():
            yield sign

    def process_name(self) -> str:
        """In a worker: the name of this process, for `forget`."""
        return str(Owner.me())

    def check(self, sign: str) -> None:
        """In a worker: raise an error if it sees another cache, other records or another template."""
        if self._cache is not None and not sees_claim(sign, self._cache):
            raise StoreError(
                f"it does not see the cache folder {self._cache.root} of the process that started it; choose a folder that all nodes "
                f"share, with cache_dir= or PENSTOCK_CACHE, and keep the cache on"
            )
        self._work.check()

    def forget(self, processes: Sequence[str], *, at_work: bool) -> None:
        """Remove the claims of workers that have ended, and, if they were at work, what they have half written."""
        if self._cache is None:
            return
        report_dead(processes)
        sweep_claims(self._cache)
        if at_work:
            self._cache.tidy()


def on_other_machines(work: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return work as it is sent to other machines."""
    return RemoteWork(work) if isinstance(work, WorkOnFiles) else work
