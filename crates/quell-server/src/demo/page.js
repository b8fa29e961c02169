// Draws what the server says: per key a line of the last seconds.
"use strict";
const PAST = 30;
const lanes = new Map();
let offset = 0;
const now = () => performance.now() / 1000 + offset;

function laneOf(key) {
  let lane = lanes.get(key);
  if (!lane) {
    const row = document.createElement("div");
    row.className = "lane";
    const parts = ["name", "count"].map((name) => {
      const part = document.createElement("span");
      part.className = name;
      row.append(part);
      return part;
    });
    const canvas = document.createElement("canvas");
    // The numbers beside it say the same in words.
    canvas.setAttribute("aria-hidden", "true");
    row.append(canvas);
    parts[0].textContent = key;
    document.getElementById("lanes").append(row);
    lane = { count: parts[1], canvas, triggers: [], runs: [], opened: null, came: 0, ran: 0 };
    lanes.set(key, lane);
  }
  return lane;
}

new EventSource("/events").onmessage = (message) => {
  const mark = JSON.parse(message.data);
  if (mark.kind === "now") {
    offset = mark.at - performance.now() / 1000;
    return;
  }
  const lane = laneOf(mark.key);
  if (mark.kind === "trigger") {
    lane.triggers.push(mark.at);
    lane.opened ??= mark.at;
    lane.came += 1;
  } else {
    lane.runs.push([mark.opened, mark.at]);
    lane.opened = null;
    lane.ran += 1;
  }
};

function drawLane(lane, style) {
  const { canvas } = lane;
  const scale = window.devicePixelRatio || 1;
  canvas.width = canvas.clientWidth * scale;
  canvas.height = 40 * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const width = canvas.clientWidth - 8;
  const x = (at) => 4 + width * (1 - (now() - at) / PAST);
  const recent = (at) => at > now() - PAST;
  lane.triggers = lane.triggers.filter(recent);
  lane.runs = lane.runs.filter((run) => recent(run[1]));
  pen.strokeStyle = style.getPropertyValue("--tick");
  pen.beginPath();
  for (const at of lane.triggers) {
    pen.moveTo(x(at), 4);
    pen.lineTo(x(at), 16);
  }
  pen.stroke();
  pen.fillStyle = style.getPropertyValue("--bar");
  const open = lane.opened === null ? [] : [[lane.opened, now()]];
  for (const [opened, ran] of [...lane.runs, ...open]) {
    const from = Math.max(x(opened), 4);
    pen.fillRect(from, 27, Math.max(x(ran) - from, 1), 4);
  }
  for (const run of lane.runs) {
    pen.beginPath();
    pen.arc(x(run[1]), 29, 5, 0, 7);
    pen.fill();
  }
  lane.count.textContent = `${lane.came} → ${lane.ran}`;
}

function draw() {
  const style = getComputedStyle(document.documentElement);
  let came = 0;
  let ran = 0;
  for (const lane of lanes.values()) {
    drawLane(lane, style);
    came += lane.came;
    ran += lane.ran;
  }
  if (came > 0) {
    const saved = Math.round(100 * (1 - ran / came));
    document.getElementById("totals").textContent =
      `${came} triggers, ${ran} runs: ${saved} % saved`;
  }
  requestAnimationFrame(draw);
}
draw();
