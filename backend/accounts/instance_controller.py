"""What a client has to know before anything else: `GET /instance`."""

from typing import Any

import msgspec
from litestar import Controller, Request, get
from litestar.di import NamedDependency

import backend
from backend.accounts.identity import Identity
from backend.accounts.middleware import PUBLIC
from backend.accounts.schemas import UserView
from backend.accounts.service import AccountService, SignUpState


class InstanceView(msgspec.Struct, kw_only=True):
    """This installation, as whoever asks may see it.

    `sign_up` is `first` while there is no account: whoever signs up then becomes administrator.
    `user` is who asks, null where nobody is signed in.
    """

    version: str
    sign_up: SignUpState
    user: UserView | None


class InstanceController(Controller):
    """This installation."""

    path = "/instance"
    tags = ("Accounts",)

    @get(opt={PUBLIC: True}, operation_id="getInstance", summary="This installation")
    async def get_instance(
        self,
        request: Request[Identity | None, Any, Any],
        accounts: NamedDependency[AccountService],
    ) -> InstanceView:
        """The version, who may sign up, and who is signed in, if anybody is."""
        identity = request.user
        user = (
            None if identity is None else UserView.of_identity(identity, accounts.name_of(identity))
        )
        return InstanceView(
            version=backend.__version__,
            sign_up=await accounts.sign_up_state(),
            user=user,
        )
