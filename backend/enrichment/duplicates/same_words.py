"""English words that say the same of an event, the other way round, or the opposite.

For other languages there is no such table: there, words are compared by their stems alone.
"""

from __future__ import annotations

import re

PHRASES = tuple(
    (re.compile(rf"\b(?:{pattern})\b"), word)
    for pattern, word in (
        (r"(?:g[ai]ve[sn]?|giving) (?:him |her |them |\w+ )?(?:his|her|their|my) (?:word|oath)",
         "promise"),
        (r"(?:took|take[sn]?) an? (?:oath|vow)", "promise"),
        (r"(?:c[ao]me[s]?|be|is|was|are|were|went|goes|go|going|coming) (?:back|home)", "return"),
        (r"(?:f[io]und|finds?|finding) out", "find"),
        (r"(?:owned|owns?|own) up to", "confess"),
        (r"(?:came|come|comes|coming) (?:upon|across)", "find"),
        (r"pick(?:ed|s|ing)? up", "receive"),
        (r"(?:made|makes?|making) (?:a|the) deal", "bargain"),
        (r"(?:fell|falls?|fallen|falling) in love", "love"),
        (r"(?:in love with)", "love"),
        (r"(?:took|takes?|taken|taking) (?:\w+ )?away", "remove"),
        (r"(?:no longer|not any ?more)", "not"),
        (r"(?:g[ai]ve[sn]?|hand(?:ed|ing)|turned) (?:\w+ )?in (?:\w+ )?(?:notice|resignation)",
         "resign"),
        (r"(?:passed away)", "die"),
        (r"(?:took|takes?|taken|taking) place", ""),
        (r"got (?=married|lost|divorced|away|hurt|killed)", ""),
        (r"(?:moved|moves|move|moving) (?:back )?in\b(?! to)", "return"),
        (r"(?:set|sets|setting) fire to", "burn"),
        (r"(?:set|sets|setting) (?:\w+ )?free", "free"),
        (r"(?:g[eo]t|gets|broke|breaks|run|ran|made) (?:away|off)", "flee"),
        (r"(?:moved|moves|move|moving|set|sets) (?:out|off)", "leave"),
        (r"(?:went|goes|gone) missing", "vanish"),
        (r"(?:wakes?|woke|woken) up|came to(?= in)", "wake"),
        (r"(?:is|was|are|were) able to", "can"),
        (r"new moon", "newmoon"),
        (r"full moon", "fullmoon"),
    )
)  # fmt: skip
"""What several words say, as one. Small letters."""

_SAME = """
    kill slay slew slain murder assassinate
    die dead death perish
    hurt wound injure
    save rescue
    promise swear swore sworn vow pledge oath word
    refuse decline deny reject
    agree accept consent
    find found discover uncover spot sight notice
    confess admit acknowledge
    ask request beg plead
    hide hid hidden conceal stash bury
    steal stole stolen rob
    take took taken seize remove revoke confiscate
    lose lost gamble
    win won
    arrive reach
    leave depart
    flee fled escape
    meet met encounter
    marry wed wedding married husband wife spouse
    love like feelings fond
    hate despise
    loyalty loyal fealty allegiance
    bite bit bitten
    reward award
    pay paid
    forgive forgave forgiven pardon
    fight fought quarrel argue argument dispute
    attack assault
    defeat beat vanquish
    repair fix mend reforge restore
    break broke broken shatter smash
    close shut
    begin began begun start
    end stop finish
    burn fire
    build built
    hire engage employ job
    sack dismiss
    quit resign
    free freed release freedom
    capture catch caught arrest
    order command
    forbid forbade forbidden
    help aid
    decipher decode
    vanish disappear missing
    bargain deal pact agreement exchange
    guide lead led
    board aboard
    turn become became change
    bind bound
    owe debt
    serve service
    foretell foretold prophesy prophecy
    lie lied
    betray betrayal
    search seek sought look
    declare proclaim
    shoot shot gun
    wake woke woken awake awoke
    flood drown
    guard watch
    write wrote written
    perform play
    forget forgot forgotten
    remember recall
    fall fell fallen
    pregnant expecting
    forge forgery
    storm blizzard snowstorm
    ship vessel boat
    inn tavern
    sword blade
    cellar basement
    child kid children
    mother mom mum
    father dad
    doctor physician
    forest wood woods
    house home
    king monarch
    way path road
    talk speak spoke spoken
    computer ai
    sleep slept asleep
    body corpse
    money coin gold
    town city
    fast quick quickly
    big large huge
    small little tiny
    secret secretly
    illness sick ill disease
    letter note message
    war battle
    soldier troop
"""
"""A line: words that stand for one another, with forms that are not regular."""

_CONVERSE = """
    give gave given hand pass slip grant offer | receive get got obtain acquire
    sell sold | buy bought purchase
    tell told reveal inform say said teach taught | learn learnt hear heard lesson
    lend lent | borrow
"""
"""A line: the same, from one side and from the other."""

_OPPOSITE = """
    open close
    kill save
    kill spare
    find hide
    lose find
    lose win
    love hate
    marry divorce
    break repair
    owe pay
    begin end
    free capture
    forgive blame
    refuse open
    refuse agree
    arrive leave
    return leave
    buy sell
    leave stay
    right left
    night day
    alive die
    survive die
    kill die
    confess refuse
    remember forget
    hire sack
    remove return
    true lie
    truth lie
    keep quit
    keep break
    promise break
    guide abandon
    only also
    empty full
    enter leave
    order forbid
    friend enemy
    start stop
"""
"""A line: two words, each for its like, of which one is so or the other is."""


_LIGHT = """
    let make made put use come came go went gone call name place one each every single else
    someone somebody now still also back just already so called named way whole himself
    herself across alone ago since first next own
"""
"""Words that say next to nothing of an event."""


_NUMBERS = """
    1 one once single first
    2 two twice both second
    3 three third
    4 four fourth
    5 five fifth
    6 six sixth
    7 seven seventh
    8 eight eighth
    9 nine ninth
    10 ten tenth
    11 eleven eleventh
    12 twelve twelfth dozen
    20 twenty
    30 thirty
    40 forty
    50 fifty
    60 sixty
    70 seventy
    80 eighty
    90 ninety
    100 hundred
    1000 thousand
"""


def _lines(table: str) -> list[str]:
    return [line.strip() for line in table.strip().splitlines()]


def _meanings() -> dict[str, tuple[str, int]]:
    """Each word with the first one of its like, and -1 where it says it from the other side."""
    found: dict[str, tuple[str, int]] = {}
    for line in _lines(_SAME):
        words = line.split()
        for word in words:
            found.setdefault(word, (words[0], 1))
    for line in _lines(_CONVERSE):
        one, _, other = line.partition(" | ")
        for word in one.split():
            found[word] = (one.split()[0], 1)
        for word in other.split():
            found[word] = (one.split()[0], -1)
    return found


MEANINGS = _meanings()
CONVERSE = frozenset(line.split()[0] for line in _lines(_CONVERSE))
OPPOSITES = tuple(
    (MEANINGS.get(one, (one, 1))[0], MEANINGS.get(other, (other, 1))[0])
    for one, other in (line.split() for line in _lines(_OPPOSITE))
)
NUMBERS = {word: number for number, *words in map(str.split, _lines(_NUMBERS)) for word in words}
LIGHT = frozenset(_LIGHT.split())
