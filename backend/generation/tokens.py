"""Token counts, and their conversion between vocabularies.

Counts are exact if the model's vocabulary is installed. Otherwise they are counts of o200k_base,
times a ratio that starts from a table and is learned from the `usage` that providers report. This
module never uses the network.
"""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from importlib.util import find_spec

from backend.core.cpu_pool import check_stopped
from backend.errors import InternalError, UnavailableError

FALLBACK_TOKENIZER = "o200k_base"
"""The vocabulary in the package, which counts for models whose own is not installed."""

MESSAGE_OVERHEAD = 4
"""Tokens of a message besides its text: its role and the marks around it.

Gemma's chat template has `<start_of_turn>`, the role, a newline, `<end_of_turn>` and a newline, one
of which merges with its neighbour. OpenAI's chat format has 3 to 4 tokens.
"""

RATIO_BOUNDS = (0.65, 3.0)
"""Limits of learned ratios. Measured against o200k_base, with eleven vocabularies and eight
languages: 0.68 (Chinese, DeepSeek V3) to 3.06 (Hindi, Mistral 7B); English 1.0 to 1.12."""

SHARED_BOUNDS = (0.65, 1.9)
"""Limits of ratios learned from other users' prompts. They include all measured ones except Hindi
and Arabic in the oldest vocabularies."""

_STARTING_RATIOS = {("gemma3", "o200k_base"): 1.06, ("o200k_base", "gemma3"): 1 / 1.06}
"""Tokens of the first vocabulary per token of the second, in English prose."""

_MIN_PROMPT_TOKENS = 256
"""In smaller prompts, the tokens that a provider adds to each request outweigh the text."""

_MAX_WEIGHED_REPORTS = 50
"""Length of the running mean: each later report weighs a fiftieth."""

_SETTLED_REPORTS = 5
"""After this many reports, the influence of outliers is limited."""

_MAX_DEVIATION = 1.25
"""The factor to which an outlier is reduced."""


def find_starting_ratio(vocabulary: str, *, counted_with: str) -> float:
    """Return the expected tokens of `vocabulary` per token of `counted_with`; 1.0 if unknown."""
    return _STARTING_RATIOS.get((vocabulary, counted_with), 1.0)


def learn_ratio(ratio: float, samples: int, *, counted: int, reported: int) -> tuple[float, int]:
    """Update the ratio of real tokens to counted tokens with one report of a provider.

    It is a running mean, in which the starting ratio weighs as much as the first report. After 50
    reports, each new one weighs a fiftieth, so that the ratio follows a change of language or
    model. Once the ratio is settled, the deviation of a report is limited to a quarter, because
    some providers leave cached tokens out of their count.

    Args:
        ratio: The result of `find_starting_ratio` or of the last call.
        samples: The number of earlier reports.
        counted: Tokens of the whole prompt in the counting vocabulary, unscaled.
        reported: Tokens of the same prompt in the provider's report.

    Returns:
        The new ratio, within `RATIO_BOUNDS`, and the new number of reports. Both are unchanged if
        the prompt has fewer than 256 tokens or nothing was reported.
    """
    if counted < _MIN_PROMPT_TOKENS or reported <= 0:
        return ratio, samples
    seen = reported / counted
    if samples >= _SETTLED_REPORTS:
        seen = min(max(seen, ratio / _MAX_DEVIATION), ratio * _MAX_DEVIATION)
    learned = ratio + (seen - ratio) / min(samples + 2, _MAX_WEIGHED_REPORTS)
    low, high = RATIO_BOUNDS
    return min(max(learned, low), high), samples + 1


O200K_FILE = "fb374d419588a4632f3f557e76b4b70aebbca790"
"""The file's name in tiktoken's cache: the SHA-1 of its download address."""

O200K_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

