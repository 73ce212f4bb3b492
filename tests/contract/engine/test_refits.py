"""New weights into any engine: they are those that were sent, or, when the transfer fails, the old ones."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from producer.engine.protocol import Engine, TransferOffer
from schemas.errors import TransferError
from schemas.weights.transports.gloo import TRANSPORT
from schemas.weights.transports.protocol import Rendezvous
from tests.fakes.learner.transfers import send_all
from tests.fakes.producer.engine_oracle import (
    LONG,
    MARKS,
    SAMPLING,
    TIMEOUT_S,
    Oracle,
    check,
    dying_sender,
    offer,
    progressed,
    refit,
    sending,
    serves,
)

pytestmark = MARKS


def test_a_refit_brings_the_weights_that_were_sent_and_their_version(engine: Engine, oracle: Oracle) -> None:
    async def main() -> None:
        version = engine.version
        loaded = await refit(engine, oracle, seed=11)
        assert (loaded.version, engine.version) == (version + 1, version + 1)
        check(await engine.generate("after", [1, 2], SAMPLING), SAMPLING, version + 1)
        assert (await refit(engine, oracle, seed=11)).digest == loaded.digest
        assert (await refit(engine, oracle, seed=12)).digest != loaded.digest

    asyncio.run(main())


def test_running_requests_carry_both_versions_over_a_refit(engine: Engine, oracle: Oracle) -> None:
    async def main() -> None:
        names = ["across-0", "across-1", "across-2"]
        tasks = [asyncio.create_task(engine.generate(name, [7, n], LONG)) for n, name in enumerate(names)]
        await progressed(engine, 5, *names)
        frozen = engine.progress()
        version = engine.version
        await refit(engine, oracle, seed=21)
        for name, completion in zip(names, await asyncio.gather(*tasks), strict=True):
            first, second = completion.spans
            assert (first.version, first.start, second.version) == (version, 0, version + 1)
            assert frozen[name] <= first.end == second.start < second.end == len(completion.token_ids)

    asyncio.run(main())


def test_the_loop_runs_on_while_weights_are_awaited(engine: Engine, oracle: Oracle) -> None:
    async def main() -> None:
        await engine.pause(drop_caches=False)
        weights = oracle.weights(31)
        sender = TRANSPORT.sender("127.0.0.1", TIMEOUT_S)
        receiving = asyncio.create_task(engine.receive(offer(engine.version + 1, sender.open(2))))
        for _ in range(20):
            await asyncio.sleep(0.01)  # the subject: the loop turns again and again although the sender does not come
            assert "" in engine.progress()
        assert not receiving.done()
        await asyncio.to_thread(sender.connect)
        digest = await asyncio.to_thread(send_all, oracle.plan, sender, iter(weights.items()), oracle.probe(weights))
        assert (await receiving).digest == digest
        sender.close()
        await engine.resume()

    asyncio.run(main())


def test_weights_that_do_not_match_the_digest_are_not_loaded(
    engine: Engine, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        await refit(engine, oracle, seed=41)
        version = engine.version
        await engine.pause(drop_caches=True)
        monkeypatch.setattr("learner.transfer.sending.checksum", lambda buffer: 1)
        with sending(oracle, oracle.weights(42), version + 1) as (offered, _), pytest.raises(TransferError, match="digest"):
            await engine.receive(offered)
        await engine.resume()
        await serves(engine, oracle, 41, version)

    asyncio.run(main())


def test_a_sender_killed_in_the_middle_of_a_transfer_leaves_the_old_weights(engine: Engine, oracle: Oracle) -> None:
    assert len(oracle.plan.buckets) > 1

    async def main() -> None:
        await refit(engine, oracle, seed=51)
        version = engine.version
        await engine.pause(drop_caches=True)
        with dying_sender(oracle) as sender:
            assert sender.stdout is not None
            host, port, prefix = (await asyncio.to_thread(sender.stdout.readline)).split()
            started = time.monotonic()
            with pytest.raises(TransferError, match="broadcast"):
                await engine.receive(offer(version + 1, Rendezvous(host, int(port), prefix)))
            assert time.monotonic() - started < TIMEOUT_S / 2
        assert sender.returncode == -signal.SIGKILL
        await engine.resume()
        await serves(engine, oracle, 51, version)
        await refit(engine, oracle, seed=52)
        await serves(engine, oracle, 52, version + 1)

    asyncio.run(main())


def test_an_offer_without_a_sender_fails_within_its_timeout(engine: Engine) -> None:
    async def main() -> None:
        version = engine.version
        await engine.pause(drop_caches=False)
        started = time.monotonic()
        with pytest.raises(TransferError, match=r"joining the transfer at 127\.0\.0\.1:9 "):
            await engine.receive(TransferOffer(99, Rendezvous("127.0.0.1", 9, "none"), 2, 1, timeout_s=1.0))
        assert time.monotonic() - started < 10
        await engine.resume()
        check(await engine.generate("on", [1], SAMPLING), SAMPLING, version)

    asyncio.run(main())
