"use strict";

// Asks the agent for a summary every few seconds, and for Services and what is left out page by page. What comes back is put
// into the page as text, never as markup.

const EVERY = 5000;
const TYPING = 150;
const HOUR = 3600;
const VERDICTS = { healthy: "Healthy", attention: "Healthy, but somebody should look", unhealthy: "Not healthy" };

const at = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en-US");
const many = (count, word, words = `${word}s`) => `${number(count)} ${count === 1 ? word : words}`;
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

function make(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function draw(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function span(seconds) {
  if (seconds < 1) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < HOUR) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 48 * HOUR) return `${Math.floor(seconds / HOUR)} h ${Math.floor(seconds % HOUR / 60)} min`;
  return `${Math.floor(seconds / 24 / HOUR)} days`;
}

const ago = (seconds) => seconds === null ? "never" : seconds < 1 ? "just now" : `${span(seconds)} ago`;

function milliseconds(value) {
  return value < 1 ? `${Math.round(value * 1000)} µs` : value < 1000 ? `${Number(value.toPrecision(3))} ms` : `${Number((value / 1000).toPrecision(3))} s`;
}

// What is asked for. An answer that is overtaken by a later question is given up.

async function ask(path, parameters, signal) {
  const answer = await fetch(`${path}?${new URLSearchParams(parameters)}`, { signal, cache: "no-store" });
  const data = await answer.json();
  if (!answer.ok) throw new Error(data.error ?? `${answer.status}`);
  return data;
}

function latest(action) {
  let before = null;
  return async (...values) => {
    before?.abort();
    const mine = before = new AbortController();
    try {
      return await action(mine.signal, ...values);
    } catch (error) {
      if (mine.signal.aborted) return undefined;
      throw error;
    }
  };
}

// The summary.

let seen = null;
let heard = 0;

async function poll() {
  try {
    const summary = await ask("status/summary", {});
    heard = Date.now();
    const news = !seen || JSON.stringify([seen.counts, seen.history.slots.at(-1), seen.rejected]) !== JSON.stringify([summary.counts, summary.history.slots.at(-1), summary.rejected]);
    seen = summary;
    show(summary);
    if (news) {
      if (!document.querySelector("#rows .detail")) search();
      await turnRejected(0);
    }
  } catch (error) {
    silent(error);
  }
}

async function follow() {
  if (!document.hidden) await poll();
  setTimeout(follow, EVERY);
}

function silent(error) {
  document.body.classList.add("silent");
  at("verdict").className = "verdict unhealthy";
  at("verdict-words").textContent = "The agent does not answer";
  const since = heard ? `What is shown is of ${clock(heard / 1000)}. ` : "";
  at("reasons").replaceChildren(make("li", {}, `${since}It is tried again every few seconds. (${error.message})`));
}

function show(summary) {
  document.body.classList.remove("starting", "silent");
  document.title = `${summary.node}: ${summary.health.verdict}`;
  at("version").textContent = summary.version;
  at("node").textContent = summary.node;
  at("verdict").className = `verdict ${summary.health.verdict}`;
  say("verdict-words", VERDICTS[summary.health.verdict]);
  at("reasons").replaceChildren(...summary.health.reasons.map((reason) => make("li", {}, reason)));
  at("nav-services").textContent = number(summary.counts.services);
  at("nav-left-out").textContent = number(summary.rejected + summary.refused);
  at("nav-repairs").textContent = number(summary.repairs.count);
  at("nav-deprecations").textContent = number(summary.deprecations.length);
  at("tiles").replaceChildren(...tiles(summary));
  plotChanges(summary);
  plotLatency(summary);
  showLeftOut(summary);
  showRepairs(summary);
  showDeprecations(summary);
  showSources(summary);
  showSettings(summary);
  at("foot").textContent = `As of ${clock(summary.now)}. kube-proxy-nft ${summary.version}, Python ${summary.python}.`;
}

// So that a screen reader speaks only of news.
function say(id, text) {
  if (at(id).textContent !== text) at(id).textContent = text;
}

function tile(title, value, note) {
  return make("div", {}, make("dt", {}, title), make("dd", {}, value, ...(note ? [make("small", {}, note)] : [])));
}

const PROTECTIONS = {
  "owned": ["owned", "others cannot change them"],
  "standby": ["standby", "a second table answers while what others do is undone"],
  "standby-missing": ["no standby yet", "what others do costs connections until it is undone"],
  "watched": ["watched", "what others do costs connections until it is undone"],
};

