"""The built-in demo model, which needs no key, network or language model.

Users can test everything with it, including failures: `/demo help` lists its commands. Background
tasks get answers by simple rules.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import tomllib
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import resources
from itertools import cycle, islice
from typing import Any

from backend.generation.adapters.demo_values import build_value, choose_client_calls
from backend.generation.catalogue import Price
from backend.generation.images import count_image_tokens, count_images
from backend.generation.json_text import mapping, sequence
from backend.generation.model import (
    NO_OPTIONS,
    Finish,
    FinishReason,
    ModelEmptyReplyError,
    ModelError,
    ModelInterruptedError,
    ModelRateLimitError,
    ModelSpec,
    ModelUnavailableError,
    Piece,
    Prompt,
    RequestOptions,
    StructuredAnswer,
    TextPiece,
    ThinkingPiece,
    TokenUsage,
    Tool,
    ToolAnswer,
    ToolCall,
)
from backend.generation.sampling import SAMPLING_FIELDS, Sampling
from backend.generation.servers.abilities import NOTHING_LEARNED, ModelAbilities
from backend.generation.tools.calls import render_result

MARK = "Talekeeper's demo model"
SAYINGS: dict[str, Any] = tomllib.loads(
    (resources.files("backend.generation") / "demo.toml").read_text("utf-8")
)
SUMMARY_HEAD = "(Demo summary)"
_WHY = f"{MARK}, which goes by simple rules: a name, and a verb of finding, killing, promising."
_EVENT, _ENTRY = "create_chronicle_event", "create_lorebook_entry"
_MAX_CALLS, _MAX_NAMES, _MAX_MOMENTS, _TITLE_WORDS = 3, 10, 5, 6


def compile_words(words: str, ending: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(words.split())}){ending}\b", re.IGNORECASE)


_KINDS = {kind: compile_words(verbs, "s?") for kind, verbs in SAYINGS["events"].items()}
"""The verbs of each kind of event, the most significant kind first."""

_LINE = re.compile(r"^#(\d+) (?:([^:\n]{1,80}): )?", re.MULTILINE)
_SENTENCE = re.compile(r"[^.!?\n]+[.!?]*")
_DOUBT = re.compile(r"\?|\b(?:no|not|never|if|would|could|should|might|may|wants?|will|can)\b")
_NAME = re.compile(r"\b[A-Z]\w{2,40}(?: [A-Z]\w{2,40}){0,3}")
_NO_NAMES = frozenset(SAYINGS["no_names"].split())
_DESCRIPTION = re.compile(
    rf"(?:The )?({_NAME.pattern}) is ((?:an?|the) (?!bit |lot )[a-z][^.!?\n;,]{{4,200}})"
)
_PLACE = compile_words(SAYINGS["places"], "s?")
_WORDS_WANTED = re.compile(r"\babout (\d{1,5}) words\b", re.IGNORECASE)


def build_triage(prompt: Prompt, schema: Mapping[str, Any]) -> dict[str, Any]:
    events, entries = _find_news(prompt)
    kinds = mapping(mapping(schema.get("properties")).get("kinds"))
    allowed = sequence(mapping(kinds.get("items")).get("enum"))
    found = sorted({event["kind"] for event in events}.intersection(map(str, allowed)))
    return {"why": _WHY, "significant": bool(events or entries), "kinds": found}


def choose_chronicle_calls(prompt: Prompt, tools: Sequence[Tool]) -> list[ToolCall]:
    """Return the calls of one step of the chronicle's agent; none if it has other tools."""
    offered = {tool.name for tool in tools}
    if _EVENT not in offered:
        return []
    wanted: list[tuple[str, dict[str, Any]]] = []
    if not prompt.rounds:
        events, entries = _find_news(prompt)
        wanted += [(_ENTRY, entry) for entry in entries[:1] if _ENTRY in offered]
        events.sort(key=lambda event: -event["significance"])
        wanted += [(_EVENT, event) for event in events[: _MAX_CALLS - len(wanted)]]
    return [
        ToolCall(id=f"demo-{len(prompt.rounds) + 1}-{number}", name=name, arguments=arguments)
        for number, (name, arguments) in enumerate(wanted or [("finish", {})], start=1)
    ]


