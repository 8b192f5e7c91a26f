#!/usr/bin/env python3
"""Compares Tiercel with vLLM or SGLang on the same GPU: the same random weights, the same workload files, in turns.

    cargo build --release
    python3 -m venv /tmp/peer && /tmp/peer/bin/pip install vllm
    python3 benches/gpu_compare.py --peer vllm --peer-python /tmp/peer/bin/python --tokenizer DIR [--json FILE] [WORKLOAD...]

A checkpoint of the shape of Llama 3.1 8B with random bf16 weights is made in --model-dir, if it is not there yet; its
tokenizer is that of DIR (tokenizer.json and tokenizer_config.json of a Llama 3). In each round, each workload runs against a fresh
Tiercel and a fresh peer, one after the other, so that each has the whole GPU; the next round begins with the other server.
The script prints both servers' figures of each round, and the ratios of Tiercel's to the peer's: the median over the rounds,
and the lowest and the highest. A ratio above 1 is better for throughput and for requests in target, worse for times.

Nothing else may use the GPU or load the host meanwhile. Prefix caches stay as each server has them by default: prompts are
random, so that only workloads with prefixes gain by them. `--dry-run` tries the script without a GPU: both servers are Tiercel on
the CPU with a tiny checkpoint, and its figures are no result. Needs nothing beyond Python 3."""

import argparse
import json
import math
import os
import pathlib
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORKLOADS = ["single-stream", "streams-32", "w1-mixed", "prefix"]
PORTS = {"tiercel": 8091, "peer": 8092}
# Longest wait until a server answers, s: a peer compiles kernels at its first start.
READY_S = 1200
# Length of a workload in a dry run, s.
DRY_SECONDS = 4
LLAMA_8B = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 8192,
}
TINY = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 300, "max_position_embeddings": 2048,
}
# Figures of a tier whose ratios are printed: name, how to read it from the report of `tiercel bench`.
FIGURES = {
    "TTFT p50, ms": lambda tier: tier["ttft_ms"]["p50"],
    "TTFT p99, ms": lambda tier: tier["ttft_ms"]["p99"],
    "TPOT p50, ms": lambda tier: tier["tpot_ms"]["p50"],
    "TPOT p99, ms": lambda tier: tier["tpot_ms"]["p99"],
    "output tokens/s": lambda tier: tier["output_tokens_per_s"],
    "in target, share": lambda tier: tier["compliance"]["all_met"] / tier["sent"],
}


def tensors(shape):
    """Yields the name and dimensions of each tensor of a Llama of this shape."""
    hidden, inner, vocab = shape["hidden_size"], shape["intermediate_size"], shape["vocab_size"]
    q, kv = (shape["head_dim"] * shape[heads] for heads in ("num_attention_heads", "num_key_value_heads"))
    yield "model.embed_tokens.weight", (vocab, hidden)
    for layer in range(shape["num_hidden_layers"]):
        for name, dimensions in [
            ("self_attn.q_proj", (q, hidden)), ("self_attn.k_proj", (kv, hidden)), ("self_attn.v_proj", (kv, hidden)),
            ("self_attn.o_proj", (hidden, q)), ("mlp.gate_proj", (inner, hidden)), ("mlp.up_proj", (inner, hidden)),
            ("mlp.down_proj", (hidden, inner)), ("input_layernorm", (hidden,)), ("post_attention_layernorm", (hidden,)),
        ]:
            yield f"model.layers.{layer}.{name}.weight", dimensions
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab, hidden)


def random_bf16(count):
    """Returns random bf16 numbers as bytes: either sign, magnitudes from 2^-6 to 2^-5, so about 0.02 as in trained weights."""
    numbers = bytearray(2 * count)
    mantissa, sign = os.urandom(count), os.urandom(count)
    numbers[0::2] = mantissa.translate(bytes(0x80 | byte & 0x7F for byte in range(256)))
    numbers[1::2] = sign.translate(bytes(0x3C | byte & 0x80 for byte in range(256)))
    return bytes(numbers)


