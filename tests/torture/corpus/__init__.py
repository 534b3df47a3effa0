"""Files that are not what they claim to be, for every reader of narrow: one module per reader.

A case starts from right files (seeds.py), changes some, and names the command that reads them. Classes are those of a malformed-input
catalogue: lying lengths, wrapping shapes, ranges that overlap or lead past the end, unknown types, odd ranks, bad alignments, sizes to be
allocated, names, JSON, paths, sub-byte tails, values, side files, other formats in disguise.
"""
from . import ecosystems, gguf_files, index_files, manifests, model_configs, recipes, safetensors_files, schemes, statistics
from . import tokenizers, tokens


def cases(place):
    """Every case; `place` holds the seeds."""
    found = [*safetensors_files.safetensors_cases(), *index_files.index_cases(place), *model_configs.config_cases(place),
             *tokenizers.tokenizer_cases(place), *recipes.recipe_cases(), *schemes.scheme_cases(), *gguf_files.gguf_cases(),
             *tokens.token_cases(), *statistics.stats_cases(place), *manifests.manifest_cases(place), *ecosystems.interop_cases(place),
             *ecosystems.scale_cases(place)]
    return [case for case in found if case is not None]
