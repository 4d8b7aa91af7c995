"""Failures of providers: causes, advice, retry times and declined answers."""

from __future__ import annotations

import json
import socket
import ssl
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from backend.generation.client.client import ServerError
from backend.generation.declined_answers import is_declined
from backend.generation.failures.failures import (
    FailureSource,
    convert_connection_error,
    convert_server_error,
    find_wait,
    parse_wait,
    show_address,
)
from backend.generation.failures.provider_faults import (
    MAX_QUOTE_CHARS,
    find_code_words,
    read_fault,
    remove_keys,
)
from backend.generation.model import (
    ModelContextOverflowError,
    ModelError,
    ModelUnavailableError,
    ModelWrongAddressError,
)
from tests.fakes.provider_answers import ANSWERS, QUOTA, Seen, openai

ADDRESS = "http://127.0.0.1:8080/v1"
CLOSED = (
    f"{ADDRESS} closed the connection. Try again. If that does not help, look at the server's log, "
    "or check whether its address begins with https://."
)
UNSAFE = f"Cannot connect to {ADDRESS} safely: "
OWN = FailureSource(
    who="The server", base_url=ADDRESS, secrets=("sk-the-key-itself", "tenant-42"), is_own=True
)


@pytest.mark.parametrize("seen", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_becomes_the_error_that_names_its_cause(seen: Seen) -> None:
    error = convert_server_error(
        ServerError(seen.status, seen.body, seen.headers, in_stream=seen.in_stream), OWN
    )
    assert type(error) is seen.kind
    problem = error.to_problem()
    assert {name: problem.get(name) for name in seen.extra} == seen.extra


@pytest.mark.parametrize("seen", ANSWERS.values(), ids=ANSWERS)
def test_a_body_that_ends_too_early_is_read_as_far_as_it_goes(seen: Seen) -> None:
    text = json.dumps(seen.body)
    for end in range(0, len(text), 7):
        answer = ServerError(seen.status, text[:end], seen.headers, in_stream=seen.in_stream)
        assert isinstance(convert_server_error(answer, OWN), ModelError)


def fail(status: int, body: Any, /, source: FailureSource = OWN, **headers: str) -> ModelError:
    return convert_server_error(ServerError(status, body, headers), source)


def test_the_detail_contains_the_answer_and_the_next_step() -> None:
    error = fail(429, openai(QUOTA, type="insufficient_quota", code="insufficient_quota"))

    assert error.to_problem() == {
        "type": "urn:talekeeper:problem:model-no-credit",
        "title": "The account has no credit at the provider",
        "status": 502,
        "detail": "The server answered 429 insufficient_quota. Add credit at the provider, or "
        "choose another model.",
        "provider_message": QUOTA,
    }


def test_an_overflow_names_both_numbers() -> None:
    kind = "exceed_context_size_error"
    error = fail(400, openai("x", type=kind, n_prompt_tokens=9000, n_ctx=4096))
    assert error.detail == (
        "The server answered 400 exceed_context_size_error. The prompt with the reply takes 9,000 "
        "tokens. The model's window has 4,096 tokens. Lower the context size, or load the model "
        "with a larger window."
    )


@pytest.mark.parametrize("number", [0, -1, 10**9, True, "4096", 4096.5])
def test_a_window_that_no_model_has_is_not_reported(number: Any) -> None:
    error = fail(400, openai("x", code="context_length_exceeded", n_ctx=number))
    assert isinstance(error, ModelContextOverflowError)
    assert error.window is None


@pytest.mark.parametrize(
    ("wait", "advice"), [("0", "Wait 1 s,"), ("34.2", "Wait 35 s,"), ("600", "Wait 10 minutes,")]
)
def test_a_rate_limit_says_how_long_to_wait(wait: str, advice: str) -> None:
    error = convert_server_error(ServerError(429, None, {"retry-after": wait}), OWN)
    assert advice in error.detail
    assert error.headers["Retry-After"]


def test_a_redirect_names_the_host_alone() -> None:
    location = "https://user:secret@login.example/realm?key=secret#x"
    error = fail(302, "", location=location)
    assert "It leads to login.example. " in error.detail
    assert "secret" not in str(error.to_problem())


@pytest.mark.parametrize("location", ["/login", "", "http://[", "https://a b/", "x" * 9_000])
def test_a_redirect_within_the_server_names_no_host(location: str) -> None:
    assert "It leads to" not in fail(302, "", location=location).detail


def test_a_redirect_to_the_same_host_names_the_scheme() -> None:
    assert "It leads to https://127.0.0.1" in fail(301, "", location="https://127.0.0.1/v1").detail


SHARED = FailureSource(who="The server", base_url="http://10.0.0.7/v1", secrets=("sk-1",))


@pytest.mark.parametrize(
    ("error", "hidden"),
    [
        (fail(401, openai("Invalid API key"), SHARED), "Invalid API key"),
        (convert_connection_error(ConnectionRefusedError(), SHARED), "http://10.0.0.7/v1"),
        (fail(302, "", SHARED, location="https://inner.example/"), "inner.example"),
    ],
    ids=["words", "address", "redirect"],
)
def test_details_of_a_shared_provider_are_for_administrators(
    error: ModelError, hidden: str
) -> None:
    assert hidden not in str(error.to_problem())
    assert hidden in str(error.to_problem(for_administrator=True))


def caused(error: BaseException, by: BaseException) -> BaseException:
    error.__cause__ = by
    return error


# Named like the errors of the HTTP client.
ConnectError, ConnectTimeout, ReadError, UnsupportedProtocol = (
    type(name, (Exception,), {})
    for name in ("ConnectError", "ConnectTimeout", "ReadError", "UnsupportedProtocol")
)


WRONG_VERSION = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
WRONG_VERSION.reason = "WRONG_VERSION_NUMBER"


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (
            caused(ConnectError(), ExceptionGroup("tries", [ConnectionRefusedError()])),
            f"Cannot connect to {ADDRESS}. Is the server running?",
        ),
        (
            caused(ConnectError(), socket.gaierror(-2, "unknown")),
            f"Cannot find {ADDRESS}: the name has no address. Check its spelling.",
        ),
        (
            ConnectTimeout(),
            f"Cannot connect to {ADDRESS}: it does not answer. Is the server running?",
        ),
        (
            caused(ConnectError(), ssl.SSLCertVerificationError("no")),
            UNSAFE + "its certificate is not trusted. Check the address and the certificate.",
        ),
        (
            caused(ConnectError(), WRONG_VERSION),
            UNSAFE + "this port does not use TLS. Does its address begin with http://?",
        ),
        (ReadError(), CLOSED),
    ],
)
def test_a_broken_connection_names_the_address_and_the_cause(
    error: BaseException, detail: str
) -> None:
    failure = convert_connection_error(error, OWN)
    assert type(failure) is ModelUnavailableError
    assert failure.detail == detail


