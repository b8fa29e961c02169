// Quell's pages work without this: it adds keys, a theme, copying and fresh times. No value becomes HTML.
"use strict";
// How all scripts write numbers, and lengths in milliseconds.
const grouped = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");
const millis = (value) => value === null || value === undefined ? "–"
  : value < 1000 ? Math.round(value) + " ms" : value < 120000 ? (value / 1000).toFixed(1) + " s"
  : Math.floor(value / 60000) + " min";
(() => {
  const root = document.documentElement;
  const one = (selector, within) => (within || document).querySelector(selector);
  const all = (selector, within) => [...(within || document).querySelectorAll(selector)];
  root.classList.add("has-script");

  // The theme: the system's, until the button says another.
  const kept = { get: () => { try { return localStorage.getItem("quell-theme"); } catch { return null; } } };
  const dark = () => root.dataset.theme
    ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  if (["light", "dark"].includes(kept.get())) root.dataset.theme = kept.get();
  one("#theme")?.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("quell-theme", root.dataset.theme); } catch { /* It lasts for this page. */ }
    document.dispatchEvent(new Event("quell:theme"));
  });

  const say = (text) => {
    const line = document.createElement("p");
    line.className = "notice";
    line.textContent = text;
    one("#notice")?.replaceChildren(line);
  };

  // Copying: a button for each block that has something to copy.
  const copies = () => {
    for (const block of all("[data-copy]")) {
      if (block.parentElement.className === "copy") continue;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "quiet";
      button.textContent = "Copy";
      button.setAttribute("aria-label", "Copy " + (block.dataset.copy || "the text"));
      button.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(block.textContent);
          say("Copied.");
        } catch {
          getSelection().selectAllChildren(block);
          say("Selected: copy it with your keyboard.");
        }
      });
      const pair = document.createElement("div");
      pair.className = "copy";
      block.replaceWith(pair);
      pair.append(block, button);
    }
  };
  copies();
  document.addEventListener("quell:rows", copies);

  // On a phone the navigation is a row: its current entry is in sight.
  const side = one(".side");
  const current = side && one("[aria-current]", side);
  if (current) side.scrollLeft = current.offsetLeft - side.offsetLeft - 24;

  // A table that is wider than its box is scrolled by keyboard, too.
  const wide = () => {
    for (const box of all(".wide")) {
      const scrolls = box.scrollWidth > box.clientWidth;
      if (scrolls === box.hasAttribute("tabindex")) continue;
      const caption = one("caption", box)?.textContent || "Table";
      for (const [name, value] of [["tabindex", "0"], ["role", "region"], ["aria-label", caption]]) {
        if (scrolls) box.setAttribute(name, value);
        else box.removeAttribute(name);
      }
    }
  };
  wide();
  addEventListener("resize", wide);
  document.addEventListener("quell:rows", wide);

  // Relative times stay right while the page is open.
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const relative = (apart) => {
    const length = Math.abs(apart) / 1000;
    const unit = units.find(([seconds]) => length >= seconds);
    if (!unit) return "now";
    const text = Math.floor(length / unit[0]) + " " + unit[1];
    return apart <= 0 ? text + " ago" : "in " + text;
  };
  // How far the server's clock is ahead of this one, when the page was loaded.
  const ahead = (Number(document.body.dataset.now) || Date.now()) - Date.now();
  const refresh = () => {
    if (document.hidden) return;
    for (const time of all("time[datetime]")) {
      const at = Date.parse(time.dateTime);
      if (!Number.isNaN(at)) time.textContent = relative(at - Date.now() - ahead);
    }
  };
  setInterval(refresh, 15000);
  document.addEventListener("quell:times", refresh);
  document.addEventListener("visibilitychange", refresh);

  // What was refused is in sight, wherever its form is.
  const refused = one("main .error[role=alert]");
  refused?.scrollIntoView({ block: "center" });

  // A page with something in progress is loaded again, while it is looked at and no one uses its keys or forms.
  const progress = one("[data-refresh]");
  if (progress) {
    let pressed = -Infinity;
    document.addEventListener("keydown", () => { pressed = performance.now(); });
    setInterval(() => {
      const focus = document.activeElement;
      const busy = (focus && focus !== document.body && focus !== one("main")) || performance.now() - pressed < 10000;
      if (!document.hidden && !busy) location.reload();
    }, 1000 * Math.max(1, Number(progress.dataset.refresh) || 2));
  }

  // Keys.
  const help = one("#help");
  one("#keys")?.addEventListener("click", () => help?.showModal());
  // Single keys can be switched off: they are in the way of who speaks to the browser.
  const uses = one("#use-keys");
  try { if (uses && localStorage.getItem("quell-keys") === "off") uses.checked = false; } catch { /* They are on. */ }
  uses?.addEventListener("change", () => {
    try { localStorage.setItem("quell-keys", uses.checked ? "on" : "off"); } catch { /* It lasts for this page. */ }
  });
  const rows = () => all("main tbody tr").filter((row) => one("a", row));
  const move = (step) => {
    const list = rows();
    if (!list.length) return;
    const at = list.findIndex((row) => row.classList.contains("at"));
    const next = list[Math.min(list.length - 1, Math.max(0, at < 0 ? (step > 0 ? 0 : list.length - 1) : at + step))];
    list.forEach((row) => row.classList.toggle("at", row === next));
    one("a", next).focus();
  };
  let leads = false;
  document.addEventListener("keydown", (event) => {
    const typing = event.target instanceof Element
      && event.target.matches("input, textarea, select, [contenteditable]");
    if (uses && !uses.checked) return;
    if (typing || event.ctrlKey || event.metaKey || event.altKey || help?.open) return;
    const wasLed = leads;
    leads = false;
    if (wasLed) {
      const link = all("[data-nav]").find((entry) => entry.dataset.key === event.key);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    switch (event.key) {
      case "g": leads = true; break;
      case "/": event.preventDefault(); (one("#filter input") || one("#find"))?.focus(); break;
      case "j": move(1); break;
      case "k": move(-1); break;
      case "n": one("a[rel=next]")?.click(); break;
      case "?": help?.showModal(); break;
      default:
    }
  });
})();
