"""Answers in which a model declines its task: "I can't help with that".

A model that is asked for a summary, or for calls of tools, may decline in prose. Taken for an
answer, that would be a summary of the story, or mean that nothing has happened. Only the beginning
of a text is searched, for the first person in the present tense. Summaries of stories are in the
past tense or the third person, and speech in them is in quotation marks.
"""

from __future__ import annotations

import re

from backend.core.text_forms import normalize
from backend.generation.model import ModelDeclinedError

MAX_CHARACTERS = 2_000
"""A longer text declines nothing: a model that declines is brief."""

_SEARCHED = 400
"""Characters at the beginning that are searched. Gaps between words are bounded, too."""

_BEGINNING = r"""
(?:i'm|i am)(?: \w+)? sorry
sorry
(?:my )?apologies
i (?:\w+ )?apologi[sz]e
unfortunately
i (?:appreciate|understand) [^.]{0,80}
"""
_TASKS = r"""
help|assist|comply|continue|proceed|provide|create|write|generate|produce|engage|fulfil|participate
process|complete|summari[sz]e|discuss|answer|respond|support|offer|record|do\b|take part|work with
keep|role-?play|depict|describe|be part|be involved|go along|accept
"""
_ENGLISH = r"""
i (?:can't|can ?not|won't|will not)(?: \w+ly)? (?:TASKS)
(?:i am|i'm) (?:just |only )?(?:unable|not (?:able|going|willing|allowed|permitted)) to\b
(?:i am|i'm) (?:just |only )?(?:not comfortable|uncomfortable|an ai\b)
i (?:must|have to|need to|would) (?:respectfully |politely )?(?:decline|refuse)
i (?:respectfully |politely )?(?:decline|refuse) to
i (?:do not|don't) feel comfortable
as an ai\b
"""
_OTHERS = r"""
(?:(?:es )?tut mir (?:sehr )?leid|entschuldigung|leider)\W.{0,20}\b(?:kann|darf|werde|möchte) ich\b
ich (?:kann|darf|werde|möchte) .{0,60}\bnicht\b.{0,60}(?:helfen|unterstützen|weiter|fortsetzen)
ich (?:kann|darf|werde|möchte) .{0,60}\bnicht\b.{0,60}(?:erstellen|schreiben|zusammenfassen)
ich (?:kann|darf|werde|möchte) .{0,60}\bnicht\b.{0,60}(?:beantworten|nachkommen|erfüllen|mitwirken)
als (?:ki|sprachmodell)\b
(?:(?:je suis )?(?:\w+ )?désolée?|je regrette|malheureusement)\b.{0,20}\bje ne (?:peux|puis)\b
je ne (?:peux|puis) pas (?:vous |t')?(?:aider|répondre|continuer|fournir|créer|écrire|résumer)
(?:lo siento|lamentablemente)\b.{0,20}\bno puedo\b
no puedo (?:ayudar|continuar|cumplir|proporcionar|crear|escribir|generar|responder|resumir)
(?:desculpe|sinto muito|lamento|infelizmente)\b.{0,20}\bnão posso\b
não posso (?:ajudar|continuar|cumprir|fornecer|criar|escrever|gerar|responder|resumir)
(?:mi dispiace|purtroppo)\b.{0,20}\bnon posso\b
non posso (?:aiutar|continuare|fornire|creare|scriver|generare|rispondere|riassumere)
(?:извините|простите|к сожалению|сожалею)\b.{0,30} не (?:могу|буду)\b
я не (?:могу|буду) (?:\w+ )?(?:помо|продолж|выполн|написать|созда|ответ|участв|обсуждать)
(?:вибачте|на жаль)\b.{0,30} не (?:можу|буду)\b
(?:申し訳|すみません|ごめんなさい).{0,80}(?:できません|できかねます|いたしかねます|応じられません)
(?:很?抱歉|对不起|對不起|不好意思).{0,12}(?:无法|不能|無法)
我(?:无法|不能|無法)(?:帮|协助|協助|幫|提供|继续|繼續|完成|满足|滿足|参与|參與|回答|创作|撰写)
(?:죄송합니다|죄송하지만|미안하지만|유감스럽지만).{0,80}(?:수 없|어렵습니다|않습니다)
"""


def _join_lines(lines: str) -> str:
    return f"(?:{'|'.join(lines.strip().splitlines())})"


_BUT = r"[ .,:;!\u2014-]{1,4}(?:but |however,? |for [^.,]{0,40}, ?but )?"
_DECLINES = re.compile(
    f"(?:{_join_lines(_BEGINNING)}{_BUT})?{_join_lines(_ENGLISH)}|{_join_lines(_OTHERS)}".replace(
        "(?:TASKS)", _join_lines(_TASKS)
    ),
    re.IGNORECASE,
)


def is_declined(text: str) -> bool:
    """True if a model's answer says that it will not do its task."""
    if len(text) > MAX_CHARACTERS:
        return False
    head = normalize("NFC", " ".join(text[:_SEARCHED].split()))
    plain = head.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").lstrip("#*_> ")
    return _DECLINES.match(plain) is not None


def check_declined(text: str) -> None:
    """Raise `ModelDeclinedError` if the answer `is_declined`."""
    if is_declined(text):
        raise ModelDeclinedError
