"""What does a store in a bucket cost?  The first batch of a cold machine, tokens per second, and bytes fetched per epoch by mirror size.

    python benchmarks/remote.py [SHARDS]        60 shards by default; some minutes.  Writes results/remote.md.

The store is moto on this machine, in a process of its own, behind a proxy that adds 20 ms to every request.  A cold machine is a new
process with an empty mirror, which resumes at 90 % of an epoch; the time to its first batch is counted from the start of the process.
All read the same samples from that server, shuffled, and resume by their own states: `datasets` from Parquet files by HTTP, with a shuffle
buffer of 1,000; litdata and mosaicml-streaming from chunks of the size of our shards, with their caches limited as our mirror is, and
no workers; mosaicml-streaming shuffles blocks of two chunks, as our window.  litdata's client is set to allow plain HTTP
(`client_options`).  mosaicml-streaming has an environment of its own (`make .venv-bench-mosaic/.ready`).  Who is not installed, or fails,
is named with the reason.  Bytes are those that the proxy sends.  Least recently used is simulated on the order in which the plan reads
shards; ours is measured.
"""

import http.client
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import OrderedDict
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from contestants import _without_torchvision
from stand import ROOT, Page, Verdict, table

SHARDS = int(next((word for word in sys.argv[1:] if word.isdigit()), 60))
ROWS = 500  # samples of a shard, about 500 tokens each
VOCABULARY = 50_000
LATENCY = 0.02  # seconds
REPEAT = 3
EPOCHS = 4
OPTIONS: dict[str, Any] = {"batch_size": 8, "max_length": 4096, "output": "numpy"}
URL = "s3://bkt/cache"
MOSAIC = ROOT.parent / ".venv-bench-mosaic" / "bin" / "python"
SHARE = 0.25  # of the store that a mirror, or a peer's cache, may hold
PATIENCE = 120  # seconds for one run
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
            headers = {
                name: value for name, value in self.headers.items() if name.lower() not in skipped
            }
            connection = http.client.HTTPConnection("127.0.0.1", upstream)
            connection.request(
                self.command, self.path, body, headers | {"Content-Length": str(len(body))}
            )
            answer = connection.getresponse()
            data = answer.read()
            connection.close()
            sent["bytes"] += len(data)
            sent["requests"] += 1
            kept = [
                pair
                for pair in answer.getheaders()
                if pair[0].lower() not in (*skipped, "date", "server")
            ]
            told = (
                answer.getheader("Content-Length", "0")
                if self.command == "HEAD"
                else str(len(data))
            )
            return self._reply(answer.status, kept, data, told)

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

        def _reply(
            self, status: int, headers: list[tuple[str, str]], data: bytes, told: str | None = None
        ) -> None:
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
    headers = {
        "Authorization": _SIGNED,
        "x-amz-acl": "public-read",
        "Content-Type": "application/octet-stream",
    }
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers, method=method)
    with urllib.request.urlopen(request) as answer:
        return bytes(answer.read())


def sent(port: int) -> dict[str, int]:
    return dict(json.loads(ask(port, "/sent")))


def samples(shard: int) -> list[list[int]]:
    chance = np.random.default_rng(shard)
    return [
        chance.integers(0, VOCABULARY, int(n)).tolist() for n in chance.integers(300, 700, ROWS)
    ]


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
        pq.write_table(
            pa.table({"input_ids": pa.array(samples(shard), pa.list_(pa.uint16()))}), out
        )
        ask(port, f"/bkt/parquet/{shard:04}.parquet", "PUT", out.getvalue().to_pybytes())


def build_store(folder: Path, where: Any) -> Any:
    import penstock as ps
    from penstock.api import choose_template
    from penstock.cache import open_cache
    from penstock.engines import LocalEngine
    from penstock.store import build

    source = ps.open(str(folder / "data.jsonl"), cache_dir=where)
    template = choose_template(source, "pretokenized", None, {"vocab_size": VOCABULARY}, facts=None)
    return build(
        source,
        template,
        engine=LocalEngine(1),
        cache=open_cache(where),
        shard_rows=ROWS,
        shard_bytes=1 << 30,
    )


