// The menu of a chart: its scale, a picture, its numbers as CSV and as a table.

const ROWS = 100; // of a table; the CSV has all

function save(name, type, parts) {
  const link = element("a", { href: URL.createObjectURL(new Blob(parts, { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function fileName(chart, ending) {
  const words = `${document.title} ${chart.title}`.toLowerCase().match(/[\p{L}\p{N}._=-]+/gu) ?? ["chart"];
  return `${words.join("-").slice(0, 80)}.${ending}`;
}

// A text that starts like a formula would be one in a spreadsheet.
function cell(value) {
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function csv(chart) {
  const { header, rows } = chart.rows();
  return [header, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

function png(chart) {
  const picture = chart.uplot.ctx.canvas;
  const ratio = devicePixelRatio;
  const font = getComputedStyle(document.body).fontFamily;
  const made = element("canvas", { width: picture.width + 24 * ratio });
  const ctx = made.getContext("2d");
  const items = (chart.lines ?? []).filter((line) => chart.shown(line));
  // Twice: first for its height.
  const draw = (really) => {
    let [left, top] = [12 * ratio, 24 * ratio];
    ctx.font = `600 ${15 * ratio}px ${font}`;
    ctx.fillStyle = color("--ink");
    if (really) ctx.fillText(chart.title, left, top, made.width - 2 * left);
    ctx.font = `${12 * ratio}px ${font}`;
    top += 22 * ratio;
    for (const line of items) {
      const name = cut(`${line.letter ? `${line.letter} ` : ""}${line.name}`, 40);
      const wide = ctx.measureText(name).width + 30 * ratio;
      if (left + wide > made.width && left > 12 * ratio) [left, top] = [12 * ratio, top + 18 * ratio];
      if (really) {
        ctx.fillStyle = color(line.css);
        ctx.fillRect(left, top - 9 * ratio, 10 * ratio, 10 * ratio);
        ctx.fillStyle = color("--ink");
        ctx.fillText(name, left + 15 * ratio, top);
      }
      left += wide;
    }
    return items.length ? top + 8 * ratio : 32 * ratio;
  };
  const head = draw(false);
  made.height = head + picture.height + 12 * ratio;
  ctx.fillStyle = color("--paper");
  ctx.fillRect(0, 0, made.width, made.height);
  draw(true);
  ctx.drawImage(picture, 12 * ratio, head);
  made.toBlob((blob) => save(fileName(chart, "png"), "image/png", [blob]));
}

function table(chart) {
  const old = chart.figure.querySelector(".figures");
  if (old) {
    old.remove();
    return;
  }
  const { header, rows } = chart.rows();
  const every = Math.max(1, Math.ceil(rows.length / ROWS));
  const some = rows.filter((_, place) => place % every === 0 || place === rows.length - 1);
  const made = element("table");
  const head = made.createTHead().insertRow();
  for (const name of header) head.append(element("th", { scope: "col", textContent: name }));
  const body = made.createTBody();
  for (const row of some) {
    const line = body.insertRow();
    row.forEach((value, place) => {
      const text = typeof value !== "number" ? value : place === 0 ? thousands(value) : shown(value, 6);
      line.insertCell().textContent = text;
    });
  }
  const box = element("div", { className: "table figures", tabIndex: 0, role: "region" }, made);
  box.setAttribute("aria-label", `Numbers of ${chart.title}`);
  if (every > 1) made.createCaption().textContent = `Every ${every}th of ${thousands(rows.length)} rows; the CSV has all of them.`;
  chart.figure.append(box);
}

// Filled when it is opened for the first time.
function fillMenu(chart, menu) {
  const button = (words, act, pressed) => {
    const made = element("button", { type: "button", textContent: words });
    if (pressed !== undefined) made.setAttribute("aria-pressed", pressed);
    made.addEventListener("click", () => {
      act(made);
      if (pressed === undefined) menu.open = false;
    });
    return made;
  };
  const box = element("div");
  const scales = chart.spec.scales ?? [];
  if (scales.length > 1) {
    const made = ["linear", "log", "asinh"].filter((name) => scales.includes(name)).map((name) =>
      button(
        name,
        (self) => {
          chart.scale = name;
          for (const one of made) one.setAttribute("aria-pressed", one === self);
          chart.rebuild();
        },
        name === chart.scale,
      ),
    );
    box.append(element("span", {}, ...made));
  }
  box.append(button("Picture (PNG)", () => png(chart)), button("Numbers (CSV)", () => save(fileName(chart, "csv"), "text/csv", [csv(chart)])), button("Table", () => table(chart)));
  menu.append(box);
}