def choose_compaction_calls(prompt: Prompt, tools: Sequence[Tool]) -> list[ToolCall] | None:
    """Return calls that add events, characters and places to a campaign; None for other tools."""
    if "chronicle_event_tool" not in {tool.name for tool in tools}:
        return None
    events, entries = ([], []) if prompt.rounds else _find_news(prompt)
    wanted: list[tuple[str, dict[str, Any]]] = []
    for event in events:
        lines = [int(mark[1:]) for mark in event.pop("source_messages")]
        told = {"set": event, "because": event["summary"][:200], "source_turns": lines}
        wanted.append(("chronicle_event_tool", told))
    for entry in entries:
        is_place = _PLACE.search(entry["content"])
        name, field = ("environment", "description") if is_place else ("npc", "role")
        told = {"name": entry["title"], "set": {field: entry["content"]}, "because": _WHY}
        wanted.append((f"{name}_updater_tool", {**told, "source_turns": []}))
    return [
        ToolCall(id=f"demo-{number}", name=name, arguments=told)
        for number, (name, told) in enumerate(wanted)
    ]


def build_glossary(prompt: Prompt) -> dict[str, Any]:
    """Accept all candidates, each defined by its sentence, and all tags."""
    terms, tags = (
        [
            line.removeprefix("- ").split(" | ", 1)
            for line in find_section(find_last_line(prompt), name).splitlines()
            if " | " in line
        ]
        for name in ("candidates", "tags")
    )
    return {
        "terms": [{"term": term, "definition": f"(Demo) {told}"} for term, told in terms],
        "tags": [tag for tag, _ in tags],
    }


def write_summary(prompt: Prompt) -> str | None:
    """Return an extract of the text to summarise; None for prompts of other tasks."""
    system = join_system_messages(prompt)
    if "Task: rolling summary" not in system.splitlines():
        return None
    text = find_last_line(prompt)
    wanted = _WORDS_WANTED.search(f"{system}\n{text}")
    return _extract(text, find_section(text, "previous_summary"), int(wanted[1]) if wanted else 150)


def write_title(prompt: Prompt) -> str | None:
    """Return the last line of a story's beginning, shortened; None for prompts of other tasks."""
    if "Task: title" not in join_system_messages(prompt).splitlines():
        return None
    said = [words for *_, text in find_new_lines(find_last_line(prompt)) if (words := text.split())]
    return " ".join(["(Demo)", *said[-1][:_TITLE_WORDS]]) if said else ""


def build_scene(prompt: Prompt) -> dict[str, Any]:
    text = find_last_line(prompt)
    before, *moments = find_section(text, "summary_so_far").split("\n- ")
    told = [*map(str.strip, moments), *(event["summary"] for event in _find_news(prompt)[0])]
    return {
        "summary": _extract(text, before, 150),
        "key_moments": [each for each in told if each][-_MAX_MOMENTS:],
        "seeds": [],
        "changes": [],
    }


def build_chapter(prompt: Prompt) -> dict[str, Any]:
    """Combine the first sentence of each scene under the first scene's title."""
    scenes = find_section(find_last_line(prompt), "scenes").replace(SUMMARY_HEAD, "").splitlines()
    told = [each[2:].partition(": ") for each in scenes if each.startswith("- ")]
    kept = [sentence for *_, text in told for sentence in split_sentences(text)[:1]]
    return {"title": told[0][0], "summary": " ".join([SUMMARY_HEAD, *kept])}


