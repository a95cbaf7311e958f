"""A Ray actor that owns Prompts, shared by many rollout workers.  Needs the extra `ray`.

    owner = start_owner(lambda: ps.Prompts("rl.yaml", repeats=8))     # the handle of an actor: pass it to the workers
    client = connect(owner, name="rollout-3")                         # in a worker: the calls of Prompts

Calls are numbered as over a socket (`server.py`): after a lost answer the client asks again, and no call is carried out twice.
"""

import os
import platform
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

try:
    import ray
except ModuleNotFoundError as missing:
    from penstock.errors import LeaseError

    raise LeaseError(
        f"penstock.extras.ray.prompts needs Ray ({missing}); install it: pip install 'penstock[ray]'"
    ) from missing
import orjson
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError

from penstock.errors import LeaseError
from penstock.extras.ray.cluster import options_of_init
from penstock.extras.rl.prompts import Prompts, guard_against_fork
from penstock.extras.rl.server import Calls, PromptOwner, value_of

_RESTARTED = "the owner of the prompts was restarted, so all leases of before are over; connect again and take prompts again"


class _Owner(PromptOwner):
    """The actor."""

    def __init__(self, make: Callable[[], Prompts]) -> None:
        super().__init__(make())

    def session(self) -> str:
        return self._session

    def ask(self, session: str, client: str, message: bytes) -> bytes:
        if session != self._session:
            return orjson.dumps({"error": "LeaseError", "message": _RESTARTED})
        return self._answer(client, orjson.loads(message))


def start_owner(make: Callable[[], Prompts], **options: Any) -> Any:
    """Start an actor that owns the prompts which `make` opens, on its node; return its handle.

    It runs on the cluster that this process is connected to, else on the one that RAY_ADDRESS names, else on a new one on this machine.
    options: those of a Ray actor, such as name, num_cpus or scheduling_strategy.
    """
    if not ray.is_initialized():  # else Ray would join whatever cluster it finds on this machine
        ray.init(**options_of_init())
    return ray.remote(_Owner).options(**options).remote(make)


class RayClient(Calls):
    """Prompts of an owner that is a Ray actor.  Threads may share it; another process makes its own."""

    def __init__(self, owner: Any, *, name: str | None = None, patience: float = 30.0) -> None:
        """name: of the worker, for messages and `back_from`.  patience: seconds to wait for an owner that cannot be reached."""
        self.name = name or f"{platform.node()}-{os.getpid()}"
        self._owner = owner
        self._patience = patience
        self._process = os.getpid()
        self._id = secrets.token_hex(8)
        self._number = 0
        self._lock = threading.Lock()
        self._session: str = self._get("connect", owner.session.remote)

    def _ask(self, call: str, **options: Any) -> Any:
        guard_against_fork(self._process, "connect again in this process")
        with self._lock:
            self._number += 1
            message = orjson.dumps({"number": self._number, "call": call, "options": options})
            answer = self._get(
                call, lambda: self._owner.ask.remote(self._session, self._id, message)
            )
            return value_of(orjson.loads(answer))

    def _get(self, call: str, ask: Callable[[], Any]) -> Any:
        """Ask until there is an answer; raise LeaseError if the owner has died, or cannot be reached in time."""
        until = time.monotonic() + self._patience
        while True:
            try:
                return ray.get(ask(), timeout=max(1.0, until - time.monotonic()))
            except ActorDiedError as error:
                raise LeaseError(
                    f"{call}: the owner of the prompts has died: {' '.join(str(error).split())}; start another one, load the state of "
                    f"the last checkpoint, and connect again"
                ) from error
            except (ActorUnavailableError, GetTimeoutError) as error:
                if time.monotonic() > until:
                    raise LeaseError(
                        f"{call}: the owner of the prompts does not answer: {error}; it may still carry the call out: give back what "
                        f"this worker has with back_from({self.name!r})"
                    ) from error


def connect(owner: Any, *, name: str | None = None, patience: float = 30.0) -> RayClient:
    """Connect a worker to the owner of prompts, the handle that `start_owner` returned."""
    return RayClient(owner, name=name, patience=patience)
