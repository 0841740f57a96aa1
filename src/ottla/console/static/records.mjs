// The records page: reads the stream of a scan or a tail, opens records, switches between their forms.
import { notify } from "./console.mjs";

const $ = (selector, root = document) => root.querySelector(selector);
const KEPT = 500; // rows of a tail
const text = $("#scan-text"), bar = $("#scan-bar"), stop = $("#scan-stop"), table = $("#scan-table"), body = $("#records");
const number = new Intl.NumberFormat("en");
let source = null, ended = false, rows = 0;

const start = $("#f-from"), at = $("[data-at]");
start.addEventListener("change", () => { at.hidden = !["offset", "time"].includes(start.value); if (!at.hidden) $("input", at).focus(); });

function open() {
  const url = $("#scan").dataset.stream;
  if (!url) return;
  source = new EventSource(url);
  stop.hidden = false;
  text.textContent = "Reading";
  source.addEventListener("rows", (event) => {
    const part = document.createElement("tbody");
    part.innerHTML = event.data;
    const added = [...part.children];
    rows += added.length;
    if (tailing) body.prepend(...added); else body.append(...added);
    while (tailing && body.children.length > KEPT) body.lastElementChild.remove();
    table.hidden = false;
  });
  source.addEventListener("progress", (event) => progress(JSON.parse(event.data)));
  source.addEventListener("end", (event) => { finish(); if (event.data) fail(event.data); });
  source.addEventListener("error", () => { if (!ended) { finish(); fail("The console does not answer. Read again when it does."); } });
}
const tailing = start.value === "tail";
function progress(state) {
  if (state.tail) {
    const rate = state.count / state.seconds;
    text.textContent = state.count === 0 ? "Waiting for new records"
      : state.count > state.shown ? `${number.format(Math.round(rate))} records/s: a sample of ${state.shown} of ${number.format(state.count)} is shown` : `${number.format(Math.round(rate))} records/s`;
    return;
  }
  bar.hidden = state.finished || state.total === 0;
  bar.value = state.total ? state.scanned / state.total : 1;
  const more = state.finished && state.matched >= state.limit && state.scanned < state.total;
  text.textContent = `${number.format(state.matched)} ${state.matched === 1 ? "record" : "records"}, ${number.format(state.scanned)} of ${number.format(state.total)} offsets read${more ? "; more may match" : ""}`;
  if (state.finished) { $("#scan-empty").hidden = state.matched > 0; }
}
function finish() { ended = true; source?.close(); stop.hidden = true; bar.hidden = true; }
function fail(message) { const box = $("#scan-problem"); box.textContent = message; box.hidden = false; }
stop.addEventListener("click", () => { finish(); text.textContent += ", stopped"; if (!rows) $("#scan-empty").hidden = false; });
window.addEventListener("pagehide", finish);

// Opening a record loads all of it below its row.
body.addEventListener("click", async (event) => {
  if (event.target.closest(".record") || getSelection().toString()) return;
  const row = event.target.closest("tr[data-record]");
  if (!row) return;
  const button = $(".opener", row);
  if (button.getAttribute("aria-expanded") === "true") { row.nextElementSibling.remove(); button.setAttribute("aria-expanded", "false"); return; }
  const query = new URLSearchParams(location.search);
  const answer = await fetch(`${row.dataset.record}?key=${query.get("key") || "auto"}&value=${query.get("value") || "auto"}`, { headers: { "HX-Request": "true" } }).catch(() => null);
  if (!answer) return notify("The console does not answer.");
  const opened = document.createElement("tr");
  opened.className = "opened";
  const cell = document.createElement("td");
  cell.colSpan = 6;
  cell.innerHTML = await answer.text();
  opened.append(cell);
  row.after(opened);
  window.htmx?.process(cell);
  button.setAttribute("aria-expanded", "true");
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-form]");
  if (!button) return;
  const forms = button.closest("[data-forms]");
  for (const other of forms.querySelectorAll("[data-form]")) other.setAttribute("aria-pressed", String(other === button));
  for (const shown of forms.querySelectorAll("[data-shows]")) shown.hidden = shown.dataset.shows !== button.dataset.form;
});
open();