def _extract(text: str, before: str, most: int) -> str:
    """Append the first sentence of each new line to `before`, in about `most` words."""
    kept = split_sentences(before.replace(SUMMARY_HEAD, ""))
    for _, speaker, said in find_new_lines(text):
        kept += [f"{speaker}: {each}" if speaker else each for each in split_sentences(said)[:1]]
    while len(kept) > 1 and sum(len(each.split()) for each in kept) > most:
        # Remove every second sentence of the older half.
        half = max(1, len(kept) // 2)
        kept = kept[:half][1::2] + kept[half:]
    return " ".join(" ".join([SUMMARY_HEAD, *kept]).split()[: most + 2])


def _find_news(prompt: Prompt) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return new events and entries in the new lines, as arguments of the tools."""
    text = find_last_line(prompt)
    known_events, known_lore = find_section(text, "known_events"), find_section(text, "known_lore")
    events: dict[str, dict[str, Any]] = {}
    entries: dict[str, dict[str, Any]] = {}
    for mark, speaker, said in find_new_lines(text):
        for sentence in split_sentences(said):
            event = _find_event(sentence, speaker, mark)
            if event is not None and event["summary"] not in known_events:
                events.setdefault(event["summary"], event)
            told = _DESCRIPTION.match(sentence)
            if told and "?" not in sentence and told[1] not in f"{known_lore}\n{speaker}":
                content = {"content": f"{told[1]} is {told[2]}.", "because": _WHY}
                entries.setdefault(told[1], {"title": told[1], "keys": [told[1]], **content})
    return list(events.values()), list(entries.values())


def _find_event(sentence: str, speaker: str, mark: str) -> dict[str, Any] | None:
    """Return the event in a sentence; None for a question or a wish."""
    kinds = list(_KINDS)
    kind = next((kind for kind in kinds if _KINDS[kind].search(sentence)), None)
    who: list[str] = [name for name in _NAME.findall(sentence) if name not in _NO_NAMES]
    if speaker and re.search(r"\bI\b", sentence):
        who.insert(0, speaker)
    if kind is None or not who or _DOUBT.search(sentence):
        return None
    return {
        "summary": (f"{speaker}: {sentence}" if speaker else sentence)[:400],
        "kind": kind,
        "who": [name[:60] for name in dict.fromkeys(who)][:_MAX_NAMES],
        "significance": 5 - kinds.index(kind) // 2,
        "source_messages": [mark],
    }


def join_system_messages(prompt: Prompt) -> str:
    return "\n".join(message.text for message in prompt.messages if message.role == "system")


def find_last_line(prompt: Prompt) -> str:
    """Return the last message of the user, which a post-history instruction may follow."""
    spoken = (message.text for message in reversed(prompt.messages) if message.role == "user")
    return next(spoken, "")


def find_section(text: str, name: str) -> str:
    """Return the text between the last line `<name>` and `</name>`; "" if there is none."""
    _, opened, rest = f"\n{text}".rpartition(f"\n<{name}>\n")
    return rest.rpartition(f"</{name}>")[0] if opened else ""


def find_new_lines(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield mark, speaker and text of lines such as `#12 Marlena: text`, without the demo's own."""
    lines = find_section(text, "new_lines")
    heads = list(_LINE.finditer(lines))
    ends = [*(head.start() for head in heads[1:]), len(lines)][: len(heads)]
    for head, end in zip(heads, ends, strict=True):
        said = lines[head.end() : end].strip()
        if MARK not in said:
            yield f"#{head[1]}", (head[2] or "").strip(), said


def split_sentences(text: str) -> list[str]:
    """Return the sentences without quotation marks and emphasis."""
    found: list[str] = _SENTENCE.findall(re.sub(r"[*_\"“”]+", "", text))
    return [each for sentence in found if (each := sentence.strip(" \t-"))]


_CLOCK, _NEXT, _OUTCOMES = (SAYINGS["play"][name] for name in ("clock", "next", "outcomes"))
_RISKY = {
    domain: compile_words(words, r"\w*") for domain, words in SAYINGS["play"]["risks"].items()
}
_FIXED = re.compile(r"^What happened is fixed: (\w+), (.+)$", re.MULTILINE)
_LATER = "This follows from the last turn with:"


def choose_play(prompt: Prompt, tools: Sequence[Tool]) -> tuple[str | None, list[ToolCall]]:
    """Return the narration (None for the usual reply) and calls of a turn in a played campaign."""
    offered = {tool.name for tool in tools}
    if "finish_turn" not in offered:
        return None, []
    line = find_last_line(prompt)
    system = join_system_messages(prompt)
    fixed = _FIXED.search(system)
    can_accept = "accept" in offered and "engage" not in offered
    if fixed or can_accept:
        return _conclude_play(fixed, is_over=can_accept and _LATER in system)
    last = mapping(prompt.rounds[-1].results[-1] if prompt.rounds else None)
    if "error" not in last:
        if "tier" in last and "resolve" in offered:
            return "", [_make_call("resolve", tier=last["tier"])]
        if "spend_die" in offered:
            situation = f"You hold your breath. {line.strip()[:200]}"
            return "", [_make_call("spend_die", situation=situation, outcomes=_OUTCOMES)]
        domain = next((name for name, words in _RISKY.items() if words.search(line)), None)
        if "engage" in offered and domain and not prompt.rounds:
            risk = {"position": "risky", "effect": "standard", "clock": _CLOCK}
            return "", [_make_call("engage", domain=domain, stakes="Being caught.", **risk)]
    return None, [_make_call("finish_turn", suggested_actions=_NEXT)]


def _conclude_play(
    fixed: re.Match[str] | None, *, is_over: bool
) -> tuple[str | None, list[ToolCall]]:
    """Narrate the result of a roll. In a later turn, offer an opportunity."""
    if fixed is None or is_over:
        return "", [_make_call("accept", variant="opportunity")]
    is_free = fixed[1] in {"critical", "success"}
    price = "Only time has passed." if is_free else "It has its price, and you have paid it."
    finish = _make_call(
        "finish_turn",
        connector="but" if is_free else "therefore",
        suggested_actions=_NEXT,
        deltas={"clocks": [{"clock": _CLOCK}]},
    )
    return f"You try, and {fixed[2]}. {price} (Talekeeper's demo model told this.)", [finish]


def _make_call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"demo-{name}", name=name, arguments=arguments)


