"""The one error of the text room."""


class TokenizerError(ValueError):
    """A tokenizer folder can't be read or used. The message is one sentence for the person who started the engine."""
