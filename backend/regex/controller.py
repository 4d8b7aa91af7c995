"""Routes of regex scripts and their tester: `/me/regex-scripts`."""

from typing import Any

from litestar import Controller, Request, Response, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody

from backend.accounts.auth.identity import Identity
from backend.errors import PreconditionFailedError
from backend.http.schemas import RAISES, make_etag
from backend.regex.scripts import RegexScript, ScriptList, ScriptListView, ScriptTest, ScriptTested
from backend.regex.service import ScriptService

AnyRequest = Request[Any, Any, Any]


class ScriptController(Controller):
    path = "/me/regex-scripts"
    tags = ("Regex scripts",)

    @get(operation_id="getRegexScripts", summary="Read the account's regex scripts")
    async def get_scripts(
        self, identity: NamedDependency[Identity], scripts: NamedDependency[ScriptService]
    ) -> Response[ScriptListView]:
        """List the account's regex scripts in execution order. They run before those of a card."""
        found, revision = await scripts.read(identity)
        return _add_etag(found, revision)

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
        """Replace all of the account's regex scripts, in the format of SillyTavern's files."""
        revision = await scripts.replace(
            identity, data.scripts, if_match=request.headers.get("if-match")
        )
        return _add_etag(data.scripts, revision)

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
        """Run scripts on a text as in a chat. Nothing is stored."""
        return await scripts.test(identity, data)


def _add_etag(scripts: list[RegexScript], revision: int) -> Response[ScriptListView]:
    view = ScriptListView(scripts=scripts, revision=revision)
    return Response(view, headers={"ETag": make_etag(revision)})
