// The bursts of a task as a picture: the server counts, so a view is small whatever the number of triggers.
(() => {
  const place = document.querySelector("#bursts");
  const canvas = document.querySelector("#picture");
  const pen = canvas?.getContext("2d");
  if (!place || !pen) return;
  const hover = document.querySelector("#hover");
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const STEPS = 700, LEFT = 118, TOP = 24, ROW = 30;
  const SHORTEST = 200, LONGEST = 365 * 864e5;
  let from = Date.parse(place.dataset.from), to = Date.parse(place.dataset.to);
  let live = place.dataset.live === "yes", data = null, skew = 0, asks_now = false, again = false, waits = null, pointer = null, marks = [];

  const now = () => Date.now() + skew;
  const clamp = (value, least, most) => Math.min(most, Math.max(least, value));
  const length = (ms) => {
    const sign = ms < 0 ? "−" : "", size = Math.abs(ms);
    if (size < 1000) return sign + Math.round(size) + " ms";
    if (size < 120000) return sign + (size / 1000).toFixed(1) + " s";
    return sign + (size < 7200000 ? Math.round(size / 60000) + " min" : (size / 3600000).toFixed(1) + " h");
  };
  const clock = (ms, span) => new Date(ms).toISOString().slice(span > 2 * 864e5 ? 0 : 11, span < 20000 ? 23 : span < 3600000 ? 19 : 16).replace("T", " ");

  // What is asked for reaches half a view beyond both ends, so that a view can be moved without waiting.
  const covers = () => data && data.start <= from && (data.end >= to || data.end >= now() - 1500)
    && data.view >= (to - from) / 2.5 && data.view <= (to - from) * 2.5;
  const ask = async () => {
    waits = null;
    // One request at a time; what is wanted meanwhile is asked for after it.
    if (asks_now) { again = true; return; }
    asks_now = true;
    await load();
    asks_now = false;
    if (again) { again = false; need(0); }
  };
  const load = async () => {
    const span = to - from;
    const end = Math.min(to + span / 2, now() + 1000), begin = Math.max(from - span / 2, end - LONGEST);
    if (end <= begin) return;
    const query = new URLSearchParams({ from: new Date(begin).toISOString(), to: new Date(end).toISOString(), steps: STEPS });
    if (place.dataset.key) query.set("key", place.dataset.key);
    try {
      const answer = await fetch(place.dataset.url + "&" + query, { headers: { accept: "application/json" } });
      if (answer.status === 401) { location.reload(); return; }
      if (!answer.ok) { hover.textContent = (await answer.json()).error?.message ?? "The server refused it."; return; }
      const found = await answer.json();
      skew = Date.parse(found.now) - Date.now();
      data = { ...found, start: Date.parse(found.from), end: Date.parse(found.to), view: span };
      for (const node of document.querySelectorAll("#summary [data-count]")) {
        node.textContent = grouped(found[node.dataset.count]);
      }
    } catch { hover.textContent = "The server does not answer."; }
    draw();
  };
  const need = (after) => { if (!waits) waits = setTimeout(ask, after); };

  const rows = () => {
    if (!data) return [];
    const list = new Map();
    const add = (key) => {
      const name = key === null || key === undefined ? "no key" : key;
      if (!list.has(name) && list.size < 12) list.set(name, { name, ticks: [], bars: [], windows: [], starts: [], failures: [] });
      return list.get(name);
    };
    if (place.dataset.key) {
      const { ticks, starts, failures } = data;
      Object.assign(add(place.dataset.key), { ticks, starts, failures });
    }
    for (const { key, ticks, starts = [], failures = [] } of data.keys) {
      const row = add(key);
      if (row) Object.assign(row, { ticks, starts, failures });
    }
    for (const window of data.windows) add(window.key)?.windows.push(window);
    for (const bar of data.bars) add(bar.key)?.bars.push(bar);
    return [...list.values()];
  };

  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue("--" + name).trim();
    return { text: of("text"), soft: of("soft"), line: of("line"), card: of("card"), accent: of("accent"),
      wash: of("wash"), good: of("good"), bad: of("bad"), warn: of("warn"), calm: of("calm") };
  };
  const result = (bar, colour) => bar.outcome === null ? colour.accent : bar.outcome === "succeeded" ? colour.good
    : bar.outcome === "dead" ? colour.bad : ["failed", "panicked", "timed_out", "lapsed"].includes(bar.outcome) ? colour.warn
    : colour.calm;

  let asks = false;
  const draw = () => { if (!asks) { asks = true; requestAnimationFrame(paint); } };
  const paint = () => {
    asks = false;
    if (live) { const span = to - from; to = now(); from = to - span; }
    const scale = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    const colour = colours(), span = to - from, wide = Math.max(1, width - LEFT - 8);
    const x = (ms) => LEFT + (ms - from) / span * wide;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.fillStyle = colour.card;
    pen.fillRect(0, 0, width, height);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    marks = [];
    axis(colour, x, span, width, height);
    if (data) flags(colour, x, height);
    if (!data) { need(0); return; }
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, wide + 8, height);
    pen.clip();
    const list = rows();
    histogram(colour, x, TOP + 8, 56);
    const first = TOP + 78, room = Math.max(14, Math.min(ROW, (height - first - 6) / Math.max(1, list.length)));
    list.forEach((row, i) => lane(colour, x, row, first + i * room, room));
    pen.restore();
    pen.fillStyle = colour.soft;
    pen.fillText(place.dataset.key ? "triggers" : "all keys", 4, TOP + 36, LEFT - 10);
    list.forEach((row, i) => {
      const name = row.name.length > 16 ? row.name.slice(0, 15) + "…" : row.name;
      pen.fillText(name, 4, first + i * room + room / 2, LEFT - 10);
    });
    document.querySelector("#span").textContent = length(span) + " in view";
    if (live && !still.matches && !document.hidden) draw();
  };
  const axis = (colour, x, span, width, height) => {
    const steps = [100, 200, 500, 1e3, 2e3, 5e3, 1e4, 3e4, 6e4, 12e4, 3e5, 6e5, 18e5, 36e5, 108e5, 432e5, 864e5, 6048e5, 26784e5];
    const step = steps.find((one) => one * 10 >= span) || steps[steps.length - 1];
    pen.strokeStyle = colour.line;
    pen.fillStyle = colour.soft;
    pen.lineWidth = 1;
    for (let ms = Math.ceil(from / step) * step; ms < to; ms += step) {
      const at = Math.round(x(ms)) + .5;
      if (at < LEFT) continue;
      pen.beginPath();
      pen.moveTo(at, TOP - 6);
      pen.lineTo(at, height);
      pen.stroke();
      if (at < width - 60) pen.fillText(clock(ms, span), at + 3, 10);
    }
  };
  // Marks such as deploys: a line each, with its name where there is room.
  const flags = (colour, x, height) => {
    let free = LEFT;
    pen.strokeStyle = pen.fillStyle = colour.accent;
    for (const mark of [...data.marks].reverse()) {
      const at = Math.round(x(data.start + mark.at)) + .5;
      if (at < LEFT || at > canvas.clientWidth) continue;
      pen.setLineDash([2, 3]);
      pen.beginPath();
      pen.moveTo(at, TOP - 4);
      pen.lineTo(at, height);
      pen.stroke();
      pen.setLineDash([]);
      const name = mark.name.length > 24 ? mark.name.slice(0, 23) + "…" : mark.name;
      if (at >= free) { pen.fillText(name, at + 3, TOP + 2); free = at + 8 + pen.measureText(name).width; }
      marks.push({ left: at, right: at, top: 0, bottom: height, text: `${mark.name}, ${clock(data.start + mark.at, to - from)}` });
    }
  };
  const steps = (ticks, each) => {
    const size = data.step_ms;
    for (const [step, count] of ticks) {
      const begin = data.start + step * size;
      if (begin + size >= from && begin <= to) each(begin, size, count, step);
    }
  };
  const histogram = (colour, x, top, height) => {
    let most = 1;
    for (const [, count] of data.ticks) most = Math.max(most, count);
    pen.fillStyle = colour.text;
    pen.globalAlpha = .75;
    steps(data.ticks, (begin, size, count) => {
      const left = x(begin), wide = Math.max(1, x(begin + size) - left - .5), tall = Math.max(2, height * count / most);
      pen.fillRect(left, top + height - tall, wide, tall);
      marks.push({ left, right: left + wide, top, bottom: top + height, text: `${count} triggers at ${clock(begin, to - from)}` });
    });
    for (const [list, fill] of [[data.starts, colour.good], [data.failures, colour.warn]]) {
      pen.fillStyle = fill;
      steps(list, (begin, size, count) => {
        const left = x(begin), wide = Math.max(1, x(begin + size) - left - .5);
        pen.fillRect(left, top + height + 2, wide, 6);
        marks.push({ left, right: left + wide, top: top + height, bottom: top + height + 9, text: `${count} ${list === data.starts ? "starts" : "failures"} at ${clock(begin, to - from)}` });
      });
    }
    pen.globalAlpha = 1;
  };
  const lane = (colour, x, row, top, room) => {
    const middle = top + room / 2, tall = Math.min(14, room - 4);
    pen.fillStyle = colour.line;
    pen.fillRect(LEFT, top + room - 1, canvas.clientWidth, 1);
    for (const one of row.windows) window_(colour, x, one, middle, tall);
    for (const bar of row.bars) run(colour, x, bar, middle, tall);
    pen.fillStyle = colour.text;
    steps(row.ticks, (begin, size, count) => {
      const left = x(begin);
      pen.fillRect(left, middle + tall / 2 - 5, Math.max(1.5, x(begin + size) - left - .5), 5);
      if (!row.bars.length && !row.windows.length) marks.push({ left, right: left + 4, top, bottom: top + room, text: `${row.name}: ${count} triggers at ${clock(begin, to - from)}` });
    });
    // Where there are too many runs to draw each: where some started, and where some failed.
    const failed = new Map(row.failures);
    steps(row.starts, (begin, size, count, step) => {
      const left = x(begin), wide = Math.max(1.5, x(begin + size) - left - .5), failures = failed.get(step) || 0;
      pen.fillStyle = failures ? colour.warn : colour.good;
      pen.fillRect(left, middle - tall / 2 - 1, wide, tall - 4);
      marks.push({ left, right: left + wide, top, bottom: top + room, text: `${row.name}: ${count} starts, ${failures} failed, at ${clock(begin, to - from)}` });
    });
  };
  const window_ = (colour, x, one, middle, tall) => {
    const opened = data.start + one.opened, due = data.start + one.due, bound = one.bound === null ? null : data.start + one.bound;
    const left = x(opened), right = Math.max(left + 3, x(due));
    pen.fillStyle = colour.wash;
    pen.strokeStyle = colour.accent;
    pen.fillRect(left, middle - tall / 2, right - left, tall);
    pen.strokeRect(left + .5, middle - tall / 2 + .5, right - left - 1, tall - 1);
    if (bound !== null && x(bound) > right) {
      pen.setLineDash([4, 3]);
      pen.strokeRect(right + .5, middle - tall / 2 + .5, x(bound) - right - 1, tall - 1);
      pen.setLineDash([]);
    }
    const latest = bound === null ? "" : `, at the latest in ${length(bound - now())}`;
    marks.push({ left, right: bound === null ? right : Math.max(right, x(bound)), top: middle - tall / 2, bottom: middle + tall / 2, job: one.job,
      text: `${one.key}: ${one.triggers} triggers, runs in ${length(due - now())}${latest}` });
  };
  const run = (colour, x, bar, middle, tall) => {
    const opened = data.start + bar.opened, started = data.start + bar.started;
    const ended = bar.ended === null ? now() : data.start + bar.ended;
    const left = x(started), right = Math.max(left + 3, x(ended));
    if (bar.attempt <= 1 && started > opened) {
      pen.fillStyle = colour.wash;
      pen.fillRect(x(opened), middle - tall / 2, left - x(opened), tall);
    }
    pen.fillStyle = result(bar, colour);
    pen.fillRect(left, middle - tall / 2 - 1, right - left, tall + 2);
    const late = started - (data.start + bar.due);
    marks.push({ left: Math.min(left, x(opened)), right, top: middle - tall / 2 - 1, bottom: middle + tall / 2 + 1, job: bar.job,
      text: `${bar.key ?? "no key"}: ${bar.triggers} triggers, attempt ${bar.attempt} ${bar.outcome ?? "runs"}, ${length(late)} late, took ${length(ended - started)}` });
  };

  const settle = () => { if (!covers()) need(120); draw(); };
  const leave = () => {
    live = false;
    document.querySelector("[data-view=now]").setAttribute("aria-pressed", "false");
  };
  const move = (part) => { leave(); const by = (to - from) * part; from += by; to += by; settle(); };
  const zoom = (factor, at) => {
    const span = clamp((to - from) * factor, SHORTEST, LONGEST), part = live ? 1 : at;
    const middle = from + (to - from) * part;
    from = middle - span * part;
    to = from + span;
    settle();
  };
  const views = { left: () => move(-.4), right: () => move(.4), in: () => zoom(.5, .5), out: () => zoom(2, .5),
    now: () => { live = !live; document.querySelector("[data-view=now]").setAttribute("aria-pressed", String(live)); settle(); } };
  for (const button of place.querySelectorAll("[data-view]")) button.addEventListener("click", views[button.dataset.view]);
  canvas.addEventListener("keydown", (event) => {
    const keys = { ArrowLeft: "left", ArrowRight: "right", "+": "in", "=": "in", "-": "out", Home: "now" };
    if (keys[event.key]) { event.preventDefault(); event.stopPropagation(); views[keys[event.key]](); }
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey && document.activeElement !== canvas) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : .8, clamp((event.offsetX - LEFT) / (canvas.clientWidth - LEFT), 0, 1));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    pointer = { at: event.clientX, from, to, moved: false };
    canvas.setPointerCapture(event.pointerId);
    canvas.classList.add("held");
  });
  canvas.addEventListener("pointermove", (event) => {
    if (pointer) {
      const by = (event.clientX - pointer.at) / Math.max(1, canvas.clientWidth - LEFT) * (pointer.to - pointer.from);
      if (Math.abs(event.clientX - pointer.at) > 3) { pointer.moved = true; leave(); }
      if (pointer.moved) { from = pointer.from - by; to = pointer.to - by; settle(); }
      return;
    }
    const found = under(event);
    hover.textContent = found ? found.text : "";
  });
  const under = (event) => {
    const { offsetX: left, offsetY: top } = event;
    return marks.filter((mark) => left >= mark.left - 2 && left <= mark.right + 2 && top >= mark.top - 2 && top <= mark.bottom + 2).pop();
  };
  canvas.addEventListener("pointerup", (event) => {
    const found = pointer && !pointer.moved ? under(event) : null;
    pointer = null;
    canvas.classList.remove("held");
    if (found?.job) location.href = place.dataset.jobs + found.job;
  });
  new ResizeObserver(draw).observe(canvas);
  document.addEventListener("quell:theme", draw);
  setInterval(() => { if (live && !document.hidden) { need(0); if (still.matches) draw(); } }, 1000);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) settle(); });
  ask();
})();
