"""Makes the test vectors beside this file: small vocabularies, and the token ids that other tokenizers give for the
texts of texts.py.

    python3 -m venv venv && venv/bin/pip install -r requirements.txt
    venv/bin/python make_tokenizer.py SmolLM2-135M-Instruct.Q4_1.gguf

byte_level.json      a byte-level vocabulary; for each pre-tokenizer the ids by a Hugging Face tokenizer, built as
                     in the tokenizer.json of the model family, and checked against llama.cpp
sentence_piece.json  a SentencePiece vocabulary with scores; ids by llama.cpp, checked against SentencePiece
hf_*/                the same vocabularies as Hugging Face directories; ids and texts by HF tokenizers
smollm2.json         ids by HF tokenizers, checked against llama.cpp, with the default model's vocabulary
"""

import ctypes
import io
import json
import pathlib
import sys
import tempfile
import unicodedata

import gguf
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

from texts import TEXTS

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import llamacpp  # noqa: E402

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern):
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])


def gpt2():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


# GGUF's name of a pre-tokenizer -> (pre-tokenizer of the model family's tokenizer.json, normalizer, ignore_merges)
FAMILIES = {
    "gpt-2": (gpt2(), None, False),
    "smollm": (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2()]), None, False),
    "llama-bpe": (split(WORDS + r"\p{N}{1,3}|" + REST), None, True),
    "qwen2": (split(WORDS + r"\p{N}|" + REST), normalizers.NFC(), False),
    "tekken": (split(TEKKEN), None, True),
    # Only llama.cpp defines the pre-tokenizer `default`, so its token ids come from llama.cpp.
    "default": None,
}


# Texts for which llama.cpp may give other token ids than the model's own tokenizer: llama.cpp does not normalise, and
# its letter classes for Tekken are ASCII.
EXCUSES = {
    "qwen2": lambda text: unicodedata.normalize("NFC", text) != text,
    "tekken": lambda text: not text.isascii(),
}


class LlamaCpp:
    """The vocabulary of a GGUF file, loaded by llama.cpp without weights."""

    def __init__(self, lib, path):
        params = lib.llama_model_default_params()
        # `vocab_only` is the first flag in llama.cpp's model parameters; of these flags only `use_extra_bufts` is on by
        # default.
        assert bytes(params.bytes[72:77]) == bytes([0, 0, 1, 0, 0]), "another llama.cpp than expected"
        params.bytes[72] = 1
        self.lib = lib
        self.model = lib.llama_model_load_from_file(str(path).encode(), params)
        assert self.model, f"llama.cpp cannot load {path}"
        self.vocab = lib.llama_model_get_vocab(self.model)

    def encode(self, text):
        data = text.encode()
        ids = (ctypes.c_int32 * (len(data) + 16))()
        count = self.lib.llama_tokenize(self.vocab, data, len(data), ids, len(ids), False, True)
        assert count >= 0
        return list(ids[:count])


def write_gguf(path, model, pre, tokens, types, merges=None, scores=None):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    if pre:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if merges is not None:
        writer.add_token_merges(merges)
    if scores is not None:
        writer.add_token_scores(scores)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def hf_byte_level(tokens, types, merges, family):
    pre_tokenizer, normalizer, ignore_merges = family
    vocab = {token: i for i, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab, pairs, ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, types):
        if kind in (CONTROL, USER_DEFINED):
            add = tokenizer.add_special_tokens if kind == CONTROL else tokenizer.add_tokens
            add([AddedToken(token, normalized=False)])
    return tokenizer


def encode_all(tokenizer):
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]


def compare(name, ours, others, excuse=lambda text: False):
    for text, a, b in zip(TEXTS, ours, others):
        assert a == b or excuse(text), f"{name}: {text!r}: {a} is not {b}"


def check_with_llamacpp(lib, name, tokens, types, merges):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "vocab.gguf"
        write_gguf(path, "gpt2", name, tokens, types, merges=merges)
        model = LlamaCpp(lib, path)
        return [model.encode(text) for text in TEXTS]


