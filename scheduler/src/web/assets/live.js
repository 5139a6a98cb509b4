// Updates a page, asks for confirmation of changes, and highlights an agent's sites. Pages work
// without this script.
"use strict";
(() => {
  const live = document.getElementById("live");
  const lost = document.getElementById("lost");

  // Identifies an element by its link or label, so that an update can keep the focus on it.
  const focusKey = (element) => element && live.contains(element) && (element.getAttribute("href") || element.getAttribute("aria-label"));
  const replace = (html) => {
    const key = focusKey(document.activeElement);
    const open = live.querySelector(".map.some");
    if (open || (window.getSelection() && String(window.getSelection()) && live.contains(window.getSelection().anchorNode))) return;
    live.innerHTML = html;
    if (key) for (const element of live.querySelectorAll("[href], [aria-label]")) {
      if (focusKey(element) === key) { element.focus({ preventScroll: true }); break; }
    }
    const updated = document.getElementById("updated");
    if (updated) updated.textContent = "updated " + new Date().toISOString();
    enliven();
  };

  // Highlights the marks of an agent's sites while the pointer or the focus is on the agent.
  const enliven = () => {
    for (const map of live ? live.querySelectorAll("svg.map") : []) {
      const light = (event) => {
        const agent = event.target.closest("a[data-agent]");
        map.classList.toggle("some", Boolean(agent));
        for (const site of map.querySelectorAll(".site")) {
          site.classList.toggle("lit", Boolean(agent) && site.dataset.agent === agent.dataset.agent);
        }
      };
      map.addEventListener("pointerover", light);
      map.addEventListener("pointerleave", light);
      map.addEventListener("focusin", light);
      map.addEventListener("focusout", light);
    }
    const epochs = document.querySelector("form[data-epochs]");
    if (epochs) {
      const all = epochs.dataset.epochs.split(" ");
      const slider = epochs.querySelector("input[type=range]");
      const view = epochs.querySelector("input[name=view]");
      slider.addEventListener("input", () => { epochs.querySelector("output").textContent = all[slider.value]; });
      slider.addEventListener("change", () => {
        location.assign("/map?epoch=" + all[slider.value] + (view ? "&view=globe" : ""));
      });
    }
  };

  if (live) {
    enliven();
    const follow = () => {
      const source = new EventSource("/live?page=" + encodeURIComponent(live.dataset.page));
      source.addEventListener("open", () => { lost.hidden = true; });
      source.addEventListener("page", (event) => { lost.hidden = true; replace(event.data); });
      source.addEventListener("gone", () => { source.close(); location.reload(); });
      source.addEventListener("lost", () => { lost.hidden = false; });
      source.addEventListener("error", () => {
        lost.hidden = false;
        // After a refused connection the browser gives up, but the scheduler may still be starting.
        if (source.readyState === EventSource.CLOSED) setTimeout(follow, 3000);
      });
      addEventListener("pagehide", () => source.close(), { once: true });
    };
    follow();
  }

  for (const form of document.querySelectorAll("form[data-confirm]")) {
    form.addEventListener("submit", (event) => { if (!confirm(form.dataset.confirm)) event.preventDefault(); });
  }
})();