function* tiles({ health, counts, families, protection, repairs, rejected, refused, now, started }) {
  yield tile("Last sync", ago(health.synced_ago), health.waiting ? `${many(health.waiting, "event")} waiting` : "nothing waits");
  yield tile("Services", number(counts.services), many(counts.slices, "EndpointSlice"));
  yield tile("Endpoints", number(counts.endpoints));
  for (const { family, programmed, service_ports: ports, elements } of families) {
    yield tile(family, programmed ? number(ports) : "not programmed", programmed ? `service ports, ${many(elements, "element")}` : "");
  }
  if (PROTECTIONS[protection]) yield tile("Tables", ...PROTECTIONS[protection]);
  yield tile("Left out", number(rejected + refused));
  yield tile("Repairs", number(repairs.count));
  yield tile("Running for", span(now - started), health.failures ? many(health.failures, "failed transaction") : "");
}

// The plots: an hour from left to right, one bar a slot.

const LEFT = 1, RIGHT = 439, TOP = 18, BOTTOM = 108;
const FASTEST = 0.05; // ms: where the logarithmic scale of the latency begins

function frame(svg, top, label, about) {
  svg.replaceChildren(
    draw("line", { class: "axis", x1: LEFT, x2: RIGHT, y1: BOTTOM + .5, y2: BOTTOM + .5 }),
    draw("text", { x: LEFT, y: 12 }, top ? label : ""),
    draw("text", { x: LEFT, y: 125 }, "an hour ago"),
    draw("text", { x: RIGHT, y: 125, "text-anchor": "end" }, "now"));
  svg.setAttribute("aria-label", about);
}

// part: of the plot's height, from 0 to 1.
function bar(svg, { step }, now, from, part, name, title) {
  const x = RIGHT - (now - from) * (RIGHT - LEFT) / HOUR;
  const width = Math.max(step * (RIGHT - LEFT) / HOUR, 1.2);
  const height = Math.max(1.5, part * (BOTTOM - TOP));
  if (x < LEFT) return;
  const made = draw("rect", { class: name, x: x.toFixed(2), y: (BOTTOM - height).toFixed(2), width: width.toFixed(2), height: height.toFixed(2) });
  made.append(draw("title", {}, title));
  svg.append(made);
}

// A slot: [at, changes, commits, mean_ms, slowest_ms, full, repairs].

function plotChanges({ history, now }) {
  const svg = at("changes");
  const total = history.slots.reduce((sum, slot) => sum + slot[1], 0);
  const top = Math.max(1, ...history.slots.map((slot) => slot[1]));
  const repaired = history.slots.filter((slot) => slot[6]).length;
  at("changes-note").textContent = total ? `${number(total)} of service ports` : "none";
  frame(svg, total, `${number(top)} in ${history.step} s`, `${many(total, "change")} of service ports in the last hour`);
  for (const [from, changes, commits, , , full, repairs] of history.slots) {
    if (changes) bar(svg, history, now, from, changes / top, "bar", `${clock(from)}: ${many(changes, "change")}, ${many(commits, "commit")}`);
    if (full) bar(svg, history, now, from, 1, "full", `${clock(from)}: everything was programmed`);
    if (repairs) mark(svg, now, from, `${clock(from)}: ${many(repairs, "repair")}`);
  }
  if (repaired) svg.setAttribute("aria-label", `${svg.getAttribute("aria-label")}; repairs in ${many(repaired, "slot")}`);
}

function mark(svg, now, from, title) {
  const x = Math.min(RIGHT - 4, RIGHT - (now - from) * (RIGHT - LEFT) / HOUR);
  const made = draw("path", { class: "mark", d: `M${(x - 4).toFixed(1)} 2 h8 l-4 8 z` });
  made.append(draw("title", {}, title));
  svg.append(made);
}

