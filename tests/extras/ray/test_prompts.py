"""Is every prompt of an owner that is a Ray actor trained once, from two nodes, whatever worker or owner is killed?"""

import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
import ray
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import penstock as ps
from penstock.errors import LeaseError
from penstock.extras.ray.prompts import connect, start_owner

from .conftest import Nodes, wait_until

NUM_PROMPTS = 60


class Rollouts:
    """A rollout worker: takes prompts, keeps them, and finishes those of the last call."""

    def __init__(self, owner: Any, name: str) -> None:
        self.client = connect(owner, name=name)
        self.taken: list[Any] = []

    def take(self, count: int) -> list[int]:
        self.taken = self.client.take(count)
        assert all(prompt.record["row"] == prompt.row for prompt in self.taken)
        return [prompt.ordinal for prompt in self.taken]

    def done(self) -> list[int]:
        accepted = self.client.accept(self.taken)
        self.client.done([prompt for prompt in self.taken if prompt.ordinal in accepted])
        return accepted

    def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


def start_workers(owner: Any, *names: str) -> list[Any]:
    """One worker on each node."""
    alive = [
        node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")
    ]
    on = [NodeAffinitySchedulingStrategy(node, soft=False) for node in alive]
    return [
        ray.remote(num_cpus=0, scheduling_strategy=place)(Rollouts).remote(owner, name)
        for name, place in zip(names, on, strict=False)
    ]


@pytest.mark.soak
def test_every_prompt_is_trained_once_though_a_worker_and_the_owner_are_killed(
    connected: Nodes, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"row": row}) + "\n" for row in range(NUM_PROMPTS)))

    def make() -> Any:
        return ps.Prompts(ps.open(path, cache_dir=tmp_path / "cache"), epochs=1, seed=3)

    expected = [(prompt.ordinal, prompt.row) for prompt in make().take(NUM_PROMPTS)]
    trained: Counter[int] = Counter()
    owner = start_owner(make, name="prompts")
    trainer = connect(ray.get_actor("prompts"), name="trainer")
    first, second = start_workers(owner, "first", "second")
    assert len(set(ray.get([first.node.remote(), second.node.remote()]))) == 2
    for worker in (first, second):
        assert ray.get(worker.take.remote(10)) == [*range(trained.total(), trained.total() + 10)]
        trained.update(ray.get(worker.done.remote()))
    lost = ray.get(second.take.remote(10))
    ray.kill(second)
    assert trainer.back_from("second") == lost
    assert ray.get(first.take.remote(5)) == lost[:5]
    trained.update(ray.get(first.done.remote()))
    state = json.loads(json.dumps(trainer.state_dict()))  # the checkpoint, with 25 prompts trained
    ray.get(first.take.remote(7))  # in flight when the owner dies

    ray.kill(owner)
    with pytest.raises(
        LeaseError, match=r"counts: the owner of the prompts has died: .*load the state of the last"
    ):
        wait_until(lambda: not trainer.counts)  # it answers until the kill has arrived
    owner = start_owner(make)
    trainer = connect(owner, name="trainer")
    trainer.load_state_dict(state)
    while not trainer.finished:
        found = trainer.take(8)
        assert [(prompt.ordinal, prompt.row) for prompt in found] == [
            expected[prompt.ordinal] for prompt in found
        ]
        trainer.done(found)
        trained.update(prompt.ordinal for prompt in found)
    assert trained == Counter(range(NUM_PROMPTS)) and trainer.counts["done"] == NUM_PROMPTS
    with pytest.raises(LeaseError, match="prompt 0 is already done"):
        trainer.done([0])


@pytest.mark.soak
def test_a_call_that_is_asked_again_is_not_carried_out_again_and_a_restarted_owner_is_refused(
    connected: Nodes, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"row": row}) + "\n" for row in range(9)))
    cache = tmp_path / "cache"
    owner = start_owner(lambda: ps.Prompts(ps.open(path, cache_dir=cache)), max_restarts=1)
    session = ray.get(owner.session.remote())
    message = orjson.dumps({"number": 1, "call": "take", "options": {"count": 3, "to": "me"}})
    answers = ray.get([owner.ask.remote(session, "client", message) for _ in range(2)])
    assert answers[0] == answers[1] and len(orjson.loads(answers[0])["value"]) == 3
    client = connect(owner, name="other", patience=60)
    assert client.counts["leased"] == 3
    client.close()
    ray.kill(owner, no_restart=False)

    def is_restarted() -> bool:
        with contextlib.suppress(RayActorError):
            return bool(ray.get(owner.session.remote()) != session)
        return False

    wait_until(is_restarted)
    with pytest.raises(
        LeaseError, match="the owner of the prompts was restarted, so all leases of before are over"
    ):
        client.take(1)
    assert connect(owner, patience=60).counts["leased"] == 0