def test_an_address_without_a_scheme_is_said_to_lack_it() -> None:
    failure = convert_connection_error(UnsupportedProtocol(), OWN)
    assert type(failure) is ModelWrongAddressError
    assert failure.detail == "The address must begin with http:// or https://."


def test_an_unknown_fault_names_its_type() -> None:
    assert convert_connection_error(ZeroDivisionError("secret"), OWN).detail == (
        "The server does not respond (ZeroDivisionError)."
    )


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:pass@api.example:8443/v1?key=1#x", "https://api.example:8443/v1"),
        ("http://[::1]:11434/v1", "http://[::1]:11434/v1"),
        ("http://[", ""),
        ("", ""),
    ],
)
def test_an_address_is_shown_without_secrets(url: str, shown: str) -> None:
    assert show_address(url) == shown


SECRETS = ("sk-the-key-itself", "tenant 42-abcdefgh", "ab")


def quote(body: Any) -> str:
    return read_fault(body).quote(SECRETS)


BODIES: list[tuple[Any, str]] = [
    ({"error": {"message": "Overloaded"}}, "Overloaded"),
    ([{"error": {"message": "Overloaded"}}], "Overloaded"),
    ({"error": "Overloaded"}, "Overloaded"),
    ({"detail": "Overloaded"}, "Overloaded"),
    ({"detail": {"msg": "Overloaded", "type": "busy"}}, "Overloaded"),
    ({"detail": [{"loc": ["body"], "msg": "Overloaded", "input": "She waits."}]}, "Overloaded"),
    ({"message": {"detail": [{"msg": "Overloaded"}]}}, "Overloaded"),
    ({"error": {"message": json.dumps({"error": {"message": "Overloaded"}})}}, "Overloaded"),
    ("Overloaded", "Overloaded"),
    (b"Overloaded", "Overloaded"),
    ("<html><title>Overloaded</title></html>", "Overloaded"),
    ("<html><body><h1>Overloaded</h1></body></html>", "Overloaded"),
    ("<html><body><p>Please <b>log in</b></p></body></html>", "Please log in"),
    ("<html><script>let a = 1</script></html>", ""),
    ('{"error": {"message": "Overloaded \\u00e9", "type": "bus', "Overloaded é"),
    (
        {"error": {"message": "Provider returned error", "metadata": {"raw": "Overloaded"}}},
        "Overloaded",
    ),
    ({"error": {"message": "Provider returned error"}}, "Provider returned error"),
    (None, ""),
    (7, ""),
    ({"error": None}, ""),
    ({"error": {"message": 7}}, ""),
    ([[[[]]]], ""),
]


