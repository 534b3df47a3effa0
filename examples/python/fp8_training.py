"""A small Llama trained from scratch in bf16 and in FP8 (E4M3 forward, E5M2 gradients), step by step beside each other.

python examples/python/fp8_training.py --steps 20 [--scaling delayed] [--device cuda]
"""

import argparse
import copy

import torch
from torch.nn import functional as F

import narrow.torch as nt
from tiny_llama import Llama, read_tokens

CONFIG = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 4096,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 10000.0},
}


def train(model, text, device):
    optimizer, scaler = nt.StochasticAdamW(model.parameters(), lr=1e-3), nt.LossScaler(1024.0)
    losses = []
    for tokens in text:
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        losses.append(loss.item())
    return losses


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--scaling", default="current", choices=["current", "delayed", "block"])
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    model = Llama(CONFIG).to(options.device)
    text = read_tokens("calib", options.batch * options.steps, options.length + 1).to(options.device).split(options.batch)
    bf16 = train(copy.deepcopy(model), text, options.device)
    fp8 = train(nt.fp8_training_(copy.deepcopy(model), nt.FP8Policy(options.scaling)), text, options.device)
    for step in range(0, len(bf16), max(1, len(bf16) // 5)):
        print(f"step {step:3d}   bf16 {bf16[step]:.4f}   fp8 {fp8[step]:.4f}")
    worst = max(abs(a - b) / b for a, b in zip(fp8, bf16))
    print(f"largest difference of the loss: {100 * worst:.2f} %")
    return bf16, fp8, worst


if __name__ == "__main__":
    main()
