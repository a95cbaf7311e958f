"""Loaders whose batches are arrays: most of what a loader does has nothing to do with torch, and is tested without it."""

from functools import partial

import penstock as ps

Loader = partial(ps.Loader, output="numpy")
