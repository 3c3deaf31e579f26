import pytest
import pytest_asyncio
from support import brokers
from support.workers import WorkerProcess

from inference.serving.broker_engine import EngineBroker
from inference.serving.broker_web import WebBroker
from inference.serving.client import EngineClient


@pytest.fixture(scope="session")
def valkey():
    with brokers.private() as server:
        yield server


class Broker(WebBroker, EngineBroker):
    """Both sides in one."""


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


@pytest.fixture
def start_worker(valkey, broker):
    """Start engine processes; whatever is left of them ends with the test."""
    workers = []

    def start(name="w", **options):
        workers.append(WorkerProcess(valkey.url, name, **options))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()
