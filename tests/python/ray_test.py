"""Quantizing and calibrating on Ray: the bytes of one process, whatever the number of workers and whoever dies."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install narrow[ray]")

import narrow
from narrow import _core, stores
from narrow.errors import InvalidArgument, IoError, Unsupported
from narrow.ray import Policy, calibrate, connect, quantize_checkpoint
from narrow.ray.fitting import split_text
from narrow.ray.quantization import write_shard

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not find the tests

def contents(directory):
    return {path.name: path.read_bytes() for path in pathlib.Path(directory).iterdir()}


def write_sharded(place, shards=6, rows=256, cols=512):
    """A checkpoint of some shards with an index and side files."""
    place.mkdir()
    random, weight_map = np.random.default_rng(0), {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        tensors = {
            f"model.layers.{i}.{part}_proj.weight": random.standard_normal((rows + 32 * i, cols), dtype=np.float32) for part in ("up", "down")
        }
        tensors[f"model.layers.{i}.norm.weight"] = np.ones(cols, np.float32)
        narrow.write_safetensors(place / file, tensors, {"format": "pt"})
        weight_map.update({name: file for name in tensors})
    (place / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (place / "config.json").write_text('{"model_type": "llama"}')
    (place / "tokenizer.json").write_text("{}")
    (place / "pytorch_model.bin").write_bytes(b"not for us")
    return place


def write_decoder(place, hidden=64, intermediate=128, layers=2, vocabulary=96):
    """A small Llama with random weights."""
    place.mkdir()
    random = np.random.default_rng(1)
    values = lambda *shape: (random.standard_normal(shape) / 8).astype(np.float32)  # noqa: E731
    tensors = {"model.embed_tokens.weight": values(vocabulary, hidden), "lm_head.weight": values(vocabulary, hidden)}
    tensors["model.norm.weight"] = np.ones(hidden, np.float32)
    for i in range(layers):
        layer = f"model.layers.{i}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}.{norm}.weight"] = np.ones(hidden, np.float32)
        for part in "qkvo":
            tensors[f"{layer}.self_attn.{part}_proj.weight"] = values(hidden, hidden)
        for part in ("gate", "up"):
            tensors[f"{layer}.mlp.{part}_proj.weight"] = values(intermediate, hidden)
        tensors[f"{layer}.mlp.down_proj.weight"] = values(hidden, intermediate)
    narrow.write_safetensors(place / "model.safetensors", tensors, {"format": "pt"})
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": hidden, "intermediate_size": intermediate,
              "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": vocabulary, "rms_norm_eps": 1e-5,
              "max_position_embeddings": 512, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False}  # fmt: skip
    (place / "config.json").write_text(json.dumps(config))
    return place


def random_windows(count, length, vocabulary=96):
    return np.random.default_rng(2).integers(0, vocabulary, (count, length)).tolist()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_decoder(tmp_path_factory.mktemp("decoder") / "in")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_sharded(tmp_path_factory.mktemp("ray") / "in")


@pytest.fixture(scope="module")
def nodes():
    """A cluster of two nodes with two workers each."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster as Nodes

    loopback = "127.0.0.2"  # Ray takes 127.0.0.1 for a name of the outer address
    made = Nodes(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False, "node_ip_address": loopback})
    made.add_node(num_cpus=2, node_ip_address=loopback)
    ray.init(address=made.address, logging_level="error", log_to_driver=False, _node_ip_address=loopback)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def cluster(nodes):
    with connect("current") as opened:
        assert opened.slots() == 4
        yield opened


def test_the_bytes_of_one_process(source, cluster, tmp_path):
    rules = {"re:.*down_proj": "fp8_e4m3:row"}
    one = narrow.quantize_checkpoint(source, tmp_path / "one", "int4:block128:asym", rules=rules)
    many = quantize_checkpoint(source, tmp_path / "many", "int4:block128:asym", rules=rules, cluster=cluster)
    assert contents(tmp_path / "many") == contents(tmp_path / "one")
    assert many["tensors"] == one["tensors"] and many["sqnr_db"] == one["sqnr_db"]
    assert many["workers"] == 4 and many["lost"] == 0
    assert narrow.verify_checkpoint(tmp_path / "many").problems == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["many", "one"]


