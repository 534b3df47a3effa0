"""The 3x3 layers of ResNet-18 in fp16 by cuDNN (torch, channels last): the peer of bench_cuda_binary's convolutions.

Medians of graph replays, microseconds. python3 bench/cudnn_conv.py
"""

import statistics

import torch

LAYERS = [(56, 64, 64, 1), (56, 64, 128, 2), (28, 128, 128, 1), (28, 128, 256, 2), (14, 256, 256, 1), (14, 256, 512, 2), (7, 512, 512, 1)]
CALLS = 50


def microseconds(images: int, size: int, channels: int, outputs: int, stride: int) -> float:
    x = torch.randn(images, channels, size, size, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
    w = torch.randn(outputs, channels, 3, 3, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
    call = lambda: torch.nn.functional.conv2d(x, w, stride=stride, padding=1)  # noqa: E731
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    times = []
    for _ in range(12):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        times.append(1000 * start.elapsed_time(stop) / CALLS)
    return statistics.median(times[2:])


if __name__ == "__main__":
    torch.backends.cudnn.benchmark = True
    for images in (1, 128):
        for size, channels, outputs, stride in LAYERS:
            name = f"{images}x{size}x{size}x{channels}->{outputs}/{stride}"
            print(f"cuDNN fp16  {name:24} {microseconds(images, size, channels, outputs, stride):9.2f} us", flush=True)