function plotLatency({ history, now }) {
  const svg = at("latency");
  const slots = history.slots.filter((slot) => slot[2]);
  const usual = slots.filter((slot) => !slot[5]); // to program everything takes its time
  const commits = usual.reduce((sum, slot) => sum + slot[2], 0);
  const mean = commits ? usual.reduce((sum, slot) => sum + slot[2] * slot[3], 0) / commits : 0;
  const top = 10 ** Math.ceil(Math.log10(Math.max(1, ...slots.map((slot) => slot[4]))));
  const part = (value) => Math.min(1, Math.max(0, Math.log(value / FASTEST) / Math.log(top / FASTEST)));
  at("latency-note").textContent = commits ? `${milliseconds(mean)} on average of ${many(commits, "commit")}; pale: the slowest` : "no commit";
  frame(svg, false, "", commits ? `from a change to the kernel ${milliseconds(mean)} on average in the last hour` : "no commit in the last hour");
  for (let value = top; slots.length && value >= 0.1; value /= 10) {
    const y = (BOTTOM - part(value) * (BOTTOM - TOP)).toFixed(1);
    svg.append(draw("line", { class: "axis", x1: LEFT, x2: RIGHT, y1: y, y2: y }));
  }
  for (const [from, , count, average, slowest] of slots) {
    bar(svg, history, now, from, part(slowest), "pale", `${clock(from)}: the slowest within ${milliseconds(slowest)}`);
    bar(svg, history, now, from, part(average), "bar", `${clock(from)}: ${milliseconds(average)} on average of ${many(count, "commit")}`);
  }
  for (const value of slots.length ? new Set([1, top]) : []) {
    svg.append(draw("text", { x: LEFT, y: (BOTTOM - part(value) * (BOTTOM - TOP) - 3).toFixed(1) }, milliseconds(value)));
  }
}

// The Services.

let page = 1;

const search = latest(async (signal) => {
  const asked = { q: at("search").value, show: at("show").value, page };
  try {
    const found = await ask("status/services", asked, signal);
    page = found.page;
    at("rows").replaceChildren(...found.rows.map(row));
    say("matching", found.total === found.of ? `All ${many(found.of, "Service")}` : `${number(found.total)} of ${many(found.of, "Service")}`);
    turn("", found);
  } catch (error) {
    if (signal.aborted) throw error;
    at("rows").replaceChildren();
    at("pager").hidden = true;
    say("matching", error.message);
  }
});

function turn(prefix, { page: current, pages }) {
  at(`${prefix}pager`).hidden = pages < 2;
  at(`${prefix}page`).textContent = `Page ${number(current)} of ${number(pages)}`;
  at(`${prefix}previous`).disabled = current <= 1;
  at(`${prefix}next`).disabled = current >= pages;
}

function row(service) {
  const button = make("button", { type: "button", className: "open" }, make("bdi", {}, `${service.namespace}/${service.name}`));
  button.setAttribute("aria-expanded", "false");
  const addresses = service.addresses.map((address) => make("div", { className: "address" }, address));
  if (service.more) addresses.push(make("div", { className: "soft" }, `and ${number(service.more)} more`));
  const [fewest, most] = service.endpoints;
  const line = make("tr", {},
    make("td", {}, button),
    make("td", {}, ...addresses),
    make("td", {}, ...service.policy.map((policy) => make("div", {}, policy)), ...service.troubles.map((trouble) => make("div", { className: "trouble" }, trouble))),
    make("td", { className: fewest ? "number" : "number none" }, fewest === most ? number(most) : `${number(fewest)}–${number(most)}`));
  button.addEventListener("click", () => toggle(button, line, service));
  return line;
}

async function toggle(button, line, service) {
  const open = button.getAttribute("aria-expanded") === "true";
  button.setAttribute("aria-expanded", String(!open));
  if (open) {
    line.nextElementSibling.remove();
    return;
  }
  const cell = make("td", { colSpan: 4 }, "…");
  line.after(make("tr", { className: "detail" }, cell));
  try {
    const found = await ask("status/service", { namespace: service.namespace, name: service.name });
    cell.replaceChildren(...found.ways.map(way));
    if (found.created) cell.append(make("p", { className: "soft" }, `Created ${found.created}.`));
    if (!found.ways.length) cell.append("It has no ports.");
  } catch (error) {
    cell.textContent = error.message;
  }
}

function way(one) {
  const title = make("div", {}, make("span", { className: "address" }, one.addresses.join(", ")),
    one.port ? " (" : " ", ...(one.port ? [make("bdi", {}, one.port), ") "] : []), make("strong", {}, one.outcome));
  const troubles = one.troubles.map((trouble) => make("div", { className: "trouble" }, trouble));
  const endpoints = one.endpoints.map((endpoint) => make("li", { className: endpoint.used },
    make("span", { className: "address" }, endpoint.endpoint), make("bdi", {}, endpoint.node), make("span", {}, endpoint.used === "inside" ? `for pods and the node only: ${endpoint.why}` : endpoint.why)));
  const list = make("ul", {}, ...endpoints);
  if (one.total > endpoints.length) list.append(make("li", { className: "no" }, `and ${number(one.total - endpoints.length)} more`));
  if (endpoints.length > 8) list.tabIndex = 0; // it scrolls, also for a keyboard
  return make("div", { className: "way" }, title, ...troubles, list);
}

