"""Oddities of JSON values that were asked for."""

from __future__ import annotations

from tests.fakes.oddities.oddity import Oddity, Result
from tests.fakes.oddities.wire_formats import Thought

VALUE = {"who": "Oswin"}
TEXT = '{"who": "Oswin"}'
READ = Result(value=VALUE)

VALUES = [
    Oddity("value", "every vendor", [TEXT[:7], TEXT[7:]], READ),
    Oddity("value-whole", "servers without streams", [TEXT], READ, is_whole=True),
    Oddity("value-in-a-fence", "models without schemas", ["```json\n", TEXT, "\n```"], READ),
    Oddity("value-in-words", "small models", ["Here you are:\n```json\n", TEXT, "\n```"], READ),
    Oddity("value-after-thoughts", "DeepSeek R1", ["<think>Who?</think>\n", TEXT], READ),
    Oddity("value-after-a-lone-tag", "Qwen 3", ["Who?\n</think>\n", TEXT], READ),
    Oddity("value-after-a-member", "every vendor", [Thought("Who?"), TEXT], READ),
]
