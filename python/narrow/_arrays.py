"""Arrays of numpy, torch and whatever speaks DLPack, borrowed without a copy; results in the framework of the input.

Frameworks are imported when an array of theirs comes along, so that `import narrow` stays quick.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from . import _core
from .errors import InvalidArgument, WrongType

#: narrow's name of an element type (that of safetensors files) by the word that schemes use.
WORDS = {
    "fp32": "F32",
    "fp16": "F16",
    "bf16": "BF16",
    "fp8_e4m3": "F8_E4M3",
    "fp8_e5m2": "F8_E5M2",
    "e8m0": "F8_E8M0",
    "int8": "I8",
    "uint8": "U8",
    "int32": "I32",
}

#: narrow's name by numpy's and torch's.
NAMES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float64": "F64",
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
#: The format of a dtype of ml_dtypes or torch, by its name there.
FORMATS = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "float8_e8m0fnu": "e8m0",
    "float6_e3m2fn": "fp6_e3m2",
    "float6_e2m3fn": "fp6_e2m3",
    "float4_e2m1fn": "fp4_e2m1",
    "float4_e2m1fn_x2": "fp4_e2m1",
    "int8": "int8",
    "int4": "int4",
    "int2": "int2",
}
_FRAMEWORK_NAMES = {name: word for word, name in NAMES.items()}

#: The element type in which scales of a format are stored.
SCALE_NAMES = {"fp32": "F32", "fp16": "F16", "bf16": "BF16", "e8m0": "F8_E8M0", "fp8_e4m3": "F8_E4M3"}


def is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def framework_name(dtype: Any) -> str:
    """The name of a dtype in numpy, ml_dtypes or torch."""
    text = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return text.removeprefix("torch.")


def dtype_name(dtype: Any) -> str:
    """narrow's name of a type given as a word ("bf16"), a name ("BF16"), or a dtype of numpy or torch."""
    if isinstance(dtype, str) and dtype in WORDS:
        return WORDS[dtype]
    text = framework_name(dtype)
    if text in NAMES:
        return NAMES[text]
    if text in _FRAMEWORK_NAMES:
        return text
    raise InvalidArgument(f"dtype {dtype!r} is not known; use one of {', '.join(WORDS)} or a dtype of numpy or torch")


@functools.lru_cache(maxsize=None)
def _is_value_type(dtype: Any) -> bool:
    return framework_name(dtype) in ("float32", "float16", "bfloat16")


def values(caller: str, x: Any) -> Any:
    """An array of fp32, fp16 or bf16, or numbers of Python as one of fp32. Other types are refused: fp64 would be rounded twice, to fp32
    and to a code, and an integer has another meaning here."""
    if not hasattr(x, "shape"):
        import numpy

        if x is None or isinstance(x, (str, bytes)):
            raise WrongType(f"{caller}: the values are an array or numbers, not {x!r}")
        return numpy.asarray(x, dtype=numpy.float32)
    if not hasattr(x, "dtype") and not hasattr(x, "__dlpack__"):
        raise WrongType(f"{caller}: the values are an array of fp32, fp16 or bf16, not a {type(x).__name__}, whose values dequantize gives")
    if hasattr(x, "dtype") and not _is_value_type(x.dtype):
        way = "x.float()" if is_torch(x) else "x.astype(np.float32)"
        raise WrongType(f"{caller}: the values are {framework_name(x.dtype)}, not fp32, fp16 or bf16; round them to fp32 first, {way}")
    return x


@functools.lru_cache(maxsize=None)
def _numpy_dtype(name: str) -> Any:
    import numpy

    word = _FRAMEWORK_NAMES[name]
    if hasattr(numpy, word) and word != "bool":
        return numpy.dtype(getattr(numpy, word))
    import ml_dtypes

    return numpy.dtype(getattr(ml_dtypes, word)) if hasattr(ml_dtypes, word) else numpy.dtype(word)


@functools.lru_cache(maxsize=None)
def torch_dtype(name: str) -> Any:
    """torch's dtype of a name; bytes where this torch has none."""
    import torch

    return getattr(torch, _FRAMEWORK_NAMES[name], torch.uint8)


@functools.lru_cache(maxsize=None)
def torch_dtype_name(dtype: Any) -> str:
    return dtype_name(dtype)


def borrow_torch(x: Any) -> _core.Array:
    """A torch tensor as an array of narrow, which holds it. Quicker than a DLPack capsule, and of no other meaning."""
    return _core.Array.at(
        x.data_ptr(), torch_dtype_name(x.dtype), x.shape, () if x.is_contiguous() else x.stride(), x.device.index if x.is_cuda else -1, x
    )


