"""Counting tokens: which vocabularies are at hand, and what their counts are worth.

A count is in the units of one vocabulary. Where the model's own is installed the count is exact;
elsewhere it is o200k_base's, times a ratio that starts from a table and learns from the `usage`
that the provider reports. Nothing here touches the network, ever.
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

MESSAGE_OVERHEAD = 4
"""Tokens that a message costs beside its text: its role and the marks around it.

Gemma's chat template spends `<start_of_turn>`, the role, a newline, `<end_of_turn>` and another
newline, one of which merges with its neighbour; OpenAI's chat format spends 3 to 4.
"""

RATIO_BOUNDS = (0.65, 3.0)
"""A learned ratio never leaves these. Measured against o200k_base, with eleven vocabularies and
eight languages: 0.68 (Chinese, DeepSeek V3) to 3.06 (Hindi, Mistral 7B); English 1.0 to 1.12."""

SHARED_BOUNDS = (0.65, 1.9)
"""The same for a ratio that others learned: all that was measured but Hindi and Arabic in the
oldest vocabularies, which only those need who write in them."""

_STARTING_RATIOS = {("gemma3", "o200k_base"): 1.06, ("o200k_base", "gemma3"): 1 / 1.06}
"""(real vocabulary, vocabulary counted with): real tokens for one counted, on English prose."""

_TINY_PROMPT = 256
"""Below this many counted tokens, what a provider adds to every request outweighs the text."""

_MEMORY = 50
"""Reports that the running mean remembers: later ones weigh a fiftieth each."""

_SETTLED = 5
"""From this many reports on, one that is far off is taken for a fluke."""

_LEAP = 1.25
"""The factor by which a settled ratio lets a single report differ from it."""


def find_starting_ratio(vocabulary: str, *, counted_with: str) -> float:
    """What one token counted with `counted_with` is expected to be in `vocabulary`.

    1.0 for a vocabulary and itself, and for pairs about which nothing is known.
    """
    return _STARTING_RATIOS.get((vocabulary, counted_with), 1.0)


def learn_ratio(ratio: float, samples: int, *, counted: int, reported: int) -> tuple[float, int]:
    """Take one report of the provider's into the ratio of real tokens to counted ones.

    A running mean. The table's value weighs as much as the first report; after 50 reports the
    newest always weighs a fiftieth, so that the ratio follows a change of language or model. Once
    it is settled, a report that is more than a quarter off moves it no further than one that is
    a quarter off: a provider that leaves cached tokens out of its count does not spoil it.

    Args:
        ratio: Its present value, from `find_starting_ratio` or from the last call.
        samples: How many reports it has learned from.
        counted: Tokens of the whole prompt in the counting vocabulary, unscaled.
        reported: Tokens of the same prompt as the provider reported them.

    Returns:
        The new ratio, within `RATIO_BOUNDS`, and the new number of samples. Both unchanged when the
        prompt is tiny (under 256 tokens) or nothing was reported.
    """
    if counted < _TINY_PROMPT or reported <= 0:
        return ratio, samples
    seen = reported / counted
    if samples >= _SETTLED:
        seen = min(max(seen, ratio / _LEAP), ratio * _LEAP)
    learned = ratio + (seen - ratio) / min(samples + 2, _MEMORY)
    low, high = RATIO_BOUNDS
    return min(max(learned, low), high), samples + 1


O200K_FILE = "fb374d419588a4632f3f557e76b4b70aebbca790"
"""The name that tiktoken's own cache gives the file: the SHA-1 of the address it comes from."""

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
"""How o200k_base cuts text before it merges: part of the vocabulary, as OpenAI published it."""

_MAX_RUN = 100_000
"""Characters that go to an encoder at once. tiktoken's regex engine overflows its stack on runs of
about a million spaces, and long runs of one letter take more than linear time."""

_MAX_LOCKED_RUN = 25_000
"""The same for an encoder that holds the interpreter's lock while it works: up to 75 ms in 100,000
characters, in which no other thread runs."""


class VocabularyDamagedError(InternalError):
    """The vocabulary in the package is not the one that it shipped with."""

    slug, title = "vocabulary-damaged", "The token vocabulary is damaged"


