#!/usr/bin/env python3
"""What a browser makes of the pages: `bench/frames.py QUELL [TRIGGERS] [CHROMIUM]`.

QUELL is the program, best of `cargo build --release`. It serves SQLite in a temporary folder and on a free port of
loopback, and gets TRIGGERS (1,000,000) of 200 keys, whose windows run meanwhile. Then CHROMIUM (`chromium`), without
a window and without a GPU, is driven through two pipes:

- The first view: the overview in a browser with an empty profile, from the beginning of the navigation to the first
  contentful paint and to the end of loading. The goal is 300 ms.
- The timeline: it is panned for some seconds by pointer events, one in each frame. What lies between two frames is
  compared with 16.7 ms (60 a second), and each answer of the server that a view needs with 100 kB.
"""

import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from serving import serving

BATCH = 10_000
KEYS = 200
VIEWS = 7
SECONDS = 6
CONFIG = """
[server]
listen = "127.0.0.1:0"
max_body = "16MiB"
[store]
url = "sqlite://{folder}/quell.db"
synchronous = "normal"
[tasks.meter]
key = "{{{{ k }}}}"
debounce = {{ min = "1s", max = "5s" }}
exec = {{ command = ["true"] }}
"""
# One pointer event and one measurement for each frame.
PAN = """
new Promise((done) => {
  const canvas = document.querySelector("#picture"), box = canvas.getBoundingClientRect();
  const middle = box.top + box.height / 2;
  const send = (kind, x) => canvas.dispatchEvent(new PointerEvent(kind,
    { clientX: box.left + x, clientY: middle, pointerId: 1, bubbles: true }));
  canvas.setPointerCapture = () => {};
  const times = [], begun = performance.now();
  let x = 300, by = 4;
  send("pointerdown", x);
  const frame = (at) => {
    times.push(at);
    if (x > 700 || x < 200) by = -by;
    x += by;
    send("pointermove", x);
    if (performance.now() - begun < SECONDS * 1000) { requestAnimationFrame(frame); return; }
    send("pointerup", x);
    const sizes = performance.getEntriesByType("resource").filter((one) => one.name.includes("/timeline/data"));
    done(JSON.stringify({ times, sizes: sizes.map((one) => [one.encodedBodySize, one.decodedBodySize]) }));
  };
  requestAnimationFrame(frame);
})
"""
FIRST = """
new Promise((done) => {
  const look = () => {
    const [whole] = performance.getEntriesByType("navigation");
    const paint = performance.getEntriesByType("paint").find((one) => one.name === "first-contentful-paint");
    if (!whole.loadEventEnd || !paint) { setTimeout(look, 20); return; }
    done(JSON.stringify([paint.startTime, whole.loadEventEnd]));
  };
  look();
})
"""


class Browser:
    """Chromium with an empty profile, by its protocol through two pipes."""

    def __init__(self, program):
        self.folder = tempfile.mkdtemp(prefix="quell-frames-")
        theirs_in, self.to = os.pipe()
        self.answers, theirs_out = os.pipe()

        def pipes():
            # The protocol's descriptors are 3 and 4.
            low, high = os.dup2(theirs_in, 100), os.dup2(theirs_out, 101)
            os.dup2(low, 3)
            os.dup2(high, 4)

        arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
        arguments += [f"--user-data-dir={self.folder}", "--window-size=1280,900", "about:blank"]
        self.process = subprocess.Popen(
            [program, *arguments], preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.rest, self.number, self.session = b"", 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                self.rest += os.read(self.answers, 1 << 16)
            text, self.rest = self.rest.split(b"\0", 1)
            answer = json.loads(text)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def eval(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.answers)
        shutil.rmtree(self.folder, ignore_errors=True)


def share(sorted_values, part):
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * part))]


def main():
    program = os.path.abspath(sys.argv[1])
    triggers = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    chromium = sys.argv[3] if len(sys.argv) > 3 else "chromium"
    with serving(program, CONFIG) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        begun = time.time()
        for begin in range(0, triggers, BATCH):
            batch = [{"payload": {"k": f"meter-{number % KEYS}"}} for number in range(begin, begin + BATCH)]
            headers = {"content-type": "application/json"}
            connection.request("POST", "/v1/tasks/meter/triggers", json.dumps(batch), headers)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == 202, text
        print(f"{triggers} triggers of {KEYS} keys in {time.time() - begun:.0f} s")
        site = f"http://127.0.0.1:{port}"
        views = []
        for _ in range(VIEWS):
            browser = Browser(chromium)
            browser.call("Page.navigate", url=f"{site}/")
            views.append(json.loads(browser.eval(FIRST)))
            browser.close()
        paints, loads = (sorted(view[at] for view in views) for at in (0, 1))
        print(f"first view of {VIEWS} empty profiles: painted after {paints[VIEWS // 2]:.0f} ms (median), {paints[-1]:.0f} ms (slowest); loaded after {loads[VIEWS // 2]:.0f} and {loads[-1]:.0f} ms")
        browser = Browser(chromium)
        browser.call("Page.navigate", url=f"{site}/timeline?task=meter")
        browser.eval(FIRST)
        browser.eval("new Promise((done) => { const look = () => document.querySelector('#span').textContent ? done() : setTimeout(look, 20); look(); })")
        found = json.loads(browser.eval(PAN.replace("SECONDS", str(SECONDS))))
        browser.close()
        apart = sorted(b - a for a, b in zip(found["times"], found["times"][1:]))
        late = sum(1 for one in apart if one > 25) / len(apart)
        print(f"timeline panned for {SECONDS} s: {len(apart) / SECONDS:.1f} frames a second; apart {share(apart, .5):.1f} ms (median), {share(apart, .99):.1f} ms (99 in 100); {100 * late:.1f} % later than 25 ms")
        encoded = [one[0] for one in found["sizes"]]
        decoded = [one[1] for one in found["sizes"]]
        print(f"{len(encoded)} answers for views: at most {max(encoded) / 1000:.1f} kB sent, {max(decoded) / 1000:.1f} kB decoded")


main()
