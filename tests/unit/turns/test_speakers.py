"""The choice of the next speaker of a group."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from uuid import UUID, uuid4, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.chats.models import Presence
from backend.chats.schemas import NextSpeaker
from backend.turns.run.reply_text import PassFilter
from backend.turns.speakers import (
    GroupScene,
    SceneMember,
    choose_speaker,
    find_candidates,
    find_named,
    is_monologue,
    is_silent,
    make_seed,
)

SPACE = UUID(int=7)
DRAWS = 4_000
WAYS: tuple[NextSpeaker, ...] = ("list", "mention", "pooled", "model")


def member(name: str, talkativeness: float = 0.5, presence: Presence = "present") -> SceneMember:
    return SceneMember(
        id=uuid5(SPACE, name), name=name, talkativeness=talkativeness, presence=presence
    )


def scene(*members: SceneMember | str, line: str = "", author: str = "") -> GroupScene:
    """Return a scene. `author` is the name of the member that has said the last line."""
    return GroupScene(
        members=[member(each) if isinstance(each, str) else each for each in members],
        last_line=line,
        author_id=uuid5(SPACE, author) if author else None,
        last_speaker_id=uuid5(SPACE, author) if author else None,
    )


def choose(found: GroupScene, way: NextSpeaker = "mention", seed: int = 0) -> tuple[str, str]:
    """Return the name of the speaker, and the first reason."""
    chosen = choose_speaker(found, way, seed)
    assert chosen is not None
    names = {each.id: each.name for each in found.members}
    return names[chosen.character_id], chosen.reasons[0].kind


def draw(found: GroupScene, way: NextSpeaker = "mention") -> Counter[str]:
    """Return how often each member is chosen."""
    return Counter(choose(found, way, make_seed(UUID(int=seed)))[0] for seed in range(DRAWS))


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("Bor, is that you?", "Bor"),
        ("bor?", "Bor"),
        ("Is that Bor's knife?", "Bor"),
        ("Ask Cara and then Bor.", "Cara"),
        ("Tell Hohenfels that I am here.", "Alda von Hohenfels"),
        ("Alda!", "Alda von Hohenfels"),
        ("Captain, what now?", "Captain Reyes"),
        ("太郎さん、どう思う?", "山田太郎"),
        ("Я видел Алдынскую и Веру.", "Вера"),
        ("Zoe, wait!", "Zoë"),
    ],
)
def test_who_is_named_speaks(line: str, named: str) -> None:
    names = "Alda von Hohenfels", "Bor", "Cara", "Captain Reyes", "山田太郎", "Вера", "Zoë"
    for seed in range(20):
        assert choose(scene(*names, line=line), seed=seed) == (named, "speaker_named")


@pytest.mark.parametrize(
    "line",
    [
        "Boredom is terrible.",
        "A vonderful day, Sir, in the house of the king.",
        "My mother said so.",
        "",
    ],
)
def test_parts_of_words_and_forms_of_address_name_no_one(line: str) -> None:
    found = scene("Sir Bor von Ahlen", "Mother Cara", "Dov of the Hill", line=line)
    assert find_named(found) == []
    assert choose(found)[1] == "speaker_drawn"


def test_the_longest_name_counts() -> None:
    away = member("Anna Maria", presence="absent")
    found = scene(away, "Maria", "Bor", line="Where is Anna Maria?")
    assert choose(found)[1] == "speaker_drawn"
    assert choose(replace(found, last_line="Where is Maria?")) == ("Maria", "speaker_named")


def test_a_shared_name_means_each_of_them() -> None:
    found = scene("Alda Finch", "Bor Finch", "Cara Holt", line="Finch, come here!")
    counts = draw(found)
    assert counts.keys() == {"Alda Finch", "Bor Finch"}
    assert min(counts.values()) > 0.45 * DRAWS


def test_those_who_were_named_before_come_before_a_draw() -> None:
    found = scene("Alda", "Bor", "Cara", line="I do not know.", author="Alda")
    waiting = replace(found, waiting=[uuid5(SPACE, "Alda"), uuid5(SPACE, "Cara")])
    assert choose(waiting) == ("Cara", "speaker_waiting")
    assert choose(replace(waiting, last_line="Bor knows.")) == ("Bor", "speaker_named")


def test_a_draw_follows_talkativeness() -> None:
    """In a random order, the first that passes speaks: equal chances are fair, others are not."""
    counts = draw(scene("Alda", "Bor", "Cara", "Dov"))
    assert all(abs(count - DRAWS / 4) < 0.03 * DRAWS for count in counts.values())

    counts = draw(scene(member("Alda", 1.0), member("Bor", 0.25)))
    # Bor speaks if the order begins with him and he passes: 1/2 * 1/4.
    assert abs(counts["Bor"] - DRAWS / 8) < 0.03 * DRAWS

    counts = draw(scene(member("Alda", 0), member("Bor", 0.01), member("Cara", 0)))
    assert counts == {"Bor": DRAWS}
    counts = draw(scene(member("Alda", 0), member("Bor", 0)))
    assert min(counts["Alda"], counts["Bor"]) > 0.45 * DRAWS


def test_the_list_goes_round_after_the_last_speaker() -> None:
    names = "Alda", "Bor", "Cara"
    spoken: list[str] = []
    for _ in range(7):
        spoken.append(choose(scene(*names, author=spoken[-1] if spoken else ""), "list")[0])
    assert spoken == ["Alda", "Bor", "Cara", "Alda", "Bor", "Cara", "Alda"]
    muted = member("Bor", presence="muted")
    assert choose(scene("Alda", muted, "Cara", author="Alda"), "list") == ("Cara", "speaker_alone")
    # The last speaker has left the chat.
    assert choose(scene("Alda", "Bor", author="Esk"), "list") == ("Alda", "speaker_listed")


def test_pooled_members_speak_once_before_anyone_speaks_again() -> None:
    names = "Alda", "Bor", "Cara", "Dov"
    for seed in range(50):
        spoken: list[str] = []
        for number in range(4):
            found = replace(
                scene(*names, author=spoken[-1] if spoken else ""),
                spoken=frozenset(uuid5(SPACE, each) for each in spoken),
            )
            name, reason = choose(found, "pooled", seed + number)
            assert reason in {"speaker_pooled", "speaker_alone"}
            spoken.append(name)
        assert sorted(spoken) == sorted(names)
        over = replace(
            scene(*names, author=spoken[-1]),
            spoken=frozenset(uuid5(SPACE, each) for each in names),
        )
        name, reason = choose(over, "pooled", seed)
        assert (name != spoken[-1], reason) == (True, "speaker_redrawn")
    assert draw(scene(*names), "pooled").keys() == set(names)


def test_by_hand_no_one_is_chosen() -> None:
    assert choose_speaker(scene("Alda", "Bor"), "by_hand", 0) is None


def test_the_author_speaks_again_only_if_allowed_or_alone() -> None:
    found = scene("Alda", "Bor", line="Alda, that is me.", author="Alda")
    assert choose(found) == ("Bor", "speaker_alone")
    allowed = replace(found, allows_self_replies=True)
    assert choose(allowed) == ("Alda", "speaker_named")
    alone = scene("Alda", member("Bor", presence="absent"), author="Alda")
    assert choose(alone) == ("Alda", "speaker_alone")
    assert is_monologue(alone)
    assert not is_monologue(replace(alone, allows_self_replies=True))
    assert not is_monologue(found)


def test_who_has_passed_is_asked_again_only_after_the_others() -> None:
    alda, bor, cara = (uuid5(SPACE, each) for each in ("Alda", "Bor", "Cara"))
    found = scene("Alda", "Bor", "Cara", author="Alda")
    for passed, left, is_over in (
        ([], {bor, cara}, False),
        ([bor], {cara}, False),
        ([bor, cara], {bor, cara}, True),
    ):
        now = replace(found, passed=passed)
        assert {each.id for each in find_candidates(now)} == left
        assert is_silent(now) == is_over
    pair = scene("Alda", "Bor", author="Alda")
    assert not is_silent(replace(pair, passed=[bor]))
    assert is_silent(replace(pair, passed=[bor, bor]))
    assert not is_silent(replace(pair, passed=[alda, alda]))


PRESENCES: st.SearchStrategy[Presence] = st.sampled_from(["present", "absent", "muted"])
MEMBERS = st.lists(
    st.builds(
        SceneMember,
        id=st.uuids(),
        name=st.sampled_from(["Alda", "Bor", "Bor Finch", "Вера", "太郎", "x", ""]),
        talkativeness=st.floats(0, 1),
        presence=PRESENCES,
        has_heard=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda each: each.id,
)


@given(MEMBERS, st.data(), st.sampled_from(WAYS), st.integers(0, 2**64 - 1))
def test_only_those_speak_who_may(
    members: list[SceneMember], data: st.DataObject, way: NextSpeaker, seed: int
) -> None:
    ids = st.sampled_from([each.id for each in members]) if members else st.nothing()
    maybe = st.none() | ids
    found = GroupScene(
        members=members,
        last_line=data.draw(st.sampled_from(["", "Bor and Alda!", "Вера? 太郎?"])),
        author_id=data.draw(maybe),
        last_speaker_id=data.draw(maybe),
        spoken=data.draw(st.frozensets(ids)),
        waiting=data.draw(st.lists(ids)),
        passed=data.draw(st.lists(ids)),
        allows_self_replies=data.draw(st.booleans()),
    )
    chosen = choose_speaker(found, way, seed)
    may = {each.id for each in members if each.presence == "present" and each.has_heard}
    assert (chosen is None) == (not may)
    if chosen is not None:
        assert chosen.character_id in may
        assert chosen == choose_speaker(found, way, seed)
        if may - {found.author_id} and not found.allows_self_replies:
            assert chosen.character_id != found.author_id


def test_the_seed_comes_from_the_turn() -> None:
    turn_id = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
    assert make_seed(turn_id) == make_seed(UUID(str(turn_id)))
    assert len({make_seed(uuid4()) for _ in range(1_000)}) == 1_000


@pytest.mark.parametrize(
    "mark",
    ["[pass]", "[PASS]", "pass", "Pass.", '"[pass]"', "*[Pass]*", "(pass)", " [pass]\n", "“Pass!”"],
)
@pytest.mark.parametrize("size", [1, 3, 50])
def test_the_mark_of_a_pass_is_never_shown(mark: str, size: int) -> None:
    passing = PassFilter()
    pieces = [mark[at : at + size] for at in range(0, len(mark), size)]
    assert "".join(map(passing.feed, pieces)) + passing.close() == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Pass me the salt.", "Pass me the salt."),
        ("[pass] Bor looks away.", "Bor looks away."),
        ("... I see.", "... I see."),
        ("...", "..."),
        ("Passage? No.", "Passage? No."),
        ("He says [pass].", "He says [pass]."),
        ("*He nods.*", "*He nods.*"),
        ("." * 60, "." * 60),
    ],
)
@pytest.mark.parametrize("size", [1, 4, 100])
def test_other_text_is_complete(text: str, shown: str, size: int) -> None:
    passing = PassFilter()
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert "".join(map(passing.feed, pieces)) + passing.close() == shown


def test_text_is_held_back_only_while_it_may_be_the_mark() -> None:
    passing = PassFilter()
    assert passing.feed("[pa") == ""
    assert passing.feed("rt of") == "[part of"
    assert passing.feed(" it]") == " it]"
