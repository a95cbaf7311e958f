"""How large a state becomes over many changes of mixture with the default block size."""

import json
from dataclasses import replace

import numpy as np

from penstock.plan.plan import Plan, PlanSource, Position
from penstock.plan.segments import Mixture
from penstock.plan.settings import PlanSettings


def test_the_waiting_samples_of_full_blocks_stay_below_five_bits_each_over_many_changes():
    """Only samples of one block wait, however many changes came before; each costs a few bits."""
    lengths = np.random.default_rng(0).integers(50, 1500, (2, 150_000))
    sources = tuple(
        PlanSource(name=f"{n}", key=f"{n}", shard_sizes=np.full(15, 10_000)) for n in range(2)
    )
    settings = PlanSettings(max_length=4096, weights=("1", "1"), mix_by="samples")
    mixtures, start, position = (
        [Mixture(sources=sources, weights=("1", "1"), mix_by="samples")],
        None,
        Position(),
    )
    plan, sizes = Plan(sources, lambda source, samples: lengths[source][samples], settings), []
    for number in range(14):
        position = plan.step(position, 3000 + 500 * (number % 3), epochs=None).after
        start = plan.blocks.segment_of(position.epoch, position.block).start if number else None
        at = (position.epoch, position.block, position.row)
        mixtures.append(
            replace(mixtures[0], weights=(str(1 + number % 3), "2"), at=at, rows=position.rows)
        )
        plan = Plan(
            sources,
            lambda source, samples: lengths[source][samples],
            settings,
            mixtures=mixtures,
            start=start,
        )
        last = plan.blocks.start_of_last()
        position = Position(epoch=last.first[0], block=last.first[1], rows=position.rows)
        sizes.append(len(json.dumps(last.as_json())))
    assert sizes[0] > 5000, "a cut block has waiting samples"
    assert max(sizes) < 5 * 65_536 / 8 and max(sizes[7:]) < 1.5 * max(sizes[:7]), sizes
