"""Routes of regex scripts and their tester: `/me/regex-scripts`."""

from litestar import Controller, Response, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody

from backend.accounts.auth.identity import Identity
from backend.errors import PreconditionFailedError
from backend.http.schemas import RAISES, IfMatch, tag_view
from backend.regex.scripts import ScriptList, ScriptListView, ScriptTest, ScriptTested
from backend.regex.service import ScriptService


class ScriptController(Controller):
    path = "/me/regex-scripts"
    tags = ("Regex scripts",)

    @get(operation_id="getRegexScripts", summary="Read the account's regex scripts")
    async def get_scripts(
        self, identity: NamedDependency[Identity], scripts: NamedDependency[ScriptService]
    ) -> Response[ScriptListView]:
        """List the account's regex scripts in execution order. They run before those of a card."""
        found, revision = await scripts.read(identity)
        return tag_view(ScriptListView(scripts=found, revision=revision))

    @put(
        opt={RAISES: (PreconditionFailedError,)},
        operation_id="putRegexScripts",
        summary="Set the account's regex scripts",
    )
    async def put_scripts(
        self,
        data: JSONBody[ScriptList],
        identity: NamedDependency[Identity],
        scripts: NamedDependency[ScriptService],
        if_match: IfMatch = None,
    ) -> Response[ScriptListView]:
        """Replace all of the account's regex scripts, in the format of SillyTavern's files."""
        revision = await scripts.replace(identity, data.scripts, if_match=if_match)
        return tag_view(ScriptListView(scripts=data.scripts, revision=revision))

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