def make_byte_level(lib):
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = gpt2()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(TEXTS * 3, trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [" ".join(pair) for pair in model["merges"]]
    by_id = sorted(model["vocab"], key=model["vocab"].get)
    tokens = CONTROLS + ["<think>"] + by_id
    types = [CONTROL] * len(CONTROLS) + [USER_DEFINED] + [NORMAL] * len(by_id)
    expected = {}
    for name, family in FAMILIES.items():
        by_llamacpp = check_with_llamacpp(lib, name, tokens, types, merges)
        if family is None:
            expected[name] = by_llamacpp
            continue
        tokenizer = hf_byte_level(tokens, types, merges, family)
        expected[name] = encode_all(tokenizer)
        compare(name, expected[name], by_llamacpp, EXCUSES.get(name, lambda text: False))
        if name == "llama-bpe":
            save_hf("hf_byte_level", tokenizer, "<|im_start|>", "<|im_end|>")
    vectors = {"texts": TEXTS, "tokens": tokens, "types": types, "merges": merges, "expected": expected}
    save(HERE / "byte_level.json", vectors)


def save_hf(folder, tokenizer, bos, eos):
    """Writes a HF directory of a tokenizer that begins texts with `bos`, and its ids and decoded texts of TEXTS."""
    bos_id = tokenizer.token_to_id(bos)
    tokenizer.post_processor = processors.TemplateProcessing(f"{bos} $A", special_tokens=[(bos, bos_id)])
    folder = HERE / folder
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    save(folder / "tokenizer_config.json", {"bos_token": bos, "eos_token": {"content": eos}})
    save(folder / "generation_config.json", {"eos_token_id": [tokenizer.token_to_id(eos), 0]})
    with_special = [tokenizer.encode(text).ids for text in TEXTS]
    vectors = {
        "texts": TEXTS,
        "expected": with_special,
        "decoded": [tokenizer.decode(ids, skip_special_tokens=True) for ids in with_special],
        "decoded_with_special": [tokenizer.decode(ids, skip_special_tokens=False) for ids in with_special],
    }
    save(folder / "expected.json", vectors)


def train_sentence_piece():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in TEXTS * 3 for line in text.split("\n") if "\0" not in line),
        model_writer=model, model_type="bpe", vocab_size=1000, byte_fallback=True, character_coverage=0.98,
        normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
        allow_whitespace_only_pieces=True, user_defined_symbols=["<think>"], minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def kind_of(processor, i):
    checks = [(processor.is_unknown, UNKNOWN), (processor.is_control, CONTROL), (processor.is_byte, BYTE)]
    for check, kind in checks:
        if check(i):
            return kind
    return USER_DEFINED if processor.id_to_piece(i) == "<think>" else NORMAL


def merges_by_score(tokens, scores, types):
    """Returns every way to join two tokens to a third, best score first, as HF converts SentencePiece models."""
    ids = {token: i for i, token in enumerate(tokens) if types[i] in (NORMAL, USER_DEFINED)}
    pairs = [
        (token[:cut], token[cut:], scores[i])
        for token, i in ids.items()
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    return [pair[:2] for pair in sorted(pairs, key=lambda pair: -pair[2])]


def hf_sentence_piece(tokens, types, scores):
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = merges_by_score(tokens, scores, types)
    model = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    strip = decoders.Strip(content=" ", left=1, right=0)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip]
    tokenizer.decoder = decoders.Sequence(steps)
    for i, kind in enumerate(types):
        if kind in (UNKNOWN, CONTROL):
            tokenizer.add_special_tokens([AddedToken(tokens[i], normalized=False)])
        elif kind == USER_DEFINED:
            tokenizer.add_tokens([AddedToken(tokens[i], normalized=False)])
    return tokenizer


def make_sentence_piece(lib):
    processor = train_sentence_piece()
    count = processor.get_piece_size()
    tokens = [processor.id_to_piece(i) for i in range(count)]
    scores = [processor.get_score(i) for i in range(count)]
    types = [kind_of(processor, i) for i in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "vocab.gguf"
        write_gguf(path, "llama", None, tokens, types, scores=scores)
        model = LlamaCpp(lib, path)
        expected = [model.encode(text) for text in TEXTS]
    by_sentencepiece = [processor.encode(text) for text in TEXTS]
    # SentencePiece never reads control tokens in a text, cuts the text at NUL and maps its own space back. So texts
    # with control tokens, NUL or that space may get other token ids than from llama.cpp.
    odd = ["<s>", "</s>", "<unk>", "<think>", "\0", "▁"]
    compare("sentencepiece", expected, by_sentencepiece, lambda t: any(o in t for o in odd))
    save_hf("hf_sentence_piece", hf_sentence_piece(tokens, types, scores), "<s>", "</s>")
    vectors = {"texts": TEXTS, "tokens": tokens, "types": types, "scores": scores, "expected": expected}
    save(HERE / "sentence_piece.json", vectors)


def make_smollm2(lib, path):
    reader = gguf.GGUFReader(path)
    read = lambda name: reader.fields[f"tokenizer.ggml.{name}"].contents()  # noqa: E731
    tokenizer = hf_byte_level(read("tokens"), read("token_type"), read("merges"), FAMILIES["smollm"])
    expected = encode_all(tokenizer)
    model = LlamaCpp(lib, path)
    compare("smollm2", expected, [model.encode(text) for text in TEXTS])
    save(HERE / "smollm2.json", {"texts": TEXTS, "expected": expected})


def save(path, value):
    path.write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    library = llamacpp.load_library()
    make_byte_level(library)
    make_sentence_piece(library)
    make_smollm2(library, sys.argv[1])