@pytest.mark.parametrize(("body", "words"), BODIES)
def test_the_providers_words_are_found_in_a_body_of_any_shape(body: Any, words: str) -> None:
    assert quote(body) == words


@pytest.mark.parametrize("name", ["flagged_input", "input", "prompt", "messages", "ctx"])
def test_members_that_quote_the_prompt_are_not_read(name: str) -> None:
    assert read_fault({"error": {name: "She waits.", "metadata": {name: ["She"]}}}).sentences == ()


@pytest.mark.parametrize(
    "text",
    [
        "Incorrect API key provided: sk-the-key-itself. Look",
        "Incorrect API key provided: SK-THE-KEY-ITSELF. Look",
        "the header tenant 42-abcdefgh is wrong",
        "the header 42-abcdefgh is wrong",
        "wrong: ab, look",
        "https://x.example/?key=sk-the-key-itself&a=1",
        "of tenant%2042-abcdefgh",
    ],
)
def test_the_key_and_the_headers_values_are_removed(text: str) -> None:
    words = quote(text)
    assert "[removed]" in words
    assert not any(secret.lower() in words.lower() for secret in (*SECRETS[:2], "42-abcdefgh"))


def test_a_short_value_is_removed_as_a_word_alone() -> None:
    assert quote("cabin ab lab") == "cabin [removed] lab"


@pytest.mark.parametrize("token", [
    "sk-proj-4kFq99z8", "sk-ant-api03-Zz9", "sk-abc*****wxyz", "gsk_Kd83hfkq9s", "hf_abcdEFGH1234",
    "xai-abcdEFGH1234", "AIzaSyA-1234567890abcdefg", "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0.abc-def", "Bearer abcdef12345",
    "Authorization: Basic abcdef==", "api_key=abcdefgh", "API key: hunter22",
    "0123456789abcdef0123456789abcdef", "8c7d4f2e-1b3a-4c5d-9e8f-0a1b2c3d4e5f", "my****key",
])  # fmt: skip
def test_texts_that_look_like_keys_are_removed(token: str) -> None:
    cleaned = remove_keys(f"Wrong: {token}, sorry", ())
    assert "[removed]" in cleaned
    assert token.rsplit(maxsplit=1)[-1].strip("=") not in cleaned
    assert cleaned.startswith("Wrong: ")
    assert cleaned.endswith("sorry")


@pytest.mark.parametrize(
    "text",
    [
        "anthropic/claude-3-5-sonnet-20241022 is not a valid model ID",
        "meta-llama/Llama-3.1-8B-Instruct-Q4_K_M.gguf failed",
        "key_limit_exceeded context_length_exceeded",
        "Missing Bearer authentication in header",
        "Limit 100000, Used 99912, Requested 480. Please try again in 5m38.688s.",
        "See https://openrouter.ai/settings/privacy",
        "Unknown key: temperature; unexpected token: <",
    ],
)
def test_names_and_addresses_are_kept(text: str) -> None:
    assert remove_keys(text, ()) == text


