"""Calls llama.cpp through ctypes: the C API inside the wheel `xllamacpp`, which the wheel's Python module lacks.

This module has only the functions that kl_llamacpp.py and tokenizer/make_tokenizer.py need. The layout of
llama.cpp's parameter structs is not part of the wheel, so the few fields that this module sets are found
by offset. Each field is first checked to hold its documented default, so that a wheel with another layout
fails instead of giving wrong figures. Structs are passed in buffers larger than the real structs, which
the x86-64 System V ABI allows (such structs travel on the stack).
"""

import ctypes
import importlib.util
import pathlib
import struct

import numpy as np

TYPES = {"f32": 0, "f16": 1}

# Field of llama.cpp's context parameters -> (offset in bytes, struct format, default)
CONTEXT_FIELDS = {
    "n_ctx": (0, "I", 512),
    "n_batch": (4, "I", 2048),
    "n_ubatch": (8, "I", 512),
    "n_threads": (28, "i", 4),
    "n_threads_batch": (32, "i", 4),
    "flash_attn_type": (52, "i", -1),
    "type_k": (104, "i", 1),
    "type_v": (108, "i", 1),
}


class Params(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 512)]


class Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


def load_library():
    spec = importlib.util.find_spec("xllamacpp")
    lib = ctypes.CDLL(str(next(pathlib.Path(spec.origin).parent.glob("xllamacpp*.so"))))
    pointer = ctypes.c_void_p
    signatures = {
        "llama_backend_init": (None, []),
        "llama_model_default_params": (Params, []),
        "llama_context_default_params": (Params, []),
        "llama_model_load_from_file": (pointer, [ctypes.c_char_p, Params]),
        "llama_init_from_model": (pointer, [pointer, Params]),
        "llama_model_get_vocab": (pointer, [pointer]),
        "llama_vocab_n_tokens": (ctypes.c_int32, [pointer]),
        "llama_tokenize": (
            ctypes.c_int32,
            [pointer, ctypes.c_char_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_int32), ctypes.c_int32]
            + [ctypes.c_bool, ctypes.c_bool],
        ),
        "llama_batch_init": (Batch, [ctypes.c_int32] * 3),
        "llama_batch_free": (None, [Batch]),
        "llama_decode": (ctypes.c_int32, [pointer, Batch]),
        "llama_get_logits": (ctypes.POINTER(ctypes.c_float), [pointer]),
        "llama_free": (None, [pointer]),
        "llama_model_free": (None, [pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    # llama.cpp logs every tensor that it loads. Its log is turned off, so that it does not stand between the figures.
    callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    lib.quiet = callback(lambda level, text, data: None)
    lib.llama_log_set.argtypes = [callback, ctypes.c_void_p]
    lib.llama_log_set(lib.quiet, None)
    lib.llama_backend_init()
    return lib


class Model:
    """A model of a GGUF file, loaded by llama.cpp."""

    def __init__(self, lib, path):
        self.lib = lib
        self.model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        assert self.model, f"llama.cpp cannot load {path}"
        self.vocab = lib.llama_model_get_vocab(self.model)

    def tokenize(self, text):
        """Returns the token ids of a text. Special tokens in the text are parsed; none is added."""
        data = text.encode()
        ids = (ctypes.c_int32 * (len(data) + 8))()
        count = self.lib.llama_tokenize(self.vocab, data, len(data), ids, len(ids), False, True)
        assert count >= 0
        return list(ids[:count])

    def logits(self, tokens, kv="f16", flash_attn=None, threads=1):
        """Returns the logits [T, vocab] f32 of all positions, computed in one batch of micro-batches of 512 tokens."""
        settings = {
            "n_ctx": len(tokens) + 64,
            "n_batch": len(tokens) + 64,
            "n_threads": threads,
            "n_threads_batch": threads,
            "type_k": TYPES[kv],
            "type_v": TYPES[kv],
        }
        if flash_attn is not None:
            settings["flash_attn_type"] = int(flash_attn)
        params = self.lib.llama_context_default_params()
        for name, (offset, kind, default) in CONTEXT_FIELDS.items():
            found = struct.unpack_from(kind, params.bytes, offset)[0]
            assert found == default, f"{name} is {found}, not {default}: another llama.cpp than expected"
            struct.pack_into(kind, params.bytes, offset, settings.get(name, default))
        context = self.lib.llama_init_from_model(self.model, params)
        assert context, "llama.cpp refused the context parameters"
        batch = self.lib.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, 1
        assert self.lib.llama_decode(context, batch) == 0
        vocab = self.lib.llama_vocab_n_tokens(self.vocab)
        rows = np.ctypeslib.as_array(self.lib.llama_get_logits(context), (len(tokens), vocab)).copy()
        self.lib.llama_batch_free(batch)
        self.lib.llama_free(context)
        return rows

    def close(self):
        self.lib.llama_model_free(self.model)
