# SPDX-License-Identifier: Apache-2.0
"""Writes the tokenizer's goldens: small vocabularies as GGUF, strings, and the tokens that other programs make of them.

golden_tokenizer.py MODEL.gguf writes
  tokenizer_<name>.gguf   vocabularies without weights: byte-level BPE trained by PyPI `tokenizers`, one for each
                          pre-tokenizer; SentencePiece-BPE with byte fallback trained by `sentencepiece`
  tokenizer.json          the strings; for each vocabulary (and for MODEL's own, "smollm2") the tokens of each string;
                          and texts with special tokens, parsed and not.
Oracles: `tokenizers` with the models' own expressions and `sentencepiece`, cross-checked with llama.cpp (`xllamacpp`);
where those differ the script says so and the former stand, as the models' authors use them. "default" exists only in
llama.cpp.
"""
import io
import json
import random
import sys
from pathlib import Path

import sentencepiece
from gguf import GGUFReader, GGUFWriter, TokenType
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from llama_cpp import Llama

HERE = Path(__file__).parent
VOCAB = 420
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
ENDS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
          r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
          r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPLITS = {"gpt-2": None, "llama-bpe": WORDS + r"\p{N}{1,3}|" + ENDS, "qwen2": WORDS + r"\p{N}|" + ENDS, "tekken": TEKKEN}
CODE = '''#include <stdio.h>\nint main(void)\n{\n\tfor (int i = 0; i < 10; ++i) {\n        printf("%d\\n", i*2);\n\t}\n}\n
def f(x: int) -> dict:\n    return {'a': x ** 2, "b": [1, 2.5e-3, 0xFF]}  # TODO\r\n\r\nSELECT * FROM t WHERE a<=3 AND b<>'x''y';\n'''
SAMPLES = [
    "", " ", "  ", "   ", "\n", "\n\n", "\n\n\n", "\t", "\t\t", "\r\n", " \n", "\n ", " \n \n ", "a", " a", "  a", "   a", "a ",
    "a  ", "a   b", "a\nb", "a\n\nb", "a \n b", "a\tb", "\ta", "a\r\nb\r\n\r\nc", "Hello", "Hello world", " Hello world",
    "Hello, world!", "hello   world", "HELLO World hElLo", "it's I'm you've we'll he'd they're don't", "IT'S I'M YOU'VE WE'LL",
    "it\u2019s", "'s", " 's", "''s", "'S'T", "'tis 'twas", "1", "12", "123", "1234", "12345", "1234567890", "1 2 3", "3.14159",
    "1,000,000", "0x1F", "1e-10", "a1b2c3", "x2", "2x", "\u0661\u0662\u0663", "\u00bd\u00b2\u2163", "!", "!!", "!!!", "?!.", "...", "a.b.c",
    "foo_bar-baz/qux", "http://example.org/a?b=c&d=%20#e", "user@example.org", "C:\\dir\\file.txt", "<html><body>x</body></html>",
    "{\"a\": [1, 2, {\"b\": null}]}", "$100 \u20ac50 \u00a330", "a+b=c", "x<=y>=z!=w", "(((a)))", "[[b]]", "#!/bin/sh", "// comment",
    "caf\u00e9 na\u00efve r\u00e9sum\u00e9", "cafe\u0301", "\u00c4\u00d6\u00dc\u00e4\u00f6\u00fc\u00df", "\u0141\u00f3d\u017a", "\u0391\u03b8\u03ae\u03bd\u03b1",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c", "\uc548\ub155\ud558\uc138\uc694", "\u05e9\u05dc\u05d5\u05dd",
    "\u0645\u0631\u062d\u0628\u0627", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\u1ea3\u1eb5\u1ec7", "\U0001f600", "\U0001f600\U0001f601 \U0001f602", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f",
    "\U0001d54f\U0001d7d8", "\u200b", "\ufeffx", "a\u00a0b", "a\u2003b", "a\u3000b", "\u2028x\u2029", "a\u0085b", "\u2014 \u2013 \u2026", "\u201cquoted\u201d", "\u00bf\u00a1",
    "\u2581", "a\u2581b", "\u2581\u2581a", " \u2581 ", "\x00", "a\x00b", "\x01\x02\x7f", "\ufffd", "z" * 70, "ab" * 60, "1" * 40, " " * 40, "\n" * 20, "\t \t \n" * 5, "=" * 33,
    "-" * 80, "The quick brown fox jumps over the lazy dog.", "I can't believe it's not butter!", "  leading and trailing  ",
    "tabs\tand\nnewlines\r\nmixed", "MixedCaseIdentifierXMLParser", "snake_case_identifier", "kebab-case-identifier", CODE,
    "ends with space ", "ends with newline\n", "multiple   spaces    between     words", "\n  indented\n    more\n",
    "\u0130stanbul \u0131", "\u017f'\u017f", "\u01c5 \u02b0 \u0300x", "x\u0300\u0301\u0302y", "\u0968\u0969", "\u2460\u2461", "\u3007", "\u216b", "a\u00adb", "\u180ex", "\u202fx", "x\u001fy\u001cz", "\u000b\u000c",
    "<s>", "</s>", "<unk>", "<0x41>", "<|im_start|>user\nhi<|im_end|>", "<|endoftext|>", "<|im_start", "|im_end|>",
]
PIECES = ["the", " quick", "Brown", " fox's", "\n", "\n\n", "  ", "\t", "123", " 4567", "!?", " ...", "\u00e9", "\u4e16\u754c", "\U0001f680", "'ll", "'RE", "_", "{}",
          "\u0627\u0644", "\u00a0", "\r\n", "==", " =>", "A", "z", " ", "9", "\u0301", "\u2019s", "//", "\u3002", "I", "Don't", "\u0416", "\u03a9m"]
