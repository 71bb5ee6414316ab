-- Sync: judges the request of a holder, counts its report and grants it a lease: the mirror of
-- budget/src/ledger/leases/sync.rs, same names, same order. Put after grants.lua. The layout of asks and answers stands at the
-- head of lending.lua.

-- Answers the ask that begins at a position, see below.
local sync
do
  -- Takes apart the ask that begins at a position. Reports stay as they came.
  local function unpack_ask(from)
    local _, holder, incarnation, sequence, nonce, number, id, weight, leave, presents, of_number, of_id, of_generation,
      report_at = struct.unpack(ASK_FORMAT, ground_packed, from)
    local counted_at = report_at + REPORT_BYTES + ASKED_BYTES * string.byte(ground_packed, report_at + REPORT_BYTES - 1)
    local presented_at = counted_at + REPORT_BYTES + ASKED_BYTES * string.byte(ground_packed, counted_at + REPORT_BYTES - 1)
    return {
      holder = holder, incarnation = incarnation, sequence = sequence, nonce = nonce, number = number, id = id,
      weight = weight, leave = leave == 1, presents = presents == 1, of_number = of_number, of_id = of_id,
      of_generation = of_generation, report = string.sub(ground_packed, report_at, counted_at - 1),
      counted = string.sub(ground_packed, counted_at, presented_at - 1), presented_at = presented_at,
    }
  end

  -- Whether what is kept of a holder can be read; its record and the life that asks, each nil or false if there is none.
  -- stored: its packed record as it was before the first ask.
  local function find_life(ask, stored)
    local holder = ask.holder
    stored = renewed[holder] or (not lending_wiped and stored)
    renewed[holder] = nil
    if records[holder] == nil and stored then
      local readable, record = pcall(unpack_record, stored)
      if not readable then
        return false
      end
      records[holder], dirty[holder] = record, true
    end
    local record = records[holder]
    for i = 1, record and #record.lives or 0 do
      if record.lives[i].incarnation == ask.incarnation then
        return true, record, record.lives[i]
      end
    end
    return true, record, nil
  end

  local function granted(generation, position, said)
    return struct.pack(GRANTED_FORMAT, SYNC_GRANTED, lending.number, lending.id, generation, position) .. said
  end

  -- The same request gets the same grant at its present position; an older one, or a twin, is fenced. nil: it is a new one.
  local function recall(life, ask, now)
    if ask.sequence > life.sequence then
      return nil
    end
    if ask.sequence < life.sequence or ask.nonce ~= life.nonce then
      return FENCED
    end
    for i = 1, #life.grants do
      local g = life.grants[i]
      if g.generation == life.answered then
        local position = now - g.granted
        if step_at(g.granted, g.curve, now) and g.generation > lending.dead and position < total_ms(g.curve) then
          return granted(g.generation, position, g.said)
        end
        return DEAD
      end
    end
    return DEAD
  end

  -- What a report has more than one before, of each counter, and whether it has less of anything.
  local function more_of(report, before)
    local more, counted, is_less = { struct.unpack(REPORT_FORMAT, report) }, { struct.unpack(REPORT_FORMAT, before) }, false
    for i = 1, COUNTERS do
      more[i] = more[i] - counted[i]
      is_less = is_less or more[i] < 0
    end
    if #before > REPORT_BYTES then
      local asked, asked_before = unpack_asked(report, REPORT_BYTES + 1), unpack_asked(before, REPORT_BYTES + 1)
      for i = 1, #asked_before, 2 do
        is_less = is_less or asked_of_unit(asked, asked_before[i]) < asked_before[i + 1]
      end
    end
    return more, is_less
  end

  -- Whether a life may quote a grant. One that has ended, or was quoted away, is not remembered.
  local function was_granted(life, generation)
    for i = 1, #life.grants do
      if life.grants[i].generation == generation then
        return true
      end
    end
    local last = life.grants[#life.grants]
    return generation <= lending.generation and (not last or generation < last.generation)
  end

  -- Makes a life, and a record if there is none. nil if the limits of what is kept are reached or leases are not permitted.
  local function admit_life(record, ask, now)
    -- A holder of an earlier lease may prove it even if no new one is permitted.
    if not (permits() or ask.presents) or (not record and lending.holders >= HOLDERS_MAX)
      or (record and #record.lives >= INCARNATIONS_MAX) then
      return nil
    end
    if record then
      record.restarted = now + total_ms(lending.terms.curve) + lending.terms.margin
    else
      record = { weight = ask.weight, demand = 0, share = 0, idle = 0, revoked = 0, restarted = 0, due = nil, lives = {} }
      records[ask.holder] = record
      change_shares(0, ask.weight, 1)
      lending.holders = lending.holders + 1
    end
    local life = {
      incarnation = ask.incarnation, sequence = 0, nonce = 0, answered = 0, grants = {}, slots = 0, lingering = {},
      charge = ZERO, report = ask.counted, measured_ms = now, measured = asked_of(ask.counted),
    }
    record.lives[#record.lives + 1] = life
    return record, life
  end

  -- Adds to a counter what a report has more than the last one.
  local function add_to(counter, more)
    if more > 0 then
      l[counter] = max(l[counter], min(l[counter] + more, REPORTED_MAX))
    end
  end

  -- Adds what a report has more than the last one.
  local function count(more)
    local _, originals, retries, originals_denied, retries_denied, not_sent, fallback_originals, fallback_retries, deposited,
      overuse = unpack(more, 1, COUNTERS)
    add_to(L_ORIGINALS_ADMITTED, originals)
    add_to(L_ORIGINALS_ADMITTED, fallback_originals)
    add_to(L_RETRIES_ADMITTED, retries)
    add_to(L_RETRIES_ADMITTED, fallback_retries)
    add_to(L_ORIGINALS_DENIED, originals_denied)
    add_to(L_RETRIES_DENIED, retries_denied)
    add_to(L_NOT_SENT, not_sent)
    add_to(L_DEPOSITED, deposited)
    add_to(L_OVERUSE, overuse)
  end

  -- A lease of an earlier epoch joins C once per incarnation and is charged beside any new grant.
  local function prove(ask, record, life, now)
    local position, p = struct.unpack(POSITION_FORMAT, ground_packed, ask.presented_at)
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
    value = zip(value, lending.charged, function(presented, charged)
      return min(presented, less(PRESENTED_MAX, charged))
    end)
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
    refresh(ask.holder, now)
  end

  -- Withdraws from a level what goes into a cap that grows: half of the level, or what would be clipped.
  local function take(at, grown, cap)
    if grown <= 0 then
      return 0
    end
    local held = max(l[at], 0)
    local moved = min(grown, max(div(held, 2), held - cap))
    l[at] = l[at] - moved
    return moved
  end

  -- Withdraws from the levels what goes into caps that grow from what was charged before to what is charged now, never more than
  -- the lease holds. after: what is left for direct callers.
  local function move_levels(value, before, charged, after)
    local moved = {
      0, take(L_ADMISSION, min(value[2], charged[2]) - before[2], whole[N_LIMITED] == 1 and after[2] or 0),
      take(L_RETRY, min(value[3], charged[3]) - before[3], after[3]), 0,
    }
    for i = 5, #value, 3 do
      local unit, of_charged, of_before, cap = value[i], part_of(charged, value[i]), part_of(before, value[i]), part_of(after, value[i])
      moved[i], moved[i + 1], moved[i + 2] = unit, 0, 0
      for at = L_UNITS, #l, L_UNIT do
        if l[at] == unit and cap then
          local grown = min(value[i + 2], of_charged and charged[of_charged + 2] or 0) - (of_before and before[of_before + 2] or 0)
          moved[i + 2] = take(at + 1, grown, after[cap + 2])
        end
      end
    end
    return moved
  end

  -- Grants a lease. Returns the answer and what is left for direct callers.
  local function grant(ask, record, life, value, now)
    local curve, ttl = lending.terms.curve, whole[N_PERMIT_TTL]
    lending.generation = lending.generation + 1
    local given = { generation = lending.generation, granted = now, ttl = ttl, value = value, curve = curve, said = '' }
    local before, charge_before = record_charge(record), life.charge
    life.grants[#life.grants + 1] = given
    charge_again(life, now, ttl)
    recharge(before, record_charge(record))
    local charge_after = life.charge
    refresh(ask.holder, now)
    local after = direct(now)
    given.said = pack_amounts(value) .. pack_amounts(move_levels(value, charge_before, charge_after, after)) .. curves[curve]
    return granted(given.generation, 0, given.said), after
  end

  -- Answers the ask that begins at a position. stored: the packed record of its holder as it was before the first one. Returns
  -- the answer, and what is left for direct callers if that was computed.
  function sync(from, stored)
    local ask = unpack_ask(from)
    if absent and ask.leave then
      -- Nothing is begun for the sake of one that goes.
      return LEFT
    end
    absent = false
    if ask.number > 0 and (ask.number > lending.number or (ask.number == lending.number and ask.id ~= lending.id)) then
      open_epoch(ask.number, true)
    end
    local now = l[L_NOW]
    if now < lending.wait then
      return struct.pack(WAIT_FORMAT, SYNC_WAIT, lending.wait - now)
    end
    if ask.number ~= lending.number or ask.id ~= lending.id then
      return struct.pack(OTHER_EPOCH_FORMAT, SYNC_OTHER_EPOCH, lending.number, lending.id)
    end

    local readable, record, life = find_life(ask, stored)
    if not readable then
      return UNREADABLE
    end
    local remembered = life and recall(life, ask, now)
    if remembered then
      return remembered
    end
    local more, is_less = more_of(ask.report, life and life.report or ask.counted)
    local current = ask.presents and ask.of_number == lending.number and ask.of_id == lending.id
    if life and is_less then
      return USAGE_BACKWARDS
    end
    if life and current and not was_granted(life, ask.of_generation) then
      return UNKNOWN_GENERATION
    end
    if not life then
      record, life = admit_life(record, ask, now)
      if not life then
        return permits() and TOO_MANY_HOLDERS or NOT_PERMITTED
      end
    end
    dirty[ask.holder], lending_dirty = true, true
    count(more)
    life.report = ask.report

    if current then
      quote(record, life, ask.of_generation, now)
    elseif ask.presents and now < lending.quarantine and lending.proofs < PROOFS_MAX then
      prove(ask, record, life, now)
    end
    if ask.leave then
      -- A holder that stops has nothing in use but permits.
      quote(record, life, math.huge, now)
      refresh(ask.holder, now)
      return LEFT
    end
    if #life.grants >= GRANTS_MAX then
      return DEAD
    end
    local elapsed = now - life.measured_ms
    local newcomer, measured, silent = life.answered == 0, nil, false
    if not newcomer and elapsed >= MEASURE_MS_MIN then
      measured, silent = measure(ask.report, life.measured, elapsed)
      life.measured, life.measured_ms = asked_of(ask.report), now
    end
    local share, crowded = choose_share(record, newcomer, measured, silent, ask.weight, now)
    local value = clip_share(record, life, share, crowded, now)
    life.sequence, life.nonce, life.answered = ask.sequence, ask.nonce, lending.generation + 1
    return grant(ask, record, life, value, now)
  end
end
