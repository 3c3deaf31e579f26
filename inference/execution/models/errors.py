"""The one error of the model room."""


class ModelError(ValueError):
    """A model can't be fetched, read or run. The message is one sentence for the person who started the engine."""
