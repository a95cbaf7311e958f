"""What does a store in a bucket cost?  The first batch of a cold machine, tokens per second, and bytes fetched per epoch by mirror size.

    python benchmarks/remote.py [SHARDS]        60 shards by default; some minutes.  Writes results/remote.md.

The store is moto on this machine, in a process of its own, behind a proxy that adds 20 ms to every request.  A cold machine is a new
process with an empty mirror, which resumes at 90 % of an epoch.  `datasets` streams the same samples from Parquet files on the same
server, by HTTP, with a shuffle buffer of 1,000, and resumes by its own state.  Bytes are those that the proxy sends.  Least recently
used is simulated on the order in which the plan reads shards; ours is measured.
"""

import http.client
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from stand import Page, Verdict, table

SHARDS = int(next((word for word in sys.argv[1:] if word.isdigit()), 60))
ROWS = 500  # samples of a shard, about 500 tokens each
VOCABULARY = 50_000
LATENCY = 0.02  # seconds
REPEAT = 3
EPOCHS = 4
OPTIONS: dict[str, Any] = {"batch_size": 8, "max_length": 4096, "output": "numpy"}
URL = "s3://bkt/cache"
_SIGNED = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


def serve() -> None:
    """Run moto and the proxy in front of it, until the parent is gone; print the proxy's port."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    upstream, sent = moto.get_host_and_port()[1], {"bytes": 0, "requests": 0}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path == "/sent":
                return self._reply(200, [], json.dumps(sent).encode())
            time.sleep(LATENCY)
            skipped = ("content-length", "connection", "transfer-encoding")
            headers = {name: value for name, value in self.headers.items() if name.lower() not in skipped}
            connection = http.client.HTTPConnection("127.0.0.1", upstream)
            connection.request(self.command, self.path, body, headers | {"Content-Length": str(len(body))})
            answer = connection.getresponse()
            data = answer.read()
            connection.close()
            sent["bytes"] += len(data)
            sent["requests"] += 1
            kept = [pair for pair in answer.getheaders() if pair[0].lower() not in (*skipped, "date", "server")]
            told = answer.getheader("Content-Length", "0") if self.command == "HEAD" else str(len(data))
            return self._reply(answer.status, kept, data, told)

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

        def _reply(self, status: int, headers: list[tuple[str, str]], data: bytes, told: str | None = None) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", told or str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that went away
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


def ask(port: int, path: str, method: str = "GET", data: bytes | None = None) -> bytes:
    headers = {"Authorization": _SIGNED, "x-amz-acl": "public-read", "Content-Type": "application/octet-stream"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers, method=method)
    with urllib.request.urlopen(request) as answer:
        return bytes(answer.read())


def sent(port: int) -> dict[str, int]:
    return dict(json.loads(ask(port, "/sent")))


def samples(shard: int) -> list[list[int]]:
    chance = np.random.default_rng(shard)
    return [chance.integers(0, VOCABULARY, int(n)).tolist() for n in chance.integers(300, 700, ROWS)]


def write(folder: Path, port: int) -> None:
    """A store, made locally and copied object by object; and the same samples as Parquet files, one for each shard."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with (folder / "data.jsonl").open("w") as file:
        for shard in range(SHARDS):
            file.writelines(json.dumps({"input_ids": ids}) + "\n" for ids in samples(shard))
    build_store(folder, folder / "local")
    for path in sorted((folder / "local").rglob("*")):
        name = path.relative_to(folder / "local")
        if path.is_file() and name.parts[0] in ("shards", "stores", "digests", "facts", "offsets"):
            ask(port, f"/bkt/cache/{name}", "PUT", path.read_bytes())
    for shard in range(SHARDS):
        out = pa.BufferOutputStream()
        pq.write_table(pa.table({"input_ids": pa.array(samples(shard), pa.list_(pa.uint16()))}), out)
        ask(port, f"/bkt/parquet/{shard:04}.parquet", "PUT", out.getvalue().to_pybytes())


