"""Calibration statistics."""
import seeds

from .kit import Case, LITTLE, disguises


def stats_cases(place):
    tensors, metadata = seeds.read_safetensors(place / "stats.safetensors")
    names = sorted(tensors)
    histogram, ranges, channels = (next(n for n in names if n.endswith(s)) for s in (".histogram", ".range", ".channel_max"))
    moment = next(n for n in names if n.endswith(".second_moment"))
    def variant(change, about=None):
        copy = dict(tensors)
        change(copy)
        return seeds.safetensors(copy, metadata if about is None else about)
    def number(index, value):
        def change(copy):
            dtype, shape, data = copy[ranges]
            copy[ranges] = (dtype, shape, data[: 8 * index] + LITTLE("<d", value) + data[8 * index + 8 :])
        return change
    def put(name, dtype, shape, data):
        return lambda copy: copy.__setitem__(name, (dtype, shape, data))
    def edit(name, data_of):
        def change(copy):
            dtype, shape, data = copy[name]
            copy[name] = (dtype, shape, data_of(data))
        return change
    files = dict(disguises())
    files["no_metadata"] = seeds.safetensors(tensors)
    files["other_format"] = seeds.safetensors(tensors, {"format": "pt"})
    files["other_version"] = seeds.safetensors(tensors, {**metadata, "version": "99"})
    files["shares_unknown"] = seeds.safetensors(tensors, {**metadata, "shares.a": "nowhere"})
    files["shares_lines"] = seeds.safetensors(tensors, {**metadata, "shares.a\nb": "no\nwhere"})
    files["shares_long"] = seeds.safetensors(tensors, {**metadata, "shares.a": "x" * 1_000_000})
    for name in (ranges, channels):
        files["without" + name[name.rindex(".") :]] = variant(lambda copy, name=name: copy.pop(name))
    files["histogram_short"] = variant(put(histogram, "I64", [4], bytes(32)))
    files["histogram_type"] = variant(lambda copy: put(histogram, "F64", copy[histogram][1], copy[histogram][2])(copy))
    files["histogram_negative"] = variant(edit(histogram, lambda data: LITTLE("<q", -1) + data[8:]))
    files["histogram_overflow"] = variant(edit(histogram, lambda data: LITTLE("<qq", 2**63 - 1, 2**63 - 1) + data[16:]))
    for index, field in enumerate(("tokens", "batches", "minimum", "maximum", "average_minimum", "average_maximum", "exponent")):
        for name, value in {"nan": float("nan"), "inf": float("inf"), "minus_inf": float("-inf")}.items():
            files[f"{field}_{name}"] = variant(number(index, value))
    for field, index in {"tokens": 0, "batches": 1, "exponent": 6}.items():
        for name, value in {"1e300": 1e300, "minus_1e300": -1e300, "negative": -1.0 if field != "exponent" else -1000.0,
                            "fraction": 0.5}.items():
            files[f"{field}_{name}"] = variant(number(index, value))
    files["crossed"] = variant(number(2, 1e9))
    files["exponent_4000"] = variant(number(6, 4000.0))
    files["channels_empty"] = variant(put(channels, "F32", [0], b""))
    files["channels_rank_0"] = variant(put(channels, "F32", [], bytes(4)))
    files["channels_rank_2"] = variant(put(channels, "F32", [2, 2], bytes(16)))
    files["channels_type"] = variant(put(channels, "I32", [64], bytes(256)))
    files["channels_nan"] = variant(edit(channels, lambda data: LITTLE("<f", float("nan")) + data[4:]))
    files["channels_negative"] = variant(edit(channels, lambda data: LITTLE("<f", -1.0) + data[4:]))
    files["channels_inf"] = variant(edit(channels, lambda data: LITTLE("<f", float("inf")) + data[4:]))
    files["range_short"] = variant(put(ranges, "F64", [2], bytes(16)))
    files["moment_short"] = variant(put(moment, "F64", [2, 2], bytes(32)))
    files["moment_type"] = variant(lambda copy: put(moment, "F32", copy[moment][1], copy[moment][2][: len(copy[moment][2]) // 2])(copy))
    files["moment_nan"] = variant(edit(moment, lambda data: LITTLE("<d", float("nan")) + data[8:]))
    files["moment_negative_diagonal"] = variant(edit(moment, lambda data: LITTLE("<d", -1.0) + data[8:]))
    files["nothing"] = seeds.safetensors({}, metadata={"format": "narrow-calibration", "version": "1"})
    files["model_instead"] = (place / "model/model.safetensors").read_bytes()
    # Whole statistics, of a model with other sizes.
    for size in (1, 32, 128):
        numbers = LITTLE(f"<{size}f", *[1.0] * size)
        square = b"".join(LITTLE("<d", float(i == j)) for i in range(size) for j in range(size))
        other = variant(lambda copy: copy.update({n: ("F32", [size], numbers) for n in names if n.endswith(".channel_max")},
                                                 **{n: ("F64", [size, size], square) for n in names if n.endswith(".second_moment")}))
        for method in ("gptq", "clip", "awq", "gptq+clip+refine"):
            yield Case("stats", f"of_{size}_channels/{method}", "", {"stats.safetensors": other},
                       ["quantize", "{seeds}/model", "{out}", "int4:block32", "--method", method, "--stats", "{in}/stats.safetensors"])
    for name, content in files.items():
        yield Case("stats", name, "", {"stats.safetensors": content}, ["calibrate", "{seeds}/model", "--merge", "{in}/stats.safetensors",
                   "-o", "{out}"])
        yield Case("stats", name + "/quantize", "", {"stats.safetensors": content},
                   ["quantize", "{seeds}/model", "{out}", "int8:row", "--activations", "int8:tensor:static", "--stats",
                   "{in}/stats.safetensors"])
