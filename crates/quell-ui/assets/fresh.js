// Lists, live: where the server's numbers changed, the page is asked for again and its lists are put in place of the old.
(() => {
  const regions = () => [...document.querySelectorAll("[data-fresh]")];
  if (!regions().length || document.querySelector("[data-refresh]")) return;
  const SOONEST = 3000, LATEST = 15000, REST = 3000;
  const status = document.createElement("p");
  status.className = "hint";
  status.id = "fresh";
  status.setAttribute("role", "status");
  document.querySelector("#notice").after(status);
  let shown = null, at = performance.now(), touched = -Infinity, asks = false;
  // Who reads, chooses or types in a list keeps it as it is.
  const rests = () => {
    const focus = document.activeElement, chosen = getSelection();
    return performance.now() - touched < REST || regions().some((region) => region.contains(focus)
      || (!chosen.isCollapsed && region.contains(chosen.anchorNode)) || region.querySelector("details[open]"));
  };
  for (const kind of ["pointermove", "pointerdown"]) {
    document.addEventListener(kind, (event) => {
      if (event.target instanceof Element && event.target.closest("[data-fresh]")) touched = performance.now();
    });
  }
  // What a list says, whatever a script did to it.
  const said = (region) => {
    const copy = region.cloneNode(true);
    for (const button of copy.querySelectorAll(".copy > button")) button.remove();
    for (const time of copy.querySelectorAll("time[datetime]")) time.textContent = time.dateTime;
    return copy.textContent.replace(/\s+/g, " ");
  };
  const put = (found) => {
    const fresh = regions().map((region) => [region, found.getElementById(region.id)]);
    // Another page came, such as that of a login.
    if (fresh.some(([, other]) => !other)) { location.reload(); return; }
    for (const [region, other] of fresh) {
      if (said(region) !== said(other)) region.replaceWith(document.adoptNode(other));
    }
    document.dispatchEvent(new Event("quell:times"));
    document.dispatchEvent(new Event("quell:rows"));
  };
  const ask = () => {
    asks = true;
    // A document that is read this way runs no script, and no text of it becomes HTML here.
    const request = new XMLHttpRequest();
    request.responseType = "document";
    request.timeout = 10000;
    request.addEventListener("loadend", () => {
      asks = false;
      at = performance.now();
      if (request.status === 200 && request.response && !rests()) put(request.response);
    });
    request.open("GET", location.href);
    request.setRequestHeader("accept", "text/html");
    request.send();
  };
  follow((overview) => {
    const { waiting, running, dead } = overview.now, { triggers, starts, succeeded, failed } = overview.hour;
    const numbers = JSON.stringify([waiting, running, dead, triggers, starts, succeeded, failed]);
    const since = performance.now() - at, changed = shown !== null && numbers !== shown;
    if (shown === null) shown = numbers;
    if (asks || rests() || !(since >= LATEST || (changed && since >= SOONEST))) return;
    shown = numbers;
    ask();
  }, (text) => { if (status.textContent !== text) status.textContent = text; });
})();
