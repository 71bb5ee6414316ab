-- One call for a group of ledgers, each with steps of its own. Whatever happens to one ledger, the others are as if called
-- alone: an error is that ledger's reply. What stands before it is `apply`, the function that applies a batch of steps to
-- one ledger: ledger.lua, advance.lua and apply.lua, which see one ledger's KEYS and ARGV, as they describe them.
--
-- KEYS[1...n] the ledgers
-- then for each ledger: its two generations of reservations, queued reservations, their queue, operations of its batch
-- ARGV[1] now_ms, or "" for the server's time
-- ARGV[2], ARGV[3] version number and id of the policies all numbers come from
-- ARGV[4] 1: decide even if a ledger has a newer version, with the ledger's numbers
-- ARGV[5] the plan: a byte, how many numbers there are; then for each ledger which of them, from 1, its operations, its steps
-- then the numbers; then for each ledger its steps, packed one behind the other, and the reservation id of each
-- Returns the reply of each ledger, as apply.lua describes it.
--
-- The commonest steps are decided here at a third of the price: one reserve or one release of a plain original, admitted, on a
-- ledger that has everything it needs. Not a rule of its own: each line has its like, in the same order, in ledger.lua and
-- apply.lua, where everything goes that is not answered here, with nothing written yet. Variables stand for l[...] and
-- n[...]; making the two lists and looking into them is what is saved.

local PLAN_FORMAT <const> = '>BHH'
local PLAN_BYTES <const> = 5
local RESERVE_BYTES <const> = 32
local RELEASE_BYTES <const> = 7

