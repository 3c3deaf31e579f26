from django.apps import AppConfig


class PlaygroundConfig(AppConfig):
    name = "playground"
    verbose_name = "Batchscope"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from playground import checks  # noqa: F401  (registers them)
