"""A process that starts and ends the nodes of a Ray cluster, as its input says: one JSON value a line, answered by one.

It is a process of its own because Ray leaves files open and changes the environment.  The cluster ends with the input.
"""

import json
import sys
from typing import Any

from ray.cluster_utils import Cluster

TRIES = 3  # to start a node: Ray gives up after 30 s, which a busy machine may need


def add(cluster: Cluster, options: dict[str, Any]) -> Any:
    for left in reversed(range(TRIES)):
        try:
            return cluster.add_node(node_ip_address="127.0.0.2", **options)
        except Exception as error:
            if not left or "timed out" not in str(error):
                raise
            print(f"Ray did not start a node in time, once more: {error}", file=sys.stderr, flush=True)
    raise AssertionError


def main() -> None:
    cluster = Cluster(shutdown_at_exit=True)
    nodes: list[Any] = []
    try:
        for line in sys.stdin:
            asked = json.loads(line)
            if "add" in asked:
                nodes.append(add(cluster, asked["add"]))
            else:
                cluster.remove_node(nodes[asked["end"]], allow_graceful=not asked["kill"])
            print(json.dumps({"number": len(nodes) - 1, "address": cluster.address}), flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
