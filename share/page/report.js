/* The page of a run: curves from the data in the page, drawn to the width at hand, with a read-out under the pointer. Nothing is fetched. */
'use strict'
const data = JSON.parse(document.getElementById('data').textContent), runs = data.runs
const hues = ['#1f6fb2', '#d35400', '#138d75', '#8e44ad', '#b7950b', '#c0392b', '#5d6d7e', '#e0559b']
const hue = i => hues[i % hues.length]
const state = { x: 'step', log: false }
const NS = 'http://www.w3.org/2000/svg'
const put = (to, tag, attr, text) => { const e = document.createElementNS(NS, tag); for (const k in attr) e.setAttribute(k, attr[k]); if (text !== undefined) e.textContent = text; to.append(e); return e }
const html = (to, tag, cls, text) => { const e = document.createElement(tag); if (cls) e.className = cls; if (text !== undefined) e.textContent = text; to.append(e); return e }

/* ---- numbers for people ---- */

const trim = s => s.includes('.') ? s.replace(/\.?0+$/, '') : s
function say (v, unit) {
  if (v === null || v === undefined || !isFinite(v)) return '–'
  if (unit === '%') return trim((100 * v).toFixed(v < 0.1 ? 2 : 1)) + ' %'
  if (unit === 'B') { const k = ['B', 'kB', 'MB', 'GB', 'TB']; let i = 0; while (Math.abs(v) >= 1000 && i < 4) v /= 1000, i++; return trim(v.toPrecision(3)) + ' ' + k[i] }
  if (unit === 's') return v === 0 ? '0' : Math.abs(v) < 1e-3 ? trim((v * 1e6).toPrecision(3)) + ' µs' : Math.abs(v) < 1 ? trim((v * 1e3).toPrecision(3)) + ' ms' : trim(v.toPrecision(4)) + ' s'
  if (unit === 'h') return v < 1 / 60 ? trim((v * 3600).toFixed(0)) + ' s' : v < 2 ? trim((v * 60).toFixed(1)) + ' min' : trim(v.toFixed(2)) + ' h'
  const a = Math.abs(v)
  if (a >= 1e9) return trim((v / 1e9).toPrecision(4)) + 'G'
  if (a >= 1e6) return trim((v / 1e6).toPrecision(4)) + 'M'
  if (a >= 1e4) return trim((v / 1e3).toPrecision(4)) + 'k'
  if (a >= 1) return trim(v.toPrecision(5))
  return a < 1e-3 && a > 0 ? v.toExponential(2).replace('.00', '') : trim(v.toPrecision(4))
}
function ticks (lo, hi, n, least = 0) {
  const raw = Math.max((hi - lo) / n, least) || 1, ten = 10 ** Math.floor(Math.log10(raw)), f = raw / ten, d = (f < 1.5 ? 1 : f < 3.5 ? 2 : f < 7.5 ? 5 : 10) * ten, out = []
  for (let v = Math.ceil(lo / d - 1e-9) * d; v <= hi + d * 1e-9; v += d) out.push(Math.abs(v) < d * 1e-9 ? 0 : v)
  return out
}
function logTicks (lo, hi) {
  const out = []
  for (let e = Math.floor(Math.log10(lo)); e <= Math.ceil(Math.log10(hi)); e++) for (const m of hi / lo > 30 ? [1] : hi / lo > 4 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9]) { const v = m * 10 ** e; if (v >= lo && v <= hi) out.push(v) }
  return out.length > 1 ? out : ticks(lo, hi, 5)
}

/* ---- the x axis ---- */

const xs = { step: { word: 'step', unit: '', of: r => r.step }, tokens: { word: 'tokens', unit: '', of: r => r.tokens }, hours: { word: 'time', unit: 'h', of: r => r.hours } }
function xAt (r, step) {   /* X of a step that may lie between two points */
  const s = r.step, x = xs[state.x].of(r)
  let i = s.findIndex(v => v >= step)
  return i < 0 ? x[x.length - 1] : x[i]
}

/* ---- one chart ---- */

const charts = []
const M = { left: 58, right: 12, top: 10, bottom: 24 }

