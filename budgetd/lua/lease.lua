-- The part of a ledger's beginning that concerns leases, taking a lease away, and writing: the mirror of
-- budget/src/ledger/leases.rs, same names, same order. Put after charge.lua.

local permits, needs_beats, begin_lending, revoke, write_lending
do
  -- Steps charges down whose time has come, a bounded number of them. Stepping down late is safe.
  local function step_down(now)
    if now < lending.next_due then
      return
    end
    local heads = redis.call('ZRANGEBYSCORE', due_key, '-inf', now, 'LIMIT', 0, DUE_PER_CALL_MAX)
    -- What comes next, unless one of these does.
    local first = redis.call('ZRANGE', due_key, #heads, #heads, 'WITHSCORES')
    lending.next_due, lending_dirty = first[2] and tonumber(first[2]) or NEVER, true
    if #heads > 0 then
      local found = redis.call('HMGET', holders_key, unpack(heads))
      for i = 1, #heads do
        if found[i] then
          records[heads[i]] = unpack_record(found[i])
          refresh(heads[i], now)
        else
          -- Found out by the next heartbeat.
          dues_of_holders[heads[i]] = false
        end
      end
    end
  end

  -- Takes a heartbeat of a host: Time::beat in budget/src/ledger/leases/time.rs, which says why.
  local function beat(now)
    local net, steps, step_max, before, others = now - lending.debt, stepped(), lending.terms.step_max, nil, {}
    for _, b in ipairs(lending.beats) do
      if b[1] == ground.boot then
        before = b
      else
        others[#others + 1] = b
      end
    end
    if not before and #others >= HOSTS_MAX then
      local since = clock - lending.replaced
      if steps < div(step_max, 2) or (since >= 0 and since < step_max) then
        return
      end
      lending.replaced = clock
      table.remove(others, 1)
    end
    lending.beats, lending_dirty = others, true
    if not before then
      others[#others + 1] = { ground.boot, ground.clock, net }
      return
    end
    local compared = net - steps
    local new = before[3] > compared
    if new and steps < step_max then
      others[#others + 1] = before
      return
    end
    local from = new and compared or before[3]
    local gained = net - from - math.max(0, ground.clock - before[2])
    if lending.compared ~= 0 then
      gained = math.min(gained, steps)
    end
    lending.debt = lending.debt + math.max(0, gained)
    lending.compared = now - lending.debt
    local kept = {}
    for _, b in ipairs(math.abs(gained) <= LAG_KEPT_MS and others or {}) do
      if gained <= 0 or b[3] <= compared then
        kept[#kept + 1] = b
      end
    end
    local same = gained <= 0 and gained >= -LAG_KEPT_MS
    kept[#kept + 1] = { ground.boot, same and before[2] or ground.clock, same and from or lending.compared }
    lending.beats = kept
  end

  -- Whether new leases may be given.
  function permits()
    return lending.terms.some and lending.terms.part > 0
  end

  -- Takes newer numbers. A lowered quota makes earlier grants dead for replays.
  local function adopt_terms(numbers)
    local before, before_ms = leasable(), total_ms(lending.terms.curve)
    whole, lending.direct, lending_dirty = numbers, nil, true
    local t, given = lending.terms, given_terms
    if given.some then
      lending.terms = given
    else
      t.some, t.slots_limited, t.priority = false, given.slots_limited, given.priority
    end
    local after = leasable()
    local lowered = #after < #before or not permits() or total_ms(lending.terms.curve) < before_ms
    for i = 1, 4 do
      lowered = lowered or after[i] < before[i]
    end
    for i = 5, #after, 3 do
      local at = part_of(before, after[i])
      lowered = lowered or (at and (after[i + 1] < before[at + 1] or after[i + 2] < before[at + 2]))
    end
    if lowered then
      lending.dead = lending.generation
    end
  end

  local function is_over(now)
    return lending.holders == 0 and now >= slots_until() and now >= lending.wait
  end

  -- Whether ledger time needs heartbeats: something is lent or unknown; or leases are permitted, so that no call advances
  -- time by more than a step, and there is something that time brings back.
  function needs_beats(now)
    if not is_over(now) then
      return true
    end
    local function fills(at, i)
      return n[i] > 0 and l[at] < n[i + 2]
    end
    local gains = (n[N_LIMITED] == 1 and fills(L_ADMISSION, N_ADMISSION)) or fills(L_RETRY, N_RETRY)
      or (lending.terms.slots_limited and l[L_IN_FLIGHT] > 0)
    for i = 0, l[L_UNIT_COUNT] - 1 do
      gains = gains or fills(L_UNITS + i * L_UNIT + 1, N_UNITS + i * UNIT_NUMBERS + 1)
    end
    return permits() and gains
  end

  -- The part of Ledger::begin that concerns leases, after refilling. adopted: newer numbers, or nil.
  function begin_lending(adopted)
    local now = l[L_NOW]
    if ground.has_beat == 1 then
      beat(now)
    end
    if adopted then
      adopt_terms(adopted)
    elseif version_number == l[L_NUMBER] and version_id == l[L_ID] then
      -- What no version counts: settings of the caller, and whether it remembers leases that were permitted a moment ago.
      local t, g = lending.terms, given_terms
      if not g.some then
        if t.some and not permits() then
          t.some, lending_dirty = false, true
        end
      elseif t.margin ~= g.margin or t.overlap ~= g.overlap or t.step_max ~= g.step_max then
        t.margin, t.overlap, t.step_max, lending_dirty = g.margin, g.overlap, g.step_max, true
      end
    end
    step_down(now)
    if now >= lending.quarantine and lending.proofs > 0 then
      lending.proofs, lending.proofs_gone, lending_dirty = 0, true, true
    end
    if now >= slots_until() then
      local proved = lending.proved
      if #proved > 4 or proved[1] + proved[2] + proved[3] + proved[4] > 0 then
        lending.proved, lending_dirty = ZERO, true
      end
    end
    if not lending.terms.some and is_over(now) then
      n = whole
      lending, whole, lending_over = nil, nil, true
      fit()
      return
    end
    if set_direct(direct(now)) then
      n = within(lending.direct)
      fit()
    end
  end

  -- Takes a holder's lease away from its next sync on, for as long as one curve lasts. 0 if no such holder is known.
  function revoke()
    local holder = struct.unpack(REVOKED_FORMAT, ground_packed, ask_at)
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

  -- Writes what has changed of the holders.
  local function write_holders(idle_ttl, format)
    local set, gone, scores, over = {}, {}, {}, {}
    for holder, packed in pairs(renewed) do
      set[#set + 1], set[#set + 2] = holder, packed
    end
    for holder in pairs(dirty) do
      local r = records[holder]
      if r then
        set[#set + 1], set[#set + 2] = holder, pack_record(r)
      else
        gone[#gone + 1] = holder
      end
    end
    if shares_dirty and lending.holders > 0 then
      set[#set + 1], set[#set + 2] = '', pack_shares()
    end
    for i = 2, format == 1 and #set or 0, 2 do
      set[i] = unmark(set[i])
    end
    for holder, at_ms in pairs(dues_of_holders) do
      if at_ms then
        scores[#scores + 1], scores[#scores + 2] = at_ms, holder
      else
        over[#over + 1] = holder
      end
    end
    if lending_wiped or (lending.holders == 0 and #gone > 0) then
      redis.call('UNLINK', holders_key, due_key)
      gone, over = {}, {}
    end
    if lending_wiped or lending.proofs_gone then
      redis.call('UNLINK', proofs_key)
    end
    if #set > 0 then
      redis.call('HSET', holders_key, unpack(set))
    end
    if #gone > 0 then
      redis.call('HDEL', holders_key, unpack(gone))
    end
    if #scores > 0 then
      redis.call('ZADD', due_key, unpack(scores))
    end
    if #over > 0 then
      redis.call('ZREM', due_key, unpack(over))
    end
    if #new_proofs > 0 then
      redis.call('SADD', proofs_key, unpack(new_proofs))
    end
    if #set + #new_proofs > 0 then
      for _, key in ipairs({ holders_key, due_key, proofs_key }) do
        if idle_ttl > 0 then
          redis.call('PEXPIRE', key, idle_ttl)
        else
          redis.call('PERSIST', key)
        end
      end
    end
  end

  -- Writes what has changed, after the reservations.
  function write_lending(idle_ttl, format)
    if lending_over then
      redis.call('UNLINK', lending_key, holders_key, due_key, proofs_key)
    end
    if not lending then
      return
    end
    write_holders(idle_ttl, format)
    if idle_ttl > 0 then
      redis.call('SET', lending_key, pack_lending(format), 'PX', idle_ttl)
    elseif lending_dirty then
      redis.call('SET', lending_key, pack_lending(format))
    end
  end
end
