"""The report over a real socket, on loopback only."""

import threading
from pathlib import Path
from urllib.request import urlopen

from vitrail.demo import report_address, report_server


def test_report_is_served_on_loopback(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("<p>window</p>", encoding="utf-8")
    with report_server(tmp_path) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with urlopen(report_address(server), timeout=10) as answer:
            assert answer.read() == b"<p>window</p>"
        assert server.server_address[0] == "127.0.0.1"
        server.shutdown()
