"""Set up the environment in .venv, then serve, test, or run a Python script in it.

    launcher.py serve|test|python [ARGUMENT...]

The shell scripts and command files in this folder call it with a Python that they find. It needs
the standard library alone, and writes inside the checkout alone: if no recent uv is on the PATH, it
installs uv into .uv/, with its cache. uv does everything else, by uv.lock.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036  # the Windows launcher may find an older one
    sys.exit(f"talekeeper: Python 3.11 or newer is needed; this is {sys.version.split()[0]}.")

import tomllib

ROOT = Path(__file__).resolve().parents[1]

UV_VERSION = "0.13.8"
OLDEST_UV = (0, 13)
"""The oldest uv on the PATH that is used."""

FOREIGN_VARIABLES = (
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "PYTHONHOME",
    "PYTHONPATH",
    "PIP_USER",
    "PIP_TARGET",
    "PIP_PREFIX",
)
"""Variables that would lead pip or uv to another environment."""

CERTIFICATE_STORES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
)


class Checkout:
    """A checkout of Talekeeper, and the environment in its folder .venv.

    Args:
        root: The checkout's folder.
        windows: True if programs are where Windows has them.
    """

    def __init__(self, root: Path = ROOT, *, windows: bool = os.name == "nt") -> None:
        self.root = root
        self.windows = windows

    def serve(self, arguments: Sequence[str]) -> int:
        """Serve. The `.env` file and the default data folder are those of the checkout."""
        arguments = resolve_data_folder(arguments)
        self.sync("--no-default-groups")
        return self.run("talekeeper", "serve", *arguments, folder=self.root)

    def test(self, arguments: Sequence[str]) -> int:
        """Run the tests."""
        self.sync("--no-default-groups", "--group", "test")
        self.keep_bytecode()
        # One more than there are cores: a test waits a quarter of its time, for databases and
        # processes.
        processes = str((os.cpu_count() or 1) + 1)
        options = ("--numprocesses", processes, "--dist", "worksteal", *arguments)
        return self.run("python", "-m", "pytest", *options, folder=self.root)

    def python(self, arguments: Sequence[str]) -> int:
        """Run Python with everything that developers have."""
        self.sync()
        return self.run("python", *arguments)

    def sync(self, *groups: str) -> None:
        """Install the packages of uv.lock into .venv. Quick if nothing is missing.

        Packages that are in .venv already stay there (`--inexact`), so that serving never takes a
        developer's tools away. Ends the process if the environment cannot be made.
        """
        for name in FOREIGN_VARIABLES:
            os.environ.pop(name, None)
        os.environ["UV_PROJECT_ENVIRONMENT"] = str(self.root / ".venv")
        uv = self.find_uv()
        arguments = ["--project", str(self.root), "--locked", "--inexact", *groups]
        if _succeeds(uv, "sync", "--check", *arguments):
            return
        if _succeeds(self.find_program("python"), "-c", ""):
            say("bringing .venv up to date")
        else:
            say("making the environment in .venv (once, some minutes at most)")
            # uv takes the first Python that it finds, even one that is too new to have wheels.
            os.environ["UV_PYTHON"] = os.environ.get("UV_PYTHON") or sys.executable
        if subprocess.run([uv, "sync", "--quiet", *arguments], check=False).returncode:
            say("the environment could not be made: the reason is above.")
            say("Where it speaks of connections: the libraries come from PyPI and")
            say("files.pythonhosted.org, which have to be reached this once.")
            sys.exit(1)

    def find_uv(self) -> str:
        """Return the path of uv, and install it into .uv/ if there is no recent one."""
        own = self.root / ".uv" / f"uv-{UV_VERSION}{'.exe' if self.windows else ''}"
        found = None if own.exists() else shutil.which("uv")
        own_cache = str(self.root / ".uv" / "cache")
        if found and is_recent_uv(found):
            if not self.windows and not _can_write(_find_cache()):
                os.environ["UV_CACHE_DIR"] = own_cache
        else:
            if not own.exists():
                self._install_uv(own)
            found = str(own)
            os.environ["UV_CACHE_DIR"] = os.environ.get("UV_CACHE_DIR") or own_cache
            os.environ["UV_PYTHON_DOWNLOADS"] = "never"
        # As pip, curl and git do: a company's own certificates are in the system's store.
        if not (os.environ.get("UV_SYSTEM_CERTS") or os.environ.get("SSL_CERT_FILE")) and (
            self.windows or any(map(os.path.exists, CERTIFICATE_STORES))
        ):
            os.environ["UV_SYSTEM_CERTS"] = "1"
        return found

    def find_program(self, name: str) -> str:
        """Return the path of a program in the environment."""
        if self.windows:
            return str(self.root / ".venv" / "Scripts" / f"{name}.exe")
        return str(self.root / ".venv" / "bin" / name)

    def keep_bytecode(self) -> None:
        """Keep bytecode in .venv if PYTHONDONTWRITEBYTECODE keeps it out of the source folders.

        For commands that start Python a hundred times: compiling everything again takes 2 s each.
        Called after `sync`, because uv makes no .venv if the folder contains something else.
        """
        if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
            os.environ.setdefault("PYTHONPYCACHEPREFIX", str(self.root / ".venv" / "bytecode"))

    def run(self, name: str, *arguments: str, folder: Path | None = None) -> int:
        """Replace this process by a program of the environment.

        Windows cannot do that, so there this process waits and returns the program's exit status.
        Ctrl-C reaches both, and the program decides when it ends.
        """
        command = [self.find_program(name), *arguments]
        if folder:
            os.chdir(folder)
        if not self.windows:
            os.execv(command[0], command)  # noqa: S606  # no shell is wanted
        signal.signal(signal.SIGINT, _ignore)
        return subprocess.run(command, check=False).returncode

    def _install_uv(self, target: Path) -> None:
        """Install uv with pip, because pip's settings name mirrors and proxies."""
        if not (find_spec("ensurepip") and find_spec("venv")):
            say(f"{sys.executable} can't make environments: its venv module is not installed.")
            major, minor = sys.version_info[:2]
            say(f"On Debian and Ubuntu: apt install python{major}.{minor}-venv")
            sys.exit(1)
        say(f"installing uv {UV_VERSION} into .uv")
        target.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix="making-", dir=target.parent, ignore_cleanup_errors=True
        ) as folder:
            scratch = Checkout(Path(folder), windows=self.windows)
            requirement = Path(folder) / "uv.txt"
            requirement.write_text(require_uv(self.root / "uv.lock"), encoding="utf-8")
            pip = [scratch.find_program("python"), "-m", "pip"]
            options = "install --quiet --disable-pip-version-check --no-input --no-cache-dir"
            options += " --retries 2 --only-binary :all: --require-hashes --requirement"
            try:
                subprocess.run([sys.executable, "-m", "venv", scratch.root / ".venv"], check=True)
                subprocess.run([*pip, *options.split(), requirement], check=True)
            except subprocess.CalledProcessError:
                say("uv could not be installed: the reason is above. It comes from PyPI, which has")
                say("to be reached this once. Or install uv yourself: docs.astral.sh/uv")
                sys.exit(1)
            # In one step, so that two scripts may start at once.
            Path(scratch.find_program("uv")).replace(target)


