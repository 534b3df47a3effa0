#!/usr/bin/env python3
"""The table of docs/scaling.md: a synthetic checkpoint quantized by one process and by Ray on 1, 2 and 4 local nodes, once with a worker killed.

    PYTHONPATH=build/python .venv/bin/python tools/dev/measure_ray.py PLACE [--gib 8] [--shards 16] [--scheme int4:block128]

Every output must have the bytes of the single process. PLACE needs room for the checkpoint and twice its quantized size.
"""
import argparse
import hashlib
import json
import os
import pathlib
import shutil
import signal
import sys
import threading
import time

import ml_dtypes
import numpy as np

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import ray
from ray.cluster_utils import Cluster as Nodes

import narrow
from narrow.ray import connect, quantize_checkpoint

LOOPBACK = "127.0.0.2"  # Ray takes 127.0.0.1 for a name of the outer address
WIDTH = 8192


def write_checkpoint(place, gib, shards):
    """bf16 weights [8192, 8192], 128 MiB each."""
    place.mkdir(parents=True)
    random, weight_map = np.random.default_rng(0), {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        names = [f"model.layers.{i}.mlp.{part}_proj.weight" for part in range(max(1, gib * 8 // shards))]
        tensors = {name: (random.standard_normal((WIDTH, WIDTH), dtype=np.float32) / 16).astype(ml_dtypes.bfloat16) for name in names}
        narrow.write_safetensors(place / file, tensors, {"format": "pt"})
        weight_map.update(dict.fromkeys(names, file))
    (place / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (place / "config.json").write_text('{"model_type": "llama"}')
    return sum(path.stat().st_size for path in place.iterdir())


def digests(directory):
    return {path.name: hashlib.blake2b(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def kill_a_worker(after):
    """SIGKILL for one of Ray's workers that is at work, some seconds from now."""

    def kill():
        time.sleep(after)
        while True:
            for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    name = entry.read_bytes()
                except OSError:
                    continue
                if name.startswith(b"ray::write_shard"):  # Ray's own agents have names of this kind too
                    os.kill(int(entry.parent.name), signal.SIGKILL)
                    return
            time.sleep(0.05)

    threading.Thread(target=kill, daemon=True).start()


def on_nodes(count, source, output, scheme, kill_after=None):
    made = Nodes(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "node_ip_address": LOOPBACK})
    try:
        for _ in range(count - 1):
            made.add_node(num_cpus=1, node_ip_address=LOOPBACK)
        ray.init(address=made.address, logging_level="error", log_to_driver=False, _node_ip_address=LOOPBACK)
        with connect("current") as cluster:
            if kill_after is not None:
                kill_a_worker(kill_after)
            begin = time.monotonic()
            report = quantize_checkpoint(source, output, scheme, cluster=cluster)
            return time.monotonic() - begin, report
    finally:
        ray.shutdown()
        made.shutdown()


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("place", type=pathlib.Path)
    options.add_argument("--gib", type=int, default=8)
    options.add_argument("--shards", type=int, default=16)
    options.add_argument("--scheme", default="int4:block128")
    given = options.parse_args()
    source, one, many = given.place / "in", given.place / "one", given.place / "many"
    size = write_checkpoint(source, given.gib, given.shards)
    begin = time.monotonic()
    narrow.quantize_checkpoint(source, one, given.scheme)
    rows = [("one process", time.monotonic() - begin, "")]
    expected = digests(one)
    slowest = rows[0][1]
    for label, count, kill_after in [("Ray, 1 node", 1, None), ("Ray, 2 nodes", 2, None), ("Ray, 4 nodes", 4, None),
                                     ("Ray, 2 nodes, a worker killed", 2, slowest / 4), ("Ray, 4 nodes, a worker killed", 4, slowest / 4)]:  # fmt: skip
        seconds, report = on_nodes(count, source, many, given.scheme, kill_after)
        same = digests(many) == expected
        rows.append((label, seconds, f"{'identical' if same else 'DIFFERENT'}, {report['lost']} lost"))
        shutil.rmtree(many)
        if not same or report["lost"] != (kill_after is not None):
            print(f"{label}: the bytes are {'' if same else 'not '}those of one process, {report['lost']} workers were lost", file=sys.stderr)
            return 1
    print(f"{size / 1e9:.2f} GB in {given.shards} shards to {given.scheme}, {os.cpu_count()} cores")
    for label, seconds, result in rows:
        print(f"{label:32} {seconds:7.1f} s {size / seconds / 1e6:7.0f} MB/s {rows[1][1] / seconds:5.2f} of one worker  {result}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