// The rest.

let rejectedPage = 1;

const turnRejected = latest(async (signal, pages) => {
  const found = seen?.rejected || pages ? await ask("status/rejected", { page: rejectedPage + pages }, signal) : { rows: [], page: 1, pages: 1 };
  rejectedPage = found.page;
  at("rejected-table").hidden = !found.rows.length;
  at("rejected-rows").replaceChildren(...found.rows.map(({ kind, namespace, name, reason }) => make("tr", {},
    make("td", {}, `${kind} `, make("bdi", {}, namespace ? `${namespace}/${name}` : name)), make("td", {}, reason))));
  turn("rejected-", found);
});

function showLeftOut({ rejected, refused, refused_ports: ports }) {
  const words = [rejected ? `${many(rejected, "object or claim of an address", "objects or claims of addresses")} left out; each is read again when it changes.` : "Every object could be used."];
  if (refused) words.push(`The kernel does not take ${many(refused, "service port")}; they are tried again now and then.`);
  at("rejected-note").textContent = words.join(" ");
  const more = refused - ports.length;
  at("refused").replaceChildren(...ports.map((port) => make("li", {}, make("bdi", {}, port.service_port), ` at ${port.address}: ${port.error}`)),
    ...(more > 0 ? [make("li", {}, `and ${number(more)} more: see the log`)] : []));
}

function showRepairs({ repairs }) {
  const { count, recent, looks } = repairs;
  const words = [count ? `Others changed our tables and it was undone ${count === 1 ? "once" : `${number(count)} times`} since the start; the log says who it was (tables_mended).` : "Nobody changed our tables."];
  if (recent.length) words.push(`Within the last hour at ${recent.slice(-10).map(clock).join(", ")}.`);
  if (looks !== null) words.push(`All that is in the kernel was compared with what should be there ${looks === 1 ? "once" : `${number(looks)} times`}.`);
  at("repairs-words").textContent = words.join(" ");
}

function showDeprecations({ deprecations }) {
  at("deprecation-list").replaceChildren(...deprecations.map(({ check, severity, title, remedy, kep, breaks_in: version }) =>
    make("article", { className: "finding" },
      make("span", { className: `tag ${severity}` }, severity),
      make("h3", {}, title),
      ...(remedy ? [make("p", {}, remedy)] : []),
      make("p", { className: "soft" }, [check, kep, version && `breaks in ${version}`].filter(Boolean).join(", ")))),
    ...(deprecations.length ? [] : [make("p", {}, "Nothing about kube-proxy's modes on this node is deprecated.")]));
}

function showSources({ source, watches }) {
  at("source").textContent = source ? `Objects come from ${source}.` : "";
  at("watch-table").hidden = !watches.length;
  at("watches").replaceChildren(...watches.map((watch) => make("tr", {},
    make("td", {}, watch.kind + (watch.left_out ? ` (${number(watch.left_out)} cannot be read)` : "")),
    make("td", {}, ago(watch.heard_ago)),
    make("td", {}, { streaming: "a stream", list: "a list" }[watch.mode] ?? "not yet"),
    make("td", { className: "number" }, number(watch.failures)),
    make("td", { className: "number" }, number(watch.relists)))));
}

const pairs = (names, settings) => names.flatMap((name) => [make("dt", {}, make("code", {}, name)), make("dd", {}, make("code", {}, settings[name] || "–"))]);

function showSettings({ settings, changed }) {
  at("changed-note").textContent = changed.length ? "What is not the default:" : "Everything is the default.";
  at("changed").replaceChildren(...pairs(changed, settings));
  at("settings").replaceChildren(...pairs(Object.keys(settings), settings));
}

// The controls.

let typing = 0;

function type() {
  clearTimeout(typing);
  page = 1;
  typing = setTimeout(search, TYPING);
}

function go(pages) {
  page += pages;
  search();
  at("services").scrollIntoView();
}

at("filters").addEventListener("input", type);
at("filters").addEventListener("submit", (event) => { event.preventDefault(); type(); });
at("previous").addEventListener("click", () => go(-1));
at("next").addEventListener("click", () => go(1));
at("rejected-previous").addEventListener("click", () => turnRejected(-1).catch(silent));
at("rejected-next").addEventListener("click", () => turnRejected(1).catch(silent));
document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
document.addEventListener("keydown", (event) => {
  const inField = event.target.matches("input, select");
  if (event.key === "/" && !inField && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    at("search").focus();
  }
});
follow();
