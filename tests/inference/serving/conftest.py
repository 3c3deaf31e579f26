import pytest
import pytest_asyncio
from support import brokers

from inference.serving.broker import Broker
from inference.serving.client import EngineClient


@pytest.fixture(scope="session")
def valkey():
    with brokers.private() as server:
        yield server


@pytest_asyncio.fixture
async def broker(valkey):
    """A broker of which nobody has used anything yet."""
    broker = Broker(valkey.url)
    await broker.redis.flushall()
    yield broker
    await broker.close()


@pytest_asyncio.fixture
async def client(broker, valkey):
    client = EngineClient(valkey.url)
    await client.start()
    yield client
    await client.close()
