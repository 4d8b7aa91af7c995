# Makes .venv hold what a script needs. Sourced by the scripts, which then call `environment`.
#
# It starts from a machine that has Python alone, and writes inside the checkout alone: where there
# is no recent uv on the PATH, uv goes to .uv/, with its cache. Everything else is uv's work, by
# uv.lock. Plain POSIX sh, as there may be no bash.
# shellcheck shell=sh

UV_VERSION=0.13.8

# environment ROOT [argument of `uv sync`...]
#
# Sets `uv`. Packages that are in .venv already stay there (`--inexact`), so that serving never
# takes a developer's tools away. Where nothing is to be done this takes a tenth of a second.
environment() {
    root=$1
    shift
    # What would lead pip or uv to another environment than ours.
    unset VIRTUAL_ENV CONDA_PREFIX PYTHONHOME PYTHONPATH PIP_USER PIP_TARGET PIP_PREFIX
    export UV_PROJECT_ENVIRONMENT="$root/.venv"
    _choose_uv

    set -- --project "$root" --locked --inexact "$@"
    if "$uv" sync --check "$@" >/dev/null 2>&1; then
        return
    fi
    if "$root/.venv/bin/python" -c '' >/dev/null 2>&1; then
        _say "bringing .venv up to date"
    else
        _say "making the environment in .venv (once, some minutes at most)"
        # uv looks further than the PATH, but takes what it finds first, be it too new to have wheels.
        if [ -z "${UV_PYTHON-}" ] && python=$(_find_python); then
            export UV_PYTHON="$python"
        fi
    fi
    if ! "$uv" sync --quiet "$@"; then
        _say "the environment could not be made: the reason is above."
        _say "Where it speaks of connections: the libraries come from PyPI and"
        _say "files.pythonhosted.org, which have to be reached this once."
        exit 1
    fi
}

# keep_bytecode ROOT
#
# For scripts that start Python a hundred times: where bytecode is not to be kept beside the sources
# (PYTHONDONTWRITEBYTECODE), it goes into .venv. Compiling all anew takes 2 s at each start. Called
# after `environment`: uv makes no .venv where a folder of that name holds something else.
keep_bytecode() {
    [ -n "${PYTHONDONTWRITEBYTECODE-}" ] || return 0
    unset PYTHONDONTWRITEBYTECODE
    export PYTHONPYCACHEPREFIX="${PYTHONPYCACHEPREFIX-$1/.venv/bytecode}"
}

# Our own uv where there is one, else a recent one of the PATH, else make it our own.
_choose_uv() {
    uv=$root/.uv/uv-$UV_VERSION
    if [ ! -x "$uv" ] && _is_recent_uv uv; then
        uv=$(command -v uv)
        cache=${UV_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME-}/.cache}/uv}
        if ! mkdir -p "$cache" 2>/dev/null || [ ! -w "$cache" ]; then
            export UV_CACHE_DIR="$root/.uv/cache"
        fi
    else
        [ -x "$uv" ] || _install_uv
        export UV_CACHE_DIR="${UV_CACHE_DIR:-$root/.uv/cache}" UV_PYTHON_DOWNLOADS=never
    fi
    # As pip, curl and git do: a company's own certificates stand in the system's store.
    if [ -z "${UV_SYSTEM_CERTS-}${SSL_CERT_FILE-}" ] &&
        { [ -e /etc/ssl/certs/ca-certificates.crt ] || [ -e /etc/ssl/cert.pem ] ||
            [ -e /etc/pki/tls/certs/ca-bundle.crt ]; }; then
        export UV_SYSTEM_CERTS=1
    fi
}

_is_recent_uv() {
    # The name may be there and not run: pyenv puts stand-ins on the PATH.
    case $("$1" --version 2>/dev/null) in
    "uv 0."[0-9].* | "uv 0.1"[0-2].*) return 1 ;;
    "uv "[0-9]*) return 0 ;;
    *) return 1 ;;
    esac
}

_install_uv() {
    if ! python=$(_find_python); then
        _say "Python 3.11 or newer is needed, and is not on the PATH.$(_list_pythons)"
        exit 1
    fi
    if ! python=$(_find_python ensurepip venv); then
        python=$(_find_python)
        _say "$python can't make environments: its venv module is not installed."
        _say "On Debian and Ubuntu: apt install $(_run_python "$python" \
            'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
        exit 1
    fi
    _say "installing uv $UV_VERSION into .uv"
    scratch=$root/.uv/making-$$
    trap 'rm -rf "$scratch"' EXIT
    trap 'exit 130' INT TERM
    if ! { "$python" -m venv "$scratch" &&
        "$scratch/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
            --no-cache-dir --retries 2 --only-binary :all: "uv==$UV_VERSION"; }; then
        _say "uv could not be installed: the reason is above. It comes from PyPI, which has to"
        _say "be reached this once. Or install uv yourself: docs.astral.sh/uv"
        exit 1
    fi
    # In one step, so that two scripts may start at once.
    mv "$scratch/bin/uv" "$uv"
    rm -rf "$scratch"
    trap - EXIT INT TERM
}

# The path of the first Python that is new enough and has the modules named. The version that the
# tests run on comes first.
_find_python() {
    imports=$*
    for name in $_PYTHONS; do
        _run_python "$name" "import sys
if sys.version_info < (3, 11): sys.exit(1)
for name in '$imports'.split(): __import__(name)
print(sys.executable)" && return
    done
    return 1
}

_list_pythons() {
    for name in $_PYTHONS; do
        version=$(_run_python "$name" 'import sys; print("%d.%d.%d" % sys.version_info[:3])') &&
            printf ' (%s is %s.)' "$name" "$version"
    done
}

_PYTHONS="python3.11 python3.12 python3.13 python3.14 python3 python"

_run_python() {
    "$1" -c "$2" 2>/dev/null
}

_say() {
    printf 'talekeeper: %s\n' "$*" >&2
}
