"""The formats of agent traces.  They are opened by name: their files are called .jsonl or .json, as others are."""

from penstock.sources.formats import Format

_CODE = "penstock.extras.traces.openers"

AGENT_TRACE = Format(name="agent_trace", code=f"{_CODE}:AGENT_TRACE", aliases=("agent_traces",))
CLAUDE_CODE = Format(name="claude_code", code=f"{_CODE}:CLAUDE_CODE")
CODEX = Format(name="codex", code=f"{_CODE}:CODEX")
PI = Format(name="pi", code=f"{_CODE}:PI")
DROID = Format(name="droid", code=f"{_CODE}:DROID")
HERMES = Format(name="hermes", code=f"{_CODE}:HERMES")
ATIF = Format(name="atif", code=f"{_CODE}:ATIF")
HARMONY = Format(name="harmony", code=f"{_CODE}:HARMONY")
SWE_SMITH = Format(name="swe_smith", code=f"{_CODE}:SWE_SMITH")
HARBOR = Format(
    name="harbor",
    code="penstock.extras.traces.harbor:HARBOR_TASKS",
    folder="penstock.extras.traces.harbor:is_harbor_folder",
    marks=("task.toml", "dataset.toml", "registry.json"),
)
