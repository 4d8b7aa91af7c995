"""Splits a story's text into words, and lists the words that are no names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from backend.core.text_forms import normalize


def _split(text: str) -> frozenset[str]:
    return frozenset(text.split())


TITLES = _split(
    """mr mrs ms miss dr prof sir lord lady king queen prince princess duke duchess count countess
    baron baroness emperor empress captain commander general colonel major sergeant lieutenant
    admiral inspector detective officer doctor professor father mother brother sister uncle aunt
    grandma grandpa mom mum dad papa mama majesty highness grace lordship ladyship honor honour
    excellency st saint master mistress madam ma'am don doña señor señora señorita monsieur madame
    mademoiselle herr frau fräulein signor signora signore senhor senhora dom dona pan pani capitán
    capitaine kapitän rey roi könig"""
)
"""Forms of address. They are part of a name that follows, and no name alone."""

ABBREVIATIONS = _split("mr mrs ms dr prof st capt lt sgt gen col jr sr vs mt ft")
"""A full stop after these does not end a sentence."""

CAPITALISED = _split(
    """i i'm i'd i'll i've ok okay tv god gods lord christ jesus heaven hell earth bible internet
    monday tuesday wednesday thursday friday saturday sunday january february march april may june
    july august september october november december christmas easter halloween north south east west
    english french german spanish italian russian chinese japanese korean arabic hindi greek latin
    turkish polish dutch swedish portuguese american british irish scottish welsh european asian
    african indian australian canadian mexican roman jewish christian muslim catholic yes no please
    thanks hello hi hey oh ah well now then there here what who why how when where argh ugh hmm grr
    psst brr shh haha nope yeah the a an and but or so if he she it we you they this that these
    those my your his her our their not nothing everything everyone someone nobody"""
)
"""Capitalised words that are no names: days, months, peoples, words that begin speech."""

ARTICLES = _split(
    "the this that these those le la les l' el los las il lo gli o os as der die das den dem des"
)

CONNECTORS = _split(
    "of the de la le les del du des di da do dos das della dei degli von van der den al el of's"
)
"""Words that can join the words of a name: Order of the Ash, Casa del Sol."""

QUANTITIES = _split(
    """none most some all one two three four five many few each both half part because instead
    ahead inside outside any neither either out word rumours rumors tales stories talk speaking
    think thinking beware west east north south"""
)
"""Words that are no part of a name if they begin a sentence and `of` follows."""

NAMING = _split(
    """call calls called calling named known dubbed termed as word term name nickname nicknamed
    translates means genannt namens heißt heissen nennt nennen nannte nannten namen wort bezeichnet
    appelé appelée appelés appelées appelle appellent appelait appelaient nommé nommée surnommé
    llamado llamada llamados llamadas llama llaman llamaban llamaba nombre palabra
    chamado chamada chamados chamadas chama chamam chamavam nome palavra
    chiamato chiamata chiamati chiamate chiama chiamano chiamavano parola
    zwany zwana zwane zwanych nazywa nazywają nazywali nazywano называется называют называли
    называемый называемая назвали слово имя прозвали kallas kallade kallar kallat genaamd heet
    noemen noemde λέγεται λένε denilen"""
)
"""Words before a quotation that is a name, not speech."""

GERMAN = _split(
    """der die das und ist nicht ein eine einen einem einer dem den des mit auf sich war er sie es
    ich im zu von zum zur wie als auch sein ihre seine hatte wurde dass wenn noch nur über aus
    bei"""
)

MEASURES = _split(
    """flasche tasse kanne schale scheibe reihe menge gruppe becher liter meter zentimeter kilometer
    ende mitte messer fässer stunde stunden tage wochen jahre meile meilen herren damen seite
    ihre ihren ihrer ihrem seine meine deine keine"""
)
"""German nouns that precede other nouns and end like adjectives."""

GERMAN_ENDINGS = ("e", "er", "en", "es", "em")
"""Endings of German adjectives."""

PRONOUN_ENDINGS = _split("il elle on je tu nous vous ils elles se lhe lhes me te ci là то нибудь")
"""Pronouns and particles after a hyphen in French, Portuguese and Russian."""

MIN_LETTERS = 3
"""Minimum length of a name that is found."""

WORD = re.compile(r"[^\W_]+(?:['_-][^\W_]+)*")

_STARTS = frozenset('.!?…:"“”„«»‹›*_(\n—–[#>')  # noqa: RUF001  # as they are printed
"""Characters between two words that begin a sentence or speech."""

_PLAIN = str.maketrans(
    {
        "\N{LEFT SINGLE QUOTATION MARK}": "'",
        "\N{RIGHT SINGLE QUOTATION MARK}": "'",
        "\N{HYPHEN}": "-",
        "\N{NON-BREAKING HYPHEN}": "-",
    }
)


class Vocabulary(Protocol):
    """The words of everyday language."""

    def is_common(self, word: str, /) -> bool:
        """True if the exact spelling of a word is everyday language."""
        ...

    def is_everyday(self, word: str, /) -> bool:
        """True if a word or its base form is everyday language, in upper or lower case."""
        ...


class Word(NamedTuple):
    """A word, and the text between it and the word before.

    `starts` is True if the word begins a sentence.
    """

    text: str
    at: int
    gap: str
    starts: bool

    @property
    def folded(self) -> str:
        """The word in lower case, without a possessive ending."""
        return self.text.removesuffix("'s").casefold()

    @property
    def bare(self) -> str:
        """The word without a possessive ending."""
        return self.text.removesuffix("'s")

    @property
    def is_capitalised(self) -> bool:
        return self.text[0].isupper()


def split_words(text: str) -> Iterator[Word]:
    """Yield the words of a plain text. In a Markdown heading, each word begins a sentence."""
    end, before, is_heading = 0, "", False
    for match in WORD.finditer(text):
        gap, end = text[end : match.start()], match.end()
        if not before or "\n" in gap:
            is_heading = "#" in gap
        is_abbreviated = gap.startswith(".") and before.casefold() in ABBREVIATIONS
        marks = gap[1:] if is_abbreviated else gap
        starts = is_heading or not before or not _STARTS.isdisjoint(marks)
        before = match[0]
        yield Word(before, match.start(), gap, starts)


def to_plain(text: str) -> str:
    """Return a text with composed letters, straight apostrophes and plain hyphens."""
    return normalize("NFC", text).translate(_PLAIN)


def has_capitals(text: str) -> bool:
    """True if most letters of a text belong to a script with capitals."""
    letters = sum(map(str.isalpha, text))
    cased = sum(char.islower() or char.isupper() for char in text)
    return 2 * cased > letters or not letters


def is_german(text: str) -> bool:
    """True if more than a fifth of a text's words are very frequent German words."""
    words = [match[0].casefold() for match in WORD.finditer(text)]
    german = [word for word in words if word in GERMAN]
    return len(set(german)) > 1 and 5 * len(german) > len(words)
