"""One owner, many workers: answers are right, nothing is carried out twice, and strangers are hung up on."""

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import penstock as ps
from penstock.errors import LeaseError, PenstockError, PlanError
from penstock.extras.rl import server
from penstock.rl import Prompts, connect, serve


def numbered(count: int) -> Prompts:
    return Prompts(ps.open([{"id": n, "tags": ["a", None, 1.5]} for n in range(count)]), epochs=1)


def test_a_worker_gets_what_the_owner_would_have_given(
    tmp_path: Path, tokenizer_path: Path, write_jsonl
) -> None:
    path = write_jsonl([{"prompt": f"fox {n} runs", "gold": n} for n in range(20)])
    store = ps.prepare(
        path, tokenizer=tokenizer_path, template="prompt", cache_dir=tmp_path / "cache", num_proc=1
    )
    here, there = Prompts(store, seed=3), Prompts(store, seed=3)
    with serve(there) as server, connect(server.address, name="w") as client:
        for mine, theirs in zip(here.take(20), client.take(20), strict=True):
            assert (mine.ordinal, mine.record, mine.where, mine.repeats) == (
                theirs.ordinal,
                theirs.record,
                theirs.where,
                theirs.repeats,
            )
            assert theirs.input_ids is not None and np.array_equal(mine.input_ids, theirs.input_ids)
            assert mine.input_ids.dtype == theirs.input_ids.dtype
        client.back([3, 4], note={"turns": 2})
        assert [(each.ordinal, each.attempt, each.note) for each in client.take(2)] == [
            (3, 1, {"turns": 2}),
            (4, 1, {"turns": 2}),
        ]
        client.done(range(10))
        client.drop([10], why="zero_variance")
        assert client.counts == there.counts
        assert there.counts["dropped"] == {"zero_variance": 1} and there.counts["frontier"] == 11
        state = client.state_dict()
        client.load_state_dict(state)
        assert client.counts["leased"] == 0 and not client.finished


def test_many_workers_share_all_prompts(tmp_path: Path) -> None:
    prompts, got = numbered(500), []

    def work(name: str) -> None:
        with connect(address, name=name) as client:
            while taken := client.take(7):
                got.extend(each.record["id"] for each in taken)
                client.done(taken)

    with serve(prompts) as server:
        address = server.address
        threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert Counter(got) == Counter(range(500))
    assert prompts.finished


def test_a_lost_answer_is_asked_for_again_and_nothing_is_taken_twice() -> None:
    prompts = numbered(50)
    with serve(prompts) as server, connect(server.address) as client:
        for number in range(10):
            sent = client._socket.sendall

            def cut(data: bytes, sent=sent, client=client) -> None:
                sent(data)
                client._socket.shutdown(
                    socket.SHUT_RD
                )  # the owner carries it out, and its answer is lost

            client._socket = Hooked(client._socket, cut)
            assert [each.ordinal for each in client.take(5)] == list(
                range(5 * number, 5 * number + 5)
            )
        assert prompts.counts["leased"] == 50
        client.done(range(50))
    assert prompts.finished


class Hooked:
    """A socket whose first message is sent by `send`."""

    def __init__(self, real: socket.socket, send) -> None:
        self._real, self.sendall = real, send

    def __getattr__(self, name: str):
        return getattr(self._real, name)


def test_an_error_of_the_owner_is_raised_in_the_worker() -> None:
    with serve(numbered(5)) as server, connect(server.address, name="b") as client:
        taken = client.take(2)
        client.done(taken)
        with pytest.raises(
            LeaseError,
            match=r"done: prompt 0 is already done or dropped.*and 1 more of 2.*nothing was changed",
        ):
            client.done(taken)
        with pytest.raises(LeaseError, match="back: prompt 4 was never taken: prompts 0 to 1 were"):
            client.back(4)
        with pytest.raises(PlanError, match="count is 0"):
            client.take(0)
        with pytest.raises(LeaseError, match="why is '', expected a short name"):
            client.drop(client.take(1), why="")


def test_a_record_that_json_would_change_is_refused_with_its_place(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"id": [1], "image": [b"\x00"]}), tmp_path / "images.parquet")
    prompts = Prompts(ps.open(tmp_path / "images.parquet", cache_dir=tmp_path / "cache"))
    assert prompts.take(1)[0].record["image"] == b"\x00"
    prompts.back(0)
    with serve(prompts) as server, connect(server.address) as client:
        with pytest.raises(
            PenstockError,
            match=r"images.parquet:1: the record cannot be sent to a worker: JSON would change 'image'",
        ):
            client.take(1)
        assert prompts.counts["leased"] == 0 and prompts.counts["returned"] == 1


def test_a_restarted_owner_is_noticed() -> None:
    prompts = numbered(10)
    server = serve(prompts)
    client = connect(server.address, patience=5)
    taken = client.take(2)
    place = server.address
    server.close()
    again = serve(prompts, port=int(place.rpartition(":")[2].partition("/")[0]))
    again._secret = server._secret
    with (
        again,
        pytest.raises(
            LeaseError,
            match="the owner of the prompts was restarted, so all leases of before are over",
        ),
    ):
        client.done(taken)
    client.close()


def test_a_missing_owner_a_wrong_secret_and_a_wrong_address_are_errors() -> None:
    with serve(numbered(3)) as server:
        with pytest.raises(LeaseError, match="the address has another secret"):
            connect(server.address[:-4] + "zzzz")
        with socket.create_connection(
            ("127.0.0.1", int(server.address.rpartition(":")[2].partition("/")[0]))
        ) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with suppress(ConnectionResetError):  # the owner closes without reading the rest
                assert stranger.recv(100) == b""
        address = server.address
    with pytest.raises(LeaseError, match=r"no owner of prompts answers at 127.0.0.1:\d+"):
        connect(address, patience=0.1)
    with pytest.raises(
        LeaseError, match="expected the address of a server: penstock://host:port/secret"
    ):
        connect("http://127.0.0.1")


