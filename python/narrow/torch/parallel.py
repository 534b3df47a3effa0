"""Tensor-parallel QuantizedLinear for torch.distributed (gloo on CPUs, NCCL on GPUs), for inference.

    up = ColumnParallelLinear.of(layer)      # each process has some outputs
    down = RowParallelLinear.of(layer)       # each process has some inputs; the partial sums are added

What one device would compute is computed exactly where sums are of integers (integer codes whose scales do not change along k): int32
partial sums are added, and scaled once. Other sums differ by the order of fp32 additions.

communicate: a scheme with one scale per row (int8:row, fp8_e4m3:row, fp8_e5m2:row) that what travels is rounded to first, a quarter of the
bytes of fp32. With s the scale of a row and h its largest rounding error (s / 2 for int8):
    all-gather of outputs    |error| <= h of the rank that has the output
    all-reduce of sums       |error| <= sum over ranks of h_rank, plus h of the sum: it is rounded once more on its way back
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .. import _core
from ..errors import InvalidArgument
from ..quantization import QuantizedTensor, matmul, prepare
from .linear import QuantizedLinear, QuantizedWeight
from .ops import scheme_of, split_inputs


def _slice(n: int, parts: int, part: int, unit: int, what: str) -> tuple[int, int]:
    """The part's range of n; every part is as long, and a multiple of what cannot be cut."""
    if n % parts or (n // parts) % unit:
        raise InvalidArgument(f"{n} {what} do not divide into {parts} equal parts of whole {unit}s; use fewer processes or another scheme")
    return n // parts * part, n // parts * (part + 1)


def split_rows(q: QuantizedTensor, parts: int, part: int) -> QuantizedTensor:
    """Some outputs of a weight [n, k]: its rows, with their scales."""
    n, k = q.shape
    grid_rows = q.scheme.grid((n, k))[0]
    tile = q.scheme.tile((n, k))[0] if grid_rows > 1 else 1
    begin, end = _slice(n, parts, part, tile, "outputs")
    grid = slice(begin // tile, end // tile) if grid_rows > 1 else slice(None)
    return _part_of(q, (end - begin, k), q.codes[begin:end], lambda x: x[grid])


def split_columns(q: QuantizedTensor, parts: int, part: int) -> QuantizedTensor:
    """Some inputs of a weight [n, k]: its columns, with their scales; a scale over a whole row is every part's."""
    n, k = q.shape
    bits, grid_cols = q.scheme.element.bits, q.scheme.grid((n, k))[1]
    tile = q.scheme.tile((n, k))[1] if grid_cols > 1 else 1
    begin, end = _slice(k, parts, part, tile, "inputs")
    if q.scheme.row_bytes(k) * 8 != bits * k or begin * bits % 8 or end * bits % 8:
        raise InvalidArgument(f"rows of {k} codes of {bits} bits cannot be cut into {parts} parts of whole bytes; use fewer processes")
    grid = slice(begin // tile, end // tile) if grid_cols > 1 else slice(None)
    return _part_of(q, (n, end - begin), q.codes[:, begin * bits // 8 : end * bits // 8], lambda x: x[:, grid])


def _part_of(q: QuantizedTensor, shape: tuple[int, int], codes: Tensor, cut: Any) -> QuantizedTensor:
    return QuantizedTensor(
        q.scheme,
        shape,
        codes.contiguous(),
        None if q.scales is None else cut(q.scales).contiguous(),
        None if q.zero_points is None else cut(q.zero_points).contiguous(),
        q.outer_scale,
    )


# ---- communication in narrow form ----


class _Rounded:
    """Rows in a scheme with one scale per row: codes and scales in one tensor of bytes, as they travel."""

    def __init__(self, scheme: str):
        form = scheme_of(scheme)
        if not form.has_scales or form.asymmetric or form.has_outer_scale or form.grid((2, 64)) != (2, 1) or form.scale.name != "fp32":
            raise InvalidArgument(f"what travels has one fp32 scale per row and no zero point, as int8:row and fp8_e4m3:row; not {scheme}")
        self.scheme, self.form = str(form), form

    def pack(self, rows: Tensor) -> Tensor:
        codes, scales, _, _ = torch.ops.narrow.quantize(rows, self.scheme, None, None)
        return torch.cat((codes, scales.view(torch.uint8)), dim=1)

    def unpack(self, data: Tensor, n: int) -> Tensor:
        width = self.form.row_bytes(n)
        codes, scales = data[:, :width].contiguous(), data[:, width:].contiguous().view(torch.float32)
        return torch.ops.narrow.dequantize(codes, scales, None, None, self.scheme, [data.shape[0], n], torch.float32)


def _gather(x: Tensor, group: Any) -> list[Tensor]:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return parts


def gather_columns(y: Tensor, group: Any = None, communicate: str = "") -> Tensor:
    """The outputs of all ranks side by side, [..., n * ranks]."""
    rows = y.reshape(-1, y.shape[-1])
    if communicate:
        rounded = _Rounded(communicate)
        parts = [rounded.unpack(part, rows.shape[1]).to(y.dtype) for part in _gather(rounded.pack(rows), group)]
    else:
        parts = _gather(rows, group)
    return torch.cat(parts, dim=1).reshape(*y.shape[:-1], -1)


def reduce_sums(y: Tensor, group: Any = None, communicate: str = "") -> Tensor:
    """The sum over all ranks. Narrow: every rank gets its share of the rows from all, adds them in fp32 in the order of the ranks, and
    sends the sum to all; the same bits everywhere and every time."""
    if not communicate:
        y = y.contiguous()
        dist.all_reduce(y, group=group)
        return y
    ranks, rounded = dist.get_world_size(group), _Rounded(communicate)
    rows = y.reshape(-1, y.shape[-1])
    count, n = rows.shape
    padded = torch.nn.functional.pad(rows, (0, 0, 0, -count % ranks))
    packed = rounded.pack(padded)
    received = torch.empty_like(packed)
    dist.all_to_all_single(received, packed, group=group)
    shares = received.reshape(ranks, -1, packed.shape[1])
    total = rounded.unpack(shares[0], n)
    for share in shares[1:]:
        total = total + rounded.unpack(share, n)
    everyone = torch.cat([rounded.unpack(part, n) for part in _gather(rounded.pack(total), group)])
    return everyone[:count].to(y.dtype).reshape(y.shape)


# ---- layers ----


def _copy_inputs(made: QuantizedLinear, layer: QuantizedLinear) -> None:
    made.input_scale, made.input_zero_point = layer.input_scale, layer.input_zero_point
    made.train(layer.training)


class ColumnParallelLinear(nn.Module):
    """Some outputs of a QuantizedLinear. gather_output: give all ranks all outputs."""

    def __init__(self, layer: QuantizedLinear, group: Any, gather_output: bool, communicate: str):
        super().__init__()
        self.layer, self.group, self.gather_output, self.communicate = layer, group, gather_output, communicate
        if communicate:
            _Rounded(communicate)

    @classmethod
    def of(cls, layer: QuantizedLinear, group: Any = None, gather_output: bool = False, communicate: str = "") -> ColumnParallelLinear:
        """This rank's part of a layer that every rank has whole."""
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        q = split_rows(layer.weight.quantized(), ranks, rank)
        made = QuantizedLinear(layer.in_features, q.shape[0], False, layer.scheme, layer.inputs, device="meta")
        made.weight = QuantizedWeight.of(q)
        if layer.bias is not None:
            made.bias = nn.Parameter(layer.bias.detach()[q.shape[0] * rank : q.shape[0] * (rank + 1)].clone(), requires_grad=False)
        _copy_inputs(made, layer)
        return cls(made, group, gather_output, communicate)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return gather_columns(y, self.group, self.communicate) if self.gather_output else y


def _is_integer(name: str) -> bool:
    return name.startswith(("int", "uint"))


class RowParallelLinear(nn.Module):
    """Some inputs of a QuantizedLinear: y = the sum over ranks of x_rank W_rank^T, plus the bias once.

    input_is_parallel: x is this rank's columns alone, as a ColumnParallelLinear gives them; otherwise it is whole and cut here. Scales of
    inputs that are dynamic by token are those of the whole token: ranks agree on the largest.
    """

    def __init__(self, layer: QuantizedLinear, bias: Tensor | None, group: Any, input_is_parallel: bool, communicate: str):
        super().__init__()
        self.layer, self.group, self.input_is_parallel, self.communicate = layer, group, input_is_parallel, communicate
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)
        rounding, self.is_static = split_inputs(layer.inputs)
        self.rounding = scheme_of(rounding) if layer.inputs else None
        form = scheme_of(layer.scheme)
        varies = form.grid((form.tile((1, 1))[0], 4096))[1] > 1
        self.is_integer = (
            self.rounding is not None and not varies and _is_integer(form.element.name) and _is_integer(self.rounding.element.name)
            and self.rounding.grid((1, 4096)) == (1, 1)
        )  # fmt: skip
        if self.rounding is not None and self.rounding.asymmetric and not self.is_static:
            raise InvalidArgument(f"inputs {layer.inputs}: zero points of whole tokens are known to no rank; use symmetric or static ones")
        if communicate:
            _Rounded(communicate)
            if self.is_integer:
                raise InvalidArgument("integer sums are exact and travel as int32; communicate is for sums in floating point")
        self._prepared: Any = None

    @classmethod
    def of(cls, layer: QuantizedLinear, group: Any = None, input_is_parallel: bool = True, communicate: str = "") -> RowParallelLinear:
        """This rank's part of a layer that every rank has whole."""
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        q = split_columns(layer.weight.quantized(), ranks, rank)
        made = QuantizedLinear(q.shape[1], layer.out_features, False, layer.scheme, layer.inputs, device="meta")
        made.weight = QuantizedWeight.of(q)
        _copy_inputs(made, layer)
        return cls(made, layer.bias, group, input_is_parallel, communicate)

    def _scales_of_tokens(self, rows: Tensor) -> Tensor:
        """One scale per token over all ranks: a scale grows with the largest magnitude, so that the largest of the ranks' scales is the
        whole token's."""
        if self.is_static:
            return self.layer.input_scale.reshape(1, 1)
        scales = torch.ops.narrow.quantize(rows, str(self.rounding), None, None)[1].float().contiguous()
        dist.all_reduce(scales, op=dist.ReduceOp.MAX, group=self.group)
        return scales

    def _integer_sums(self, rows: Tensor, scales: Tensor) -> Tensor:
        """Exact: int32 sums of codes, added over the ranks, then (scale of x * scale of w), as one device does."""
        zero = self.layer.input_zero_point if self.is_static else None
        codes, _, zero_points, _ = torch.ops.narrow.quantize(rows, str(self.rounding), scales, zero)
        if self._prepared is None:
            self._prepared = prepare(self.layer.weight.quantized())
        x = QuantizedTensor(self.rounding, tuple(rows.shape), codes, scales, zero_points if zero_points.numel() else None, 1.0)
        sums = matmul(x, self._prepared, dtype="int32")
        dist.all_reduce(sums, group=self.group)
        return sums.float() * (scales * self.layer.weight.scales.float().reshape(1, -1))

    def _float_sums(self, rows: Tensor) -> Tensor:
        if self.rounding is not None and not self.is_static and self.rounding.grid((1, 4096)) == (1, 1):
            rows = _rounded(rows, self.rounding, self._scales_of_tokens(rows))
            w = self.layer.weight
            y = torch.ops.narrow.linear(rows, w.codes, w.scales, w.zero_points, w.outer_scale, None, w.scheme, "", None, None)
        else:
            y = self.layer(rows)
        return reduce_sums(y.float(), self.group, self.communicate)

    def forward(self, x: Tensor) -> Tensor:
        if not self.input_is_parallel:
            begin, end = _slice(x.shape[-1], dist.get_world_size(self.group), dist.get_rank(self.group), 1, "inputs")
            x = x[..., begin:end]
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        y = self._integer_sums(rows, self._scales_of_tokens(rows)) if self.is_integer and not x.is_cuda else self._float_sums(rows)
        if self.bias is not None:
            y = y + self.bias.float()
        return y.to(x.dtype).reshape(*x.shape[:-1], -1)


def _rounded(rows: Tensor, scheme: _core.Scheme, scales: Tensor) -> Tensor:
    """Inputs rounded with the scales of whole tokens, as values."""
    codes, _, zero_points, _ = torch.ops.narrow.quantize(rows, str(scheme), scales, None)
    return torch.ops.narrow.dequantize(
        codes, scales, zero_points if zero_points.numel() else None, None, str(scheme), list(rows.shape), torch.float32
    )
