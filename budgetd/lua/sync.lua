-- Sync: judge a holder's request, count its report, choose its share and grant it: the mirror of
-- budget/src/ledger/leases/sync.rs and shares.rs. Put after lease.lua.
--
-- An ask is packed as ASK_FORMAT, the last report, the one counted before, and, if a lease is presented, its name and
-- position, value and curve. The answer is a list: its kind and what that needs.
--   1, generation, position, value, moved, curve   granted; amounts and curve are packed
--   2 another epoch; 3, ms wait; 4 dead; 5 fenced; 6, why not leased; 7, what is invalid; 8 left

-- holder, incarnation, sequence, nonce, epoch number and id, weight, leave, presents
local ASK_FORMAT <const> = '>Bc0c16i7i7i7i7i4BB'
-- epoch number and id, generation, position
local PRESENTED_FORMAT <const> = '>i7i7i7i7'
local GRANTED <const> = 1
local OTHER_EPOCH <const> = 2
local WAIT <const> = 3
local DEAD <const> = 4
local FENCED <const> = 5
local NOT_LEASED <const> = 6
local INVALID <const> = 7
local LEFT <const> = 8
local NOT_PERMITTED <const> = 1
local TOO_MANY_HOLDERS <const> = 2
local USAGE_BACKWARDS <const> = 1
local UNKNOWN_GENERATION <const> = 2
local GRANTS_MAX <const> = 4
local INCARNATIONS_MAX <const> = 4
local HOLDERS_MAX <const> = 20000
local PROOFS_MAX <const> = 80000
local NEWCOMERS <const> = 500000
-- Reports bring no counter further, so that it can go on exactly.
local REPORTED_MAX <const> = 4503599627370496
local MEASURE_MS_MIN <const> = 1000
local PART_LEAST <const> = 10000
-- Of usage, in the order of the report.
local U_ASKED <const> = 1
local U_ORIGINALS_ADMITTED <const> = 2
local U_RETRIES_ADMITTED <const> = 3
local U_ORIGINALS_DENIED <const> = 4
local U_RETRIES_DENIED <const> = 5
local U_NOT_SENT <const> = 6
local U_FALLBACK_ORIGINALS <const> = 7
local U_FALLBACK_RETRIES <const> = 8
local U_DEPOSITED <const> = 9
local U_OVERUSE <const> = 10

