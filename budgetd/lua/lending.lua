-- How lending stands, as far as direct callers and those who only look need it: the mirror of parts of
-- budget/src/ledger/leases.rs. Put after ledger.lua and amounts.lua.

local lending_dirty = false

-- Reads how lending stands; an error if it cannot be read.
local function load_lending(key)
  local packed = redis.call('GET', key)
  if not packed then
    return
  end
  if format_of(packed, 'lending') == 1 then
    packed = lending_from_1(packed)
  end
  local _, number, id, identity, generation, dead, lost, wait, quarantine, debt, next_due, holders, proofs, compared,
    replaced, p = struct.unpack(LENDING_FORMAT, packed)
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
    corrupt('lending')
  end
end

local function pack_lending(format)
  local t = lending.terms
  local beats = string.char(#lending.beats)
  for _, b in ipairs(lending.beats) do
    beats = beats .. struct.pack(BEAT_FORMAT, b[1], b[2], b[3])
  end
  local packed = struct.pack(LENDING_FORMAT, FORMAT_BYTE, lending.number, lending.id, lending.identity, lending.generation, lending.dead,
      lending.lost and 1 or 0, lending.wait, lending.quarantine, lending.debt, lending.next_due, lending.holders,
      lending.proofs, lending.compared, lending.replaced)
    .. struct.pack(TERMS_FORMAT, t.some and 1 or 0, t.slots_limited and 1 or 0, t.priority[1], t.priority[2],
      t.priority[3], t.part, t.widest, t.longest, t.margin, t.overlap, t.step_max)
    .. curves[t.curve] .. beats
    .. pack_amounts(lending.direct) .. pack_amounts(lending.charged) .. pack_amounts(lending.proved)
  return format == 1 and lending_to_1(packed) or packed
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
  return zip(scaled(quota(), math.max(t.widest, t.part), PPM), lending.proved, less)
end

-- What is left for direct callers.
local function direct(now)
  local q = quota()
  if lending.lost and now < lending.wait then
    return scaled(q, 0, 1)
  end
  local unproved = unknown(now)
  if unproved == ZERO then
    return zip(q, lending.charged, less)
  end
  return zip(zip(q, lending.charged, minus), unproved, less)
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