def mortal_shard(place_of_pids, *arguments):
    """write_shard, but the first worker to take a shard waits to be killed."""
    try:
        os.close(os.open(f"{place_of_pids}/first", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return write_shard(*arguments)
    pathlib.Path(f"{place_of_pids}/{os.getpid()}.pid").touch()
    time.sleep(120)
    return write_shard(*arguments)


class Mortal:
    """A cluster whose first task is killed with SIGKILL in its middle."""

    def __init__(self, cluster, place):
        self._cluster, self._place = cluster, place

    def slots(self):
        return self._cluster.slots()

    def pool(self, work, arguments):
        assert work is write_shard
        threading.Thread(target=self._kill, daemon=True).start()
        return self._cluster.pool(mortal_shard, lambda task, attempt: (str(self._place), *arguments(task, attempt)))

    def _kill(self):
        while not (found := list(self._place.glob("*.pid"))):
            time.sleep(0.05)
        os.kill(int(found[0].stem), signal.SIGKILL)


def test_a_worker_killed_in_the_middle_changes_nothing(source, cluster, tmp_path):
    (tmp_path / "pids").mkdir()
    narrow.quantize_checkpoint(source, tmp_path / "one", "nvfp4")
    many = quantize_checkpoint(source, tmp_path / "many", "nvfp4", cluster=Mortal(cluster, tmp_path / "pids"))
    assert many["lost"] == 1 and many["attempts"] == 7
    assert contents(tmp_path / "many") == contents(tmp_path / "one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["many", "one", "pids"]


def test_an_error_leaves_nothing(source, cluster, tmp_path):
    with pytest.raises(InvalidArgument, match="is the input itself"):
        quantize_checkpoint(source, source, "int8:row", cluster=cluster)
    broken = tmp_path / "broken"
    broken.mkdir()
    narrow.write_safetensors(broken / "model.safetensors", {"model.layers.9.up_proj.weight": np.full((32, 64), np.nan, np.float32)})
    with pytest.raises(InvalidArgument, match="has NaN at element 0"):
        quantize_checkpoint(broken, tmp_path / "out", "int8:row", cluster=cluster)
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]


def test_a_worker_must_see_the_same_checkpoint(source, tmp_path):
    recipe = _core.recipe_json("int8:row", [], ["lm_head"], [])
    with pytest.raises(InvalidArgument, match="a worker sees another checkpoint"):
        write_shard(str(source), recipe, "0123456789abcdef", 0, str(tmp_path), "", None)


def test_statistics_to_the_last_bit(model, cluster, tmp_path):
    windows = random_windows(100, 256)
    assert len(_core.text_chunks(windows)) == 4  # one for each worker
    one, many = narrow.calibrate(model, windows, True), calibrate(model, windows, True, cluster=cluster)
    one.save(tmp_path / "one.safetensors")
    many.save(tmp_path / "many.safetensors")
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "many.safetensors").read_bytes()


def test_a_text_is_cut_the_same_in_parts():
    windows = [[0] * length for length in (100, 9000, 4000, 4000, 4000, 8192, 1, 8191, 2, 5000)]
    whole = [windows[a:b] for a, b in _core.text_chunks(windows)]
    for parts in (1, 2, 3, 4, 100):
        split = split_text(windows, parts)
        assert sum(split, []) == windows
        assert sum(([part[a:b] for a, b in _core.text_chunks(part)] for part in split), []) == whole


@pytest.mark.parametrize("method", ["gptq", "correct+gptq+clip"])
def test_methods_have_the_bytes_of_one_process(model, cluster, tmp_path, method):
    windows = random_windows(100, 256)
    options = {"method": method, "windows": windows, "rules": {"lm_head": "int8:row"}, "ignore": []}
    narrow.quantize_checkpoint(model, tmp_path / "one", "int4:block32", **options)
    many = quantize_checkpoint(model, tmp_path / "many", "int4:block32", cluster=cluster, **options)
    assert contents(tmp_path / "many") == contents(tmp_path / "one")
    assert len(many["modules"]) == len(many["tensors"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["many", "one"]


def test_other_stores(source, cluster, tmp_path):
    fsspec = pytest.importorskip("fsspec")
    narrow.quantize_checkpoint(source, tmp_path / "one", "int8:row")
    quantize_checkpoint(f"file://{source}", f"file://{tmp_path}/many", "int8:row", cluster=cluster)
    assert contents(tmp_path / "many") == contents(tmp_path / "one")
    memory = fsspec.filesystem("memory")
    for path in source.iterdir():
        memory.put_file(str(path), f"/source/{path.name}")

    class Here:
        """Memory is one process's own: the work is done in this one."""

        def slots(self):
            return 1

        def pool(self, work, arguments):
            class Pool:
                slots, now = lambda _: 1, lambda _: time.monotonic()
                submit = lambda _, task, attempt: (task, work(*arguments(task, attempt)))
                wait, result, cancel = lambda _, handles, seconds: handles[:1], lambda _, handle: handle[1], lambda _, handle: None

            return Pool()

    quantize_checkpoint("memory://source", "memory://target", "int8:row", cluster=Here())
    stored = {os.path.basename(name): memory.cat_file(name) for name in memory.find("/target")}
    assert stored == contents(tmp_path / "one")
    with pytest.raises(InvalidArgument, match="memory://target exists and is not empty"):
        quantize_checkpoint("memory://source", "memory://target", "int8:row", cluster=Here())
    with pytest.raises(IoError, match="memory://nowhere"):
        quantize_checkpoint("memory://nowhere", "memory://other", "int8:row", cluster=Here())
    with pytest.raises(Unsupported, match="nosuch://"):
        quantize_checkpoint("nosuch://a", "memory://other", "int8:row", cluster=Here())


def test_an_interrupted_publication_is_no_checkpoint(source):
    pytest.importorskip("fsspec")
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        store = stores.RemoteOutput("memory://half", pathlib.Path(place))
        stores.publish(source / "config.json", "memory://half")
        store.discard()
        assert not stores._open("memory://half")[0].exists("/half")


def test_the_command_hands_over(source, nodes, tmp_path, bin_dir):
    narrow.quantize_checkpoint(source, tmp_path / "one", "int8:row", ignore=["lm_head"])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [bin_dir / "narrow", "--json", "quantize", source, tmp_path / "many", "int8:row", "--cluster", nodes.address, "--python"]
    done = subprocess.run([*command, sys.executable], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert '"workers": 4' in done.stdout
    assert contents(tmp_path / "many") == contents(tmp_path / "one")
    missing = subprocess.run([*command, tmp_path / "no-python"], capture_output=True, text=True)
    assert missing.returncode == 5 and "cannot be run" in missing.stderr and missing.stderr.count("\n") == 1
    bare = subprocess.run([*command, "python3"], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert bare.returncode == 5 and "needs the Python package narrow" in bare.stderr and bare.stderr.count("\n") == 1
    taken = subprocess.run([*command, sys.executable], env=environment, capture_output=True, text=True, timeout=300)
    assert taken.returncode == 2 and "not empty" in taken.stderr


def test_addresses(nodes):
    for address, words in (("local:0", "local:4 starts four"), ("local:x", "local:4 starts four")):
        with pytest.raises(InvalidArgument, match=words):
            connect(address)
    with pytest.raises(InvalidArgument, match="at least one CPU"):
        connect("local:1", cpus=0)
    assert Policy().attempts == 4
