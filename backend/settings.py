"""The settings, read once from environment variables and a `.env` file.

The variable of a field is `TALEKEEPER_` and its name in capitals, unless it has an alias.
docs/reference/configuration.md is generated from the comments and docstrings of this module.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from backend.core.origins import check_origin
from backend.core.private_networks import Network, parse_private


def _parse_names(value: object) -> object:
    return _split_names(value) if isinstance(value, str) else value


def _parse_networks(value: object) -> object:
    return tuple(map(parse_private, _split_names(value))) if isinstance(value, str) else value


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _drop_empty(value: SecretStr | None) -> SecretStr | None:
    return value if value and value.get_secret_value().strip() else None


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_parse_names)]
"""A comma-separated list."""

PrivateNetworks = Annotated[tuple[Network, ...], NoDecode, BeforeValidator(_parse_networks)]
"""A comma-separated list of private networks."""

Secret = Annotated[SecretStr | None, AfterValidator(_drop_empty)]

Amount = Annotated[float, Field(ge=0, le=1_000_000)]
Prices = tuple[Amount, Amount] | tuple[Amount, Amount, Amount]
"""US dollars per million input tokens, output tokens and, optionally, cached input tokens."""

EmbedderName = Literal["none", "gemini", "openai", "local"]

ServerName = Literal[
    "openrouter",
    "openai",
    "deepseek",
    "mistral",
    "ollama",
    "llama-cpp",
    "koboldcpp",
    "lm-studio",
    "vllm",
    "tabbyapi",
    "other",
]
"""Kinds of servers with OpenAI's chat completions API."""


PUBLIC_HUB = "https://huggingface.co"

MIN_TOTAL = 1024
"""Smallest total budget, in tokens."""


IS_INSTALLED = Path(__file__).with_name("_prompts").is_dir()
"""True in an installed wheel, which contains the prompts. In a checkout they are elsewhere."""

DATABASE_NAME = "talekeeper.sqlite3"
ROOT_KEY_NAME = "root.key"


def choose_data_dir() -> Path:
    """Return the default data folder."""
    folder = Path("data")
    if not IS_INSTALLED or any((folder / name).exists() for name in (ROOT_KEY_NAME, DATABASE_NAME)):
        return folder
    from platformdirs import user_data_path  # noqa: PLC0415  # only installed programs need it

    return user_data_path("talekeeper", appauthor=False)