DEMO_SPEC = ModelSpec(
    id="demo",
    provider="demo",
    name="demo",
    title="Demo (no language model)",
    context_window=1_000_000,
    max_output_tokens=1_000_000,
    tokenizer="o200k_base",
    accepts=frozenset(SAMPLING_FIELDS),
    fixed=frozenset({"tool_support"}),
    price=Price(input=0, output=0),
    figures_from="table",
)

_COMMAND = re.compile(
    r"^(?:[^\n:/]{1,80}:\s*)?/demo(?:\s+([a-z-]+))?(?:\s+(\d{1,7}))?", re.MULTILINE
)
"""A command at the beginning of a line, after the speaker's name if the prompt contains one."""

_CHARACTER = re.compile(r"\bYou are ([A-Z][^\n.,;:(]{0,60})")
_FAILURES: Mapping[str, Callable[[], ModelError]] = {
    "fail": partial(ModelUnavailableError, "The demo model was told to fail."),
    "fail-midway": partial(ModelUnavailableError, "The demo model was told to fail midway."),
    "cut": partial(ModelInterruptedError, "The demo model was told to break off."),
    "rate-limit": partial(ModelRateLimitError, "The demo was told so.", retry_after=30),
}
_WORDS_BEFORE_FAILING = 8
_MAX_SHOWN = 400
"""Maximum number of characters of tool results in a reply."""

_COMMANDS = {"slow", "think", "long", "silent", "call", *_FAILURES}


class DemoModel:
    """A `ChatModel` without a language model. Replies are deterministic.

    With 0 or infinite `tokens_per_second`, there is no delay.
    """

    def __init__(self, tokens_per_second: float) -> None:
        self.spec = DEMO_SPEC
        is_paced = tokens_per_second > 0 and math.isfinite(tokens_per_second)
        self._delay = 1 / tokens_per_second if is_paced else 0.0

    @property
    def learned(self) -> ModelAbilities:
        return NOTHING_LEARNED

    def learn(self, **changes: Any) -> None:
        """See `ChatModel`. Does nothing."""

    async def stream(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,  # noqa: ARG002 - replies have no form
        options: RequestOptions = NO_OPTIONS,
    ) -> AsyncGenerator[Piece, None]:
        """See `ChatModel`. Each piece is a word."""
        if asked := _answer_client(prompt, tools, options):
            for piece in asked:
                yield piece
            return
        kept = choose_compaction_calls(prompt, tools)
        told: str | None = "" if kept else "Nothing to keep."
        if kept is None:
            told = write_summary(prompt) or write_title(prompt)
        command, words = ("", told.split()) if told is not None else _choose_reply(prompt)
        is_told_so = kept is not None or _COMMAND.search(find_last_line(prompt))
        narration, made = (None, kept or []) if is_told_so else choose_play(prompt, tools)
        if narration is not None:
            words = narration.split()
        thoughts = re.findall(r" ?[^ ]+", SAYINGS["thoughts"]) if command == "think" else []
        pieces, finish = _apply_limits(words, sampling)
        said: list[Piece] = [*map(ThinkingPiece, thoughts), *map(TextPiece, pieces)]
        fails_at = _WORDS_BEFORE_FAILING if command in {"fail-midway", "cut"} else 0
        delay = self._delay * (10 if command == "slow" else 1)
        clock = asyncio.get_running_loop().time
        beat = clock()
        for number, piece in enumerate(said):
            if command in _FAILURES and number == fails_at:
                failure = _FAILURES[command]
                raise failure()
            # At fixed times, so that a late word does not delay the next ones.
            beat += delay
            await asyncio.sleep(max(0.0, beat - clock()))
            yield piece
        if not pieces and not made:
            raise ModelEmptyReplyError("The demo model was told to say nothing.")
        for call in made:
            yield call
        yield _estimate_usage(prompt, len(said), thinking=len(thoughts))
        yield Finish("tool_calls" if made else finish)

    async def call_tools(
        self,
        prompt: Prompt,
        tools: Sequence[Tool],
        sampling: Sampling,  # noqa: ARG002 - nothing is sampled
    ) -> ToolAnswer:
        """See `ChatModel`. Calls only the tools of the chronicle's agent."""
        if made := choose_chronicle_calls(prompt, tools):
            usage = _estimate_usage(prompt, len(made))
            return ToolAnswer(text="", calls=made, usage=usage, finish="tool_calls")
        text = "The demo model does not call these tools."
        usage = _estimate_usage(prompt, len(text.split()))
        return ToolAnswer(text=text, calls=(), usage=usage, finish="stop")

    async def generate_json(
        self,
        prompt: Prompt,
        schema: Mapping[str, Any],
        sampling: Sampling,  # noqa: ARG002 - nothing is sampled
    ) -> StructuredAnswer:
        """See `ChatModel`. Recognises the schemas of background tasks."""
        asked = schema.get("properties", {})
        if "significant" in asked:
            value = build_triage(prompt, schema)
        elif "terms" in asked:
            value = build_glossary(prompt)
        else:
            tell = build_scene if "key_moments" in asked else build_chapter
            value = tell(prompt) if "summary" in asked else {"lines": SAYINGS["next_lines"]}
        return StructuredAnswer(value, _estimate_usage(prompt, 1))


