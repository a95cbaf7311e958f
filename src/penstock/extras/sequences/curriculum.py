"""The order of a curriculum: by the values of columns, with equal ones in an order of their own in each epoch."""

from collections.abc import Sequence

from penstock.errors import SourceError
from penstock.plan.permutation import derive
from penstock.settings import whole_number
from penstock.sources import RowAccess, concat


def curriculum(
    source: RowAccess,
    *columns: str,
    epochs: int = 1,
    seed: int = 0,
    reverse: bool | Sequence[bool] = False,
) -> RowAccess:
    """Return the records of all epochs in order: each epoch sorted by these columns, and records with equal values shuffled.

    Give it to a Loader with `shuffle=False` and `epochs=1`: its state says where it is in all epochs.
    """
    if not columns:
        raise SourceError("curriculum: no column is named, expected one to sort by")
    epochs = whole_number("epochs", epochs, least=1)
    seed = whole_number("seed", seed, least=0)
    orders = [
        source.shuffle(derive(seed, "curriculum", epoch)).sort(*columns, reverse=reverse)
        for epoch in range(epochs)
    ]
    return concat(orders, name=source.name)