def test_a_long_sentence_is_cut_and_marked() -> None:
    words = quote({"error": {"message": "so long " * 2_000}})
    assert len(words) == MAX_QUOTE_CHARS
    assert words.endswith("…")


def test_half_a_key_at_the_reading_limit_is_not_quoted() -> None:
    spaces = " " * 1_980
    words = quote({"error": {"message": f"Wrong{spaces}: {'a b ' * 489}sk-the-key-itself"}})
    assert "sk-" not in words


def test_control_characters_are_removed() -> None:
    words = quote({"error": {"message": "a\x00b\x1b[31mc\u202ed\u200be\nf\u2028g\ud800"}})
    assert words == "abcde f g"


def test_only_code_words_pass_for_code_words() -> None:
    words = find_code_words(
        "INVALID_ARGUMENT",
        "generation_config.stop[0]",
        "INVALID_ARGUMENT",
        "The prompt was: hello",
        "sk-the-key-itself",
        "gsk_Kd83hfkq9s",
        "x" * 65,
        7,
        None,
        secrets=("sk-the-key", ""),
    )

    assert words == ("INVALID_ARGUMENT", "generation_config.stop[0]")


def test_a_body_that_never_ends_is_read_for_a_while() -> None:
    deep: Any = "end"
    for _ in range(900):
        deep = {"error": deep}
    listed: Any = "end"
    for _ in range(900):
        listed = [listed]
    wide = {"error": [{"message": f"no {number}"} for number in range(100_000)]}

    assert read_fault(deep).sentences == ()
    assert read_fault({"code": listed, "error": listed}).codes == ()
    assert len(read_fault(wide).sentences) < 10
    assert read_fault("[" * 100_000).sentences == ()


@pytest.mark.parametrize(("value", "seconds"), [
    ("30", 30), ("34.074824224s", 34.074824224), (" 5 ", 5), ("0", 0), (30, 30), (20.5, 20.5),
    ("6m0s", 360), ("1h2m", 3720), ("20ms", 0.02), ("1 minute 30 seconds", 90), ("2 hours", 7200),
    ("3 days", 86_400), ("999999999", 86_400), ("1893456000000", 86_400), ("-3", None),
    ("soon", None), ("5 messages", None), ("", None), ("nan", None), (None, None), (True, None),
    ([], None), ("9" * 5_000, None), ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
    ("2001-01-01T00:00:00Z", 0),
])  # fmt: skip
def test_a_wait_is_read_in_every_notation(value: object, seconds: float | None) -> None:
    assert parse_wait(value) == seconds


@pytest.mark.parametrize("form", ["date", "seconds", "milliseconds", "time"])
def test_a_moment_is_counted_from_now(form: str) -> None:
    moment = datetime.now(UTC) + timedelta(hours=1)
    value = {
        "date": format_datetime(moment, usegmt=True),
        "seconds": str(round(moment.timestamp())),
        "milliseconds": str(round(moment.timestamp() * 1000)),
        "time": moment.isoformat(),
    }[form]
    assert parse_wait(value) == pytest.approx(3600, abs=60)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("please try again in 20s. visit the page", 20),
        ("please try again in 5m38.688s. need more tokens?", 338.688),
        ("please retry in 34.074824224s.", 34.074824224),
        ("please try again in 6ms.", 0.006),
        ("retry after 30 seconds", 30),
        ("please wait 20 seconds, then go on", 20),
        ("the limit resets in 2 hours", 7200),
        ("try again later", None),
        ("try again in a while", None),
        ("retry in 3 messages", None),
    ],
)
def test_a_wait_in_words_is_understood(text: str, seconds: float | None) -> None:
    assert find_wait({}, text=text) == seconds


def test_retry_after_comes_before_the_longest_reset_of_a_used_up_limit() -> None:
    resets = {
        "x-ratelimit-remaining-requests": "9",
        "x-ratelimit-reset-requests": "1h",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "30s",
        "ratelimit-reset": "10",
    }
    assert find_wait(resets) == 30
    assert find_wait({"retry-after": "7", **resets}) == 7


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

STORIES = [
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


@pytest.mark.parametrize("text", [*DECLINED, *STORIES])
def test_declined_answers_are_recognised_in_many_languages(text: str) -> None:
    assert is_declined(text) is (text in DECLINED)
