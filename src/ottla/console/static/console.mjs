// The parts of the frame that need a script: live regions, dialogs, notices, theme, keyboard, filters of tables.

const $ = (selector, root = document) => root.querySelector(selector);

// Live regions: one stream of server-sent events per page; an event's name is the id of the element it replaces.
// A hidden tab closes its stream, because browsers allow six connections per host.
const hooks = new Map();
/** Call `receive(data)` for events of this name instead of replacing an element. */
export function onLive(name, receive) { hooks.set(name, receive); if (source) subscribe(name); }

let source = null;
const subscribed = new Set();
function subscribe(name) {
  if (!source || subscribed.has(name)) return;
  subscribed.add(name);
  source.addEventListener(name, (event) => {
    const hook = hooks.get(name);
    if (hook) return hook(event.data);
    replace(document.getElementById(name), event.data);
  });
}
function replace(element, html) {
  if (!element || element.contains(document.activeElement) && document.activeElement.matches("input, select, textarea")) return;
  const focused = element.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  element.innerHTML = html;
  if (window.htmx) window.htmx.process(element);
  if (focused) element.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus();
  refilter();
}
function connect() {
  const url = document.body.dataset.live;
  if (!url || source || document.visibilityState !== "visible") return;
  source = new EventSource(url);
  subscribed.clear();
  for (const element of document.querySelectorAll("[id]")) if (!["dialog-body", "main", "notice"].includes(element.id)) subscribe(element.id);
  for (const name of hooks.keys()) subscribe(name);
  source.addEventListener("open", () => consoleAway(false));
  source.addEventListener("error", () => {
    consoleAway(true);
    // A refused stream (the console was restarted) is closed by the browser; try again as long as the page is open.
    if (source && source.readyState === EventSource.CLOSED) { disconnect(); setTimeout(connect, 3000); }
  });
}
function disconnect() { if (source) source.close(); source = null; }
document.addEventListener("visibilitychange", () => (document.visibilityState === "visible" ? connect() : disconnect()));
window.addEventListener("pagehide", disconnect);
window.addEventListener("pageshow", connect);
hooks.set("problem", (text) => {
  const banner = $("#problem");
  banner.textContent = text;
  banner.hidden = !text;
  if (!text && $("[data-retry]")) location.reload();
});
function consoleAway(away) {
  if (!away) { if ($("#problem").dataset.console) { delete $("#problem").dataset.console; $("#problem").hidden = true; } return; }
  $("#problem").dataset.console = "1";
  $("#problem").textContent = "The console does not answer. This page continues when it does.";
  $("#problem").hidden = false;
}

// Dialogs: a response that is put into #dialog-body opens the dialog.
const dialog = $("#dialog");
document.body.addEventListener("htmx:afterSwap", (event) => {
  if (event.detail.target.id === "dialog-body" && !dialog.open) dialog.showModal();
  if (dialog.open) (dialog.querySelector("[aria-invalid]") || dialog.querySelector("[autofocus]"))?.focus();
});
document.addEventListener("click", (event) => {
  if (event.target.closest("[data-close]")) event.target.closest("dialog").close();
  else if (event.target instanceof HTMLDialogElement) event.target.close();
});
dialog.addEventListener("close", () => { $("#dialog-body").textContent = ""; });
document.body.addEventListener("htmx:sendError", () => notify("The console does not answer."));
document.addEventListener("submit", (event) => {
  for (const button of event.target.querySelectorAll("button[type=submit]")) { button.disabled = true; setTimeout(() => { button.disabled = false; }, 4000); }
});

// Notices survive the page load that follows a change.
document.body.addEventListener("notice", (event) => { try { sessionStorage.setItem("ottla-notice", event.detail.value); } catch { /* disabled */ } });
/** Show a short message. */
export function notify(text) {
  const box = $("#notice");
  box.textContent = text;
  box.classList.add("shown");
  setTimeout(() => box.classList.remove("shown"), 4500);
}
try {
  const kept = sessionStorage.getItem("ottla-notice");
  if (kept) { sessionStorage.removeItem("ottla-notice"); notify(kept); }
} catch { /* disabled */ }

// Theme.
$("#theme")?.addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("ottla-theme", root.dataset.theme); } catch { /* disabled */ }
  document.dispatchEvent(new CustomEvent("theme"));
});

// Filters of tables that are on the page completely.
function refilter() { for (const input of document.querySelectorAll("[data-filter]")) applyFilter(input.dataset.filter); }
function applyFilter(table) {
  const words = ($(`[data-filter="${table}"]`)?.value || "").toLowerCase().split(/\s+/);
  const only = $(`[data-only="${table}"]`)?.checked;
  for (const row of document.querySelectorAll(`${table} tbody tr`))
    row.hidden = (only && !("set" in row.dataset)) || !words.every((word) => (row.dataset.text ?? row.textContent.toLowerCase()).includes(word));
}
document.addEventListener("input", (event) => {
  const table = event.target.dataset.filter || event.target.dataset.only;
  if (table) applyFilter(table);
});

document.addEventListener("change", (event) => { if ("submit" in event.target.dataset) event.target.form.requestSubmit(); });

// Keyboard.
let pending = "";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key === "Escape" && typing && !document.querySelector("dialog[open]")) return event.target.blur();
  if (typing || document.querySelector("dialog[open]")) return;
  if (pending === "g") {
    pending = "";
    const link = $(`nav [data-key="${CSS.escape(event.key)}"]`);
    if (link) { event.preventDefault(); link.click(); }
    return;
  }
  if (event.key === "g") { pending = "g"; setTimeout(() => { pending = ""; }, 1200); }
  else if (event.key === "/") { const field = $("main input[type=search], main input.filter"); if (field) { event.preventDefault(); field.focus(); field.select(); } }
  else if (event.key === "?") $("#shortcuts").showModal();
  else if (event.key === "j" || event.key === "k") move(event.key === "j" ? 1 : -1);
});
function move(step) {
  const links = [...document.querySelectorAll("main table.rows tbody tr:not([hidden])")].map((row) => row.querySelector("a, button")).filter(Boolean);
  if (!links.length) return;
  const at = links.findIndex((link) => link.closest("tr").contains(document.activeElement));
  links[Math.max(0, Math.min(links.length - 1, at + step))].focus();
}
$("#keys")?.addEventListener("click", () => $("#shortcuts").showModal());

connect();
