"""Terms: the same word of a document and of a query must meet, in any language."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.memory.search import terms
from backend.memory.search.terms import (
    ELISIONS,
    LATIN_LANGUAGES,
    STOP_WORDS,
    blind_terms,
    build_sparse_vector,
    count_terms,
    query_terms,
)
from backend.vault.blinding import Blinder
from backend.vault.sealing import Sealer


def blinder() -> Blinder:
    return Blinder(Sealer(uuid4(), {1: bytes(32)}, user_key=os.urandom(32)))


def test_words_are_stemmed_and_stop_words_are_out() -> None:
    assert count_terms("The dragons were flying; a dragon flies!") == {"dragon": 2, "fli": 2}


MEETINGS = [
    ("She carried the swords into the burning castle.", "Which castles burned?", 2),
    ("Die Drachen flogen über die Burgen und verbrannten alles.", "Wo ist der Drache?", 1),
    ("Die Drachen flogen über die Burgen und verbrannten alles.", "Drachen Burg", 2),
    ("Les chevaliers sont entrés dans la forêt avec leurs chevaux.", "un chevalier", 1),
    ("L'épée d'Artagnan était dans le château.", "Artagnan château", 2),
    ("Los dragones volaron sobre las montañas y quemaron todo.", "dragón montaña", 2),
    ("I cavalieri sono entrati nella foresta con il loro re.", "cavaliere foresta", 2),
    ("Os dragões voaram sobre as montanhas e queimaram tudo.", "montanha", 1),
    ("De draken vlogen over de kastelen en het was een ramp.", "draken", 1),
    ("Drakarna flög över bergen och brände upp allt som var där.", "drakar berg", 2),
    ("Она читала книги о драконах в старой башне.", "книга дракон", 2),
    ("Ο δράκος πέταξε πάνω από τα βουνά.", "δράκος βουνά", 2),
    ("東京の猫は魚を食べた。", "猫", 1),
    ("東京の猫は魚を食べた。", "東京", 3),
    ("猫が魚を食べた。", "猫はどこ", 1),
    ("那条龙飞走了", "龙在城堡", 1),
    ("龙在城堡上空飞翔", "城堡", 3),
    ("드래곤이 성 위로 날아갔다", "드래곤", 2),
    ("มังกรบินเหนือปราสาท", "ปราสาท", 5),
    ("The CAFÉ on Straße 12 was ﬁne.", "café strasse 12 fine", 4),
    ("Caroline’s painting of O'Brien", "Caroline O’Brien paintings", 3),
    ("Room ４２ is locked.", "room 42", 2),
    ("You will die where the dragon died.", "die dragon die", 2),
    ("He stole the seal and fled.", "Which seals were stolen?", 2),
    ("Aus dem Nebel antwortet ein Jagdhorn.", "Wie klang das Horn?", 1),
    ("Das ist eine Frau in einem Mantel aus Federn.", "Wer ist die mit dem Federmantel?", 2),
    ("Die Kornsäcke fielen in das Meer.", "Wohin fiel der Sack?", 2),
    ("Der Kaufmann flieht vor dem Richter.", "Vor wem ist er auf der Flucht?", 1),
    ("Er hat den Spiegel zerbrochen.", "Wann zerbrach der Spiegel?", 2),
    ("Das Licht weckt die Hunde.", "Wer wird die Hunde wecken?", 2),
    ("Jemand hat die Zeichen gewischt.", "Wer muss die Zeichen wischen?", 2),
    ("Het jachthoorn antwoordt uit de mist.", "Waar is de hoorn van de man?", 1),
    ("Admite que huye de su hermano.", "¿De quién está huyendo tu hermano?", 2),
    ("Он прячет корону под водой.", "Где он спрятал корону?", 2),
    ("일제는 종을 깨우지 마라", "종에 대한 노래", 1),
    ("그가 죽은 곳", "어디에서 죽었어?", 1),
]


@pytest.mark.parametrize(("document", "query", "count"), MEETINGS)
def test_a_query_meets_a_document_of_its_language(document: str, query: str, count: int) -> None:
    stored, asked = count_terms(document), query_terms(query)
    assert len(stored.keys() & asked.keys()) == count


def test_a_word_that_is_a_stop_word_elsewhere_does_not_outvote_the_rest() -> None:
    # `sea` is a Spanish stop word.
    found = count_terms("The sea, the sea, the sea, and a sea again: storms at sea.")
    assert found == {"sea": 5, "storm": 1}


def test_a_query_of_a_known_language_is_stemmed_only_in_that_language() -> None:
    terms = query_terms("What did the knights do in their castles?")
    assert terms == {"knight": 1.0, "castl": 1.0}
    assert query_terms("the dragon, the Dragons") == {"dragon": 1.0}


def test_an_unknown_language_is_the_default_in_documents_and_all_in_queries() -> None:
    assert count_terms("Drachen") == {"drachen": 1}
    found = query_terms("Drachen")
    assert found["drachen"] == 1.0
    assert found["drach"] == terms.OTHER_LANGUAGE_WEIGHT


def test_latin_text_has_the_same_words_in_the_company_of_another_script() -> None:
    for code in (*range(0x300), *range(0x2010, 0x205F)):
        text = "x{0}y {0}z'{0}k l'{0}m".format(chr(code))
        assert count_terms(f"{text} жук") == count_terms(text) + Counter(["жук"]), hex(code)


def test_a_text_may_hold_several_scripts() -> None:
    found = count_terms("The sword of Москва and 東京")
    assert set(found) == {"sword", "москв", "東京", "東", "京"}


@pytest.mark.parametrize("text", ["", "   ", "…!?", "the of and", "\x00", "'", "''''", "🐉"])
def test_a_text_without_words_has_no_terms(text: str) -> None:
    assert count_terms(text) == {}
    assert query_terms(text) == {}
    assert len(build_sparse_vector(text, blinder()).ids) == 0


def test_a_word_without_end_is_cut() -> None:
    [term] = count_terms("x" * 100_000)
    assert len(term) <= terms.MAX_TERM_CHARACTERS


@given(st.text())
def test_any_text_has_terms_and_no_term_is_empty(text: str) -> None:
    assert all(count_terms(text))
    assert all(query_terms(text))


def test_weights_are_those_of_bm25() -> None:
    keys = blinder()
    found = build_sparse_vector("dragon dragon castle", keys)
    norm = 1.2 * (0.25 + 0.75 * 3 / 256)
    assert dict(zip(found.ids.tolist(), found.weights.tolist(), strict=True)) == pytest.approx(
        {keys.term_id("dragon"): 2 * 2.2 / (2 + norm), keys.term_id("castl"): 1 * 2.2 / (1 + norm)}
    )


def test_a_long_text_lifts_its_terms_less_than_a_short_one() -> None:
    keys = blinder()
    short, long = (
        build_sparse_vector(text, keys) for text in ("dragon", "dragon " + "forest " * 500)
    )
    place = long.ids.tolist().index(keys.term_id("dragon"))
    assert short.weights[0] > 2 * long.weights[place]


def test_two_terms_that_share_an_id_become_one() -> None:
    class Clumsy(Blinder):
        def term_id(self, stem: str) -> int:  # noqa: ARG002  # they are all one to it
            return 7

    vector = blind_terms(
        {"a": 1.0, "b": 0.5}, Clumsy(Sealer(uuid4(), {1: bytes(32)}, user_key=b"k"))
    )
    assert (vector.ids.tolist(), vector.weights.tolist()) == ([7], [1.5])


def test_threads_do_not_get_into_each_others_stems() -> None:
    texts = [f"{word}s were flying over the castles" for word in ("dragon", "witch", "king")] * 200
    expected = [count_terms(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(count_terms, texts)) == expected


def test_stop_words_look_as_words_do_when_they_are_looked_up() -> None:
    for language, words in STOP_WORDS.items():
        for word in words:
            tokens = [token for token, _ in terms.tokenize(word)]
            # Elided articles of French and Italian are no words by themselves.
            assert tokens == [word] or word.partition("'")[0] in ELISIONS, (language, word)


def test_all_forms_of_an_irregular_word_have_one_stem() -> None:
    content = (Path(terms.__file__).parent / "irregular_forms.txt").read_text(encoding="utf-8")
    for block in content.split("\n\n"):
        language, _, words = block.partition(":\n")
        stem = terms.get_stemmer(language)
        for forms in map(str.split, words.splitlines()):
            assert len({stem(form) for form in forms}) == 1 < len(forms), (language, forms)


def test_a_word_without_end_has_few_terms() -> None:
    found = count_terms(f"der die das {'bade' * 10_000} {'가' * 10_000}")
    assert len(found) < 10, "heads of a compound are limited"


def test_parts_of_compounds_are_wanted_less_than_words() -> None:
    asked = query_terms("Wo ist der Federmantel, und wo der Mantel?")
    assert asked["mantel"] == asked["federmantel"] == 1.0
    assert 0 < asked["fed"] < 1.0


def test_compounds_are_split_only_in_languages_that_write_them_as_one_word() -> None:
    assert count_terms("The thunderstorm was there.") == {"thunderstorm": 1}


def test_every_language_has_a_stemmer() -> None:
    for language in (*LATIN_LANGUAGES, *terms.SCRIPT_LANGUAGES.values()):
        assert terms.get_stemmer(language)("a")