O200K_SPLIT = "|".join(
    (
        f"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTION}",
        f"{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""The pattern by which o200k_base splits text before it merges, as published by OpenAI."""

_MAX_RUN = 100_000
"""Maximum number of characters per call of an encoder. tiktoken's regex engine overflows its stack
on about a million spaces, and long runs of one letter take more than linear time."""

_MAX_LOCKED_RUN = 25_000
"""The maximum for encoders that hold the interpreter's lock: 100,000 characters block all other
threads for up to 75 ms."""


class VocabularyDamagedError(InternalError):
    """The vocabulary in the package has a wrong checksum. Reinstall Talekeeper."""

    slug, title = "vocabulary-damaged", "The token vocabulary is damaged"


class TokenizerUnavailableError(UnavailableError):
    """The vocabulary is unknown or not installed."""

    slug, title = "tokenizer-unavailable", "The tokenizer is not installed"


class Tokenizer:
    """Counts tokens with a vocabulary. Threads may share it.

    Special tokens in a text are counted as plain text. `name` is stored with the counts.
    """

    def __init__(
        self, name: str, encode: Callable[[str], Sequence[int]], *, max_run: int = _MAX_RUN
    ) -> None:
        self.name = name
        self._encode = encode
        self._max_run = max_run

    def count(self, text: str) -> int:
        """Return the number of tokens in linear time."""
        try:
            return self._count(text)
        except UnicodeEncodeError:
            # Lone surrogates, such as half an emoji from a client that cuts UTF-16, have no UTF-8.
            repaired = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            return self._count(repaired)

    def count_many(self, texts: Sequence[str]) -> list[int]:
        return [self.count(text) for text in texts]

    def find_rank(self, word: str) -> int | None:
        """Return a word's position in the vocabulary, from 0; None if it has several tokens.

        Common words have low ranks, because a byte-pair vocabulary is built by frequency.
        """
        ids = self._encode(word)
        return ids[0] if len(ids) == 1 else None

    def _count(self, text: str) -> int:
        tokens = 0
        for run in _split_into_runs(text, self._max_run):
            check_stopped()
            tokens += len(self._encode(run))
        return tokens


def _split_into_runs(text: str, most: int) -> Iterator[str]:
    """Yield runs of at most `most` characters, split before a space.

    Vocabularies begin a new token at a space, so the sum of the counts is exact. A run without a
    space may add one token.
    """
    start = 0
    while len(text) - start > most:
        end = start + most
        space = text.rfind(" ", start + 1, end)
        cut = space if space > 0 else end
        yield text[start:cut]
        start = cut
    yield text[start:] if start else text


def _load_o200k() -> Tokenizer:
    """Read and verify o200k_base. Takes about 0.4 s and 45 MB. Raises `VocabularyDamagedError`.

    `tiktoken.get_encoding` is not used, because it downloads the vocabulary into a folder that an
    environment variable names.
    """
    from tiktoken import Encoding  # noqa: PLC0415 - loaded with the vocabulary, not at start-up

    data = (resources.files("backend.generation") / "vocabulary" / O200K_FILE).read_bytes()
    if hashlib.sha256(data).hexdigest() != O200K_SHA256:
        raise VocabularyDamagedError("o200k_base does not match its checksum: reinstall Talekeeper")
    lines = (line.split() for line in data.splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    encoding = Encoding(
        "o200k_base",
        pat_str=O200K_SPLIT,
        mergeable_ranks=ranks,
        special_tokens={"<|endoftext|>": 199_999, "<|endofprompt|>": 200_018},
    )
    ranks.clear()  # 27 MB, because the encoding has its own copy
    return Tokenizer("o200k_base", encoding.encode_ordinary)


def _load_gemma3() -> Tokenizer:
    """Load the vocabulary of Gemma 3 and Gemini. Takes about 0.1 s and 50 MB."""
    from splintr import Tokenizer as Splintr  # noqa: PLC0415 - an optional dependency

    encode = Splintr.from_pretrained("gemma3").encode_ordinary
    return Tokenizer("gemma3", encode, max_run=_MAX_LOCKED_RUN)


_LOADERS: dict[str, tuple[str, Callable[[], Tokenizer]]] = {
    "o200k_base": ("tiktoken", _load_o200k),
    "gemma3": ("splintr", _load_gemma3),
}
"""The required package and the loader of each vocabulary."""

_loaded: dict[str, Tokenizer] = {}
_loading = threading.Lock()


def choose_tokenizer(wanted: str) -> str:
    """Return `wanted` if that vocabulary is installed, or else the fallback. Loads nothing."""
    module, _ = _LOADERS.get(wanted, ("", None))
    return wanted if module and find_spec(module) is not None else FALLBACK_TOKENIZER


def get_tokenizer(name: str) -> Tokenizer:
    """Return a tokenizer, loaded at the first call. Raises `TokenizerUnavailableError`.

    The first call takes up to half a second and should be made in a thread.
    """
    if (tokenizer := _loaded.get(name)) is not None:
        return tokenizer
    if name not in _LOADERS:
        raise TokenizerUnavailableError(
            f"Unknown tokenizer {name!r}. Available: {', '.join(_LOADERS)}."
        )
    if choose_tokenizer(name) != name:
        raise TokenizerUnavailableError(
            f"The tokenizer {name!r} is not installed. Install talekeeper[exact-tokens]."
        )
    with _loading:
        if name not in _loaded:
            _loaded[name] = _LOADERS[name][1]()
        return _loaded[name]
