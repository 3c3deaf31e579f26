import asyncio

from inference.serving.turns import Turns


async def test_users_take_turns_one_at_a_time() -> None:
    turns, order, inside = Turns(), [], 0

    async def work(user: str, number: int) -> None:
        nonlocal inside
        async with turns.turn(user):
            inside += 1
            assert inside == 1
            order.append(f"{user}{number}")
            await asyncio.sleep(0)
            inside -= 1

    jobs = [("a", i) for i in range(4)] + [("b", 0), ("b", 1), ("c", 0)]
    await asyncio.gather(*(work(*job) for job in jobs))
    assert order == ["a0", "a1", "b0", "c0", "a2", "b1", "a3"]


async def test_whoever_is_cancelled_in_line_holds_up_nobody() -> None:
    turns, order = Turns(), []

    async def work(name: str) -> None:
        async with turns.turn(name):
            order.append(name)
            await asyncio.sleep(0.01)

    first, second, third = (asyncio.create_task(work(name)) for name in "abc")
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(first, second, third, return_exceptions=True)
    assert order == ["a", "c"]
    await asyncio.wait_for(work("d"), 1)


async def test_a_turn_that_raises_or_is_cancelled_is_passed_on() -> None:
    turns = Turns()

    async def fails() -> None:
        async with turns.turn("a"):
            await asyncio.sleep(0)
            raise ValueError

    async def hangs() -> None:
        async with turns.turn("b"):
            await asyncio.sleep(60)

    failing, hanging = asyncio.create_task(fails()), asyncio.create_task(hangs())
    await asyncio.gather(failing, return_exceptions=True)
    await asyncio.sleep(0)
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)
    async with asyncio.timeout(1), turns.turn("c"):
        pass


async def test_one_who_is_cancelled_just_as_the_turn_comes_passes_it_on() -> None:
    turns = Turns()
    entered = asyncio.Event()

    async def holder() -> None:
        async with turns.turn("a"):
            await entered.wait()

    async def next_one() -> None:
        async with turns.turn("b"):
            await asyncio.sleep(60)

    holding, waiting = asyncio.create_task(holder()), asyncio.create_task(next_one())
    await asyncio.sleep(0)
    entered.set()
    await asyncio.gather(holding)  # b's place is given to it, and it has not run since
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(1), turns.turn("c"):
        pass