/* C: { title, sub, unit, series(): [{ name, color, x, y, lo, hi, dots, dash }], zero, log, tall, full, stacked, marks, alarm } */
function chart (to, c) {
  const box = html(to, 'div', 'chart' + (c.full ? ' full' : ''))
  box.id = 'chart-' + c.id
  const h = html(box, 'h3', '', c.title)
  if (c.sub) html(h, 'span', '', '  ' + c.sub)
  c.box = box
  c.svg = put(box, 'svg', { role: 'img', 'aria-label': c.title })
  c.key = html(box, 'p', 'key')
  charts.push(c)
  c.svg.addEventListener('pointermove', e => hover(c, e))
  c.svg.addEventListener('pointerleave', () => charts.forEach(k => readout(k, null)))
}

function extent (c, list) {
  let lo = Infinity, hi = -Infinity, x0 = Infinity, x1 = -Infinity
  const all = []
  const see = v => { if (v !== null && v !== undefined && isFinite(v) && !(c.log && state.log && v <= 0)) { if (v < lo) lo = v; if (v > hi) hi = v } }
  for (const s of list) {
    for (const v of s.x) { if (v < x0) x0 = v; if (v > x1) x1 = v }
    ;(s.top || s.hi || s.y).forEach(see)
    ;(s.lo || s.y).forEach(see)
    if (c.calm && (!s.area || s === list[list.length - 1])) for (const v of s.top || s.y) if (v !== null && isFinite(v)) all.push(v)
  }
  if (c.calm && all.length > 20) {   /* the first steps of a launch are no measure of the others: they may leave the picture */
    all.sort((a, b) => a - b)
    const start = c.falls ? Math.max(...list.map(s => s.y.find(v => v !== null && isFinite(v)))) : 0
    hi = Math.min(hi, Math.max(1.35 * all[Math.floor(all.length * 0.98)], start))
  }
  if (c.alarm && hi > 0) hi = Math.max(hi, c.alarm * 1.1)
  if (c.zero && !(c.log && state.log)) lo = Math.min(0, lo)
  if (!isFinite(lo)) return null
  if (lo === hi) { const d = Math.abs(lo) * 0.1 || 1; lo = c.zero ? 0 : lo - d; hi += d }
  else if (!(c.log && state.log)) { const d = (hi - lo) * 0.05; hi += d; if (!c.zero) lo -= d }
  if (x0 === x1) { x0 -= 0.5; x1 += 0.5 }
  return { lo, hi, x0, x1 }
}

function draw (c) {
  const list = c.list = c.series().filter(s => s.y.some(v => v !== null && isFinite(v)))
  const W = Math.max(240, c.box.clientWidth - 26), H = c.tall || 190, e = list.length ? extent(c, list) : null
  c.svg.replaceChildren()
  c.key.replaceChildren()
  c.svg.setAttribute('viewBox', `0 0 ${W} ${H}`)
  c.svg.style.height = H + 'px'
  if (!e) { c.box.hidden = true; return }
  c.box.hidden = false
  const log = c.log && state.log, f = log ? Math.log10 : v => v, lo = f(e.lo), hi = f(e.hi)
  const X = v => M.left + (v - e.x0) / (e.x1 - e.x0) * (W - M.left - M.right), Y = v => Math.max(M.top - 4, H - M.bottom - (f(v) - lo) / (hi - lo) * (H - M.top - M.bottom))
  c.X = X; c.Y = Y; c.W = W; c.H = H; c.e = e
  for (const v of log ? logTicks(e.lo, e.hi) : ticks(e.lo, e.hi, H / 45)) {
    put(c.svg, 'line', { x1: M.left, x2: W - M.right, y1: Y(v), y2: Y(v), class: 'gridline' })
    put(c.svg, 'text', { x: M.left - 6, y: Y(v) + 4, 'text-anchor': 'end' }, say(v, c.unit))
  }
  const x = xs[state.x]
  for (const v of ticks(e.x0, e.x1, W / 110, state.x === 'step' ? 1 : 0)) {
    put(c.svg, 'text', { x: X(v), y: H - 8, 'text-anchor': 'middle' }, say(v, x.unit))
  }
  const alarm = c.alarm && !runs.every(r => r.crowded)   /* ranks that share cores wait for a turn */
  if (alarm) {
    put(c.svg, 'line', { x1: M.left, x2: W - M.right, y1: Y(c.alarm), y2: Y(c.alarm), class: 'alarm' })
  }
  const words = marks(c, X, H)
  list.forEach(s => curve(c, s, X, Y, log))
  if (alarm) put(c.svg, 'text', { x: W - M.right, y: Y(c.alarm) - 4, 'text-anchor': 'end' }, say(c.alarm, c.unit) + ': look at the mesh')
  words()
  for (const s of list) {
    const k = html(c.key, 'span', '')
    const i = html(k, 'i', s.area ? 'area' : '')
    i.style.background = s.color
    if (s.thin) i.style.opacity = 0.4
    k.append(s.name)
    s.value = html(k, 'b', '')
  }
  c.hair = put(c.svg, 'line', { y1: M.top, y2: H - M.bottom, class: 'hair', visibility: 'hidden' })
  c.dots = list.map(s => put(c.svg, 'circle', { r: 3.5, fill: s.color, visibility: 'hidden' }))
  readout(c, null)
}

