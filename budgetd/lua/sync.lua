-- A sync: judges the request of a holder, counts its report, chooses its share and grants it: the mirror of
-- budget/src/ledger/leases/sync.rs, grants.rs and shares.rs. The function `make_sync` makes it. Put after asks.lua.

local charging = known_charging()
local asked_of, unpack_record, record_charge, recharge, step_of = charging.asked_of, charging.unpack_record,
  charging.record_charge, charging.recharge, charging.step_of
local linger, charge_again, quoted, refresh = charging.linger, charging.charge_again, charging.quoted, charging.refresh

-- Takes back what was renewed of a holder that is decided in full now; when its charge changes next stays. Returns its packed
-- record, nil if there is none.
local function take_renewed(holder)
  local place, last = renewed[holder], #renewals
  if not place then
    return nil
  end
  local packed = renewals[place]
  dues_of_holders[holder] = renewal_dues[place - 1]
  -- The last one moves to its place.
  renewed[renewals[last - 1]] = place
  renewed[holder] = nil
  renewals[place - 1], renewals[place] = renewals[last - 1], renewals[last]
  renewal_dues[place - 1], renewal_dues[place] = renewal_dues[last - 1], renewal_dues[last]
  renewals[last], renewals[last - 1], renewal_dues[last], renewal_dues[last - 1] = nil, nil, nil, nil
  return packed
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

-- Whether less was asked of a unit than had been before.
local function below(report, before)
  local now_asked, then_asked = unpack_asked(report, REPORT_BYTES + 1), unpack_asked(before, REPORT_BYTES + 1)
  for i = 1, #then_asked, 2 do
    if asked_of_unit(now_asked, then_asked[i]) < then_asked[i + 1] then
      return true
    end
  end
  return false
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
    part = part_asked(min(less(asked, before), 1000000000) * TOKEN, elapsed, q[1])
  end
  if #report > REPORT_BYTES then
    local now_asked, then_asked = unpack_asked(report, REPORT_BYTES + 1), unpack_asked(measured, 9)
    for i = 1, #now_asked, 2 do
      local more = less(now_asked[i + 1], asked_of_unit(then_asked, now_asked[i]))
      local at = part_of(q, now_asked[i])
      part = max(part, part_asked(min(more, 1000000000000000), elapsed, at and q[at + 1] or 0))
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
  local fair, wanted, most = div(LEASED_OUT * weight, max(shares.weight, 1)), nil, nil
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

-- Clips a share to what is free: part * quota - charges of the others - UNKNOWN.
local function clip_share(record, life, share, crowded, now)
  local own, unproved = life.charge, unknown(now)
  local others = difference(lending.charged, own)
  local value = scaled(lent, share, SHARE_ONE)
  if record.lives[2] then
    value = left_of(value, difference(record_charge(record), own))
  end
  local free = left_of(lent, others)
  if unproved ~= ZERO then
    free = left_of(free, unproved)
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
    free = left_of(free, scaled(lent, least, SHARE_ONE))
  end
  value = least_of(value, free)
  if is_too_small(scaled(value, lending.terms.curve[1] or PPM, PPM)) then
    value = scaled(value, 0, 1)
  end
  return value
end

