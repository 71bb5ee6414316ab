-- How much a holder is granted: a share by its demand, clipped to what is free: the mirror of
-- budget/src/ledger/leases/grants.rs, same names, same order. Put after lease.lua.

local max, min = math.max, math.min

-- Of the policy, which all asks of a call have in common: what may be leased, the smallest share of which each step leaves
-- what is of use, and that of the first step.
local lent, smallest, least

local function prepare_grants()
  local t, list = lending.terms, {}
  lent, smallest = leasable(), {}
  -- The bursts of which a lease must hold a whole token (or slot) to be of use.
  if whole[N_LIMITED] == 1 then
    list[1], list[2] = lent[2], TOKEN
  end
  if whole[N_RETRY + 2] > 0 then
    list[#list + 1], list[#list + 2] = lent[3], TOKEN
  end
  if t.slots_limited then
    list[#list + 1], list[#list + 2] = lent[4], 1
  end
  for i = 5, #lent, 3 do
    list[#list + 1], list[#list + 2] = lent[i + 2], TOKEN
  end
  -- A step below a hundredth counts as one.
  for at = 1, #t.curve, 2 do
    local part, most = max(t.curve[at], PART_LEAST), 1
    for i = 1, #list, 2 do
      local held = div(list[i + 1] * PPM + part - 1, part)
      if list[i] < held then
        most = SHARE_ONE + 1
      else
        most = max(most, div(held * SHARE_ONE + list[i] - 1, list[i]))
      end
    end
    smallest[#smallest + 1] = most
  end
  least = smallest[1] or 1
end

-- Units and what was asked of them, from a position of a report on.
local function unpack_asked(report, p)
  local asked = {}
  for at = 1, 2 * (#report - p + 1) / ASKED_BYTES, 2 do
    asked[at], asked[at + 1], p = struct.unpack(ASKED_FORMAT, report, p)
  end
  return asked
end

local function asked_of_unit(asked, unit)
  for i = 1, #asked, 2 do
    if asked[i] == unit then
      return asked[i + 1]
    end
  end
  return 0
end

-- The part of a quota that was asked for per second.
local function part_asked(asked, elapsed, rate)
  if rate == 0 then
    return 0
  end
  local per_ms = min(div(asked, elapsed), div(rate, 1000) + 1)
  local per_second = min(per_ms * 1000, rate)
  local unit = div(rate + 99999999, 100000000)
  return div(div(per_second, unit) * SHARE_ONE, max(div(rate, unit), 1))
end

-- What is asked for, the largest part of a quota, and whether nothing was, since what is measured begins.
local function measure(report, measured, elapsed)
  local q = quota()
  local asked, before, part = struct.unpack('>i7', report), struct.unpack('>i7', measured), SHARE_ONE / 16
  if q[1] > 0 then
    part = part_asked(min(less(asked, before), ATTEMPTS_ASKED_MAX) * TOKEN, elapsed, q[1])
  end
  if #report > REPORT_BYTES then
    local now_asked, then_asked = unpack_asked(report, REPORT_BYTES + 1), unpack_asked(measured, 9)
    for i = 1, #now_asked, 2 do
      local more = less(now_asked[i + 1], asked_of_unit(then_asked, now_asked[i]))
      local at = part_of(q, now_asked[i])
      part = max(part, part_asked(min(more, UNIT_ASKED_MAX), elapsed, at and q[at + 1] or 0))
    end
  end
  return min(part, SHARE_ONE), asked == before
end

-- Chooses the share of a holder, of which this was measured, if anything, and says whether there is less for each than is
-- of use.
local function choose_share(record, newcomer, measured, silent, weight, now)
  change_shares(record.demand, record.weight, -1)
  record.weight = weight
  local demand = record.demand
  if measured then
    local raised, fallen = measured + div(measured, 4), demand - div(demand, 4)
    demand = min(max(raised, fallen), SHARE_ONE)
    record.idle = silent and record.idle + 1 or 0
    if silent then
      demand = 0
    end
  elseif newcomer and record.share == 0 then
    -- Nothing is known of a newcomer: its fair part, at most a quarter.
    demand = min(div(SHARE_ONE * weight, shares.weight + weight), SHARE_ONE / 4)
  end
  record.demand = demand
  change_shares(demand, weight, 1)
  local level = level_of()
  local fair = div(LEASED_OUT * weight, max(shares.weight, 1))
  local wanted, most
  -- What it should have, and what it may have at most.
  if level then
    most = level * weight
    wanted = min(demand, most)
  else
    local spare = div(demand * LEASED_OUT, max(shares.demand, 1))
    -- What nobody asks for is spread over those who ask, but a guess is not doubled, nor what may be left behind by the
    -- next crash.
    local doubled = (newcomer or record.restarted > now) and demand or demand * 2
    wanted, most = min(doubled, spare), LEASED_OUT - shares.demand + demand
  end
  -- Half its part of all there is is its own even if it does not ask for it; and whether as many are served as fit.
  local part = min(max(div(fair, 2), demand), most)
  local crowded = least > most and least <= min(most * 2, div(demand, 2))
  local serves = (least <= most or crowded) and least or 0
  for i = 1, #smallest do
    if smallest[i] <= part then
      serves = smallest[i]
    end
  end
  local share = max(wanted, serves)
  if record.idle == 1 then
    share = min(max(serves, least), record.share)
  elseif record.idle > 1 then
    share = 0
  end
  -- Small changes are not worth a message, unless there is not enough for all: what one keeps another lacks.
  if record.idle == 0 and not (level and share < record.share) and math.abs(share - record.share) <= div(record.share, 8) then
    share = record.share
  end
  if not permits() or least > SHARE_ONE or share < least or record.revoked > now then
    share = 0
  end
  record.share = share
  return share, crowded
end

-- Whether a first step holds less than what is of use.
local function is_too_small(a)
  if (whole[N_LIMITED] == 1 and (a[1] == 0 or a[2] < TOKEN)) or (whole[N_RETRY + 2] > 0 and a[3] < TOKEN)
    or (lending.terms.slots_limited and a[4] < 1) then
    return true
  end
  for i = 5, #a, 3 do
    if a[i + 2] < TOKEN then
      return true
    end
  end
  return false
end

-- Clips a share to what is free: part * quota - charges of the others - UNKNOWN.
local function clip_share(record, life, share, crowded, now)
  local own, unproved = life.charge, unknown(now)
  local others = zip(lending.charged, own, minus)
  local value = scaled(lent, share, SHARE_ONE)
  if record.lives[2] then
    value = zip(value, zip(record_charge(record), own, minus), less)
  end
  local free = zip(lent, others, less)
  if unproved ~= ZERO then
    free = zip(free, unproved, less)
  end
  if lent[4] > 0 then
    -- Slots that direct callers have in flight are charged already, so that they come free one by one and a later request
    -- finds them; else direct callers would take them again for ever. What the holder has is in flight with it, not with them.
    local slots = min(value[4], free[4])
    local of_direct = less(less(less(quota()[4], others[4]), unproved[4]), l[L_IN_FLIGHT])
    free[4] = min(free[4], max(of_direct, life.slots))
    if slots > free[4] then
      linger(life, slots, now + (lending.terms.curve[2] or 0))
    end
  end
  if l[L_ADMISSION] < 0 then
    free[1], free[2] = min(free[1], own[1]), min(free[2], own[2])
  end
  if crowded then
    free = zip(free, scaled(lent, least, SHARE_ONE), less)
  end
  value = zip(value, free, min)
  if is_too_small(scaled(value, lending.terms.curve[1] or PPM, PPM)) then
    value = scaled(value, 0, 1)
  end
  return value
end
