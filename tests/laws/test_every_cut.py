"""Law 3 without chance: every cut of a 100-step epoch, from every world size to every other."""

from dataclasses import replace

import numpy as np
import pytest

from penstock.plan import PlanSettings, Position

from .worlds import World, as_list, through_json

SIZES = [1, 2, 3, 4, 6, 8]
BATCH = 3


def a_world(last_step: str) -> World:
    rng = np.random.default_rng(0)
    lengths = (rng.integers(0, 60, 3000), rng.integers(1, 200, 700))
    return World(
        lengths,
        100,
        PlanSettings(max_length=64, on_overlong="split", block=900, last_step=last_step),
        2,
    )


def remaining(plan, position: Position, num_rows: int) -> list:
    return [
        row
        for step in plan.steps(start=position, num_rows=num_rows)
        for row in as_list(step.rows)[: step.num_real]
    ]


@pytest.mark.parametrize("before", SIZES)
def test_every_cut_to_every_world_size(before):
    world = a_world("pad")
    num_rows = before * BATCH
    plan = world.plan()
    whole = remaining(plan, Position(), num_rows)
    position, done, cuts = Position(), 0, 0
    while cuts < 100 and (step := plan.step(position, num_rows)) is not None:
        position, done, cuts = through_json(step.after), done + step.num_real, cuts + 1
        for after in SIZES:
            taken, here = [], position
            for _ in range(
                3
            ):  # three steps show the place; what follows is the next cut's business
                if (again := plan.step(here, after * BATCH)) is not None:
                    taken += as_list(again.rows)[: again.num_real]
                    here = again.after
            assert taken == whole[done : done + 3 * after * BATCH]
    assert done == min(cuts * num_rows, len(whole))


@pytest.mark.parametrize("last_step", ["pad", "repeat", "wrap"])
@pytest.mark.parametrize("after", SIZES)
def test_every_cut_to_the_end_of_the_epoch(after, last_step):
    world = replace(a_world(last_step), epochs=1)
    plan = world.plan()
    steps = list(plan.steps(num_rows=24, epochs=1))
    whole = [
        row for step in steps for row in as_list(step.rows)[: step.num_real - step.num_repeated]
    ]
    done = 0
    for step in steps[:100]:
        done += step.num_real - step.num_repeated
        rest = [
            row
            for later in plan.steps(start=step.after, num_rows=after * BATCH, epochs=1)
            for row in as_list(later.rows)[: later.num_real - later.num_repeated]
        ]
        assert rest == whole[done:]