def build_store(folder: Path, where: Any) -> Any:
    import penstock as ps
    from penstock.api import choose_template
    from penstock.cache import Cache
    from penstock.engines import LocalEngine
    from penstock.store import build

    source = ps.open(str(folder / "data.jsonl"), cache_dir=where)
    template = choose_template(source, "pretokenized", None, {"vocab_size": VOCABULARY}, facts=None)
    return build(source, template, engine=LocalEngine(1), cache=Cache(where), shard_rows=ROWS)


def timed(batches: Any) -> dict[str, float]:
    """Seconds to the first batch, and tokens per second of the next ones; a batch is a list or an array of ids."""
    begun = time.perf_counter()
    turns = iter(batches)
    next(turns)
    first, tokens, start = time.perf_counter() - begun, 0, time.perf_counter()
    for batch in turns:
        tokens += batch
    return {"first": first, "tokens_per_second": tokens / (time.perf_counter() - start)}


def run_penstock(folder: Path, share: float) -> dict[str, float]:
    import penstock as ps

    begun = time.perf_counter()
    store = build_store(folder, URL)
    mirror = int(share * sum(entry.num_bytes for entry in store.manifest.shards))
    loader = ps.Loader(store, window=2, block=ROWS, mirror_bytes=mirror, **OPTIONS)
    if (state := folder / "penstock.json").exists():
        loader.load_state_dict(json.loads(state.read_text()))
    opened = time.perf_counter() - begun
    found = timed(int((batch.rows.spans["stop"] - batch.rows.spans["start"]).sum()) for batch in loader)
    return {**found, "first": found["first"] + opened}


def run_datasets(folder: Path, _: float) -> dict[str, float]:
    from datasets import load_dataset

    begun = time.perf_counter()
    urls = [f"{os.environ['AWS_ENDPOINT_URL']}/bkt/parquet/{shard:04}.parquet" for shard in range(SHARDS)]
    data = load_dataset("parquet", data_files=urls, split="train", streaming=True).shuffle(seed=0, buffer_size=1000)
    if (state := folder / "datasets.json").exists():
        data.load_state_dict(json.loads(state.read_text()))
    opened = time.perf_counter() - begun
    found = timed(len(row["input_ids"]) for row in data)
    return {**found, "first": found["first"] + opened}


def save_states(folder: Path, store: Any) -> None:
    """States of both at 90 % of an epoch."""
    from datasets import load_dataset

    import penstock as ps

    loader = ps.Loader(store, window=2, block=ROWS, **OPTIONS)
    for _ in islice(loader, int(0.9 * len(loader))):
        pass
    (folder / "penstock.json").write_text(json.dumps(loader.state_dict()))
    urls = [f"{os.environ['AWS_ENDPOINT_URL']}/bkt/parquet/{shard:04}.parquet" for shard in range(SHARDS)]
    data = load_dataset("parquet", data_files=urls, split="train", streaming=True).shuffle(seed=0, buffer_size=1000)
    for _ in islice(data, int(0.9 * SHARDS * ROWS)):
        pass
    (folder / "datasets.json").write_text(json.dumps(data.state_dict()))


def in_new_process(what: str, folder: Path, share: float, port: int) -> dict[str, float]:
    """Run a contestant in a process of its own, with an empty mirror and cache; add what the proxy sent meanwhile."""
    with tempfile.TemporaryDirectory() as empty:
        words = [sys.executable, __file__, str(SHARDS), "child", what, str(folder), str(share)]
        environment = {**os.environ, "PENSTOCK_MIRROR": empty, "HF_HOME": empty, "HF_DATASETS_CACHE": empty}
        before = sent(port)
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        after = sent(port)
    return {**json.loads(done.stdout.splitlines()[-1]), **{name: after[name] - before[name] for name in after}}


def measured_epochs(folder: Path, share: float) -> float:
    """The part of the store that an epoch fetches, from the second epoch on."""
    import penstock as ps

    with tempfile.TemporaryDirectory() as empty:
        os.environ["PENSTOCK_MIRROR"] = empty
        store = build_store(folder, URL)
        total = sum(entry.num_bytes for entry in store.manifest.shards)
        loader = ps.Loader(store, window=1, block=ROWS, epochs=EPOCHS, mirror_bytes=int(share * total), **OPTIONS)
        read: dict[int, float] = {}
        for _ in loader:
            read.setdefault(loader.state_dict()["epoch"], loader.metrics.as_dict()["remote"]["bytes"])
        last = loader.metrics.as_dict()["remote"]["bytes"]
    return (last - read[1]) / (EPOCHS - 1) / total


