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

    slug, title = "nothing-to-undo", "The run has nothing to undo"


class RunReplacedError(ConflictError):
    """A later rebuild, `run_id`, has replaced the run's items and must be undone first."""

    slug, title = "run-replaced", "A rebuild has replaced the results of the run"


class ChronicleNotEnabledError(ConflictError):
    """The owner of the chat has not consented to the chronicle."""

    slug, title = "chronicle-not-enabled", "The chronicle is switched off for this chat"


class OtherChronicleError(AppError):
    """The chat uses another chronicle or none."""

    status, slug, title = 422, "chat-has-other-chronicle", "The chat uses another chronicle"


class RebuildUnderWayError(ConflictError):
    """The chronicle is being rebuilt by the job `job_id`."""

    slug, title = "rebuild-under-way", "The chronicle is already being rebuilt"


class RebuildNotFoundError(NotFoundError):
    """The chronicle was not rebuilt recently."""

    slug, title = "rebuild-not-found", "Rebuild not found"


class SummaryNotFoundError(NotFoundError):
    """The active path has no summary."""

    slug, title = "summary-not-found", "Summary not found"
