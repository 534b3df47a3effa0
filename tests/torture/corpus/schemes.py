"""Scheme strings of the command line."""
from .kit import Case


def scheme_cases():
    for i, text in enumerate(["", ":", "int8:", "int8:row:row", "int0:row", "int-4:row", "int99", "fp8_e9m9", "fp99999999999_e1m1",
                              "int4:block", "int4:block0", "int4:block-1", "int4:block1e9", "int4:0x0",
                              "int4:99999999999999999999x1", "int4:block32:scale=", "int4:block32:scale=nope", "nvfp4:block3",
                              "fp6_e3m2:row:asym", "x" * 100_000, "int8:row\n", "int8:row\x1b[31m", "../../etc/passwd",
                              "%s%s%n", "{}", "int4:block32:asym:asym", "int4:block32:scale=fp16:scale=fp16"]):
        yield Case("scheme", f"text_{i}", "model", {}, ["quantize", "{in}", "{out}", text])
