-- What a ledger that lends has beside its numbers: amounts and curves, and how lending stands, as far as direct callers
-- and those who only look need it. The mirror of parts of budget/src/lease.rs and budget/src/ledger/leases.rs. Put after
-- ledger.lua.
--
-- Amounts are a list: rate, burst, retry burst, slots, then for each unit its id, rate and burst. Curves are a list: part
-- and duration of each step. A report stays packed as it came.

local SHARE_ONE <const> = 10000000
local DUE_PER_CALL_MAX <const> = 64
local LINGERING_MAX <const> = 4
local SHARE_BUCKETS <const> = 64
local NEVER <const> = 9007199254740991
local EPOCH_NUMBER_MAX <const> = 4503599627370496
-- Nothing presented makes a sum of charges exceed this, so that all sums stay exact.
local PRESENTED_MAX <const> = 4503599627370496

-- whether there are terms, slots limited, part of each priority, part leased, widest part, longest curve, margin, overlap,
-- step_max, then the curve
local TERMS_FORMAT <const> = '>BBi4i4i4i4i4i4i4i4i4'
-- identity, number and id of the epoch remembered, fresh id, fresh store, has beat, boot id, its clock; 1: asks
-- follow, 2: the name of a holder to be revoked
local GROUND_FORMAT <const> = '>i7i7i7i7BBi7i7B'
-- epoch number and id, identity, generation, dead generation, lost, wait until, quarantine until, debt, next due, holders,
-- proofs, compared, replaced, then terms, beats, direct, charged, proved
local LENDING_FORMAT <const> = '>i7i7i7i7i7Bi7i7i7i7i4i4i7i7'
local BEAT_FORMAT <const> = '>i7i7i7'
local AMOUNTS_FORMAT <const> = '>i7i7i7i7B'
local UNIT_AMOUNTS_FORMAT <const> = '>i7i7i7'
local AMOUNTS_BYTES <const> = 29
local UNIT_AMOUNTS_BYTES <const> = 21
local STEP_FORMAT <const> = '>i4i4'
local STEP_BYTES <const> = 8
-- ten counters, of which the first is what was asked for, and the number of units; then each unit and what was asked of it
local REPORT_FORMAT <const> = '>i7i7i7i7i7i7i7i7i7i7B'
local REPORT_BYTES <const> = 71
local ASKED_FORMAT <const> = '>i7i7'
local ASKED_BYTES <const> = 14
-- weight, demand, share, idle, revoked until, restarted until, due or -1, number of lives
local RECORD_OF_HOLDER_FORMAT <const> = '>i4i4i4i4i7i7i7B'
-- incarnation, sequence, nonce, answered, slots, measured, number of lingering slots, number of grants, then the lingering
-- slots, charge, the last report, and what of a report says what had been asked when measuring began
local LIFE_FORMAT <const> = '>c16i7i7i7i7i7BB'
-- slots, until
local LINGERING_FORMAT <const> = '>i7i7'
-- generation, granted, life of permits, then value, moved, curve
local GRANT_FORMAT <const> = '>i7i7i7'
local SHARES_FORMAT <const> = '>i7i7B'
-- One behind the other: bucket, weights, demands.
local SHARES_BUCKET_FORMAT <const> = 'Bi7i7'

local struct = struct

-- x / y rounded down, exact below 2^53; 0 by 0.
local function div(x, y)
  if y == 0 then
    return 0
  end
  local q = x / y
  return q - q % 1
end

-- amount * numerator / denominator rounded down, exact as units.rs says. No denominator is 0.
local function scale(amount, numerator, denominator)
  local whole = amount / denominator
  whole = whole - whole % 1
  local part = (amount - whole * denominator) * numerator / denominator
  return whole * numerator + (part - part % 1)
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

-- Amounts are values: a list is not changed once others may have it.
local ZERO = { 0, 0, 0, 0 }

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

