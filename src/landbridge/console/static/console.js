// The module of the console: renews the fragments of a page by its one stream, and sends forms by fetch. Pages
// and forms work without it, too.

const live = document.getElementById("live");
const notices = document.getElementById("notices");
const dialog = document.getElementById("dialog");

// -- the stream of the page ---------------------------------------------------------------------------------

const page = document.body.dataset.stream;
let source = null;

function say(state, text) {
  if (!live || live.dataset.state === state) return;
  live.dataset.state = state;
  live.textContent = text;
}

function connect() {
  if (!page || source) return;
  source = new EventSource("/console/stream?page=" + encodeURIComponent(page));
  source.onopen = () => say("on", "live");
  source.addEventListener("fragment", (event) => {
    const { name, html } = JSON.parse(event.data);
    renew(document.querySelector(`[data-fragment="${CSS.escape(name)}"]`), html);
  });
  source.addEventListener("over", signedOut);
  source.onerror = () => {
    say("off", "connecting…");
    // The browser tries again by itself after a lost connection, but not after a refusal.
    if (source && source.readyState === EventSource.CLOSED) {
      disconnect();
      setTimeout(() => document.hidden || connect(), 4000);
    }
  };
}

function disconnect() {
  if (source) source.close();
  source = null;
}

function signedOut() {
  disconnect();
  say("over", "signed out");
  tell("bad", "The session has ended. Run “landbridge console” for a new link.", true);
}

document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
window.addEventListener("pagehide", disconnect);

// Puts new HTML into a fragment, unless somebody works in it. What is open stays open, the focus stays.
function renew(fragment, html) {
  if (!fragment || isInUse(fragment)) return;
  const open = [...fragment.querySelectorAll("details[open][id]")].map((each) => each.id);
  const focus = fragment.contains(document.activeElement) && keyOf(document.activeElement, fragment);
  fragment.innerHTML = html;
  label(fragment);
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  if (focus) [...fragment.querySelectorAll(focus.what)][focus.index]?.focus({ preventScroll: true });
}

// On a narrow screen a row is shown as a block, in which each cell says what it is.
function label(root) {
  for (const table of root.querySelectorAll("table:has(thead)")) {
    const heads = [...table.querySelectorAll("thead th")].map((each) => (each.querySelector(".hidden") ? "" : each.textContent.trim()));
    for (const cell of table.querySelectorAll("tbody td")) if (heads[cell.cellIndex]) cell.dataset.label = heads[cell.cellIndex];
    table.dataset.labelled = "";
  }
}

function isInUse(fragment) {
  const active = document.activeElement;
  const selection = document.getSelection();
  const isSelected = selection && !selection.isCollapsed && fragment.contains(selection.anchorNode);
  return isSelected || (fragment.contains(active) && active.matches("input, textarea, select"));
}

function keyOf(element, fragment) {
  const what = element.tagName.toLowerCase();
  return { what, index: [...fragment.querySelectorAll(what)].indexOf(element) };
}

// -- forms --------------------------------------------------------------------------------------------------

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.matches("form[data-action]")) return;
  event.preventDefault();
  if (form.dataset.busy) return;
  form.dataset.busy = "1";
  try {
    const body = new URLSearchParams(new FormData(form, event.submitter));
    const action = event.submitter?.getAttribute("formaction") || form.action;
    const answer = await fetch(action, { method: "POST", body, headers: { "console-module": page ? "live" : "reloads" } });
    follow(form, await answer.json());
  } catch {
    tell("bad", "No answer from the terminal. Try again in a while.");
  } finally {
    delete form.dataset.busy;
  }
});

function follow(form, answer) {
  if (answer.outcome === "confirm" || answer.outcome === "shown") {
    dialog.innerHTML = answer.html;
    if (!dialog.open) dialog.showModal();
    if (answer.outcome === "shown") form.reset();
  } else if (answer.outcome === "refused") {
    const place = form.querySelector(".outcome");
    if (place) place.innerHTML = answer.html;
    else tell("bad", new DOMParser().parseFromString(answer.html, "text/html").body.textContent.trim());
  } else {
    dialog.close();
    // Told by the page that comes; another node of the terminal may serve it.
    if (answer.to || answer.reload) sessionStorage.setItem("notice", answer.text);
    if (answer.to) location.assign(answer.to);
    else if (answer.reload) location.reload();
    else tell("ok", answer.text);
    for (const place of document.querySelectorAll(".outcome")) place.replaceChildren();
  }
}

document.addEventListener("change", (event) => {
  const name = event.target.dataset?.all;
  if (!name) return;
  for (const each of event.target.form.querySelectorAll(`[name="${CSS.escape(name)}"]`)) each.checked = event.target.checked;
});

document.addEventListener("click", (event) => {
  const closes = event.target.closest("#dialog [data-close]");
  if (closes && closes.dataset.close !== "leave") {
    event.preventDefault();
    dialog.close();
  }
});

function tell(kind, text, stays = false) {
  const notice = document.createElement("p");
  notice.className = `notice ${kind}`;
  notice.textContent = text;
  notices.append(notice);
  while (notices.children.length > 4) notices.firstElementChild.remove();
  if (!stays) setTimeout(() => notice.remove(), 8000);
}

// -----------------------------------------------------------------------------------------------------------

const kept = sessionStorage.getItem("notice");
if (kept) {
  sessionStorage.removeItem("notice");
  tell("ok", kept);
}
label(document);
for (const notice of notices.querySelectorAll(":not(.secret)")) setTimeout(() => notice.remove(), 8000);
document.querySelector("form[data-at-once]")?.requestSubmit();
if (!document.hidden) connect();
