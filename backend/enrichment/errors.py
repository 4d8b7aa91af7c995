"""What can go wrong with the work behind the reply."""

from __future__ import annotations

from backend.errors import AppError, ConflictError, NotFoundError


class RunNotFoundError(NotFoundError):
    """No such run, or someone else's."""

    slug, title = "run-not-found", "No such run"


class RunUndoneError(ConflictError):
    """It was undone before."""

    slug, title = "run-already-undone", "The run was undone already"


class NothingToUndoError(ConflictError):
    """The run has written nothing."""

    slug, title = "nothing-to-undo", "The run has written nothing"


class RunReplacedError(ConflictError):
    """A later rebuild replaced what the run wrote: `run_id` is the one to undo first."""

    slug, title = "run-replaced", "A rebuild has replaced what the run wrote"


class ChronicleNotEnabledError(ConflictError):
    """The chat's owner has not agreed to have it written down."""

    slug, title = "chronicle-not-enabled", "The chat does not keep a chronicle"


class OtherChronicleError(AppError):
    """The chat keeps another chronicle, or none."""

    status, slug, title = 422, "chat-has-other-chronicle", "The chat keeps another chronicle"


class RebuildUnderWayError(ConflictError):
    """The chronicle is being rebuilt already: `job_id` is the job."""

    slug, title = "rebuild-under-way", "The chronicle is being rebuilt already"


class RebuildNotFoundError(NotFoundError):
    """The chronicle was not rebuilt, or too long ago to tell."""

    slug, title = "rebuild-not-found", "No rebuild of this chronicle"


class SummaryNotFoundError(NotFoundError):
    """Nothing of the chat's active path is summarised."""

    slug, title = "summary-not-found", "There is no summary"
