"""Every setting of the service: one typed class, read from BATCHSCOPE_* variables and checked at start.

Knows: names, types, defaults and what they mean for people. Must not know: Django (settings.py turns these into
Django's own), the broker, torch.
"""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import ByteSize, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from inference.config import EngineConfig, ParameterError
from playground.database import DatabaseURLError, database_from_url

PROJECT_FOLDER = Path(__file__).resolve().parent.parent
PREFIX = "BATCHSCOPE_"
READ_ELSEWHERE = frozenset({"BATCHSCOPE_KERNELS"})  # by kernels/ops.py, which knows no settings class
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_ENGINE_FIELDS = tuple(EngineConfig.__dataclass_fields__)
_NONE_ALLOWED = (
    *("kv_blocks", "kv_memory", "prefill_chunk", "max_model_len", "batch_size", "max_running_per_user"),
    *("requests_per_minute", "requests_per_day", "tokens_per_minute", "tokens_per_day", "prompt_days"),
    *("inter_token_ms", "queue_timeout", "run_timeout", "total_timeout"),
)  # an empty variable is the default, which for the last four is a number

Words = Annotated[tuple[str, ...], NoDecode]  # "a,b" in the environment


class SettingsError(ValueError):
    """One or more settings are wrong. The message is for the person who set them and names each variable."""