-- The same by the operations that renewals need most, which most of the time are about no units.
local function sum(a, b)
  if a[5] or b[5] then
    return join(a, b, add)
  end
  return { a[1] + b[1], a[2] + b[2], a[3] + b[3], a[4] + b[4] }
end

local function difference(a, b)
  if a[5] then
    return zip(a, b, minus)
  end
  return { a[1] - b[1], a[2] - b[2], a[3] - b[3], a[4] - b[4] }
end

local function left_of(a, b)
  if a[5] then
    return zip(a, b, less)
  end
  local rate, burst, retry, slots = a[1] - b[1], a[2] - b[2], a[3] - b[3], a[4] - b[4]
  return { rate > 0 and rate or 0, burst > 0 and burst or 0, retry > 0 and retry or 0, slots > 0 and slots or 0 }
end

local function most_of(a, b)
  if a[5] or b[5] then
    return join(a, b, math.max)
  end
  return {
    a[1] > b[1] and a[1] or b[1], a[2] > b[2] and a[2] or b[2], a[3] > b[3] and a[3] or b[3], a[4] > b[4] and a[4] or b[4],
  }
end

local function least_of(a, b)
  if a[5] then
    return zip(a, b, math.min)
  end
  return {
    a[1] < b[1] and a[1] or b[1], a[2] < b[2] and a[2] or b[2], a[3] < b[3] and a[3] or b[3], a[4] < b[4] and a[4] or b[4],
  }
end

local function scaled(a, numerator, denominator)
  if numerator == denominator then
    return a
  end
  local out = {
    scale(a[1], numerator, denominator), scale(a[2], numerator, denominator), scale(a[3], numerator, denominator),
    scale(a[4], numerator, denominator),
  }
  for i = 5, #a, 3 do
    out[i], out[i + 1], out[i + 2] = a[i], scale(a[i + 1], numerator, denominator), scale(a[i + 2], numerator, denominator)
  end
  return out
end