def simulated_lru(folder: Path, share: float) -> float:
    import penstock as ps

    store = build_store(folder, folder / "local")
    blocks = ps.Loader(store, window=1, block=ROWS, **OPTIONS).plan.blocks
    held: OrderedDict[int, None] = OrderedDict()
    misses = 0
    for epoch in range(EPOCHS):
        number = 0
        while (shards := blocks.shards(epoch, number)) is not None:
            for _, shard in shards:
                misses += shard not in held and epoch > 0
                held[shard] = None
                held.move_to_end(shard)
                if len(held) > share * SHARDS:
                    held.popitem(last=False)
            number += 1
    return misses / (EPOCHS - 1) / SHARDS


def main() -> None:
    page = Page(
        "remote", "A store in a bucket", packages=["obstore", "moto", "datasets"],
        notes=[f"{SHARDS} shards of {ROWS} samples, about {SHARDS * ROWS * 500:,} tokens; {LATENCY * 1000:.0f} ms added to each request"],
    )  # fmt: skip
    server = subprocess.Popen(
        [sys.executable, __file__, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    port = int(server.stdout.readline())
    os.environ |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_REGION": "us-east-1", "NO_PROXY": "127.0.0.1"}
    os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_EC2_METADATA_DISABLED": "true"}
    ask(port, "/bkt", "PUT")
    with tempfile.TemporaryDirectory() as above:
        folder = Path(above)
        write(folder, port)
        steady = [in_new_process("penstock", folder, 0.25, port), in_new_process("datasets", folder, 0, port)]
        save_states(folder, build_store(folder, folder / "local"))
        cold: dict[str, list[dict[str, float]]] = {"penstock": [], "datasets": []}
        for _ in range(REPEAT):
            for name, found in cold.items():
                found.append(in_new_process(name, folder, 0.25, port))
        shares = {share: (measured_epochs(folder, share), simulated_lru(folder, share)) for share in (0.1, 0.25, 0.5)}
    server.communicate("")
    ours, theirs = (median(each["first"] for each in cold[name]) for name in ("penstock", "datasets"))
    speeds = [each["tokens_per_second"] for each in steady]
    verdicts = [
        Verdict("cold machine at 90 %: seconds to the first batch", f"{ours:.2f} (datasets {theirs:.2f})", "< 3", ours < 3),
        Verdict("an epoch, mirror 25 %: tokens per second", f"{speeds[0]:,.0f} (datasets {speeds[1]:,.0f})", "more", speeds[0] > speeds[1]),
    ]  # fmt: skip
    for share, (found, lru) in shares.items():
        most = 1.1 - share
        question = f"bytes fetched per epoch, of the store's, mirror {share:.0%}"
        verdicts.append(Verdict(question, f"{found:.2f} (LRU {lru:.2f})", f"≤ {most:.2f}", found <= most))

    def row(name: str, value: str, found: list[dict[str, float]]) -> list[str]:
        requests, num_bytes = (median(each[key] for each in found) for key in ("requests", "bytes"))
        return [name, value, f"{requests:.0f}", f"{num_bytes / 1e6:.1f}"]

    resumed = [row(name, f"{median(each['first'] for each in found):.2f}", found) for name, found in cold.items()]
    whole = [row(name, f"{each['tokens_per_second']:,.0f}", [each]) for name, each in zip(cold, steady, strict=True)]
    parts = {
        "Resumed at 90 %, to the end of the epoch": table(
            ["who", "seconds to the first batch", "requests", "MB"], resumed
        ),
        "A whole epoch": table(["who", "tokens per second", "requests", "MB"], whole),
    }
    page.write(verdicts, parts)


if __name__ == "__main__":
    if "serve" in sys.argv:
        serve()
    elif "child" in sys.argv:
        what, where, share = sys.argv[-3:]
        print(json.dumps({"penstock": run_penstock, "datasets": run_datasets}[what](Path(where), float(share))))
    else:
        main()
