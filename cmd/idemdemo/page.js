// Shows what the server sends at /events, twice a second. Whatever clients chose, keys and orders, is
// only ever set as text.
"use strict";

const $ = id => document.getElementById(id);
const svgNS = "http://www.w3.org/2000/svg";
const number = new Intl.NumberFormat("en");
const money = new Intl.NumberFormat("en", { minimumFractionDigits: 2 });
const outcomes = [...document.querySelectorAll("#outcomes tbody tr")];
const names = outcomes.map(row => row.cells[0].textContent);

const bytes = n => n < 1024 ? n + " B" : n < 1 << 20 ? (n / 1024).toFixed(1) + " KiB" : (n / (1 << 20)).toFixed(1) + " MiB";
const seconds = ms => (ms / 1000).toFixed(1) + " s";

// --- the chart: a column of rects per second, made once, and moved with each event

const plot = { left: 46, right: 0, top: 12, bottom: 0 }; // in CSS pixels; the rest is the window's affair
const columns = [];
const grid = [];
const times = [];

function svg(tag, attributes, parent) {
  return set(parent.appendChild(document.createElementNS(svgNS, tag)), attributes);
}

function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function prepareChart() {
  const chart = $("chart");
  for (let i = 0; i < 3; i++) grid.push({ line: svg("line", {}, chart), text: svg("text", { "text-anchor": "end" }, chart) });
  for (let i = 0; i < 60; i++) {
    const column = svg("g", {}, chart);
    columns.push({ title: svg("title", {}, column), rects: names.map((_, o) => svg("rect", { "data-o": o }, column)) });
  }
  for (const [anchor, text] of [["start", "60 s ago"], ["middle", "30 s"], ["end", "now"]]) {
    times.push(svg("text", { "text-anchor": anchor }, chart));
    times.at(-1).textContent = text;
  }
}

// The scale's end is even, so that the line in the middle is at a whole number too.
function niceTop(peak) {
  for (let power = 1; ; power *= 10) {
    for (const digit of [2, 4, 6, 10, 16]) if (peak <= digit * power) return digit * power;
  }
}

function drawChart(minute) {
  const { width, height } = $("chart").getBoundingClientRect();
  plot.right = width;
  plot.bottom = height - 28;
  const step = (plot.right - plot.left) / 60;
  const sum = column => column.reduce((a, b) => a + b, 0);
  const top = niceTop(Math.max(...minute.map(sum)));
  grid.forEach(({ line, text }, i) => {
    const y = plot.bottom - (plot.bottom - plot.top) * i / 2;
    set(line, { x1: plot.left, x2: plot.right, y1: y, y2: y });
    set(text, { x: plot.left - 8, y: y + 4 }).textContent = number.format(top * i / 2);
  });
  times.forEach((text, i) => set(text, { x: plot.left + (plot.right - plot.left) * i / 2, y: plot.bottom + 20 }));
  minute.forEach((column, i) => {
    let y = plot.bottom;
    column.forEach((n, o) => {
      const rise = (plot.bottom - plot.top) * n / top;
      y -= rise;
      set(columns[i].rects[o], { x: plot.left + i * step, width: Math.max(1, step - 1.5), y, height: rise });
    });
    const parts = column.map((n, o) => n && `${number.format(n)} ${names[o]}`).filter(Boolean);
    columns[i].title.textContent = `${59 - i} s ago: ${parts.join(", ") || "no requests"}`;
  });
}

// --- the tables

// cell adds a cell; the first of a row is its header.
function cell(row, text, className) {
  const node = document.createElement(row.cells.length ? "td" : "th");
  if (!row.cells.length) node.scope = "row";
  if (className) node.className = className;
  node.textContent = text;
  return row.appendChild(node);
}

function bar(parent, part) {
  const outer = parent.appendChild(document.createElement("div"));
  outer.className = "bar";
  outer.appendChild(document.createElement("i")).style.width = 100 * Math.min(1, Math.max(0, part)) + "%";
}

