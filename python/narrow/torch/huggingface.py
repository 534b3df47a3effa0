"""Hugging Face transformers: `import narrow.torch.huggingface`, and AutoModelForCausalLM.from_pretrained loads directories that narrow
quantized.

Also quantizes as it loads: from_pretrained(plain, quantization_config=NarrowConfig("fp6_e3m2")). The command reads what save_pretrained
writes of such models.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from typing import Any

import torch
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from ..checkpoints import Checkpoint
from ..errors import InvalidArgument, Unsupported
from .config import LayerScheme, QuantizeConfig, inputs_of, linear_layers, places_of, replace_conv1d, replace_module, rule_pair
from .experts import FUSED_WEIGHTS, QuantizedExperts, check_inputs, fused_weights, is_fused
from .linear import QuantizedLinear
from .model import quantize_


def _most_and_rest(values: dict[str, str]) -> tuple[str, list[dict[str, str]]]:
    """The value that most modules have, and a rule for each of the others."""
    most = Counter(values.values()).most_common(1)[0][0]
    return most, [{"match": name, "scheme": value} for name, value in values.items() if value != most]


#: The matrices of an expert in files, and the tensor of all experts in transformers that they go to.
_EXPERT_MATRICES = {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "down_proj": "down_proj"} | {
    "w1": "gate_up_proj",
    "w3": "gate_up_proj",
    "w2": "down_proj",
}


#: Models whose layers are Conv1D.
_CONV1D_MODELS = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer")


def _quantized_modules(files: Any) -> dict[str, str]:
    """The schemes of a checkpoint's quantized weights, by module. files: its safetensors files."""
    if not files or not str(files[0]).endswith(".safetensors"):
        return {}
    checkpoint = Checkpoint(os.path.dirname(files[0]) or ".")
    found = ((name, checkpoint.scheme(name)) for name in checkpoint.names())
    return {name.removesuffix(".weight"): str(scheme) for name, scheme in found if scheme is not None}


def _same_place(a: str, b: str) -> bool:
    """Names of one module in a file and in a model, of which one may have a prefix more."""
    return a == b or a.endswith("." + b) or b.endswith("." + a)


def _fuse_experts(model: Any, schemes: dict[str, str], config: NarrowConfig) -> set[str]:
    """Puts QuantizedExperts where a checkpoint has quantized experts one by one, and says which modules of the checkpoint they take."""
    taken: set[str] = set()
    matrices = [(match, scheme) for name, scheme in schemes.items() if (match := re.fullmatch(r"(.*\.experts)\.\d+\.(\w+)", name))]
    for place, module in [(place, module) for place, module in model.named_modules() if is_fused(module)]:
        of_layer: dict[str, list[tuple[str, str]]] = {}
        for match, scheme in matrices:
            if _same_place(match[1].replace(".block_sparse_moe.", ".mlp."), place) and match[2] in _EXPERT_MATRICES:
                of_layer.setdefault(_EXPERT_MATRICES[match[2]], []).append((match[0], scheme))
        for name, members in of_layer.items():
            experts, n, k = getattr(module, name).shape
            count = FUSED_WEIGHTS[name]
            layers = {(scheme, config.inputs_of(member)) for member, scheme in members}
            if len(members) != count * experts or len(layers) != 1:
                raise Unsupported(
                    f"from_pretrained: {place}.{name} is one tensor in transformers, but {len(members)} of its {count * experts} matrices are "
                    f"quantized, to {', '.join(sorted({scheme for scheme, _ in layers}))}; quantize them all to one scheme"
                )
            scheme, inputs = layers.pop()
            check_inputs("from_pretrained", inputs)
            QuantizedExperts(experts, n, k, scheme, inputs, count, device="meta").put_into(module, name)
            taken.update(member for member, _ in members)
    return taken


