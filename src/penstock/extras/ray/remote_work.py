"""What an engine of several machines asks of work on a source and a cache, as `penstock.types.RemoteWork` describes it."""

import contextlib
import os
from collections.abc import Generator, Sequence

from penstock.cache import Cache
from penstock.cache.claims import Claim, sees_claim, sweep_claims, take_claim
from penstock.cache.locks import Owner, report_dead
from penstock.errors import StoreError
from penstock.types import Source


class OnOtherMachines:
    """Work on the rows of a source, with a cache that all machines share."""

    def __init__(self, source: Source, cache: Cache | None) -> None:
        self.source = source
        self.cache = cache

    @contextlib.contextmanager
    def announced(self) -> Generator[str, None, None]:
        """Leave a file in the cache by which workers on other machines see that they share it."""
        sign = f"sign-{os.urandom(8).hex()}"
        claim = None if self.cache is None else take_claim(sign, self.cache)
        with claim if isinstance(claim, Claim) else contextlib.nullcontext():
            yield sign

    def process_name(self) -> str:
        return str(Owner.me())

    def check(self, sign: str) -> None:
        """Raise an error if this process sees another cache, or cannot read the records."""
        if self.cache is not None and not sees_claim(sign, self.cache):
            raise StoreError(
                f"it does not see the cache folder {self.cache.root} of the process that started it; choose a folder that all nodes share, "
                f"with cache_dir= or PENSTOCK_CACHE, and keep the cache on"
            )
        self.source.digest(0, min(1, len(self.source)))

    def forget(self, processes: Sequence[str], *, at_work: bool) -> None:
        """Remove the claims and leases of workers that have ended, and, if they were at work, what they have half written."""
        if self.cache is not None:
            report_dead(processes, self.cache.place)
            sweep_claims(self.cache)
            if at_work:
                self.cache.tidy()