class TokenizerUnavailableError(UnavailableError):
    """The vocabulary is unknown or not installed."""

    slug, title = "tokenizer-unavailable", "The tokenizer is not installed"


class Tokenizer:
    """Counts tokens with an encoder's plain-text `encode`. May be shared between threads.

    Text that looks like a vocabulary's special tokens is counted as the plain text it is. `name` is
    the vocabulary's, as it is stored beside the counts.
    """

    def __init__(
        self, name: str, encode: Callable[[str], Sequence[int]], *, max_run: int = _MAX_RUN
    ) -> None:
        self.name = name
        self._encode = encode
        self._max_run = max_run

    def count(self, text: str) -> int:
        """Tokens of `text`. O(len(text)), whatever is in it."""
        try:
            return self._count(text)
        except UnicodeEncodeError:
            # Lone surrogates (half an emoji, from a client that cuts UTF-16) have no UTF-8 form.
            repaired = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            return self._count(repaired)

    def count_many(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, in their order."""
        return [self.count(text) for text in texts]

    def rank(self, word: str) -> int | None:
        """The place of a word in the vocabulary, from 0; None if it takes several tokens.

        Common words come first: a byte-pair vocabulary is built by frequency.
        """
        ids = self._encode(word)
        return ids[0] if len(ids) == 1 else None

    def _count(self, text: str) -> int:
        tokens = 0
        for run in _bounded_runs(text, self._max_run):
            check_stopped()
            tokens += len(self._encode(run))
        return tokens


def _bounded_runs(text: str, most: int) -> Iterator[str]:
    """Cut `text` into runs of at most `most` characters.

    The cut is made before the last space of a run, where a vocabulary begins a new token anyway,
    so the counts add up exactly; text with no space in a whole run may gain a token a cut.
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
    """Read, verify and build o200k_base. About 0.4 s and 45 MB.

    Not through `tiktoken.get_encoding`: that looks in a folder that the process's environment
    names and downloads what is not there.

    Raises:
        VocabularyDamagedError: The file's SHA-256 is not the one that OpenAI published.
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
    ranks.clear()  # 27 MB that the encoding would keep beside its own copy
    return Tokenizer("o200k_base", encoding.encode_ordinary)


def _load_gemma3() -> Tokenizer:
    """Build Gemma 3's vocabulary, which is Gemini's. About 0.1 s and 50 MB."""
    from splintr import Tokenizer as Splintr  # noqa: PLC0415 - an optional dependency

    encode = Splintr.from_pretrained("gemma3").encode_ordinary
    return Tokenizer("gemma3", encode, max_run=_MAX_LOCKED_RUN)


_LOADERS: dict[str, tuple[str, Callable[[], Tokenizer]]] = {
    "o200k_base": ("tiktoken", _load_o200k),
    "gemma3": ("splintr", _load_gemma3),
}
"""Vocabulary: the module that it needs, and how it is loaded."""

_loaded: dict[str, Tokenizer] = {}
_loading = threading.Lock()


def choose_tokenizer(wanted: str) -> str:
    """`wanted` where that vocabulary is installed, else "o200k_base". Loads nothing."""
    module, _ = _LOADERS.get(wanted, ("", None))
    return wanted if module and find_spec(module) is not None else "o200k_base"


def get_tokenizer(name: str) -> Tokenizer:
    """The vocabulary of that name, loaded at the first call and shared from then on.

    The first call takes up to half a second: make it in a thread.

    Raises:
        TokenizerUnavailableError: It is not installed, or no such vocabulary is known.
    """
    if (tokenizer := _loaded.get(name)) is not None:
        return tokenizer
    if name not in _LOADERS:
        raise TokenizerUnavailableError(
            f"Unknown tokenizer {name!r}. Available: {', '.join(_LOADERS)}."
        )
    if choose_tokenizer(name) != name:
        raise TokenizerUnavailableError(
            f"The tokenizer {name!r} is not installed: install talekeeper[exact-tokens]."
        )
    with _loading:
        if name not in _loaded:
            _loaded[name] = _LOADERS[name][1]()
        return _loaded[name]