def test_the_secret_is_not_in_an_error() -> None:
    for address in ("penstock://127.0.0.1/0123secret", "penstock://127.0.0.1:port/0123secret"):
        with pytest.raises(LeaseError, match="expected the address of a server") as error:
            connect(address)
        assert "0123secret" not in str(error.value)


def test_a_peer_that_says_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_HELLO_SECONDS", 0.05)
    with serve(numbered(3)) as owner, connect(owner.address) as client:
        port = int(owner.address.rpartition(":")[2].partition("/")[0])
        with socket.create_connection(("127.0.0.1", port), timeout=60) as silent:
            assert silent.recv(1) == b""
        assert len(client.take(3)) == 3  # a worker that was silent for longer is not


def test_prompts_whose_answer_cannot_be_sent_are_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts = numbered(20)
    with serve(prompts) as owner, connect(owner.address) as client:
        monkeypatch.setattr(server, "_MOST_BYTES", 1000)
        with pytest.raises(
            PenstockError,
            match=r"the answer has .* bytes, expected at most 1,000; take fewer prompts",
        ):
            client.take(20)
        assert prompts.counts["leased"] == 0 and prompts.counts["returned"] == 20
        monkeypatch.undo()
        assert [each.ordinal for each in client.take(20)] == list(range(20))


def test_a_note_that_json_would_change_is_refused_by_owner_and_worker() -> None:
    prompts = numbered(3)
    with serve(prompts) as owner, connect(owner.address) as client:
        client.take(3)
        for note in (float("nan"), {1: 2}, (1, 2), {"a": b"x"}, 1 << 80, "\ud800"):
            for each in (prompts, client):
                with pytest.raises(LeaseError, match="the note is not a JSON value"):
                    each.back(0, note=note)
        assert prompts.counts["leased"] == 3


def test_an_unknown_call_is_refused() -> None:
    with (
        serve(numbered(3)) as owner,
        connect(owner.address) as client,
        pytest.raises(PenstockError, match="unknown call '__init__'"),
    ):
        client._ask("__init__", prompts=[])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_copy_of_prompts_or_of_a_client_gives_nothing() -> None:
    prompts = numbered(10)
    with serve(prompts) as owner, connect(owner.address) as client:
        client.take(1)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            said = []
            try:
                for each in (prompts, client):
                    try:
                        said.append(f"took {len(each.take(1))}")
                    except LeaseError as error:
                        said.append(str(error))
                os.write(write, "\n".join(said).encode())
            finally:
                os._exit(0)
        os.close(write)
        of_prompts, of_client = os.read(read, 10_000).decode().splitlines()
        os.close(read)
        os.waitpid(child, 0)
        assert "was forked" in of_prompts and "penstock.rl.serve" in of_prompts
        assert "was forked" in of_client and "connect again" in of_client
        assert [each.ordinal for each in client.take(2)] == [1, 2]


def threads_of_connections() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def reaches(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def test_connections_without_the_secret_have_a_bounded_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A12: every connection got a thread, before it had shown the secret, without a limit."""
    monkeypatch.setattr(server, "_MOST_UNKNOWN", 8)
    before = threads_of_connections()
    with serve(numbered(20)) as owner:
        found = urlsplit(owner.address)
        place = (found.hostname, found.port)
        silent = [socket.create_connection(place) for _ in range(100)]
        try:
            assert reaches(lambda: threads_of_connections() - before <= 9)
            with connect(
                owner.address
            ) as client:  # a worker that knows the secret gets in all the same
                assert len(client.take(2)) == 2
                assert threads_of_connections() - before <= 10
        finally:
            for each in silent:
                each.close()
        assert reaches(lambda: threads_of_connections() == before)


def test_a_peer_that_sends_its_first_message_byte_by_byte_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A limit on each byte alone would let a peer keep its thread for hours."""
    monkeypatch.setattr(server, "_HELLO_SECONDS", 0.3)
    with serve(numbered(20)) as owner:
        found = urlsplit(owner.address)
        with socket.create_connection((found.hostname, found.port)) as peer:
            began = time.monotonic()
            with suppress(OSError):
                for byte in (200).to_bytes(8, "big") + b"x" * 100:
                    peer.sendall(bytes([byte]))
                    time.sleep(0.05)
            assert time.monotonic() - began < 4  # and not the 5.4 seconds that all bytes take
            peer.settimeout(5)
            with suppress(ConnectionError):
                assert peer.recv(1) == b""


def test_a_client_whose_idle_connection_was_ended_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_IDLE_SECONDS", 0.2)
    before = threads_of_connections()
    with serve(numbered(20)) as owner, connect(owner.address) as client:
        first = client.take(1)
        assert reaches(lambda: threads_of_connections() == before)
        second = client.take(1)
        assert first[0].ordinal != second[0].ordinal
        client.done([*first, *second])
        assert client.counts["done"] == 2


def test_a_client_that_comes_back_has_one_connection_and_a_limit_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_MOST_CONNECTIONS", 2)
    with serve(numbered(20)) as owner:
        with connect(owner.address) as one, connect(owner.address) as other:
            assert one.take(1) and other.take(1)
            with pytest.raises(LeaseError, match="the owner has 2 connections, which is its limit"):
                connect(owner.address)
            lost = one._socket  # a connection that breaks on the way: the owner does not hear of it
            one._socket = None
            assert one.take(1)
            assert lost is not None
            lost.close()
        assert reaches(lambda: not owner._of_client)
