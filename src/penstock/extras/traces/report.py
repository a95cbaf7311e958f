"""What `check` says about sessions of agents: secrets that were found, and what of the sessions is left out."""

from collections import Counter
from collections.abc import Iterator

from penstock.extras.traces.rows import TraceReader
from penstock.report.checks import Inspection, Verdict
from penstock.words import plural


def check_traces(data: Inspection) -> Iterator[Verdict]:
    """Which secrets do the sessions hold, and what of them is left out?  Only about traces."""
    reader = getattr(data.source, "reader", None)
    if not isinstance(reader, TraceReader):
        return
    secrets: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    rows = []
    for row in data.encoded.rows:
        record = data.source[row]
        secrets.update(record.get("secrets", {}))
        left_out.update(record.get("left_out", {}))
        if "secrets" in record:
            rows.append(row)
    if secrets:
        kept = reader.options.secrets == "keep"
        what = "kept, and the model learns them" if kept else "masked"
        why = f"{plural(secrets.total(), 'secret')} in the checked sessions, {what}: {_listed(secrets)}"
        yield data.verdict("secrets", "warn" if kept else "ok", why, rows)
    if left_out:
        why = f"{plural(left_out.total(), 'event')} of the checked sessions left out: {_listed(left_out)}"
        yield data.verdict("traces", "ok", why)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{kind} {count:,}" for kind, count in counts.most_common())
