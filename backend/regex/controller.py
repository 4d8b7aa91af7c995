"""Regex scripts: `/me/regex-scripts` and their tester."""

from typing import Any

from litestar import Controller, Request, Response, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody

from backend.accounts.auth.identity import Identity
from backend.errors import PreconditionFailedError
from backend.http.schemas import RAISES, make_etag
from backend.regex.schemas import ScriptList, ScriptListView, ScriptTest, ScriptTested
from backend.regex.scripts import RegexScript
from backend.regex.service import ScriptService

AnyRequest = Request[Any, Any, Any]


class ScriptController(Controller):
    """Regex scripts."""

    path = "/me/regex-scripts"
    tags = ("Regex scripts",)

    @get(operation_id="getRegexScripts", summary="Read the account's regex scripts")
    async def get_scripts(
        self, identity: NamedDependency[Identity], scripts: NamedDependency[ScriptService]
    ) -> Response[ScriptListView]:
        """The account's regex scripts, in the order in which they run: before a card's."""
        found, revision = await scripts.read(identity)
        return _tagged(found, revision)

    @put(
        opt={RAISES: (PreconditionFailedError,)},
        operation_id="putRegexScripts",
        summary="Set the account's regex scripts",
    )
    async def put_scripts(
        self,
        request: AnyRequest,
        data: JSONBody[ScriptList],
        identity: NamedDependency[Identity],
        scripts: NamedDependency[ScriptService],
    ) -> Response[ScriptListView]:
        """Set all of the account's regex scripts, in the form that SillyTavern's files have."""
        revision = await scripts.replace(
            identity, data.scripts, if_match=request.headers.get("if-match")
        )
        return _tagged(data.scripts, revision)

    @post(
        "/test",
        status_code=200,
        operation_id="testRegexScripts",
        summary="Test regex scripts on a text",
    )
    async def test_scripts(
        self,
        data: JSONBody[ScriptTest],
        identity: NamedDependency[Identity],
        scripts: NamedDependency[ScriptService],
    ) -> ScriptTested:
        """Run scripts on a text as they would run in a chat; nothing is stored."""
        return await scripts.test(identity, data)


def _tagged(scripts: list[RegexScript], revision: int) -> Response[ScriptListView]:
    view = ScriptListView(scripts=scripts, revision=revision)
    return Response(view, headers={"ETag": make_etag(revision)})
