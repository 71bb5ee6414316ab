-- Applies a batch of steps to one ledger, in order, each all or nothing: the mirror of budget/src/ledger/*.rs.
-- Decides in locals, writes at the end.
--
-- KEYS[1] ledger     KEYS[2], KEYS[3] the two generations of reservations (hash: id -> record)
-- KEYS[4] queued reservations (hash: id -> record)     KEYS[5] their queue (sorted set: id by due time)
-- KEYS[6...] operations of the batch (strings)
-- ARGV[1] now_ms, or "" for the server's time
-- ARGV[2], ARGV[3] version number and id of the policies the numbers come from
-- ARGV[4] 1: decide even if the ledger has a newer version, with the ledger's numbers
-- ARGV[5] the numbers, packed as NUMBERS_FORMAT     ARGV[6] the steps, packed one behind the other
-- ARGV[7...] the reservation id of each step; no two are equal
-- A step is a byte, 1 reserve, 2 release, 3 extend, and the values of its format; -1 stands for "not given" where 0 has a
-- meaning; an operation is named by its index in KEYS.
-- Returns {status, answers...}; status 0: decided with the numbers of the call; 2: with the ledger's, then before the
-- answers stand version number, version id, shadow, default permit_ttl, max_attempts; {1, version number, version id}:
-- stale, nothing done; {3}: for the script of ledgers that lend, nothing done. A bare integer is the one answer of status 0.
-- Answers:
--   0                                                      admitted: at once, default permit_ttl, nothing special
--   1, start_after, permit_ttl, replayed, would_be|0       admitted
--   2, reason, unit|0, retry_after|-1, impossible          denied
--   3, reason, attempts used, last outcome|0, terminal|0, has_ref, ref    denied because of its operation
--   11..14 result of a release     21, permit_ttl; 22..24  result of an extension
--   31, unit unknown unit; 32 expires_in too long; 33 operation mismatch

local RESERVE <const> = 1
local RELEASE <const> = 2
-- number, cause, time_left, max_wait, permit_ttl, priority, no_release, operation key, count of costs
local RESERVE_FORMAT <const> = '>i4Bi7i7i7BBHB'
-- operation hash, expires_in, fingerprint: where there is an operation
local ASK_OPERATION_FORMAT <const> = '>i7i7Bc0'
-- not_sent, outcome, terminal, operation key, count of costs
local RELEASE_FORMAT <const> = '>BBBHB'
-- operation hash, has_ref, ref: where there is an operation
local RELEASE_OPERATION_FORMAT <const> = '>i7BBc0'
local EXTEND_FORMAT <const> = '>i7'
local COST_FORMAT <const> = '>i7i7'
local COST_BYTES <const> = 14

local RETRIES_OFF <const> = 1
local NO_TIME_LEFT <const> = 2
local ATTEMPT_LIMIT <const> = 3
local RETRY_BUDGET <const> = 4
local IN_FLIGHT <const> = 5
local COST <const> = 6
local ADMISSION <const> = 7
local ALREADY_RELEASED <const> = 8
local IN_PROGRESS <const> = 9
local COMPLETED <const> = 10
local CONFLICT <const> = 11
local OUTCOME_UNKNOWN <const> = 12
local OUT_OF_ORDER <const> = 13
local SUCCESS <const> = 1
local ACCOUNT <const> = 5
local ABANDONED <const> = 7
local TERMINAL_OUTCOME_UNKNOWN <const> = 6

-- A record that is open: expires, permit, admission, deposit, retry cost, earn, would_be. Where one of these is set,
-- also: start, operation hash, number, and then unit and amount of each cost. One that is not open is a single byte.
local RECORD_FORMAT <const> = '>i7BBi4i4BB'
local RECORD_BYTES <const> = 19
local DETAIL_FORMAT <const> = '>i7i7i4'
local DETAIL_AT <const> = 20
local DETAIL_BYTES <const> = 37
local CLOSED <const> = '1'
local EXPIRED <const> = '2'
local CLOSED_WITH_PERMIT <const> = '3'

-- An operation: expires, keep until, used, open, open until, last outcome, terminal, earned, fingerprint, has ref, ref.
local OPERATION_FORMAT <const> = '>i7i7i4i4i7BBBBc0BBc0'
local O_EXPIRES <const> = 1
local O_KEEP <const> = 2
local O_USED <const> = 3
local O_OPEN <const> = 4
local O_OPEN_UNTIL <const> = 5
local O_LAST <const> = 6
local O_TERMINAL <const> = 7
local O_EARNED <const> = 8
local O_FINGERPRINT <const> = 9
local O_HAS_REF <const> = 10
local O_REF <const> = 11

local QUEUE <const> = 3
local QUEUE_PER_CALL_MAX <const> = 16
local PEXPIRE_SLACK_MS <const> = 60000
-- The compact encoding of a small hash is searched from end to end; a larger one leaves it by holding a long value.
local COMPACT_MAX <const> = 48
local LONG_VALUE_BYTES <const> = 65
local SIZE_MAX <const> = 255

-- The ledger and numbers positions of a unit, or nil.
local function find_unit(l, id)
  local i = N_UNITS + 1
  for at = L_UNITS, #l, L_UNIT do
    if l[at] == id then
      return at + 1, i
    end
    i = i + UNIT_NUMBERS
  end
  return nil
end

local function bump(l, counter, amount)
  local sum = l[counter] + amount
  l[counter] = sum > EXACT_MAX and EXACT_MAX or sum
end

-- Unit and amount of each cost of a step, and the position behind them.
local function read_costs(steps, p, count)
  local costs = {}
  for i = 1, 2 * count, 2 do
    costs[i], costs[i + 1], p = struct.unpack(COST_FORMAT, steps, p)
  end
  return costs, p
end

local steps, numbers, status = ARGV[6], ARGV[5], 0
local created = not l
--if leased
local adopted
--end
do
  local number, id = tonumber(ARGV[2]), tonumber(ARGV[3])
  if created then
    n = unpack_numbers(numbers, 1)
    local count = (#n - N_UNITS + 1) / UNIT_NUMBERS
    l = {
      number, id, clock, clock, n[N_ABSENT_ADMISSION], 0, 0, 0, 0,
      -- Generations, of which the first is the newer.
      0, 0, 0, 0, 1, 0, 0,
      0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
      count,
    }
    for i = 0, count - 1 do
      local at = L_UNITS + i * L_UNIT
      l[at], l[at + 1], l[at + 2] = n[N_UNITS + i * UNIT_NUMBERS], 0, 0
    end
  elseif number < l[L_NUMBER] or (number == l[L_NUMBER] and id < l[L_ID]) then
    if ARGV[4] ~= '1' then
      return { 1, l[L_NUMBER], l[L_ID] }
    end
    status, numbers = 2, string.sub(stored, numbers_from)
  elseif number ~= l[L_NUMBER] or id ~= l[L_ID] then
    -- Newer numbers are adopted: balances are clipped, nothing is refilled.
    --if leased
    if lending then
      l[L_NUMBER], l[L_ID] = number, id
    else
    --end
    n = unpack_numbers(numbers, 1)
    if n[N_LIMITED] == 1 then
      adopt(l, L_ADMISSION, n[N_ADMISSION], n[N_ADMISSION + 1], n[N_ADMISSION + 2])
    else
      l[L_ADMISSION], l[L_ADMISSION + 1] = 0, 0
    end
    adopt(l, L_RETRY, n[N_RETRY], n[N_RETRY + 1], n[N_RETRY + 2])
    local new = { unpack(l, 1, L_UNITS - 1) }
    for i = N_UNITS, #n, UNIT_NUMBERS do
      local at, old = #new + 1, find_unit(l, n[i])
      new[at], new[at + 1], new[at + 2] = n[i], old and l[old] or 0, 0
      adopt(new, at + 1, n[i + 1], n[i + 2], n[i + 3])
    end
    l = new
    l[L_NUMBER], l[L_ID], l[L_UNIT_COUNT] = number, id, (#n - N_UNITS + 1) / UNIT_NUMBERS
    --if leased
    end
    adopted = given_numbers
    --end
  end
end
--if leased
if created then
  open_epoch_if_lost(n, n)
end
if lending then
  begin_lending(adopted)
end
local away = lending and lending.lost and l[L_NOW] < lending.wait
--end
local now, ttl = l[L_NOW], n[N_PERMIT_TTL]
-- What to write, made when it is needed: alternating ids and records for each place (1, 2: generation; 3: queue), ids that
-- left a generation, and for the queue's ids their due times, or false for what leaves it.
local writes, left_generation, dues = {}, nil, nil

-- Drop what ended.
local ended = nil
for g = 1, 2 do
  local ends = l[L_END + 2 * g]
  if ends ~= 0 and ends <= now then
    l[L_IN_FLIGHT] = l[L_IN_FLIGHT] - l[L_PERMITS + 2 * g]
    bump(l, PERMITS_EXPIRED, l[L_PERMITS + 2 * g])
    l[L_END + 2 * g], l[L_PERMITS + 2 * g], l[L_SIZE + g] = 0, 0, 0
    ended = ended or {}
    ended[#ended + 1] = KEYS[g + 1]
  end
end
local overdue = nil
if l[L_QUEUED] > 0 then
  -- Work off the head of the queue: what left it or changed, by id.
  local heads = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', now, 'LIMIT', 0, QUEUE_PER_CALL_MAX)
  local expired = 0
  overdue, dues = {}, {}
  if #heads == 0 and l[L_QUEUE_UNTIL] <= now then
    -- The queue's keys are gone (evicted): its permits have ended.
    expired = l[L_QUEUE_PERMITS]
    l[L_QUEUED] = 0
  elseif #heads > 0 then
    local found = redis.call('HMGET', KEYS[4], unpack(heads))
    local list = {}
    for i = 1, #heads do
      local id, record = heads[i], found[i]
      local open = record and #record > 1
      if open and #record < RECORD_BYTES then
        return redis.error_reply('CORRUPT reservation cannot be read')
      end
      local permit = record == CLOSED_WITH_PERMIT or (open and string.byte(record, 8) == 1)
      if permit then
        expired = expired + 1
      end
      if permit or open then
        -- Remembered for another permit life, so that a late release learns of it.
        overdue[id] = open and EXPIRED or CLOSED
        list[#list + 1], list[#list + 2] = id, overdue[id]
        dues[id] = now + ttl
      else
        overdue[id], dues[id] = false, false
        if record then
          l[L_QUEUED] = l[L_QUEUED] - 1
        end
      end
    end
    writes[QUEUE] = list
  end
  l[L_IN_FLIGHT] = l[L_IN_FLIGHT] - expired
  l[L_QUEUE_PERMITS] = l[L_QUEUE_PERMITS] - expired
  bump(l, PERMITS_EXPIRED, expired)
end
if l[L_END + 2] == 0 and l[L_END + 4] == 0 and l[L_QUEUED] == 0 then
  l[L_NEWER] = 1
end

-- One look-up for all reservations of the batch in each place that has any, one for all operations. Behind the ids is
-- asked for the marker of a generation, '': where it is missing, the key is new or was evicted.
local count = #ARGV - 6
ARGV[count + 7] = ''
local first = l[L_END + 2] ~= 0 and redis.call('HMGET', KEYS[2], unpack(ARGV, 7))
local second = l[L_END + 4] ~= 0 and redis.call('HMGET', KEYS[3], unpack(ARGV, 7))
local queued = l[L_QUEUED] > 0 and redis.call('HMGET', KEYS[4], unpack(ARGV, 7))
-- By index in KEYS; false where there is none, or its time is over.
local operations, operations_dirty = nil, nil
if #KEYS > 5 then
  operations, operations_dirty = {}, {}
  local found = redis.call('MGET', unpack(KEYS, 6))
  for i = 1, #found do
    local operation = false
    if found[i] then
      local values = { pcall(struct.unpack, OPERATION_FORMAT, found[i]) }
      if not values[1] then
        return redis.error_reply('CORRUPT operation cannot be read')
      end
      table.remove(values, 1)
      if now < values[O_KEEP] then
        operation = values
      end
    end
    operations[i + 5] = operation
  end
end

local shadow, attempts = n[N_SHADOW] == 1, n[N_MAX_ATTEMPTS]
local out, at = { status }, 1
if status == 2 then
  out, at = { status, l[L_NUMBER], l[L_ID], n[N_SHADOW], ttl, attempts }, 6
end
-- A release or an extension that finds no ledger makes none.
local fresh = created
-- Most records of a batch are equal.
local memo_expires, memo_deposit, memo_record
local p = 1
for i = 1, count do
  local id, kind = ARGV[6 + i], string.byte(steps, p)
  p = p + 1

  -- The record of the reservation, or false, and where it stands.
  local record, where = first and first[i], 1
  if not record then
    record, where = second and second[i], 2
  end
  if not record then
    record, where = queued and queued[i], QUEUE
  end
  if overdue and overdue[id] ~= nil then
    record, where = overdue[id], QUEUE
  end
  local open = record and #record > 1
  local expires, permit, admission, deposited, retry_cost, earn, would_be
  local start, of, number = 0, 0, 0
  if open then
    expires, permit, admission, deposited, retry_cost, earn, would_be = struct.unpack(RECORD_FORMAT, record)
    if #record > RECORD_BYTES then
      start, of, number = struct.unpack(DETAIL_FORMAT, record, DETAIL_AT)
    end
    open = expires > now
  end

  if kind == RESERVE then
    fresh = false
    local cause, time_left, max_wait, permit_ttl, priority, no_release, key, count_of_costs, costs
    number, cause, time_left, max_wait, permit_ttl, priority, no_release, key, count_of_costs, p =
      struct.unpack(RESERVE_FORMAT, steps, p)
    local hash, expires_in, fingerprint = 0, -1, nil
    if key ~= 0 then
      hash, expires_in, fingerprint, p = struct.unpack(ASK_OPERATION_FORMAT, steps, p)
    end
    if count_of_costs > 0 then
      costs, p = read_costs(steps, p, count_of_costs)
    end
    -- reason: of a refusal; wait: until the start, or what short() says; code: of a contradiction.
    local reason, wait, unit, code = nil, 0, 0, nil
    local operation = key ~= 0 and operations[key]

    --if leased
    if away then
      at = at + 1
      out[at], code, record, costs = 40, 0, false, nil
    end
    --end
    if record and no_release == 0 then
      -- Seen before: nothing is charged.
      if not open then
        out[at + 1], out[at + 2], out[at + 3], out[at + 4], out[at + 5] = 2, ALREADY_RELEASED, 0, -1, 0
        at = at + 5
      elseif of ~= hash then
        at = at + 1
        out[at] = 33
      else
        if start < now then
          start = now
        end
        out[at + 1], out[at + 2], out[at + 3], out[at + 4], out[at + 5] = 1, start - now, expires - start, 1, would_be
        at = at + 5
      end
      code = 0
    elseif costs then
      for j = 1, #costs, 2 do
        if not code and not find_unit(l, costs[j]) then
          out[at + 1], out[at + 2] = 31, costs[j]
          at = at + 2
          code = 31
        end
      end
    end
    if not code and key ~= 0 then
      if expires_in > n[N_RETENTION] then
        at = at + 1
        out[at] = 32
        code = 32
      else
        if not operation then
          reason = number ~= 1 and OUT_OF_ORDER or nil
        elseif operation[O_FINGERPRINT] ~= fingerprint then
          reason = CONFLICT
        elseif operation[O_TERMINAL] == TERMINAL_OUTCOME_UNKNOWN then
          reason = OUTCOME_UNKNOWN
        elseif operation[O_TERMINAL] ~= 0 then
          reason = COMPLETED
        elseif now >= operation[O_EXPIRES] then
          reason = OUT_OF_ORDER
        elseif number <= operation[O_USED] and operation[O_OPEN] > 0 and now < operation[O_OPEN_UNTIL] then
          reason = IN_PROGRESS
        elseif number ~= operation[O_USED] + 1 then
          reason = OUT_OF_ORDER
        end
        if reason then
          local counter = cause ~= 0 and RETRIES_DENIED or ORIGINALS_DENIED
          l[counter] = l[counter] + 1
          if reason == CONFLICT then
            out[at + 1], out[at + 2], out[at + 3], out[at + 4], out[at + 5] = 2, CONFLICT, 0, -1, 0
            at = at + 5
          else
            out[at + 1], out[at + 2] = 3, reason
            out[at + 3] = operation and operation[O_USED] or 0
            out[at + 4] = operation and operation[O_LAST] or 0
            out[at + 5] = operation and operation[O_TERMINAL] or 0
            out[at + 6] = operation and operation[O_HAS_REF] or 0
            out[at + 7] = operation and operation[O_REF] or ''
            at = at + 7
          end
          code = 3
        end
      end
    end
    if not code then
      -- The checks in their fixed order.
      retry_cost = cause ~= 0 and n[N_RETRY_COST + cause] or 0
      if cause ~= 0 and n[N_RETRIES_OFF] == 1 then
        reason, wait = RETRIES_OFF, -1
      elseif time_left == 0 then
        reason, wait = NO_TIME_LEFT, -1
      elseif number > attempts then
        reason, wait = ATTEMPT_LIMIT, 0
      else
        local missing = cause ~= 0 and short(l, L_RETRY, n, N_RETRY, priority, retry_cost)
        if missing then
          reason, wait = RETRY_BUDGET, missing
        elseif no_release == 0 and l[L_IN_FLIGHT] >= n[N_MAX_IN_FLIGHT] - n[N_KEEP_IN_FLIGHT + priority] then
          reason, wait = IN_FLIGHT, -1
        else
          local short_unit
          for j = 1, costs and #costs or 0, 2 do
            if not short_unit and costs[j + 1] > 0 then
              local unit_at, unit_n = find_unit(l, costs[j])
              missing = short(l, unit_at, n, unit_n, priority, costs[j + 1])
              short_unit = missing and costs[j]
            end
          end
          if short_unit then
            reason, wait, unit = COST, missing, short_unit
          elseif n[N_LIMITED] == 1 then
            missing = short(l, L_ADMISSION, n, N_ADMISSION, priority, TOKEN)
            if missing then
              wait = missing
              if wait <= 0 or wait > max_wait or wait > n[N_MAX_WAIT] then
                reason = ADMISSION
              elseif time_left >= 0 and wait >= time_left then
                reason = NO_TIME_LEFT
              end
            end
          end
        end
      end
      would_be = 0
      if reason then
        if shadow and reason ~= RETRIES_OFF then
          would_be, wait, retry_cost, costs, reason = reason, 0, 0, nil, nil
        else
          local counter = cause ~= 0 and RETRIES_DENIED or ORIGINALS_DENIED
          l[counter] = l[counter] + 1
          out[at + 1], out[at + 2], out[at + 3] = 2, reason, unit
          out[at + 4] = wait == 0 and -1 or wait
          out[at + 5] = wait == 0 and 1 or 0
          at = at + 5
        end
      end
      if not reason then
        -- Admitted: charge everything, or nothing in place of a would-be refusal.
        local plain = permit_ttl < 0 and wait == 0 and would_be == 0
        if permit_ttl < 0 then
          permit_ttl = ttl
        end
        expires = now + wait + permit_ttl
        permit, admission, deposited, earn = 0, 0, 0, 0
        if would_be == 0 then
          earn = n[N_EARN_ON_SUCCESS]
          if no_release == 0 then
            permit = 1
            l[L_IN_FLIGHT] = l[L_IN_FLIGHT] + 1
          end
          if n[N_LIMITED] == 1 then
            admission = 1
            l[L_ADMISSION] = l[L_ADMISSION] - TOKEN
          end
          for j = 1, costs and #costs or 0, 2 do
            local unit_at = find_unit(l, costs[j])
            l[unit_at] = l[unit_at] - costs[j + 1]
          end
          if cause ~= 0 then
            l[L_RETRY] = l[L_RETRY] - retry_cost
            l[RETRIES_ADMITTED] = l[RETRIES_ADMITTED] + 1
          else
            if earn == 0 then
              deposited = deposit(l, L_RETRY, n, N_RETRY, n[N_DEPOSIT])
              bump(l, DEPOSITED, deposited)
            end
            l[ORIGINALS_ADMITTED] = l[ORIGINALS_ADMITTED] + 1
          end
        else
          l[WOULD_BE_DENIED] = l[WOULD_BE_DENIED] + 1
        end
        if key ~= 0 then
          if not operation then
            local until_ms = now + (expires_in >= 0 and expires_in or n[N_RETENTION])
            operation = { until_ms, until_ms + n[N_RETENTION], 0, 0, 0, 0, 0, 0, fingerprint, 0, '' }
            operations[key] = operation
          end
          if now >= operation[O_OPEN_UNTIL] then
            operation[O_OPEN] = 0
          end
          operation[O_USED] = number
          operation[O_OPEN] = operation[O_OPEN] + 1
          if expires > operation[O_OPEN_UNTIL] then
            operation[O_OPEN_UNTIL] = expires
          end
          operations_dirty[key] = true
        end
        if no_release == 0 then
          if plain and cause == 0 and key == 0 and not costs then
            if memo_expires ~= expires or memo_deposit ~= deposited then
              memo_expires, memo_deposit = expires, deposited
              memo_record = struct.pack(RECORD_FORMAT, expires, permit, admission, deposited, 0, earn, 0)
            end
            record = memo_record
          else
            record = struct.pack(RECORD_FORMAT, expires, permit, admission, deposited, retry_cost, earn, would_be)
            if wait > 0 or key ~= 0 or costs then
              record = record .. struct.pack(DETAIL_FORMAT, wait > 0 and now + wait or 0, hash, number)
              for j = 1, costs and #costs or 0, 2 do
                record = record .. struct.pack(COST_FORMAT, costs[j], costs[j + 1])
              end
            end
          end
          -- Remembered where its expiry fits. A generation made under a longer permit life would return slots too late.
          local newer = l[L_NEWER]
          local older, last = 3 - newer, now + ttl * 2
          local newer_ends, older_ends = l[L_END + 2 * newer], l[L_END + 2 * older]
          if expires <= newer_ends and newer_ends <= last then
            where = newer
          elseif expires <= older_ends and older_ends <= last then
            where = older
          elseif expires <= last and (older_ends == 0 or newer_ends == 0) then
            where = older_ends == 0 and older or newer
            l[L_NEWER], l[L_END + 2 * where] = where, last
          else
            where = QUEUE
          end
          if where == QUEUE then
            dues = dues or {}
            dues[id] = expires
            l[L_QUEUED] = l[L_QUEUED] + 1
            l[L_QUEUE_PERMITS] = l[L_QUEUE_PERMITS] + permit
          else
            l[L_PERMITS + 2 * where] = l[L_PERMITS + 2 * where] + permit
          end
          local list = writes[where]
          if list then
            local size = #list
            list[size + 1], list[size + 2] = id, record
          else
            writes[where] = { id, record }
          end
        end
        if plain then
          at = at + 1
          out[at] = 0
        else
          out[at + 1], out[at + 2], out[at + 3], out[at + 4], out[at + 5] = 1, wait, permit_ttl, 0, would_be
          at = at + 5
        end
      end
    end

  elseif kind == RELEASE then
    local not_sent, outcome, terminal, key, count_of_costs, costs
    not_sent, outcome, terminal, key, count_of_costs, p = struct.unpack(RELEASE_FORMAT, steps, p)
    local named, has_ref, ref = 0, 0, ''
    if key ~= 0 then
      named, has_ref, ref, p = struct.unpack(RELEASE_OPERATION_FORMAT, steps, p)
    end
    if count_of_costs > 0 then
      costs, p = read_costs(steps, p, count_of_costs)
    end
    at = at + 1
    if not record then
      out[at] = 14
    elseif not open then
      -- Time over, or a single byte that says how it ended.
      out[at] = (#record > 1 or record == EXPIRED) and 13 or 12
    elseif of ~= named then
      out[at] = 33
    else
      out[at] = 11
      local closed = CLOSED
      if permit == 1 then
        if not_sent == 0 and outcome == ABANDONED then
          closed = CLOSED_WITH_PERMIT
        else
          l[L_IN_FLIGHT] = l[L_IN_FLIGHT] - 1
          if where == QUEUE then
            l[L_QUEUE_PERMITS] = l[L_QUEUE_PERMITS] - 1
          else
            l[L_PERMITS + 2 * where] = l[L_PERMITS + 2 * where] - 1
          end
        end
      end
      local list = writes[where]
      if list then
        local size = #list
        list[size + 1], list[size + 2] = id, closed
      else
        writes[where] = { id, closed }
      end
      local operation = key ~= 0 and operations[key]
      if operation then
        operations_dirty[key] = true
        operation[O_OPEN] = math.max(0, operation[O_OPEN] - 1)
      end
      if not_sent == 1 then
        l[NOT_SENT] = l[NOT_SENT] + 1
        if admission == 1 and n[N_LIMITED] == 1 then
          deposit(l, L_ADMISSION, n, N_ADMISSION, TOKEN)
        end
        for from = DETAIL_BYTES + 1, #record, COST_BYTES do
          local unit, amount = struct.unpack(COST_FORMAT, record, from)
          local unit_at, unit_n = find_unit(l, unit)
          if unit_at then
            deposit(l, unit_at, n, unit_n, amount)
          end
        end
        deposit(l, L_RETRY, n, N_RETRY, retry_cost)
        -- What was earned and is already spent becomes a debt that later deposits pay.
        charge(l, L_RETRY, n, N_RETRY, deposited)
        if operation and operation[O_USED] == number then
          operation[O_USED] = number - 1
        end
      else
        if outcome == ACCOUNT then
          l[ACCOUNT_SIGNALS] = l[ACCOUNT_SIGNALS] + 1
        end
        -- Actual costs settle the estimates of the record.
        for j = 1, costs and would_be == 0 and #costs or 0, 2 do
          local more = costs[j + 1]
          for from = DETAIL_BYTES + 1, #record, COST_BYTES do
            local unit, estimate = struct.unpack(COST_FORMAT, record, from)
            if unit == costs[j] then
              more = more - estimate
            end
          end
          local unit_at, unit_n = find_unit(l, costs[j])
          if unit_at and more < 0 then
            deposit(l, unit_at, n, unit_n, -more)
          elseif unit_at then
            bump(l, OVERUSE, charge(l, unit_at, n, unit_n, more))
          end
        end
        local succeeded = earn == 1 and outcome == SUCCESS
        local earned = succeeded and key == 0
        if operation then
          operation[O_LAST] = outcome
          if operation[O_TERMINAL] == 0 and terminal ~= 0 then
            operation[O_TERMINAL], operation[O_HAS_REF], operation[O_REF] = terminal, has_ref, ref
            operation[O_KEEP] = math.max(operation[O_KEEP], now + n[N_RETENTION])
          end
          earned = succeeded and operation[O_EARNED] == 0
          if succeeded then
            operation[O_EARNED] = 1
          end
        end
        if earned then
          bump(l, DEPOSITED, deposit(l, L_RETRY, n, N_RETRY, n[N_DEPOSIT]))
        end
      end
    end

  else
    local permit_ttl
    permit_ttl, p = struct.unpack(EXTEND_FORMAT, steps, p)
    at = at + 1
    if not record then
      out[at] = 24
    elseif not open then
      out[at] = (#record > 1 or record == EXPIRED) and 23 or 22
    else
      local until_ms = now + permit_ttl
      if until_ms > expires then
        expires = until_ms
        record = struct.pack(RECORD_FORMAT, expires, permit, admission, deposited, retry_cost, earn, would_be)
          .. string.sub(record, DETAIL_AT)
        if where == QUEUE or expires > l[L_END + 2 * where] then
          if where ~= QUEUE then
            l[L_PERMITS + 2 * where] = l[L_PERMITS + 2 * where] - permit
            l[L_QUEUED] = l[L_QUEUED] + 1
            l[L_QUEUE_PERMITS] = l[L_QUEUE_PERMITS] + permit
            left_generation = left_generation or { {}, {} }
            local left = left_generation[where]
            left[#left + 1] = id
          end
          dues = dues or {}
          dues[id] = expires
          where = QUEUE
        end
        local list = writes[where] or {}
        list[#list + 1], list[#list + 2] = id, record
        writes[where] = list
      end
      out[at] = 21
      at = at + 1
      out[at] = expires - now
    end
  end
end

--if leased
local answer = {}
if has_ask == 2 then
  answer = revoke()
elseif has_ask == 1 then
  local gone_before = reservations_gone
  reservations_gone = false
  answer = answer_asks()
  fresh = fresh and absent
  if reservations_gone then
    -- What was dropped has gone with everything else.
    writes, left_generation, dues, ended = {}, nil, nil, nil
  end
  reservations_gone = reservations_gone or gone_before
end
local lends = lending and not fresh
out[at + 1], out[at + 2] = lends and lending.number or 0, lends and lending.id or 0
out[at + 3], out[at + 4] = lends and lending.holders or 0, lends and needs_beats(now) and 1 + quiet or 0
at = at + 4
for i = 1, #answer do
  out[at + i] = answer[i]
end
--end

-- Write.
if fresh then
  return out
end
if created and redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4], KEYS[5]) > 0 then
  -- Records that have outlived their ledger (it was evicted, or deleted) count nowhere: none may be released. Looked
  -- for first: a script whose first write frees memory is not stopped when there is none left.
  redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
end
--if leased
if reservations_gone then
  redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
end
--end
if ended then
  redis.call('UNLINK', unpack(ended))
end
if dues then
  local scores, gone = {}, {}
  for id, at_ms in pairs(dues) do
    if at_ms then
      scores[#scores + 1] = at_ms
      scores[#scores + 1] = id
      if at_ms > l[L_QUEUE_UNTIL] then
        l[L_QUEUE_UNTIL] = at_ms
      end
    else
      gone[#gone + 1] = id
    end
  end
  if #gone > 0 then
    redis.call('ZREM', KEYS[5], unpack(gone))
    redis.call('HDEL', KEYS[4], unpack(gone))
  end
  if #scores > 0 then
    redis.call('ZADD', KEYS[5], unpack(scores))
    redis.call('PEXPIRE', KEYS[5], l[L_QUEUE_UNTIL] - now + ttl + PEXPIRE_SLACK_MS)
  end
end
for where, list in pairs(writes) do
  local key = KEYS[where + 1]
  local added = #list > 0 and redis.call('HSET', key, unpack(list)) or 0
  if where == QUEUE then
    redis.call('PEXPIRE', key, math.max(0, l[L_QUEUE_UNTIL] - now) + ttl + PEXPIRE_SLACK_MS)
  elseif added > 0 then
    local found = where == 1 and first or where == 2 and second
    local marked, size = found and found[count + 1], l[L_SIZE + where]
    l[L_SIZE + where] = math.min(size + added, SIZE_MAX)
    if not marked or (size <= COMPACT_MAX and size + added > COMPACT_MAX) then
      redis.call('HSET', key, '', string.rep('0', size + added > COMPACT_MAX and LONG_VALUE_BYTES or 0))
    end
    if not marked then
      -- Its end stands, so this holds for its whole life.
      redis.call('PEXPIRE', key, l[L_END + 2 * where] - now + PEXPIRE_SLACK_MS)
    end
  end
end
for g = 1, 2 do
  local left = left_generation and left_generation[g]
  if left and #left > 0 then
    redis.call('HDEL', KEYS[g + 1], unpack(left))
  end
end
if operations_dirty then
  for key in pairs(operations_dirty) do
    local o = operations[key]
    local packed = struct.pack(OPERATION_FORMAT, o[O_EXPIRES], o[O_KEEP], o[O_USED], o[O_OPEN], o[O_OPEN_UNTIL], o[O_LAST],
      o[O_TERMINAL], o[O_EARNED], #o[O_FINGERPRINT], o[O_FINGERPRINT], o[O_HAS_REF], #o[O_REF], o[O_REF])
    redis.call('SET', KEYS[key], packed, 'PX', math.max(0, o[O_KEEP] - now) + PEXPIRE_SLACK_MS)
  end
end
local packed = struct.pack(HEAD_FORMAT, unpack(l, 1, L_UNIT_COUNT))
for i = L_UNITS, #l, L_UNIT do
  packed = packed .. struct.pack(UNIT_FORMAT, l[i], l[i + 1], l[i + 2])
end
packed = packed .. numbers
--if leased
write_lending(n[N_IDLE_TTL])
if lending then
  packed = packed .. '1'
end
--end
if n[N_IDLE_TTL] > 0 then
  redis.call('SET', KEYS[1], packed, 'PX', n[N_IDLE_TTL])
else
  redis.call('SET', KEYS[1], packed)
end
return out
