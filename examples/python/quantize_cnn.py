"""A small convolutional network on drawn shapes: trained in fp32, then with calibrated int8 layers, then trained with binary layers.

python examples/python/quantize_cnn.py
"""

import copy

import torch
from torch import nn
from torch.nn import functional as F

import narrow.torch as nt


def shapes(count, seed):
    """Images 16x16 of bars, crosses and boxes under noise, and which they are."""
    generator = torch.Generator().manual_seed(seed)
    images, kinds = 0.2 * torch.randn(count, 1, 16, 16, generator=generator), torch.randint(0, 3, (count,), generator=generator)
    places = torch.randint(2, 9, (count, 2), generator=generator)
    for image, kind, (row, col) in zip(images[:, 0], kinds, places):
        patch = image[row : row + 5, col : col + 5]
        if kind == 0:
            patch[2] += 1.0
        elif kind == 1:
            patch[2] += 1.0
            patch[:, 2] += 1.0
        else:
            patch[[0, 4]] += 1.0
            patch[:, [0, 4]] += 1.0
    return images, kinds


def network(conv=nn.Conv2d):
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.Hardtanh(),
        conv(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.Hardtanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 16, 64),
        nn.ReLU(),
        nn.Linear(64, 3),
    )


def train(model, images, kinds, steps):
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(steps):
        batch = torch.arange(64) + 64 * (step % (len(images) // 64))
        loss = F.cross_entropy(model(images[batch]), kinds[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def accuracy(model, images, kinds):
    return (model(images).argmax(1) == kinds).float().mean().item()


def main(steps=64):
    torch.manual_seed(0)
    train_images, train_kinds = shapes(1024, 1)
    images, kinds = shapes(512, 2)
    plain = train(network(), train_images, train_kinds, steps)
    statistics = nt.calibrate(plain, train_images.split(128))
    int8 = nt.quantize_(copy.deepcopy(plain), nt.QuantizeConfig("W8A8-static", statistics=statistics))
    binary = train(network(nt.BinaryConv2d), train_images, train_kinds, steps)
    packed = nt.pack_binary_(copy.deepcopy(binary))
    results = {
        "fp32": accuracy(plain, images, kinds),
        "int8, calibrated": accuracy(int8, images, kinds),
        "binary convolution": accuracy(binary, images, kinds),
        "the same, packed": accuracy(packed, images, kinds),
    }
    for name, share in results.items():
        print(f"{name:20s} {100 * share:.1f} % right")
    return results


if __name__ == "__main__":
    main()