/* Resumes, stops and failures, where they were; in the colour of their run where there are several. What it gives back writes the words over the curves: in the
   wide chart, each where no other line is in its way. */
function marks (c, X, H) {
  const all = c.marks ? runs.flatMap((r, i) => r.marks.map(m => ({ x: X(xAt(r, m.step)), word: m.word, ink: one ? '' : hue(i) }))) : []
  const free = (a, b) => b < c.W && all.every(p => p.x <= a || p.x >= b)
  for (const m of all) put(c.svg, 'line', { x1: m.x, x2: m.x, y1: M.top, y2: H - M.bottom, class: 'mark', style: m.ink && 'stroke:' + m.ink })
  return () => all.forEach(m => {
    const room = 8 + 6.5 * m.word.length, right = free(m.x, m.x + room), left = !right && m.x + room >= c.W && all.every(p => p.x >= m.x || p.x <= m.x - room)
    if (c.full && (right || left)) put(c.svg, 'text', { x: m.x + (right ? 4 : -4), y: M.top + 10, class: 'mark', 'text-anchor': right ? 'start' : 'end', style: m.ink && 'fill:' + m.ink }, m.word)
  })
}

const path = (xs, ys, X, Y, log) => {
  let d = '', pen = false
  for (let i = 0; i < xs.length; i++) {
    const v = ys[i]
    if (v === null || v === undefined || !isFinite(v) || (log && v <= 0)) { pen = false; continue }
    d += (pen ? 'L' : 'M') + X(xs[i]).toFixed(1) + ' ' + Y(v).toFixed(1)
    pen = true
  }
  return d
}

function curve (c, s, X, Y, log) {
  if (s.area) {
    let d = path(s.x, s.top, X, Y, log)
    for (let i = s.x.length - 1; i >= 0; i--) d += 'L' + X(s.x[i]).toFixed(1) + ' ' + Y(s.base[i]).toFixed(1)
    put(c.svg, 'path', { d: d + 'Z', fill: s.color })
    return
  }
  if (s.lo && s.hi) {
    let d = '', back = ''
    for (let i = 0; i < s.x.length; i++) {
      if (s.lo[i] === null || s.hi[i] === null || (log && s.lo[i] <= 0)) continue
      d += (d ? 'L' : 'M') + X(s.x[i]).toFixed(1) + ' ' + Y(s.hi[i]).toFixed(1)
      back = 'L' + X(s.x[i]).toFixed(1) + ' ' + Y(s.lo[i]).toFixed(1) + back
    }
    if (d) put(c.svg, 'path', { d: d + back + 'Z', fill: s.color, opacity: 0.22, class: 'band' })
  }
  put(c.svg, 'path', { d: path(s.x, s.y, X, Y, log), fill: 'none', stroke: s.color, 'stroke-width': s.thin ? 1 : s.width, opacity: s.thin ? 0.4 : 1, 'stroke-linejoin': 'round', 'stroke-dasharray': s.dash || '', class: 'line' })
  if ((s.dots && s.x.length < 60) || (s.x.length < 8 && !s.thin)) for (let i = 0; i < s.x.length; i++) if (s.y[i] !== null) put(c.svg, 'circle', { cx: X(s.x[i]).toFixed(1), cy: Y(s.y[i]).toFixed(1), r: 2.6, fill: s.color })
}

