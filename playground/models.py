"""The tables: conversations, the requests that are their turns, and login links.

A conversation's turns are its InferenceRequests; there is no second table of messages. The gateway is the only writer
of InferenceRequest. Must not know: the broker, sockets, pages.
"""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _


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
    params = models.JSONField(_("parameters"), default=dict)
    seed = models.BigIntegerField(_("seed"))

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

    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    started_at = models.DateTimeField(_("started"), null=True, blank=True)
    first_token_at = models.DateTimeField(_("first token"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished"), null=True, blank=True)

    position: int = 0  # how many waited before it, when it was accepted; not a column

    class Meta:
        verbose_name = _("request")
        verbose_name_plural = _("requests")
        ordering = ("-created_at",)
        indexes = (
            models.Index(fields=("state",), name="request_state"),
            models.Index(fields=("owner", "-created_at"), name="request_of_owner"),
        )
        permissions = (("read_prompts", "Can read what users asked and what was answered"),)

    def __str__(self) -> str:
        return str(self.id)

    @property
    def is_final(self) -> bool:
        return self.state in FINAL_STATES

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


class LoginLink(models.Model):
    """A one-time link. `token_hash` is the SHA-256 of the token, which itself is kept nowhere."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="login_links")
    token_hash = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"login link {self.pk}"
