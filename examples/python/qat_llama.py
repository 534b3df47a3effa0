"""Quantization-aware training of the example model: rounding to 4 bits costs perplexity, a few hundred steps get most of it back.

    python examples/python/qat_llama.py --scheme int4:row --steps 300 [--device cuda]

The quantized model learns to give the logits of the model it came from (KL divergence), on the calibration text; perplexity is of
held-out text.
"""

import argparse
import copy
import math
import time

import torch
from torch.nn import functional as F

import narrow.torch as nt
from tiny_llama import Llama, perplexity, read_tokens


def train(model, teacher, tokens, steps, batch, rate):
    scales = [parameter for name, parameter in model.named_parameters() if "quantizer" in name]
    weights = [parameter for name, parameter in model.named_parameters() if "quantizer" not in name]
    optimizer = torch.optim.AdamW(
        [{"params": weights, "lr": rate}, {"params": scales, "lr": 4 * rate}], weight_decay=0.0, betas=(0.9, 0.99)
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
    )
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        part = tokens[torch.randint(0, len(tokens), (batch,), generator=generator)]
        with torch.no_grad():
            target = F.log_softmax(teacher(part), -1)
        loss = F.kl_div(F.log_softmax(model(part), -1).flatten(0, 1), target.flatten(0, 1), log_target=True, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 20 == 0 or step + 1 == steps:
            print(f"step {step:4d}  divergence {loss.item():.4f}", flush=True)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scheme", default="int4:row")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--windows", type=int, default=64, help="of held-out text")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)

    teacher = Llama.load().to(options.device).eval()
    held_out = read_tokens("eval", options.windows).to(options.device)
    text = read_tokens("calib", length=options.length).to(options.device)
    base = perplexity(teacher, held_out)
    rounded = perplexity(nt.quantize_(copy.deepcopy(teacher), options.scheme), held_out)
    print(f"perplexity {base:.4f} as it is, {rounded:.4f} rounded to {options.scheme}")

    model = nt.prepare_qat_(copy.deepcopy(teacher).train(), options.scheme, learned=True)
    start = time.perf_counter()
    train(model, teacher, text, options.steps, options.batch, options.rate)
    seconds = time.perf_counter() - start
    trained = perplexity(nt.convert_(model.eval()), held_out)
    recovered = (rounded - trained) / (rounded - base)
    print(f"perplexity {trained:.4f} after {options.steps} steps ({seconds:.0f} s): {100 * recovered:.0f} % of the loss is recovered")
    return base, rounded, trained, recovered


if __name__ == "__main__":
    main()