-- Grants a lease. Returns the answer and what is left for direct callers.
local function grant(holder, record, life, value, now)
  local curve, ttl = lending.terms.curve, whole[N_PERMIT_TTL]
  lending.generation = lending.generation + 1
  local given = { generation = lending.generation, granted = now, ttl = ttl, value = value, curve = curve, said = '' }
  local before, charge_before = record_charge(record), life.charge
  life.grants[#life.grants + 1] = given
  charge_again(life, now, ttl)
  recharge(before, record_charge(record))
  local charge_after = life.charge
  refresh(holder, now)
  -- Caps grow by what is charged more, never by more than was asked to be moved.
  local after = direct(now)
  local moved = {
    0, take(L_ADMISSION, min(value[2], charge_after[2]) - charge_before[2], whole[N_LIMITED] == 1 and after[2] or 0),
    take(L_RETRY, min(value[3], charge_after[3]) - charge_before[3], after[3]), 0,
  }
  if value[5] then
    local growth = left_of(least_of(value, charge_after), charge_before)
    for i = 5, #growth, 3 do
      moved[i], moved[i + 1], moved[i + 2] = growth[i], 0, 0
      local cap = part_of(after, growth[i])
      for at = L_UNITS, #l, L_UNIT do
        if l[at] == growth[i] and cap then
          moved[i + 2] = take(at + 1, growth[i + 2], after[cap + 2])
        end
      end
    end
  end
  given.said = pack_amounts(value) .. pack_amounts(moved) .. curves[curve]
  return struct.pack(GRANTED_FORMAT, GRANTED, lending.number, lending.id, given.generation, 0) .. given.said, after
end

-- A lease of an earlier epoch joins C once per incarnation and is charged beside any new grant.
local function prove(holder, record, life, presented_at, now)
  local position, p = struct.unpack('>i7', ground_packed, presented_at)
  local value, curve
  value, p = unpack_amounts(ground_packed, p)
  curve = unpack_curve(ground_packed, p)
  local part, ends = nil, 0
  for i = 1, #curve, 2 do
    ends = ends + curve[i + 1]
    if not part and position < ends then
      part = curve[i]
    end
  end
  if not part then
    return
  end
  for i = 1, #new_proofs do
    if new_proofs[i] == life.incarnation then
      return
    end
  end
  if not lending_wiped and redis.call('SISMEMBER', proofs_key, life.incarnation) == 1 then
    return
  end
  new_proofs[#new_proofs + 1] = life.incarnation
  lending.proofs = lending.proofs + 1
  local room = zip(value, lending.charged, function(_, charged)
    return less(PRESENTED_MAX, charged)
  end)
  value = least_of(value, room)
  lending.proved = join(lending.proved, scaled(value, part, PPM), function(a, b)
    return min(a + b, PRESENTED_MAX)
  end)
  local before, ttl = record_charge(record), whole[N_PERMIT_TTL]
  table.insert(life.grants, 1, {
    generation = 0, granted = now - position, ttl = ttl, value = value, curve = curve,
    said = pack_amounts(value) .. pack_amounts(ZERO) .. curves[curve],
  })
  charge_again(life, now, ttl)
  recharge(before, record_charge(record))
  refresh(holder, now)
end

-- Answers the ask that begins at a position. stored: the record of its holder as it was before the first one. Returns the
-- answer, and what is left for direct callers if that was computed.
local function sync(ask_from, stored)
  local _, holder, incarnation, sequence, nonce, epoch_number, epoch_id, weight, leave, presents, of_number, of_id,
    of_generation, report_at = struct.unpack(ASK_FORMAT, ground_packed, ask_from)
  if absent and leave == 1 then
    -- Nothing is begun for the sake of one that goes.
    return LEFT
  end
  absent = false
  if epoch_number > 0
    and (epoch_number > lending.number or (epoch_number == lending.number and epoch_id ~= lending.id)) then
    open_epoch(epoch_number, true)
  end
  local now = l[L_NOW]
  if now < lending.wait then
    return struct.pack(WAIT_FORMAT, WAIT, lending.wait - now)
  end
  if epoch_number ~= lending.number or epoch_id ~= lending.id then
    return struct.pack(OTHER_EPOCH_FORMAT, OTHER_EPOCH, lending.number, lending.id)
  end

  -- What is known of the holder, and of this life of it.
  local record, life = records[holder], nil
  stored = take_renewed(holder) or (not lending_wiped and stored)
  if record == nil and stored then
    local read
    read, record = pcall(unpack_record, stored)
    if not read then
      return UNREADABLE
    end
    records[holder] = record
    dirty[holder] = true
  end
  local lives = record and record.lives or {}
  for i = 1, #lives do
    if lives[i].incarnation == incarnation then
      life = lives[i]
      break
    end
  end
  local current = presents == 1 and of_number == lending.number and of_id == lending.id

  -- The same request gets the same grant at its present position; an older one, or a twin, is fenced.
  if life and sequence <= life.sequence then
    if sequence < life.sequence or nonce ~= life.nonce then
      return FENCED
    end
    for i = 1, #life.grants do
      local g = life.grants[i]
      if g.generation == life.answered then
        if step_of(g, now) and g.generation > lending.dead and now - g.granted < total_ms(g.curve) then
          return struct.pack(GRANTED_FORMAT, GRANTED, lending.number, lending.id, g.generation, now - g.granted) .. g.said
        end
        break
      end
    end
    return DEAD
  end

  local report_ends = report_at + REPORT_BYTES + ASKED_BYTES * string.byte(ground_packed, report_at + REPORT_BYTES - 1)
  local counted_ends = report_ends + REPORT_BYTES
    + ASKED_BYTES * string.byte(ground_packed, report_ends + REPORT_BYTES - 1)
  local report = string.sub(ground_packed, report_at, report_ends - 1)
  local base = life and life.report or string.sub(ground_packed, report_ends, counted_ends - 1)
  local asked, originals, retries, originals_denied, retries_denied, not_sent, fallback_originals, fallback_retries,
    deposited, overuse = struct.unpack(REPORT_FORMAT, report)
  local asked_before, originals_before, retries_before, originals_denied_before, retries_denied_before, not_sent_before,
    fallback_originals_before, fallback_retries_before, deposited_before, overuse_before = struct.unpack(REPORT_FORMAT, base)
  if life then
    if asked < asked_before or originals < originals_before or retries < retries_before
      or originals_denied < originals_denied_before or retries_denied < retries_denied_before
      or not_sent < not_sent_before or fallback_originals < fallback_originals_before
      or fallback_retries < fallback_retries_before or deposited < deposited_before or overuse < overuse_before
      or (#base > REPORT_BYTES and below(report, base)) then
      return USAGE_BACKWARDS
    end
    if current then
      -- One that has ended, or was quoted away, is not remembered.
      local last = life.grants[#life.grants]
      local known = of_generation <= lending.generation and (not last or of_generation < last.generation)
      for i = 1, #life.grants do
        known = known or life.grants[i].generation == of_generation
      end
      if not known then
        return UNKNOWN_GENERATION
      end
    end
  end

  -- Makes sure there is a record.
  if not life then
    local full = lending.holders >= HOLDERS_MAX and not record
    if not (permits() or presents == 1) or full or #lives >= INCARNATIONS_MAX then
      return permits() and TOO_MANY_HOLDERS or NOT_PERMITTED
    end
    life = {
      incarnation = incarnation, sequence = 0, nonce = 0, answered = 0, grants = {}, slots = 0, lingering = {},
      charge = ZERO, report = base, measured_ms = now, measured = asked_of(base),
    }
    if record then
      record.restarted = now + total_ms(lending.terms.curve) + lending.terms.margin
    else
      record = { weight = weight, demand = 0, share = 0, idle = 0, revoked = 0, restarted = 0, due = nil, lives = lives }
      records[holder] = record
      change_shares(0, weight, 1)
      lending.holders = lending.holders + 1
    end
    lives[#lives + 1] = life
  end
  dirty[holder], lending_dirty = true, true

  if report ~= base then
    add_to(L_ORIGINALS_ADMITTED, originals - originals_before)
    add_to(L_ORIGINALS_ADMITTED, fallback_originals - fallback_originals_before)
    add_to(L_RETRIES_ADMITTED, retries - retries_before)
    add_to(L_RETRIES_ADMITTED, fallback_retries - fallback_retries_before)
    add_to(L_ORIGINALS_DENIED, originals_denied - originals_denied_before)
    add_to(L_RETRIES_DENIED, retries_denied - retries_denied_before)
    add_to(L_NOT_SENT, not_sent - not_sent_before)
    add_to(L_DEPOSITED, deposited - deposited_before)
    add_to(L_OVERUSE, overuse - overuse_before)
  end
  life.report = report

  if current then
    quoted(record, life, of_generation, now)
  elseif presents == 1 and now < lending.quarantine and lending.proofs < PROOFS_MAX then
    prove(holder, record, life, counted_ends, now)
  end
  if leave == 1 then
    -- A holder that stops has nothing in use but permits.
    quoted(record, life, math.huge, now)
    refresh(holder, now)
    return LEFT
  end
  if #life.grants >= GRANTS_MAX then
    return DEAD
  end
  local elapsed = now - life.measured_ms
  local newcomer, measured, silent = life.answered == 0, nil, false
  if not newcomer and elapsed >= MEASURE_MS_MIN then
    measured, silent = measure(report, life.measured, elapsed)
    life.measured, life.measured_ms = asked_of(report), now
  end
  local share, crowded = choose_share(record, newcomer, measured, silent, weight, now)
  local value = clip_share(record, life, share, crowded, now)
  life.sequence, life.nonce, life.answered = sequence, nonce, lending.generation + 1
  return grant(holder, record, life, value, now)
end

return sync
