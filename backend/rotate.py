"""What `talekeeper rotate-keys` does; each of it can be interrupted and started again."""

from __future__ import annotations

from collections.abc import Callable

from backend.accounts.names import load_instance_keys
from backend.accounts.rotation import mark_all_due, rotate_data_key, rotate_root_key
from backend.accounts.service import AccountService
from backend.characters import models as character_models
from backend.chats import models as chat_models
from backend.chronicles import models as chronicle_models
from backend.database.engine import Database
from backend.enrichment import models as enrichment_models
from backend.jobs import models as job_models
from backend.lorebooks import models as lorebook_models
from backend.memory import models as memory_models
from backend.settings import Settings
from backend.turns import models as turn_models
from backend.vault.root import load_root_keys
from backend.vault.slots import DEFAULT_KDF

Report = Callable[[int, int], None]

TABLES = (
    character_models,
    chat_models,
    chronicle_models,
    enrichment_models,
    job_models,
    lorebook_models,
    memory_models,
    turn_models,
)
"""Every table has to be known for every sealed text to be found."""


async def rotate_root_keys(database: Database, settings: Settings, report: Report) -> str:
    """Put a new root key in the place of the old one; says in a sentence how it ended."""
    result = await rotate_root_key(
        database,
        path=settings.resolved_root_key_file,
        value=settings.root_key.get_secret_value() if settings.root_key else None,
        report=report,
    )
    message = f"Everything is under version {result.version} of the root key now."
    if result.removable:
        older = ", ".join(str(version) for version in result.removable)
        return f"{message} Version {older} can be taken out of TALEKEEPER_ROOT_KEY."
    return f"{message} Make a new copy of {settings.resolved_root_key_file}."


async def make_data_keys_due(database: Database) -> str:
    """Have everyone get a new data key at the next log-in; says how many that is."""
    count = await mark_all_due(database)
    return (
        f"{count} accounts get a new data key at their next log-in. What was written before stays "
        "under the old one until it is written anew, or until `--user` seals it anew."
    )


async def rotate_user_key(
    database: Database, settings: Settings, *, name: str, password: str
) -> str:
    """Make a new user key for one user; says how it ended. Raises `WrongCredentialsError`."""
    root = load_root_keys(
        settings.resolved_root_key_file,
        value=settings.root_key.get_secret_value() if settings.root_key else None,
    )
    instance = await load_instance_keys(database, root)
    accounts = AccountService(database, root, instance, settings, kdf=DEFAULT_KDF)
    unlocked = await accounts.unlock(name, password, address="")
    renewed = await accounts.renew(unlocked.user.id, unlocked.current)
    return (
        f"This is user key {renewed.generation} of {name}. What is written from now on is under a "
        "new data key; `rotate-keys data` seals what was written before under it, too."
    )


async def rotate_user_data_key(
    database: Database, settings: Settings, *, name: str, password: str, report: Report
) -> str:
    """Seal all texts of one user anew under a new data key; says how it ended.

    Raises `WrongCredentialsError`: nobody's texts can be opened without their password.
    """
    root = load_root_keys(
        settings.resolved_root_key_file,
        value=settings.root_key.get_secret_value() if settings.root_key else None,
    )
    instance = await load_instance_keys(database, root)
    accounts = AccountService(database, root, instance, settings, kdf=DEFAULT_KDF)
    unlocked = await accounts.unlock(name, password, address="")
    result = await rotate_data_key(database, unlocked.user.id, unlocked.user_key, report)
    message = f"{result.resealed:,} texts are under data key {result.number} now."
    if result.damaged:
        message += f" {result.damaged:,} could not be opened and were left as they are."
    if result.kept:
        older = ", ".join(str(number) for number in result.kept)
        message += f" Key {older} is kept for now; run this again in a day to drop it."
    return message
