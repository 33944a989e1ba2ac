"""The last answers of a server, kept in memory so that they can be explained by their id."""

from collections import OrderedDict

from vitrail.generate import Trace
from vitrail.serve.errors import not_found


class Answers:
    """Traces of the last requests; used from the event loop only."""

    def __init__(self, limit: int) -> None:
        """Begin with none.

        Args:
            limit: requests kept.
        """
        self._limit = limit
        self._traces: OrderedDict[str, dict[int, Trace]] = OrderedDict()

    def keep(self, answer_id: str, index: int, trace: Trace) -> None:
        """Keep an answer; the oldest request is forgotten where there are too many.

        Args:
            answer_id: of the request.
            index: of the answer.
            trace: the answer.
        """
        self._traces.setdefault(answer_id, {})[index] = trace
        while len(self._traces) > self._limit:
            self._traces.popitem(last=False)

    def find(self, answer_id: str, index: int) -> Trace:
        """A kept answer.

        Args:
            answer_id: of the request.
            index: of the answer.

        Returns:
            its trace.

        Raises:
            ApiError: not kept (any more), or no such answer.
        """
        traces = self._traces.get(answer_id)
        if traces is None:
            shown = answer_id[:60]
            message = f"answer '{shown}' is not kept (the server keeps the last {self._limit}); send the request again"
            raise not_found(message, "completion", "completion_gone")
        if index not in traces:
            raise not_found(f"answer '{answer_id}' has no choice {index}", "index", "choice_not_found")
        return traces[index]
