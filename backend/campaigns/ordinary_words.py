"""Words that languages capitalise inside a sentence, and words that hold names together.

Small lists: a word that is not in them is compared with the text itself and with a vocabulary.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


TITLES = _words(
    """mr mrs ms miss dr prof sir lord lady king queen prince princess duke duchess count countess
    baron baroness emperor empress captain commander general colonel major sergeant lieutenant
    admiral inspector detective officer doctor professor father mother brother sister uncle aunt
    grandma grandpa mom mum dad papa mama majesty highness grace lordship ladyship honor honour
    excellency st saint master mistress madam ma'am don doña señor señora señorita monsieur madame
    mademoiselle herr frau fräulein signor signora signore senhor senhora dom dona pan pani capitán
    capitaine kapitän rey roi könig"""
)
"""Forms of address: before a name part of it, alone no name."""

ABBREVIATIONS = _words("mr mrs ms dr prof st capt lt sgt gen col jr sr vs mt ft")
"""A point after these ends no sentence."""

CAPITALISED = _words(
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
"""Capitalised without being names of a story: days, months, peoples, words that begin speech."""

ARTICLES = _words(
    "the this that these those le la les l' el los las il lo gli o os as der die das den dem des"
)

CONNECTORS = _words(
    "of the de la le les del du des di da do dos das della dei degli von van der den al el of's"
)
"""What may stand between the words of one name: Order of the Ash, Casa del Sol."""

QUANTITIES = _words(
    """none most some all one two three four five many few each both half part because instead
    ahead inside outside any neither either out word rumours rumors tales stories talk speaking
    think thinking beware west east north south"""
)
"""Before `of`, at the beginning of a sentence, these are no part of a name."""

NAMING = _words(
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
"""Before a quotation these say that it is a name, and nothing that somebody says."""

GERMAN = _words(
    """der die das und ist nicht ein eine einen einem einer dem den des mit auf sich war er sie es
    ich im zu von zum zur wie als auch sein ihre seine hatte wurde dass wenn noch nur über aus
    bei"""
)

MEASURES = _words(
    """flasche tasse kanne schale scheibe reihe menge gruppe becher liter meter zentimeter kilometer
    ende mitte messer fässer stunde stunden tage wochen jahre meile meilen herren damen seite
    ihre ihren ihrer ihrem seine meine deine keine"""
)
"""German nouns that end as adjectives do, and stand before other nouns."""

GERMAN_ENDINGS = ("e", "er", "en", "es", "em")
"""Of adjectives."""

PRONOUN_ENDINGS = _words("il elle on je tu nous vous ils elles se lhe lhes me te ci là то нибудь")
"""What verbs and other words are joined to by a hyphen in French, Portuguese and Russian."""
