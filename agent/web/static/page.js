"use strict";
// Keeps the shown view current: a message on the stream says that it has changed, then this page is fetched again and its
// main part replaced. Works without: the page is complete as it was sent.
(() => {
  const body = document.body;
  const connection = document.getElementById("connection");
  let version = body.dataset.version;
  let fetching = false;
  let missed = false; // whether a message came while the page was being fetched, which may have been rendered before it
  let stream = null;

  const say = (text) => {
    if (connection.textContent !== text) connection.textContent = text;
  };

  const sayWhetherLive = () => {
    if (stream.readyState !== EventSource.OPEN) return;
    say(document.querySelector("main > .problem") ? "Not current" : "Live");
  };

  const inside = (element, root) => {
    const path = [];
    for (; element && element !== root; element = element.parentElement) {
      path.unshift(Array.prototype.indexOf.call(element.parentElement.children, element));
    }
    return path;
  };

  const at = (path, root) => path.reduce((element, index) => element && element.children[index], root);

  const replace = (text) => {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const old = document.getElementById("main");
    const main = fresh.getElementById("main");
    if (!main) return;
    const focused = old.contains(document.activeElement) && document.activeElement !== old;
    const path = focused ? inside(document.activeElement, old) : [];
    const typed = focused && document.activeElement.tagName === "INPUT" ? document.activeElement.value : null;
    const open = new Set(Array.from(old.querySelectorAll("details[open]"), (each) => each.dataset.key));
    const scrolled = Array.from(old.querySelectorAll(".scroll"), (each) => each.scrollLeft);
    old.replaceWith(document.adoptNode(main));
    main.querySelectorAll(".scroll").forEach((each, index) => { each.scrollLeft = scrolled[index] || 0; });
    for (const each of main.querySelectorAll("details")) each.open = open.has(each.dataset.key);
    if (focused) {
      const again = at(path, main);
      if (again && again.focus) {
        again.focus({ preventScroll: true });
        if (typed !== null && again.tagName === "INPUT") again.value = typed;
      }
    }
    version = fresh.body.dataset.version;
    ages();
    sayWhetherLive();
  };

  const refresh = async () => {
    missed = fetching;
    if (fetching) return;
    fetching = true;
    try {
      const response = await fetch(window.location.href, { credentials: "same-origin" });
      if (response.ok) replace(await response.text());
    } catch (error) {
      say("The server doesn't answer");
      missed = false;
    } finally {
      fetching = false;
    }
    if (missed) refresh();
  };

  const ageText = (seconds) => {
    for (const [least, size, unit] of [[172800, 86400, "days"], [7200, 3600, "h"], [120, 60, "min"]]) {
      if (seconds >= least) return `${Math.floor(seconds / size)} ${unit}`;
    }
    return `${seconds} s`;
  };

  const ages = () => {
    for (const each of document.querySelectorAll("[data-since]")) {
      const seconds = Math.max(0, Math.round((Date.now() - Date.parse(each.dataset.since)) / 1000));
      if (Number.isNaN(seconds)) continue;
      const text = ageText(seconds);
      if (each.textContent !== text) each.textContent = text;
    }
    for (const each of document.querySelectorAll("[data-seconds]")) {
      if (!each.dataset.since) each.dataset.since = new Date(Date.now() - 1000 * each.dataset.seconds).toISOString();
    }
  };

  const toTheEnd = () => { for (const each of document.querySelectorAll(".scroll.time")) each.scrollLeft = each.scrollWidth; };

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    const label = button.textContent;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    } catch (error) {
      const range = document.createRange();
      range.selectNodeContents(button.previousElementSibling);
      window.getSelection().removeAllRanges();
      window.getSelection().addRange(range);
      button.textContent = "Selected";
    }
    window.setTimeout(() => { button.textContent = label; }, 2000);
  });

  document.addEventListener("keydown", (event) => {
    const field = document.querySelector(".filter input");
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || !field || event.target.closest("input")) return;
    event.preventDefault();
    field.focus();
  });

  ages();
  toTheEnd();
  window.setInterval(ages, 1000);
  if (!body.dataset.live || !window.EventSource) return;
  const parameters = new URLSearchParams(window.location.search);
  parameters.set("view", body.dataset.live);
  stream = new EventSource(`${body.dataset.base}/events?${parameters}`);
  stream.onopen = sayWhetherLive;
  stream.onerror = () => say("Not live: connecting again");
  stream.onmessage = (event) => {
    if (event.data !== version) refresh();
  };
})();
