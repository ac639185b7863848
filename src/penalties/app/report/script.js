"use strict";
// The cursor of the charts: hover, touch or arrow keys move it, and the numbers at it are shown and said.
(() => {
  const minus = "\u2212";

  function number(value) {
    if (value === "failed") return "failed";
    if (value === null || value === undefined) return "\u2013";
    if (typeof value === "string") return value.replace("-Infinity", minus + "\u221e").replace("Infinity", "\u221e");
    if (value === 0) return "0";
    const size = Math.abs(value);
    let text;
    if (size < 1e-3 || size >= 1e6) text = value.toExponential(4).replace(/\.?0+e/, "e").replace("e+", "e");
    else text = String(Number(value.toPrecision(5)));
    return text.replace(/-/g, minus);
  }

  const units = {
    "": number,
    share: (value) => (typeof value === "number" ? (100 * value).toFixed(1) + " %" : number(value)),
    seconds: (value) => {
      if (typeof value !== "number") return number(value);
      if (value < 1e-3) return number(value * 1e6) + " \u00b5s";
      return value < 1 ? number(value * 1e3) + " ms" : number(value) + " s";
    },
  };

  const thousands = (step) => String(step).replace(/\B(?=(\d{3})+$)/g, "\u202f");

  // The middle goes: names that begin alike often end otherwise.
  const short = (name) => (name.length <= 28 ? name : name.slice(0, 14) + "\u2026" + name.slice(-13));

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.plot = figure.querySelector(".plot");
      this.cursor = figure.querySelector(".cursor");
      this.tip = figure.querySelector(".tip");
      this.index = null;
      this.plot.addEventListener("pointermove", (event) => this.point(event));
      this.plot.addEventListener("pointerdown", (event) => this.point(event));
      this.plot.addEventListener("pointerleave", (event) => {
        if (event.pointerType !== "touch" && document.activeElement !== this.plot) this.leave();
      });
      this.plot.addEventListener("keydown", (event) => this.key(event));
      this.plot.addEventListener("focus", () => {
        if (this.plot.matches(":focus-visible")) this.show(this.index ?? 0);
      });
      this.plot.addEventListener("blur", () => this.leave());
    }

    // Read when it is first needed: a page has many charts.
    get data() {
      if (!this.read) {
        this.read = JSON.parse(this.figure.querySelector("script").textContent);
        let step = 0;
        this.steps = this.read.steps.map((more) => (step += more));
      }
      return this.read;
    }

    across(step) {
      const [left, right] = this.data.x;
      return right > left ? (step - left) / (right - left) : 0.5;
    }

    up(value) {
      const [low, high, log, zeros] = this.data.y;
      if (!log) return (value - low) / (high - low);
      if (value <= 0) return zeros / 3;
      return zeros + ((1 - zeros) * Math.log(value / low)) / Math.log(high / low);
    }

    nearest(step) {
      void this.data;
      let low = 0;
      let high = this.steps.length - 1;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.steps[middle] < step) low = middle + 1;
        else high = middle;
      }
      return low > 0 && step - this.steps[low - 1] < this.steps[low] - step ? low - 1 : low;
    }

    point(event) {
      const box = this.plot.getBoundingClientRect();
      const [left, right] = this.data.x;
      this.show(this.nearest(left + ((event.clientX - box.left) / box.width) * (right - left)));
    }

    key(event) {
      void this.data;
      const last = this.steps.length - 1;
      const now = this.index ?? 0;
      const far = Math.max(1, Math.round(last / 10));
      const moves = {
        ArrowRight: now + 1,
        ArrowUp: now + 1,
        ArrowLeft: now - 1,
        ArrowDown: now - 1,
        PageUp: now + far,
        PageDown: now - far,
        Home: 0,
        End: last,
      };
      if (event.key === "Escape") this.leave();
      else if (event.key in moves) {
        event.preventDefault();
        this.show(Math.min(last, Math.max(0, moves[event.key])));
      }
    }

    values(index) {
      return this.data.series.map((one) => ({
        name: one.name,
        css: one.css,
        letter: one.letter,
        value: Array.isArray(one.values) ? one.values[index] : one.values,
      }));
    }

    show(index) {
      const data = this.data;
      if (!this.steps.length) return;
      this.index = index;
      const step = this.steps[index];
      const rows = this.values(index);
      const format = units[data.unit];
      this.line(step);
      this.cursor.replaceChildren(
        ...(data.stacked ? rows.filter((row) => row.css === "total") : rows)
          .filter((row) => typeof row.value === "number" && this.up(row.value) <= 1.001 && this.up(row.value) >= -0.001)
          .map((row) => {
            const dot = document.createElement("i");
            dot.className = row.css;
            dot.style.bottom = 100 * this.up(row.value) + "%";
            return dot;
          }),
      );
      const table = document.createElement("table");
      table.createCaption().textContent = "step " + thousands(step);
      for (const row of rows) {
        if (row.value === null || row.value === undefined) continue;
        const line = table.insertRow();
        const head = document.createElement("th");
        head.className = row.css;
        const name = document.createElement("span");
        name.textContent = short(row.name);
        if (row.letter) {
          const letter = document.createElement("b");
          letter.textContent = row.letter + " ";
          head.append(letter);
        }
        head.append(name);
        line.append(head);
        line.insertCell().textContent = format(row.value);
      }
      this.tip.classList.toggle("many", table.rows.length > 6);
      this.tip.replaceChildren(table);
      this.tip.hidden = false;
      this.beside();
      this.plot.setAttribute("aria-valuenow", step);
      const said = rows.filter((row) => row.value !== null && row.value !== undefined);
      this.plot.setAttribute(
        "aria-valuetext",
        `step ${step}: ` + said.map((row) => `${row.letter ? row.letter + " " : ""}${row.name} ${format(row.value)}`).join(", "),
      );
      for (const other of charts) {
        if (other !== this && other.figure.dataset.group === this.figure.dataset.group) other.follow(step);
      }
    }

    // Beside the cursor, on the side that has room.
    beside() {
      const figure = this.figure.getBoundingClientRect();
      const plot = this.plot.getBoundingClientRect();
      const x = plot.left - figure.left + this.across(this.steps[this.index]) * plot.width;
      const width = this.tip.offsetWidth;
      let left = x + 12;
      if (left + width > figure.width) left = x - 12 - width;
      this.tip.style.left = Math.min(Math.max(0, left), Math.max(0, figure.width - width)) + "px";
      this.tip.style.top = plot.top - figure.top + 8 + "px";
    }

    line(step) {
      this.cursor.style.left = 100 * this.across(step) + "%";
      this.cursor.hidden = false;
    }

    // The same step in the other charts of the run: a line alone.
    follow(step) {
      if (!this.figure.offsetParent) return;
      const [left, right] = this.data.x;
      this.tip.hidden = true;
      this.cursor.replaceChildren();
      this.cursor.hidden = step < left || step > right;
      if (!this.cursor.hidden) this.line(step);
    }

    leave() {
      for (const chart of charts) {
        if (chart.figure.dataset.group === this.figure.dataset.group) {
          chart.cursor.hidden = true;
          chart.tip.hidden = true;
        }
      }
    }
  }

  const charts = Array.from(document.querySelectorAll("figure.chart"), (figure) => new Chart(figure));

  // A link to a run opens it.
  function open() {
    const run = location.hash && document.getElementById(location.hash.slice(1));
    if (run instanceof HTMLDetailsElement) {
      run.open = true;
      run.scrollIntoView();
    }
  }
  addEventListener("hashchange", open);
  open();

  // What is closed on the screen is open on paper.
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => (one.open = true)));
})();
