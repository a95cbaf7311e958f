"""One owner of Prompts, shared by many rollout workers over a socket.

    with serve(prompts) as server:                      # in the trainer's process: its checkpoints save prompts.state_dict()
        start_workers(server.address)
    client = connect(address, name="rollout-3")         # in a worker: take, accept, renew, done, drop, back, as Prompts has them

A message is 8 bytes of length and then JSON.  A client numbers its calls, and the owner keeps its last answer to each client: after a
lost connection the client asks again under the same number, so no call is carried out twice and no answer is lost.  The address holds a
secret; who knows it can read the prompts.  Nothing is encrypted: beyond this machine, use it on a network that you trust.
"""

import hmac
import os
import platform
import secrets
import socket
import socketserver
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Self
from urllib.parse import urlsplit

import numpy as np
import orjson

from penstock import errors
from penstock.errors import LeaseError, PenstockError
from penstock.extras.rl.prompts import (
    Given,
    Prompt,
    Prompts,
    as_asked,
    check_note,
    guard_against_fork,
)
from penstock.types import Where

# of a message, and of the first one, which has no secret yet
_MOST_BYTES = 1 << 30
_HELLO_BYTES = 1 << 10
_MOST_CLIENTS = 10_000  # whose last answers are kept
_SCHEME = "penstock"
_PAUSE = 0.05  # seconds between two tries to connect
_HELLO_SECONDS = 10.0  # from connecting until the whole first message has come
_IDLE_SECONDS = (
    3600.0  # between two calls; a client whose connection was ended connects again by itself
)
_MESSAGE_SECONDS = (
    60.0  # until the next bytes of a message that has begun, and until an answer is taken
)
# Each connection has a thread.  Of those that have not shown the secret yet, the oldest is hung up on for a new one.
_MOST_UNKNOWN = 64
_MOST_CONNECTIONS = 4096  # that have shown it
_HEAD = struct.Struct(">Q")


# The owner


