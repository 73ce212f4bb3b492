"""A small real tokenizer: one id a character, with or without a chat template."""

from __future__ import annotations

import string
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIALS = ["<pad>", "<s>", "</s>", "<unk>", "<u>", "<a>", "<y>"]
BOS, EOS = 1, 2
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "{{ {'user': '<u>', 'assistant': '<a>', 'system': '<y>'}[m.role] + m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


def word_tokenizer(chat: bool = False) -> Any:
    vocabulary = [*SPECIALS, *string.printable]
    backend = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("(?m)."), "isolated")
    backend.decoder = decoders.Fuse()
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=["<u>", "<a>", "<y>"],
    )
    if chat:
        tokenizer.chat_template = TEMPLATE
    return tokenizer