def _new_layers(schemes: dict[str, str], taken: set[str], layers: list[str]) -> set[str]:
    """The layers of a model that its checkpoint does not have: a head for another task, which stays as it is.

    Refuses a checkpoint with quantized weights that no layer of the model takes: transformers would draw random numbers for them. It
    renames some modules as it loads, so that as many of the checkpoint's may be unknown as of the model's. Heads may be missing.
    """
    unknown = [name for name in schemes if name not in taken and "." in name and not any(_same_place(name, layer) for layer in layers)]
    idle = [layer for layer in layers if not any(_same_place(name, layer) for name in schemes)]
    if len(unknown) > len(idle):
        raise Unsupported(
            f"from_pretrained: {unknown[0]} is quantized in the checkpoint, but no nn.Linear in the model ({len(unknown)} weights in all); "
            "`narrow dequantize` gives a plain checkpoint that transformers loads, and `--ignore` leaves such weights alone"
        )
    return set() if unknown or not schemes else set(idle)


@register_quantization_config("narrow")
class NarrowConfig(QuantizationConfigMixin):
    """The quantization_config of a narrow checkpoint's config.json: scheme, ignore, rules, activations."""

    def __init__(
        self,
        scheme: str = "int8:row",
        ignore: Any = ("lm_head",),
        rules: Any = (),
        activations: dict | None = None,
        targets: Any = ("Linear",),
        version: int = 1,
        **_: Any,
    ):
        self.quant_method = "narrow"
        layer = LayerScheme.of(scheme)
        self.scheme, self.ignore, self.targets, self.version = layer.weights, list(ignore), list(targets), version
        self.rules = list(rules)
        self.activations: dict[str, Any] | None = (
            activations if activations is not None else ({"scheme": layer.inputs, "rules": [], "scales": {}} if layer.inputs else None)
        )

    @classmethod
    def of(cls, model: Any) -> NarrowConfig:
        """What the layers of a model are that quantize_ made."""
        layers = {name: module for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}
        if not layers:
            raise InvalidArgument("save_pretrained: the model has no QuantizedLinear")
        if getattr(model.config, "model_type", "") in _CONV1D_MODELS:
            raise Unsupported("save_pretrained: the layers were Conv1D, [inputs, outputs] in files, which narrow's are not; save the state_dict instead")
        if any(layer.input_factor is not None for layer in layers.values()):
            raise Unsupported(
                "save_pretrained: layers have factors on their inputs, for which config.json has no place; `narrow quantize --method` folds them"
            )
        scheme, rules = _most_and_rest({name: layer.scheme for name, layer in layers.items()})
        rounded = {name: layer.inputs for name, layer in layers.items() if layer.inputs}
        activations = None
        if rounded:
            inputs, input_rules = _most_and_rest(rounded)
            input_rules += [{"match": name, "scheme": "none"} for name in layers if name not in rounded]
            scales = {name: layer.static_scale() for name, layer in layers.items() if layer.input_scale is not None}
            activations = {"scheme": inputs, "rules": input_rules, "scales": scales}
        plain = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
        return cls(scheme, plain, rules, activations)

    def to_dict(self) -> dict[str, Any]:
        fields = {
            "quant_method": "narrow",
            "version": self.version,
            "scheme": self.scheme,
            "targets": self.targets,
            "ignore": self.ignore,
            "rules": self.rules,
        }
        return fields if self.activations is None else {**fields, "activations": self.activations}

    def inputs_of(self, name: str) -> str:
        """The activation scheme of a module's input; empty: none."""
        return inputs_of(self.activations, name)

    def layers(self) -> QuantizeConfig:
        targets = [target for target in self.targets if target != "Linear"]
        rules = dict(map(rule_pair, self.rules))
        if not targets:
            return QuantizeConfig(self.scheme, ignore=tuple(self.ignore), rules=rules)
        return QuantizeConfig(None, ignore=tuple(self.ignore), rules={**rules, **{target: self.scheme for target in targets}})

    def layers_and_inputs(self, model: Any) -> QuantizeConfig:
        """The same for the layers of one model, with the rounding of each one's input."""
        config = self.layers()
        found = [(name, scheme.weights) for name, *_, scheme in (*linear_layers(model, config), *fused_weights(model, config))]
        return QuantizeConfig(None, ignore=(), rules={name: LayerScheme(weights, self.inputs_of(name)) for name, weights in found})


