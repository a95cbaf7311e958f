"""How far a store is, as any process on the same cache sees it: nothing is read but small files, and nothing is made."""

from dataclasses import dataclass

from penstock.cache import Cache
from penstock.cache.claims import holders
from penstock.store.digests import RowRanges, recall_digest, rows_per_shard
from penstock.store.manifest import load, store_fingerprint
from penstock.store.shards import shard_key, shard_name
from penstock.store.work import MakeShard
from penstock.types import AnyTemplate, Source, columns_of
from penstock.words import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The shards of one store that are made, and the processes that are making others."""

    rows: int  # in finished shards
    num_rows: int
    shards: int  # finished
    num_shards: int
    at_work: tuple[str, ...]  # the processes, each once
    is_complete: bool  # whether the manifest is written

    def __str__(self) -> str:
        if self.is_complete:
            return f"complete: {self.num_rows:,} records in {plural(self.num_shards, 'shard')}"
        share = self.rows / self.num_rows if self.num_rows else 0.0
        busy = f"at work: {', '.join(self.at_work)}" if self.at_work else "no process is at work"
        return f"{self.shards:,} of {self.num_shards:,} shards, {self.rows:,} of {self.num_rows:,} records ({share:.0%}); {busy}"


def status(source: Source, template: AnyTemplate, *, cache: Cache) -> Status:
    """Look which shards of a store exist.  Records that no process has read yet count as not made."""
    work = MakeShard(source, template, cache)
    ranges = RowRanges(source, cache, num_rows=rows_per_shard(columns_of(template)))
    all_digests = ranges.recall()
    digests: list[str] = []
    claims: list[str] = []
    rows = 0
    shards = 0
    for shard, (start, stop) in enumerate(ranges.pairs):
        if all_digests is not None:
            digest: str | None = all_digests[shard]
        else:
            digest = recall_digest(start, stop, ranges.stamp, cache)
        if digest is not None:
            digests.append(digest)
        if digest is not None and cache.size(shard_name(shard_key(digest, work.identity))):
            rows += stop - start
            shards += 1
        else:
            claims.append(work.claim_key(start, stop))
    manifest = None
    if len(digests) == len(ranges.pairs):
        manifest = load(store_fingerprint(work.keys(digests)), cache)
    return Status(
        rows=rows,
        num_rows=len(source),
        shards=shards,
        num_shards=len(ranges.pairs),
        at_work=tuple(sorted({str(held) for held in holders(claims, cache).values()})),
        is_complete=manifest is not None and manifest.is_whole(cache),
    )
