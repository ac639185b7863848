// Numbers as text, as in the rest of the page.

const MINUS = "\u2212";
const THIN = "\u202f";
const SPACE = "\u00a0";

function shown(value, digits = 4) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : MINUS + "∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) {
    const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
    const short = mantissa.includes(".") ? mantissa.replace(/\.?0+$/, "") : mantissa;
    return `${short}e${Number(exponent)}`.replaceAll("-", MINUS);
  }
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  const text = value.toFixed(decimals);
  return (text.includes(".") ? text.replace(/\.?0+$/, "") : text).replace("-", MINUS);
}

function thousands(count) {
  return String(Math.round(count)).replace(/\B(?=(\d{3})+(?!\d))/g, THIN);
}

function percent(share) {
  const part = 100 * share;
  return `${part >= 9.95 || part === 0 ? part.toFixed(0) : part.toFixed(part < 0.1 ? 2 : 1)}${SPACE}%`;
}

function seconds(time, digits = 3) {
  if (time === 0) return `0${SPACE}s`;
  if (time < 1e-3) return `${shown(time * 1e6, digits)}${SPACE}µs`;
  if (time < 1) return `${shown(time * 1e3, digits)}${SPACE}ms`;
  if (time < 60) return `${shown(time, digits)}${SPACE}s`;
  const whole = Math.round(time);
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes}${SPACE}min ${whole % 60}${SPACE}s`;
  return `${Math.floor(minutes / 60)}${SPACE}h ${minutes % 60}${SPACE}min`;
}

// A time on an axis whose ticks are so many seconds apart.
function clock(time, digits, gap) {
  if (time < 60) return seconds(time, digits);
  if (gap < 1) return `${shown(time, digits)}${SPACE}s`;
  if (gap >= 60 || time < 3600) return seconds(time);
  const parts = [Math.floor(time / 60) % 60, Math.round(time) % 60].map((one) => String(one).padStart(2, "0"));
  return `${Math.floor(time / 3600)}:${parts.join(":")}`;
}

function bytes(size, digits = 3) {
  const power = Math.min(4, Math.max(0, Math.floor(Math.log10(Math.max(size, 1)) / 3)));
  return `${shown(size / 1000 ** power, digits)}${SPACE}${["B", "kB", "MB", "GB", "TB"][power]}`;
}

const UNITS = {
  "": (value) => shown(value, 6),
  share: percent,
  seconds: (time) => seconds(time),
  bytes: (size) => bytes(size),
};

const TICKS = { "": shown, share: percent, seconds, bytes };

// The labels of an axis, with as many digits as it takes to tell one from the next; where there is null there is none.
function labels(splits, say) {
  const there = splits.filter((one) => one !== null);
  const gap = Math.min(...there.slice(1).map((one, place) => Math.abs(one - there[place])));
  let digits = 3;
  while (digits < 9 && there.some((one) => Math.abs(Number(one.toPrecision(digits)) - one) > 0.01 * gap)) digits += 1;
  return splits.map((one) => (one === null ? "" : say(one, digits, gap)));
}

// The room for labels beside a chart, in pixels.
function room(least, words) {
  return Math.max(least, 12 + 7 * Math.max(0, ...(words ?? []).map((one) => one?.length ?? 0)));
}

// What charts are over: how its numbers read, on an axis and in the readout.
const AXES = {
  step: { tick: thousands, said: (value) => `step ${thousands(value)}` },
  tokens: {
    tick: (value, digits) => (value < 1e4 ? thousands(value) : value < 1e6 ? `${shown(value / 1e3, digits)}${SPACE}k` : `${shown(value / 1e6, digits)}${SPACE}M`),
    said: (value) => `${thousands(value)} tokens`,
  },
  seconds: { tick: clock, said: (value) => seconds(value) },
};

// What ticks may be apart: whole steps, and times that a clock shows as whole.
const GAPS = {
  step: [1, 2, 5].flatMap((digit) => powers(digit, 0, 8)),
  seconds: [...[1, 2, 5].flatMap((digit) => powers(digit, -6, -1)), 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, ...[1, 2, 5, 10, 20, 50, 100].map((days) => 86400 * days)],
};
for (const gaps of Object.values(GAPS)) gaps.sort((one, other) => one - other);

function powers(digit, first, last) {
  return Array.from({ length: last - first + 1 }, (_, place) => Number(`${digit}e${first + place}`));
}
