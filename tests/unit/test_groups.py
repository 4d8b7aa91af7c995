"""The groups of tests that not every machine can run: tests/conftest.py."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = (Path(__file__).parents[1] / "conftest.py").read_text(encoding="utf-8")
TESTS = """
    import pytest

    @pytest.fixture(scope="session")
    def server():
        pytest.skip("no server here")

    @pytest.mark.postgres
    def test_one(server): ...

    @pytest.mark.postgres
    def test_two(server): ...

    def test_three(): ...

    @pytest.mark.skip("for another reason")
    def test_four(): ...
"""


OPTIONS = (
    "-p",
    "no:cacheprovider",
    "-p",
    "no:langsmith_plugin",
    "-p",
    "no:faker",
    "-p",
    "no:schemathesis",
)
"""Without plugins of other packages, which take seconds to load."""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("TEST_REQUIRE", raising=False)
    pytester.makeini("[pytest]\nmarkers = postgres: needs a server")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    return pytester


def test_a_group_that_cannot_run_says_why_in_one_line(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess(*OPTIONS)
    result.assert_outcomes(passed=1, skipped=3)
    told = [line for line in result.outlines if line.startswith("not run: ")]
    assert told == ["not run: postgres (2 tests): no server here"]
    assert "1 passed" in result.outlines[-1]


def test_a_group_that_is_required_fails_with_the_reason(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_REQUIRE", " postgres,")
    result = project.runpytest_inprocess(*OPTIONS)
    result.assert_outcomes(passed=1, errors=2, skipped=1)
    result.stdout.fnmatch_lines(["*postgres is required (TEST_REQUIRE): no server here*"])


def test_a_group_that_does_not_exist_cannot_be_required(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_REQUIRE", "postgers")
    result = project.runpytest_inprocess(*OPTIONS)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*TEST_REQUIRE: no such group: postgers"])
