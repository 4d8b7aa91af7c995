"""The account's archive: `/me/archive`."""

from litestar import Controller, delete, get, post
from litestar.di import NamedDependency
from litestar.response import Stream

from backend.accounts.auth.identity import Identity
from backend.accounts.auth.middleware import NEEDS
from backend.accounts.profile.activity import ActivityLog
from backend.http.schemas import FILES, RAISES, STORES, AnyRequest
from backend.transfer.archives.schemas import ArchiveView
from backend.transfer.archives.service import ArchiveService
from backend.transfer.errors import ArchiveNotFoundError


class ArchiveController(Controller):
    """Everything of the account in one zip file."""

    path = "/me/archive"
    tags = ("Import and export",)
    opt = {NEEDS: "manage"}  # noqa: RUF012  # Litestar's own declaration

    @post(status_code=202, opt={STORES: False}, summary="Make an archive of the account")
    async def make_archive(
        self,
        request: AnyRequest,
        identity: NamedDependency[Identity],
        archives: NamedDependency[ArchiveService],
        activity: NamedDependency[ActivityLog],
    ) -> ArchiveView:
        """Start a job that writes everything of the account to one zip file.

        `POST /imports` imports it again, here or in another installation. The archive contains no
        keys of providers. It waits for a day, encrypted with your key. If one is being made
        already, nothing new starts.
        """
        view = await archives.begin(identity)
        await activity.note(request, "exported", detail="archive")
        return view

    @get(
        "/status",
        opt={RAISES: (ArchiveNotFoundError,)},
        summary="Read the status of the account's archive",
    )
    async def get_archive_status(
        self, identity: NamedDependency[Identity], archives: NamedDependency[ArchiveService]
    ) -> ArchiveView:
        """The newest archive, and the job that makes it. `POST /jobs/{id}/stop` stops the job."""
        return await archives.read_status(identity)

    @get(
        opt={RAISES: (ArchiveNotFoundError,), FILES: ("application/zip",)},
        summary="Download the account's archive",
    )
    async def get_archive(
        self, identity: NamedDependency[Identity], archives: NamedDependency[ArchiveService]
    ) -> Stream:
        """The newest finished archive as a zip file. Until one is finished, there is none."""
        found = await archives.open(identity)
        headers = {
            "Content-Disposition": f'attachment; filename="{found.name}"',
            "Content-Length": str(found.size),
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }
        return Stream(found.chunks, media_type="application/zip", headers=headers)

    @delete(
        opt={RAISES: (ArchiveNotFoundError,), STORES: False},
        summary="Delete the account's archive",
    )
    async def delete_archive(
        self, identity: NamedDependency[Identity], archives: NamedDependency[ArchiveService]
    ) -> None:
        """Delete the archive, or stop making it."""
        await archives.delete(identity)
