"""Campaign state that cannot be read as it was written: what is used in its place is logged."""

from __future__ import annotations

from backend.campaigns.ledger.changes import Operations, fold
from backend.campaigns.rules.protocol import DEFAULT_RULES, find_rules, load_rules
from tests.support.logs import caught_logs

CANARY = "the-canary-sings-in-the-cellar"


def test_a_change_that_is_no_longer_valid_is_skipped_and_logged_without_its_text() -> None:
    made = Operations(set={"exists": True, "text": "The gate is shut."})
    broken = Operations(set={CANARY: CANARY})
    with caught_logs() as logged:
        state = fold("fact", [made, broken])
    assert state == {"exists": True, "text": "The gate is shut."}
    [line] = logged.lines("campaign.change_skipped")
    assert line["source"] == "fact"
    assert CANARY not in logged.text


def test_rules_that_are_not_installed_are_named_in_the_log_once() -> None:
    with caught_logs() as logged:
        assert find_rules("a-game-of-long-ago") is load_rules()[DEFAULT_RULES]
        find_rules("a-game-of-long-ago")
        find_rules(DEFAULT_RULES)
    [line] = logged.lines("campaign.rules_missing")
    assert line["source"] == "a-game-of-long-ago"
