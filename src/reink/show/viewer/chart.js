// Live bytes over the three programs: step curves, their peaks, and what is held at the point looked at.

const TITLES = { eager: "as you wrote it", functional: "pure, nothing in place", lowered: "as it runs" };

/** Live bytes at each row of a program. */
function curveOf(key, program) {
  if (!program || !program.held.length) return null;
  const count = program.rows.length;
  const change = new Array(count + 1).fill(0);
  for (const held of program.held) {
    change[held.first] += held.bytes || 0;
    change[Math.min(held.last, count - 1) + 1] -= held.bytes || 0;
  }
  const live = [];
  let now = 0;
  for (let k = 0; k < count; k += 1) live.push((now += change[k]));
  let peakLine = 0;
  live.forEach((value, k) => { if (value > live[peakLine]) peakLine = k; });
  const end = program.rows.findIndex((row) => row.role === "result");
  return { key, program, live, peak: live[peakLine], peakLine, last: end > 0 ? end : count - 1, title: TITLES[key], unknown: program.held.some((h) => h.bytes === null) };
}

const curves = [curveOf("eager", programs.captured), curveOf("functional", programs.functional), curveOf("lowered", programs.lowered)].filter((c) => c);

/** What a program holds while row `line` runs, largest first. */
function heldAt(curve, line) {
  return curve.program.held.filter((h) => h.first <= line && line <= h.last).sort((a, b) => (b.bytes || 0) - (a.bytes || 0));
}

const HEIGHT = 260;
const EDGE = { left: 78, right: 24, top: 26, bottom: 34 };

