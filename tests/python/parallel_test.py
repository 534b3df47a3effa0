"""Tensor-parallel layers on gloo: 2 and 4 processes against one device, exactly for integers, within the stated bounds otherwise."""
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist

from narrow.errors import InvalidArgument
from narrow.quantization import dequantize, quantize
from narrow.torch import ColumnParallelLinear, QuantizedLinear, RowParallelLinear
from narrow.torch.parallel import split_columns, split_rows

N, K, TOKENS = 96, 512, 7
WORLD = 4

#: weights, inputs, whether the sums are of integers
LAYERS = [
    ("int8:row", "int8:row:dynamic", True),
    ("int8:tensor", "int8:tensor:static", True),
    ("int4:row", "int8:row:dynamic", True),
    ("int8:row", "", False),
    ("int4:block128:asym", "", False),
    ("int4:block64", "int8:row:dynamic", False),
    ("fp8_e4m3:row", "fp8_e4m3:row:dynamic", False),
    ("nvfp4", "", False),
    ("fp6_e3m2:row", "", False),
]
#: what travels, and the largest relative error of one rounding: half a step of int8 is 1 / 254 of a row's largest value, of e4m3 2^-4 of the
#: value itself where it is normal, which no error of a smaller value exceeds on the scale of the row
TRAVELS = {"int8:row": 1 / 254, "fp8_e4m3:row": 2**-4, "fp8_e5m2:row": 2**-3}


def values(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_layer(weights, inputs):
    linear = torch.nn.Linear(K, N)
    linear.weight.data, linear.bias.data = values(N, K, seed=1) / 8, values(N, seed=2)
    return QuantizedLinear.from_linear(linear, weights, inputs, (0.031, 0) if inputs.endswith("static") else None)


def worker(rank, place):
    """One of four processes; groups of 2 and 4 are made of them. Rank 0 writes what it found."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}/rendezvous", rank=rank, world_size=WORLD)
    found = {}
    with torch.no_grad():
        for ranks in (2, 4):
            groups = [dist.new_group(list(range(first, first + ranks))) for first in range(0, WORLD, ranks)]
            group, part = groups[rank // ranks], rank % ranks
            x = values(2, TOKENS, K, seed=3)
            for weights, inputs, _ in LAYERS:
                whole = make_layer(weights, inputs)
                expected = whole(x)
                columns = ColumnParallelLinear.of(whole, group, gather_output=True)(x)
                rows = RowParallelLinear.of(whole, group, input_is_parallel=False)(x)
                mine = x[..., K // ranks * part : K // ranks * (part + 1)]
                parallel = RowParallelLinear.of(whole, group)(mine)
                found[ranks, weights, inputs] = (expected, columns, rows, parallel)
            whole = make_layer("int8:row", "")
            plain = RowParallelLinear.of(whole, group, input_is_parallel=False)
            partial = whole.weight.dequantize()[:, K // ranks * part : K // ranks * (part + 1)]
            sums = x[..., K // ranks * part : K // ranks * (part + 1)].reshape(-1, K // ranks) @ partial.T
            largest = sums.abs().amax(1, keepdim=True).contiguous()
            dist.all_reduce(largest, group=group)  # the sum over ranks of the largest partial of each row
            for scheme in TRAVELS:
                narrow = RowParallelLinear.of(whole, group, input_is_parallel=False, communicate=scheme)
                gathered = ColumnParallelLinear.of(whole, group, gather_output=True, communicate=scheme)
                found[ranks, scheme] = (plain(x), narrow(x), narrow(x), largest, whole(x), gathered(x))
    if rank == 0:
        torch.save(found, f"{place}/found.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found():
    with tempfile.TemporaryDirectory() as place:
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        processes = [
            subprocess.Popen([sys.executable, __file__, str(rank), place], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for rank in range(WORLD)
        ]
        outputs = [process.communicate(timeout=300)[0].decode() for process in processes]
        assert all(process.returncode == 0 for process in processes), "\n".join(outputs)
        yield torch.load(pathlib.Path(place) / "found.pt")


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("weights, inputs, is_integer", LAYERS)
def test_layers_equal_one_device(found, ranks, weights, inputs, is_integer):
    expected, columns, rows, parallel = found[ranks, weights, inputs]
    assert torch.equal(columns, expected)  # every output is one rank's own
    assert torch.equal(rows, parallel)
    if is_integer:
        assert torch.equal(rows, expected)
    else:
        # Sums of K products in fp32 in two orders: each is within K ulps of the sum of magnitudes.
        layer = make_layer(weights, inputs)
        magnitudes = values(2, TOKENS, K, seed=3).abs() @ layer.weight.dequantize().abs().T + layer.bias.abs()
        # An input that is rounded gives the same codes on every rank, so that no more than the order differs; its values are up to a step larger.
        assert ((rows - expected).abs() <= K * 2**-23 * 1.1 * magnitudes).all()
        assert (rows - expected).abs().max() > 0 or ranks == 1 or inputs


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("scheme", TRAVELS)
def test_sums_that_travel_narrow_stay_within_their_bound(found, ranks, scheme):
    plain, narrow, again, largest, whole, gathered = found[ranks, scheme]
    assert torch.equal(narrow, again)
    bias = make_layer("int8:row", "").bias
    sums = (plain - bias).reshape(-1, N)
    step = TRAVELS[scheme]
    bound = step * largest + step * (sums.abs().amax(1, keepdim=True) + step * largest) + 1e-5
    error = (narrow - plain).reshape(-1, N).abs()
    assert (error <= bound).all()
    assert error.max() > 0  # it was rounded
    outputs = whole.reshape(-1, ranks, N // ranks)
    gather_bound = step * outputs.abs().amax(2, keepdim=True) + 1e-6
    assert ((gathered - whole).reshape(outputs.shape).abs() <= gather_bound).all()
    assert (gathered - whole).abs().max() > 0


@pytest.mark.parametrize("scheme", [weights for weights, _, _ in LAYERS] + ["fp8_e4m3:128x128", "mxfp4", "int1:row"])
def test_parts_are_parts_of_the_whole(scheme):
    q = quantize(values(256, 512, seed=5), scheme)
    whole = dequantize(q)
    for parts in (1, 2):
        rows = torch.cat([dequantize(split_rows(q, parts, part)) for part in range(parts)])
        columns = torch.cat([dequantize(split_columns(q, parts, part)) for part in range(parts)], dim=1)
        assert torch.equal(rows, whole) and torch.equal(columns, whole)


def test_what_cannot_be_cut_is_refused():
    q = quantize(values(96, 384, seed=5), "int4:block128")
    with pytest.raises(InvalidArgument, match="384 inputs do not divide into 2 equal parts of whole 128s"):
        split_columns(q, 2, 0)
    with pytest.raises(InvalidArgument, match="96 outputs do not divide into 5"):
        split_rows(q, 5, 0)
    with pytest.raises(InvalidArgument, match="one fp32 scale per row"):
        ColumnParallelLinear(make_layer("int8:row", ""), None, True, "int8:tensor")
    with pytest.raises(InvalidArgument, match="integer sums are exact"):
        RowParallelLinear(make_layer("int8:row", "int8:row:dynamic"), None, None, True, "int8:row")


if __name__ == "__main__":
    worker(int(sys.argv[1]), sys.argv[2])