local KEYS, ARGV, struct, call = KEYS, ARGV, struct, redis.pcall
local plan = ARGV[5]
local kinds, count = string.byte(plan), (#plan - 1) / PLAN_BYTES
local clock
if ARGV[1] ~= '' then
  clock = tonumber(ARGV[1])
else
  local time = redis.call('TIME')
  local ms = time[2] / 1000
  clock = time[1] * 1000 + ms - ms % 1
end
local version_number, version_id = tonumber(ARGV[2]), tonumber(ARGV[3])
local ledgers = redis.call('MGET', unpack(KEYS, 1, count))
local replies = {}
-- Where the other keys and the arguments of the present ledger begin.
local keys_from, args_from = count + 1, 6 + kinds
-- The numbers looked at last; most ledgers have the same.
local kind_before, numbers
local limited, num, den, burst, keep_1, keep_2, keep_3, max_in_flight, keep_in_flight_1, keep_in_flight_2,
  keep_in_flight_3, ttl, deposit_micros, earn_on_success, idle_ttl, retry_num, retry_den, retry_burst
-- As text, since a number is made into one by a long way for each command.
local idle_ttl_text

for i = 1, count do
  local kind, operations, ids = struct.unpack(PLAN_FORMAT, plan, PLAN_BYTES * i - 3)
  local stored, steps = ledgers[i], ARGV[args_from]
  if kind ~= kind_before then
    kind_before, numbers = kind, ARGV[5 + kind]
    if #numbers == NUMBERS_BYTES then
      limited, num, den, burst, keep_1, keep_2, keep_3, max_in_flight, keep_in_flight_1, keep_in_flight_2,
        keep_in_flight_3, ttl, deposit_micros, earn_on_success, idle_ttl, retry_num, retry_den, retry_burst =
        struct.unpack(COMMON_NUMBERS_FORMAT, numbers)
      idle_ttl_text = string.format('%d', idle_ttl)
    end
  end

  local answer
  local lone_bytes = ids == 1 and operations == 0 and stored and #stored == HEAD_BYTES + NUMBERS_BYTES and #numbers == NUMBERS_BYTES
    and string.byte(stored, HEAD_BYTES) == 0 and #steps
  if lone_bytes == RESERVE_BYTES or lone_bytes == RELEASE_BYTES then
    local number, id, before, now, admission, admission_rest, retry, retry_rest, in_flight, end_1, permits_1, end_2,
      permits_2, newer, size_1, size_2, queued, originals_admitted, deposited_sum =
      struct.unpack(COMMON_HEAD_FORMAT, stored)
    local elapsed = clock - before
    if elapsed < 0 then
      elapsed = 0
    end
    now = now + elapsed
    if limited == 1 then
      admission, admission_rest = refill(admission, admission_rest, num, den, burst, elapsed)
    end
    retry, retry_rest = refill(retry, retry_rest, retry_num, retry_den, retry_burst, elapsed)

    local record, where
    if version_number == number and version_id == id and queued == 0 and (end_1 == 0 or end_1 > now)
      and (end_2 == 0 or end_2 > now) and (newer == 1 or newer == 2) then
      local reservation = ARGV[args_from + 1]
      if lone_bytes == RELEASE_BYTES then
        local _, not_sent, outcome = string.byte(steps, 1, 3)
        if not_sent == 0 and outcome ~= ABANDONED and outcome ~= ACCOUNT then
          -- It stands in one generation at most, mostly the newer.
          where = newer
          local found = (where == 1 and end_1 or end_2) ~= 0 and call('HGET', KEYS[keys_from + where - 1], reservation)
          if not found then
            where = 3 - newer
            found = (where == 1 and end_1 or end_2) ~= 0 and call('HGET', KEYS[keys_from + where - 1], reservation)
          end
          -- An error is a table without length.
          if found and #found == RECORD_BYTES then
            local expires, permit, _, _, _, earn = struct.unpack(RECORD_FORMAT, found)
            if expires > now and not (earn == 1 and outcome == SUCCESS) then
              in_flight = in_flight - permit
              if where == 1 then
                permits_1 = permits_1 - permit
              else
                permits_2 = permits_2 - permit
              end
              record, answer = CLOSED, 11
            end
          end
        end
      else
        local attempt, cause, time_left, _, permit_ttl, priority, no_release = struct.unpack(RESERVE_FORMAT, steps, 2)
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
          if where and size ~= COMPACT_MAX then
            local found = call('HMGET', KEYS[keys_from + where - 1], reservation, '')
            local elsewhere = (where == 1 and end_2 or end_1) ~= 0 and call('HGET', KEYS[keys_from + 2 - where], reservation)
            if found[2] and not found[1] and not elsewhere then
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
              answer = 0
              record = struct.pack(RECORD_FORMAT, expires, 1, limited, deposited, 0, earn_on_success, 0)
            end
          end
        end
      end
    end
    if answer and deposited_sum <= EXACT_MAX then
      local packed = struct.pack(COMMON_HEAD_FORMAT, number, id, clock, now, admission, admission_rest, retry,
        retry_rest, in_flight, end_1, permits_1, end_2, permits_2, newer, size_1, size_2, queued, originals_admitted,
        deposited_sum) .. string.sub(stored, COMMON_HEAD_BYTES + 1, HEAD_BYTES) .. numbers
      local written = call('HSET', KEYS[keys_from + where - 1], ARGV[args_from + 1], record)
      if written == 0 or written == 1 then
        written = idle_ttl > 0 and call('SET', KEYS[i], packed, 'PX', idle_ttl_text) or call('SET', KEYS[i], packed)
      end
      if written.err then
        answer = written
      end
    else
      answer = nil
    end
  end

  if not answer then
    local done
    done, answer = pcall(apply, { KEYS[i], unpack(KEYS, keys_from, keys_from + 3 + operations) },
      { ARGV[1], ARGV[2], ARGV[3], ARGV[4], numbers, unpack(ARGV, args_from, args_from + ids) }, stored, clock)
    if not done and type(answer) == 'string' then
      -- Redis before 7.2 has texts for errors of commands too, and those begin with a code.
      answer = redis.error_reply(string.find(answer, '^user_script') and 'ERR ' .. answer or answer)
    end
  end
  replies[i] = answer
  keys_from, args_from = keys_from + 4 + operations, args_from + 1 + ids
end
return replies
