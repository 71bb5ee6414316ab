-- Answers the asks of a call: the commonest renewals by a shorter way, everything else by a sync. Put after the function
-- `make_sync`; ends `answer_asks`.

-- Of an ask, behind the name of its holder, all that a renewal needs: incarnation, sequence, nonce, epoch, weight, then in one
-- text whether it leaves, whether it presents a lease, and the epoch of that; its generation, and the report.
local PLAIN_ASK_FORMAT <const> = '>c16i7i7c14i4c16i7i7i7i7c35i7i7B'
-- In a report, counters that seldom move are one text: what was denied, not sent, or decided by the fallback.
local RARE_FORMAT <const> = '>i7i7i7i7i7'
-- Of a record with one life, and nothing in it about units or lingering slots, all before its grants; and one such grant but
-- for what was moved and its curve.
local PLAIN_RECORD_FORMAT <const> = '>i4i4i4i4i7i7i7Bc16i7i7i7i7i7BBi7i7i7c8i7i7i7c35i7i7Bi7B'
local PLAIN_RECORD_BYTES <const> = 199
local PLAIN_GRANT_FORMAT <const> = '>i7i7i7i7i7i7i7B'
local PLAIN_GRANT_BYTES <const> = 79
-- Such a record and such a grant as a whole: what does not change is one text, of a length that may have to be put in.
local NEW_RECORD_FORMAT <const> = '>i4i4i4i4i7i7i7Bc16i7i7i7c7i7c2i7i7i7c8c71i7Bc'
local NEW_GRANT_FORMAT <const> = '>i7i7i7i7i7i7c'
local NEW_MOVED_FORMAT <const> = '>i7i7i7i7B'
local NO_SLOTS <const> = '\0\0\0\0\0\0\0'
local NO_SLOTS_NO_UNITS <const> = '\0\0\0\0\0\0\0\0'
local NO_FALLS_TWO_GRANTS <const> = '\0\2'
-- Where in such a grant the numbers of units of value and moved stand.
local PLAIN_VALUE_UNITS <const> = 49
local PLAIN_MOVED_UNITS <const> = 78
-- As long as generations stay below this, a packed grant begins with a zero, which says of an answer that it is one.
local SHORT_GENERATION_MAX <const> = 281474976710656