function near (x, v) {
  let a = 0, b = x.length - 1
  while (b - a > 1) { const m = (a + b) >> 1; if (x[m] < v) a = m; else b = m }
  return Math.abs(x[a] - v) < Math.abs(x[b] - v) ? a : b
}

function readout (c, v) {
  if (!c.list || !c.list.length) return
  c.hair.setAttribute('visibility', v === null ? 'hidden' : 'visible')
  if (v !== null) c.hair.setAttribute('x1', c.X(v)), c.hair.setAttribute('x2', c.X(v))
  c.list.forEach((s, n) => {
    const i = v === null ? s.y.length - 1 : near(s.x, v), y = s.y[i], bare = y === null || y === undefined || !isFinite(y)
    s.value.textContent = v === null && s.mean ? s.mean : s.thin ? '' : bare ? '–' : say(y, c.unit) + (v !== null && s.lo && s.hi[i] > s.lo[i] && !s.area ? ` (${say(s.lo[i], c.unit)} … ${say(s.hi[i], c.unit)})` : '')
    c.dots[n].setAttribute('visibility', v === null || bare || s.thin ? 'hidden' : 'visible')
    if (!bare) c.dots[n].setAttribute('cx', c.X(s.x[i])), c.dots[n].setAttribute('cy', c.Y(s.area ? s.top[i] : y))
  })
  where.textContent = v === null ? 'point at a curve to read it' : xs[state.x].word + ' ' + (state.x === 'step' ? Math.round(v) : say(v, xs[state.x].unit))
}

function hover (c, ev) {
  const r = c.svg.getBoundingClientRect(), px = (ev.clientX - r.left) * c.W / r.width
  if (!c.e || px < M.left - 8) return
  let v = c.e.x0 + (Math.min(px, c.W - M.right) - M.left) / (c.W - M.left - M.right) * (c.e.x1 - c.e.x0)
  const s = c.list[0]
  v = s.x[near(s.x, v)]
  charts.forEach(k => readout(k, v))
}

/* ---- the charts of this page ---- */

/* Mean of the n points to each side, fewer at the ends, so that a curve that falls is not lifted. */
function smooth (y, n) {
  const sum = [0], count = [0]
  y.forEach((v, i) => { const good = v !== null && isFinite(v); sum.push(sum[i] + (good ? v : 0)); count.push(count[i] + good) })
  return y.map((v, i) => { const d = Math.min(n, i, y.length - 1 - i), a = i - d, b = i + d + 1; return count[b] > count[a] ? (sum[b] - sum[a]) / (count[b] - count[a]) : null })
}
const one = runs.length === 1
const name = (r, word) => one ? word : r.name + (word ? ', ' + word : '')
/* Of the same values in several runs all shall be seen: the first is the broadest. */
const width = i => one ? 1.8 : 1.6 + 1.1 * Math.min(runs.length - 1 - i, 3)
function simple (key, word) {
  return () => runs.flatMap((r, i) => {
    if (!r.v[key]) return []
    const at = r.v[key].map((v, k) => k).filter(k => r.v[key][k] !== null), pick = a => a && at.map(k => a[k]), sparse = at.length < r.v[key].length / 2
    const s = { name: name(r, word), color: hue(i), width: width(i), x: xs[state.x].of(r), y: r.v[key], lo: r.lo[key], hi: r.hi[key] }
    return [sparse ? { ...s, x: pick(s.x), y: pick(s.y), lo: pick(s.lo), hi: pick(s.hi), dots: true } : s]
  })
}

function losses () {
  const out = []
  runs.forEach((r, i) => {
    const x = xs[state.x].of(r), y = r.v.loss
    if (y) {
      const n = Math.max(1, Math.round(y.length / 100))
      if (n > 1) out.push({ name: name(r, 'training, each step'), color: hue(i), x, y, lo: r.lo.loss, hi: r.hi.loss, thin: true })
      out.push({ name: name(r, one && n > 1 ? 'smoothed' : 'training'), width: width(i), color: hue(i), x, y: n > 1 ? smooth(y, n) : y })
    }
    if (r.eval.step.length) out.push({ name: name(r, 'validation'), color: one ? hues[1] : hue(i), x: r.eval.step.map(s => xAt(r, s)), y: r.eval.loss, width: width(i), dots: true, dash: one ? '' : '5 3' })
  })
  return one ? out : out.filter(s => !s.thin)
}

