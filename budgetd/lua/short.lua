-- A shorter way for the commonest steps: one reserve or one release of a plain original, admitted, on
-- a ledger of the newest format that has everything it needs. Not a rule of its own: each line has its like, in the same
-- order, in the files before, which decide all that is not answered here, with nothing written yet. Every test of the scripts
-- runs with and without it. Variables stand for l[...] and n[...]; making the two lists and looking into them is what is
-- saved. It is there for steps of many dependencies, which come alone (`loadtest bench --only redis_1000`).

-- The numbers looked at last; most ledgers of a call have the same.
local short_numbers, limited, num, den, burst, keep, max_in_flight, keep_in_flight, permit_life, deposit_micros,
  earn_on_success, idle_ttl, retry_num, retry_den, retry_burst
-- As text, since a number is made into one by a long way for each command.
local idle_ttl_text

local function know_numbers(given)
  if given == short_numbers then
    return
  end
  short_numbers, keep, keep_in_flight = given, {}, {}
  limited, num, den, burst, keep[1], keep[2], keep[3], max_in_flight, keep_in_flight[1], keep_in_flight[2],
    keep_in_flight[3], permit_life, deposit_micros, earn_on_success, idle_ttl, retry_num, retry_den, retry_burst =
    struct.unpack(COMMON_NUMBERS_FORMAT, given)
  idle_ttl_text = string.format('%d', idle_ttl)
end

-- Where a reservation stands that can be released here, and its permit; nil if there is none.
local function find_short(id, outcome, now_ms, newer, end_1, end_2)
  for place = newer, 3 - newer, 3 - 2 * newer do
    -- It stands in one generation at most, mostly the newer. An error of the call is a table without length.
    local found = (place == 1 and end_1 or end_2) ~= 0 and redis.pcall('HGET', KEYS[keys_at + place], id)
    if found then
      if #found ~= RECORD_BYTES then
        return nil
      end
      local format, parts, expires, permit, _, _, _, earn = struct.unpack(RECORD_FORMAT, found)
      if format == FORMAT_BYTE and parts == 0 and expires > now_ms and not (earn == 1 and outcome == OUTCOME_SUCCESS) then
        return place, permit
      end
      return nil
    end
  end
  return nil
end

-- The generation that takes a new reservation: neither a new one nor one that becomes large, and none that knows it already.
local function place_short(id, now_ms, expires, newer, end_1, end_2, size_1, size_2)
  local last = now_ms + permit_life * 2
  local place
  local fits_1, fits_2 = expires <= end_1 and end_1 <= last, expires <= end_2 and end_2 <= last
  if newer == 1 then
    place = fits_1 and 1 or fits_2 and 2
  else
    place = fits_2 and 2 or fits_1 and 1
  end
  if not place or (place == 1 and size_1 or size_2) == COMPACT_MAX then
    return nil
  end
  local found = redis.pcall('HMGET', KEYS[keys_at + place], id, '')
  local elsewhere = (place == 1 and end_2 or end_1) ~= 0 and redis.pcall('HGET', KEYS[keys_at + 3 - place], id)
  return found[2] and not found[1] and not elsewhere and place or nil
end

-- Whether a plain reserve is admitted. Returns nil if that is to be decided elsewhere.
local function admits_short(now_in_flight, admission)
  local number, cause, time_left, _, permit_ttl, priority, no_release, key, count_of_costs =
    struct.unpack(RESERVE_FORMAT, packed_steps, 2)
  local kept = keep[priority]
  if kept > burst - TOKEN then
    kept = burst - TOKEN
  end
  return cause == 0 and number == 1 and time_left ~= 0 and permit_ttl < 0 and no_release == 0 and key == 0
    and count_of_costs == 0 and now_in_flight < max_in_flight - keep_in_flight[priority]
    and (limited == 0 or (TOKEN <= burst and TOKEN + kept <= admission))
end

-- Decides and writes one step. Returns the answer, an error reply, or nil if it is to be decided elsewhere.
local function apply_short(ledger_key, stored, given, id)
  if #stored ~= HEAD_BYTES + NUMBERS_BYTES or #given ~= NUMBERS_BYTES then
    return nil
  end
  know_numbers(given)
  local format, parts, number, version, before, now_ms, admission, admission_rest, retry, retry_rest, in_flight, end_1,
    permits_1, end_2, permits_2, newer, size_1, size_2, originals, deposited_sum =
    struct.unpack(COMMON_HEAD_FORMAT, stored)
  local elapsed = clock > before and clock - before or 0
  now_ms = now_ms + elapsed
  if format ~= FORMAT_BYTE or parts ~= 0 or version_number ~= number or version_id ~= version
    or (end_1 ~= 0 and end_1 <= now_ms) or (end_2 ~= 0 and end_2 <= now_ms) or string.byte(stored, HEAD_BYTES) ~= 0
    or (newer ~= 1 and newer ~= 2) then
    return nil
  end
  if limited == 1 then
    admission, admission_rest = refill(admission, admission_rest, num, den, burst, elapsed)
  end
  retry, retry_rest = refill(retry, retry_rest, retry_num, retry_den, retry_burst, elapsed)
  local kind, not_sent, outcome = string.byte(packed_steps, 1, 3)
  local place, permit, record, answered
  if kind == STEP_RELEASE and not_sent == 0 and outcome ~= OUTCOME_ABANDONED and outcome ~= OUTCOME_ACCOUNT then
    place, permit = find_short(id, outcome, now_ms, newer, end_1, end_2)
    if not place then
      return nil
    end
    permit, record, answered = -permit, CLOSED, ANSWER_APPLIED
  elseif kind == STEP_RESERVE and admits_short(in_flight, admission) then
    local expires, deposited = now_ms + permit_life, 0
    place = place_short(id, now_ms, expires, newer, end_1, end_2, size_1, size_2)
    if not place then
      return nil
    end
    if earn_on_success == 0 then
      local space = retry_burst - retry
      deposited = space < deposit_micros and (space > 0 and space or 0) or deposit_micros
    end
    admission, retry, deposited_sum = admission - TOKEN * limited, retry + deposited, deposited_sum + deposited
    originals, permit, answered = originals + 1, 1, ANSWER_ADMITTED_PLAIN
    size_1 = place == 1 and size_1 < SIZE_MAX and size_1 + 1 or size_1
    size_2 = place == 2 and size_2 < SIZE_MAX and size_2 + 1 or size_2
    record = struct.pack(RECORD_FORMAT, FORMAT_BYTE, 0, expires, 1, limited, deposited, 0, earn_on_success, 0, 1, 0)
  end
  if not answered or deposited_sum > EXACT_MAX then
    return nil
  end
  permits_1, permits_2 = permits_1 + (place == 1 and permit or 0), permits_2 + (place == 2 and permit or 0)
  local packed = struct.pack(COMMON_HEAD_FORMAT, format, parts, number, version, clock, now_ms, admission, admission_rest,
    retry, retry_rest, in_flight + permit, end_1, permits_1, end_2, permits_2, newer, size_1, size_2, originals,
    deposited_sum) .. string.sub(stored, COMMON_HEAD_BYTES + 1, HEAD_BYTES) .. given
  local written = redis.pcall('HSET', KEYS[keys_at + place], id, record)
  if written == 0 or written == 1 then
    written = idle_ttl > 0 and redis.pcall('SET', ledger_key, packed, 'PX', idle_ttl_text)
      or redis.pcall('SET', ledger_key, packed)
  end
  return written.err and written or answered
end
