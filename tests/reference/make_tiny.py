"""Makes tiny random checkpoints of every model family, with the logits Hugging Face computes for them.

    python make_tiny.py [OUT_DIR]        # default: tiny/ beside this script

For each family, OUT_DIR/<family>/ holds

    config.json                      config of the model, as transformers writes it
    model.safetensors                weights (llama3: two shards and model.safetensors.index.json)
    expected.safetensors             tokens [T] i64, logits [T, vocab] f32: row i predicts the token after token i

All checkpoints are f32 except mistral, which is stored in bf16 as published checkpoints are; the expected
logits are always computed in f32, eager attention, whole prompt in one pass, one thread. llama3 also
gets a byte-level tokenizer.json and a tokenizer_config.json with a chat template, so that a server can
serve it.

Feature that each family tests (the script fails if the feature does not change the logits visibly):

    llama2    plain multi-head attention, untied output matrix, rms_norm_eps 1e-5
    llama3    grouped-query attention, llama3 rope scaling with all three frequency bands in use and
              positions past original_max_position_embeddings, rope_theta 20000, sharded
    mistral   grouped-query attention, sliding window (24) smaller than the prompt (80), bf16 on disk
    qwen2     biases on q, k and v, tied embeddings, rope_theta 1e6
    qwen3     RMS norm on q and k, head_dim (32) != hidden / heads (16), tied embeddings

Weights are N(0, 0.2). Norms and biases are drawn at random too, so that a forgotten norm or bias shows.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB = 300
BOS, EOS = 256, 257
# Smallest change of any logit that counts as visible when a model family's special feature is switched off.
VISIBLE = 0.1

COMMON = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=256,
    bos_token_id=BOS,
    eos_token_id=EOS,
    pad_token_id=None,
)

LLAMA3_SCALING = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)

# Name of a model family -> (config, model class, prompt length in tokens, dtype on disk, changes that must show in the
# logits)
FAMILIES = {
    "llama2": (
        LlamaConfig(**COMMON, num_key_value_heads=4, rms_norm_eps=1e-5, tie_word_embeddings=False),
        LlamaForCausalLM,
        64,
        torch.float32,
        [dict(rope_theta=20000.0)],
    ),
    "llama3": (
        LlamaConfig(
            **COMMON,
            num_key_value_heads=2,
            rms_norm_eps=1e-5,
            rope_theta=20000.0,
            rope_scaling=LLAMA3_SCALING,
            tie_word_embeddings=False,
        ),
        LlamaForCausalLM,
        96,
        torch.float32,
        [dict(rope_scaling=None), dict(rope_scaling=dict(LLAMA3_SCALING, high_freq_factor=2.0))],
    ),
    "mistral": (
        MistralConfig(
            **COMMON,
            num_key_value_heads=2,
            head_dim=16,
            rms_norm_eps=1e-5,
            sliding_window=24,
            tie_word_embeddings=False,
        ),
        MistralForCausalLM,
        80,
        torch.bfloat16,
        [dict(sliding_window=None), dict(sliding_window=25)],
    ),
    "qwen2": (
        Qwen2Config(
            **COMMON,
            num_key_value_heads=2,
            rms_norm_eps=1e-6,
            rope_theta=1e6,
            use_sliding_window=False,
            tie_word_embeddings=True,
        ),
        Qwen2ForCausalLM,
        64,
        torch.float32,
        [dict(rope_theta=10000.0), "bias"],
    ),
    "qwen3": (
        Qwen3Config(
            **COMMON,
            num_key_value_heads=2,
            head_dim=32,
            rms_norm_eps=1e-6,
            rope_theta=1e6,
            tie_word_embeddings=True,
        ),
        Qwen3ForCausalLM,
        64,
        torch.float32,
        [dict(rope_theta=10000.0), "_norm.weight"],
    ),
}

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def randomize(model, generator):
    """Draws every parameter of a model at random: matrices N(0, 0.2), norms around 1, biases N(0, 0.5)."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("norm.weight"):
            parameter.data = 1.0 + 0.2 * noise
        elif name.endswith("bias"):
            parameter.data = 0.5 * noise
        else:
            parameter.data = 0.2 * noise


