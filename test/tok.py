#!/usr/bin/env python3
"""Tokenizers for t_tokenizer.sh: text, and the ids of the reference packages for it.

  tok.py text FILE BYTES          English, code, Chinese, emoji and marks, broken UTF-8, from a formula: the same everywhere
  tok.py ids NAME MODE FILE OUT   the reference's ids as int32, documents by MODE (none, lines); without the packages an exit status of 3
  tok.py sum NAME MODE            the sums (one or, of SentencePiece, one a version) of the reference's ids for the text of 200000 bytes, kept in like/tok_sums.json
  tok.py dump FILE.h5 OUT         the ids of a token file as int32 (needs h5py)
  tok.py keep                     trains the vocabularies in like/ anew and writes the sums (needs both packages); `more` adds those of other versions
Split patterns and flags are those of GPT-2, Llama 3 and Qwen2; the vocabularies are small, for no model can be fetched."""
import hashlib
import json
import os
import sys

LIKE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "like")
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
KEPT = 200000
NAMES = ["gpt2.json", "llama3.json", "qwen2.json", "unigram.model", "bpe.model"]

WORDS = """the of and to in a is that it was for on are as with his they at be this have from or had by hot word but what some we can out other were all there when up use your how said an each
she which do their time if will way about many then them write would like so these her long make thing see him two has look more day could go come did number sound no most people my over know water
than call first who may down side been now find head stand own page should country found answer school grow study still learn plant cover food sun four between state keep eye never last let thought
cut across talk""".split()
CODE = ["for (int i = 0; i < n; i++) {\n", "  return x[i] + 0x1F;\n", "}\n", "#include <stdio.h>\n", "def f(self, *args):\n    ", "\tif err != nil {\n\t\t", "// TODO: fix\n", "std::vector<int> v;\r\n",
        "x = {'a': 1, \"b\": [2, 3]}", "<div class=\"c\">&nbsp;</div>", "SELECT * FROM t WHERE id = 12345;", "$HOME/.config", "a->b->c", "!==", "0.125e-7", "_private__name"]
ODD = ["I'm", "WE'LL", "it's", "'\u017f", "don\u2019t", "e\u0301", "\u00f1", "n\u0303", "\u212b", "\u1100\u1161\u11a8", "\u304b\u3099", "\ufb01", "\u0627\u0644\u0639\u0631\u0628\u064a\u0629", "\u0939\u093f\u0928\u094d\u0926\u0940",
       "\u0e44\u0e17\u0e22", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "\U0001f44d\U0001f3fd", "\u00a0x", "\u3000y", "\u2028z", "\u0085q", "\u180e", "   ", "\t\t", "\n\n", "\r\n", " \n ", "12345678",
       "\u0664\u0665", "\u2167", "\u00b2", "<|endoftext|>", "<|end_of_text|>", "<|im_start|>", "<|", "<tool>", "</s>", "\u2581", "\ufffd", "a\u0300\u0301\u0316", "\u0344", "\u1e9b\u0323"]


class Chance:
    def __init__(self, seed):
        self.x = seed

    def __call__(self, n):
        self.x = (self.x * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.x >> 33) % n


def text(size):
    r, out, n = Chance(7), [], 0
    while n < size:
        k = r(16)
        if k < 6:
            s = " ".join(WORDS[r(r(len(WORDS)) + 1)] for _ in range(r(12) + 1)) + [". ", ", ", "\n", "? ", " "][r(5)]
            b = (s.capitalize() if r(3) == 0 else s).encode()
        elif k < 9:
            b = CODE[r(len(CODE))].encode()
        elif k < 11:
            b = ("".join(chr(0x4e00 + r(r(2000) + 1)) for _ in range(r(20) + 1)) + "\u3002\uff0c\n"[r(3)]).encode()
        elif k < 12:
            b = (chr(0x1f300 + r(0x2ff)) * (r(3) + 1) + " " * r(4)).encode()
        elif k < 15:
            b = (ODD[r(len(ODD))] + " " * r(2)).encode()
        else:
            b = bytes(r(256) for _ in range(r(8) + 1)) + b" "
        if r(4000) == 0:
            b = [b" " * r(400), b"x" * r(400), b"ab" * r(300), b"\n" * r(9)][r(4)]
        out.append(b)
        n += len(b)
    return b"".join(out)[:size]