def timed(batches: Any) -> dict[str, float]:
    """Seconds from the start of the process to the first batch, and tokens per second of the next ones; a batch is its number of tokens."""
    turns = iter(batches)
    next(turns)
    first, tokens, start = time.time() - float(os.environ["BEGUN"]), 0, time.perf_counter()
    for batch in turns:
        tokens += batch
    return {"first": first, "tokens_per_second": tokens / (time.perf_counter() - start)}


def run_penstock(folder: Path, share: float) -> dict[str, float]:
    import penstock as ps

    store = build_store(folder, URL)
    mirror = int(share * sum(entry.num_bytes for entry in store.manifest.shards))
    loader = ps.Loader(store, shuffle_window=2, block=ROWS, mirror_bytes=mirror, **OPTIONS)
    if (state := folder / "penstock.json").exists():
        loader.load_state_dict(json.loads(state.read_text()))
    return timed(
        int((batch.rows.spans["stop"] - batch.rows.spans["start"]).sum()) for batch in loader
    )


def run_datasets(folder: Path, _: float) -> dict[str, float]:
    from datasets import load_dataset

    urls = [
        f"{os.environ['AWS_ENDPOINT_URL']}/bkt/parquet/{shard:04}.parquet"
        for shard in range(SHARDS)
    ]
    data = load_dataset("parquet", data_files=urls, split="train", streaming=True).shuffle(
        seed=0, buffer_size=1000
    )
    if (state := folder / "datasets.json").exists():
        data.load_state_dict(json.loads(state.read_text()))
    return timed(len(row["input_ids"]) for row in data)


def samples_of(shard: int) -> Any:
    for ids in samples(shard):
        yield {"input_ids": np.array(ids, np.uint16)}


def write_litdata(folder: Path) -> None:
    from litdata import optimize

    optimize(
        samples_of,
        list(range(SHARDS)),
        output_dir=str(folder / "litdata"),
        chunk_size=ROWS,
        num_workers=1,
        verbose=False,
    )


def open_litdata(folder: Path, most: int) -> Any:
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    cache = folder / "litdata-cache"  # a state can be loaded only with the same folder
    shutil.rmtree(cache, ignore_errors=True)
    options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"], "region_name": "us-east-1"}
    data = StreamingDataset(
        "s3://bkt/litdata",
        cache_dir=str(cache),
        shuffle=True,
        storage_options=options,
        max_cache_size=most,
    )
    return StreamingDataLoader(data, batch_size=8, collate_fn=list)


def write_mosaic(folder: Path) -> None:
    _without_torchvision()
    from streaming import MDSWriter

    with MDSWriter(
        out=str(folder / "mosaic"), columns={"input_ids": "ndarray:uint16"}, size_limit=1000 * ROWS
    ) as out:
        for shard in range(SHARDS):
            for sample in samples_of(shard):
                out.write(sample)


def open_mosaic(folder: Path, most: int) -> Any:
    _without_torchvision()
    from streaming import StreamingDataLoader, StreamingDataset

    os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]
    options = {
        "batch_size": 8,
        "num_canonical_nodes": 1,
        "shuffle_block_size": 2 * ROWS,
        "cache_limit": most,
    }
    local = f"{os.environ['PENSTOCK_MIRROR']}/mosaic"
    data = StreamingDataset(remote="s3://bkt/mosaic", local=local, shuffle=True, **options)
    return StreamingDataLoader(data, batch_size=8, collate_fn=columns)


def columns(records: list[dict[str, Any]]) -> dict[str, Any]:
    """It counts what it handed over by the length of a batch's first column."""
    return {"input_ids": [record["input_ids"] for record in records]}


def run_peer(name: str, folder: Path, share: float, *, save: bool = False) -> dict[str, float]:
    """An epoch of litdata or mosaicml-streaming, from its state if there is one; `save`: up to 90 %, and write the state."""
    size = sum(path.stat().st_size for path in (folder / name).iterdir())
    loader = {"litdata": open_litdata, "mosaic": open_mosaic}[name](folder, int(share * size))
    state = folder / f"{name}.state.json"
    if save:
        for _ in islice(loader, int(0.9 * SHARDS * ROWS / 8)):
            pass
        state.write_text(json.dumps(loader.state_dict()))
        return {}
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
    return timed(
        sum(
            map(
                len,
                batch["input_ids"] if isinstance(batch, dict) else (x["input_ids"] for x in batch),
            )
        )
        for batch in loader
    )