local function sync()
  if not lending then
    return { NOT_LEASED, NOT_PERMITTED }
  end
  local now, p = l[L_NOW], ask_at
  local holder, incarnation, sequence, nonce, epoch_number, epoch_id, weight, leave, presents, usage, counted, lease
  holder, incarnation, sequence, nonce, epoch_number, epoch_id, weight, leave, presents, p =
    struct.unpack(ASK_FORMAT, ground_packed, p)
  if absent and leave == 1 then
    -- Nothing is begun for the sake of one that goes.
    return { LEFT }
  end
  usage, p = unpack_report(ground_packed, p)
  counted, p = unpack_report(ground_packed, p)
  if presents == 1 then
    lease = {}
    lease.number, lease.id, lease.generation, lease.position, p = struct.unpack(PRESENTED_FORMAT, ground_packed, p)
    lease.value, p = unpack_amounts(ground_packed, p)
    lease.curve = unpack_curve(ground_packed, p)
  end

  if epoch_number > 0
    and (epoch_number > lending.number or (epoch_number == lending.number and epoch_id ~= lending.id)) then
    open_epoch(epoch_number, true)
    set_direct()
  end
  if now < lending.wait then
    return { WAIT, lending.wait - now }
  end
  if epoch_number ~= lending.number or epoch_id ~= lending.id then
    return { OTHER_EPOCH }
  end

  -- What is known of the holder, and of this life of it.
  if records[holder] == nil then
    local packed = not lending_wiped and redis.call('HGET', holders_key, holder)
    records[holder] = packed and unpack_record(packed)
  end
  local record, life = records[holder], nil
  for _, other in ipairs(record and record.lives or {}) do
    if other.incarnation == incarnation and not life then
      life = other
    end
  end
  local current = lease and lease.number == lending.number and lease.id == lending.id

  -- The same request gets the same grant at its present position; an older one, or a twin, is fenced.
  if life and sequence <= life.sequence then
    if sequence < life.sequence or nonce ~= life.nonce then
      return { FENCED }
    end
    for _, g in ipairs(life.grants) do
      if g.generation == life.answered then
        if step_of(g, now) and g.generation > lending.dead and now - g.granted < total_ms(g.curve) then
          return {
            GRANTED, g.generation, now - g.granted, pack_amounts(g.value), pack_amounts(g.moved), pack_curve(g.curve),
          }
        end
        break
      end
    end
    return { DEAD }
  end

  if life then
    local function below(now_list, before, from)
      for i = from, #before, 2 do
        local asked = 0
        for j = from, #now_list, 2 do
          if now_list[j] == before[i] then
            asked = now_list[j + 1]
            break
          end
        end
        if asked < before[i + 1] then
          return true
        end
      end
      return false
    end
    for i = 1, 10 do
      if usage[i] < life.usage[i] then
        return { INVALID, USAGE_BACKWARDS }
      end
    end
    if below(usage, life.usage, REPORT_UNITS) then
      return { INVALID, USAGE_BACKWARDS }
    end
    if current then
      -- One that has ended, or was quoted away, is not remembered.
      local last = life.grants[#life.grants]
      local known = lease.generation <= lending.generation and (not last or lease.generation < last.generation)
      for _, g in ipairs(life.grants) do
        known = known or g.generation == lease.generation
      end
      if not known then
        return { INVALID, UNKNOWN_GENERATION }
      end
    end
  end

  -- Makes sure there is a record.
  if not life then
    local full = lending.holders >= HOLDERS_MAX and not record
    if not (permits() or lease) or full or (record and #record.lives >= INCARNATIONS_MAX) then
      return { NOT_LEASED, permits() and TOO_MANY_HOLDERS or NOT_PERMITTED }
    end
    local measured = { counted[U_ASKED] }
    for i = REPORT_UNITS, #counted do
      measured[#measured + 1] = counted[i]
    end
    life = {
      incarnation = incarnation, sequence = 0, nonce = 0, answered = 0, grants = {}, slots = 0, lingering = {},
      charge = { 0, 0, 0, 0 }, usage = counted, measured_ms = now, measured = measured,
    }
    if record then
      record.restarted = now + total_ms(lending.terms.curve) + lending.terms.margin
    else
      record = { weight = weight, demand = 0, share = 0, idle = 0, revoked = 0, restarted = 0, due = nil, lives = {} }
      records[holder] = record
      change_shares(0, weight, 1)
      lending.holders = lending.holders + 1
    end
    record.lives[#record.lives + 1] = life
  end
  dirty[holder], lending_dirty = true, true

  -- Adds what the report has more than the last one.
  local function count(counter, ...)
    for _, i in ipairs({ ... }) do
      l[counter] = math.max(l[counter], math.min(l[counter] + less(usage[i], life.usage[i]), REPORTED_MAX))
    end
  end
  count(ORIGINALS_ADMITTED, U_ORIGINALS_ADMITTED, U_FALLBACK_ORIGINALS)
  count(RETRIES_ADMITTED, U_RETRIES_ADMITTED, U_FALLBACK_RETRIES)
  count(ORIGINALS_DENIED, U_ORIGINALS_DENIED)
  count(RETRIES_DENIED, U_RETRIES_DENIED)
  count(NOT_SENT, U_NOT_SENT)
  count(DEPOSITED, U_DEPOSITED)
  count(OVERUSE, U_OVERUSE)
  life.usage = usage

  -- Drops the grants that the holder has left behind.
  local function quoted(generation)
    local before = record_charge(record)
    keep_grants(life, now, function(g)
      return g.generation >= generation
    end)
    recharge(before, record_charge(record))
  end
  if current then
    quoted(lease.generation)
  end

  -- A lease of an earlier epoch joins C once per incarnation and is charged beside any new grant.
  if lease and not current and now < lending.quarantine and lending.proofs < PROOFS_MAX then
    local part, ends = nil, 0
    for i = 1, #lease.curve, 2 do
      ends = ends + lease.curve[i + 1]
      if not part and lease.position < ends then
        part = lease.curve[i]
      end
    end
    if part and (lending_wiped or redis.call('SISMEMBER', proofs_key, incarnation) == 0) then
      new_proofs[1] = incarnation
      lending.proofs = lending.proofs + 1
      local room = zip(lease.value, lending.charged, function(_, charged)
        return less(PRESENTED_MAX, charged)
      end)
      local value = zip(lease.value, room, math.min)
      lending.proved = join(lending.proved, scaled(value, part, PPM), function(a, b)
        return math.min(a + b, PRESENTED_MAX)
      end)
      local before = record_charge(record)
      table.insert(life.grants, 1, {
        generation = 0, granted = now - lease.position, ttl = n[N_PERMIT_TTL], value = value,
        moved = { 0, 0, 0, 0 }, curve = lease.curve,
      })
      charge_again(life, now, n[N_PERMIT_TTL])
      recharge(before, record_charge(record))
      refresh(holder, now)
    end
  end

  if leave == 1 then
    -- A holder that stops has nothing in use but permits.
    quoted(math.huge)
    refresh(holder, now)
    return { LEFT }
  end
  if #life.grants >= GRANTS_MAX then
    return { DEAD }
  end

  -- The bursts of which a lease must hold a whole token (or slot) to be of use.
  local t, q, available = lending.terms, quota(), SHARE_ONE - NEWCOMERS
  local lent = leasable()
  local function needed(a)
    local list = {}
    if whole[N_LIMITED] == 1 then
      list[1], list[2] = a[2], TOKEN
    end
    if whole[N_RETRY + 2] > 0 then
      list[#list + 1], list[#list + 2] = a[3], TOKEN
    end
    if t.slots_limited then
      list[#list + 1], list[#list + 2] = a[4], 1
    end
    for i = 5, #a, 3 do
      list[#list + 1], list[#list + 2] = a[i + 2], TOKEN
    end
    return list
  end
  -- The smallest share of which each step leaves what is of use; a step below a hundredth counts as one.
  local smallest, list = {}, needed(lent)
  for at = 1, #t.curve, 2 do
    local part, most = math.max(t.curve[at], PART_LEAST), 1
    for i = 1, #list, 2 do
      local least = div(list[i + 1] * PPM + part - 1, part)
      if list[i] < least then
        most = SHARE_ONE + 1
      else
        most = math.max(most, div(least * SHARE_ONE + list[i] - 1, list[i]))
      end
    end
    smallest[#smallest + 1] = most
  end
  local least = smallest[1] or 1

  -- Measures what the holder asks for, the largest part of a quota per second.
  local elapsed = now - life.measured_ms
  local newcomer, measured, silent = life.answered == 0, nil, false
  if not newcomer and elapsed >= MEASURE_MS_MIN then
    local function part(asked, rate)
      if rate == 0 then
        return 0
      end
      local per_ms = math.min(div(asked, elapsed), div(rate, 1000) + 1)
      local per_second = math.min(per_ms * 1000, rate)
      local unit = div(rate + 99999999, 100000000)
      return div(div(per_second, unit) * SHARE_ONE, math.max(div(rate, unit), 1))
    end
    local before = life.measured
    if q[1] > 0 then
      measured = part(math.min(less(usage[U_ASKED], before[1]), 1000000000) * TOKEN, q[1])
    else
      measured = SHARE_ONE / 16
    end
    for i = REPORT_UNITS, #usage, 2 do
      local then_asked, at = 0, part_of(q, usage[i])
      for j = 2, #before, 2 do
        if before[j] == usage[i] then
          then_asked = before[j + 1]
          break
        end
      end
      measured = math.max(measured, part(math.min(less(usage[i + 1], then_asked), 1000000000000000), at and q[at + 1] or 0))
    end
    measured = math.min(measured, SHARE_ONE)
    silent = usage[U_ASKED] == before[1]
    life.measured, life.measured_ms = { usage[U_ASKED] }, now
    for i = REPORT_UNITS, #usage do
      life.measured[i - REPORT_UNITS + 2] = usage[i]
    end
  end

  -- Chooses its share.
  change_shares(record.demand, record.weight, -1)
  record.weight = weight
  if measured then
    local raised = measured + div(measured, 4)
    record.demand = math.min(math.max(raised, record.demand - div(record.demand, 4)), SHARE_ONE)
    record.idle = silent and record.idle + 1 or 0
    if silent then
      record.demand = 0
    end
  elseif newcomer and record.share == 0 then
    -- Nothing is known of a newcomer: its fair part, at most a quarter.
    local fair = div(SHARE_ONE * record.weight, shares.weight + record.weight)
    record.demand = math.min(fair, SHARE_ONE / 4)
  end
  change_shares(record.demand, record.weight, 1)
  -- The most that one unit of weight gets; nil if all demands fit.
  local level, left, weight_left = nil, available, shares.weight
  for i = 0, SHARE_BUCKETS - 1 do
    local sums = shares[i]
    if not level and sums and sums[1] > 0 then
      local of_one = div(math.max(left, 0), weight_left)
      if sums[2] > of_one * sums[1] then
        level = of_one
      else
        left, weight_left = left - sums[2], weight_left - sums[1]
      end
    end
  end
  local fair, wanted, most = div(available * record.weight, math.max(shares.weight, 1)), nil, nil
  -- What it should have, and what it may have at most.
  if level then
    most = level * record.weight
    wanted = math.min(record.demand, most)
  else
    local spare = div(record.demand * available, math.max(shares.demand, 1))
    -- What nobody asks for is spread over those who ask, but a guess is not doubled, nor what may be left behind by the
    -- next crash.
    local doubled = (newcomer or record.restarted > now) and record.demand or record.demand * 2
    wanted, most = math.min(doubled, spare), available - shares.demand + record.demand
  end
  -- Half its part of all there is is its own even if it does not ask for it; and whether as many are served as fit.
  local part = math.min(math.max(div(fair, 2), record.demand), most)
  local crowded = least > most and least <= math.min(most * 2, div(record.demand, 2))
  local serves = (least <= most or crowded) and least or 0
  for _, of_step in ipairs(smallest) do
    if of_step <= part then
      serves = of_step
    end
  end
  local share = math.max(wanted, serves)
  if record.idle == 1 then
    share = math.min(math.max(serves, least), record.share)
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

  -- Clips it to what is free: part * quota - charges of the others - UNKNOWN.
  local own = life.charge
  local siblings = zip(record_charge(record), own, minus)
  local others, unproved = zip(lending.charged, own, minus), unknown(now)
  local value = zip(scaled(lent, share, SHARE_ONE), siblings, less)
  local free = zip(zip(lent, others, less), unproved, less)
  -- Slots that direct callers have in flight are charged already, so that they come free one by one and a later request
  -- finds them; else direct callers would take them again for ever. What the holder has is in flight with it, not with them.
  local slots = math.min(value[4], free[4])
  free[4] = math.min(free[4], math.max(less(less(less(q[4], others[4]), unproved[4]), l[L_IN_FLIGHT]), life.slots))
  if slots > free[4] then
    linger(life, slots, now + (t.curve[2] or 0))
  end
  if l[L_ADMISSION] < 0 then
    free[1], free[2] = math.min(free[1], own[1]), math.min(free[2], own[2])
  end
  value = zip(value, zip(free, scaled(lent, crowded and least or 0, SHARE_ONE), less), math.min)
  local first = scaled(value, t.curve[1] or PPM, PPM)
  local too_small = whole[N_LIMITED] == 1 and first[1] == 0
  list = needed(first)
  for i = 1, #list, 2 do
    too_small = too_small or list[i] < list[i + 1]
  end
  if too_small then
    value = scaled(value, 0, 1)
  end

  -- Grants it.
  lending.generation = lending.generation + 1
  local given = {
    generation = lending.generation, granted = now, ttl = whole[N_PERMIT_TTL], value = value, moved = { 0, 0, 0, 0 },
    curve = t.curve,
  }
  local before, charge_before = record_charge(record), own
  life.grants[#life.grants + 1] = given
  charge_again(life, now, given.ttl)
  life.sequence, life.nonce, life.answered = sequence, nonce, given.generation
  local charge_after = life.charge
  recharge(before, record_charge(record))
  refresh(holder, now)

  -- Caps grow by what is charged more, never by more than was asked to be moved. What goes into them is withdrawn from the
  -- central levels: half of a level, or what would be clipped.
  local growth, after = zip(zip(value, charge_after, math.min), charge_before, less), direct(now)
  local function take(at, grown, cap)
    local held = math.max(l[at], 0)
    local moved = math.min(grown, math.max(div(held, 2), held - cap))
    l[at] = l[at] - moved
    return moved
  end
  local moved = scaled(growth, 0, 1)
  moved[2] = take(L_ADMISSION, growth[2], whole[N_LIMITED] == 1 and after[2] or 0)
  moved[3] = take(L_RETRY, growth[3], after[3])
  for i = 5, #moved, 3 do
    local cap = part_of(after, moved[i])
    for at = L_UNITS, #l, L_UNIT do
      if l[at] == moved[i] and cap then
        moved[i + 2] = take(at + 1, growth[i + 2], after[cap + 2])
      end
    end
  end
  given.moved = moved
  return { GRANTED, given.generation, 0, pack_amounts(value), pack_amounts(moved), pack_curve(given.curve) }
end

-- Takes a holder's lease away from its next sync on, for as long as one curve lasts. 0 if no such holder is known.
local function revoke()
  local holder = struct.unpack('>Bc0', ground_packed, ask_at)
  local packed = lending and records[holder] == nil and not lending_wiped and redis.call('HGET', holders_key, holder)
  if packed then
    records[holder] = unpack_record(packed)
  end
  local record = lending and records[holder]
  if not record then
    return { 0 }
  end
  record.revoked, dirty[holder] = l[L_NOW] + total_ms(lending.terms.curve), true
  return { 1 }
end
