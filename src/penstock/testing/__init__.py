"""Does your own source, template, engine or training loop keep the rules?  Contracts to call from your tests; they raise AssertionError.

from penstock.testing import check_resume, check_source

def test_my_source():
    check_source(MySource("some/place"))

def test_my_run_resumes():
    check_resume(lambda rank, world_size: penstock.load("recipe.yaml", rank=rank, world_size=world_size))
"""

from penstock.testing.engine import check_engine
from penstock.testing.resume import check_resume
from penstock.testing.source import check_source
from penstock.testing.template import check_template

__all__ = ["check_engine", "check_resume", "check_source", "check_template"]
