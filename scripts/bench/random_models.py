"""Folders with embedding models of random weights, in the formats of published ones.

    write_transformer(folder, Shape(layers=6, hidden=384, heads=12, inner=1536), vocabulary)

Random weights take the same time as trained ones. Transformers are in ONNX format, which is
written here field by field. Sources of the formats: onnx.proto3 of ONNX (opset 17),
https://huggingface.co/docs/safetensors, and the configurations of the published models.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_FLOAT, _INT64 = 1, 7
_OPSET, _IR_VERSION = 17, 8
_EXTERNAL_BYTES = 1024
_POSITIONS = 1024
_MAX_LENGTHS = {False: 512, True: 8192}
"""Tokens in the configurations of BERT and of ModernBERT, which allows more than it has here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a transformer. `is_modern` selects ModernBERT: rotary positions and gated layers."""

    layers: int
    hidden: int
    heads: int
    inner: int
    is_modern: bool = False


@dataclass(slots=True)
class _Graph:
    """Nodes and weights of an ONNX graph. Methods return the name of the output."""

    random: np.random.Generator
    nodes: list[bytes]
    weights: dict[str, NDArray[Any]]

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node. The names of several outputs are the name with `.0`, `.1` and so on."""
        name = f"n{len(self.nodes)}"
        names = [name] if outputs == 1 else [f"{name}.{each}" for each in range(outputs)]
        fields: list[tuple[int, Any]] = [
            *((1, each) for each in inputs),
            *((2, each) for each in names),
            (4, operator),
        ]
        fields += [(5, _encode_attribute(key, value)) for key, value in attributes.items()]
        self.nodes.append(_encode(fields))
        return name

    def constant(self, value: Any, kind: Any = np.int64) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value, kind)
        return name

    def weight(self, *shape: int) -> str:
        scale = 1 / np.sqrt(shape[0] if len(shape) > 1 else 1)
        return self.constant(self.random.standard_normal(shape) * scale, np.float32)

    def linear(self, value: str, width: int, out: int, *, bias: bool) -> str:
        product = self.add("MatMul", value, self.weight(width, out))
        return (
            self.add("Add", product, self.constant(np.zeros(out), np.float32)) if bias else product
        )

    def norm(self, value: str, width: int) -> str:
        ones, zeros = (self.constant(f(width), np.float32) for f in (np.ones, np.zeros))
        return self.add("LayerNormalization", value, ones, zeros, axis=-1, epsilon=1e-5)

    def gelu(self, value: str) -> str:
        root = self.constant(np.sqrt(2), np.float32)
        erf = self.add("Erf", self.add("Div", value, root))
        half = self.add("Mul", value, self.constant(0.5, np.float32))
        return self.add("Mul", half, self.add("Add", erf, self.constant(1, np.float32)))


def write_transformer(
    folder: Path,
    shape: Shape,
    vocabulary: Mapping[str, int],
    *,
    model_file: str = "model.onnx",
    is_external: bool = False,
    seed: int = 7,
) -> None:
    """Write a model with its tokenizer and configuration.

    `vocabulary` are ids from 4 by word, because `SPECIAL_TOKENS` have the first ones. Outputs are
    the vectors of all tokens, and of the first one. `is_external` writes the weights into a second
    file, such as `model.onnx_data`.
    """
    graph = _Graph(np.random.default_rng(seed), [], {})
    hidden = _add_layers(graph, shape, 1 + max(vocabulary.values()))
    outputs = {"last_hidden_state": graph.add("Identity", hidden)}
    outputs["sentence_embedding"] = graph.add("Gather", hidden, graph.constant(0), axis=1)
    file = folder / model_file
    file.parent.mkdir(parents=True, exist_ok=True)
    data = file.with_name(f"{file.name}_data") if is_external else None
    file.write_bytes(_encode_model(graph, outputs, data))
    _write_json(folder / "config.json", {"hidden_size": shape.hidden, "pad_token_id": 0})
    _write_json(
        folder / "tokenizer_config.json",
        {"model_max_length": _MAX_LENGTHS[shape.is_modern], "pad_token": "[PAD]"},
    )
    write_tokenizer(folder, vocabulary)