def documents(data, mode):
    docs = [data] if mode == "none" else [d[:-1] if d.endswith(b"\r") and more else d for d, more in zip(data.split(b"\n"), [True] * data.count(b"\n") + [False])]
    return [d.decode("utf-8", "replace") for d in docs if d]


def reference(name, mode, data):
    import numpy as np
    path = os.path.join(LIKE, "tok_" + name)
    if name.endswith(".model"):
        import sentencepiece
        t = sentencepiece.SentencePieceProcessor(model_file=path)
        eod, encode = t.eos_id(), t.encode
    else:
        import tokenizers
        t = tokenizers.Tokenizer.from_file(path)
        eod = t.token_to_id("<|end_of_text|>" if name.startswith("llama3") else "<|endoftext|>")
        encode = lambda s: t.encode(s, add_special_tokens=False).ids
    return np.concatenate([np.array(encode(d) + [eod], dtype=np.int32) for d in documents(data, mode)])


def train_bpe(name, pattern, special, **more):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    t = Tokenizer(models.BPE())
    byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    t.pre_tokenizer = byte if pattern is None else pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte])
    if more.get("nfc"):
        t.normalizer = normalizers.NFC()
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(documents(text(KEPT), "lines"), trainers.BpeTrainer(vocab_size=900, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in special])
    t.add_tokens([AddedToken("<tool>", normalized=True)])
    j = json.loads(t.to_str())
    if more.get("ignore_merges"):   # words of the vocabulary that no merge makes: then the flag matters
        j["model"]["ignore_merges"] = True
        j["model"]["merges"] = [m for i, m in enumerate(j["model"]["merges"]) if i < 300 or i % 20]
    json.dump(j, open(os.path.join(LIKE, "tok_" + name), "w"), ensure_ascii=False, separators=(",", ":"))


def keep():
    import sentencepiece
    train_bpe("gpt2.json", None, ["<|endoftext|>"])
    train_bpe("llama3.json", LLAMA3, ["<|begin_of_text|>", "<|end_of_text|>"], ignore_merges=True)
    train_bpe("qwen2.json", QWEN2, ["<|endoftext|>", "<|im_start|>"], nfc=True)
    lines = [d for d in documents(text(KEPT), "lines") if len(d) < 1000]
    for kind in ("unigram", "bpe"):
        with open(os.path.join(LIKE, f"tok_{kind}.model"), "wb") as f:
            sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=f, vocab_size=1600, model_type=kind, byte_fallback=True, character_coverage=0.98, minloglevel=2,
                                                     normalization_rule_name="identity", remove_extra_whitespaces=kind == "unigram")
    json.dump({}, open(os.path.join(LIKE, "tok_sums.json"), "w"))
    more()


def more():
    """Adds this version's sums: of segmentations of equal score SentencePiece 0.1.97 and 0.2 take different ones."""
    path = os.path.join(LIKE, "tok_sums.json")
    sums = json.load(open(path))
    for n in NAMES:
        for m in ("none", "lines"):
            x = hashlib.sha256(reference(n, m, text(KEPT)).tobytes()).hexdigest()
            sums[f"{n} {m}"] = sorted(set(sums.get(f"{n} {m}", []) + [x]))
    json.dump(sums, open(path, "w"), indent=1)


def main(what, *args):
    if what == "text":
        open(args[0], "wb").write(text(int(args[1])))
    elif what == "ids":
        try:
            reference(args[0], args[1], open(args[2], "rb").read()).tofile(args[3])
        except ImportError:
            return 3
    elif what == "sum":
        print(*json.load(open(os.path.join(LIKE, "tok_sums.json")))[f"{args[0]} {args[1]}"])
    elif what == "dump":
        import h5py
        h5py.File(args[0])["tokens"][:].astype("i4").tofile(args[1])
    elif what == "names":
        print(" ".join(NAMES))
    else:
        {"keep": keep, "more": more}[what]()
    return 0


sys.exit(main(*sys.argv[1:]))