@register_quantizer("narrow")
class NarrowQuantizer(HfQuantizer):
    """Puts QuantizedLinear layers in place of Linear ones before the weights are read: narrow's files have their names and types."""

    quantization_config: NarrowConfig

    def _process_model_before_weight_loading(self, model: Any, checkpoint_files: Any = None, **_: Any) -> Any:
        if not self.pre_quantized:
            return model
        config, places, schemes = self.quantization_config, places_of(model), _quantized_modules(checkpoint_files)
        layers = linear_layers(model, config.layers())
        new = _new_layers(schemes, _fuse_experts(model, schemes, config), [name for name, _, _ in layers])
        for name, linear, scheme in layers:
            if name in new:
                continue
            bias = linear.bias is not None
            layer = QuantizedLinear(
                linear.in_features,
                linear.out_features,
                bias,
                scheme.weights,
                config.inputs_of(name),
                device="meta",
                dtype=linear.weight.dtype,
            )
            for parameter in layer.parameters():
                parameter.requires_grad_(False)
            replace_module(places, linear, layer)
        ignored = set(model._keys_to_ignore_on_load_missing or ())
        model._keys_to_ignore_on_load_missing = ignored | {r".*\.input_scale$", r".*\.input_zero_point$"}
        return model

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        if not self.pre_quantized:
            replace_conv1d(model, self.quantization_config.layers())
            return quantize_(model, self.quantization_config.layers_and_inputs(model))
        scales = (self.quantization_config.activations or {}).get("scales", {})
        for name, module in model.named_modules():
            if isinstance(module, QuantizedLinear) and module.input_scale is not None:
                found = scales[name]
                module.set_input_scale(found["scale"], found.get("zero_point", 0))
        return model

    def get_state_dict_and_metadata(self, model: Any, *_: Any) -> tuple[dict[str, Any] | None, dict[str, str]]:
        """What save_pretrained writes: with it, in every file, what the quantized tensors are, so that narrow's own command reads them.

        Static scales of inputs are in config.json already.
        """
        if any(isinstance(module, QuantizedExperts) for module in model.modules()):
            raise Unsupported("save_pretrained: experts are saved as they were loaded, not anew; copy the directory that they came from")
        of_inputs = (".input_scale", ".input_zero_point")
        state = {name: tensor for name, tensor in model.state_dict().items() if not name.endswith(of_inputs)}
        dtype = {torch.float32: "F32", torch.float16: "F16"}.get(model.dtype, "BF16")
        tensors = {
            f"{name}.weight": {"scheme": layer.scheme, "shape": list(layer.weight.shape), "source_dtype": dtype}
            for name, layer in model.named_modules()
            if isinstance(layer, QuantizedLinear)
        }
        return state, {"narrow_tensors": json.dumps(tensors)}

    def is_serializable(self, *_: Any, **__: Any) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False

    @property
    def is_compileable(self) -> bool:
        return True


def save_pretrained(model: Any, folder: str | os.PathLike[str], **options: Any) -> None:
    """model.save_pretrained of a transformers model that quantize_ made, as from_pretrained and narrow's command read it."""
    kept = model.__dict__.get("hf_quantizer"), model.config.__dict__.get("quantization_config")
    model.config.quantization_config = NarrowConfig.of(model)
    model.hf_quantizer = NarrowQuantizer(model.config.quantization_config)
    try:
        model.save_pretrained(folder, **options)
    finally:
        for place, name, value in ((model, "hf_quantizer", kept[0]), (model.config, "quantization_config", kept[1])):
            delattr(place, name) if value is None else setattr(place, name, value)