def logits_of(model, tokens):
    with torch.no_grad():
        return model(tokens.unsqueeze(0), use_cache=False).logits[0]


def without(feature, config, model_class, state):
    """Returns the model with the same weights but without a feature.

    A dict changes the config. A suffix of tensor names makes these tensors neutral: biases 0, norms 1.
    """
    changes = feature if isinstance(feature, dict) else {}
    changed = model_class(type(config)(**{**config.to_dict(), **changes, "attn_implementation": "eager"}))
    state = dict(state)
    if isinstance(feature, str):
        for name in state:
            if name.endswith(feature):
                state[name] = torch.zeros_like(state[name]) if feature == "bias" else torch.ones_like(state[name])
    changed.load_state_dict(state)
    return changed.eval()


def write_weights(folder, state, shards):
    """Writes a model's tensors in one file, or split over `shards` files with Hugging Face's index."""
    if shards == 1:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(state)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = names[shard * len(names) // shards : (shard + 1) * len(names) // shards]
        save_file({name: state[name] for name in part}, folder / file, metadata={"format": "pt"})
        weight_map.update({name: file for name in part})
    total = sum(t.numel() * t.element_size() for t in state.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def write_tokenizer(folder):
    """Writes a byte-level BPE tokenizer with the model's 300 ids: 0-255 bytes, 256-260 special, the rest merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = ["the quick brown fox and the lazy dog then there is the other thing in an inner region "] * 4
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - 5,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        min_frequency=1,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    # Special tokens must have the ids 256 to 260, where config.json says that BOS and EOS are. So the vocabulary is
    # rebuilt with the merged tokens after the special tokens.
    trained = json.loads(tokenizer.to_str())
    by_id = sorted(trained["model"]["vocab"], key=trained["model"]["vocab"].get)
    specials = ["<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
    ordered = by_id[:256] + specials + by_id[256 : VOCAB - 5]
    trained["model"]["vocab"] = {token: i for i, token in enumerate(ordered)}
    tokenizer = Tokenizer.from_str(json.dumps(trained))
    assert tokenizer.add_special_tokens(specials) >= 0 and tokenizer.get_vocab_size() == VOCAB
    assert tokenizer.token_to_id("<|begin|>") == BOS and tokenizer.token_to_id("<|end|>") == EOS
    text = "héllo the 世界 🎉"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin|>",
        "eos_token": "<|end|>",
        "add_bos_token": False,
        "model_max_length": COMMON["max_position_embeddings"],
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")


def make(name, seed, out):
    config, model_class, length, dtype, features = FAMILIES[name]
    config._attn_implementation = "eager"
    generator = torch.Generator().manual_seed(seed)
    model = model_class(config).eval()
    randomize(model, generator)
    # The weights are rounded to the dtype on disk, so that the logits are computed with the weights that are stored.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype).to(torch.float32)
    tokens = torch.randint(0, VOCAB, (length,), generator=generator)
    logits = logits_of(model, tokens)

    state = {k: v.contiguous() for k, v in model.state_dict().items()}
    for feature in features:
        change = (logits_of(without(feature, config, model_class, state), tokens) - logits).abs().max()
        assert change > VISIBLE, f"{name}: {feature} changes the logits by {change:.4f} only"

    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    config.dtype = dtype
    config.architectures = [model_class.__name__]
    config.save_pretrained(folder)
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    write_weights(folder, {k: v.to(dtype) for k, v in state.items()}, 2 if name == "llama3" else 1)
    expected = {"tokens": tokens, "logits": logits.contiguous()}
    save_file(expected, folder / "expected.safetensors")
    if name == "llama3":
        write_tokenizer(folder)
    print(f"{name}: {length} tokens, logits std {logits.std():.2f}, max {logits.abs().max():.2f}")


def main():
    torch.set_num_threads(1)
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "tiny")
    for seed, name in enumerate(FAMILIES, start=1):
        make(name, seed, out)


if __name__ == "__main__":
    main()
