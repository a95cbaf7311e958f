"""The batches of a loop, made ahead: steps of the plan → this rank's rows → arrays → stages → batches."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from penstock.loader.batch import Batch
from penstock.loader.collate import Made as Arrays
from penstock.loader.collate import in_turn
from penstock.loader.kind import BatchMaker
from penstock.loader.prefetch import growing, one_by_one, read_ahead
from penstock.loader.run import Run
from penstock.loader.stages import Made, Stage
from penstock.plan.plan import NumberedStep, Position
from penstock.plan.ranks import Share, rank_shares
from penstock.store.supply import Following, Supply
from penstock.types import World

Delivery = tuple[Batch, NumberedStep]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """How the batches of one rank are made."""

    world: World
    open_maker: Callable[[], BatchMaker]  # a maker is for one thread and one loop
    stages: Sequence[Stage]
    supplies: Sequence[Supply]
    at_once: int  # steps that are looked up together
    together: int  # steps that are handed over together by the thread that reads ahead

    def batches(
        self, run: Run, *, prefetch: int, passed: int = 0, every: int = 1
    ) -> Generator[Delivery, None, None]:
        """Yield the batches of the loop from the run's cursor on; a thread makes them `prefetch` steps ahead.

        passed, every: as of `Run.steps`.
        """
        steps = self._made(run, passed=passed, every=every)
        for stage in self.stages:
            steps = stage(steps)
        batches = (
            (Batch(each.arrays, each.share, run.stores, each.step.number, each.trained), each.step)
            for each in steps
        )
        return one_by_one(
            read_ahead(growing(batches, self.together), -(-prefetch // self.together))
        )

    def _made(self, run: Run, *, passed: int, every: int) -> Iterator[Made]:
        """Yield the arrays of this rank's rows: small steps several at once, the very first one alone, so that it comes early."""
        maker = self.open_maker()
        with ExitStack() as stack:
            following = Followings(
                [
                    stack.enter_context(
                        supply.ahead(run.plan, run.cursor.position, run.loop_end(run.cursor))
                    )
                    for supply in self.supplies
                ]
            )
            begin = following.begin if self.supplies else None
            steps = run.steps(passed=passed, every=every, begin=begin)
            for chunk in growing(steps, self.at_once):
                rows = [numbered.step.rows for numbered in chunk]
                shares = rank_shares(rows, self.world, run.plan.settings)
                turns = iter(zip(shares, chunk, strict=True))
                for arrays_of_steps in in_turn(maker, [share.rows for share in shares]):
                    arrays_of_steps.reverse()
                    while arrays_of_steps:
                        # keep no reference: memory that the consumer releases can be used again
                        yield _made_of(arrays_of_steps, *next(turns))
                following.chunk_made()


def _made_of(arrays_of_steps: list[Arrays], share: Share, step: NumberedStep) -> Made:
    arrays, trained = arrays_of_steps.pop()
    return Made(arrays, share, step, trained)


class Followings:
    """Tells all supplies of a loop where it is."""

    def __init__(self, followings: Sequence[Following]) -> None:
        self._followings = followings
        self._block: tuple[int, int] | None = None

    def begin(self, position: Position) -> None:
        """Say that the next step begins here; only a new block is passed on."""
        block = (position.epoch, position.block)
        if block == self._block:
            return
        self._block = block
        for following in self._followings:
            following.begin(position)

    def chunk_made(self) -> None:
        """Say that all steps up to here are made."""
        for following in self._followings:
            following.chunk_made()
