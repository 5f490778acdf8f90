# SPDX-License-Identifier: Apache-2.0
"""Client of Assay, a distributed KV cache for LLM serving: blocks of K and V on store nodes, named by content.

    import assay, numpy

    shape = assay.Shape(layers=30, q_heads=9, kv_heads=3, head_dim=64)
    space = assay.namespace(fingerprint, shape, "my-engine-1/f16")
    keys = assay.chain(space, tokens, shape.block_tokens)
    with assay.Client("127.0.0.1:7700") as client:
        client.put_many(keys, shape, space, blocks)              # blocks: a numpy array, read where it lies
        out = numpy.empty((len(keys), *shape.block_shape), "f2")
        hits = client.get_into(keys, shape, out)                 # written where it lies; out[:hits] is right
"""
from ._client import Client, Operation, Prediction, Stats, Store
from ._errors import AssayError, Busy, Conflict, Denied, Failed, Invalid, Timeout, Unreachable
from ._keys import Keys, Shape, chain, namespace
from ._library import version

__all__ = ["AssayError", "Busy", "Client", "Conflict", "Denied", "Failed", "Invalid", "Keys", "Operation", "Prediction", "Shape",
           "Stats", "Store", "Timeout", "Unreachable", "chain", "namespace", "version"]
__version__ = version()
