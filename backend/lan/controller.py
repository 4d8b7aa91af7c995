"""The server in the local network, for administrators, and its root certificate for everyone."""

import asyncio
from collections.abc import Sequence

import msgspec
from litestar import Controller, Response, get
from litestar.di import NamedDependency

from backend.accounts.auth.middleware import NEEDS, PUBLIC
from backend.accounts.profile.administration import require_administrator
from backend.core.qr_codes import make_qr_rows
from backend.errors import NotFoundError
from backend.http.schemas import FILES, RAISES
from backend.lan.service import LocalNetwork

CERTIFICATE = "/api/v1/lan/certificate"
MEDIA_TYPE = "application/x-x509-ca-cert"


class LanPlace(msgspec.Struct, kw_only=True):
    """An address for a device, and the rows of its QR code: `1` is a dark module."""

    url: str
    qr: list[str]


class LanView(msgspec.Struct, kw_only=True):
    """The server in the local network.

    `page` is the usual address, `others` are further ones. All are empty if there are none.
    `certificate` is where a device gets the root certificate, and `fingerprint` its SHA-256 digest.
    """

    is_on: bool
    page: LanPlace | None
    others: list[str]
    certificate: LanPlace | None
    fingerprint: str | None


class LanController(Controller):
    """The server in the local network."""

    tags = ("Administration",)

    @get(
        "/admin/lan",
        opt={NEEDS: "manage"},
        guards=[require_administrator],
        summary="Read the local network's addresses",
    )
    async def get_lan(self, lan: NamedDependency[LocalNetwork]) -> LanView:
        """Addresses for phones in the same network, and the certificate that they must trust."""
        origins = lan.find_origins() if lan.is_on else []
        if not origins:
            return LanView(
                is_on=lan.is_on, page=None, others=[], certificate=None, fingerprint=None
            )
        first, *others = origins
        page, certificate = await asyncio.to_thread(_places, (first, first + CERTIFICATE))
        return LanView(
            is_on=True,
            page=page,
            others=others,
            certificate=certificate,
            fingerprint=lan.root.fingerprint,
        )

    @get(
        "/lan/certificate",
        opt={PUBLIC: True, RAISES: (NotFoundError,), FILES: (MEDIA_TYPE,)},
        media_type=MEDIA_TYPE,
        summary="Download the root certificate",
    )
    async def get_certificate(self, lan: NamedDependency[LocalNetwork]) -> Response[bytes]:
        """The certificate that a device in the local network must trust. It is not secret."""
        return Response(
            lan.root.der,
            media_type=MEDIA_TYPE,
            # An iPhone would only save an attachment.
            headers={"Content-Disposition": 'inline; filename="talekeeper.crt"'},
        )


def _places(urls: Sequence[str]) -> list[LanPlace]:
    return [LanPlace(url=each, qr=make_qr_rows(each)) for each in urls]
