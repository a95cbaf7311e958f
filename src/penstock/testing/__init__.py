"""Contracts for your own source, template, engine, place or training loop.  Call them from your tests; they raise AssertionError.

from penstock.testing import check_resume, check_source

def test_my_source():
    check_source(MySource("some/place"))

def test_my_run_resumes():
    check_resume(lambda rank, world_size: penstock.load("recipe.yaml", rank=rank, world_size=world_size))
"""

from penstock.testing.engine import check_engine
from penstock.testing.place import check_place
from penstock.testing.resume import check_resume
from penstock.testing.source import check_source
from penstock.testing.template import check_template

__all__ = ["check_engine", "check_place", "check_resume", "check_source", "check_template"]