def _add_layers(graph: _Graph, shape: Shape, words: int) -> str:
    hidden = graph.add("Gather", graph.weight(words, shape.hidden), "input_ids")
    length = graph.add("Gather", graph.add("Shape", hidden), graph.constant([1]))
    if not shape.is_modern:
        hidden = graph.add(
            "Add", hidden, _slice(graph, graph.weight(_POSITIONS, shape.hidden), length)
        )
    hidden = graph.norm(hidden, shape.hidden)
    mask = graph.add("Cast", "attention_mask", to=_FLOAT)
    mask = graph.add("Unsqueeze", mask, graph.constant([1, 2]))
    away = graph.add("Sub", graph.constant(1, np.float32), mask)
    bias = graph.add("Mul", away, graph.constant(-1e4, np.float32))
    angles = [
        _slice(graph, graph.constant(table, np.float32), length)
        for table in _make_rotations(shape.hidden // shape.heads)
    ]
    for _ in range(shape.layers):
        if shape.is_modern:
            attended = _attend(graph, shape, graph.norm(hidden, shape.hidden), bias, angles)
            hidden = graph.add("Add", hidden, attended)
            wide = graph.linear(
                graph.norm(hidden, shape.hidden), shape.hidden, 2 * shape.inner, bias=False
            )
            halves = graph.add("Split", wide, outputs=2, axis=-1)
            gated = graph.add("Mul", graph.gelu(f"{halves}.0"), f"{halves}.1")
            hidden = graph.add(
                "Add", hidden, graph.linear(gated, shape.inner, shape.hidden, bias=False)
            )
        else:
            hidden = graph.add("Add", hidden, _attend(graph, shape, hidden, bias, ()))
            hidden = graph.norm(hidden, shape.hidden)
            wide = graph.gelu(graph.linear(hidden, shape.hidden, shape.inner, bias=True))
            hidden = graph.add(
                "Add", hidden, graph.linear(wide, shape.inner, shape.hidden, bias=True)
            )
            hidden = graph.norm(hidden, shape.hidden)
    return graph.norm(hidden, shape.hidden) if shape.is_modern else hidden


def _attend(graph: _Graph, shape: Shape, hidden: str, bias: str, angles: Sequence[str]) -> str:
    width = shape.hidden // shape.heads
    has_bias = not shape.is_modern
    split = graph.constant([0, 0, shape.heads, width])

    def project(*order: int) -> str:
        values = graph.linear(hidden, shape.hidden, shape.hidden, bias=has_bias)
        return graph.add("Transpose", graph.add("Reshape", values, split), perm=order)

    query, key, value = project(0, 2, 1, 3), project(0, 2, 1, 3), project(0, 2, 1, 3)
    if angles:
        query, key = (_rotate(graph, each, angles) for each in (query, key))
    scores = graph.add("MatMul", query, graph.add("Transpose", key, perm=(0, 1, 3, 2)))
    scores = graph.add("Div", scores, graph.constant(np.sqrt(width), np.float32))
    shares = graph.add("Softmax", graph.add("Add", scores, bias), axis=-1)
    mixed = graph.add("Transpose", graph.add("MatMul", shares, value), perm=(0, 2, 1, 3))
    joined = graph.add("Reshape", mixed, graph.constant([0, 0, shape.hidden]))
    return graph.linear(joined, shape.hidden, shape.hidden, bias=has_bias)


def _rotate(graph: _Graph, value: str, angles: Sequence[str]) -> str:
    cosines, sines = angles
    halves = graph.add("Split", value, outputs=2, axis=-1)
    turned = graph.add("Concat", graph.add("Neg", f"{halves}.1"), f"{halves}.0", axis=-1)
    return graph.add("Add", graph.add("Mul", value, cosines), graph.add("Mul", turned, sines))


def _make_rotations(width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return cosines and sines of rotary positions, shape (positions, width)."""
    rates = 1e4 ** (-np.arange(0, width, 2) / width)
    angles = np.tile(np.arange(_POSITIONS)[:, None] * rates, 2)
    return np.cos(angles), np.sin(angles)


def _slice(graph: _Graph, table: str, length: str) -> str:
    """Return the rows of a table for the positions of a text."""
    return graph.add("Slice", table, graph.constant([0]), length, graph.constant([0]))


def write_static(
    folder: Path, dimension: int, vocabulary: Mapping[str, int], *, seed: int = 7
) -> None:
    """Write a table of vectors in the format of model2vec."""
    rows = 1 + max(vocabulary.values())
    table = np.random.default_rng(seed).standard_normal((rows, dimension), np.float32)
    header = {
        "embeddings": {"dtype": "F32", "shape": table.shape, "data_offsets": [0, table.nbytes]}
    }
    encoded = json.dumps(header).encode()
    folder.mkdir(parents=True, exist_ok=True)
    content = struct.pack("<Q", len(encoded)) + encoded + table.tobytes()
    (folder / "model.safetensors").write_bytes(content)
    _write_json(folder / "config.json", {"model_type": "model2vec", "normalize": True})
    write_tokenizer(folder, vocabulary)


def write_tokenizer(folder: Path, vocabulary: Mapping[str, int]) -> None:
    """Write a tokenizer of whole words in lower case. Several words may have one id."""
    special = [
        {"id": number, "content": token, "special": True, "single_word": False, "lstrip": False}
        | {"rstrip": False, "normalized": False}
        for number, token in enumerate(SPECIAL_TOKENS)
    ]
    pair = {"cls": ["[CLS]", 2], "sep": ["[SEP]", 3], "type": "BertProcessing"}
    model = {"type": "WordLevel", "unk_token": "[UNK]"}
    words = dict(zip(SPECIAL_TOKENS, range(4), strict=True)) | dict(vocabulary)
    _write_json(
        folder / "tokenizer.json",
        {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special}
        | {"normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"}}
        | {"post_processor": pair, "decoder": None, "model": {**model, "vocab": words}},
    )


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value), encoding="utf-8")


def _encode_model(graph: _Graph, outputs: Mapping[str, str], data: Path | None) -> bytes:
    named = [_encode([(1, name), (2, shown), (4, "Identity")]) for shown, name in outputs.items()]
    body: list[tuple[int, Any]] = [(1, node) for node in [*graph.nodes, *named]]
    body.append((2, "random"))
    body += [(5, each) for each in _encode_weights(graph.weights, data)]
    body += [(11, _encode_value(name, _INT64)) for name in ("input_ids", "attention_mask")]
    body += [(12, _encode_value(name, _FLOAT)) for name in outputs]
    return _encode([(1, _IR_VERSION), (7, _encode(body)), (8, _encode([(2, _OPSET)]))])


def _encode_weights(weights: Mapping[str, NDArray[Any]], data: Path | None) -> Iterator[bytes]:
    """Yield the tensors. With `data`, large ones are written there."""
    stored: list[bytes] = []
    offset = 0
    for name, value in weights.items():
        kind = _INT64 if value.dtype == np.int64 else _FLOAT
        fields: list[tuple[int, Any]] = [*((1, size) for size in value.shape), (2, kind), (8, name)]
        raw = value.tobytes()
        if data and len(raw) > _EXTERNAL_BYTES:
            place = {"location": data.name, "offset": str(offset), "length": str(len(raw))}
            fields += [(13, _encode([(1, key), (2, text)])) for key, text in place.items()]
            fields.append((14, 1))
            stored.append(raw)
            offset += len(raw)
        else:
            fields.append((9, raw))
        yield _encode(fields)
    if data:
        data.write_bytes(b"".join(stored))


def _encode_value(name: str, kind: int) -> bytes:
    return _encode([(1, name), (2, _encode([(1, _encode([(1, kind)]))]))])


def _encode_attribute(name: str, value: Any) -> bytes:
    if isinstance(value, float):
        return _encode([(1, name), (2, value), (20, 1)])
    if isinstance(value, int):
        return _encode([(1, name), (3, value), (20, 2)])
    return _encode([(1, name), *((8, each) for each in value), (20, 7)])


def _encode(fields: Sequence[tuple[int, Any]]) -> bytes:
    """Encode a message of protocol buffers: numbers, texts, bytes and messages by field."""
    parts: list[bytes] = []
    for number, value in fields:
        if isinstance(value, int):
            parts += [_encode_varint(number << 3), _encode_varint(value % (1 << 64))]
        elif isinstance(value, float):
            parts += [_encode_varint(number << 3 | 5), struct.pack("<f", value)]
        else:
            content = value.encode() if isinstance(value, str) else value
            parts += [_encode_varint(number << 3 | 2), _encode_varint(len(content)), content]
    return b"".join(parts)


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:  # seven bits in each byte
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