def save_states(folder: Path, store: Any) -> None:
    """States of both at 90 % of an epoch."""
    from datasets import load_dataset

    import penstock as ps

    loader = ps.Loader(store, shuffle_window=2, block=ROWS, **OPTIONS)
    for _ in islice(loader, int(0.9 * len(loader))):
        pass
    (folder / "penstock.json").write_text(json.dumps(loader.state_dict()))
    urls = [
        f"{os.environ['AWS_ENDPOINT_URL']}/bkt/parquet/{shard:04}.parquet"
        for shard in range(SHARDS)
    ]
    data = load_dataset("parquet", data_files=urls, split="train", streaming=True).shuffle(
        seed=0, buffer_size=1000
    )
    for _ in islice(data, int(0.9 * SHARDS * ROWS)):
        pass
    (folder / "datasets.json").write_text(json.dumps(data.state_dict()))


def in_new_process(what: str, folder: Path, share: float, port: int) -> dict[str, float]:
    """Run a contestant in a process of its own, with an empty mirror and cache; add what the proxy sent meanwhile."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as empty:
        words = [
            str(MOSAIC if "mosaic" in what else sys.executable),
            __file__,
            str(SHARDS),
            "child",
            what,
            str(folder),
            str(share),
        ]
        environment = {
            **os.environ,
            "PENSTOCK_MIRROR": empty,
            "HF_HOME": empty,
            "HF_DATASETS_CACHE": empty,
            "BEGUN": str(time.time()),
        }
        before = sent(port)
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
        after = sent(port)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return {
        **json.loads(done.stdout.splitlines()[-1]),
        **{name: after[name] - before[name] for name in after},
    }


def run_peers(
    folder: Path, port: int, whole: dict[str, Any], cold: dict[str, list[Any]]
) -> list[str]:
    """Measure litdata and mosaicml-streaming; return why each that cannot be measured cannot."""
    problems = []
    for name in ("litdata", "mosaic"):
        try:
            if name == "mosaic" and not MOSAIC.exists():
                raise RuntimeError(f"{MOSAIC.parent.parent.name} is missing")
            in_new_process(f"write-{name}", folder, 0, port)
            for path in (folder / name).iterdir():
                ask(port, f"/bkt/{name}/{path.name}", "PUT", path.read_bytes())
            whole[name] = in_new_process(name, folder, SHARE, port)
            in_new_process(f"save-{name}", folder, SHARE, port)
            cold[name] = [in_new_process(name, folder, SHARE, port) for _ in range(REPEAT)]
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            what = "resuming" if name in whole else "an epoch"
            why = (
                f"no end after {PATIENCE} s"
                if isinstance(error, subprocess.TimeoutExpired)
                else str(error)[:300]
            )
            problems.append(f"{name}: {what}: {why}")
    return problems


def measured_epochs(folder: Path, share: float) -> float:
    """The part of the store that an epoch fetches, from the second epoch on."""
    import penstock as ps

    with tempfile.TemporaryDirectory() as empty:
        os.environ["PENSTOCK_MIRROR"] = empty
        store = build_store(folder, URL)
        total = sum(entry.num_bytes for entry in store.manifest.shards)
        loader = ps.Loader(
            store,
            shuffle_window=1,
            block=ROWS,
            epochs=EPOCHS,
            mirror_bytes=int(share * total),
            **OPTIONS,
        )
        read: dict[int, float] = {}
        for _ in loader:
            read.setdefault(
                loader.state_dict()["epoch"], loader.metrics.as_dict()["remote"]["bytes"]
            )
        last = loader.metrics.as_dict()["remote"]["bytes"]
    return (last - read[1]) / (EPOCHS - 1) / total


def simulated_lru(folder: Path, share: float) -> float:
    import penstock as ps

    store = build_store(folder, folder / "local")
    blocks = ps.Loader(store, shuffle_window=1, block=ROWS, **OPTIONS).plan.blocks
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
        "remote",
        "A store in a bucket",
        packages=["obstore", "moto", "datasets"],
        notes=[
            f"{SHARDS} shards of {ROWS} samples, about {SHARDS * ROWS * 500:,} tokens; {LATENCY * 1000:.0f} ms added to each request",
            "Ours makes packed batches of 8 rows of 4,096 tokens; the others hand over samples as they are, not packed and not collated",
        ],
    )
    server = subprocess.Popen(
        [sys.executable, __file__, "serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    port = int(server.stdout.readline())
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
    }
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    ask(port, "/bkt", "PUT")
    with tempfile.TemporaryDirectory() as above:
        folder = Path(above)
        write(folder, port)
        steady = {
            "penstock": in_new_process("penstock", folder, SHARE, port),
            "datasets": in_new_process("datasets", folder, 0, port),
        }
        save_states(folder, build_store(folder, folder / "local"))
        cold: dict[str, list[dict[str, float]]] = {"penstock": [], "datasets": []}
        for _ in range(REPEAT):
            for name, found in cold.items():
                found.append(in_new_process(name, folder, SHARE, port))
        problems = run_peers(folder, port, steady, cold)
        shares = {
            share: (measured_epochs(folder, share), simulated_lru(folder, share))
            for share in (0.1, 0.25, 0.5)
        }
    server.communicate("")
    firsts = {name: median(each["first"] for each in found) for name, found in cold.items()}
    speeds = {name: each["tokens_per_second"] for name, each in steady.items()}
    ours, others = (
        firsts["penstock"],
        ", ".join(f"{name} {firsts[name]:.2f}" for name in firsts if name != "penstock"),
    )
    speed, rest = (
        speeds["penstock"],
        ", ".join(f"{name} {speeds[name]:,.0f}" for name in speeds if name != "penstock"),
    )
    verdicts = [
        Verdict(
            "cold machine at 90 %: seconds to the first batch",
            f"{ours:.2f} ({others})",
            "< 3",
            ours < 3,
        ),
        Verdict(
            f"an epoch, mirror {SHARE:.0%}: tokens per second",
            f"{speed:,.0f} ({rest})",
            "> datasets",
            speed > speeds["datasets"],
        ),
    ]
    for share, (found, lru) in shares.items():
        most = 1.1 - share
        question = f"bytes fetched per epoch, of the store's, mirror {share:.0%}"
        verdicts.append(
            Verdict(question, f"{found:.2f} (LRU {lru:.2f})", f"≤ {most:.2f}", found <= most)
        )

    def row(name: str, value: str, found: list[dict[str, float]]) -> list[str]:
        requests, num_bytes = (median(each[key] for each in found) for key in ("requests", "bytes"))
        return [name, value, f"{requests:.0f}", f"{num_bytes / 1e6:.1f}"]

    resumed = [
        row(name, f"{median(each['first'] for each in found):.2f}", found)
        for name, found in cold.items()
    ]
    whole = [
        row(name, f"{each['tokens_per_second']:,.0f}", [each]) for name, each in steady.items()
    ]
    parts = {
        "Resumed at 90 %, to the end of the epoch": table(
            ["who", "seconds to the first batch", "requests", "MB"], resumed
        ),
        "A whole epoch": table(["who", "tokens per second", "requests", "MB"], whole),
    }
    if problems:
        parts["Not measured"] = [f"- {each}" for each in problems]
    page.write(verdicts, parts)


if __name__ == "__main__":
    if "serve" in sys.argv:
        serve()
    elif "child" in sys.argv:
        what, where, share = sys.argv[-3:]
        do, _, peer = what.rpartition("-")
        runs: dict[str, Any] = {"penstock": run_penstock, "datasets": run_datasets}
        if do == "write":
            {"litdata": write_litdata, "mosaic": write_mosaic}[peer](Path(where))
            print("{}")
        else:
            run = runs.get(what) or partial(run_peer, peer, save=do == "save")
            print(json.dumps(run(Path(where), float(share))))
    else:
        main()