class Settings(BaseSettings):
    """Field `port` is the variable BATCHSCOPE_PORT, and so on. An empty variable counts as not set."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )

    # The engine: the fields of EngineConfig.
    model: str = "smollm2"
    """`smollm2` (the default model), a folder with config.json and safetensors, a hub id such as `org/name`, a .gguf
    file, `scripted:FILE.json`"""
    device: str = "auto"
    """`auto` (CUDA where there is a GPU), `cpu` or `cuda`"""
    dtype: str = "auto"
    """`auto`, `float32`, `bfloat16` or, on a GPU, `float16`; see [precision](precision.md)"""
    cuda_graphs: bool = True
    """on a GPU, run decodes as recorded graphs"""
    block_size: int = 16
    """positions that one KV block holds"""
    kv_blocks: int | None = None
    """blocks in the KV pool; unset: as many as fit `BATCHSCOPE_KV_MEMORY`"""
    kv_memory: ByteSize | None = None
    """memory for the KV pool, such as `1GiB`; unset: 1 GiB on a CPU, on a GPU 90 % of what is free beside the model"""
    max_num_seqs: int = 64
    """seats: requests that run in one iteration"""
    max_num_batched_tokens: int = 512
    """token budget of one iteration"""
    prefill_chunk: int | None = None
    """tokens of one prompt computed in one iteration at most; unset: half of the budget"""
    inter_token_ms: float | None = 100.0
    """gap in ms between two tokens of an answer that prompts computed beside it may cause; `none`: no limit but the
    chunk and the budget"""
    draft_tokens: int = 0
    """tokens of an answer that are guessed in one iteration from text that repeats, and verified; 0 to 16, 0: none"""
    draft_rows: int = 8
    """tokens of an iteration with guesses in it, at most; as many as take hardly longer than one: about 8 on a CPU, 64
    on a GPU"""
    max_model_len: int | None = None
    """prompt and answer together, in tokens; unset: the model's limit"""
    policy: str = "continuous"
    """who may join the batch, and when: `continuous`, `dynamic` or `static`"""
    batch_size: int | None = None
    """requests in a batch of the dynamic or static policy; unset: as many as there are seats"""
    batch_delay: float = 0.2
    """seconds for which a batch of the dynamic policy may fill"""
    prefix_caching: bool = True
    """keep the KV blocks of prompts and answers, for prompts that begin with the same tokens"""
    prefix_sharing: bool = False
    """let one user's prompts use blocks of another's; response times then tell what others have asked"""
    priority_ageing: float = 10.0
    """seconds of waiting that raise a request by one step of priority"""
    max_running_per_user: int | None = None
    """requests of one user that may run at once; unset: as many as there are seats"""
    queue_timeout: float | None = 600.0
    """seconds that a request may wait before it runs; `none`: no limit"""
    run_timeout: float | None = 1800.0
    """seconds that a request may run; `none`: no limit"""
    total_timeout: float | None = 3600.0
    """seconds that a request may take in all; `none`: no limit"""
    model_cache: str = ""
    """folder for converted models; unset: `batchscope` in the user's cache folder"""

    # The service.
    host: str = "127.0.0.1"
    """address to listen on; others than loopback need an account with a password"""
    port: int = Field(8000, ge=1, le=65535)
    """port to listen on"""
    data_dir: Path = PROJECT_FOLDER / ".batchscope"
    """folder for the database, the secret key and the private broker; unset: `.batchscope` in the project folder"""
    database_url: str = Field("", repr=False)
    """`postgres://USER:PASSWORD@HOST:PORT/NAME` or `sqlite:///PATH`; unset: SQLite in the data folder"""
    redis_url: str = Field("", repr=False)
    """`redis://`, `rediss://` or `unix://` of a Redis or Valkey server; unset: `serve` starts a private one"""
    secret_key: str = Field("", repr=False)
    """Django's secret key; unset: made at first start and kept in the data folder"""
    allowed_hosts: Words = ()
    """host names by which browsers reach the service, with commas between; loopback names always work"""
    origins: Words = ()
    """origins by which browsers reach it where they differ from the address listened on, such as
    `https://chat.example.org` before a proxy, with commas between; the first is the one in login links"""
    debug: bool = False
    """Django's debug pages; never on a service that others reach"""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """least level that is logged"""
    log_format: Literal["text", "json"] = "text"
    """`text` (key=value) or `json`, one line each on stderr"""

    # Staff.
    teaching_controls: Literal["auto", "on", "off"] = "auto"
    """whether staff may pause, step, slow and resize a running engine from the scheduler page and send it the demo's
    requests: `on`, `off`, or `auto`: where `manage.py serve` has a broker of its own"""

    # The ledger: what is kept of iterations that are over.
    ledger_iterations: int = Field(200_000, ge=1000, le=100_000_000)
    """iterations of an engine that are kept in the broker, for a day at most"""
    ledger_memory: ByteSize = Field(ByteSize(128 << 20), ge=ByteSize(1 << 20), le=ByteSize(1 << 40))
    """memory of the broker for them, compressed, such as `128MiB`"""
    ledger_days: float = Field(7.0, gt=0, le=3650)
    """days for which iterations are kept on disk, in the data folder"""
    ledger_disk: ByteSize = Field(ByteSize(1 << 30), ge=ByteSize(0), le=ByteSize(1 << 50))
    """disk space for them, of all engines together, such as `1GiB`; 0: none are kept there"""

    # Bounds.
    queue_limit: int = Field(2000, ge=1, le=1_000_000)
    """requests that may wait or run in all; beyond: `queue_full`"""
    user_queue_limit: int = Field(24, ge=1, le=1_000_000)
    """requests of one account that may wait or run; this and the next five are not for superusers"""
    sockets_per_user: int = Field(8, ge=1, le=1_000_000)
    """sockets that one account may have open, in one web process"""
    requests_per_minute: int | None = Field(None, ge=1)
    """requests that an account may send in a minute, unless it has a quota of its own; unset: no limit, as below"""
    requests_per_day: int | None = Field(None, ge=1)
    """requests that an account may send in a day"""
    tokens_per_minute: int | None = Field(None, ge=1)
    """tokens, of prompts and of answers, that an account may use in a minute"""
    tokens_per_day: int | None = Field(None, ge=1)
    """tokens, of prompts and of answers, that an account may use in a day"""
    prompt_days: float | None = Field(None, gt=0, le=36500)
    """days for which what was asked and answered is kept, in conversations too; unset: for ever. Figures stay"""
    messages_per_second: int = Field(20, ge=1, le=100_000)
    """messages a second that one socket may send, large ones counted as one for each 16 KiB; after a quiet while,
    thrice as many at once"""
    sockets_limit: int = Field(5000, ge=1, le=1_000_000)
    """sockets that one web process holds"""
    resume_grace: float = Field(1.0, ge=0, le=3600)
    """seconds until a request of a closed socket is cancelled"""
    conversation_grace: float = Field(30.0, ge=0, le=86400)
    """the same for a request in a conversation, whose answer goes on without a reader"""
    hang_timeout: float = Field(10.0, gt=0, le=3600)
    """seconds without an iteration, with work to do, after which the engine counts as hung, and `serve` replaces it
    (but not before three times what a full iteration takes)"""
    drain_timeout: float = Field(30.0, ge=0, le=3600)
    """seconds for which answers under way may go on once a process has been told to end (SIGTERM, Ctrl-C); 0: none.
    A second signal ends it at once"""

    @field_validator(*_NONE_ALLOWED, mode="before")
    @classmethod
    def _none(cls, value: Any) -> Any:
        return None if isinstance(value, str) and value.lower() == "none" else value

    @field_validator("allowed_hosts", "origins", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(word.strip() for word in value.split(",") if word.strip()) if isinstance(value, str) else value

    @field_validator("origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            parts = urlsplit(origin)
            is_bare = bool(parts.netloc) and origin == f"{parts.scheme}://{parts.netloc}"
            if not is_bare or parts.scheme not in ("http", "https"):
                raise ValueError(f"{origin!r} is no origin; write it like https://chat.example.org, without a path")
        return value

    @field_validator("redis_url")
    @classmethod
    def _redis_url(cls, value: str) -> str:
        if value and not value.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("it must start with redis://, rediss:// or unix://")
        return value

    @field_validator("database_url")
    @classmethod
    def _database_url(cls, value: str) -> str:
        if value:
            database_from_url(value)
        return value

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @model_validator(mode="after")
    def _engine(self) -> Settings:
        self.engine_config()
        return self

    def engine_config(self) -> EngineConfig:
        """The engine's part. Raises ParameterError where a value is out of range."""
        values: dict[str, Any] = {name: getattr(self, name) for name in _ENGINE_FIELDS}
        values["kv_memory"] = None if self.kv_memory is None else int(self.kv_memory)
        return EngineConfig(**values)

    @property
    def has_controls(self) -> bool:
        """Whether staff may change engines from a browser. `serve` settles `auto` for the processes that it starts."""
        return self.teaching_controls == "on" or (self.teaching_controls == "auto" and not self.redis_url)

    @property
    def ledger_folder(self) -> Path | None:
        """Where the engines of this machine keep iterations; None where they don't."""
        return self.data_dir / "ledger" if self.ledger_disk else None

    @property
    def model_name(self) -> str:
        """The model as people see it: a name, never a path."""
        if self.model == "smollm2":
            return "SmolLM2-135M-Instruct"
        name = Path(self.model.removeprefix("scripted:")).expanduser().absolute().name
        return name.removesuffix(".gguf").removesuffix(".json")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach `host`."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def base_url(self) -> str:
        """Where a person's browser finds the service: the first configured origin, else the address listened on."""
        if self.origins:
            return self.origins[0]
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{self.port}"


def load_settings() -> Settings:
    """Settings from the environment. Raises SettingsError with a sentence for each variable that is wrong."""
    try:
        return Settings()
    except ValidationError as error:
        raise SettingsError("; ".join(_sentence(item) for item in error.errors())) from None


def unknown_variables() -> dict[str, str]:
    """Variables that look like settings and are none, each with the name that may have been meant (or "")."""
    known = [PREFIX + name.upper() for name in Settings.model_fields]
    strangers = [n for n in os.environ if n.startswith(PREFIX) and n not in known and n not in READ_ELSEWHERE]
    return {name: next(iter(get_close_matches(name, known, 1)), "") for name in sorted(strangers)}


def _sentence(item: Any) -> str:
    cause = item.get("ctx", {}).get("error")
    if isinstance(cause, ParameterError):
        return _with_variable_names(str(cause))
    variable = PREFIX + str(item["loc"][0]).upper()
    if isinstance(cause, DatabaseURLError):  # its value may hold a password
        return f"{variable} can't be used: {cause}"
    message = str(cause) if cause else item["msg"][0].lower() + item["msg"][1:]
    return f"{variable} is {str(item['input'])[:80]!r}: {message}"


def _with_variable_names(message: str) -> str:
    """An engine's sentence ("max_num_seqs is 0; ...") with its fields as the variables a person can set."""
    first = next((name for name in _ENGINE_FIELDS if message.startswith(name + " ")), "")
    names = [name for name in _ENGINE_FIELDS if name == first or "_" in name]
    return re.sub(rf"\b({'|'.join(names)})\b", lambda match: PREFIX + match[0].upper(), message)