local function pack_amounts(a)
  local packed = struct.pack(AMOUNTS_FORMAT, a[1], a[2], a[3], a[4], a[5] and (#a - 4) / 3 or 0)
  for i = 5, #a, 3 do
    packed = packed .. struct.pack(UNIT_AMOUNTS_FORMAT, a[i], a[i + 1], a[i + 2])
  end
  return packed
end

local function unpack_amounts(packed, p)
  local rate, burst, retry, slots, count, a
  rate, burst, retry, slots, count, p = struct.unpack(AMOUNTS_FORMAT, packed, p)
  a = { rate, burst, retry, slots }
  for i = 5, 4 + 3 * count, 3 do
    a[i], a[i + 1], a[i + 2], p = struct.unpack(UNIT_AMOUNTS_FORMAT, packed, p)
  end
  return a, p
end

-- Most curves of a call are equal: each by its text, and the text of each.
local curves = {}

local function unpack_curve(packed, p)
  local count = string.byte(packed, p)
  local ends = p + STEP_BYTES * count
  local text = string.sub(packed, p, ends)
  local curve = curves[text]
  if not curve then
    curve, p = {}, p + 1
    for i = 1, 2 * count, 2 do
      curve[i], curve[i + 1], p = struct.unpack(STEP_FORMAT, packed, p)
    end
    curves[text], curves[curve] = curve, text
  end
  return curve, ends + 1
end

local function total_ms(curve)
  local total = 0
  for i = 2, #curve, 2 do
    total = total + curve[i]
  end
  return total
end

-- A list or a record that is made with all that it will hold is not copied as it grows.
local function unpack_terms(packed, p)
  local some, limited, sheddable, default, critical, part, widest, longest, margin, overlap, step_max, curve
  some, limited, sheddable, default, critical, part, widest, longest, margin, overlap, step_max, p =
    struct.unpack(TERMS_FORMAT, packed, p)
  curve, p = unpack_curve(packed, p)
  return {
    some = some == 1, slots_limited = limited == 1, priority = { sheddable, default, critical }, part = part,
    widest = widest, longest = longest, margin = margin, overlap = overlap, step_max = step_max, curve = curve,
  }, p
end

local lending_dirty = false

-- Reads it; an error if it cannot be read.
local function load_lending(key)
  local packed = redis.call('GET', key)
  if not packed then
    return
  end
  local number, id, identity, generation, dead, lost, wait, quarantine, debt, next_due, holders, proofs, compared, replaced, p =
    struct.unpack(LENDING_FORMAT, packed)
  local terms, left, charged, proved, count
  terms, p = unpack_terms(packed, p)
  count, p = string.byte(packed, p), p + 1
  local beats = {}
  for i = 1, count do
    local boot, at, now
    boot, at, now, p = struct.unpack(BEAT_FORMAT, packed, p)
    beats[i] = { boot, at, now }
  end
  left, p = unpack_amounts(packed, p)
  charged, p = unpack_amounts(packed, p)
  proved, p = unpack_amounts(packed, p)
  lending = {
    number = number, id = id, identity = identity, generation = generation, dead = dead, lost = lost == 1, wait = wait,
    quarantine = quarantine, debt = debt, next_due = next_due, holders = holders, proofs = proofs, terms = terms,
    beats = beats, direct = left, charged = charged, proved = proved, compared = compared, replaced = replaced,
  }
  if p ~= #packed + 1 then
    error('lending cannot be read')
  end
end

-- All quotas of the policy, in the units of leases. Made once for the numbers they come from.
local quotas, quotas_of

local function quota()
  if quotas_of == whole then
    return quotas
  end
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
  quotas, quotas_of = q, w
  return q
end

-- What may be leased of the policy of the moment. A whole token of each burst stays for direct callers, who could do nothing
-- with less, whatever their rate.
local function leasable()
  local q, part = quota(), lending.terms.part
  local function most(i, one)
    return math.max(0, math.min(scale(q[i], part, PPM), q[i] - one))
  end
  local lent = { scale(q[1], part, PPM), most(2, TOKEN), most(3, TOKEN), most(4, 1) }
  for i = 5, #q, 3 do
    lent[i], lent[i + 1], lent[i + 2] = q[i], scale(q[i + 1], part, PPM), most(i + 2, TOKEN)
  end
  return lent
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
    slots = less(slots, lending.proved[4])
    return slots > 0 and { 0, 0, 0, slots } or ZERO
  end
  -- A part that was lowered a moment ago still counts.
  local t = lending.terms
  return left_of(scaled(quota(), math.max(t.widest, t.part), PPM), lending.proved)
end

-- What is left for direct callers.
local function direct(now)
  local q = quota()
  if lending.lost and now < lending.wait then
    return scaled(q, 0, 1)
  end
  local charged, unproved = lending.charged, unknown(now)
  if unproved == ZERO then
    return left_of(q, charged)
  end
  return left_of(difference(q, charged), unproved)
end

-- The policy's numbers with only some amounts of the quotas.
local function within(amounts)
  local w, t = whole, lending.terms
  local m = { unpack(w) }
  local sheddable, default, critical = PPM - t.priority[1], PPM - t.priority[2], PPM - t.priority[3]
  local function keep(i, burst)
    local tokens = div(burst, TOKEN)
    m[i + 3] = sheddable > 0 and div(tokens * sheddable, PPM) * TOKEN or 0
    m[i + 4] = default > 0 and div(tokens * default, PPM) * TOKEN or 0
    m[i + 5] = critical > 0 and div(tokens * critical, PPM) * TOKEN or 0
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

-- How far calls have advanced ledger time since it was last compared with a host's clock.
local function stepped()
  return lending.compared == 0 and 0 or less(l[L_NOW] - lending.debt, lending.compared)
end

-- Time that ledger time advances by; the rest pays a debt.
function pay_debt(elapsed)
  elapsed = math.min(elapsed, less(lending.terms.step_max, stepped()))
  local paid = math.min(lending.debt, elapsed)
  if paid > 0 then
    lending.debt, lending_dirty = lending.debt - paid, true
  end
  return elapsed - paid
end
