"use strict";

// The Services come as compact rows: [name, type, result, entries, endpoint sets], the most harmful first;
// an entry is [address, port, result, endpoint set or -1, differences], a difference [what, there, here, check],
// an endpoint set [endpoints that are shown, how many there are]. Types and results are places in their lists.

const data = JSON.parse(document.getElementById("data").textContent);
const PAGE = 100;
const PRINTED = 1000;
const at = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en-US");

function make(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// Filtering.

const wanted = { words: [], namespace: "", about: null, results: new Set(data.results.map((_, place) => place)) };
let matching = data.services;
let first = 0;
const texts = new Array(data.services.length);

function text(place) {
  if (texts[place] === undefined) {
    const [name, type, , entries, sets] = data.services[place];
    let joined = `${name}\n${data.types[type]}`;
    for (const [address, port, , , differences] of entries) joined += `\n${address}\n${port}\n${differences.join("\n")}`;
    for (const [endpoints] of sets) joined += "\n" + endpoints.join("\n");
    texts[place] = joined.toLowerCase();
  }
  return texts[place];
}

// In pieces between other work, so that the first search does not have to wait.
function collectTexts(from = 0) {
  const to = Math.min(from + 500, texts.length);
  for (let place = from; place < to; place++) text(place);
  if (to < texts.length) setTimeout(collectTexts, 0, to);
}

const namespaceOf = (service) => service[0].includes("/") ? service[0].split("/", 1)[0] : "";

function matches(service, place) {
  return wanted.results.has(service[2])
    && (!wanted.namespace || namespaceOf(service) === wanted.namespace)
    && (!wanted.about || wanted.about.has(place))
    && wanted.words.every((word) => text(place).includes(word));
}

function filter() {
  matching = data.services.filter(matches);
  first = 0;
  show();
}

// The table.

function show(most = PAGE) {
  const printed = most > PAGE;
  at("rows").replaceChildren(...matching.slice(first, first + most).map(row));
  if (printed) document.querySelectorAll("#rows tr:not(:has(.same)) .open").forEach((button) => button.click());
  const all = matching.length === data.services.length;
  at("matching").textContent = `${all ? "All" : number(matching.length) + " of"} ${number(data.services.length)} Services`;
  const last = Math.min(first + most, matching.length);
  at("page").textContent = matching.length ? `${number(first + 1)}–${number(last)} of ${number(matching.length)}` : "";
  at("pager").hidden = matching.length <= PAGE;
  at("previous").disabled = first === 0;
  at("next").disabled = last === matching.length;
  at("more").textContent = matching.length ? "" : "No Service matches.";
  if (last < matching.length && printed) at("more").textContent = `And ${number(matching.length - last)} more.`;
}

function row(service) {
  const [name, type, result, entries] = service;
  const button = make("button", { type: "button", className: "open" }, make("bdi", {}, name));
  button.setAttribute("aria-expanded", "false");
  const what = new Set(entries.flatMap((entry) => entry[4].map(([kind]) => data.labels[kind] ?? kind)));
  const line = make("tr", {},
    make("td", {}, button),
    make("td", {}, data.types[type]),
    make("td", { className: `compared ${data.results[result]}` }, data.resultWords[result]),
    make("td", { className: "compared" }, [...what].join(", ")),
    make("td", { className: "number" }, String(entries.length)));
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (open) line.nextElementSibling.remove();
    else line.after(make("tr", { className: "detail" }, make("td", { colSpan: 5 }, ...details(service))));
  });
  return line;
}

function details([, , , entries, sets]) {
  const shared = new Set(entries.map((entry) => entry[3])).size === 1;
  const shown = entries.map((one) => {
    const made = entry(one);
    if (!shared) made.append(reached(sets[one[3]]));
    return made;
  });
  if (shared) shown.push(make("div", { className: "entry" }, "Endpoints of all: ", reached(sets[entries[0][3]])));
  return shown;
}

function entry([address, port, result, , differences]) {
  const title = make("div", {}, make("span", { className: "address" }, address), port ? ` (${port}) ` : " ");
  if (!document.body.classList.contains("uncompared")) {
    title.append(make("span", { className: data.results[result] }, data.resultWords[result]));
  }
  const list = make("ul", {}, ...differences.map(difference));
  return make("div", { className: "entry" }, title, ...(differences.length ? [list] : []));
}

