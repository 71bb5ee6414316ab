-- What a ledger that lends has beside its numbers: amounts and curves, and how lending stands, as far as direct callers
-- and those who only look need it. The mirror of parts of budget/src/lease.rs and budget/src/ledger/leases.rs. Put after
-- ledger.lua.
--
-- Amounts are a list: rate, burst, retry burst, slots, then for each unit its id, rate and burst. Curves are a list: part
-- and duration of each step. A report is a list: ten counters, then for each unit its id and what was asked.

local PPM <const> = 1000000
local SHARE_ONE <const> = 10000000
local DUE_PER_CALL_MAX <const> = 64
local BEATS_MAX <const> = 8
local LINGERING_MAX <const> = 4
local LAG_KEPT_MS <const> = 250
local SHARE_BUCKETS <const> = 64
local NEVER <const> = 9007199254740991
local EPOCH_NUMBER_MAX <const> = 4503599627370496
-- Nothing presented makes a sum of charges exceed this, so that all sums stay exact.
local PRESENTED_MAX <const> = 4503599627370496

-- whether there are terms, slots limited, part of each priority, part leased, widest part, longest curve, margin, overlap,
-- step_max, then the curve
local TERMS_FORMAT <const> = '>BBi4i4i4i4i4i4i4i4i4'
-- identity, number and id of the epoch remembered, fresh id, fresh store, has beat, boot id, its clock; 1: an ask
-- follows, 2: the name of a holder to be revoked
local GROUND_FORMAT <const> = '>i7i7i7i7BBi7i7B'
-- epoch number and id, identity, generation, dead generation, lost, wait until, quarantine until, debt, next due, holders,
-- proofs, then terms, beats, direct, charged, proved
local LENDING_FORMAT <const> = '>i7i7i7i7i7Bi7i7i7i7i4i4'
local BEAT_FORMAT <const> = '>i7i7i7'
local AMOUNTS_FORMAT <const> = '>i7i7i7i7B'
local UNIT_AMOUNTS_FORMAT <const> = '>i7i7i7'
local STEP_FORMAT <const> = '>i4i4'
local REPORT_FORMAT <const> = '>i7i7i7i7i7i7i7i7i7i7B'
local ASKED_FORMAT <const> = '>i7i7'
local REPORT_UNITS <const> = 11
-- weight, demand, share, idle, revoked until, restarted until, due or -1, number of lives
local RECORD_OF_HOLDER_FORMAT <const> = '>i4i4i4i4i7i7i7B'
-- incarnation, sequence, nonce, answered, slots, measured, number of lingering slots, number of grants, then the lingering
-- slots, charge, the last report, and what had been asked when measuring began
local LIFE_FORMAT <const> = '>c16i7i7i7i7i7BB'
-- slots, until
local LINGERING_FORMAT <const> = '>i7i7'
-- generation, granted, life of permits, then value, moved, curve
local GRANT_FORMAT <const> = '>i7i7i7'
local SHARES_FORMAT <const> = '>i7i7B'
local SHARES_BUCKET_FORMAT <const> = '>Bi7i7'

-- x / y rounded down, exact below 2^53; 0 by 0.
local function div(x, y)
  if y == 0 then
    return 0
  end
  local q = x / y
  return q - q % 1
end

-- amount * numerator / denominator rounded down, exact as units.rs says.
local function scale(amount, numerator, denominator)
  local whole = div(amount, denominator)
  return whole * numerator + div((amount - whole * denominator) * numerator, denominator)
end

local function add(a, b)
  return a + b
end

local function minus(a, b)
  return a - b
end

-- What is left, never below 0.
local function less(a, b)
  return a > b and a - b or 0
end

local function part_of(a, unit)
  for i = 5, #a, 3 do
    if a[i] == unit then
      return i
    end
  end
  return nil
end

-- Each amount joined by f with its peer. Units of a decide which there are.
local function zip(a, b, f)
  local out = { f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3]), f(a[4], b[4]) }
  for i = 5, #a, 3 do
    local at = part_of(b, a[i])
    out[i], out[i + 1], out[i + 2] = a[i], f(a[i + 1], at and b[at + 1] or 0), f(a[i + 2], at and b[at + 2] or 0)
  end
  return out
end

-- The same over the units of both, for sums and maxima: what only b has is taken as it is.
local function join(a, b, f)
  local out = zip(a, b, f)
  for i = 5, #b, 3 do
    if not part_of(a, b[i]) then
      local at = #out
      out[at + 1], out[at + 2], out[at + 3] = b[i], b[i + 1], b[i + 2]
    end
  end
  return out
