"""A PyTorch model as an ONNX graph, to be quantized by :func:`narrow.onnx.quantize`."""

from __future__ import annotations

import os
from typing import Any

import onnx


def export(
    model: Any,
    example_inputs: tuple[Any, ...],
    output: str | os.PathLike[str] | None = None,
    *,
    input_names: list[str] | None = None,
    output_names: list[str] | None = None,
    dynamic_shapes: Any = None,
    opset: int = 18,
) -> onnx.ModelProto:
    """The fp32 graph of a torch module, weights inside, by torch's own exporter; also written to `output` where one is named."""
    import torch

    with torch.no_grad():
        program = torch.onnx.export(
            model.eval(),
            example_inputs,
            dynamo=True,
            opset_version=opset,
            input_names=input_names,
            output_names=output_names,
            dynamic_shapes=dynamic_shapes,
            verbose=False,
        )
    result = program.model_proto
    if output is not None:
        onnx.save(result, os.fspath(output))
    return result


def export_causal_lm(path: str | os.PathLike[str], length: int, output: str | os.PathLike[str] | None = None) -> onnx.ModelProto:
    """A Hugging Face decoder: token ids [1, length] to logits [1, length, vocabulary], without a cache."""
    import torch
    import transformers

    class Logits(torch.nn.Module):
        def __init__(self, model: Any):
            super().__init__()
            self.model = model

        def forward(self, ids: Any) -> Any:
            return self.model(input_ids=ids, use_cache=False).logits

    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    return export(Logits(model), (torch.zeros(1, length, dtype=torch.long),), output, input_names=["ids"], output_names=["logits"])
