"""A pool of worker processes that ends with the process that began it, however that ends."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext


@contextmanager
def worker_pool(context: BaseContext, workers: int, begin: Callable[[], None]) -> Iterator[ProcessPoolExecutor]:
    """Worker processes for the length of a block; at once gone where the block fails or this process is killed.

    Args:
        context: how they are started.
        workers: how many.
        begin: what each does first; picklable.

    Yields:
        the pool.
    """
    listening, held = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_worker, initargs=(listening, begin))
    try:
        yield pool
    except BaseException:
        held.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        held.close()
        listening.close()


def _begin_worker(listening: Connection, begin: Callable[[], None]) -> None:
    """Leave Ctrl-C to the parent, and end when the pipe closes whose other end only it holds."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        listening.poll(None)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    begin()
