# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's C API by ctypes, from the shared object of the PyPI wheel `xllamacpp` (2026.10.11549).

The structs below are those of that version's llama.h; `Llama` checks them against the library's own defaults, so that a
wheel with another layout fails at once instead of giving wrong goldens.
"""
import ctypes as c
import glob
import importlib.util
import os

import numpy as np


class ModelParams(c.Structure):
    _fields_ = [("devices", c.c_void_p), ("overrides", c.c_void_p), ("n_gpu_layers", c.c_int32),
                ("split_mode", c.c_int), ("load_mode", c.c_int), ("lazy_mode", c.c_int), ("main_gpu", c.c_int32),
                ("tensor_split", c.c_void_p), ("progress", c.c_void_p), ("progress_ctx", c.c_void_p),
                ("kv_overrides", c.c_void_p), ("vocab_only", c.c_bool), ("check_tensors", c.c_bool),
                ("use_extra_bufts", c.c_bool), ("no_host", c.c_bool), ("no_alloc", c.c_bool), ("load_mtp", c.c_bool)]


class ContextParams(c.Structure):
    _fields_ = [("n_ctx", c.c_uint32), ("n_batch", c.c_uint32), ("n_ubatch", c.c_uint32), ("n_seq_max", c.c_uint32),
                ("n_rs_seq", c.c_uint32), ("n_outputs_max", c.c_uint32), ("n_outputs_max_per_seq", c.c_uint32),
                ("n_threads", c.c_int32), ("n_threads_batch", c.c_int32), ("ctx_type", c.c_int),
                ("rope_scaling_type", c.c_int), ("pooling_type", c.c_int), ("attention_type", c.c_int),
                ("flash_attn_type", c.c_int), ("rope_freq_base", c.c_float), ("rope_freq_scale", c.c_float),
                ("yarn_ext_factor", c.c_float), ("yarn_attn_factor", c.c_float), ("yarn_beta_fast", c.c_float),
                ("yarn_beta_slow", c.c_float), ("yarn_orig_ctx", c.c_uint32), ("defrag_thold", c.c_float),
                ("cb_eval", c.c_void_p), ("cb_eval_ctx", c.c_void_p), ("type_k", c.c_int), ("type_v", c.c_int),
                ("abort", c.c_void_p), ("abort_ctx", c.c_void_p), ("reserved", c.c_void_p), ("embeddings", c.c_bool), ("offload_kqv", c.c_bool),
                ("no_perf", c.c_bool), ("op_offload", c.c_bool), ("swa_full", c.c_bool), ("kv_unified", c.c_bool),
                ("samplers", c.c_void_p), ("n_samplers", c.c_size_t), ("ctx_other", c.c_void_p)]


class Batch(c.Structure):
    _fields_ = [("n_tokens", c.c_int32), ("token", c.POINTER(c.c_int32)), ("embd", c.c_void_p),
                ("pos", c.POINTER(c.c_int32)), ("n_seq_id", c.POINTER(c.c_int32)),
                ("seq_id", c.POINTER(c.POINTER(c.c_int32))), ("logits", c.POINTER(c.c_int8))]


LOG_CALLBACK = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)
_silent = LOG_CALLBACK(lambda level, text, ctx: None)
TYPE_F32, TYPE_F16 = 0, 1


def load_library():
    package = importlib.util.find_spec("xllamacpp").submodule_search_locations[0]
    lib = c.CDLL(glob.glob(os.path.join(package, "xllamacpp*.so"))[0])
    pointer = c.c_void_p
    signatures = {
        "llama_model_default_params": (ModelParams, []),
        "llama_context_default_params": (ContextParams, []),
        "llama_model_load_from_file": (pointer, [c.c_char_p, ModelParams]),
        "llama_init_from_model": (pointer, [pointer, ContextParams]),
        "llama_model_get_vocab": (pointer, [pointer]),
        "llama_vocab_n_tokens": (c.c_int32, [pointer]),
        "llama_tokenize": (c.c_int32, [pointer, c.c_char_p, c.c_int32, c.POINTER(c.c_int32), c.c_int32, c.c_bool, c.c_bool]),
        "llama_batch_init": (Batch, [c.c_int32, c.c_int32, c.c_int32]),
        "llama_batch_free": (None, [Batch]),
        "llama_decode": (c.c_int32, [pointer, Batch]),
        "llama_synchronize": (None, [pointer]),
        "llama_get_logits_ith": (c.POINTER(c.c_float), [pointer, c.c_int32]),
        "llama_get_memory": (pointer, [pointer]),
        "llama_memory_clear": (None, [pointer, c.c_bool]),
        "llama_free": (None, [pointer]),
        "llama_model_free": (None, [pointer]),
        "llama_log_set": (None, [LOG_CALLBACK, pointer]),
        "llama_backend_init": (None, []),
        "llama_print_system_info": (c.c_char_p, []),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    lib.llama_log_set(_silent, None)
    lib.llama_backend_init()
    return lib


class Llama:
    def __init__(self, path, vocab_only=False, n_ctx=2048, threads=2, kv_type=TYPE_F16, flash=1, n_ubatch=512, sequences=1):
        self.lib = load_library()
        params = self.lib.llama_model_default_params()
        context = self.lib.llama_context_default_params()
        layout_ok = (not params.vocab_only and params.use_extra_bufts and context.n_ctx == 512 and
                     context.n_batch == 2048 and context.n_ubatch == 512 and context.type_k == TYPE_F16 and
                     context.offload_kqv and context.n_samplers == 0)
        if not layout_ok:
            raise RuntimeError("llama.cpp's structs have another layout than this file states")
        params.vocab_only = vocab_only
        params.n_gpu_layers = 0
        self.model = self.lib.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self.vocab = self.lib.llama_model_get_vocab(self.model)
        self.n_vocab = self.lib.llama_vocab_n_tokens(self.vocab)
        self.ctx = None
        if not vocab_only:
            context.n_ctx, context.n_batch, context.n_ubatch = n_ctx, max(n_ctx, 32), min(n_ubatch, max(n_ctx, 32))
            context.n_seq_max = sequences
            context.n_threads = context.n_threads_batch = threads
            context.type_k = context.type_v = kv_type
            context.flash_attn_type = flash
            self.n_ctx = n_ctx
            self.ctx = self.lib.llama_init_from_model(self.model, context)
            if not self.ctx:
                raise RuntimeError("llama.cpp cannot make a context")

    def tokenize(self, text, add_special=False, parse_special=False):
        data = text if isinstance(text, bytes) else text.encode()
        room = len(data) + 16
        buffer = (c.c_int32 * room)()
        count = self.lib.llama_tokenize(self.vocab, data, len(data), buffer, room, add_special, parse_special)
        if count < 0:
            raise RuntimeError(f"llama_tokenize: {count}")
        return list(buffer[:count])

    def clear(self):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.ctx), True)

    def decode(self, tokens, first_position, all_logits):
        """Logits [count][vocab] of the given rows of one batch (all of them, or the last)."""
        return self.decode_many([tokens], first_position, all_logits)

    def decode_many(self, sequences, first_position, all_logits=False):
        """The same for several sequences, as many tokens of each, in one batch: logits of all rows, or of the last of each."""
        count = sum(map(len, sequences))
        batch = self.lib.llama_batch_init(count, 0, 1)
        batch.n_tokens = count
        rows, i = [], 0
        for number, tokens in enumerate(sequences):
            for j, token in enumerate(tokens):
                batch.token[i] = token
                batch.pos[i] = first_position + j
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = number
                wanted = all_logits or j == len(tokens) - 1
                batch.logits[i] = 1 if wanted else 0
                rows += [i] if wanted else []
                i += 1
        status = self.lib.llama_decode(self.ctx, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode: {status}")
        logits = np.stack([np.ctypeslib.as_array(self.lib.llama_get_logits_ith(self.ctx, i), (self.n_vocab,)).copy()
                           for i in rows])
        self.lib.llama_batch_free(batch)
        return logits

    def close(self):
        if self.ctx:
            self.lib.llama_free(self.ctx)
        self.lib.llama_model_free(self.model)
