-- What one holder is charged: the mirror of budget/src/ledger/leases/holders.rs and lingering.rs, same names, same order. Put
-- after record.lua and shares.lua.

-- Replaces what is charged to a holder in the sum.
local function recharge(before, after)
  if before == after then
    return
  end
  local total = zip(join(lending.charged, after, plus), before, minus)
  local charged = { total[1], total[2], total[3], total[4] }
  -- Units of which nothing is charged are not kept.
  for i = 5, #total, 3 do
    if total[i + 1] ~= 0 or total[i + 2] ~= 0 then
      local at = #charged
      charged[at + 1], charged[at + 2], charged[at + 3] = total[i], total[i + 1], total[i + 2]
    end
  end
  lending.charged = charged
end

-- Part and end of the step of a grant that is charged: each ends a margin later than the holder's. nil beyond the curve.
local function step_at(granted, curve, now)
  local ends = granted + lending.terms.margin
  for i = 1, #curve, 2 do
    ends = ends + curve[i + 1]
    if now < ends then
      return curve[i], ends
    end
  end
  return nil
end

-- At least so many slots are charged until then. Kept are falling numbers by rising times.
local function linger(life, slots, until_ms)
  if slots <= 0 then
    return
  end
  local before, falls, placed = life.lingering, {}, false
  for i = 1, #before, 2 do
    if before[i] >= slots and before[i + 1] >= until_ms then
      return
    end
  end
  for i = 1, #before, 2 do
    local at = #falls
    if not placed and before[i + 1] >= until_ms then
      falls[at + 1], falls[at + 2], at, placed = slots, until_ms, at + 2, true
    end
    if before[i] > slots or before[i + 1] > until_ms then
      falls[at + 1], falls[at + 2] = before[i], before[i + 1]
    end
  end
  if not placed then
    local at = #falls
    falls[at + 1], falls[at + 2] = slots, until_ms
  end
  if #falls > 2 * LINGERING_MAX then
    -- The two that differ least are one: the larger number for the longer time.
    local least, join_at = NEVER, 1
    for i = 1, #falls - 3, 2 do
      if falls[i] - falls[i + 2] < least then
        least, join_at = falls[i] - falls[i + 2], i
      end
    end
    falls[join_at + 2] = falls[join_at]
    table.remove(falls, join_at)
    table.remove(falls, join_at)
  end
  life.lingering = falls
end

-- The maximum over the grants. Slots that go are charged for the life of the permits taken in them.
local function charge_again(life, now, ttl)
  local most, grants = ZERO, life.grants
  for i = 1, #grants do
    local part = step_at(grants[i].granted, grants[i].curve, now)
    if part then
      most = join(most, scaled(grants[i].value, part, PPM), math.max)
    end
  end
  if most[4] < life.slots then
    linger(life, life.slots, now + ttl)
  end
  life.slots, life.charged_at = most[4], now
  local lingering = life.lingering[1]
  if lingering and lingering > most[4] then
    most = { unpack(most) }
    most[4] = lingering
  end
  life.charge = most
end

-- The longest life of a permit of these.
local function ttl_of(grants)
  local ttl = 0
  for i = 1, #grants do
    ttl = math.max(ttl, grants[i].ttl)
  end
  return ttl
end

-- Drops the grants before one that the holder has quoted.
local function quote(record, life, generation, now)
  local before, kept, grants = record_charge(record), {}, life.grants
  for i = 1, #grants do
    if grants[i].generation >= generation then
      kept[#kept + 1] = grants[i]
    end
  end
  life.grants = kept
  charge_again(life, now, ttl_of(grants))
  recharge(before, record_charge(record))
end

-- Drops what has ended of a life. Returns when its charge changes next, nil if nothing is left.
local function step_down_life(life, now)
  local lingering, grants, kept, next_ms = life.lingering, life.grants, {}, nil
  -- Nothing falls twice at the same time.
  local again = life.charged_at ~= now
  while lingering[2] and lingering[2] <= now do
    table.remove(lingering, 1)
    table.remove(lingering, 1)
    again = true
  end
  for i = 1, #grants do
    local part, ends = step_at(grants[i].granted, grants[i].curve, now)
    if part then
      kept[#kept + 1] = grants[i]
      next_ms = next_ms and next_ms < ends and next_ms or ends
    end
  end
  life.grants = kept
  if again then
    charge_again(life, now, ttl_of(grants))
    lingering = life.lingering
  end
  local ends = lingering[2]
  if ends and not (next_ms and next_ms < ends) then
    next_ms = ends
  end
  return next_ms
end

-- Brings the charge of one holder to the present and forgets it when nothing is left.
local function refresh(holder, now)
  local r = records[holder]
  if not r then
    return
  end
  local before, lives, next_ms = record_charge(r), {}, nil
  for i = 1, #r.lives do
    local life = r.lives[i]
    local changes_ms = step_down_life(life, now)
    if changes_ms then
      lives[#lives + 1] = life
      next_ms = next_ms and next_ms < changes_ms and next_ms or changes_ms
    end
  end
  r.lives = lives
  r.due, dirty[holder], dues_of_holders[holder], lending_dirty = next_ms, true, next_ms or false, true
  if next_ms then
    lending.next_due = next_ms < lending.next_due and next_ms or lending.next_due
  else
    change_shares(r.demand, r.weight, -1)
    records[holder] = false
    lending.holders = lending.holders - 1
  end
  recharge(before, record_charge(r))
end
