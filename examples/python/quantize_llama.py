"""The example language model in several schemes: one line each, what it costs and what it saves.

python examples/python/quantize_llama.py [SCHEME ...]
"""

import argparse
import copy

import narrow.torch as nt
from tiny_llama import Llama, perplexity, read_tokens

SCHEMES = ["int8:row", "fp6_e3m2:row", "int4:block128", "nvfp4", "W8A8", "FP8_DYNAMIC"]


def weight_bytes(model):
    """Bytes of the decoder's Linear weights, scales included."""
    layers = [module for module in model.modules() if isinstance(module, nt.QuantizedLinear)]
    return sum(layer.weight.quantized().byte_size for layer in layers)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("schemes", nargs="*", default=SCHEMES)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    options = parser.parse_args(arguments)
    model, tokens = Llama.load().eval(), read_tokens("eval", options.windows, options.length)
    base = perplexity(model, tokens)
    print(f"{'as it is':24s} perplexity {base:.4f}")
    results = {}
    for scheme in options.schemes:
        small = nt.quantize_(copy.deepcopy(model), scheme)
        results[scheme] = perplexity(small, tokens)
        print(f"{scheme:24s} perplexity {results[scheme]:.4f}   weights {weight_bytes(small) / 2**20:.2f} MiB")
    return base, results


if __name__ == "__main__":
    main()