function fill(id, items, draw) {
  const body = document.createElement("tbody");
  for (const item of items) draw(body.insertRow(), item);
  $(id).tBodies[0].replaceWith(body);
}

function drawKeys(running, count) {
  fill("keys", running, (row, k) => {
    cell(row, k.key);
    cell(row, seconds(k.ageMs), "n");
    bar(cell(row, seconds(k.leaseMs), "n lease"), k.leaseMs / k.fullMs);
  });
  const more = count - running.length;
  $("keys-note").textContent = more > 0 ? `and ${number.format(more)} more` : count ? "" : "None. A slow payment shows one.";
}

function drawLedger(charges) {
  fill("ledger", charges, (row, c) => {
    cell(row, number.format(c.id), "n");
    cell(row, c.kind === "payment" ? c.order : `${c.order} (${c.kind})`);
    cell(row, money.format(c.cents / 100), "n");
    cell(row, new Date(c.at).toLocaleTimeString("en-GB"), "n");
  });
  $("ledger-note").textContent = charges.length ? "" : "Nothing was charged yet.";
}

function drawShards(shards) {
  const most = Math.max(1, ...shards.map(s => s.records));
  fill("shards", shards.map((s, i) => [i, s]), (row, [i, s]) => {
    cell(row, i);
    bar(cell(row, "", "share"), s.records / most);
    cell(row, number.format(s.records), "n");
    cell(row, bytes(s.bytes), "n");
  });
}

function draw(s) {
  drawChart(s.minute);
  outcomes.forEach((row, o) => {
    row.cells[1].textContent = number.format(s.minute.reduce((sum, column) => sum + column[o], 0));
    row.cells[2].textContent = number.format(s.total[o]);
  });
  $("charges").textContent = number.format(s.charges);
  $("saved").textContent = number.format(s.saved);
  $("running").textContent = number.format(s.inProgress);
  $("waiting").textContent = number.format(s.waiting);
  $("records").textContent = number.format(s.records);
  $("bytes").textContent = bytes(s.bytes);
  drawKeys(s.running, s.inProgress);
  drawLedger(s.ledger);
  drawShards(s.shards);
}

// --- payments from the page

let last = null; // what "again" repeats

async function pay(action) {
  if (action === "new" || action === "slow" || !last) {
    last = { key: crypto.randomUUID(), order: "web-" + Math.random().toString(36).slice(2, 7), cents: 4200, query: action === "slow" ? "?take=20s" : "" };
  }
  const cents = action === "other" ? last.cents + 100 : last.cents;
  const headers = { "Content-Type": "application/json" };
  if (action !== "none") headers["Idempotency-Key"] = last.key;
  const answer = $("answer");
  const shown = `key ${action === "none" ? "none" : last.key}, order ${last.order}, ${(cents / 100).toFixed(2)}`;
  answer.textContent = shown + "\nsent, waiting for the answer";
  try {
    const resp = await fetch("payments" + last.query, { method: "POST", headers, body: JSON.stringify({ order: last.order, cents }) });
    const replayed = resp.headers.get("Idempotency-Replayed") ? " (replayed)" : "";
    answer.textContent = `${shown}\n${resp.status}${replayed} ${(await resp.text()).trim()}`;
  } catch (err) {
    answer.textContent = `${shown}\nno answer: ${err.message}`;
  }
}

// --- start

prepareChart();
for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", () => pay(button.dataset.do));

const link = $("link");
function showLink(up) {
  const text = up ? "live" : "not connected, trying again";
  if (link.textContent === text) return; // a status that does not change must not be read out again
  link.textContent = text;
  link.classList.toggle("up", up);
}

// What moves by itself must be possible to stop.
let paused = false;
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").textContent = paused ? "Resume" : "Pause";
});

const events = new EventSource("events");
events.onmessage = event => {
  showLink(true);
  if (!paused) draw(JSON.parse(event.data));
};
events.onerror = () => showLink(false);
