"""The code of each format of traces."""

from functools import partial

from penstock.extras.traces.rows import ANY, open_traces
from penstock.extras.traces.settings import TraceOptions
from penstock.sources.opener import Opener

AGENT_TRACE = Opener(TraceOptions, partial(open_traces, ANY))
CLAUDE_CODE = Opener(TraceOptions, partial(open_traces, "claude_code"))
CODEX = Opener(TraceOptions, partial(open_traces, "codex"))
PI = Opener(TraceOptions, partial(open_traces, "pi"))
DROID = Opener(TraceOptions, partial(open_traces, "droid"))
HERMES = Opener(TraceOptions, partial(open_traces, "hermes"))
ATIF = Opener(TraceOptions, partial(open_traces, "atif"))
HARMONY = Opener(TraceOptions, partial(open_traces, "harmony"))
SWE_SMITH = Opener(TraceOptions, partial(open_traces, "swe_smith"))
