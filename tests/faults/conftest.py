import pytest
from support.server import Server, scripted_model, serving

REPLY = " ".join(f"word {n}," for n in range(60))
SCRIPT = {
    "step_ms": 20,
    "replies": [{"match": f"story {n} please", "text": f"Story {n}: {REPLY}"} for n in range(16)],
    "default": {"text": "Nothing to say."},
}


@pytest.fixture(scope="session")
def scripted(tmp_path_factory):
    return scripted_model(tmp_path_factory.mktemp("scripted"), **SCRIPT)


@pytest.fixture
def story():
    """What the scripted model answers to "story N please"."""
    return lambda n: f"Story {n}: {REPLY}"


@pytest.fixture
def serve_process(scripted):
    """`manage.py serve` with the scripted model: up, and signed in to."""
    with serving(model=scripted) as server:
        yield server


@pytest.fixture(scope="session")
def lasting_server(scripted):
    """The same for tests that leave it running."""
    with serving(model=scripted) as server:
        yield server


@pytest.fixture
def make_server(scripted):
    """Servers that are not started yet."""
    servers = []

    def make(**settings):
        servers.append(Server(**{"model": scripted, **settings}))
        return servers[-1]

    yield make
    for server in servers:
        if hasattr(server, "process"):
            server.close()
