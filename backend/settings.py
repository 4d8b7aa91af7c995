"""Every environment variable that Talekeeper reads, read once.

Each field is `TALEKEEPER_` and its name in capitals, but for those that others named; a `.env` file
in the working directory is read as well. docs/reference/configuration.md is generated from the
comments and texts here.
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

from backend.core.private_networks import Network, parse_private


def _split(value: object) -> object:
    return _parts(value) if isinstance(value, str) else value


def _parse_networks(value: object) -> object:
    return tuple(map(parse_private, _parts(value))) if isinstance(value, str) else value


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _empty_is_absent(value: SecretStr | None) -> SecretStr | None:
    return value if value and value.get_secret_value().strip() else None


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
"""A comma-separated list."""

PrivateNetworks = Annotated[tuple[Network, ...], NoDecode, BeforeValidator(_parse_networks)]
"""A comma-separated list of private networks."""

Secret = Annotated[SecretStr | None, AfterValidator(_empty_is_absent)]

Amount = Annotated[float, Field(ge=0, le=1_000_000)]
Prices = tuple[Amount, Amount] | tuple[Amount, Amount, Amount]
"""For a million tokens: read, written, and read from a cache."""

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
"""Servers that speak OpenAI's chat completions, as Talekeeper tells them apart."""


PUBLIC_HUB = "https://huggingface.co"

MIN_TOTAL = 1024
"""Smallest total budget, in tokens."""


IS_INSTALLED = Path(__file__).with_name("_prompts").is_dir()
"""True in an installed wheel, which has the prompts inside the package. A checkout has not."""

DATABASE_NAME = "talekeeper.sqlite3"
ROOT_KEY_NAME = "root.key"


def choose_data_dir() -> Path:
    """Return the data folder for an installation that names none."""
    folder = Path("data")
    if not IS_INSTALLED or any((folder / name).exists() for name in (ROOT_KEY_NAME, DATABASE_NAME)):
        return folder
    from platformdirs import user_data_path  # noqa: PLC0415  # only installed programs need it

    return user_data_path("talekeeper", appauthor=False)