-- Answers asks from one on, as long as they are of the commonest kind: renewals by holders that live by their latest lease,
-- where neither units nor slots are limited and nothing is unknown. Returns the number of the first that is not, with nothing
-- changed yet for it, and whether direct callers have another part now. Not a rule of its own: each line has its like, in the
-- same order, in `sync` and what that calls. Variables stand for lists and records, and what asks have in common is computed
-- once; making and looking up is what is saved.
local function renew(first, count, names, starts, found, answers)
  local terms, charged, q, now, generation = lending.terms, lending.charged, quota(), l[L_NOW], lending.generation
  local curve = terms.curve
  if lending_wiped or lent[5] or lent[4] > 0 or charged[5] or now < lending.wait or now < slots_until()
    or lending.proved[4] > 0 or not curve[1] or generation + count >= SHORT_GENERATION_MAX then
    return first, false
  end
  local pack, unpack, sub, byte, frexp, ground = struct.pack, struct.unpack, string.sub, string.byte, math.frexp, ground_packed
  local renewed, renewals, renewal_dues, records, shares = renewed, renewals, renewal_dues, records, shares
  local epoch = pack('>i7i7', lending.number, lending.id)
  local quoting = '\0\1' .. epoch
  local text = curves[curve]
  local text_bytes, steps = #text, #curve / 2
  local grant_bytes = PLAIN_GRANT_BYTES + text_bytes
  local record_format = NEW_RECORD_FORMAT .. grant_bytes .. 'c' .. grant_bytes
  -- What is left of a grant behind its burst of retries.
  local unmoved = NO_SLOTS_NO_UNITS .. pack(NEW_MOVED_FORMAT, 0, 0, 0, 0, 0) .. text
  local grant_format = NEW_GRANT_FORMAT .. #unmoved
  local first_part, to_first_end, next_due = curve[1], terms.margin + curve[2], lending.next_due
  local limited, retried, ttl = whole[N_LIMITED] == 1, whole[N_RETRY + 2] > 0, whole[N_PERMIT_TTL]
  local of_rate, of_burst, of_retry = q[1], q[2], q[3]
  local per_ms_max, unit = div(of_rate, 1000) + 1, div(of_rate + 99999999, 100000000)
  local units_of_rate = max(div(of_rate, unit), 1)
  local largest, no_share = smallest[#smallest], not permits() or least > SHARE_ONE
  local lent_rate, lent_burst, lent_retry = lent[1], lent[2], lent[3]
  local whole_rate, whole_burst, whole_retry =
    div(lent_rate, SHARE_ONE), div(lent_burst, SHARE_ONE), div(lent_retry, SHARE_ONE)
  local rest_rate, rest_burst, rest_retry =
    lent_rate - whole_rate * SHARE_ONE, lent_burst - whole_burst * SHARE_ONE, lent_retry - whole_retry * SHARE_ONE
  local charged_rate, charged_burst, charged_retry = charged[1], charged[2], charged[3]
  local left = lending.direct
  local left_rate, left_burst, left_retry = left[1], left[2], left[3]
  -- What was reported since the last time.
  local more_originals, more_retries, more_deposited, more_overuse = 0, 0, 0, 0
  -- The value of the last share: many are equal.
  local share_of_value, value_rate, value_burst, value_retry
  local changed, number, size = false, first, #renewals
  while number <= count do
    local holder, stored = names[number], found[number]
    local place = renewed[holder]
    if place then
      stored = renewals[place]
    end
    local grants_bytes = stored and #stored - PLAIN_RECORD_BYTES
    if not stored or records[holder] ~= nil or (grants_bytes ~= 2 * grant_bytes and grants_bytes ~= grant_bytes) then
      break
    end
    local incarnation, sequence, nonce, epoch_asked, weight, quotes, of_generation, asked, originals, retries, rare,
      deposited, overuse, units, report_ends = unpack(PLAIN_ASK_FORMAT, ground, starts[number] + 3 + #holder)
    local weight_before, demand_before, share_before, idle, revoked, restarted, _, count_of_lives, life, sequence_before, _,
      answered, slots, measured_ms, falls, count_of_grants, rate_before, burst_before, retry_before, slots_and_units,
      asked_before, originals_before, retries_before, rare_before, deposited_before, overuse_before,
      units_reported, asked_measured, units_measured, grants_at = unpack(PLAIN_RECORD_FORMAT, stored)
    if life ~= incarnation or epoch_asked ~= epoch or quotes ~= quoting or count_of_lives ~= 1 or sequence <= sequence_before
      or answered == 0 or slots ~= 0 or falls ~= 0 or count_of_grants * grant_bytes ~= grants_bytes
      or slots_and_units ~= NO_SLOTS_NO_UNITS or units + units_reported + units_measured ~= 0
      or asked < asked_before or originals < originals_before or retries < retries_before
      or deposited < deposited_before or overuse < overuse_before then
      break
    end
    -- Each grant is plain, and the last one is what the holder quotes.
    local last_at = grants_at
    if count_of_grants == 2 then
      last_at = grants_at + grant_bytes
      local units_of_moved, count_of_steps = byte(stored, grants_at + PLAIN_MOVED_UNITS, grants_at + PLAIN_GRANT_BYTES)
      if units_of_moved ~= 0 or count_of_steps ~= steps or byte(stored, grants_at + PLAIN_VALUE_UNITS) ~= 0 then
        break
      end
    end
    local generation_before, granted, _, own_rate, own_burst, own_retry, own_slots, units_of_value =
      unpack(PLAIN_GRANT_FORMAT, stored, last_at)
    if generation_before ~= of_generation or own_slots + units_of_value ~= 0
      or byte(stored, last_at + PLAIN_MOVED_UNITS) ~= 0 or sub(stored, -text_bytes) ~= text then
      break
    end
    local part, ends = first_part, granted + to_first_end
    if now >= ends then
      local at = 3
      while curve[at] and now >= ends + curve[at + 1] do
        ends, at = ends + curve[at + 1], at + 2
      end
      if not curve[at] then
        break
      end
      part, ends = curve[at], ends + curve[at + 1]
    end
    if rare ~= rare_before then
      local originals_denied, retries_denied, not_sent, fallback_originals, fallback_retries = unpack(RARE_FORMAT, rare)
      local originals_denied_before, retries_denied_before, not_sent_before, fallback_originals_before,
        fallback_retries_before = unpack(RARE_FORMAT, rare_before)
      if originals_denied < originals_denied_before or retries_denied < retries_denied_before or not_sent < not_sent_before
        or fallback_originals < fallback_originals_before or fallback_retries < fallback_retries_before then
        break
      end
      add_to(L_ORIGINALS_ADMITTED, fallback_originals - fallback_originals_before)
      add_to(L_RETRIES_ADMITTED, fallback_retries - fallback_retries_before)
      add_to(L_ORIGINALS_DENIED, originals_denied - originals_denied_before)
      add_to(L_RETRIES_DENIED, retries_denied - retries_denied_before)
      add_to(L_NOT_SENT, not_sent - not_sent_before)
    end

    more_originals, more_retries = more_originals + originals - originals_before, more_retries + retries - retries_before
    more_deposited, more_overuse = more_deposited + deposited - deposited_before, more_overuse + overuse - overuse_before

    -- What is charged of the lease that it lives by, and the charges of the others.
    if part ~= PPM then
      own_rate, own_burst, own_retry = scale(own_rate, part, PPM), scale(own_burst, part, PPM), scale(own_retry, part, PPM)
    end
    local others_rate, others_burst, others_retry =
      charged_rate - rate_before, charged_burst - burst_before, charged_retry - retry_before

    local demand, elapsed = demand_before, now - measured_ms
    if elapsed >= MEASURE_MS_MIN then
      local measured, more = SHARE_ONE / 16, asked - asked_measured
      if of_rate > 0 then
        if more < 0 then
          more = 0
        elseif more > 1000000000 then
          more = 1000000000
        end
        local per_ms = more * TOKEN / elapsed
        per_ms = per_ms - per_ms % 1
        if per_ms > per_ms_max then
          per_ms = per_ms_max
        end
        local asked_units = (per_ms * 1000 < of_rate and per_ms * 1000 or of_rate) / unit
        measured = (asked_units - asked_units % 1) * SHARE_ONE / units_of_rate
        measured = measured - measured % 1
        if measured > SHARE_ONE then
          measured = SHARE_ONE
        end
      end
      local quarter, fallen = measured / 4, demand / 4
      local raised = measured + quarter - quarter % 1
      fallen = demand - (fallen - fallen % 1)
      demand = raised > fallen and raised or fallen
      if asked == asked_measured then
        demand, idle = 0, idle + 1
      else
        demand, idle = demand < SHARE_ONE and demand or SHARE_ONE, 0
      end
      asked_measured, measured_ms = asked, now
    end
    if demand ~= demand_before or weight ~= weight_before then
      local half_before, power_before = frexp(demand_before)
      local half, power = frexp(demand)
      if weight == 1 and weight_before == 1 and power == power_before and (half < 0.75) == (half_before < 0.75) then
        -- The same bucket.
        local sums = shares[2 * power - (half < 0.75 and 3 or 2)]
        sums[2], shares.demand = sums[2] + demand - demand_before, shares.demand + demand - demand_before
        shares_dirty = true
      else
        change_shares(demand_before, weight_before, -1)
        change_shares(demand, weight, 1)
      end
    end

    local all_weights, all_demands = shares.weight, shares.demand
    local level = LEASED_OUT - all_demands < all_weights and level_of() or nil
    local fair = LEASED_OUT * weight / (all_weights > 1 and all_weights or 1)
    fair = fair - fair % 1
    local wanted, most
    if level then
      most = level * weight
      wanted = demand < most and demand or most
    else
      local spare = demand * LEASED_OUT / (all_demands > 1 and all_demands or 1)
      spare = spare - spare % 1
      local doubled = restarted > now and demand or demand * 2
      wanted, most = doubled < spare and doubled or spare, LEASED_OUT - all_demands + demand
    end
    local half_fair = fair / 2
    local part_of_all = half_fair - half_fair % 1
    if part_of_all < demand then
      part_of_all = demand
    end
    if part_of_all > most then
      part_of_all = most
    end
    local crowded = least > most and least <= min(most * 2, div(demand, 2))
    local serves = (least <= most or crowded) and least or 0
    if largest <= part_of_all then
      serves = largest
    else
      for i = 1, steps do
        if smallest[i] <= part_of_all then
          serves = smallest[i]
        end
      end
    end
    local share = wanted > serves and wanted or serves
    if idle == 0 then
      local eighth, apart = share_before / 8, share - share_before
      if not (level and apart < 0) and (apart < 0 and -apart or apart) <= eighth - eighth % 1 then
        share = share_before
      end
    elseif idle == 1 then
      share = min(max(serves, least), share_before)
    else
      share = 0
    end
    if no_share or share < least or revoked > now then
      share = 0
    end

    local free_rate, free_burst, free_retry = lent_rate - others_rate, lent_burst - others_burst, lent_retry - others_retry
    if l[L_ADMISSION] < 0 then
      free_rate, free_burst = min(free_rate, own_rate), min(free_burst, own_burst)
    end
    if crowded then
      free_rate, free_burst, free_retry = free_rate - scale(lent_rate, least, SHARE_ONE),
        free_burst - scale(lent_burst, least, SHARE_ONE), free_retry - scale(lent_retry, least, SHARE_ONE)
    end
    if share ~= share_of_value then
      local more_rate, more_burst, more_retry =
        rest_rate * share / SHARE_ONE, rest_burst * share / SHARE_ONE, rest_retry * share / SHARE_ONE
      share_of_value, value_rate, value_burst, value_retry = share, whole_rate * share + more_rate - more_rate % 1,
        whole_burst * share + more_burst - more_burst % 1, whole_retry * share + more_retry - more_retry % 1
    end
    local rate, burst, retry = value_rate, value_burst, value_retry
    if rate > free_rate then
      rate = free_rate > 0 and free_rate or 0
    end
    if burst > free_burst then
      burst = free_burst > 0 and free_burst or 0
    end
    if retry > free_retry then
      retry = free_retry > 0 and free_retry or 0
    end
    local charge_rate, charge_burst, charge_retry = rate, burst, retry
    if first_part ~= PPM then
      charge_rate, charge_burst, charge_retry =
        scale(rate, first_part, PPM), scale(burst, first_part, PPM), scale(retry, first_part, PPM)
    end
    if (limited and (charge_rate == 0 or charge_burst < TOKEN)) or (retried and charge_retry < TOKEN) then
      rate, burst, retry, charge_rate, charge_burst, charge_retry = 0, 0, 0, 0, 0, 0
    end

    -- The maximum of both leases is charged.
    generation = generation + 1
    if own_rate > charge_rate then
      charge_rate = own_rate
    end
    if own_burst > charge_burst then
      charge_burst = own_burst
    end
    if own_retry > charge_retry then
      charge_retry = own_retry
    end
    charged_rate, charged_burst, charged_retry =
      others_rate + charge_rate, others_burst + charge_burst, others_retry + charge_retry
    local due = now + to_first_end
    if ends < due then
      due = ends
    end
    if due < next_due then
      next_due = due
    end
    local after_rate, after_burst, after_retry = of_rate - charged_rate, of_burst - charged_burst, of_retry - charged_retry
    if after_rate < 0 then
      after_rate = 0
    end
    if after_burst < 0 then
      after_burst = 0
    end
    if after_retry < 0 then
      after_retry = 0
    end
    local moved_burst, moved_retry = 0, 0
    if charge_burst > own_burst and burst > own_burst then
      moved_burst = take(L_ADMISSION, min(burst, charge_burst) - own_burst, limited and after_burst or 0)
    end
    if charge_retry > own_retry and retry > own_retry then
      moved_retry = take(L_RETRY, min(retry, charge_retry) - own_retry, after_retry)
    end
    local rest = unmoved
    if moved_burst + moved_retry > 0 then
      rest = NO_SLOTS_NO_UNITS .. pack(NEW_MOVED_FORMAT, 0, moved_burst, moved_retry, 0, 0) .. text
    end
    local given = pack(grant_format, generation, now, ttl, rate, burst, retry, rest)
    if not place then
      place = size + 2
      size = place
      renewed[holder], renewals[place - 1], renewal_dues[place] = place, holder, holder
    end
    renewal_dues[place - 1] = due
    renewals[place] = pack(record_format, weight, demand, share, idle, revoked, restarted, due, 1, incarnation, sequence,
      nonce, generation, NO_SLOTS, measured_ms, NO_FALLS_TWO_GRANTS, charge_rate, charge_burst, charge_retry,
      NO_SLOTS_NO_UNITS, sub(ground, report_ends - REPORT_BYTES, report_ends - 1), asked_measured, 0, sub(stored, last_at),
      given)
    answers[number] = given
    number = number + 1
    -- The next one finds levels as they are between two calls.
    if after_rate ~= left_rate or after_burst ~= left_burst or after_retry ~= left_retry then
      left_rate, left_burst, left_retry, changed = after_rate, after_burst, after_retry, true
      left = { after_rate, after_burst, after_retry, left[4] }
      clip(left)
    end
  end
  if number > first then
    lending_dirty = true
    lending.generation, lending.next_due, lending.direct = generation, next_due, left
    lending.charged = { charged_rate, charged_burst, charged_retry, charged[4] }
    add_to(L_ORIGINALS_ADMITTED, more_originals)
    add_to(L_RETRIES_ADMITTED, more_retries)
    add_to(L_DEPOSITED, more_deposited)
    add_to(L_OVERUSE, more_overuse)
  end
  return number, changed
end

-- Answers all asks, one after the other.
local count, sync = string.byte(ground_packed, ask_at), nil
-- Lists of their final length: what stands in them now is overwritten.
local answers, names, starts = { string.byte(ground_packed, 1, count) }, { string.byte(ground_packed, 1, count) },
  { string.byte(ground_packed, 1, count) }
if not lending then
  for i = 1, count do
    answers[i] = NOT_PERMITTED
  end
  return answers
end
prepare()
local unpack_text, p = struct.unpack, ask_at + 1
for i = 1, count do
  local length
  starts[i], length, names[i] = p, unpack_text('>HBc0', ground_packed, p)
  p = p + ASK_LENGTH_BYTES + length
end
local found = {}
if not lending_wiped then
  -- The sums of shares are read with the records.
  names[count + 1] = not shares and '' or nil
  found = redis.call('HMGET', holders_key, unpack(names))
end
if not shares then
  unpack_shares(found[count + 1])
end
local changed, i = false, 1
while i <= count do
  if found[i] then
    local clipped
    i, clipped = renew(i, count, names, starts, found, answers)
    changed = changed or clipped
  end
  if i <= count then
    local amounts
    sync = sync or make_sync()
    answers[i], amounts = sync(starts[i], found[i])
    i = i + 1
    -- The next one finds levels as they are between two calls.
    if not absent and set_direct(amounts or direct(l[L_NOW])) then
      clip(lending.direct)
      changed = true
    end
  end
end
if changed then
  n = within(lending.direct)
end
return answers