function difference([what, there, here, check]) {
  const line = make("li", {}, `${data.labels[what] ?? what}: now `, make("bdi", {}, there || "none"), ", then ",
    make("bdi", {}, here || "none"), " ");
  const finding = document.querySelector(`[data-check="${CSS.escape(check || data.stale)}"]`);
  const words = check || "stale or damaged rules";
  line.append(finding ? make("a", { href: `#${finding.id}` }, words) : make("span", { className: "soft" }, `(${words})`));
  return line;
}

function reached(set) {
  if (!set) return make("div", { className: "reached" }, "none");
  const [shown, count] = set;
  const more = count > shown.length ? ` and ${number(count - shown.length)} more` : "";
  return make("div", { className: "reached address" }, shown.join(", ") + more);
}

function turn(pages) {
  first += pages * PAGE;
  show();
  at("services").scrollIntoView();
}

// The controls.

function choice(type, name, value, label, checked) {
  const input = make("input", { type, name, value, checked });
  return make("label", {}, input, label);
}

function options(select, pairs) {
  select.append(...pairs.map(([value, text]) => make("option", { value }, text)));
}

function prepare() {
  const counts = data.results.map((_, place) => data.services.filter((service) => service[2] === place).length);
  at("results").append(...data.results.flatMap((_, place) => counts[place]
    ? [choice("checkbox", "result", String(place), `${data.resultWords[place]} (${number(counts[place])})`, true)] : []));
  const namespaces = [...new Set(data.services.map(namespaceOf))].filter(Boolean).sort();
  options(at("namespace"), namespaces.map((name) => [name, name]));
  const named = data.about.flatMap((places, finding) => places.length ? [finding] : []);
  const severityOf = (finding) => at(`finding-${finding}`).dataset.severity;
  options(at("finding"), [
    ...[...new Set(named.map(severityOf))].map((name) => [name, `all of severity ${name}`]),
    ...named.map((finding) => [finding, at(`finding-${finding}`).querySelector("h3").textContent]),
  ]);
  data.about.forEach((places, finding) => {
    const button = at(`finding-${finding}`).querySelector("button");
    button.hidden = !places.length;
    button.textContent = places.length === 1 ? "Show the Service" : `Show the ${number(places.length)} Services`;
  });
}

function read() {
  wanted.words = at("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  wanted.namespace = at("namespace").value;
  const chosen = at("finding").value;
  wanted.about = chosen && new Set(data.about.filter((_, finding) =>
    chosen === String(finding) || chosen === at(`finding-${finding}`).dataset.severity).flat());
  wanted.results = new Set([...at("results").querySelectorAll("input:checked")].map((input) => Number(input.value)));
  filter();
}

function clear() {
  at("search").value = at("namespace").value = at("finding").value = "";
  for (const input of at("results").querySelectorAll("input")) input.checked = true;
  read();
}

function showServicesOf(finding) {
  clear();
  at("finding").value = finding.id.slice("finding-".length);
  read();
  at("services").scrollIntoView();
  at("finding").focus({ preventScroll: true });
}

function showFindings() {
  const shown = new Set([...document.querySelectorAll("#severities input:checked")].map((input) => input.value));
  for (const finding of document.querySelectorAll(".finding")) finding.hidden = !shown.has(finding.dataset.severity);
}

function showPlatform() {
  const chosen = document.querySelector("#platforms input:checked")?.value;
  for (const commands of document.querySelectorAll("[data-platform]")) {
    commands.hidden = Boolean(chosen) && commands.dataset.platform !== chosen;
  }
}

async function copy(button) {
  const code = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch { // not allowed, or not there, as on a page that came over plain HTTP
    getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

document.documentElement.classList.add("js");
prepare();
show();
showPlatform();
setTimeout(collectTexts, 0);
at("filters").addEventListener("input", read);
at("clear").addEventListener("click", clear);
at("previous").addEventListener("click", () => turn(-1));
at("next").addEventListener("click", () => turn(1));
at("severities")?.addEventListener("change", showFindings);
at("platforms")?.addEventListener("change", showPlatform);
document.addEventListener("click", ({ target }) => {
  if (target.matches(".copy")) copy(target);
  else if (target.matches(".finding button")) showServicesOf(target.closest(".finding"));
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input[type=search], select");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    at("search").focus();
  }
});
addEventListener("beforeprint", () => show(PRINTED));
addEventListener("afterprint", () => show());
