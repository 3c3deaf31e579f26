"""The tables: conversations, the requests that are their turns, who read their texts, login links, keys and quotas.

A conversation's turns are its InferenceRequests; there is no second table of messages. The gateway is the only writer
of InferenceRequest. Must not know: the broker, sockets, pages.
"""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from playground.fields import WrittenJSONField


class Conversation(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, related_name="conversations", verbose_name=_("owner")
    )
    title = models.CharField(_("title"), max_length=200, blank=True)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    updated_at = models.DateTimeField(_("updated"), auto_now=True)

    class Meta:
        verbose_name = _("conversation")
        verbose_name_plural = _("conversations")
        ordering = ("-updated_at",)
        indexes = (models.Index(fields=("owner", "-updated_at"), name="conversation_of_owner"),)

    def __str__(self) -> str:
        return str(self.id)


SORTED_BY = ("total_ms", "queue_ms", "ttft_ms", "caused_ms")  # figures that lists are ordered by, the greatest first


class InferenceRequest(models.Model):
    """One request from `accepted` to exactly one final state.

    What was asked is in one of `messages`, `prompt`, `prompt_ids`; with `params` and `seed` it determines the answer.
    `answer` and the counts are written with the final state, from the request's output log.
    """

    class State(models.TextChoices):
        ACCEPTED = "accepted", _("accepted")
        RUNNING = "running", _("running")
        COMPLETED = "completed", _("completed")
        CANCELLED = "cancelled", _("cancelled")
        FAILED = "failed", _("failed")
        EXPIRED = "expired", _("expired")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner_id: int  # Django makes it; said here for type checkers
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, related_name="requests", verbose_name=_("owner")
    )
    conversation = models.ForeignKey(
        Conversation, models.CASCADE, null=True, blank=True, related_name="requests", verbose_name=_("conversation")
    )
    ref = models.CharField(_("client's label"), max_length=128, blank=True)
    messages = models.JSONField(_("messages"), null=True, blank=True)
    prompt = models.TextField(_("prompt"), null=True, blank=True)
    prompt_ids = models.JSONField(_("prompt token ids"), null=True, blank=True)
    params = WrittenJSONField(_("parameters"), default=dict)
    seed = models.BigIntegerField(_("seed"))
    key_id: int | None
    key = models.ForeignKey(
        "ApiKey", models.SET_NULL, null=True, blank=True, related_name="requests", verbose_name=_("API key")
    )

    state = models.CharField(_("state"), max_length=16, choices=State, default=State.ACCEPTED)
    finish_reason = models.CharField(_("finish reason"), max_length=16, blank=True)
    error_code = models.CharField(_("error code"), max_length=32, blank=True)
    error_message = models.TextField(_("error"), blank=True)
    answer = models.TextField(_("answer"), blank=True)
    prompt_tokens = models.PositiveIntegerField(_("prompt tokens"), default=0)
    completion_tokens = models.PositiveIntegerField(_("completion tokens"), default=0)
    cached_tokens = models.PositiveIntegerField(_("cached tokens"), default=0)
    receipt = models.JSONField(_("latency receipt"), default=dict, blank=True)
    engine = models.CharField(_("engine"), max_length=64, blank=True)
    attempts = models.PositiveSmallIntegerField(_("attempts"), default=0)
    cancel_requested = models.BooleanField(_("cancel requested"), default=False)
    replay_of_id: uuid.UUID | None
    replay_of = models.ForeignKey(
        "self", models.CASCADE, null=True, blank=True, related_name="replays", verbose_name=_("replay of")
    )
    comparison = models.JSONField(_("comparison"), default=dict, blank=True)  # of a replay with what it repeats

    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    started_at = models.DateTimeField(_("started"), null=True, blank=True)
    first_token_at = models.DateTimeField(_("first token"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished"), null=True, blank=True)

    # From the receipt, to sort and filter by. 0 until known: without nulls an index has one order on every database.
    wait_reason = models.CharField(_("waited for"), max_length=16, blank=True)
    queue_ms = models.FloatField(_("in queue"), default=0.0)
    ttft_ms = models.FloatField(_("time to first token"), default=0.0)
    total_ms = models.FloatField(_("in all"), default=0.0)
    caused_ms = models.FloatField(_("ms caused to others"), default=0.0)
    preemptions = models.PositiveSmallIntegerField(_("preemptions"), default=0)

    position: int = 0  # how many waited before it, when it was accepted; not a column
    received_at: float = 0.0  # Unix seconds, when its frame or call was read; 0: not known here; not a column

    class Meta:
        verbose_name = _("request")
        verbose_name_plural = _("requests")
        ordering = ("-created_at",)
        indexes = (
            models.Index(fields=("state", "-created_at"), name="request_state"),
            models.Index(fields=("owner", "-created_at"), name="request_of_owner"),
            models.Index(fields=("-created_at",), name="request_created"),
            models.Index(fields=("wait_reason", "-created_at"), name="request_wait_reason"),
            models.Index(fields=("finish_reason", "-created_at"), name="request_finish_reason"),
            *(models.Index(fields=(f"-{name}", "-id"), name=f"request_{name}") for name in SORTED_BY),
        )
        permissions = (
            ("chat", _("Can ask for answers")),
            ("watch_scheduler", _("Can watch the scheduler")),
            ("read_prompts", _("Can read what users asked and what was answered")),
            ("replay", _("Can run a request again to compare the answers")),
            ("cancel_any", _("Can cancel anybody's request")),
        )

    def __str__(self) -> str:
        return str(self.id)

    @property
    def is_final(self) -> bool:
        return self.state in FINAL_STATES

    @property
    def is_kept(self) -> bool:
        """Whether it is still known what was asked."""
        return self.messages is not None or self.prompt is not None or self.prompt_ids is not None

    @property
    def asked(self) -> str:
        """What the user said last, or the raw prompt."""
        said = [message["content"] for message in self.messages or () if message["role"] == "user"]
        return said[-1] if said else self.prompt or ""

    @property
    def depth(self) -> int:
        """Messages so far, system prompts aside. Of two turns of a conversation with the same depth, the later replaces
        the other: an answer was asked for again."""
        return sum(message["role"] != "system" for message in self.messages or ())


UNFINISHED_STATES = (InferenceRequest.State.ACCEPTED, InferenceRequest.State.RUNNING)
FINAL_STATES = frozenset(InferenceRequest.State) - frozenset(UNFINISHED_STATES)


class PromptRead(models.Model):
    """Somebody read in the admin what a user asked or was answered. Outlives what was read and the reader's account."""

    class What(models.TextChoices):
        REQUEST = "request", _("a request")
        CONVERSATION = "conversation", _("a conversation")
        TITLES = "titles", _("titles of conversations")
        SEARCH = "search", _("a search in texts")

    reader = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+", verbose_name=_("account")
    )
    reader_name = models.CharField(_("reader"), max_length=150)
    what = models.CharField(_("what was read"), max_length=16, choices=What)
    subject = models.UUIDField(_("id"), null=True, db_index=True)
    read_at = models.DateTimeField(_("read"), auto_now_add=True, db_index=True)

    class Meta:
        verbose_name = _("reading of prompts")
        verbose_name_plural = _("readings of prompts")
        ordering = ("-read_at", "-id")

    def __str__(self) -> str:
        return f"{self.reader_name}: {self.what}"


class Quota(models.Model):
    """How much may be asked for. An empty field is no limit of its own."""

    requests_per_minute = models.PositiveIntegerField(_("requests a minute"), null=True, blank=True)
    requests_per_day = models.PositiveIntegerField(_("requests a day"), null=True, blank=True)
    tokens_per_minute = models.PositiveIntegerField(_("tokens a minute"), null=True, blank=True)
    tokens_per_day = models.PositiveIntegerField(_("tokens a day"), null=True, blank=True)

    class Meta:
        abstract = True


class AccountQuota(Quota):
    """Of an account, over all of its keys and sessions, in place of the settings' quotas."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, models.CASCADE, related_name="quota", verbose_name=_("account")
    )

    class Meta:
        verbose_name = _("quota of an account")
        verbose_name_plural = _("quotas of accounts")

    def __str__(self) -> str:
        return str(self.user)


class ApiKey(Quota):
    """A program's key. `key_hash` is the SHA-256 of the key, which itself is kept nowhere; `prefix` is how it begins,
    so that people can tell keys apart. Its quota counts on top of its account's."""

    owner_id: int
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, related_name="api_keys", verbose_name=_("owner")
    )
    name = models.CharField(_("name"), max_length=100)
    prefix = models.CharField(_("begins with"), max_length=16, db_index=True, editable=False)
    key_hash = models.CharField(max_length=64, unique=True, editable=False)
    generate = models.BooleanField(_("may ask for answers"), default=True)
    scheduler = models.BooleanField(_("may watch the scheduler"), default=False)
    metrics = models.BooleanField(_("may read metrics"), default=False)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    expires_at = models.DateTimeField(_("expires"), null=True, blank=True)
    revoked_at = models.DateTimeField(_("revoked"), null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(_("last used"), null=True, blank=True, editable=False)

    class Meta:
        verbose_name = _("API key")
        verbose_name_plural = _("API keys")
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    @property
    def scopes(self) -> frozenset[str]:
        return frozenset(scope for scope in SCOPES if getattr(self, scope))


SCOPES = ("generate", "scheduler", "metrics")


class IdempotentCall(models.Model):
    """A call that was made under a key of its sender's choice: made again, it stands for the same requests. Programs
    with API keys of their own know nothing of each other, so they may choose the same."""

    api_key = models.ForeignKey(ApiKey, models.CASCADE, related_name="+")
    key = models.CharField(max_length=255)
    body_hash = models.CharField(max_length=64)
    request_ids = models.JSONField(default=list)
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("api_key", "key"), name="one_call_of_a_key"),)

    def __str__(self) -> str:
        return self.key


class LoginLink(models.Model):
    """A one-time link. `token_hash` is the SHA-256 of the token, which itself is kept nowhere."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="login_links")
    token_hash = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"login link {self.pk}"
