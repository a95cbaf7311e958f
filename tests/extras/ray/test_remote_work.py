"""Does work on other machines see the same files, and does nothing of their workers stay behind?"""

from pathlib import Path

import pytest

from penstock.cache import Cache, Owner
from penstock.cache.claims import Claim, Held, take_claim
from penstock.errors import StoreError
from penstock.extras.ray.remote_work import RemoteWork
from penstock.sources import ListSource
from penstock.store.work import MakeShard
from tests.store.shelves import Numbers, records

RECORDS = records(10)
KEY = "0123456789abcdef" * 2


def test_what_a_worker_of_another_machine_left_is_removed_once_its_engine_reports_it_dead(
    cache: Cache,
) -> None:
    """As the Ray engine does: no process of this machine could tell that those of another one are dead."""
    work = RemoteWork(MakeShard(ListSource(RECORDS), Numbers(), cache))
    dead, other = (Owner("0" * 12, pid, 1) for pid in (4711, 4712))
    names = {
        owner: [f"claims/{owner.pid}", f"shards/ab/.{owner}-{KEY[:16]}.tmp"]
        for owner in (dead, other)
    }
    for owner, (claim, *files) in names.items():
        cache.place.create(
            claim, lambda file, owner=owner: file.write(f"{owner} 0 {KEY} node-7".encode())
        )
        for name in files:
            cache.path(name).parent.mkdir(parents=True, exist_ok=True)
            cache.path(name).touch()
    assert isinstance(take_claim("4711", cache), Held)
    work.forget([str(dead)], at_work=True)
    assert [cache.path(name).exists() for name in names[dead]] == [False, False]
    assert [cache.path(name).exists() for name in names[other]] == [True, True]
    assert isinstance(take_claim("4711", cache), Claim)


def test_a_worker_that_does_not_see_the_sign_of_its_engine_is_refused(
    cache: Cache, tmp_path: Path
) -> None:
    made = MakeShard(ListSource(RECORDS), Numbers(), cache)
    work = RemoteWork(made)
    with work.announced() as sign:
        work.check(sign)
        assert work.process_name() == str(Owner.me())
        far = Cache(tmp_path / "elsewhere")
        elsewhere = RemoteWork(MakeShard(ListSource(RECORDS), Numbers(), far))
        with pytest.raises(
            StoreError,
            match=f"does not see the cache folder {tmp_path / 'elsewhere'} of the process",
        ):
            elsewhere.check(sign)
        made.identity = {**made.identity, "template": "another one"}
        with pytest.raises(
            StoreError,
            match=r"its template differs: template \"another one\" → .*same tokenizer and code",
        ):
            work.check(sign)
    with pytest.raises(StoreError, match="does not see the cache folder"):
        work.check(sign)
