"""Which answers decline to do what was asked, and which are a part of a story."""

from __future__ import annotations

import pytest

from backend.generation.declined_answers import is_declined

DECLINED = [
    "I can't help with that.",
    "I can’t help with that.",
    "I'm sorry, but I can't assist with that request.",
    "I’m sorry, I cannot continue this roleplay.",
    "Sorry, I won't summarize this content.",
    "I am unable to provide a summary of this story, because it depicts violence.",
    "I apologize, but I'm not able to fulfill this request.",
    "I appreciate you sharing this story, but I can't continue with it.",
    "As an AI language model, I don't take part in such scenes.",
    "I must decline. Would you like a milder story?",
    "I don't feel comfortable writing this.",
    "**I cannot create content of this kind.** Let us talk about something else.",
    "I won't do that.",
    "Unfortunately, I can't process these messages.",
    "Es tut mir leid, aber dabei kann ich nicht helfen.",
    "Ich kann diese Geschichte leider nicht zusammenfassen.",
    "Je suis désolé, mais je ne peux pas répondre à cette demande.",
    "Lo siento, pero no puedo ayudar con eso.",
    "Desculpe, mas não posso continuar com este pedido.",
    "Mi dispiace, ma non posso aiutarti.",
    "Извините, но я не могу помочь с этим.",
    "К сожалению, я не могу продолжить эту историю.",
    "申し訳ありませんが、そのご要望にはお応えできません。",
    "I understand that this is fiction, but I can't continue the story.",
    "抱歉，我无法协助完成这个请求。",
    "죄송합니다. 그 요청은 도와드릴 수 없습니다.",
]

TOLD = [
    "",
    "Nothing.",
    "Nothing has changed.",
    "No changes: nobody came, and nothing was said.",
    "Holt said that he could not help them, and left.",
    '"I can\'t help you," said Holt. He left the room.',
    "“I’m sorry, but I can’t assist with that,” the clerk said, and shut the window.",
    "I could not continue my way, for the bridge was gone. So I slept in the mill.",
    "I cannot forget the sea. I was born there, and there I first met Mara.",
    "Sorry sights awaited Mara in the harbour.",
    "Unfortunately, the bridge had burned, and Jake could not cross.",
    "As an apprentice, Mara had learned to pick locks.",
    "Mara declined to help. I must decline, she wrote.",
    "Leider konnte Holt die Brücke nicht überqueren.",
    "Holt kann nicht helfen: Er ist verwundet.",
    "Jake ne peut pas aider Mara.",
    "Холт не мог помочь им.",
    "ホルトは助けることができませんでした。",
    "抱歉的是，马拉没有来。",
    "Story. " * 500 + "I can't help with that.",
]


@pytest.mark.parametrize("text", DECLINED)
def test_an_answer_that_declines_is_known_in_many_languages(text: str) -> None:
    assert is_declined(text)


@pytest.mark.parametrize("text", TOLD)
def test_what_a_story_tells_is_no_answer_that_declines(text: str) -> None:
    assert not is_declined(text)