def borrow_bytes(x: Any) -> _core.Array:
    """A torch tensor's memory without its type and shape: codes, scales and zero points, whose sizes the scheme tells."""
    if not x.is_contiguous():
        x = x.contiguous()
    return _core.Array.bytes_at(x.data_ptr(), x.nbytes, x.device.index if x.is_cuda else -1, x)


@functools.lru_cache(maxsize=None)
def _names_of_numpy(dtype: Any) -> tuple[str, str | None]:
    """narrow's name of a dtype, and the dtype that the library is handed instead where numpy's own are none of these bits."""
    name = dtype_name(dtype)
    if dtype.kind == "V" or dtype.name == "bfloat16" or dtype.name.startswith("float8"):
        return name, "uint16" if dtype.itemsize == 2 else "uint8"
    return name, None


def _borrow_numpy(x: Any) -> _core.Array:
    if not x.dtype.isnative:
        raise InvalidArgument(f"the bytes of an array of {x.dtype.str} are in another machine's order; x.astype(x.dtype.newbyteorder('=')) turns them")
    name, handed = _names_of_numpy(x.dtype)
    return _core.Array(x if handed is None else x.view(handed), name)


def _check_memory(x: Any) -> None:
    """A tensor of another device, or a sparse one, has an address that means nothing here."""
    if x.is_sparse or x.layout != sys.modules["torch"].strided:
        raise InvalidArgument(f"a {x.layout} tensor has no rows of values; make it dense first (x.to_dense())")
    if x.is_meta:
        raise InvalidArgument("a tensor on the device meta has a shape and no values; load it first")
    if x.device.type not in ("cpu", "cuda"):
        raise InvalidArgument(f"narrow reads tensors of cpu and cuda, not of {x.device}; move it first (x.cpu())")


def borrow(x: Any) -> _core.Array:
    """Any array, without a copy; the result keeps it alive."""
    if is_torch(x):
        _check_memory(x)
        return borrow_torch(x.detach())
    if type(x).__module__ != "numpy" and hasattr(x, "__dlpack__"):
        return _core.Array(x)
    import numpy

    return _borrow_numpy(x if isinstance(x, numpy.ndarray) else numpy.asarray(x, dtype=None if hasattr(x, "dtype") else numpy.float32))


def maybe_borrow(x: Any) -> _core.Array | None:
    return None if x is None else borrow(x)


def bytes_of(x: Any) -> bytes:
    """A copy of an array's memory, row by row."""
    if is_torch(x):
        import torch

        return x.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
    import numpy

    return numpy.asarray(x).tobytes()


def empty(shape: tuple[int, ...], name: str, like: Any) -> Any:
    """Uninitialised memory in the framework (and on the device) of `like`; numpy for arrays that only speak DLPack."""
    if is_torch(like):
        import torch

        return torch.empty(shape, dtype=torch_dtype(name), device=like.device)
    import numpy

    return numpy.empty(shape, _numpy_dtype(name))


def to_framework(array: _core.Array, like: Any) -> Any:
    """An array that narrow allocated, in the framework of `like`, without a copy."""
    if is_torch(like):
        import torch

        made = torch.from_dlpack(array)
        wanted = torch_dtype(array.dtype)
        return made if made.dtype == wanted else made.view(wanted)
    import numpy

    if array.dtype == "BF16":  # numpy reads no bf16 through DLPack, but it does by its own dtype over the bytes
        return _numpy_bf16(array)
    made = numpy.asarray(array.exported())
    wanted = _numpy_dtype(array.dtype)
    return made if made.dtype == wanted else made.view(wanted)


def _numpy_bf16(array: _core.Array) -> Any:
    import numpy

    return numpy.asarray(array.as_words().exported()).view(_numpy_dtype("BF16"))


def bytes_array(name: str, x: Any, like: Any) -> Any:
    """Whole numbers from 0 to 255, as an array or as Python has them, as bytes in the framework of `like`."""
    if is_torch(like):
        import torch

        made, byte = torch.as_tensor(x, device=like.device), torch.uint8
        is_whole = not made.is_floating_point() and not made.is_complex()
        made = made if made.dtype == byte or not is_whole else made.to(torch.int64)
    else:
        import numpy

        made, byte = numpy.asarray(x), numpy.uint8
        is_whole = made.dtype.kind in "iu"
    if not is_whole or (made.dtype != byte and bool(((made < 0) | (made > 255)).any())):
        raise InvalidArgument(f"{name} are whole numbers from 0 to 255")
    return made.to(byte).contiguous() if is_torch(made) else made.astype(byte, order="C")


def float32(x: Any) -> Any:
    """The array as contiguous fp32, in its own framework; itself where it is that already."""
    if is_torch(x):
        import torch

        return x.detach().to(torch.float32).contiguous()
    import numpy

    return numpy.ascontiguousarray(x, dtype=numpy.float32)