def make_model(folder, shape, tokenizer):
    """Writes a checkpoint with random weights; norms are 1. A complete checkpoint is kept."""
    if (folder / "config.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder / name)
    header, end = {}, 0
    for name, dimensions in tensors(shape):
        start, end = end, end + 2 * math.prod(dimensions)
        header[name] = {"dtype": "BF16", "shape": list(dimensions), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, dimensions in tensors(shape):
            count = math.prod(dimensions)
            if len(dimensions) == 1:
                file.write(b"\x80\x3f" * count)
                continue
            for start in range(0, count, 1 << 24):
                file.write(random_bf16(min(1 << 24, count - start)))
    # The configuration comes last, since a folder with one counts as complete.
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 0,
        "eos_token_id": 1, **shape,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def commands(arguments):
    """Returns the command of each server."""
    model = arguments.model_dir
    device = "cpu" if arguments.dry_run else "cuda:0"
    tiercel = lambda port: [
        arguments.tiercel, "serve", "--listen", f"127.0.0.1:{port}", "--set", "http.control_listen=off", "--model", model,
        "--device", device, "--served-name", "random", *arguments.tiercel_arg,
    ]
    port = PORTS["peer"]
    peer = {
        "vllm": [
            arguments.peer_python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "random",
            "--dtype", "bfloat16", "--host", "127.0.0.1", "--port", str(port), *arguments.peer_arg,
        ],
        "sglang": [
            arguments.peer_python, "-m", "sglang.launch_server", "--model-path", model, "--served-model-name", "random",
            "--dtype", "bfloat16", "--host", "127.0.0.1", "--port", str(port), *arguments.peer_arg,
        ],
    }
    return {
        "tiercel": tiercel(PORTS["tiercel"]),
        "peer": tiercel(port) if arguments.dry_run else peer[arguments.peer],
    }


def wait_until_ready(server, url, log):
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        if server.poll() is not None:
            sys.exit(f"the server ended with {server.returncode}; its log is {log}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.5)
    sys.exit(f"the server is not ready after {READY_S} s; its log is {log}")


def run(name, command, workload, arguments):
    """Runs a workload against a fresh server and returns the report of `tiercel bench`."""
    print(f"{workload} on {name}", file=sys.stderr)
    url = f"http://127.0.0.1:{PORTS[name]}"
    log = arguments.logs / f"{name}.log"
    with open(log, "ab") as file, tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            wait_until_ready(server, url, log)
            folder = pathlib.Path(folder)
            path = ROOT / f"benches/workloads/{workload}.toml"
            if arguments.seconds:
                text = re.sub(r"(?m)^duration_s = \d+", f"duration_s = {arguments.seconds}", path.read_text())
                text = re.sub(r"(?m)^(warmup|cooldown)_s = \d+", r"\1_s = 0", text)
                path = folder / "workload.toml"
                path.write_text(text)
            report = folder / "report.json"
            words = [arguments.tiercel, "bench", "--url", url, "--workload", path, "--json", report]
            words += ["--send-priority"] if arguments.peer_priority and name == "peer" else []
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            return json.loads(report.read_text())
        finally:
            server.terminate()
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def figures(report):
    """Returns the figures of each tier of a report, and of all tiers together; figures without requests are left out."""
    found = {}
    for tier in [*report["tiers"], report["total"]]:
        for name, read in FIGURES.items():
            try:
                found[tier["tier"], name] = read(tier)
            except (KeyError, TypeError, ZeroDivisionError):
                continue
        gone = tier["sent"] - tier["completed"] - tier["refused"]
        found[tier["tier"], "refused and failed"] = tier["refused"] + gone
    return found


def compare(workload, rounds):
    """Prints the figures of a workload, one row each: both servers by round, and the ratios."""
    print(f"\n## {workload}\n\n| tier | figure | Tiercel | peer | ratio: median (lowest to highest) |\n|---|---|---|---|---|")
    shared = set.intersection(*(set(found) for pair in rounds for found in pair.values()))
    order = list(rounds[0]["tiercel"])
    rows = []
    for key in sorted(shared, key=order.index):
        ours, theirs = ([pair[name][key] for pair in rounds] for name in ("tiercel", "peer"))
        ratios = [a / b for a, b in zip(ours, theirs) if b]
        ratio = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})" if ratios else "-"
        values = (", ".join(f"{value:.4g}" for value in of) for of in (ours, theirs))
        print(f"| {key[0]} | {key[1]} | {' | '.join(values)} | {ratio} |")
        rows.append({"tier": key[0], "figure": key[1], "tiercel": ours, "peer": theirs, "ratios": ratios})
    return rows


def said(command):
    """Returns what a command prints, or why it cannot be run."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"unknown ({error})"


def facts(arguments):
    package = arguments.peer
    version = [arguments.peer_python, "-c", f"import {package}; print({package}.__version__)"]
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    return {
        "gpu": "none: a dry run" if arguments.dry_run else said(query),
        "tiercel": said([arguments.tiercel, "--version"]),
        "peer": "tiercel" if arguments.dry_run else f"{package} {said(version)}",
        "rounds": arguments.rounds,
        "commands": {name: " ".join(map(str, words)) for name, words in commands(arguments).items()},
    }


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", choices=["vllm", "sglang"], default="vllm")
    parser.add_argument("--peer-python", default=sys.executable, help="Python that has the peer installed")
    parser.add_argument("--tiercel", type=pathlib.Path, default=ROOT / "target/release/tiercel")
    parser.add_argument("--tokenizer", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--model-dir", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "tiercel-random-8b")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, help="length of every workload; to try the script")
    parser.add_argument("--tiercel-arg", action="append", default=[], help="further argument of `tiercel serve`")
    parser.add_argument("--peer-arg", action="append", default=[], help="further argument of the peer")
    parser.add_argument("--peer-priority", action="store_true", help="send the peer the field `priority` by tier")
    parser.add_argument("--json", type=pathlib.Path, help="file for all figures")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", default=WORKLOADS)
    arguments = parser.parse_args()
    if arguments.dry_run:
        arguments.tokenizer = ROOT / "tests/reference/tiny/llama3"
        arguments.model_dir = pathlib.Path(tempfile.mkdtemp(prefix="tiercel-random-tiny-"))
        arguments.rounds, arguments.seconds = 2, arguments.seconds or DRY_SECONDS
    elif arguments.tokenizer is None and not (arguments.model_dir / "config.json").exists():
        parser.error("--tokenizer DIR is missing: the folder of a Llama 3 tokenizer")
    if not arguments.tiercel.exists():
        parser.error(f"{arguments.tiercel} is missing: run `cargo build --release`")
    arguments.logs = pathlib.Path(tempfile.mkdtemp(prefix="tiercel-compare-"))
    return arguments


def main():
    arguments = parsed()
    make_model(arguments.model_dir, TINY if arguments.dry_run else LLAMA_8B, arguments.tokenizer)
    servers = commands(arguments)
    about = facts(arguments)
    print(json.dumps(about, indent=2))
    results = {}
    for workload in arguments.workloads:
        rounds = []
        for number in range(arguments.rounds):
            names = ["tiercel", "peer"] if number % 2 == 0 else ["peer", "tiercel"]
            rounds.append({name: figures(run(name, servers[name], workload, arguments)) for name in names})
        results[workload] = compare(workload, rounds)
    if arguments.json:
        arguments.json.write_text(json.dumps({"about": about, "workloads": results}, indent=1))
    if arguments.dry_run:
        shutil.rmtree(arguments.model_dir)
        print("\nThis was a dry run: its figures are no result.")


if __name__ == "__main__":
    main()
