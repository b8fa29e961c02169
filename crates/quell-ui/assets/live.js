// The server's events, which pause while the page is hidden: what each shows, and what is said of them.
const follow = (show, say) => {
  if (!window.EventSource) return;
  const url = document.body.dataset.prefix + "/live";
  let source = null;
  // A stream that is refused: by a session that has ended, which a login begins anew, or for now.
  const again = async () => {
    if (document.hidden) return;
    const look = new AbortController();
    try {
      const answer = await fetch(url, { headers: { accept: "text/event-stream" }, signal: look.signal });
      if (answer.status === 401) { location.reload(); return; }
    } catch { /* It does not answer yet. */ }
    look.abort();
    start();
  };
  const stop = () => { source?.close(); source = null; say("Paused."); };
  const start = () => {
    if (source || document.hidden) return;
    source = new EventSource(url);
    source.addEventListener("open", () => say("Live."));
    source.addEventListener("overview", (event) => show(JSON.parse(event.data)));
    source.addEventListener("trouble", (event) => say(JSON.parse(event.data).message));
    source.addEventListener("error", () => {
      say("The server does not answer: trying again.");
      // A browser gives up where the answer is no stream, as that of a login.
      if (source?.readyState === EventSource.CLOSED) { source = null; setTimeout(again, 5000); }
    });
  };
  document.addEventListener("visibilitychange", () => document.hidden ? stop() : start());
  start();
};
// The overview, live: the server's events fill what the page has.
(() => {
  const place = document.querySelector("#health");
  if (!place) return;
  const status = document.querySelector("#live");
  const at = (object, path) => path.split(".").reduce((found, name) => found?.[name], object);
  const put = (node, text) => { if (node.textContent !== text) node.textContent = text; };
  const fill = (within, object) => {
    const own = (node) => within !== document || !node.closest("#activity");
    for (const node of [...within.querySelectorAll("[data-live]")].filter(own)) {
      const value = at(object, node.dataset.live);
      if (value !== undefined && value !== null) put(node, grouped(value));
    }
    for (const node of [...within.querySelectorAll("[data-live-late]")].filter(own)) put(node, millis(at(object, node.dataset.liveLate)));
  };
  const moment = (text) => {
    const time = document.createElement("time");
    time.dateTime = text;
    time.title = text;
    time.textContent = "now";
    return time;
  };
  // The page that shows more of a trouble, as the server has it.
  const placeOf = ({ kind, task, queue }) => {
    const of = (path, name) => name === undefined ? null : path + encodeURIComponent(name);
    return { alert: "/settings", workers: "/workers", late: "/jobs?state=scheduled&late=1m", dead: "/dead", unreadable: "/dead",
      failing: of("/tasks/", task), paused: of("/queues/", queue) ?? of("/tasks/", task) }[kind] ?? null;
  };
  const troubles = (list) => {
    place.dataset.well = list.length ? "no" : "yes";
    put(document.querySelector("#health-title"), !list.length ? "All is well"
      : list.length === 1 ? "1 thing needs a look" : list.length + " things need a look");
    const old = [...document.querySelectorAll("#troubles li")].map((item) => item.textContent);
    if (JSON.stringify(old) === JSON.stringify(list.map((one) => one.text))) return;
    document.querySelector("#troubles").replaceChildren(...list.map((one) => {
      const item = document.createElement("li");
      item.dataset.kind = one.kind;
      const place = placeOf(one);
      if (!place) { item.textContent = one.text; return item; }
      const link = document.createElement("a");
      link.href = document.body.dataset.prefix + place;
      link.textContent = one.text;
      item.append(link);
      return item;
    }));
  };
  const bars = (minutes, of) => {
    const top = minutes.reduce((most, minute) => Math.max(most, minute[0], minute[1]), 1);
    return minutes.map((minute, i) => {
      const height = 24 * minute[of] / top;
      return height > 0 ? `M${2 * i} 24V${(24 - Math.max(1, height)).toFixed(1)}h1.6V24z` : "";
    }).join("");
  };
  const rows = new Map();
  for (const row of document.querySelectorAll("#activity tbody tr")) {
    rows.set(row.dataset.queue + " " + row.dataset.task, { row, minutes: JSON.parse(row.dataset.minutes || "[]") });
  }
  let minute = Math.floor(Date.parse(document.querySelector("[data-live-at] time")?.dateTime) / 60000);
  const activity = (tasks, now) => {
    const passed = Math.min(60, Math.max(0, now - minute));
    minute = now;
    for (const known of rows.values()) {
      for (let i = 0; i < passed && known.minutes.length; i++) { known.minutes.shift(); known.minutes.push([0, 0, 0]); }
    }
    for (const task of tasks) {
      const known = rows.get(task.queue + " " + task.task);
      if (!known) continue;
      if (!known.minutes.length) known.minutes = Array.from({ length: 60 }, () => [0, 0, 0]);
      known.minutes.splice(60 - task.minutes.length, task.minutes.length, ...task.minutes);
      fill(known.row, task);
      known.row.querySelectorAll(".spark path").forEach((path, of) => path.setAttribute("d", bars(known.minutes, of)));
    }
    const added = tasks.some((task) => !rows.has(task.queue + " " + task.task));
    document.querySelector("#more").hidden = !added;
  };
  const show = (overview) => {
    fill(document, overview);
    troubles(overview.troubles);
    document.querySelector("[data-live-at]").replaceChildren(moment(overview.at));
    for (const node of document.querySelectorAll("[data-live-time]")) {
      const time = at(overview, node.dataset.liveTime);
      if (!time) put(node, "–");
      else if (node.querySelector("time")?.dateTime !== time) node.replaceChildren(moment(time));
    }
    activity(overview.tasks, Math.floor(Date.parse(overview.at) / 60000));
    document.dispatchEvent(new Event("quell:times"));
  };
  follow((overview) => show(overview), (text) => put(status, text));
})();