class Settings(BaseSettings):
    """The settings of the installation. Users have settings of their own."""

    model_config = SettingsConfigDict(
        env_prefix="TALEKEEPER_", env_file=".env", extra="ignore", frozen=True
    )

    # Storage
    data_dir: Path = Field(default_factory=choose_data_dir)
    """Folder for the SQLite database, the root key and the lock file. Default: `data` in the
    working directory if Talekeeper runs from a checkout, or if that folder has a root key or a
    database; otherwise the user's own: `~/.local/share/talekeeper` on Linux, `~/Library/Application
    Support/talekeeper` on macOS, `%LOCALAPPDATA%\\talekeeper` on Windows."""
    database_url: str = ""
    """SQLAlchemy URL: `postgresql+asyncpg://user:password@host/name`, or empty for SQLite in the
    data folder."""
    database_direct_url: str = ""
    """URL of the same PostgreSQL database without a pooler, if `TALEKEEPER_DATABASE_URL` is a
    pooler in transaction mode, such as PgBouncer. Migrations, heartbeats and
    `LISTEN` use it. Empty: migrations and heartbeats go through the pooler."""
    database_pool_size: int = Field(10, ge=1, le=200)
    """Connections kept open to read. On PostgreSQL, a busy process opens up to twice as many to
    read and write, and keeps them."""

    # Backups (SQLite only)
    backup_folder: Path | None = None
    """Folder of scheduled backups. It must exist, and is best on another disk. Empty: none."""
    backup_hours: float = Field(24, gt=0, le=8760)
    """Hours from one of these backups to the next."""
    backup_keep: int = Field(7, ge=1, le=10_000)
    """Number of these backups to keep. The oldest are deleted after a new one was checked."""

    # The root key
    root_key: Secret = None
    """The root key: 32 bytes in base64, or `version:base64` pairs, comma-separated, newest first.
    Takes precedence over the file."""
    root_key_file: Path | None = None
    """File with the root key, one `version:base64` per line; created on first start. Default:
    `root.key` in the data folder. Keep a copy, and keep it out of database backups."""

    # Network and sign-in
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on; 0 picks a free one."""
    public_origin: str = ""
    """Origin at which browsers reach this server, such as `https://tales.example`. If it is https,
    cookies are sent over https only, and plain http is refused. Empty: the host of the request."""
    allowed_hosts: Names = ()
    """Additional host names of the API, without ports, such as `tales.lan`. `localhost`, IP
    addresses and the name in the public origin are always allowed."""
    cors_origins: Names = ()
    """Origins of other sites, such as `https://app.example`; `*` for all. Their pages may use the
    API with an API key. Cookies of such requests are ignored."""
    trusted_proxies: Names = ("127.0.0.1",)
    """Addresses of trusted proxies. Their `X-Forwarded-For` and `X-Forwarded-Proto` headers are
    used."""
    lan: bool = False
    """Also listen on the local network, with TLS and a self-signed certificate, like `serve --lan`.
    Only clients with private addresses can connect there."""
    lan_port: int = Field(8443, ge=0, le=65535)
    """Port for the local network; 0 picks a free one."""
    plain_http_networks: PrivateNetworks = ()
    """Private networks, such as `192.168.1.0/24`, in which users can sign in over plain http.
    Anyone who can listen on such a network can read their passwords and data."""
    registration: Literal["closed", "invitation", "open"] = "invitation"
    """Sign-up after the first account: no one, users with an invitation, or everyone."""
    session_idle_days: float = Field(30, gt=0, le=3650)
    """A session ends after this many days without use."""
    session_absolute_days: float = Field(180, gt=0, le=3650)
    """A session ends this many days after it started, even if it is in use."""
    metrics: Literal["off", "loopback", "everyone"] = "loopback"
    """Clients that can read `/metrics`."""
    worker_metrics: str = Field("", pattern=r"^(\S+:[1-9][0-9]{0,4})?$")
    """Address at which `talekeeper work` serves `/metrics` to everyone who reaches it, such as
    `127.0.0.1:9464`. Empty: not at all."""

    # Connections
    max_connections: int = Field(1_000, ge=0)
    """Maximum connections, including event streams. Above it, requests get a 503, except `/health`.
    0: no limit."""
    header_bytes: int = Field(65_536, ge=1024)
    """Maximum size of a request's first line and headers."""
    header_seconds: float = Field(20, gt=0)
    """Time limit for receiving a request's headers."""
    body_seconds: float = Field(30, gt=0)
    """Time limit for receiving a request's body. One second is added for each
    `TALEKEEPER_BODY_BYTES_PER_SECOND` received."""
    body_bytes_per_second: int = Field(2_048, ge=1)
    """Minimum speed of a request's body after that time."""
    keep_alive_seconds: float = Field(15, ge=1)
    """An idle connection is closed after this time."""
    drain_seconds: float = Field(0, ge=0, le=3600)
    """Time that running replies and jobs have to finish after SIGTERM or Ctrl-C, while no new ones
    start. A second signal stops them. 0: stop at once."""

    # Models
    default_model: str = ""
    """Model of users who have not chosen one. Empty: the first Gemini model if there is a key, else
    the first OpenAI-compatible one, else the first Anthropic one, else `demo`."""
    gemini_api_key: Secret = None
    """API key for Gemini, from Google AI Studio."""
    gemini_models: Names = ("gemini-2.5-flash", "gemini-2.5-pro", "gemini-2.5-flash-lite")
    """Available Gemini models."""
    gemini_base_url: str = ""
    """Alternative address of the Gemini API."""
    openai_base_url: str = ""
    """Base URL of an OpenAI-compatible server, such as `http://127.0.0.1:8080/v1`."""
    openai_api_key: Secret = None
    """API key for the OpenAI-compatible server, if it needs one."""
    openai_models: Names = ()
    """Available models of the OpenAI-compatible server."""
    openai_context_window: int = Field(32_768, ge=1024)
    """Context window of its models, in tokens."""
    openai_max_output_tokens: int = Field(8_192, ge=1)
    """Maximum reply length of its models, in tokens."""
    openai_server: ServerName = "other"
    """Kind of the OpenAI-compatible server. It decides which samplers are offered and how they are
    named. `other` offers all, and learns which ones are rejected."""
    openai_concurrency: int | None = Field(None, ge=0, le=100)
    """Concurrent requests to the server; 0: no limit. Empty: as many as the server reports, else 1
    for Ollama, llama.cpp, KoboldCpp and LM Studio, and no limit for others."""
    openai_tool_support: Literal["", "native", "structured", "fenced", "none"] = ""
    """The way its models call tools in a played campaign: native calls, JSON that follows a schema,
    a code block in the text, or not at all. Empty: detected for each model, until the next
    restart."""
    anthropic_api_key: Secret = None
    """API key for Anthropic."""
    anthropic_models: Names = ("claude-sonnet-5-5", "claude-opus-5-5", "claude-haiku-5-5")
    """Available Anthropic models."""
    anthropic_base_url: str = ""
    """Alternative address of the Anthropic API."""
    model_prices: dict[str, Prices] = {}
    """Prices of these providers' models, if Talekeeper does not know them or they have changed.
    JSON: `{"gemini/gemini-2.5-flash": [0.3, 2.5, 0.03]}` in US dollars per million input tokens,
    output tokens and cached input tokens. The third price is optional."""
    model_silence_seconds: float = Field(60, gt=0, le=3600)
    """A request to a model fails if nothing is received for this long."""
    provider_networks: Names = ()
    """Allowed addresses of user-added providers, in addition to the public internet: `loopback`,
    `private` (10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, fc00::/7), addresses and networks with an
    optional port, such as `127.0.0.1:11434` or `192.168.1.0/24`; or `none`. Empty: `loopback` if
    only this machine is served, else `none`, and in both cases the addresses that administrators
    allow on the page."""
    demo_tokens_per_second: float = Field(50, ge=0)
    """Speed of the demo model; 0: no delay."""

    # Embeddings
    embedder: Literal["auto", "none", "gemini", "openai", "local"] = "auto"
    """Source of embeddings. `auto`: the embedding model of a provider that an administrator added,
    else Gemini if there is a key, else a local model (the one in `TALEKEEPER_EMBEDDING_MODEL_PATH`,
    or a downloaded one), else `none`: search by keywords only."""
    embedding_model: str = ""
    """Name of the embedding model. Empty: `gemini-embedding-001` for Gemini, the model in the
    folder for `local`; required for `openai`."""
    embedding_dimension: int | None = Field(None, ge=8, le=8192)
    """Size of the vectors to request. Empty: 768 for Gemini, the model's default elsewhere."""
    embedding_model_path: Path | None = None
    """Folder with an ONNX model and its tokenizer, for `local`. Nothing is downloaded."""
    index_delay_seconds: float = Field(2, ge=0, le=300)
    """Time after which new lines of a chat are indexed, so that one job indexes several turns.
    Until then only the history of their own chat has them. 0: at once."""
    hf_endpoint: str = Field(
        PUBLIC_HUB, pattern=r"^https?://\S+[^/\s]$", validation_alias="HF_ENDPOINT"
    )
    """Source of embedding model downloads: Hugging Face or a mirror."""
    embedding_base_url: str = ""
    """Base URL of an OpenAI-compatible embeddings server, for `openai`. Empty:
    `TALEKEEPER_OPENAI_BASE_URL` and its key."""
    embedding_api_key: Secret = None
    """API key for the embeddings server, if it needs one."""
    embedding_batch: int = Field(100, ge=1, le=2048)
    """Texts per request; Gemini accepts at most 100."""
    embedding_timeout_seconds: float = Field(5, gt=0, le=60)
    """Time that a turn waits for the embedding of its query. After that, only keywords are used."""
    embedding_threads: int = Field(0, ge=0, le=256)
    """Processor cores that `local` uses for documents; queries have a separate thread. 0: all, but
    at most 4."""

    # The index
    qdrant_url: str = ""
    """Qdrant server, 1.19 or newer, such as `https://qdrant.example:6333`; `https` for TLS. For a
    cluster, the addresses of several nodes, comma-separated: the next one is used while one cannot
    be reached. Empty: Qdrant Edge in the data folder, for a single process."""
    qdrant_api_key: Secret = None
    """API key for the Qdrant server, if it needs one."""
    qdrant_protocol: Literal["grpc", "http"] = "grpc"
    """Protocol of the Qdrant server. HTTP is used if gRPC does not respond."""
    qdrant_grpc_port: int = Field(6334, ge=1, le=65535)
    """gRPC port of the Qdrant server; the same at all its addresses."""
    qdrant_timeout_seconds: int = Field(10, ge=1, le=600)
    """A request to the Qdrant server fails after this time."""
    qdrant_collection_prefix: str = Field("talekeeper-", pattern=r"^[A-Za-z0-9_-]{0,64}$")
    """Prefix of the collection names on the Qdrant server, if several installations share it."""
    qdrant_shard_number: int = Field(1, ge=1, le=1024)
    """Shards of a new collection on the Qdrant server. It cannot be changed later. For a cluster,
    use once or twice the number of nodes."""
    qdrant_replication_factor: int | None = Field(None, ge=1, le=64)
    """Copies of each shard of a new collection. Empty: 2 in a cluster of Qdrant servers, else 1."""
    qdrant_hnsw_m: int = Field(16, ge=0, le=128)
    """Edges per point in the HNSW graph of each user, on the Qdrant server; 0: exact search."""
    qdrant_quantization: Literal["off", "scalar", "binary"] = "off"
    """Compressed copies of the vectors in the Qdrant server's memory: a quarter of the size, or
    1/32. The results are scored again with the original vectors."""
    qdrant_storage: Literal["memory", "disk"] = "memory"
    """Storage of the vectors and terms on the Qdrant server."""

    # Default budgets, in tokens
    budget_total: int = Field(200_000, ge=MIN_TOTAL)
    """Prompt and reply together."""
    budget_history: int = Field(150_000, ge=0)
    """Maximum for the chat history."""
    budget_retrieval: int = Field(50_000, ge=0)
    """Maximum for lore and memories."""
    budget_reply_reserve: int = Field(8_192, ge=1)
    """Reserved for the reply."""
    budget_min_tail_messages: int = Field(8, ge=2, le=1000)
    """Number of latest messages that are truncated last."""
    max_budget_total: int = Field(0, ge=0)
    """Maximum total that users can set; 0: no maximum. Higher values, set earlier or by default,
    are lowered to it. History, lore and memory never exceed the total."""
    max_budget_reply_reserve: int = Field(0, ge=0)
    """Maximum reply reserve that users can set; 0: no maximum. Higher values, set earlier or by
    default, are lowered to it."""

    # Quotas per account (0: no limit)
    max_stored_bytes_per_user: int = Field(10_000_000_000, ge=0)
    """Bytes of texts, pictures and their metadata, plus 200 for each row."""
    max_chats_per_user: int = Field(10_000, ge=0)
    """Chats."""
    max_lorebook_entries_per_user: int = Field(200_000, ge=0)
    """Entries in all lorebooks."""
    max_requests_per_minute_per_user: int = Field(3_000, ge=0)
    """Requests per minute of one account, all of which can come at once. Event streams do not
    count. Several processes divide this limit evenly."""
    max_requests_at_once_per_user: int = Field(8, ge=0)
    """Concurrent requests of one account; further ones wait. Uploads and event streams have
    separate limits. Several processes divide this limit evenly; each allows at least one."""
    max_requests_per_minute_per_address: int = Field(600, ge=0)
    """Requests per minute from one address without a session or API key. Several processes divide
    this limit evenly."""
    max_turns_per_user: int = Field(8, ge=0, le=10_000)
    """Concurrent turns and suggestions in one process."""
    max_previews_per_user: int = Field(8, ge=0)
    """Concurrent context previews, lorebook tests and token counts in one process."""
    max_streams_per_user: int = Field(64, ge=0)
    """Open event streams of turns and jobs in one process."""
    max_uploads_per_user: int = Field(1, ge=0)
    """Concurrent file uploads in one process. Another upload waits for up to 30 seconds before it
    is refused."""
    max_upload_bytes_per_user: int = Field(67_108_864, ge=0)
    """Bytes of request bodies, including files, that are read at the same time in one process. A
    single request is always accepted."""
    max_import_bytes: int = Field(4_294_967_296, ge=1)
    """Bytes of a file that is uploaded to be imported, such as a zip of a SillyTavern folder. Until
    the import has ended, for at most a day, the file is in the folder `transfers` of the data
    folder, encrypted with its user's key."""
    max_queued_jobs_per_user: int = Field(2_000, ge=0)
    """Unfinished jobs above which a user's action cannot queue another one. Work that follows from
    a reply or a change is always queued."""
    max_tokens_per_day_per_user: int = Field(0, ge=0)
    """Prompt and reply tokens per day (UTC) above which no turn, suggestion or rebuild starts.
    Tokens of the agent and of summaries count, but are not refused."""

    # Old records (0: kept as long as their chat or account)
    keep_prompts_days: int = Field(180, ge=0, le=36_500)
    """Days for which the prompt of a reply is kept for the inspector: its record and its texts."""
    keep_run_details_days: int = Field(365, ge=0, le=36_500)
    """Days for which the details of background work are kept: its reasons, and the earlier values
    for an undo. Its tokens are kept as long as the chat."""
    keep_activity_days: int = Field(365, ge=0, le=36_500)
    """Days for which an account's recent activity is kept. Addresses are kept for 30 days."""
    keep_imports_days: int = Field(365, ge=0, le=36_500)
    """Days for which imports and the results of their files are listed. Imported items stay."""
    keep_failed_jobs_days: int = Field(30, ge=0, le=36_500)
    """Days for which jobs that failed for good are listed, and can be retried."""

    # Input limits
    max_message_chars: int = Field(100_000, ge=1000, le=1_000_000)
    """Maximum length of a user's message, in characters."""

    # Background agent
    enrichment_model: str = ""
    """Model of chronicles and summaries for users who have not chosen one. Empty: the smallest
    Gemini model if there is a key, else the default model."""
    enrichment_max_writes: int = Field(8, ge=0, le=100)
    """Maximum events and entries that one run of the agent writes."""
    enrichment_tokens_per_run: int = Field(60_000, ge=1_000)
    """Maximum tokens that one run of the agent uses."""
    enrichment_tokens_per_day: int = Field(2_000_000, ge=0)
    """Maximum tokens of background tasks per user in 24 hours."""

    # Background jobs
    job_workers: int = Field(8, ge=0, le=256)
    """Jobs that one process runs at the same time; 0: none."""

    # The command line
    api_key: Secret = None
    """API key of the user for whom `talekeeper import` runs, instead of the user's password."""

    # Logs
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """`auto`: `console` on a terminal, `json` elsewhere."""

    @field_validator(
        "embedding_dimension",
        "embedding_model_path",
        "backup_folder",
        "qdrant_replication_factor",
        mode="before",
    )
    @classmethod
    def _blank_is_absent(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(check_origin, value))

    @model_validator(mode="after")
    def _complete(self) -> Settings:
        if self.openai_models and not self.openai_base_url:
            raise ValueError(
                "TALEKEEPER_OPENAI_MODELS is set, but TALEKEEPER_OPENAI_BASE_URL is not"
            )
        self._check_embedder()
        if self.lan and self.public_origin:
            raise ValueError(
                "TALEKEEPER_PUBLIC_ORIGIN is set, so pages at other addresses are refused: leave "
                "it empty for --lan"
            )
        if self.budget_reply_reserve >= self.budget_total:
            raise ValueError("TALEKEEPER_BUDGET_REPLY_RESERVE uses up the total budget")
        if 0 < self.max_budget_total < MIN_TOTAL:
            raise ValueError(f"TALEKEEPER_MAX_BUDGET_TOTAL must be 0 or at least {MIN_TOTAL}")
        if self.database_url and not self.database_url.startswith(
            ("sqlite+aiosqlite:", "postgresql+asyncpg:")
        ):
            raise ValueError(
                "TALEKEEPER_DATABASE_URL must begin with sqlite+aiosqlite: or postgresql+asyncpg:"
            )
        self._check_direct_url()
        if self.backup_folder and not self.embedded:
            raise ValueError(
                "TALEKEEPER_BACKUP_FOLDER is set, but the database is PostgreSQL: use pg_dump"
            )
        return self

    def _check_direct_url(self) -> None:
        if not self.database_direct_url:
            return
        if not self.database_direct_url.startswith("postgresql+asyncpg:"):
            raise ValueError("TALEKEEPER_DATABASE_DIRECT_URL must begin with postgresql+asyncpg:")
        if self.embedded:
            raise ValueError(
                "TALEKEEPER_DATABASE_DIRECT_URL is set, but TALEKEEPER_DATABASE_URL is not "
                "PostgreSQL"
            )

    def _check_embedder(self) -> None:
        url = self.embedding_base_url or self.openai_base_url
        needed: dict[str, dict[str, object]] = {
            "gemini": {"GEMINI_API_KEY": self.gemini_api_key},
            "openai": {"EMBEDDING_BASE_URL": url, "EMBEDDING_MODEL": self.embedding_model},
            "local": {"EMBEDDING_MODEL_PATH": self.embedding_model_path},
        }
        for name, value in needed.get(self.embedder, {}).items():
            if not value:
                raise ValueError(
                    f"TALEKEEPER_EMBEDDER is {self.embedder}, but TALEKEEPER_{name} is not set"
                )

    @property
    def resolved_database_url(self) -> str:
        """The configured database, or else SQLite in the data folder."""
        return self.database_url or f"sqlite+aiosqlite:///{self.data_dir / DATABASE_NAME}"

    @property
    def embedded(self) -> bool:
        """True for SQLite, which only one process can use."""
        return self.resolved_database_url.startswith("sqlite")

    @property
    def qdrant_urls(self) -> tuple[str, ...]:
        """The addresses of the Qdrant server, in the order in which they are used."""
        return _split_names(self.qdrant_url)

    @property
    def models_dir(self) -> Path:
        """The folder of downloaded embedding models."""
        return self.data_dir / "models"

    @property
    def transfers_dir(self) -> Path:
        """The folder of uploads and archives, which are deleted after a day."""
        return self.data_dir / "transfers"

    @property
    def resolved_root_key_file(self) -> Path:
        """The file of the root key, which the first start creates."""
        return self.root_key_file or self.data_dir / ROOT_KEY_NAME

    @property
    def root_key_text(self) -> str | None:
        """The configured root key. It takes precedence over the file."""
        return self.root_key.get_secret_value() if self.root_key else None
