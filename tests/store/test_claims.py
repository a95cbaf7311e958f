"""Do claims keep others from doing the same work, and never keep anybody from finishing?"""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.cache import Cache, Owner, claims
from penstock.cache.claims import Claim, Held, sweep_claims, take_claim
from penstock.engines import LocalEngine
from penstock.sources import ListSource
from penstock.store import build
from penstock.store.inventory import list_stores, prune
from penstock.store.shards import shard_name
from penstock.store.verify import verify
from penstock.store.work import MakeShard, ShardTask
from penstock.templates import TextTemplate, open_tokenizer
from penstock.types import run_inline

FORK = multiprocessing.get_context("fork")
RECORDS = [{"text": "the quick brown fox " * (row % 7), "row": row} for row in range(1200)]
KEY = "0123456789abcdef" * 2


class Logged(TextTemplate):
    """Notes the first row of each shard that is begun, and takes its time."""

    def __init__(self, tokenizer: Any, log: Path, pause: float = 0.002) -> None:
        super().__init__(tokenizer)
        self._log, self._pause = log, pause

    def encode(self, records: Any) -> Any:
        records = list(records)
        with self._log.open("a") as file:
            file.write(f"{records[0]['row'] // 100}\n" * len(records))
        time.sleep(self._pause)
        return super().encode(records)


@pytest.fixture
def template(tokenizer_path: Path, tmp_path: Path) -> Logged:
    return Logged(open_tokenizer(tokenizer_path), tmp_path / "log")


def prepare(template: Any, cache: Cache, *, num_proc: int = 1) -> str:
    source = ListSource(RECORDS)
    return build(
        source, template, engine=LocalEngine(num_proc), cache=cache, shard_rows=100
    ).fingerprint


def hold_forever(key: str, cache: Cache, ready: Any) -> None:
    assert isinstance(take_claim(key, cache), Claim)
    ready.set()
    signal.pause()