end

local function scaled(a, numerator, denominator)
  local out = {}
  for i = 1, 4 do
    out[i] = scale(a[i], numerator, denominator)
  end
  for i = 5, #a, 3 do
    out[i], out[i + 1], out[i + 2] = a[i], scale(a[i + 1], numerator, denominator), scale(a[i + 2], numerator, denominator)
  end
  return out
end

local function pack_amounts(a)
  local packed = struct.pack(AMOUNTS_FORMAT, a[1], a[2], a[3], a[4], (#a - 4) / 3)
  for i = 5, #a, 3 do
    packed = packed .. struct.pack(UNIT_AMOUNTS_FORMAT, a[i], a[i + 1], a[i + 2])
  end
  return packed
end

local function unpack_amounts(packed, p)
  local a, count = {}, nil
  a[1], a[2], a[3], a[4], count, p = struct.unpack(AMOUNTS_FORMAT, packed, p)
  for i = 5, 4 + 3 * count, 3 do
    a[i], a[i + 1], a[i + 2], p = struct.unpack(UNIT_AMOUNTS_FORMAT, packed, p)
  end
  return a, p
end

local function pack_curve(curve)
  local packed = struct.pack('B', #curve / 2)
  for i = 1, #curve, 2 do
    packed = packed .. struct.pack(STEP_FORMAT, curve[i], curve[i + 1])
  end
  return packed
end

local function unpack_curve(packed, p)
  local curve, count = {}, string.byte(packed, p)
  p = p + 1
  for i = 1, 2 * count, 2 do
    curve[i], curve[i + 1], p = struct.unpack(STEP_FORMAT, packed, p)
  end
  return curve, p
end

local function total_ms(curve)
  local total = 0
  for i = 2, #curve, 2 do
    total = total + curve[i]
  end
  return total
end

-- Units and what was asked of them, from index i of a list on.
local function unpack_asked(list, i, count, packed, p)
  for at = i, i + 2 * count - 1, 2 do
    list[at], list[at + 1], p = struct.unpack(ASKED_FORMAT, packed, p)
  end
  return p
end

local function pack_asked(list, i)
  local packed = ''
  for at = i, #list, 2 do
    packed = packed .. struct.pack(ASKED_FORMAT, list[at], list[at + 1])
  end
  return packed
end

local function unpack_report(packed, p)
  local u, count = {}, nil
  u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], count, p = struct.unpack(REPORT_FORMAT, packed, p)
  p = unpack_asked(u, REPORT_UNITS, count, packed, p)
  return u, p
end

local function pack_report(u)
  return struct.pack(REPORT_FORMAT, u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], (#u - 10) / 2)
    .. pack_asked(u, REPORT_UNITS)
end

local function unpack_terms(packed, p)
  local t = { priority = {} }
  local some, limited
  some, limited, t.priority[1], t.priority[2], t.priority[3], t.part, t.widest, t.longest, t.margin, t.overlap, t.step_max,
    p = struct.unpack(TERMS_FORMAT, packed, p)
  t.some, t.slots_limited = some == 1, limited == 1
  t.curve, p = unpack_curve(packed, p)
  return t, p
end

-- Since the last call, whoever made it.
local quiet = 0

-- nil if leases are not permitted and none is out.
local lending, lending_dirty = nil, false

-- Reads it; an error if it cannot be read.
local function load_lending(key)
  local packed = redis.call('GET', key)
  if not packed then
    return
  end
  lending = { beats = {} }
  local p, lost, count
  lending.number, lending.id, lending.identity, lending.generation, lending.dead, lost, lending.wait, lending.quarantine,
    lending.debt, lending.next_due, lending.holders, lending.proofs, p = struct.unpack(LENDING_FORMAT, packed)
  lending.lost = lost == 1
  lending.terms, p = unpack_terms(packed, p)
  count, p = string.byte(packed, p), p + 1
  for i = 1, count do
    local beat = {}
    beat[1], beat[2], beat[3], p = struct.unpack(BEAT_FORMAT, packed, p)
    lending.beats[i] = beat
  end
  lending.direct, p = unpack_amounts(packed, p)
  lending.charged, p = unpack_amounts(packed, p)
  lending.proved, p = unpack_amounts(packed, p)
  if p ~= #packed + 1 then
    error('lending cannot be read')
  end
end

-- All quotas of the policy, in the units of leases.
local function quota()
  local t, w = lending.terms, whole
  local function per_second(i)
    local whole_ms = div(w[i], w[i + 1])
    return whole_ms * 1000 + div((w[i] - whole_ms * w[i + 1]) * 1000, w[i + 1])
  end
  local limited = w[N_LIMITED] == 1
  local q = {
    limited and per_second(N_ADMISSION) or 0, limited and w[N_ADMISSION + 2] or 0, w[N_RETRY + 2],
    t.slots_limited and w[N_MAX_IN_FLIGHT] or 0,
  }
  for i = N_UNITS, #w, UNIT_NUMBERS do
    local at = #q
    q[at + 1], q[at + 2], q[at + 3] = w[i], per_second(i + 1), w[i + 3]
  end
  return q
end

-- What may be leased of the policy of the moment. A whole token of each burst stays for direct callers, who could do nothing
-- with less, whatever their rate.
local function leasable()
  local q = quota()
  local part = scaled(q, lending.terms.part, PPM)
  for i = 2, #q do
    if i < 4 or (i > 4 and i % 3 == 1) then
      part[i] = math.max(0, math.min(part[i], q[i] - TOKEN))
    end
  end
  part[4] = math.max(0, math.min(part[4], q[4] - 1))
  return part
end

-- Until when permits of unknown leases may be in flight: for their life after the quarantine.
local function slots_until()
  if lending.quarantine <= lending.wait or not lending.terms.slots_limited then
    return lending.quarantine
  end
  return lending.quarantine + whole[N_PERMIT_TTL]
end

-- What may still be out from before the epoch opened.
local function unknown(now)
  if now >= lending.quarantine then
    -- Permits that were taken at the very end of an unknown lease.
    local slots = 0
    if now < slots_until() then
      slots = scale(quota()[4], math.max(lending.terms.widest, lending.terms.part), PPM)
    end
    return { 0, 0, 0, less(slots, lending.proved[4]) }
  end
  -- A part that was lowered a moment ago still counts.
  local t = lending.terms
  return zip(scaled(quota(), math.max(t.widest, t.part), PPM), lending.proved, less)
end

-- What is left for direct callers.
local function direct(now)
  local q = quota()
  if lending.lost and now < lending.wait then
    for i = 1, 4 do
      q[i] = 0
    end
    for i = 5, #q, 3 do
      q[i + 1], q[i + 2] = 0, 0
    end
    return q
  end
  return zip(zip(q, lending.charged, minus), unknown(now), less)
end

-- The policy's numbers with only some amounts of the quotas.
local function within(amounts)
  local w, t = whole, lending.terms
  local m = { unpack(w) }
  local function keep(i, burst)
    local tokens = div(burst, TOKEN)
    for priority = 1, 3 do
      m[i + 2 + priority] = div(tokens * (PPM - t.priority[priority]), PPM) * TOKEN
    end
  end
  local function bucket(i, rate, burst)
    m[i], m[i + 1], m[i + 2] = rate, 1000, burst
    keep(i, burst)
  end
  if w[N_LIMITED] == 1 then
    bucket(N_ADMISSION, amounts[1], amounts[2])
  end
  m[N_RETRY + 2] = amounts[3]
  keep(N_RETRY, amounts[3])
  if t.slots_limited then
    local most = amounts[4]
    m[N_MAX_IN_FLIGHT] = most
    for priority = 1, 3 do
      local kept = div(most * (PPM - t.priority[priority]), PPM)
      m[N_KEEP_IN_FLIGHT + priority] = math.max(0, math.min(kept, most - 1))
    end
  end
  for i = N_UNITS, #w, UNIT_NUMBERS do
    local at = part_of(amounts, w[i])
    bucket(i + 1, at and amounts[at + 1] or 0, at and amounts[at + 2] or 0)
  end
  return m
end

-- Time that ledger time advances by; the rest pays a debt.
local function pay_debt(elapsed)
  elapsed = math.min(elapsed, lending.terms.step_max)
  local paid = math.min(lending.debt, elapsed)
  if paid > 0 then
    lending.debt, lending_dirty = lending.debt - paid, true
  end
  return elapsed - paid
end
--if view

local clock_debt
if leased_mark then
  load_lending(KEYS[2])
  if lending then
    whole, clock_debt = n, lending.debt
    n = within(lending.direct)
  end
end
--end
