"""`POST /lorebooks/{lorebook_id}/test`."""

from uuid import UUID

from litestar import Controller, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from backend.accounts.auth.identity import Identity
from backend.accounts.auth.middleware import NEEDS
from backend.characters.errors import CharacterNotFoundError
from backend.chats.errors import ChatNotFoundError
from backend.generation.registry import UnknownModelError
from backend.generation.sampling import SettingNotTakenError
from backend.http.schemas import EXAMPLE, PREVIEWS, RAISES
from backend.lorebooks.errors import LorebookNotFoundError
from backend.turns.api.lore_tester import LoreTest, LoreTester, LoreTestRequest


class LoreTesterController(Controller):
    """Trying lorebooks."""

    path = "/lorebooks/{lorebook_id:uuid}/test"
    tags = ("Lorebooks",)

    @post(
        status_code=200,
        opt={
            NEEDS: "read",
            PREVIEWS: True,
            RAISES: (
                LorebookNotFoundError,
                ChatNotFoundError,
                CharacterNotFoundError,
                UnknownModelError,
                SettingNotTakenError,
            ),
            EXAMPLE: {"texts": ["Who lives in the lighthouse?"]},
        },
        summary="Try a lorebook on a text",
    )
    async def test_lorebook(
        self,
        lorebook_id: FromPath[UUID],
        data: JSONBody[LoreTestRequest],
        identity: NamedDependency[Identity],
        lore_tester: NamedDependency[LoreTester],
    ) -> LoreTest:
        """Which entries a text would bring in, by which keys, and which it nearly would.

        It is the scan that fills prompts, of this lorebook alone, linked or not. Only the text is
        looked at, no message of a chat; nobody searches by meaning; nothing is stored.
        """
        return await lore_tester.test(identity, lorebook_id, data)
