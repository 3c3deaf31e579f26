"""What the scripted model says in the browser tests, and the type of their page opener."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from playwright.async_api import Page

LONG = " ".join(f"Word {n}." for n in range(80))
HOSTILE = "\n\n".join(
    (
        '<img src=x onerror="window.ran=1">',
        "<svg/onload=window.ran=2>",
        "[click me](javascript:window.ran=3)",
        "![picture](https://evil.example/a.png)",
        "<script>window.ran=4</script> after",
        '<iframe src="https://evil.example/"></iframe>',
        "<style>body { display: none }</style>",
        "```html\n<img src=x onerror=window.ran=5>\n```",
        "[good](https://example.org/)",
        "The end.",
    )
)
REPLIES = [
    {"match": "capital of France", "text": "The capital of France is **Paris**."},
    {"match": "hostile", "text": HOSTILE},
    {"match": "code", "text": "Here:\n\n```python\nprint('hello')\n```\n"},
    {"match": "long", "text": LONG},
]

OpenPage = Callable[..., Awaitable[Page]]
