"""A program that holds a Ray cluster of several nodes on the loopback; its parent writes commands to its stdin.

``add DIRECTORY`` starts a node with that directory and prints the process id of its raylet. At the end of stdin
everything ends; if this process is killed, the kernel kills the nodes.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    from ray.cluster_utils import Cluster

    out = os.dup(1)
    os.dup2(2, 1)

    def answer(**facts: object) -> None:
        os.write(out, json.dumps(facts).encode() + b"\n")

    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 0,
            "include_dashboard": False,
            "include_log_monitor": False,
            "no_monitor": True,
            "object_store_memory": 100 << 20,
            "ray_client_server_port": int(sys.argv[1]),
        },
    )
    answer(address=cluster.address)
    for line in sys.stdin:
        _, directory = line.split()
        os.environ["FORKWISE_NODE_DIRECTORY"] = directory
        node = cluster.add_node(num_cpus=2, object_store_memory=100 << 20, wait=True)
        answer(raylet=node.all_processes["raylet"][0].process.pid)
    cluster.shutdown()


if __name__ == "__main__":
    main()
