-- The commonest calls at half the price: one reserve or one release of a plain original, admitted, on a ledger that has
-- everything it needs. Not a rule of its own: each line has its like, in the same order, in ledger.lua and apply.lua, where
-- every call goes on that is not answered here, with nothing written yet. Variables stand for l[...] and n[...]; making the
-- two lists and looking into them is what is saved. Put after read.lua.

local RESERVE_BYTES <const> = 32
local RELEASE_BYTES <const> = 7

local lone_bytes = #KEYS == 5 and #ARGV == 7 and stored and #stored == HEAD_BYTES + NUMBERS_BYTES
  and string.byte(stored, HEAD_BYTES) == 0 and #ARGV[5] == NUMBERS_BYTES and #ARGV[6]
if lone_bytes == RESERVE_BYTES or lone_bytes == RELEASE_BYTES then
  local number, id, before, now, admission, admission_rest, retry, retry_rest, in_flight, end_1, permits_1, end_2,
    permits_2, newer, size_1, size_2, queued, originals_admitted, deposited_sum = struct.unpack(COMMON_HEAD_FORMAT, stored)
  local limited, num, den, burst, keep_1, keep_2, keep_3, max_in_flight, keep_in_flight_1, keep_in_flight_2,
    keep_in_flight_3, ttl, deposit_micros, earn_on_success, idle_ttl, retry_num, retry_den, retry_burst =
    struct.unpack(COMMON_NUMBERS_FORMAT, ARGV[5])
  local elapsed = clock - before
  if elapsed < 0 then
    elapsed = 0
  end
  now = now + elapsed
  if limited == 1 then
    admission, admission_rest = refill(admission, admission_rest, num, den, burst, elapsed)
  end
  retry, retry_rest = refill(retry, retry_rest, retry_num, retry_den, retry_burst, elapsed)

  local key, record, answer
  if ARGV[2] + 0 == number and ARGV[3] + 0 == id and queued == 0 and (end_1 == 0 or end_1 > now)
    and (end_2 == 0 or end_2 > now) then
    local reservation = ARGV[7]
    local first = end_1 ~= 0 and redis.call('HMGET', KEYS[2], reservation, '')
    local second = end_2 ~= 0 and redis.call('HMGET', KEYS[3], reservation, '')
    local found, where = first and first[1], 1
    if not found then
      found, where = second and second[1], 2
    end
    if lone_bytes == RELEASE_BYTES then
      local _, not_sent, outcome = string.byte(ARGV[6], 1, 3)
      if found and #found == RECORD_BYTES and not_sent == 0 and outcome ~= ABANDONED and outcome ~= ACCOUNT then
        local expires, permit, _, _, _, earn = struct.unpack(RECORD_FORMAT, found)
        if expires > now and not (earn == 1 and outcome == SUCCESS) then
          in_flight = in_flight - permit
          if where == 1 then
            permits_1 = permits_1 - permit
          else
            permits_2 = permits_2 - permit
          end
          key, record, answer = KEYS[where + 1], CLOSED, 11
        end
      end
    elseif not found then
      local attempt, cause, time_left, _, permit_ttl, priority, no_release = struct.unpack(RESERVE_FORMAT, ARGV[6], 2)
      local keep = priority == 1 and keep_1 or priority == 2 and keep_2 or keep_3
      local keep_in_flight = priority == 1 and keep_in_flight_1 or priority == 2 and keep_in_flight_2 or keep_in_flight_3
      if keep > burst - TOKEN then
        keep = burst - TOKEN
      end
      if cause == 0 and attempt == 1 and time_left ~= 0 and permit_ttl < 0 and no_release == 0
        and in_flight < max_in_flight - keep_in_flight
        and (limited == 0 or (TOKEN <= burst and TOKEN + keep <= admission)) then
        local expires, last = now + ttl, now + ttl * 2
        local fits_1, fits_2 = expires <= end_1 and end_1 <= last, expires <= end_2 and end_2 <= last
        if newer == 1 then
          where = fits_1 and 1 or fits_2 and 2
        else
          where = fits_2 and 2 or fits_1 and 1
        end
        local size = where == 1 and size_1 or size_2
        -- Neither a new generation nor one that becomes large.
        if where and size ~= COMPACT_MAX and (where == 1 and first or second)[2] then
          in_flight = in_flight + 1
          local deposited = 0
          if limited == 1 then
            admission = admission - TOKEN
          end
          if earn_on_success == 0 then
            local room = retry_burst - retry
            deposited = deposit_micros
            if room < deposited then
              deposited = room > 0 and room or 0
            end
            retry = retry + deposited
            deposited_sum = deposited_sum + deposited
          end
          originals_admitted = originals_admitted + 1
          if size < SIZE_MAX then
            size = size + 1
          end
          if where == 1 then
            permits_1, size_1 = permits_1 + 1, size
          else
            permits_2, size_2 = permits_2 + 1, size
          end
          key, answer = KEYS[where + 1], 0
          record = struct.pack(RECORD_FORMAT, expires, 1, limited, deposited, 0, earn_on_success, 0)
        end
      end
    end
  end
  if key and deposited_sum <= EXACT_MAX then
    redis.call('HSET', key, ARGV[7], record)
    local packed = struct.pack(COMMON_HEAD_FORMAT, number, id, clock, now, admission, admission_rest, retry, retry_rest,
      in_flight, end_1, permits_1, end_2, permits_2, newer, size_1, size_2, queued, originals_admitted, deposited_sum)
      .. string.sub(stored, COMMON_HEAD_BYTES + 1, HEAD_BYTES) .. ARGV[5]
    if idle_ttl > 0 then
      redis.call('SET', KEYS[1], packed, 'PX', idle_ttl)
    else
      redis.call('SET', KEYS[1], packed)
    end
    return answer
  end
end