def _answer_client(
    prompt: Prompt, tools: Sequence[Tool], options: RequestOptions
) -> Sequence[Piece]:
    """Return the calls or the JSON that a client of the API requests; () for a usual reply."""
    line = find_last_line(prompt)
    command = _COMMAND.search(line)
    is_asked = command is not None and command[1] == "call"
    is_answered = bool(prompt.messages and prompt.messages[-1].calls)
    calls = (
        ()
        if is_answered
        else choose_client_calls(tools, options.tool_choice, line, is_asked=is_asked)
    )
    if calls:
        return (*calls, _estimate_usage(prompt, len(calls)), Finish("tool_calls"))
    if options.form is None:
        return ()
    value = build_value(options.form.schema or _ANY_OBJECT, line)
    text = TextPiece(json.dumps(value, ensure_ascii=False))
    return (text, _estimate_usage(prompt, 1), Finish("stop"))


_ANY_OBJECT = {"type": "object", "properties": {"reply": {"type": "string"}}}
"""The schema of a client's JSON without a schema."""


def _apply_limits(words: Iterable[str], sampling: Sampling) -> tuple[list[str], FinishReason]:
    """Apply stop sequences and the output limit. A word counts as a token."""
    text = " ".join(words)
    text = text[
        : min((at for stop in sampling.stop or () if (at := text.find(stop)) >= 0), default=None)
    ]
    pieces: list[str] = re.findall(r" ?[^ ]+", text)
    most = sampling.max_output_tokens
    is_cut = most is not None and len(pieces) > most
    return pieces[:most], "length" if is_cut else "stop"


def _choose_reply(prompt: Prompt) -> tuple[str, Iterable[str]]:
    """Return the command in the user's last line, or "", and the words of the reply."""
    line = find_last_line(prompt)
    command = _COMMAND.search(line)
    if command and command[1] == "long":
        told = line[command.end() :].partition("\n")[0].split()
        count = min(int(command[2] or 200), 100_000)
        return "long", islice(cycle([*told, *SAYINGS["story"].split()]), count)
    if command and (command[1] == "silent" or command[1] not in _COMMANDS):
        return "", [] if command[1] == "silent" else SAYINGS["help"].split()
    named = _CHARACTER.search(join_system_messages(prompt))
    quote = " ".join(line.split())
    quote = quote if len(quote) <= 160 else f"{quote[:160].rstrip()}..."  # noqa: PLR2004
    name = named[1].strip() if named else "The character"
    opening = SAYINGS["opening"].format(name=name, quote=quote or "...")
    reply = f"{opening} {SAYINGS['explanation']}"
    if results := [each for message in prompt.messages[-1:] for each in message.results]:
        reply += f" {SAYINGS['results'].format(results=render_result(results)[:_MAX_SHOWN])}"
    if images := count_images(prompt.messages):
        reply += f" {SAYINGS['images'].format(count=images)}"
    return command[1] if command else "", reply.split()


def _estimate_usage(prompt: Prompt, completion: int, *, thinking: int = 0) -> TokenUsage:
    """Estimate the tokens by length, because counting would take longer than the reply."""
    characters = sum(len(message.text) for message in prompt.messages)
    return TokenUsage(
        prompt_tokens=max(1, characters // 4) + count_image_tokens(*prompt.messages),
        completion_tokens=completion,
        thinking_tokens=thinking,
    )