def main(arguments: Sequence[str], checkout: Checkout) -> int:
    """Run one command; return its exit status."""
    commands = {"serve": checkout.serve, "test": checkout.test, "python": checkout.python}
    name, *rest = arguments or [""]
    if name not in commands:
        say(f"launcher.py {'|'.join(commands)} [ARGUMENT...]")
        return 2
    try:
        return commands[name](rest)
    except KeyboardInterrupt:
        return 130


def resolve_data_folder(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of `talekeeper serve` with the data folder as an absolute path.

    The folder is named from where the caller is, and the server starts in the checkout.
    """
    resolved: list[str] = []
    is_folder = False
    for word in arguments:
        option, equals, folder = word.partition("=")
        # argparse takes the beginnings of an option's name as well.
        names_folder = len(option) > len("--") and "--data-dir".startswith(option)
        if is_folder:
            resolved.append(str(Path(word).absolute()))
        elif names_folder and equals:
            resolved.append(f"{option}={Path(folder).absolute()}")
        else:
            resolved.append(word)
        is_folder = names_folder and not equals and not is_folder
    return resolved


def is_recent_uv(program: str) -> bool:
    """True if it runs and is recent. A shim of pyenv has the name and may not run."""
    try:
        result = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
        name, version, *_ = [*result.stdout.split(), "", ""]
        return name == "uv" and tuple(map(int, version.split(".")[:2])) >= OLDEST_UV
    except (OSError, ValueError):
        return False


def require_uv(lock: Path) -> str:
    """Return a line of a requirements file: uv's version, and the hashes of its wheels."""
    packages = tomllib.loads(lock.read_text(encoding="utf-8"))["package"]
    [uv] = [each for each in packages if each["name"] == "uv"]
    return " ".join([f"uv=={uv['version']}", *(f"--hash={each['hash']}" for each in uv["wheels"])])


def say(text: str) -> None:
    """Print a message for the person at the keyboard."""
    print(f"talekeeper: {text}", file=sys.stderr, flush=True)


def _ignore(_signal: int, _frame: object) -> None:
    pass


def _find_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  # no error without a home
    return Path(os.environ.get("UV_CACHE_DIR") or Path(base, "uv"))


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Checkout()))
