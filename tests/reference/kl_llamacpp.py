"""Measures how far llama.cpp's quantized forms of SmolLM2 are from the f32 model, on smollm2/kl_text.txt.

    python kl_llamacpp.py MODEL.gguf [OUT_DIR]        # default: smollm2/ beside this script

The result is the bar for Tiercel's own packed weights. P is the next-token distribution of Hugging Face
transformers on the GGUF dequantized to f32. Q is the next-token distribution of llama.cpp. All positions of
the text are computed in one prompt (no BOS), on one thread.
Reported over all positions: mean, median, p99 and maximum of KL(P || Q) in nats, the share of positions
whose likeliest token agrees, and the perplexity of Q. Computed in f64 from the f32 logits of both.

llama.cpp's models:

    f32    the GGUF's tensors dequantized, written as f32: measures this script, not a format
    q8_0   those f32 matrices (and the embedding) quantized to Q8_0 by the gguf package, whose
           quantizer is llama.cpp's reference one; norms stay f32
    q4_1   the GGUF as shipped (Q4_1 matrices, Q8_0 embedding)

llama.cpp quantizes activations to 8 bits for q8_0 and q4_1. KV is f32 without flash attention, and for
the packed models also llama.cpp's default (f16, flash attention where it can).

The script first checks that llama.cpp's tokenizer gives the ids in greedy.json and kl_reference.safetensors.
It writes OUT_DIR/kl_llamacpp.json.
"""

import importlib.metadata
import json
import pathlib
import sys
import tempfile

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file

import llamacpp
import make_smollm2

# Label of a run -> (model, KV type, flash attention: None is llama.cpp's default)
RUNS = {
    "f32, KV f32": ("f32", "f32", False),
    "q8_0, KV f32": ("q8_0", "f32", False),
    "q8_0, KV f16 (default)": ("q8_0", "f16", None),
    "q4_1, KV f32": ("q4_1", "f32", False),
    "q4_1, KV f16 (default)": ("q4_1", "f16", None),
}


def rewrite(source, path, matrix_type):
    """Writes the GGUF `source` to `path` with every matrix dequantized and stored as `matrix_type`."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        item = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=item)
    writer.add_file_type({Type.F32: gguf.LlamaFileType.ALL_F32, Type.Q8_0: gguf.LlamaFileType.MOSTLY_Q8_0}[matrix_type])
    for tensor in reader.tensors:
        data = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if len(tensor.shape) == 2 and matrix_type != Type.F32:
            writer.add_tensor(tensor.name, gguf.quants.quantize(data, matrix_type), raw_dtype=matrix_type)
        else:
            writer.add_tensor(tensor.name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def log_softmax(logits):
    """Returns the log-softmax of each row of [n, vocab], in f64."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def compare(p_logits, q_logits, tokens):
    """Returns the reported figures of Q against P. Works in slices of positions, to keep f64 copies small."""
    kl, agree, next_logprob = [], [], []
    for start in range(0, len(tokens), 256):
        end = min(start + 256, len(tokens))
        p, q = log_softmax(p_logits[start:end]), log_softmax(q_logits[start:end])
        kl.append((np.exp(p) * (p - q)).sum(-1))
        agree.append(p.argmax(-1) == q.argmax(-1))
        following = np.arange(start, min(end, len(tokens) - 1))
        next_logprob.append(q[following - start, tokens[following + 1]])
    kl = np.concatenate(kl)
    return {
        "mean_kl_nats": float(f"{kl.mean():.4g}"),
        "median_kl_nats": float(f"{np.median(kl):.4g}"),
        "p99_kl_nats": float(f"{np.quantile(kl, 0.99):.4g}"),
        "max_kl_nats": float(f"{kl.max():.4g}"),
        "top1_agreement": round(float(np.concatenate(agree).mean()), 5),
        "perplexity": round(float(np.exp(-np.concatenate(next_logprob).mean())), 4),
    }


def check_tokenizer(model, folder, tokens):
    entries = json.loads((folder / "greedy.json").read_text())["prompts"]
    for entry in entries:
        assert model.tokenize(entry["text"]) == entry["prompt"], f"{entry['name']}: other ids than llama.cpp"
    assert model.tokenize((folder / "kl_text.txt").read_text()) == tokens.tolist()
    print(f"tokenizer: {len(entries)} prompts and the text agree with llama.cpp")
    return len(entries)


def main():
    torch.set_num_threads(1)
    source = pathlib.Path(sys.argv[1]).resolve()
    folder = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else pathlib.Path(__file__).parent / "smollm2")
    tokens = load_file(folder / "kl_reference.safetensors")["tokens"]
    lib = llamacpp.load_library()
    with torch.no_grad():
        reference = make_smollm2.load_model(source)(torch.tensor(tokens)[None].long(), use_cache=False)
        reference = reference.logits[0].numpy()

    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        paths = {"q4_1": source}
        for name, matrix_type in (("f32", Type.F32), ("q8_0", Type.Q8_0)):
            paths[name] = pathlib.Path(temporary) / f"{name}.gguf"
            rewrite(source, paths[name], matrix_type)
        for label, (name, kv, flash_attn) in RUNS.items():
            model = llamacpp.Model(lib, paths[name])
            if not results:
                checked = check_tokenizer(model, folder, tokens)
            results[label] = compare(reference, model.logits(tokens.tolist(), kv, flash_attn), tokens)
            model.close()
            print(label, json.dumps(results[label]))

    report = {
        "reference": "transformers, f32, on the dequantized GGUF",
        "positions": len(tokens),
        "prompts_with_equal_token_ids": checked,
        "versions": {n: importlib.metadata.version(n) for n in ("xllamacpp", "gguf", "torch", "transformers")},
        "runs": results,
    }
    (folder / "kl_llamacpp.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