def other_place(key: str, cache: Cache, beat: int = 0) -> Path:
    """A claim that a process on another machine has made, and the beat that it shows."""
    path = cache.path(f"claims/{key}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(f"{Owner('f' * 12, 4711, 1)} {beat} 0 elsewhere")
    return path


def listed(cache: Cache) -> dict[str, str]:
    """All claims: whose they are, by key."""
    folder = cache.path("claims")
    return {path.name: path.read_text() for path in folder.iterdir()} if folder.is_dir() else {}


def test_a_claim_is_one_process_s_until_it_is_released(cache: Cache) -> None:
    with take_claim(KEY, cache) as claim:  # type: ignore[union-attr]
        assert isinstance(claim, Claim)
        held = take_claim(KEY, cache)
        assert isinstance(held, Held) and held.owner == Owner.me() and not held.is_dead
        assert f"process {os.getpid()} on " in str(held) and listed(cache) == {KEY: held.text}
        assert isinstance(take_claim(KEY[::-1], cache), Claim)
    assert KEY not in listed(cache) and isinstance(take_claim(KEY, cache), Claim)


def test_marks_change_what_others_see(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "_BEAT_SECONDS", -1.0)
    claim = take_claim(KEY, cache)
    assert isinstance(claim, Claim)
    seen = set()
    for _ in range(3):
        seen.add(listed(cache)[KEY])
        claim.beat()
    assert len(seen) == 3


@pytest.mark.timeout(60)
def test_the_claim_of_a_dead_process_is_taken_over_at_once(cache: Cache) -> None:
    ready = FORK.Event()
    process = FORK.Process(target=hold_forever, args=(KEY, cache, ready))
    process.start()
    ready.wait()
    assert isinstance(take_claim(KEY, cache), Held)
    process.kill()
    process.join()
    with take_claim(KEY, cache) as claim:  # type: ignore[union-attr]
        assert isinstance(claim, Claim)
        held = take_claim(KEY, cache)
        assert isinstance(held, Held) and held.owner == Owner.me()
    assert list(cache.path("claims").iterdir()) == []  # the dead one's is gone, too


def test_claims_of_the_dead_are_swept(cache: Cache) -> None:
    dead = cache.path(f"claims/{KEY}")
    dead.parent.mkdir(parents=True)
    me = Owner.me()
    dead.write_text(f"{Owner(me.place, me.pid, me.start + 1)} 0 0 here")
    living, strange = other_place(KEY[::-1], cache), cache.path("claims/something")
    strange.touch()
    sweep_claims(cache)
    assert not dead.exists() and living.exists() and strange.exists()


def test_of_another_machine_only_silence_tells(cache: Cache) -> None:
    other_place(KEY, cache)
    held = take_claim(KEY, cache)
    assert isinstance(held, Held) and not held.is_dead
    other_place(KEY, cache, beat=1)
    now = take_claim(KEY, cache, stale=held)
    assert isinstance(now, Held) and now != held  # it has shown a sign of life since
    assert isinstance(take_claim(KEY, cache, stale=now), Claim)
    assert isinstance(take_claim(KEY, cache, stale=now), Held)  # only one can take it over


def test_a_claim_that_was_taken_over_is_not_released_by_its_first_owner(cache: Cache) -> None:
    with take_claim(KEY, cache) as claim:  # type: ignore[union-attr]
        assert isinstance(claim, Claim)
        path = other_place(KEY, cache)
    assert path.exists()


def test_a_claim_without_an_owner_is_waited_for_too(cache: Cache) -> None:
    path = other_place(KEY, cache)
    path.unlink()
    path.write_text("nonsense")
    held = take_claim(KEY, cache)
    assert isinstance(held, Held) and held.owner is None and str(held) == "an unknown process"
    assert isinstance(take_claim(KEY, cache, stale=held), Claim)


def test_a_folder_in_the_place_of_a_claim_stops_nothing(cache: Cache) -> None:
    cache.path(f"claims/{KEY}").mkdir(parents=True)
    with take_claim(KEY, cache) as claim:  # type: ignore[union-attr]
        assert isinstance(claim, Claim)


def test_where_no_claim_can_be_made_work_goes_on(cache: Cache) -> None:
    cache.root.mkdir()
    cache.path("claims").write_text("in the way")
    with take_claim(KEY, cache) as claim:  # type: ignore[union-attr]
        assert isinstance(claim, Claim)
        claim.beat()
        assert isinstance(take_claim(KEY, cache), Claim)
    assert listed(cache) == {}
    sweep_claims(cache)


def test_a_claim_that_was_left_behind_disturbs_no_command(cache: Cache, template: Logged) -> None:
    prepare(template, cache)
    other_place(KEY, cache)
    other_place(
        f"{KEY}.0123456789abcdef", cache
    )  # of a process that was killed while it renewed its claim
    cache.tidy()
    (info,) = list_stores(cache).stores
    assert verify(info.store, cache).is_whole and prune(cache, max_bytes=0).num_files == 0
    assert prepare(template, cache) == info.store
    assert set(listed(cache)) == {KEY, f"{KEY}.0123456789abcdef"}


@pytest.mark.timeout(120)
def test_eight_builders_share_the_work(cache: Cache, template: Logged, tmp_path: Path) -> None:
    barrier = FORK.Barrier(8)

    def run() -> None:
        barrier.wait()
        prepare(template, cache)

    builders = [FORK.Process(target=run) for _ in range(8)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    assert [builder.exitcode for builder in builders] == [0] * 8
    done = Counter((tmp_path / "log").read_text().split())
    assert done.total() <= 1.2 * len(RECORDS) and len(done) == 12
    assert list(cache.path("claims").iterdir()) == []


@pytest.mark.timeout(120)
def test_a_killed_builder_s_shards_are_made_by_the_others(
    cache: Cache, template: Logged, tmp_path: Path
) -> None:
    stuck = Logged(template.tokenizer, tmp_path / "stuck", pause=1000)
    victim = FORK.Process(target=prepare, args=(stuck, cache))
    victim.start()
    while not (cache.root / "claims").exists() or not listed(cache):
        time.sleep(0.01)
    killer = FORK.Process(target=lambda: (time.sleep(0.3), victim.kill()))
    killer.start()
    prepare(template, cache)
    killer.join()
    victim.join()
    assert len((tmp_path / "log").read_text().split()) == len(RECORDS)


@pytest.mark.timeout(60)
def test_a_silent_machine_s_shard_is_made_here_after_a_while(
    cache: Cache,
    template: Logged,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(claims, "STALE_SECONDS", 2.0)
    monkeypatch.setattr(claims, "_LOG_WAIT_SECONDS", 0.0)
    caplog.set_level("INFO", logger="penstock")
    key = MakeShard(ListSource(RECORDS), template, cache).claim_key(100, 200)
    other_place(key, cache)
    prepare(template, cache)
    assert "shard 1 is claimed by process 4711 on elsewhere" in caplog.text
    assert "waiting for 1 shards that other processes make" in caplog.text
    assert list(cache.path("claims").iterdir()) == []


@pytest.mark.timeout(60)
def test_a_busy_machine_is_waited_for_but_not_forever(
    cache: Cache, template: Logged, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(claims, "_MAX_WAIT", 0.5)
    key = MakeShard(ListSource(RECORDS), template, cache).claim_key(100, 200)
    other_place(key, cache)

    def beat() -> None:
        for number in count():
            path = other_place(f"{key}.next", cache, number)
            if "elsewhere" not in listed(cache).get(key, ""):  # taken over
                path.unlink()
                return
            path.replace(cache.path(f"claims/{key}"))
            time.sleep(0.05)

    owner = FORK.Process(target=beat, daemon=True)
    owner.start()
    prepare(template, cache)
    owner.kill()
    owner.join()
    assert Counter((tmp_path / "log").read_text().split())["1"] == 100


@pytest.mark.timeout(60)
def test_what_another_machine_finishes_is_taken_from_it(
    cache: Cache, template: Logged, tmp_path: Path
) -> None:
    """The other one makes its shard elsewhere, and publishes it while we wait."""
    source = ListSource(RECORDS)
    elsewhere = Cache(tmp_path / "elsewhere")
    task = ShardTask(shard=1, start=100, stop=200)
    (made,) = run_inline(MakeShard(source, TextTemplate(template.tokenizer), elsewhere), [task])
    name, data = shard_name(made.entry.key), elsewhere.read(shard_name(made.entry.key))
    claim = other_place(MakeShard(source, template, cache).claim_key(100, 200), cache)

    def publish() -> None:
        time.sleep(0.5)
        cache.publish(name, lambda file: file.write(data))
        claim.unlink()

    other = FORK.Process(target=publish)
    other.start()
    prepare(template, cache)
    other.join()
    assert Counter((tmp_path / "log").read_text().split())["1"] == 0


def test_equal_shards_are_made_once(cache: Cache, template: Logged, tmp_path: Path) -> None:
    source = ListSource([RECORDS[7]] * 400)
    store = build(source, template, engine=LocalEngine(1), cache=cache, shard_rows=100)
    assert store.num_shards == 4 and len((tmp_path / "log").read_text().split()) == 100


def test_a_claim_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    """As on a full disk.  An empty claim would name no process, and the next run would wait for it."""
    script = (
        "import resource, signal, sys\n"
        "from penstock.cache import Cache, claims\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # a link needs none\n"
        "with claims.take_claim('a' * 32, Cache(sys.argv[1])) as claim:\n"
        "    assert isinstance(claim, claims.Claim)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