class PromptOwner:
    """Carries out the calls of clients on one Prompts, each once."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts
        self._lock = threading.Lock()
        self._session = secrets.token_hex(8)
        self._last: OrderedDict[str, tuple[int, bytes]] = (
            OrderedDict()
        )  # client → number and answer of its last call

    def _answer(self, client: str, request: dict[str, Any]) -> bytes:
        """Carry out a call, once: the same number again gets the same answer."""
        with self._lock:
            number, answer = self._last.get(client, (0, b""))
            if (
                request["number"] < number
            ):  # came late over a connection that the client has given up
                raise _Closed("the client has gone on")
            if request["number"] > number:
                answer = self._carry_out(request["call"], request["options"])
            self._last[client] = request["number"], answer
            self._last.move_to_end(client)
            while len(self._last) > _MOST_CLIENTS:
                self._last.popitem(last=False)
            return answer

    def _carry_out(self, call: str, options: dict[str, Any]) -> bytes:
        try:
            return self._take(options) if call == "take" else _encode(self._call(call, options))
        except PenstockError as error:
            return orjson.dumps({"error": type(error).__name__, "message": str(error)})
        except Exception as error:  # a file that is gone, for one: the worker gets the error, and the owner goes on
            return orjson.dumps(
                {
                    "error": "PenstockError",
                    "message": f"the owner failed: {type(error).__name__}: {error}",
                }
            )

    def _take(self, options: dict[str, Any]) -> bytes:
        taken = self._prompts.take(options["count"], to=options["to"])
        try:
            return _encode([_as_json(prompt) for prompt in taken])
        except BaseException:  # the worker gets none of them
            self._prompts.back(taken)
            raise

    def _call(self, call: str, options: dict[str, Any]) -> Any:
        prompts = self._prompts
        if call in ("finished", "counts"):
            return getattr(prompts, call)
        if call in ("state_dict", "load_state_dict", "back_from"):
            return getattr(prompts, call)(**options)
        if call not in ("accept", "renew", "done", "drop", "back"):
            raise PenstockError(
                f"unknown call {call!r}; does the worker have another release of Penstock?"
            )
        asked = [(ordinal, lease) for ordinal, lease in options.pop("prompts")]
        return getattr(prompts, call)(asked, **options)


class Server(PromptOwner):
    """Answers clients over a socket, until it is closed."""

    def __init__(self, prompts: Prompts, *, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__(prompts)
        self._secret = secrets.token_hex(16)
        self._open: set[socket.socket] = set()
        self._unknown: OrderedDict[socket.socket, None] = OrderedDict()  # oldest first
        self._of_client: dict[str, socket.socket] = {}  # those that have shown the secret
        self._connections = threading.Lock()
        owner = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                owner._converse(self.request)

        self._server = _TcpServer((host, port), Handler, admit=self._admit)
        self.address = f"{_SCHEME}://{host}:{self._server.server_address[1]}/{self._secret}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering.  Prompts stay leased until their time is over, or a state is loaded."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for each in list(self._open):
            _hang_up(each)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _admit(self, peer: socket.socket) -> None:
        """Note a new connection, before it gets a thread; hang up on the oldest that has not shown the secret, if there are too many."""
        with self._connections:
            self._unknown[peer] = None
            surplus = list(self._unknown)[: max(0, len(self._unknown) - _MOST_UNKNOWN)]
            for oldest in surplus:
                del self._unknown[oldest]
        for oldest in surplus:
            _hang_up(oldest)  # its thread ends

    def _converse(self, peer: socket.socket) -> None:
        """Answer one client until it closes the connection."""
        self._open.add(peer)
        client = ""
        try:
            # a peer that speaks otherwise, a port scanner for one, is hung up on
            with suppress(OSError, _Closed, ValueError, LookupError, AttributeError, TypeError):
                deadline = time.monotonic() + _HELLO_SECONDS
                hello = orjson.loads(_receive(peer, most=_HELLO_BYTES, deadline=deadline))
                if not hmac.compare_digest(str(hello.get("secret")), self._secret):
                    _refuse(peer, "the address has another secret")
                    return
                client = str(hello["client"])
                if not self._enlist(client, peer):
                    why = f"the owner has {_MOST_CONNECTIONS:,} connections, which is its limit"
                    _refuse(peer, f"{why}; close some clients")
                    return
                _send(peer, orjson.dumps({"session": self._session}))
                _keep_alive(peer)
                while True:
                    request = _receive(peer, idle=_IDLE_SECONDS)
                    _send(peer, self._answer(client, orjson.loads(request)))
        finally:
            self._open.discard(peer)
            with self._connections:
                self._unknown.pop(peer, None)
                if self._of_client.get(client) is peer:
                    del self._of_client[client]

    def _enlist(self, client: str, peer: socket.socket) -> bool:
        """Take a client in that has shown the secret.  Its older connection is ended: a client uses one, and has given that up."""
        with self._connections:
            self._unknown.pop(peer, None)
            older = self._of_client.get(client)
            if older is None and len(self._of_client) >= _MOST_CONNECTIONS:
                return False
            self._of_client[client] = peer
        if older is not None:
            _hang_up(older)
        return True


def _hang_up(peer: socket.socket) -> None:
    with suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)


def _refuse(peer: socket.socket, why: str) -> None:
    _send(peer, orjson.dumps({"error": "LeaseError", "message": why}))


def _keep_alive(peer: socket.socket) -> None:
    """Have the system notice a machine that is gone: it sends nothing, not even an end of the connection."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # seconds of silence, seconds between two questions, questions without an answer; not every system has all three
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 6)):
        if hasattr(socket, name):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class _TcpServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 1024

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[socketserver.BaseRequestHandler],
        *,
        admit: Callable[[socket.socket], None],
    ) -> None:
        self._admit = admit
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._admit(request)
        super().process_request(request, client_address)


def serve(prompts: Prompts, *, host: str = "127.0.0.1", port: int = 0) -> Server:
    """Share prompts with workers that know the server's address.  By default only this machine can reach it."""
    return Server(prompts, host=host, port=port)


def _encode(value: Any) -> bytes:
    """Return an answer; refuse one that a client would not read."""
    answer = orjson.dumps({"value": value}, option=orjson.OPT_SERIALIZE_NUMPY)
    if len(answer) > _MOST_BYTES:
        raise PenstockError(
            f"the answer has {len(answer):,} bytes, expected at most {_MOST_BYTES:,}; take fewer prompts at once"
        )
    return answer