class Settings(BaseSettings):
    """How this installation runs. Nothing here belongs to one user."""

    model_config = SettingsConfigDict(
        env_prefix="TALEKEEPER_", env_file=".env", extra="ignore", frozen=True
    )

    # Where things are
    data_dir: Path = Field(default_factory=choose_data_dir)
    """Folder for the SQLite database, the root key and the lock file. Default: `data` in the
    working directory if Talekeeper runs from a checkout, or if that folder has a root key or a
    database; otherwise the user's own: `~/.local/share/talekeeper` on Linux, `~/Library/Application
    Support/talekeeper` on macOS, `%LOCALAPPDATA%\\talekeeper` on Windows."""
    database_url: str = ""
    """SQLAlchemy URL: `postgresql+asyncpg://user:password@host/name`, or empty for SQLite in the
    data folder."""
    database_pool_size: int = Field(10, ge=1, le=200)
    """Connections kept open to read (and, on PostgreSQL, write)."""

    # The root key
    root_key: Secret = None
    """The root key: 32 bytes in base64, or `version:base64` pairs separated by commas, newest
    first. Takes precedence over the file."""
    root_key_file: Path | None = None
    """File with the root key, one `version:base64` a line; made on first start. Default: `root.key`
    in the data folder. Keep a copy, and keep it out of backups of the database."""

    # The door
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    public_origin: str = ""
    """Origin under which browsers reach this server, such as `https://tales.example`. Where it is
    https, cookies are for https alone, and plain http is refused. Empty: the request's own host."""
    allowed_hosts: Names = ()
    """Further names under which the API answers, without ports, such as `tales.lan`. It always
    answers to `localhost`, to IP addresses, and to the public origin's name."""
    trusted_proxies: Names = ("127.0.0.1",)
    """Addresses whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed."""
    lan: bool = False
    """Also listen in the local network, with TLS and a self-made certificate, as `serve --lan`
    does. Only clients with private addresses are answered there."""
    lan_port: int = Field(8443, ge=0, le=65535)
    """Port for the local network; 0 takes a free one."""
    plain_http_networks: PrivateNetworks = ()
    """Private networks, such as `192.168.1.0/24`, in which users may sign in over plain http.
    Everyone who can listen in such a network can read their passwords and texts."""
    registration: Literal["closed", "invitation", "open"] = "invitation"
    """Who may sign up after the first account: nobody, holders of an invitation, everybody."""
    session_idle_days: float = Field(30, gt=0, le=3650)
    """A session unused for this long has ended."""
    session_absolute_days: float = Field(180, gt=0, le=3650)
    """A session ends this long after it began, used or not."""
    metrics: Literal["off", "loopback", "everyone"] = "loopback"
    """Who may read `/metrics`."""

    # Connections
    max_connections: int = Field(1_000, ge=0)
    """Connections, event streams among them, from which on requests are answered with 503;
    `/health` still answers. 0 is no limit."""
    header_bytes: int = Field(65_536, ge=1024)
    """Largest head of a request: its line and headers."""
    header_seconds: float = Field(20, gt=0)
    """A request's head has to be complete after this long."""
    body_seconds: float = Field(30, gt=0)
    """A request's body has to be complete after this long, and a second more for each of the bytes
    below that came."""
    body_bytes_per_second: int = Field(2_048, ge=1)
    """Slowest pace at which a body may come, after that."""
    keep_alive_seconds: float = Field(15, ge=1)
    """A connection without a request is closed after this long."""
    drain_seconds: float = Field(0, ge=0, le=3600)
    """After SIGTERM or Ctrl-C, replies and jobs that run have this long to end while nothing new
    begins; a second signal ends them. 0: they are ended at once."""

    # Models
    default_model: str = ""
    """Model of users who chose none. Empty: the first Gemini model where there is a key, else the
    first OpenAI-compatible one, else the first of Anthropic's, else `demo`."""
    gemini_api_key: Secret = None
    """Key for Gemini, from Google AI Studio."""
    gemini_models: Names = ("gemini-2.5-flash", "gemini-2.5-pro", "gemini-2.5-flash-lite")
    """Gemini models on offer."""
    gemini_base_url: str = ""
    """Another address for Gemini's API."""
    openai_base_url: str = ""
    """An OpenAI-compatible server's base URL, such as `http://127.0.0.1:8080/v1`."""
    openai_api_key: Secret = None
    """Key for the OpenAI-compatible server, where it wants one."""
    openai_models: Names = ()
    """Its models on offer."""
    openai_context_window: int = Field(32_768, ge=1024)
    """Context window of its models, in tokens."""
    openai_max_output_tokens: int = Field(8_192, ge=1)
    """Longest reply of its models, in tokens."""
    openai_server: ServerName = "other"
    """Which server it is: which samplers are offered, and what it calls them. `other` offers all,
    and learns from what is refused."""
    openai_concurrency: int | None = Field(None, ge=0, le=100)
    """Requests that it answers at the same time, 0 for any number. If it is empty: as many as the
    server reports, else 1 for Ollama, llama.cpp, KoboldCpp and LM Studio, and any number for
    others."""
    openai_tool_support: Literal["", "native", "structured", "fenced", "none"] = ""
    """The way in which its models call tools in a campaign that is played: natively, in answers of
    a JSON Schema, in a fenced block of their text, or not at all. If it is empty, Talekeeper learns
    it for each model, until it is restarted."""
    anthropic_api_key: Secret = None
    """Key for Anthropic's API."""
    anthropic_models: Names = ("claude-sonnet-5-5", "claude-opus-5-5", "claude-haiku-5-5")
    """Anthropic models on offer."""
    anthropic_base_url: str = ""
    """Another address for Anthropic's API."""
    model_prices: dict[str, Prices] = {}
    """What these providers' models cost, where Talekeeper does not know or knows it wrong, in JSON:
    `{"gemini/gemini-2.5-flash": [0.3, 2.5, 0.03]}` in US dollars for a million tokens read, a
    million written, and a million read from the provider's cache. The third may be left out."""
    model_silence_seconds: float = Field(60, gt=0, le=3600)
    """A model that says nothing for this long has failed."""
    provider_networks: Names = ()
    """Where, beside the public internet, providers that users add may be: `loopback`, `private`
    (10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, fc00::/7), addresses and networks, each with a port
    if that alone is meant, such as `127.0.0.1:11434` or `192.168.1.0/24`; or `none`. Empty:
    `loopback` if nobody but this machine is served, else `none`, and in both cases what
    administrators allow on the page."""
    demo_tokens_per_second: float = Field(50, ge=0)
    """Pace of the demo model; 0 is as fast as it goes."""

    # Embeddings
    embedder: Literal["auto", "none", "gemini", "openai", "local"] = "auto"
    """What turns texts into vectors. `auto`: the embedding model of a provider that an
    administrator added, else Gemini where there is a key, else a model on this machine, the one
    that `TALEKEEPER_EMBEDDING_MODEL_PATH` names or else the one that was fetched, else `none`:
    search by keywords alone."""
    embedding_model: str = ""
    """Its model. Empty: `gemini-embedding-001` for Gemini, what is in the folder for `local`;
    `openai` needs one."""
    embedding_dimension: int | None = Field(None, ge=8, le=8192)
    """Length of the vectors that the provider is asked for. Empty: 768 for Gemini, the model's own
    elsewhere."""
    embedding_model_path: Path | None = None
    """Folder with an ONNX model and its tokenizer, for `local`. Nothing is downloaded."""
    hf_endpoint: str = Field(
        PUBLIC_HUB, pattern=r"^https?://\S+[^/\s]$", validation_alias="HF_ENDPOINT"
    )
    """Where embedding models are fetched from: Hugging Face, or a mirror of it."""
    embedding_base_url: str = ""
    """Base URL of an OpenAI-compatible embeddings server, for `openai`. Empty:
    `TALEKEEPER_OPENAI_BASE_URL`, with its key."""
    embedding_api_key: Secret = None
    """Key for the embeddings server, where it wants one."""
    embedding_batch: int = Field(100, ge=1, le=2048)
    """Texts in one request; Gemini takes 100 at most."""
    embedding_timeout_seconds: float = Field(5, gt=0, le=60)
    """Longest that a turn waits for its query's vector; then keywords do alone."""
    embedding_threads: int = Field(0, ge=0, le=256)
    """Processor cores that `local` computes documents on; a query has a thread of its own besides.
    0: all, but 4 at most."""

    # The index
    qdrant_url: str = ""
    """A Qdrant server, 1.19 or newer, such as `https://qdrant.example:6333`; `https` for TLS.
    Empty: Qdrant Edge, in the data folder, for a single process."""
    qdrant_api_key: Secret = None
    """Key for the Qdrant server, where it wants one."""
    qdrant_protocol: Literal["grpc", "http"] = "grpc"
    """How to speak to the Qdrant server; HTTP where gRPC does not answer."""
    qdrant_grpc_port: int = Field(6334, ge=1, le=65535)
    """The Qdrant server's port for gRPC."""
    qdrant_timeout_seconds: int = Field(10, ge=1, le=600)
    """The Qdrant server has failed when it takes longer."""
    qdrant_collection_prefix: str = Field("talekeeper-", pattern=r"^[A-Za-z0-9_-]{0,64}$")
    """What collections' names on the Qdrant server begin with: for several installations on one
    server."""
    qdrant_shard_number: int = Field(1, ge=1, le=1024)
    """Shards of a collection that is made on the Qdrant server."""
    qdrant_replication_factor: int = Field(1, ge=1, le=64)
    """Copies of each shard, on a cluster of Qdrant servers."""
    qdrant_hnsw_m: int = Field(16, ge=0, le=128)
    """Edges of a point in the graph over one user's points, on the Qdrant server; 0 looks at every
    vector."""
    qdrant_quantization: Literal["off", "scalar", "binary"] = "off"
    """Smaller copies of the vectors in the Qdrant server's memory: a quarter, or 1/32. What they
    find is scored anew with the vectors themselves."""
    qdrant_storage: Literal["memory", "disk"] = "memory"
    """Where the Qdrant server keeps vectors and terms."""

    # Budgets, in tokens: what users start with
    budget_total: int = Field(200_000, ge=MIN_TOTAL)
    """Prompt and reply together."""
    budget_history: int = Field(150_000, ge=0)
    """Most that recent history may take."""
    budget_retrieval: int = Field(50_000, ge=0)
    """Most that retrieved lore and memory may take."""
    budget_reply_reserve: int = Field(8_192, ge=1)
    """Kept free for the reply."""
    budget_min_tail_messages: int = Field(8, ge=2, le=1000)
    """Messages at the end that truncation spares first."""
    max_budget_total: int = Field(0, ge=0)
    """Largest total that users may set; 0 is no maximum. A larger one, set before or by default,
    counts as this. History, lore and memory never take more than the total."""
    max_budget_reply_reserve: int = Field(0, ge=0)
    """Largest reply reserve that users may set; 0 is no maximum. A larger one, set before or by
    default, counts as this."""

    # Quotas of one account: 0 is no limit
    max_stored_bytes_per_user: int = Field(10_000_000_000, ge=0)
    """Bytes of texts, pictures and what is kept beside them, and 200 for each row."""
    max_chats_per_user: int = Field(10_000, ge=0)
    """Chats."""
    max_lorebook_entries_per_user: int = Field(200_000, ge=0)
    """Entries of all lorebooks together."""
    max_requests_per_minute_per_user: int = Field(3_000, ge=0)
    """Requests that one account may send at once, and that come back in a minute; by each process
    for itself. Event streams do not count."""
    max_requests_at_once_per_user: int = Field(8, ge=0)
    """Requests of one account that are worked on at once, in one process; others of the account
    wait. Uploads and event streams have limits of their own."""
    max_requests_per_minute_per_address: int = Field(600, ge=0)
    """The same for requests from one address that no account signed."""
    max_turns_per_user: int = Field(8, ge=0, le=10_000)
    """Turns and suggestions under way at once, in one process."""
    max_previews_per_user: int = Field(8, ge=0)
    """Previews of contexts, tests of lorebooks and token counts under way at once, in one
    process."""
    max_streams_per_user: int = Field(64, ge=0)
    """Event streams of turns and jobs open at once, in one process."""
    max_uploads_per_user: int = Field(1, ge=0)
    """Files sent at once, in one process. Another one waits for up to 30 seconds before it is
    refused."""
    max_upload_bytes_per_user: int = Field(67_108_864, ge=0)
    """Bytes of request bodies, files among them, that are read at once, in one process. One request
    alone is always taken."""
    max_queued_jobs_per_user: int = Field(2_000, ge=0)
    """Jobs that are not over, from which on a user's own act enqueues no other. Work that follows
    from a reply or a change is always taken."""
    max_tokens_per_day_per_user: int = Field(0, ge=0)
    """Tokens of prompts and replies in a day, in UTC, from which on no turn, suggestion or rebuild
    begins. What the agent and summaries take counts, but is not refused."""

    # Limits on what comes in
    max_message_chars: int = Field(100_000, ge=1000, le=1_000_000)
    """Longest line of a user's, in characters."""

    # Behind the reply
    enrichment_model: str = ""
    """Model of the agent that keeps chronicles, and of summaries, for users who chose none. Empty:
    the smallest Gemini model where there is a key, else the default model."""
    enrichment_max_writes: int = Field(8, ge=0, le=100)
    """Events and entries that one run of the agent may write."""
    enrichment_tokens_per_run: int = Field(60_000, ge=1_000)
    """Tokens that one run of the agent may take."""
    enrichment_tokens_per_day: int = Field(2_000_000, ge=0)
    """Tokens that work behind the reply may take of one user's in 24 hours."""

    # Work in the background
    job_workers: int = Field(8, ge=0, le=256)
    """Jobs that one process works on at once; 0 for none."""

    # Logs
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is logged."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """`auto` is `console` on a terminal and `json` elsewhere."""

    @field_validator("embedding_dimension", "embedding_model_path", mode="before")
    @classmethod
    def _blank_is_absent(cls, value: object) -> object:
        return None if value == "" else value

    @model_validator(mode="after")
    def _complete(self) -> Settings:
        if self.openai_models and not self.openai_base_url:
            raise ValueError("TALEKEEPER_OPENAI_MODELS is set, TALEKEEPER_OPENAI_BASE_URL is not")
        self._check_embedder()
        if self.lan and self.public_origin:
            raise ValueError(
                "TALEKEEPER_PUBLIC_ORIGIN is set, and pages of other addresses are refused: leave "
                "it empty for --lan"
            )
        if self.budget_reply_reserve >= self.budget_total:
            raise ValueError("TALEKEEPER_BUDGET_REPLY_RESERVE leaves nothing of the total budget")
        if 0 < self.max_budget_total < MIN_TOTAL:
            raise ValueError(f"TALEKEEPER_MAX_BUDGET_TOTAL is 0 or at least {MIN_TOTAL}")
        if self.database_url and not self.database_url.startswith(
            ("sqlite+aiosqlite:", "postgresql+asyncpg:")
        ):
            raise ValueError(
                "TALEKEEPER_DATABASE_URL must begin with sqlite+aiosqlite: or postgresql+asyncpg:"
            )
        return self

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
                    f"TALEKEEPER_EMBEDDER is {self.embedder}, TALEKEEPER_{name} is not set"
                )

    @property
    def resolved_database_url(self) -> str:
        """The database in use: the one configured, else SQLite in the data folder."""
        return self.database_url or f"sqlite+aiosqlite:///{self.data_dir / DATABASE_NAME}"

    @property
    def embedded(self) -> bool:
        """One process, with everything in the data folder."""
        return self.resolved_database_url.startswith("sqlite")

    @property
    def models_dir(self) -> Path:
        """Where embedding models are fetched to."""
        return self.data_dir / "models"

    @property
    def resolved_root_key_file(self) -> Path:
        """Where the root key is read from and first written to."""
        return self.root_key_file or self.data_dir / ROOT_KEY_NAME

    @property
    def root_key_text(self) -> str | None:
        """The root key that is set in place of the file's."""
        return self.root_key.get_secret_value() if self.root_key else None
