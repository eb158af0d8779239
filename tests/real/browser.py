"""A headless Chromium that opens pages, over its debugging pipe."""

import itertools
import json
import subprocess

from waiting import until

COMMAND = "exec chromium --headless=new --no-sandbox --disable-gpu --remote-debugging-pipe --user-data-dir=\"$0\""


class Browser:
    """Runs until the block ends; keeps its profile below a temporary directory."""

    def __init__(self, work):
        # It reads from descriptor 3 and writes to 4.
        command = ["bash", "-c", f"{COMMAND} 3<&0 4>&1 </dev/null >/dev/null 2>&1", str(work / "chromium")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.numbers = itertools.count(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.terminate()
        self.process.wait(20)

    def call(self, method, session=None, **params):
        """Calls a method of the DevTools protocol; returns its result."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        message |= {"sessionId": session} if session else {}
        self.process.stdin.write(json.dumps(message).encode() + b"\0")
        self.process.stdin.flush()
        while True:
            answer = json.loads(self.read())
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def read(self):
        text = bytearray()
        while (byte := self.process.stdout.read(1)) != b"\0":
            assert byte, "Chromium ended"
            text += byte
        return text

    def shows(self, url, words):
        """Opens a page and waits until it contains all of these words; returns its text."""
        target = self.call("Target.createTarget", url=url)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        seen = []

        def text():
            value = self.call("Runtime.evaluate", session, expression="document.body.innerText")["result"].get("value")
            seen[:] = [value or ""]
            return all(word in seen[0] for word in words)

        until(f"{url} to show {words}", text, instead=lambda: seen)
        self.call("Target.closeTarget", targetId=target)
        return seen[0]
