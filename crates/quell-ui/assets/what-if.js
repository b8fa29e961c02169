// Thresholds that are dragged: the server simulates them, and the chart shows where they would be.
(() => {
  const place = document.querySelector("#try");
  if (!place) return;
  const LENGTHS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400];
  const sliders = [document.querySelector("#r-min"), document.querySelector("#r-max")];
  const text = (seconds) => seconds < 1 ? Math.round(seconds * 1000) + "ms" : seconds % 3600 === 0 ? seconds / 3600 + "h"
    : seconds % 60 === 0 ? seconds / 60 + "m" : seconds + "s";
  const seconds = (given) => [...given.matchAll(/([\d.]+)(ms|s|m|h|d)/g)]
    .reduce((sum, [, number, unit]) => sum + number * { ms: .001, s: 1, m: 60, h: 3600, d: 86400 }[unit], 0);
  for (const slider of sliders) { slider.max = String(LENGTHS.length - 1); }
  const nearest = (given) => LENGTHS.reduce((best, length, i) => Math.abs(Math.log(length / given)) < Math.abs(Math.log(LENGTHS[best] / given)) ? i : best, 0);
  sliders.forEach((slider, i) => { slider.value = String(nearest(seconds(document.querySelector(i ? "#f-max" : "#f-min").value) || 1)); });
  const write = (name, value) => {
    for (const node of document.querySelectorAll(`[data-of="${name}"]`)) {
      if (node.matches("input")) node.value = value; else node.textContent = value;
    }
  };
  const points = () => [...document.querySelectorAll("#pairs tbody tr")];
  let waits = null, asked = 0;
  const ask = async () => {
    const number = ++asked, [min, max] = sliders.map((slider) => text(LENGTHS[Number(slider.value)]));
    const answer = await fetch(place.dataset.url + "&" + new URLSearchParams({ min, max }), { headers: { accept: "application/json" } });
    if (answer.status === 401) { location.reload(); return; }
    if (!answer.ok || number !== asked) return;
    const found = await answer.json(), pair = found.pairs.find((one) => one.asked);
    write("min", pair.min);
    write("max", pair.max);
    write("runs", grouped(pair.runs));
    write("saved", (100 * pair.saved).toFixed(1) + " %");
    write("delay_p50_ms", millis(pair.delay_p50_ms));
    write("delay_p99_ms", millis(pair.delay_p99_ms));
    document.querySelector("#f-min").value = pair.min;
    document.querySelector("#f-max").value = pair.max;
    const dot = document.querySelector("#dragged"), scale = place.dataset.scale?.split(" ").map(Number);
    if (scale) {
      const x = 560 * Math.log(Math.max(pair.delay_p99_ms, scale[0]) / scale[0]) / Math.log(scale[1] / scale[0]);
      dot.setAttribute("cx", String(Math.min(590, x)));
      dot.setAttribute("cy", String(240 * (1 - pair.saved)));
    }
    const short = document.querySelector("#short"), apply = document.querySelector("[data-do=apply]");
    if (short) short.hidden = 2 * seconds(pair.max) <= Number(short.dataset.seen);
    if (apply) {
      apply.disabled = pair.current && apply.dataset.own === "true";
      document.querySelector("#same").hidden = !apply.disabled;
    }
    for (const row of points()) row.classList.toggle("changed", row.dataset.min === pair.min && row.dataset.max === pair.max);
  };
  sliders.forEach((slider, i) => slider.addEventListener("input", () => {
    // The longest delay is never shorter than the quiet period.
    const other = sliders[1 - i];
    if (i === 0 ? Number(other.value) < Number(slider.value) : Number(other.value) > Number(slider.value)) other.value = slider.value;
    clearTimeout(waits);
    waits = setTimeout(ask, 120);
  }));
})();
