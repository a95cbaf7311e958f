"""Make a store in a bucket of a moto server, read it with an empty mirror, and print digests of its batches."""

import json
import logging
import os
import subprocess
import sys
import urllib.request
import warnings
from pathlib import Path

SETTINGS = {
    "AWS_ACCESS_KEY_ID": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "127.0.0.1",
}


def read(folder: Path) -> None:
    """Prepare (a hit, the second time) and read one epoch; print the digest of its batches."""
    import penstock as ps
    from tests.nets.capabilities import batches_digest, common_options

    options = common_options(folder) | {"cache_dir": "s3://nets/cache"}
    store = ps.prepare(folder / "data" / "chat.jsonl", **options)
    loader = ps.Loader(store, batch_size=3, max_length=600, packing="first_fit", output="numpy")
    sys.stdout.write(batches_digest(loader) + "\n")


def main(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages that moto imports
        from moto.server import ThreadedMotoServer
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    port = server.get_host_and_port()[1]
    request = urllib.request.Request(f"http://127.0.0.1:{port}/nets", method="PUT")
    urllib.request.urlopen(request).close()
    digests = {}
    for machine in ("writer", "reader"):
        environment = os.environ | SETTINGS
        environment["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
        environment["PENSTOCK_MIRROR"] = str(folder / f"mirror {machine}")
        command = [sys.executable, "-m", "tests.nets.bucket", "read", str(folder)]
        result = subprocess.run(command, env=environment, capture_output=True, text=True)
        if result.returncode:
            raise SystemExit(result.stderr)
        digests[machine] = result.stdout.splitlines()[-1]
    server.stop()
    sys.stdout.write(json.dumps(digests) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "read":
        read(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]))