def _as_json(prompt: Prompt) -> dict[str, Any]:
    """Return a prompt as JSON values; refuse a record that JSON would change."""
    try:
        is_kept = orjson.loads(orjson.dumps(prompt.record)) == prompt.record
    except (TypeError, ValueError):
        is_kept = False
    if not is_kept:
        keys = [key for key, value in prompt.record.items() if not _survives(value)]
        raise PenstockError(
            f"{prompt.where}: the record cannot be sent to a worker: JSON would change {', '.join(map(repr, keys)) or 'its keys'}; "
            f"leave it out with source.map(), or read the record in the worker: prompt.row is its number"
        )
    of_order = ("ordinal", "epoch", "attempt", "lease", "repeats", "source", "row")
    names = (*of_order, "record", "note", "label")
    columns = {
        name: [np.asarray(value).dtype.str, np.asarray(value).tolist()]
        for name, value in prompt.columns.items()
    }
    ids = (
        None
        if prompt.input_ids is None
        else [prompt.input_ids.dtype.str, prompt.input_ids.tolist()]
    )
    found = {name: getattr(prompt, name) for name in names}
    return {**found, "input_ids": ids, "columns": columns, "where": asdict(prompt.where)}


def _survives(value: Any) -> bool:
    try:
        return bool(orjson.loads(orjson.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


# A worker


class Calls:
    """The calls of Prompts, carried out by an owner in another process."""

    name: str  # of the worker

    def _ask(self, call: str, **options: Any) -> Any:
        raise NotImplementedError

    def take(self, count: int, *, to: str | None = None) -> list[Prompt]:
        """Lease up to `count` prompts to this worker; see `Prompts.take`."""
        return [_as_prompt(each) for each in self._ask("take", count=count, to=to or self.name)]

    def accept(self, prompts: Given) -> list[int]:
        """Return the ordinals of those prompts whose rollouts may be trained on; see `Prompts.accept`."""
        found: list[int] = self._ask("accept", prompts=as_asked(prompts))
        return found

    def renew(self, prompts: Given) -> list[int]:
        """Begin the lease time of these prompts again; see `Prompts.renew`."""
        found: list[int] = self._ask("renew", prompts=as_asked(prompts))
        return found

    def done(self, prompts: Given) -> None:
        """Say that these prompts were trained on; see `Prompts.done`."""
        self._ask("done", prompts=as_asked(prompts))

    def drop(self, prompts: Given, *, why: str) -> None:
        """Say that these prompts will not be trained on, and why; see `Prompts.drop`."""
        self._ask("drop", prompts=as_asked(prompts), why=why)

    def back(self, prompts: Given, *, note: Any = None) -> None:
        """Give prompts back, to be given again before new ones; see `Prompts.back`."""
        check_note(note)
        self._ask("back", prompts=as_asked(prompts), note=note)

    def back_from(self, worker: str) -> list[int]:
        """Give back all prompts of a worker that has died; return their ordinals."""
        found: list[int] = self._ask("back_from", worker=worker)
        return found

    @property
    def finished(self) -> bool:
        """Whether all prompts of all epochs are done or dropped."""
        return bool(self._ask("finished"))

    @property
    def counts(self) -> dict[str, Any]:
        """Prompts by what became of them; see `Prompts.counts`."""
        found: dict[str, Any] = self._ask("counts")
        return found

    def state_dict(self) -> dict[str, Any]:
        """The owner's state; see `Prompts.state_dict`."""
        found: dict[str, Any] = self._ask("state_dict")
        return found

    def load_state_dict(self, state: Any) -> None:
        """Have the owner go to a saved state: all leases end."""
        self._ask("load_state_dict", state=state)

    def close(self) -> None:
        """End the connection, if there is one.  Prompts stay leased: give them back first, or their time must run out."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client(Calls):
    """Prompts of an owner that is reached over a socket.  Threads may share it; a forked process needs its own."""

    def __init__(self, address: str, *, name: str | None = None, patience: float = 30.0) -> None:
        """name: of the worker, for messages and `back_from`.  patience: seconds to wait for an owner that cannot be reached."""
        found = urlsplit(address)
        if (
            found.scheme != _SCHEME
            or not found.hostname
            or not found.netloc.rpartition(":")[2].isdecimal()
        ):
            shown = f"{found.scheme}://{found.netloc}/…"  # without the secret
            raise LeaseError(
                f"address is {shown!r}, expected the address of a server: {_SCHEME}://host:port/secret"
            )
        self.name = name or f"{platform.node()}-{os.getpid()}"
        self._place = (found.hostname, int(found.netloc.rpartition(":")[2]))
        self._secret = found.path.lstrip("/")
        self._patience = patience
        self._wait = max(1.0, patience)  # seconds for one step of a conversation
        self._process = os.getpid()
        self._id = secrets.token_hex(8)
        self._number = 0
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._session: str | None = None
        self._connect(time.monotonic() + patience)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _ask(self, call: str, **options: Any) -> Any:
        """Have the owner carry out a call; ask again under the same number if the connection is lost."""
        guard_against_fork(self._process, "connect again in this process")
        with self._lock:
            self._number += 1
            message = orjson.dumps({"number": self._number, "call": call, "options": options})
            until = time.monotonic() + self._patience
            while True:
                try:
                    if self._socket is None:
                        self._connect(until)
                    assert self._socket is not None
                    _send(self._socket, message, wait=self._wait)
                    return value_of(orjson.loads(_receive(self._socket, idle=self._wait)))
                except (OSError, _Closed) as error:
                    self.close()
                    if time.monotonic() > until:
                        raise LeaseError(
                            f"{call}: the owner of the prompts does not answer: {error}; it may still carry the call out: give back what "
                            f"this worker has with back_from({self.name!r})"
                        ) from error

    def _connect(self, until: float) -> None:
        """Connect, again and again until the time is over; refuse an owner that was restarted."""
        while True:
            try:
                self._socket = socket.create_connection(self._place, timeout=self._wait)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                hello = orjson.dumps({"secret": self._secret, "client": self._id})
                _send(self._socket, hello, wait=self._wait)
                answer = _receive(self._socket, idle=self._wait)
                session = value_of(orjson.loads(answer), "session")
                break
            except (OSError, _Closed) as error:
                self.close()
                if time.monotonic() > until:
                    host, port = self._place
                    raise LeaseError(
                        f"no owner of prompts answers at {host}:{port} ({error}); start it with serve(prompts), and pass its address"
                    ) from error
                time.sleep(_PAUSE)
            except PenstockError:
                self.close()
                raise
        if self._session not in (None, session):
            self.close()
            raise LeaseError(
                "the owner of the prompts was restarted, so all leases of before are over; make a new client and take prompts again"
            )
        self._session = session


def connect(address: str, *, name: str | None = None, patience: float = 30.0) -> Client:
    """Connect a worker to the owner of prompts; `address` is that of its server."""
    return Client(address, name=name, patience=patience)


def _as_prompt(value: dict[str, Any]) -> Prompt:
    """Make a Prompt of JSON values."""
    where = Where(**value.pop("where"))
    ids = value.pop("input_ids")
    columns = value.pop("columns")
    arrays = {name: np.array(values, dtype) for name, (dtype, values) in columns.items()}
    return Prompt(
        **value,
        input_ids=None if ids is None else np.array(ids[1], ids[0]),
        columns={name: array if array.ndim else array.item() for name, array in arrays.items()},
        find_where=lambda _: where,
    )


def value_of(answer: dict[str, Any], name: str = "value") -> Any:
    """Return the value of an answer, or raise the error in it."""
    if "error" in answer:
        raise getattr(errors, answer["error"], PenstockError)(answer["message"])
    return answer[name]


# Messages


class _Closed(Exception):
    """The other side has closed the connection."""


def _send(peer: socket.socket, message: bytes, *, wait: float = _MESSAGE_SECONDS) -> None:
    peer.settimeout(wait)
    peer.sendall(_HEAD.pack(len(message)) + message)


def _receive(
    peer: socket.socket,
    *,
    most: int = _MOST_BYTES,
    idle: float | None = None,
    deadline: float | None = None,
) -> bytes:
    """Read a message.  idle: seconds until it begins, as long as the peer likes if None.  deadline: until all of it is there."""
    head = _read(peer, _HEAD.size, first_wait=idle, deadline=deadline)
    (size,) = _HEAD.unpack(head)
    if size > most:
        raise _Closed(f"a message of {size:,} bytes, expected at most {most:,}")
    return _read(peer, size, first_wait=_MESSAGE_SECONDS, deadline=deadline)


def _read(
    peer: socket.socket, size: int, *, first_wait: float | None, deadline: float | None
) -> bytes:
    data = bytearray()
    wait = first_wait
    while len(data) < size:
        if deadline is not None:
            wait = deadline - time.monotonic()
            if wait <= 0:
                raise _Closed("the message did not come in time")
        peer.settimeout(wait)
        part = peer.recv(min(size - len(data), 1 << 20))
        if not part:
            raise _Closed("the connection was closed")
        data += part
        wait = _MESSAGE_SECONDS
    return bytes(data)
