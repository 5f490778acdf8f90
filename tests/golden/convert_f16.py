# SPDX-License-Identifier: Apache-2.0
"""Makes the F16 twin of a quantised GGUF: the same values, as llama.cpp and Assay both can read them exactly.

convert_f16.py MODEL.gguf [OUT.gguf]: matrices are dequantised by the `gguf` package and rounded to F16 once (as Assay's
loader does), vectors stay F32, metadata is copied. OUT defaults to MODEL's name with .F16.gguf beside it in the cache,
${ASSAY_CACHE:-$HOME/.cache/assay}/models. Prints the path. A file that is already there is kept. --f32 rounds to nothing.
"""
import os
import sys
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, dequantize


def copy_metadata(reader, writer):
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=element)


def convert(source, target, kind=GGMLQuantizationType.F16):
    reader = GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    partial = Path(str(target) + ".partial")
    writer = GGUFWriter(partial, architecture)
    copy_metadata(reader, writer)
    writer.add_file_type(1 if kind == GGMLQuantizationType.F16 else 0)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if values.ndim > 1 and kind == GGMLQuantizationType.F16:
            values = values.astype(np.float16)
        writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(target)


def main():
    arguments = [a for a in sys.argv[1:] if a != "--f32"]
    kind = GGMLQuantizationType.F32 if "--f32" in sys.argv else GGMLQuantizationType.F16
    source = Path(arguments[0])
    cache = Path(os.environ.get("ASSAY_CACHE", Path.home() / ".cache" / "assay")) / "models"
    stem = source.name.removesuffix(".gguf").rsplit(".", 1)[0]
    target = Path(arguments[1]) if len(arguments) > 1 else cache / f"{stem}.{kind.name}.gguf"
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        print(f"convert_f16: writing {target}", file=sys.stderr)
        convert(source, target, kind)
    print(target)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main()