SPECIAL = ["<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "<|endoftext|>", "a<|endoftext|>b", " <|im_end|> ", "<|im_end|><|im_end|>",
           "<|im_end|", "<<|im_end|>>", "<repo_name>x<file_sep>y", "<reponame>", "<filename", "1<|im_start|>2", "  <|im_start|>  "]


def make_strings():
    source = random.Random(11)
    english = (HERE / "english.txt").read_text()
    strings = list(SAMPLES)
    for _ in range(220):
        strings.append("".join(source.choice(PIECES) for _ in range(source.randint(2, 14))))
    for _ in range(40):
        start = source.randrange(len(english) - 300)
        strings.append(english[start:start + source.randint(20, 280)])
    return strings


def byte_level(split):
    if split is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train_bpe(split, whole_words_first, corpus):
    tokenizer = Tokenizer(models.BPE(ignore_merges=whole_words_first))
    tokenizer.pre_tokenizer = byte_level(split)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  special_tokens=[], show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def write_bpe(tokenizer, pre):
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    writer = GGUFWriter(HERE / f"tokenizer_{pre}.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens + ["<|bos|>", "<|user|>"])
    writer.add_token_types([TokenType.NORMAL] * len(tokens) + [TokenType.CONTROL, TokenType.USER_DEFINED])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(len(tokens))
    writer.add_eos_token_id(len(tokens))
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def train_spm(corpus):
    blob = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus), model_writer=blob, model_type="bpe", vocab_size=700, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.99,
        allow_whitespace_only_pieces=True, split_digits=True, user_defined_symbols=["<|user|>"], num_threads=1, minloglevel=2)
    return sentencepiece.SentencePieceProcessor(model_proto=blob.getvalue())


def write_spm(spm):
    def kind(i):
        return (TokenType.UNKNOWN if spm.is_unknown(i) else TokenType.CONTROL if spm.is_control(i) else
                TokenType.BYTE if spm.is_byte(i) else
                TokenType.USER_DEFINED if spm.id_to_piece(i) == "<|user|>" else TokenType.NORMAL)
    count = spm.get_piece_size()
    writer = GGUFWriter(HERE / "tokenizer_spm.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([spm.id_to_piece(i) for i in range(count)])
    writer.add_token_scores([spm.get_score(i) for i in range(count)])
    writer.add_token_types([kind(i) for i in range(count)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    finish(writer)


def from_gguf(path):
    """MODEL's vocabulary as its authors' tokenizer runs it: single digits, then GPT-2's words."""
    fields = GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(None)])
    return tokenizer


def compare(name, strings, ours, path):
    llama = Llama(path, vocab_only=True)
    differ = []
    for text, tokens in zip(strings, ours):
        other = llama.tokenize(text)
        if other != tokens:
            differ.append((text, tokens, other))
    print(f"{name}: llama.cpp differs on {len(differ)} of {len(strings)} strings")
    for text, tokens, other in differ[:12]:
        print(f"    {text[:50]!r} {tokens[:12]} {other[:12]}")


def main():
    model = sys.argv[1]
    strings = make_strings()
    corpus = [(HERE / "english.txt").read_text()] + [s for s in strings if s and "\x00" not in s]
    golden = {"strings": strings, "tokens": {}}
    for pre, split in SPLITS.items():
        tokenizer = train_bpe(split, pre in ("llama-bpe", "tekken"), corpus)
        write_bpe(tokenizer, pre)
        golden["tokens"][pre] = [tokenizer.encode(s).ids for s in strings]
        compare(pre, strings, golden["tokens"][pre], HERE / f"tokenizer_{pre}.gguf")
    write_bpe(train_bpe(None, False, corpus), "default")
    llama = Llama(HERE / "tokenizer_default.gguf", vocab_only=True)
    golden["tokens"]["default"] = [llama.tokenize(s) for s in strings]
    spm = train_spm([line for text in corpus for line in text.split("\n") if line])
    write_spm(spm)
    golden["tokens"]["spm"] = [spm.encode(s) for s in strings]
    compare("spm", strings, golden["tokens"]["spm"], HERE / "tokenizer_spm.gguf")
    smollm = from_gguf(model)
    golden["tokens"]["smollm2"] = [smollm.encode(s).ids for s in strings]
    compare("smollm2", strings, golden["tokens"]["smollm2"], model)
    llama = Llama(model, vocab_only=True)
    golden["special"] = [{"text": t, "parsed": llama.tokenize(t, parse_special=True), "plain": llama.tokenize(t)}
                         for t in SPECIAL]
    lines = [f' "strings": {json.dumps(golden["strings"])},', f' "special": {json.dumps(golden["special"])},', ' "tokens": {']
    lines += [f'  "{name}": {json.dumps(tokens, separators=(",", ":"))},' for name, tokens in golden["tokens"].items()]
    lines[-1] = lines[-1].rstrip(",")
    (HERE / "tokenizer.json").write_text("{\n" + "\n".join(lines) + "\n }\n}\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main()
