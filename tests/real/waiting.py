"""Polls with a deadline."""

import http.client
import time
import urllib.error

DEADLINE_SECONDS = 60


def until(what, probe, deadline_seconds=DEADLINE_SECONDS, instead=lambda: None):
    """Polls until the probe returns something true; the last error, or the value instead, says what was missing."""
    end = time.monotonic() + deadline_seconds
    last = None
    while time.monotonic() < end:
        try:
            if answer := probe():
                return answer
        except (urllib.error.URLError, ConnectionError, TimeoutError, http.client.HTTPException, KeyError, IndexError) as error:
            last = error
        time.sleep(0.1)
    raise SystemExit(f"waited {deadline_seconds} s for {what}; last error: {last}; {instead() or ''}")
