#!/usr/bin/env python3
"""Measures decode steps and prefills of a model of the shape of Llama 3.1 8B with PyTorch, to compare with `gpu-check speed`.

    python3 benches/gpu_torch.py [--layers N] [--json FILE]

The model has random bf16 weights. Products, attention (`scaled_dot_product_attention`), norms and rotations are PyTorch's own
kernels, without `torch.compile`. Each decode step is captured as a CUDA graph, as in Tiercel, so that the host's time does not
count. Each sequence of a batch has a contiguous KV cache of exactly its context, which suits PyTorch better than blocks. Steps
compute logits and their argmax. The script needs PyTorch with CUDA."""

import argparse
import json
import statistics
import torch
import torch.nn.functional as F

HIDDEN, INNER, HEADS, KV_HEADS, WIDTH, VOCAB = 4096, 14336, 32, 8, 128, 128256
DECODES = [(1, 512), (1, 8192), (16, 512), (64, 512), (256, 512)]
PREFILLS = [512, 2048, 8192]
# Positions of the longest sequence (a decode after 8,192 tokens), and the base of the rotary embedding.
POSITIONS, ROPE_BASE = 8193, 500000.0
WARM_UP = 3  # runs before those that count
REPEATS = 20


class Model:
    def __init__(self, layers, device):
        def matrix(rows, columns):
            return torch.empty(rows, columns, dtype=torch.bfloat16, device=device).normal_(0, columns**-0.5)

        self.layers = [
            (matrix((HEADS + 2 * KV_HEADS) * WIDTH, HIDDEN), matrix(HIDDEN, HEADS * WIDTH), matrix(2 * INNER, HIDDEN), matrix(HIDDEN, INNER))
            for _ in range(layers)
        ]
        self.embedding, self.head = matrix(VOCAB, HIDDEN), matrix(VOCAB, HIDDEN)
        self.norm = torch.ones(HIDDEN, dtype=torch.bfloat16, device=device)
        angles = torch.outer(torch.arange(POSITIONS, device=device).float(), ROPE_BASE ** (-torch.arange(0, WIDTH, 2, device=device) / WIDTH))
        self.cos, self.sin = (torch.cat([f(angles)] * 2, -1).bfloat16() for f in (torch.cos, torch.sin))

    def rotate(self, x, at):
        left, right = x.chunk(2, -1)
        return x * self.cos[at] + torch.cat([-right, left], -1) * self.sin[at]

    def forward(self, tokens, first, caches, last_only):
        """Computes tokens [sequences, count] after `first` positions; `caches` are keys and values by layer."""
        sequences, count = tokens.shape
        at = slice(first, first + count)
        x = self.embedding[tokens]
        for (qkv_w, out_w, up_w, down_w), (keys, values) in zip(self.layers, caches):
            qkv = F.linear(F.rms_norm(x, (HIDDEN,), self.norm), qkv_w).view(sequences, count, -1, WIDTH).transpose(1, 2)
            q, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], 1)
            keys[:, :, at], values[:, :, at] = self.rotate(k, at), v
            mixed = F.scaled_dot_product_attention(
                self.rotate(q, at), keys[:, :, : first + count], values[:, :, : first + count], is_causal=count > 1, enable_gqa=True
            )
            x = x + F.linear(mixed.transpose(1, 2).reshape(sequences, count, -1), out_w)
            gate, up = F.linear(F.rms_norm(x, (HIDDEN,), self.norm), up_w).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, down_w)
        x = x[:, -1] if last_only else x
        return F.linear(F.rms_norm(x, (HIDDEN,), self.norm), self.head).argmax(-1)


def median_ms(run):
    times = []
    for _ in range(REPEATS + WARM_UP):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[WARM_UP:])


def graph_of(run):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    model, found = Model(arguments.layers, "cuda"), {}
    for sequences, context in DECODES:
        shape = (sequences, KV_HEADS, context + 1, WIDTH)
        caches = [tuple(torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2)) for _ in model.layers]
        tokens = torch.randint(VOCAB, (sequences, 1), device="cuda")
        run = graph_of(lambda: model.forward(tokens, context, caches, True))
        found[f"decode of {sequences}, {context} tokens of context"] = median_ms(run)
        del run, caches
        torch.cuda.empty_cache()
    for count in PREFILLS:
        caches = [
            tuple(torch.empty((1, KV_HEADS, count, WIDTH), dtype=torch.bfloat16, device="cuda") for _ in range(2)) for _ in model.layers
        ]
        tokens = torch.randint(VOCAB, (1, count), device="cuda")
        found[f"prefill of {count}"] = median_ms(lambda: model.forward(tokens, 0, caches, True))
    for what, ms in found.items():
        print(f"| {what} | {ms:.2f} ms |")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"torch": torch.__version__, "gpu": torch.cuda.get_device_name(), "ms": found}, file, indent=1)


if __name__ == "__main__":
    main()
