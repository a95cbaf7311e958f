"""A process that starts and ends the nodes of a Ray cluster, as its input says: one JSON value a line, answered by one.

It is a process of its own because Ray leaves files open and changes the environment.  The cluster ends with the input.
"""

import json
import sys
from typing import Any

import psutil
from ray.cluster_utils import Cluster

TRIES = 4  # to start a node: Ray gives up after 30 s, which a busy machine may need


def add(cluster: Cluster, options: dict[str, Any]) -> Any:
    """Start a node.  Where Ray fails, what it has started ends, so that it cannot join later, and the start is tried again."""
    for left in reversed(range(TRIES)):
        before, head, others = (
            set(psutil.Process().children()),
            cluster.head_node,
            set(cluster.worker_nodes),
        )
        try:
            return cluster.add_node(node_ip_address="127.0.0.2", **options)
        except Exception as error:
            cluster.head_node, cluster.worker_nodes = head, others
            begun = set(psutil.Process().children()) - before
            for process in begun:
                process.kill()
            psutil.wait_procs(begun)
            if not left:
                raise
            print(f"Ray did not start a node, once more: {error}", file=sys.stderr, flush=True)
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
            if not asked.get(
                "kill"
            ):  # until also nodes that were killed before are known to be dead
                cluster.wait_for_nodes(120)
            print(json.dumps({"number": len(nodes) - 1, "address": cluster.address}), flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
