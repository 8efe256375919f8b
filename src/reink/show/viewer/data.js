"use strict";
// The report, its four programs and small tools. Text of the user's becomes text nodes only, never markup.

const report = JSON.parse(document.getElementById("report").textContent);
const still = matchMedia("(prefers-reduced-motion: reduce)");

const byId = (id) => document.getElementById(id);

/** An element with a class and children; strings become text. */
function make(tag, kind, ...children) {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** An SVG element with attributes. */
function draw(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Bytes for people, as the report's own words have them. */
function amount(count) {
  if (count === null || count === undefined) return "unknown";
  if (count < 1024) return `${count} B`;
  let value = count;
  for (const unit of ["KiB", "MiB", "GiB", "TiB"]) {
    value /= 1024;
    if (Number(value.toFixed(1)) < 1024 || unit === "TiB") return `${value.toFixed(1)} ${unit}`;
  }
}

const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const shortFile = (file) => file.split(/[\\/]/).pop();
const placeOf = (source) => (source && (source.file || source.line) ? `${shortFile(source.file)}:${source.line}` : "");
/** At most `most` letters, and three dots where some are left out. */
const cut = (text, most) => (text.length > most ? `${text.slice(0, most)}\u2026` : text);
const isCopy = (decision) => decision.bytes !== 0;
const sizeOf = (decision) => (decision.bytes === null ? decision.size : amount(decision.bytes));

/** A snapshot as rows `{text, node, of, source, role}`, with the row of each node. */
function programOf(snapshot) {
  if (!snapshot) return null;
  const texts = snapshot.text.split("\n");
  const rows = texts.map((text, k) => {
    const [node, of, source, role] = snapshot.lines[k] || ["", "", -1, ""];
    return { text: text.replace(/^ {4}/, ""), node, of, source, role };
  });
  const at = new Map();
  rows.forEach((row, k) => row.node && at.set(row.node, k));
  return { rows, at, held: snapshot.held.map(([name, kind, bytes, first, last]) => ({ name, kind, bytes, first, last })) };
}

function lastSnapshot(test) {
  return programOf(report.snapshots.filter(test).pop());
}

const programs = {
  captured: lastSnapshot((s) => s.form === "mutable"),
  functional: lastSnapshot((s) => s.step === "functionalize") || lastSnapshot((s) => s.form === "functional"),
  pure: lastSnapshot((s) => s.form === "functional"),
  lowered: lastSnapshot((s) => s.form === "lowered") || lastSnapshot((s) => s.form === "inplace"),
};

const isCall = (row) => row.node && row.role !== "result";
const events = report.events.map(([kind, storage, version, node, of, place, region]) => (
  { kind, storage, version, node, of, place, region }));

/** The captured calls in order: what the first act goes through, and the order of each. */
const calls = programs.captured ? programs.captured.rows.filter(isCall) : [];
const orderOf = new Map(calls.map((row, k) => [row.node, k]));

/** Every step of the three acts. A step of act 1 owns the events `from` to `to` and shows `lines` of the pure graph. */
function firstAct() {
  if (!events.length || !programs.functional) return [];
  const rows = programs.functional.rows;
  const steps = [{ act: 1, kind: "start", from: 0, to: 0, lines: 0, call: -1 }];
  let event = 0;
  const until = (test) => { while (event < events.length && test(events[event])) event += 1; return event; };
  let from = 0;
  let lines = 1;
  steps.push({ act: 1, kind: "inputs", from, to: (from = until((e) => e.of !== "" && !orderOf.has(e.of))), lines, call: -1 });
  calls.forEach((row, call) => {
    const to = until((e) => e.of === row.node);
    while (lines < rows.length && rows[lines].of === row.node) lines += 1;
    steps.push({ act: 1, kind: "call", from, to, lines, call });
    from = to;
  });
  steps.push({ act: 1, kind: "end", from, to: events.length, lines: rows.length, call: calls.length });
  return steps;
}

function secondAct() {
  if (!programs.pure || !programs.lowered) return [];
  return [{ act: 2, kind: "intro" }, ...report.decisions.map((_, d) => ({ act: 2, kind: "decision", decision: d }))];
}

function thirdAct() {
  if (!programs.lowered) return [];
  const steps = [{ act: 3, kind: "intro", line: -1 }];
  programs.lowered.rows.forEach((row, line) => isCall(row) && steps.push({ act: 3, kind: "line", line }));
  steps.push({ act: 3, kind: "end", line: programs.lowered.rows.length });
  return steps;
}

const steps = [...firstAct(), ...secondAct(), ...thirdAct()];
const actStart = [1, 2, 3].map((act) => steps.findIndex((step) => step.act === act));
const decisionById = new Map(report.decisions.map((decision, k) => [decision.id, k]));

/** Which captured call a lowered row comes from: through the pure node behind it. */
function capturedOf(row) {
  const pure = programs.pure && programs.pure.at.get(row.of);
  return pure === undefined || pure === null ? "" : programs.pure.rows[pure].of;
}
