from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.db.models.signals import post_migrate, post_save


class PlaygroundConfig(AppConfig):
    name = "playground"
    verbose_name = "Batchscope"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from playground import checks  # noqa: F401  (registers them)
        from playground.access import groups
        from playground.connections import close_with_their_threads

        close_with_their_threads()
        post_migrate.connect(_make_groups, sender=self)
        post_save.connect(groups.welcome, sender=settings.AUTH_USER_MODEL)


def _make_groups(sender: AppConfig, using: str, **kwargs: Any) -> None:
    from django.contrib.auth.management import create_permissions

    from playground.access import groups

    create_permissions(sender, verbosity=0, using=using)  # what Django does on the same signal, perhaps later
    groups.make_groups()
