"""Errors of background work."""

from __future__ import annotations

from backend.errors import AppError, ConflictError, NotFoundError


class RunNotFoundError(NotFoundError):
    """The run does not exist or belongs to another user."""

    slug, title = "run-not-found", "Run not found"


class RunUndoneError(ConflictError):
    """The run was undone before."""

    slug, title = "run-already-undone", "The run was already undone"


class NothingToUndoError(ConflictError):
    """The run wrote nothing."""

    slug, title = "nothing-to-undo", "Nothing to undo"


class RunReplacedError(ConflictError):
    """A later rebuild replaced what the run wrote: undo the run `run_id` first."""

    slug, title = "run-replaced", "The run was replaced by a rebuild"


class ChronicleNotEnabledError(ConflictError):
    """The chat's owner has not enabled its chronicle."""

    slug, title = "chronicle-not-enabled", "The chat does not keep a chronicle"


class OtherChronicleError(AppError):
    """The chat uses another chronicle, or none."""

    status, slug, title = 422, "chat-has-other-chronicle", "The chat uses another chronicle"


class RebuildUnderWayError(ConflictError):
    """The chronicle is already being rebuilt: `job_id` is the job."""

    slug, title = "rebuild-under-way", "The chronicle is already being rebuilt"


class RebuildNotFoundError(NotFoundError):
    """The chronicle was never rebuilt, or too long ago."""

    slug, title = "rebuild-not-found", "Rebuild not found"


class NothingMissedError(ConflictError):
    """The character was there all the time, or nothing public happened while it was away."""

    slug, title = "nothing-missed", "The character has missed nothing"


class SummaryNotFoundError(NotFoundError):
    """The chat's active path has no summary."""

    slug, title = "summary-not-found", "Summary not found"