const fills = { forward_s: '#7fb3d5', backward_s: '#2e86c1', optimizer_s: '#f0b27a', data_s: '#a569bd', tp: '#c0392b', pp: '#7d3c98', dp_shard: '#1a5276', dp_replicate: '#138d75', world: '#707b7c', agree_s: '#d4ac0d', other_s: '#bfc9ca', checkpoint_s: '#229954', eval_s: '#76d7c4' }
function parts (r) {
  const x = xs[state.x].of(r), base = x.map(() => 0), out = []
  let total = 0
  for (const [key, word] of data.parts) {
    const y = r.v[key]
    if (!y || !y.some(v => v > 0)) continue
    const top = base.map((b, i) => b + (y[i] || 0))
    const sum = y.reduce((a, b) => a + (b || 0), 0) / y.length
    total += sum
    out.push({ name: word, sum, color: fills[key], area: true, x, y, base: base.slice(), top, lo: y.map(() => 0) })
    top.forEach((v, i) => { base[i] = v })
  }
  for (const s of out) s.mean = say(s.sum, 's') + ' · ' + say(s.sum / total, '%')
  return out
}

const bar = document.getElementById('bar')
function choice (word, list, now, set) {
  const g = html(bar, 'span', '', word + ' ')
  const all = list.map(([v, text]) => { const b = html(g, 'button', '', text); b.type = 'button'; b.onclick = () => { set(v); all.forEach(k => k.setAttribute('aria-pressed', k === b && (list.length > 1 || state.log))); charts.forEach(draw) }; b.setAttribute('aria-pressed', v === now); return b })
}
choice('against', [['step', 'steps'], ['tokens', 'tokens'], ['hours', 'time']], 'step', v => { state.x = v })
choice('', [[true, 'logarithmic loss']], false, () => { state.log = !state.log })
const where = html(bar, 'span', '')

const top_ = document.getElementById('charts')
chart(top_, { id: 'loss', title: 'Loss', sub: 'nats a token', full: true, tall: 300, log: true, calm: true, falls: true, marks: true, series: losses })
chart(top_, { id: 'rate', title: 'Rate', sub: 'tokens a second', zero: true, calm: true, marks: true, series: simple('tokens_per_s', 'tokens/s') })
chart(top_, { id: 'share', title: 'Waiting for communication', sub: 'share of a step, rank 0', unit: '%', zero: true, alarm: 0.3, series: simple('comm_share', 'share') })
chart(top_, { id: 'norm', title: 'Norm of the gradient', sub: 'before clipping', zero: true, calm: true, marks: true, series: simple('grad_norm', 'norm') })
chart(top_, { id: 'lr', title: 'Learning rate', zero: true, series: simple('lr', 'rate') })
chart(top_, { id: 'mfu', title: 'MFU', unit: '%', zero: true, calm: true, series: simple('mfu', 'MFU') })
chart(top_, { id: 'util', title: 'GPU utilisation', sub: 'mean of the GPUs', unit: '%', zero: true, series: simple('utilization', 'a kernel ran') })
chart(top_, { id: 'power', title: 'Power', sub: 'W, all GPUs', zero: true, series: simple('power_w', 'power') })
chart(top_, { id: 'excess', title: 'Slowest rank', sub: 'its own work beside the median of its stage', unit: '%', zero: true, series: simple('excess', 'excess') })
chart(top_, { id: 'host', title: 'Host memory of rank 0', sub: 'most so far', unit: 'B', zero: true, series: simple('resident_peak', 'resident') })
const times = document.getElementById('times')
if (times) runs.forEach((r, i) => chart(times, { id: 'parts-' + i, title: one ? 'Seconds of a step, rank 0' : r.name, sub: one ? '' : 'seconds of a step, rank 0', unit: 's', zero: true, calm: true, full: one, tall: 240, series: () => parts(r) }))

const redraw = () => charts.forEach(draw)
redraw()
let wide = innerWidth
addEventListener('resize', () => { if (innerWidth !== wide) { wide = innerWidth; redraw() } })
addEventListener('beforeprint', redraw)
document.documentElement.dataset.drawn = charts.filter(c => !c.box.hidden).length
