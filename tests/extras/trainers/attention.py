"""Attention in float64, over whole rows and over the parts of a context-parallel group, as other projects compute it.

Queries, keys and values are a function of a token's place in the batch, so that parts of rows and whole rows have the same ones.  Ranks are
simulated: each function is given the parts of all ranks, and computes what each rank would from its own part and what it is sent.
"""

import itertools
from typing import Any

import torch

HEADS, SIZE = 4, 8
Part = dict[str, Any]  # the arrays of one rank's batch, as tensors


def projections(num_rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries, keys and values: (rows, length, heads, size)."""
    generator = torch.Generator().manual_seed(7)
    shape = (3, num_rows, length, HEADS, SIZE)
    query, key, value = torch.randn(shape, generator=generator, dtype=torch.float64)
    return query, key, value


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sees: torch.Tensor) -> Any:
    """Return the output and the log-sum-exp of scores: (tokens, heads, size) and (tokens, heads); sees: (tokens, keys)."""
    scores = torch.einsum("qhs,khs->hqk", query, key) / SIZE**0.5
    scores = scores.masked_fill(~sees, -torch.inf)
    log_sum = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - log_sum[..., None]).nan_to_num(0.0)
    return torch.einsum("hqk,khs->qhs", weights, value), log_sum.T


def merge(results: list[Any]) -> torch.Tensor:
    """Return the output over all keys from outputs over some of them."""
    logs = torch.stack([log_sum for _, log_sum in results])
    shares = torch.softmax(logs, dim=0)
    outputs = torch.stack([output for output, _ in results])
    return (outputs * shares[..., None]).sum(0)


def whole_rows(documents: torch.Tensor) -> torch.Tensor:
    """Attention within documents, each token sees itself and those before it; documents: (rows, length)."""
    rows = []
    for row, (query, key, value) in enumerate(zip(*projections(*documents.shape), strict=True)):
        places = torch.arange(len(query))
        same = documents[row][:, None] == documents[row][None, :]
        rows.append(attend(query, key, value, same & (places[:, None] >= places[None, :]))[0])
    return torch.stack(rows)


def _own(part: Part, values: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of values of whole rows."""
    places = part["row_places"][..., None, None].expand(-1, -1, *values.shape[2:])
    return values.gather(1, places)


def ring_by_places(parts: list[Part], length: int) -> list[torch.Tensor]:
    """Keys and values go round; a mask comes from places in the row and document numbers alone.  For every way to cut."""
    found = []
    for part in parts:
        rows = []
        projected = projections(len(part["input_ids"]), length)
        for row in range(len(part["input_ids"])):
            query = _own(part, projected[0])[row]
            results = []
            for other in parts:
                key, value = (_own(other, values)[row] for values in projected[1:])
                same = part["seq_idx"][row][:, None] == other["seq_idx"][row][None, :]
                earlier = part["row_places"][row][:, None] >= other["row_places"][row][None, :]
                results.append(attend(query, key, value, same & earlier))
            rows.append(merge(results))
        found.append(torch.stack(rows))
    return found


def zigzag_ring(parts: list[Part], length: int) -> list[torch.Tensor]:
    """The ring of zigzag parts, without any mask but causality: only the borders of the part say where documents are.

    A rank's own keys are causal; of a rank before it, only the first half of each document's part is seen; of a rank after it, only the
    second half of the own queries sees all keys.
    """
    found = []
    for rank, part in enumerate(parts):
        projected = projections(len(part["input_ids"]), length)
        query, *_ = own = [_own(part, values).flatten(0, 1) for values in projected]
        output = torch.zeros_like(query)
        borders = part["cu_seqlens_part"].tolist()
        for first, last in itertools.pairwise(borders):
            half = (last - first) // 2
            size = last - first
            causal = torch.ones(size, size, dtype=torch.bool).tril()
            heads, tails = [], []
            for sender, other in enumerate(parts):
                _, key, value = (
                    _own(other, values).flatten(0, 1)[first:last] for values in projected
                )
                if sender == rank:
                    result = attend(own[0][first:last], key, value, causal)
                    heads.append(tuple(each[:half] for each in result))
                    tails.append(tuple(each[half:] for each in result))
                elif sender < rank:
                    sees = torch.ones(size, half, dtype=torch.bool)
                    result = attend(own[0][first:last], key[:half], value[:half], sees)
                    heads.append(tuple(each[:half] for each in result))
                    tails.append(tuple(each[half:] for each in result))
                else:
                    sees = torch.ones(half, size, dtype=torch.bool)
                    tails.append(attend(own[0][first + half : last], key, value, sees))
            output[first:last] = torch.cat((merge(heads), merge(tails)))
        found.append(output.reshape(*part["input_ids"].shape, HEADS, SIZE))
    return found


def ulysses(parts: list[Part], length: int) -> list[torch.Tensor]:
    """All-to-all: each rank gets whole rows of some heads, attends within the padded borders, and sends its heads back."""
    size = len(parts)
    of_heads = HEADS // size
    projected = projections(len(parts[0]["input_ids"]), length)
    by_heads = []
    for rank, part in enumerate(parts):
        chosen = slice(rank * of_heads, (rank + 1) * of_heads)
        whole = [
            torch.cat([_own(other, values) for other in parts], dim=1)[:, :, chosen].flatten(0, 1)
            for values in projected
        ]
        output = torch.zeros_like(whole[0])
        borders = part["cu_seqlens_padded"].tolist()
        for first, last in itertools.pairwise(borders):
            causal = torch.ones(last - first, last - first, dtype=torch.bool).tril()
            output[first:last], _ = attend(*(values[first:last] for values in whole), causal)
        by_heads.append(output.reshape(-1, length, of_heads, SIZE))
    together = torch.cat(by_heads, dim=2)
    return list(together.split(length // size, dim=1))