class Chart {
  constructor(box) {
    this.box = box;
    this.fraction = null;
    this.tip = make("div", "tip");
    this.tip.hidden = true;
    this.render();
    box.addEventListener("pointermove", (event) => this.point(event));
    box.addEventListener("pointerleave", () => this.look(null));
    box.addEventListener("blur", () => this.look(null), true);
    box.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.width() !== this.drawn && this.render()).observe(box);
  }

  width() {
    return Math.max(320, this.box.clientWidth);
  }

  render() {
    const width = (this.drawn = this.width());
    this.most = Math.max(1, ...curves.map((c) => c.peak)) * 1.08;
    const words = curves.map((c) => `${c.title}: peak ${amount(c.peak)}`).join("; ");
    this.svg = draw("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", tabindex: 0, "aria-label": `Live bytes over the program. ${words}` });
    for (let k = 0; k <= 4; k += 1) {
      const y = this.y((this.most / 1.08) * (k / 4));
      this.svg.append(draw("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y, y2: y }));
      this.svg.append(draw("text", { x: EDGE.left - 10, y: y + 4, "text-anchor": "end" }, amount(Math.round((this.most / 1.08) * (k / 4)))));
    }
    this.svg.append(draw("text", { x: EDGE.left, y: HEIGHT - 10 }, "start of the program"), draw("text", { x: width - EDGE.right, y: HEIGHT - 10, "text-anchor": "end" }, "end"));
    curves.forEach((curve) => this.svg.append(this.curve(curve)));
    this.svg.append(...this.peaks());
    this.cursor = draw("line", { class: "cursor", y1: EDGE.top, y2: HEIGHT - EDGE.bottom, x1: 0, x2: 0, visibility: "hidden" });
    this.svg.append(this.cursor);
    this.box.replaceChildren(this.svg, this.tip);
  }

  x(fraction) {
    return EDGE.left + fraction * (this.drawn - EDGE.left - EDGE.right);
  }

  y(bytes) {
    return HEIGHT - EDGE.bottom - (bytes / this.most) * (HEIGHT - EDGE.top - EDGE.bottom);
  }

  /** One curve; a long program is drawn by the highest value under each point of the screen. */
  curve(curve) {
    const count = curve.last + 1;
    const points = Math.min(count, Math.ceil(this.drawn));
    let path = "";
    for (let p = 0; p < points; p += 1) {
      const [from, to] = [Math.floor((p * count) / points), Math.floor(((p + 1) * count) / points)];
      let value = 0;
      for (let k = from; k < to; k += 1) value = Math.max(value, curve.live[k]);
      const y = this.y(value).toFixed(1);
      path += `${p ? "L" : "M"}${this.x(p / points).toFixed(1)} ${y}L${this.x((p + 1) / points).toFixed(1)} ${y}`;
    }
    return draw("g", { class: curve.key }, draw("path", { class: "curve", d: path }));
  }

  /** A ring and an amount at each peak; amounts that would lie on another move down, equal ones are written once. */
  peaks() {
    const marks = [];
    const labels = [];
    for (const curve of curves) {
      const x = this.x((curve.peakLine + 0.5) / (curve.last + 1));
      const y = this.y(curve.peak);
      marks.push(draw("g", { class: curve.key }, draw("circle", { class: "peak", cx: x, cy: y, r: 4.5 })));
      const words = amount(curve.peak);
      const near = labels.filter((label) => Math.abs(label.x - x) < 150);
      if (near.some((label) => label.words === words)) continue;
      const fits = (at) => at < HEIGHT - EDGE.bottom && near.every((label) => Math.abs(label.y - at) >= 14);
      const top = [y - 8, y + 18, y + 32, y + 46, y - 22].find(fits) ?? y - 8;
      labels.push({ x, y: top, words });
      const anchor = x > this.drawn - 140 ? "end" : "start";
      marks.push(draw("text", { class: "label", x: x + (anchor === "end" ? -9 : 9), y: top, "text-anchor": anchor }, words));
    }
    return marks;
  }

  point(event) {
    const at = event.clientX - this.box.getBoundingClientRect().left;
    this.look(Math.min(1, Math.max(0, (at - EDGE.left) / (this.drawn - EDGE.left - EDGE.right))));
  }

  key(event) {
    const most = Math.max(2, ...curves.map((c) => c.last + 1));
    const moves = { ArrowLeft: -1 / most, ArrowRight: 1 / most, Home: -1, End: 1 };
    if (event.key === "Escape") this.look(null);
    if (!(event.key in moves)) return;
    event.preventDefault();
    event.stopPropagation();
    this.look(Math.min(1, Math.max(0, (this.fraction ?? 0) + moves[event.key])));
  }

  /** Show what each program holds at `fraction` of its way; null hides it. */
  look(fraction) {
    this.fraction = fraction;
    this.tip.hidden = fraction === null;
    this.cursor.setAttribute("visibility", fraction === null ? "hidden" : "visible");
    if (fraction === null) return;
    const x = this.x(fraction);
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
    const { top, bottom } = this.box.getBoundingClientRect();
    this.tip.classList.toggle("above", bottom + 150 > innerHeight && top > 150);
    this.tip.replaceChildren(...curves.map((curve) => this.lines(curve, fraction)));
  }

  lines(curve, fraction) {
    const line = Math.min(curve.last, Math.floor(fraction * (curve.last + 1)));
    const held = heldAt(curve, line);
    const names = held.slice(0, 5).map((h) => `${h.name} ${amount(h.bytes)}`).join(", ");
    return make("p", curve.key, make("span", "key"), make("strong", "", amount(curve.live[line])), ` ${curve.title}`, make("br"),
      make("code", "", curve.program.rows[line].text && cut(curve.program.rows[line].text, 80)), make("br"),
      make("span", "quiet", names + (held.length > 5 ? `, and ${held.length - 5} more` : "")));
  }
}

/** The same as a table: legend and text alternative in one. */
function peakTable() {
  const head = make("tr", "", ...["program", "peak", "while it runs", "holding"].map((text) => make("th", text === "peak" ? "amount" : "", text)));
  const rows = curves.map((curve) => {
    const held = heldAt(curve, curve.peakLine);
    const names = held.slice(0, 6).map((h) => h.name).join(", ") + (held.length > 6 ? `, and ${held.length - 6} more` : "");
    return make("tr", curve.key, make("td", "", make("span", "key"), curve.title), make("td", "amount", amount(curve.peak) + (curve.unknown ? " + ?" : "")),
      make("td", "", make("code", "", cut(curve.program.rows[curve.peakLine].text, 100))), make("td", "", make("code", "", names)));
  });
  return make("div", "scroll", make("table", "", make("thead", "", head), make("tbody", "", ...rows)));
}

if (curves.length) {
  new Chart(byId("chart"));
  byId("peaks").append(peakTable());
} else {
  byId("memory").hidden = true;
}
