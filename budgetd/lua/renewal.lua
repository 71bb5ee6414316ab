-- Answers the asks of a call. Put after sync.lua, where everything is decided but the commonest renewals, which have a shorter
-- way here.

-- Of a record with one life, and nothing in it about units or lingering slots, all before its grants; and one such grant but
-- for its curve.
local PLAIN_RECORD_FORMAT <const> = '>i4i4i4i4i7i7i7Bc16i7i7i7i7i7BBi7i7i7i7Bi7i7i7i7i7i7i7i7i7i7Bi7B'
local PLAIN_RECORD_BEGINS <const> = '>i4i4i4i4i7i7i7Bc16i7i7i7i7i7BBi7i7i7i7B'
local PLAIN_RECORD_BYTES <const> = 199
local PLAIN_GRANT_FORMAT <const> = '>i7i7i7i7i7i7i7B'
local PLAIN_GRANT_BYTES <const> = 79
local PLAIN_SAID_FORMAT <const> = '>i7i7i7i7Bi7i7i7i7B'
-- Where in such a grant the numbers of units of value and moved stand.
local PLAIN_VALUE_UNITS <const> = 49
local PLAIN_MOVED_UNITS <const> = 78

-- For choosing a share: what is filled in is read at once.
local renewing = {}

-- Answers the commonest ask at a third of the price: a renewal by a holder that lives by its latest lease, where neither
-- units nor slots are limited and nothing is unknown. Not a rule of its own: each line has its like, in the same order, in
-- `sync` and what that calls, where everything goes that is not answered here, with nothing changed yet. Variables stand for
-- lists and records; making them is what is saved.
local function renew(holder, ask_from, stored)
  local now, curve = l[L_NOW], lending.terms.curve
  stored = renewed[holder] or stored
  if not stored or records[holder] ~= nil or lending_wiped or lent[5] or lent[4] > 0 or lending.charged[5]
    or now < lending.wait or now < slots_until() or lending.proved[4] > 0 or not curve[1] then
    return nil
  end
  local text = curves[curve]
  local grant_bytes = PLAIN_GRANT_BYTES + #text
  local grants_bytes = #stored - PLAIN_RECORD_BYTES
  if grants_bytes ~= grant_bytes and grants_bytes ~= 2 * grant_bytes then
    return nil
  end
  local _, _, incarnation, sequence, nonce, epoch_number, epoch_id, weight, leave, presents, of_number, of_id,
    of_generation, report_at = struct.unpack(ASK_FORMAT, ground_packed, ask_from)
  if epoch_number ~= lending.number or epoch_id ~= lending.id or leave == 1 or presents == 0 or of_number ~= epoch_number
    or of_id ~= epoch_id or string.byte(ground_packed, report_at + REPORT_BYTES - 1) ~= 0 then
    return nil
  end
  local weight_before, demand, share_before, idle, revoked, restarted, _, count_of_lives, life, sequence_before, _, answered,
    slots, measured_ms, falls, count_of_grants, rate_before, burst_before, retry_before, slots_before, units_charged,
    asked_before, originals_before, retries_before, originals_denied_before, retries_denied_before, not_sent_before,
    fallback_originals_before, fallback_retries_before, deposited_before, overuse_before, units_reported, asked_measured,
    units_measured, grants_at = struct.unpack(PLAIN_RECORD_FORMAT, stored)
  if count_of_lives ~= 1 or life ~= incarnation or sequence <= sequence_before or answered == 0 or slots ~= 0 or falls ~= 0
    or count_of_grants * grant_bytes ~= grants_bytes or slots_before ~= 0
    or units_charged + units_reported + units_measured ~= 0 then
    return nil
  end
  -- Each grant is plain, and the last one is what the holder quotes.
  local last_at = grants_at + grants_bytes - grant_bytes
  for at = grants_at, last_at, grant_bytes do
    if string.byte(stored, at + PLAIN_VALUE_UNITS) ~= 0 or string.byte(stored, at + PLAIN_MOVED_UNITS) ~= 0
      or string.byte(stored, at + PLAIN_GRANT_BYTES) ~= #curve / 2 then
      return nil
    end
  end
  local generation, granted, _, rate_last, burst_last, retry_last, slots_last =
    struct.unpack(PLAIN_GRANT_FORMAT, stored, last_at)
  if generation ~= of_generation or slots_last ~= 0 or string.sub(stored, -#text) ~= text then
    return nil
  end
  local part, part_ends, ends = nil, nil, granted + lending.terms.margin
  for i = 1, #curve, 2 do
    ends = ends + curve[i + 1]
    if not part and now < ends then
      part, part_ends = curve[i], ends
    end
  end
  local asked, originals, retries, originals_denied, retries_denied, not_sent, fallback_originals, fallback_retries,
    deposited, overuse = struct.unpack(REPORT_FORMAT, ground_packed, report_at)
  if not part or asked < asked_before or originals < originals_before or retries < retries_before
    or originals_denied < originals_denied_before or retries_denied < retries_denied_before or not_sent < not_sent_before
    or fallback_originals < fallback_originals_before or fallback_retries < fallback_retries_before
    or deposited < deposited_before or overuse < overuse_before then
    return nil
  end

  lending_dirty = true
  count(ORIGINALS_ADMITTED, originals - originals_before)
  count(ORIGINALS_ADMITTED, fallback_originals - fallback_originals_before)
  count(RETRIES_ADMITTED, retries - retries_before)
  count(RETRIES_ADMITTED, fallback_retries - fallback_retries_before)
  count(ORIGINALS_DENIED, originals_denied - originals_denied_before)
  count(RETRIES_DENIED, retries_denied - retries_denied_before)
  count(NOT_SENT, not_sent - not_sent_before)
  count(DEPOSITED, deposited - deposited_before)
  count(OVERUSE, overuse - overuse_before)

  -- What is charged of the lease that it lives by, and the charges of the others.
  local own_rate, own_burst, own_retry = rate_last, burst_last, retry_last
  if part ~= PPM then
    own_rate, own_burst, own_retry = scale(rate_last, part, PPM), scale(burst_last, part, PPM), scale(retry_last, part, PPM)
  end
  local charged = lending.charged
  local others_rate, others_burst, others_retry =
    charged[1] - rate_before, charged[2] - burst_before, charged[3] - retry_before

  local measured, silent, elapsed = nil, false, now - measured_ms
  if elapsed >= MEASURE_MS_MIN then
    local q = quota()
    measured, silent = SHARE_ONE / 16, asked == asked_measured
    if q[1] > 0 then
      measured = min(part_asked(min(less(asked, asked_measured), 1000000000) * TOKEN, elapsed, q[1]), SHARE_ONE)
    end
    asked_measured, measured_ms = asked, now
  end
  local record = renewing
  record.weight, record.demand, record.share, record.idle = weight_before, demand, share_before, idle
  record.revoked, record.restarted = revoked, restarted
  local share, crowded = choose_share(record, false, measured, silent, weight, now)

  local free_rate, free_burst, free_retry =
    less(lent[1], others_rate), less(lent[2], others_burst), less(lent[3], others_retry)
  if l[L_ADMISSION] < 0 then
    free_rate, free_burst = min(free_rate, own_rate), min(free_burst, own_burst)
  end
  if crowded then
    free_rate, free_burst, free_retry = less(free_rate, scale(lent[1], least, SHARE_ONE)),
      less(free_burst, scale(lent[2], least, SHARE_ONE)), less(free_retry, scale(lent[3], least, SHARE_ONE))
  end
  local rate, burst, retry = min(scale(lent[1], share, SHARE_ONE), free_rate),
    min(scale(lent[2], share, SHARE_ONE), free_burst), min(scale(lent[3], share, SHARE_ONE), free_retry)
  local first_rate, first_burst, first_retry = rate, burst, retry
  if curve[1] ~= PPM then
    first_rate, first_burst, first_retry = scale(rate, curve[1], PPM), scale(burst, curve[1], PPM), scale(retry, curve[1], PPM)
  end
  if (whole[N_LIMITED] == 1 and (first_rate == 0 or first_burst < TOKEN))
    or (whole[N_RETRY + 2] > 0 and first_retry < TOKEN) then
    rate, burst, retry, first_rate, first_burst, first_retry = 0, 0, 0, 0, 0, 0
  end

  lending.generation = lending.generation + 1
  local charge_rate, charge_burst, charge_retry =
    max(own_rate, first_rate), max(own_burst, first_burst), max(own_retry, first_retry)
  lending.charged = { others_rate + charge_rate, others_burst + charge_burst, others_retry + charge_retry, charged[4] }
  local due = min(part_ends, now + lending.terms.margin + curve[2])
  dues_of_holders[holder] = due
  lending.next_due = min(lending.next_due, due)
  local after = direct(now)
  local moved_burst =
    take(L_ADMISSION, min(burst, charge_burst) - own_burst, whole[N_LIMITED] == 1 and after[2] or 0)
  local moved_retry = take(L_RETRY, min(retry, charge_retry) - own_retry, after[3])
  local said = struct.pack(PLAIN_SAID_FORMAT, rate, burst, retry, 0, 0, 0, moved_burst, moved_retry, 0, 0) .. text
  renewed[holder] = struct.pack(PLAIN_RECORD_BEGINS, weight, record.demand, share, record.idle, revoked, restarted, due, 1,
    incarnation, sequence, nonce, lending.generation, 0, measured_ms, 0, 2, charge_rate, charge_burst, charge_retry, 0, 0)
    .. string.sub(ground_packed, report_at, report_at + REPORT_BYTES - 1) .. struct.pack('>i7B', asked_measured, 0)
    .. string.sub(stored, last_at) .. struct.pack(GRANT_FORMAT, lending.generation, now, whole[N_PERMIT_TTL]) .. said
  return struct.pack(GRANTED_FORMAT, GRANTED, lending.number, lending.id, lending.generation, 0) .. said, after
end

-- Answers all asks, one after the other.
local function answer_asks()
  local count, answers = string.byte(ground_packed, ask_at), {}
  if not lending then
    for i = 1, count do
      answers[i] = NOT_PERMITTED
    end
    return answers
  end
  prepare()
  local names, starts, p = {}, {}, ask_at + 1
  for i = 1, count do
    local length
    starts[i], length, names[i] = p, struct.unpack('>HBc0', ground_packed, p)
    p = p + ASK_LENGTH_BYTES + length
  end
  local found = lending_wiped and {} or redis.call('HMGET', holders_key, unpack(names))
  local changed = false
  for i = 1, count do
    local answer, amounts = renew(names[i], starts[i], found[i])
    if not answer then
      answer, amounts = sync(starts[i], found[i])
    end
    answers[i] = answer
    -- The next one finds levels as they are between two calls.
    if not absent and set_direct(amounts or direct(l[L_NOW])) then
      clip(lending.direct)
      changed = true
    end
  end
  if changed then
    n = within(lending.direct)
  end
  return answers
end
