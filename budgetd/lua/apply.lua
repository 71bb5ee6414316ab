-- Applies a batch of steps to one ledger, in order, each all or nothing: the mirror of budget/src/ledger/*.rs.
-- Decides in locals, writes at the end.
--
-- KEYS[1] ledger hash     KEYS[2], KEYS[3] the two generations of reservations (hash: id -> record)
-- KEYS[4] queued reservations (hash: id -> record)     KEYS[5] their queue (sorted set: id by due time)
-- KEYS[6...] operations of the batch (strings)
-- ARGV[1] now_ms, or "" for the server's time
-- ARGV[2], ARGV[3] version number and id of the policies the numbers come from
-- ARGV[4] 1: decide even if the ledger has a newer version, with the ledger's numbers
-- ARGV[5] the numbers, a packed list; ARGV[6] the steps, a packed list of lists:
--   {1, id, number, cause, time_left|-1, max_wait, permit_ttl|-1, priority, no_release, operation key|0, operation
--    hash|0, fingerprint, expires_in|-1, unit, amount, ...}
--   {2, id, operation key|0, operation hash|0, not_sent, outcome, terminal, has_ref, ref, unit, amount, ...}
--   {3, id, permit_ttl}
-- Returns {status, version number, version id, shadow, answers...}; status 1: stale, nothing done. Answers:
--   1, start_after, permit_ttl, attempts_left, replayed, would_be|0                       admitted
--   2, reason, unit|0, retry_after|-1, impossible, 0                                      denied
--   2, ..., 1, attempts used, last outcome|0, terminal|0, has_ref, ref                    denied, operation known
--   3, result        4, result, permit_ttl|-1        5, what, unit|0

local RETRIES_OFF, NO_TIME_LEFT, ATTEMPT_LIMIT, RETRY_BUDGET, IN_FLIGHT, COST, ADMISSION = 1, 2, 3, 4, 5, 6, 7
local ALREADY_RELEASED, IN_PROGRESS, COMPLETED, CONFLICT, OUTCOME_UNKNOWN, OUT_OF_ORDER = 8, 9, 10, 11, 12, 13
local SUCCESS, ACCOUNT, ABANDONED = 1, 5, 7
local TERMINAL_OUTCOME_UNKNOWN = 6
local OPEN, CLOSED, EXPIRED = 0, 1, 2
local QUEUE = 3
local QUEUE_PER_CALL_MAX = 16
local PEXPIRE_SLACK_MS = 60000
-- A record: state, expires, permit, admission, deposit, retry cost, earn, would_be, start, operation hash, number, then
-- unit and amount of each cost. What is not open keeps only state and permit.
local R_STATE, R_EXPIRES, R_PERMIT, R_ADMISSION, R_DEPOSIT, R_RETRY_COST = 1, 2, 3, 4, 5, 6
local R_EARN, R_WOULD_BE, R_START, R_OPERATION, R_NUMBER, R_COSTS = 7, 8, 9, 10, 11, 12
-- An operation: fingerprint, expires, keep until, used, open, open until, last outcome, terminal, earned, has ref, ref.
local O_FINGERPRINT, O_EXPIRES, O_KEEP, O_USED, O_OPEN, O_OPEN_UNTIL = 1, 2, 3, 4, 5, 6
local O_LAST, O_TERMINAL, O_EARNED, O_HAS_REF, O_REF = 7, 8, 9, 10, 11
-- Positions in the counters.
local ORIGINALS_ADMITTED, RETRIES_ADMITTED, ORIGINALS_DENIED, RETRIES_DENIED, NOT_SENT = 1, 2, 3, 4, 5
local PERMITS_EXPIRED, DEPOSITED, OVERUSE, ACCOUNT_SIGNALS, WOULD_BE_DENIED = 6, 7, 8, 9, 10

local call, pack = redis.call, cmsgpack.pack
local version_number, version_id = tonumber(ARGV[2]), tonumber(ARGV[3])
local given = cmsgpack.unpack(ARGV[5])
local steps = cmsgpack.unpack(ARGV[6])
local clock = clock_ms(ARGV[1])

-- Load, refill at the numbers of the last call, adopt newer ones.
local ledger = load_ledger(KEYS[1])
if ledger == false then
  return redis.error_reply('CORRUPT ledger cannot be read')
end
local n = given
local adopted = false
if ledger == nil then
  ledger = new_ledger(version_number, version_id, given, clock)
  adopted = true
else
  local older = version_number < ledger.number or (version_number == ledger.number and version_id < ledger.id)
  local same = version_number == ledger.number and version_id == ledger.id
  if older and ARGV[4] ~= '1' then
    return { 1, ledger.number, ledger.id, 0 }
  end
  if not same then
    n = stored_numbers(KEYS[1], ledger.chunks)
    if not n then
      return redis.error_reply('CORRUPT numbers of the ledger cannot be read')
    end
  end
  advance(ledger, n, clock)
  if not same and not older then
    if given[N_LIMITED] == 1 then
      adopt(ledger.admission, given, N_ADMISSION)
    else
      ledger.admission = { 0, 0 }
    end
    adopt(ledger.retry, given, N_RETRY)
    local units = {}
    for i = N_UNITS, #given, UNIT_NUMBERS do
      local bucket = { 0, 0 }
      for j = 1, #ledger.units do
        if ledger.units[j].id == given[i] then
          bucket = ledger.units[j]
        end
      end
      adopt(bucket, given, i + 1)
      bucket.id = given[i]
      units[#units + 1] = bucket
    end
    ledger.units = units
    ledger.number, ledger.id = version_number, version_id
    n = given
    adopted = true
  end
end
local now = ledger.now
local counters = ledger.counters
local ttl = n[N_PERMIT_TTL]

local function bump(i, amount)
  counters[i] = min(counters[i] + amount, EXACT_MAX)
end

-- Reservations touched by this call: record by id, and where it stands (1, 2: generation; 3: queue).
local records, place = {}, {}
-- What to write: ids changed, ids to remove from where they were, due times of queued ones (false: leaves the queue).
local dirty, moved, dues = {}, {}, {}
local ended_generation = { false, false }

-- Drop what ended.
for g = 1, 2 do
  if ledger.ends[g] ~= 0 and ledger.ends[g] <= now then
    ledger.in_flight = ledger.in_flight - ledger.permits[g]
    bump(PERMITS_EXPIRED, ledger.permits[g])
    ledger.ends[g], ledger.permits[g] = 0, 0
    ended_generation[g] = true
  end
end
local function corrupt_record()
  return redis.error_reply('CORRUPT reservation cannot be read')
end
if ledger.queued > 0 then
  local due = call('ZRANGEBYSCORE', KEYS[5], '-inf', now, 'LIMIT', 0, QUEUE_PER_CALL_MAX)
  if #due == 0 and ledger.queue_until <= now then
    -- The queue's keys are gone (evicted): its permits have ended.
    ledger.in_flight = ledger.in_flight - ledger.queue_permits
    bump(PERMITS_EXPIRED, ledger.queue_permits)
    ledger.queued, ledger.queue_permits = 0, 0
  elseif #due > 0 then
    local packed = call('HMGET', KEYS[4], unpack(due))
    for i = 1, #due do
      local id = due[i]
      local record = packed[i] and unpack_numbers(packed[i], 3)
      if packed[i] and not record then
        return corrupt_record()
      end
      if record and (record[R_PERMIT] == 1 or record[R_STATE] == OPEN) then
        ledger.in_flight = ledger.in_flight - record[R_PERMIT]
        ledger.queue_permits = ledger.queue_permits - record[R_PERMIT]
        bump(PERMITS_EXPIRED, record[R_PERMIT])
        record = { record[R_STATE] == OPEN and EXPIRED or CLOSED, 0, 0 }
        dues[id] = now + ttl
        ledger.queue_until = max(ledger.queue_until, now + ttl)
        dirty[id] = true
        place[id] = QUEUE
        records[id] = record
      else
        dues[id] = false
        records[id] = false
        if record then
          ledger.queued = ledger.queued - 1
        end
      end
    end
  end
end

if ledger.ends[1] == 0 and ledger.ends[2] == 0 and ledger.queued == 0 then
  ledger.newer = 1
end

-- One look-up for all reservations of the batch, in the order generation, generation, queue.
local wanted = {}
for i = 1, #steps do
  local step = steps[i]
  local id = step[2]
  if records[id] == nil and not (step[1] == 1 and step[9] == 1) then
    records[id] = false
    wanted[#wanted + 1] = id
  end
end
for where = 1, QUEUE do
  local present
  if where == QUEUE then
    present = ledger.queued > 0
  else
    present = ledger.ends[where] ~= 0
  end
  if present and #wanted > 0 then
    local packed = call('HMGET', KEYS[where + 1], unpack(wanted))
    for i = 1, #wanted do
      local id = wanted[i]
      if packed[i] and not place[id] then
        local record = unpack_numbers(packed[i], 3)
        if not record then
          return corrupt_record()
        end
        records[id], place[id] = record, where
      end
    end
  end
end

-- The operations of the batch. A record whose time is over counts as none.
local operations, operations_dirty = {}, {}
if #KEYS > 5 then
  local keys = {}
  for i = 6, #KEYS do
    keys[i - 5] = KEYS[i]
  end
  local packed = call('MGET', unpack(keys))
  for i = 1, #keys do
    operations[i + 5] = false
    if packed[i] then
      local values = { pcall(cmsgpack.unpack, packed[i]) }
      if not values[1] or #values < 12 or type(values[O_KEEP + 1]) ~= 'number' then
        return redis.error_reply('CORRUPT operation cannot be read')
      end
      table.remove(values, 1)
      if now < values[O_KEEP] then
        operations[i + 5] = values
      end
    end
  end
end

local out = { 0, ledger.number, ledger.id, n[N_SHADOW] }
local function put(...)
  local at = #out
  for i = 1, select('#', ...) do
    out[at + i] = (select(i, ...))
  end
end

local function insert(id, record)
  local newer = ledger.newer
  local older = 3 - newer
  local expires = record[R_EXPIRES]
  local last = now + ttl * 2
  local function fits(g)
    return expires <= ledger.ends[g] and ledger.ends[g] <= last
  end
  local where
  if fits(newer) then
    where = newer
  elseif fits(older) then
    where = older
  elseif expires <= last and (ledger.ends[older] == 0 or ledger.ends[newer] == 0) then
    where = ledger.ends[older] == 0 and older or newer
    ledger.newer = where
    ledger.ends[where] = last
  else
    where = QUEUE
    dues[id] = expires
    ledger.queued = ledger.queued + 1
    ledger.queue_until = max(ledger.queue_until, expires)
  end
  if where == QUEUE then
    ledger.queue_permits = ledger.queue_permits + record[R_PERMIT]
  else
    ledger.permits[where] = ledger.permits[where] + record[R_PERMIT]
  end
  records[id], place[id], dirty[id] = record, where, true
end

local function drop_permit(id)
  local where = place[id]
  if where == QUEUE then
    ledger.queue_permits = ledger.queue_permits - 1
  else
    ledger.permits[where] = ledger.permits[where] - 1
  end
end

local function deny(step, reason, unit, retry_after, impossible, operation)
  bump(step[4] ~= 0 and RETRIES_DENIED or ORIGINALS_DENIED, 1)
  if operation then
    put(2, reason, unit, retry_after, impossible, 1, operation[O_USED], operation[O_LAST], operation[O_TERMINAL],
      operation[O_HAS_REF], operation[O_REF])
  else
    put(2, reason, unit, retry_after, impossible, 0)
  end
end

local NO_OPERATION = { '', 0, 0, 0, 0, 0, 0, 0, 0, 0, '' }

-- The reason the operation refuses attempt number, and what to tell of it; nil if it does not.
local function judge_operation(operation, fingerprint, number)
  if not operation then
    if number == 1 then
      return nil
    end
    return OUT_OF_ORDER, NO_OPERATION
  end
  if operation[O_FINGERPRINT] ~= fingerprint then
    return CONFLICT, nil
  end
  local reason = OUT_OF_ORDER
  if operation[O_TERMINAL] == TERMINAL_OUTCOME_UNKNOWN then
    reason = OUTCOME_UNKNOWN
  elseif operation[O_TERMINAL] ~= 0 then
    reason = COMPLETED
  elseif now >= operation[O_EXPIRES] then
    reason = OUT_OF_ORDER
  elseif number == operation[O_USED] + 1 then
    return nil
  elseif number <= operation[O_USED] and operation[O_OPEN] > 0 and now < operation[O_OPEN_UNTIL] then
    reason = IN_PROGRESS
  end
  return reason, operation
end

-- From what short() gave to retry_after and impossible.
local function hint(wait)
  if wait == 0 then
    return -1, 1
  end
  return wait, 0
end

-- reason, unit, retry_after, impossible of the first rule that fails; or nil and how long the start must wait.
local function judge_numbers(step, retry_cost)
  local priority = step[8]
  if retry_cost > 0 and n[N_RETRIES_OFF] == 1 then
    return RETRIES_OFF, 0, -1, 0
  end
  if step[5] == 0 then
    return NO_TIME_LEFT, 0, -1, 0
  end
  if step[3] > n[N_MAX_ATTEMPTS] then
    return ATTEMPT_LIMIT, 0, -1, 1
  end
  if retry_cost > 0 then
    local wait = short(ledger.retry, n, N_RETRY, priority, retry_cost)
    if wait then
      return RETRY_BUDGET, 0, hint(wait)
    end
  end
  if step[9] == 0 and ledger.in_flight >= n[N_MAX_IN_FLIGHT] - n[N_KEEP_IN_FLIGHT + priority] then
    return IN_FLIGHT, 0, -1, 0
  end
  for i = 14, #step, 2 do
    if step[i + 1] > 0 then
      local at = unit_at(n, step[i])
      local wait = short(ledger.units[(at - N_UNITS) / UNIT_NUMBERS + 1], n, at + 1, priority, step[i + 1])
      if wait then
        return COST, step[i], hint(wait)
      end
    end
  end
  if n[N_LIMITED] == 0 then
    return nil, 0
  end
  local wait = short(ledger.admission, n, N_ADMISSION, priority, TOKEN)
  if not wait then
    return nil, 0
  end
  if wait > 0 and wait <= min(step[6], n[N_MAX_WAIT]) then
    if step[5] >= 0 and wait >= step[5] then
      return NO_TIME_LEFT, 0, wait, 0
    end
    return nil, wait
  end
  return ADMISSION, 0, hint(wait)
end

local function admit(step, retry_cost, wait, would_be)
  local id, number, no_release = step[2], step[3], step[9]
  local charged = would_be == 0
  local permit_ttl = step[7] >= 0 and step[7] or ttl
  local start = now + wait
  local expires = start + permit_ttl
  local record = { OPEN, expires, 0, 0, 0, 0, 0, would_be, wait > 0 and start or 0, step[11], number }
  if charged then
    if no_release == 0 then
      record[R_PERMIT] = 1
      ledger.in_flight = ledger.in_flight + 1
    end
    if n[N_LIMITED] == 1 then
      record[R_ADMISSION] = 1
      ledger.admission[1] = ledger.admission[1] - TOKEN
    end
    record[R_EARN] = n[N_EARN_ON_SUCCESS]
    for i = 14, #step, 2 do
      local bucket = ledger.units[(unit_at(n, step[i]) - N_UNITS) / UNIT_NUMBERS + 1]
      bucket[1] = bucket[1] - step[i + 1]
      record[#record + 1] = step[i]
      record[#record + 1] = step[i + 1]
    end
    if retry_cost > 0 then
      ledger.retry[1] = ledger.retry[1] - retry_cost
      record[R_RETRY_COST] = retry_cost
      bump(RETRIES_ADMITTED, 1)
    else
      if n[N_EARN_ON_SUCCESS] == 0 then
        record[R_DEPOSIT] = deposit(ledger.retry, n, N_RETRY, n[N_DEPOSIT])
        bump(DEPOSITED, record[R_DEPOSIT])
      end
      bump(ORIGINALS_ADMITTED, 1)
    end
  else
    bump(WOULD_BE_DENIED, 1)
  end
  local key = step[10]
  if key ~= 0 then
    local operation = operations[key]
    if not operation then
      local until_ms = now + (step[13] >= 0 and step[13] or n[N_RETENTION])
      operation = { step[12], until_ms, until_ms + n[N_RETENTION], 0, 0, 0, 0, 0, 0, 0, '' }
      operations[key] = operation
    end
    if now >= operation[O_OPEN_UNTIL] then
      operation[O_OPEN] = 0
    end
    operation[O_USED] = number
    operation[O_OPEN] = operation[O_OPEN] + 1
    operation[O_OPEN_UNTIL] = max(operation[O_OPEN_UNTIL], expires)
    operations_dirty[key] = true
  end
  if no_release == 0 then
    insert(id, record)
  end
  put(1, wait, permit_ttl, max(0, n[N_MAX_ATTEMPTS] - number), 0, would_be)
end

local function reserve(step)
  local id, number, cause = step[2], step[3], step[4]
  local record = step[9] == 0 and records[id]
  if record then
    if record[R_STATE] ~= OPEN or record[R_EXPIRES] <= now then
      put(2, ALREADY_RELEASED, 0, -1, 0, 0)
    elseif record[R_OPERATION] ~= step[11] then
      put(5, 3, 0)
    else
      local start = max(record[R_START], now)
      put(1, start - now, record[R_EXPIRES] - start, max(0, n[N_MAX_ATTEMPTS] - number), 1, record[R_WOULD_BE])
    end
    return
  end
  for i = 14, #step, 2 do
    if not unit_at(n, step[i]) then
      put(5, 1, step[i])
      return
    end
  end
  if step[10] ~= 0 and step[13] > n[N_RETENTION] then
    put(5, 2, 0)
    return
  end
  if step[10] ~= 0 then
    local reason, operation = judge_operation(operations[step[10]], step[12], number)
    if reason then
      deny(step, reason, 0, -1, 0, operation)
      return
    end
  end
  local retry_cost = cause ~= 0 and n[N_RETRY_COST + cause] or 0
  local reason, unit, retry_after, impossible = judge_numbers(step, retry_cost)
  if not reason then
    admit(step, retry_cost, unit, 0)
  elseif n[N_SHADOW] == 1 and reason ~= RETRIES_OFF then
    admit(step, retry_cost, 0, reason)
  else
    deny(step, reason, unit, retry_after, impossible, nil)
  end
end

-- nil if the record is open; else the code of the answer: already released 2, expired 3, unknown 4.
local function not_open(record)
  if not record then
    return 4
  end
  if record[R_STATE] == CLOSED then
    return 2
  end
  if record[R_STATE] == EXPIRED or record[R_EXPIRES] <= now then
    return 3
  end
  return nil
end

local function refund(unit, amount)
  local at = unit_at(n, unit)
  if at then
    deposit(ledger.units[(at - N_UNITS) / UNIT_NUMBERS + 1], n, at + 1, amount)
  end
end

local function hand_back(record, operation)
  bump(NOT_SENT, 1)
  if record[R_ADMISSION] == 1 and n[N_LIMITED] == 1 then
    deposit(ledger.admission, n, N_ADMISSION, TOKEN)
  end
  for i = R_COSTS, #record, 2 do
    refund(record[i], record[i + 1])
  end
  deposit(ledger.retry, n, N_RETRY, record[R_RETRY_COST])
  charge(ledger.retry, n, N_RETRY, record[R_DEPOSIT])
  if operation then
    operation[O_OPEN] = max(0, operation[O_OPEN] - 1)
    if operation[O_USED] == record[R_NUMBER] then
      operation[O_USED] = operation[O_USED] - 1
    end
  end
end

local function settle(record, step, operation)
  local outcome, terminal = step[6], step[7]
  if outcome == ACCOUNT then
    bump(ACCOUNT_SIGNALS, 1)
  end
  if record[R_WOULD_BE] == 0 then
    for i = 10, #step, 2 do
      local estimate = 0
      for j = R_COSTS, #record, 2 do
        if record[j] == step[i] then
          estimate = record[j + 1]
          break
        end
      end
      local more = step[i + 1] - estimate
      local at = unit_at(n, step[i])
      if more < 0 then
        refund(step[i], -more)
      elseif at then
        bump(OVERUSE, charge(ledger.units[(at - N_UNITS) / UNIT_NUMBERS + 1], n, at + 1, more))
      end
    end
  end
  local succeeded = record[R_EARN] == 1 and outcome == SUCCESS
  local earned = succeeded and step[4] == 0
  if operation then
    operation[O_OPEN] = max(0, operation[O_OPEN] - 1)
    operation[O_LAST] = outcome
    if operation[O_TERMINAL] == 0 and terminal ~= 0 then
      operation[O_TERMINAL] = terminal
      operation[O_HAS_REF], operation[O_REF] = step[8], step[9]
      operation[O_KEEP] = max(operation[O_KEEP], now + n[N_RETENTION])
    end
    earned = succeeded and operation[O_EARNED] == 0
    if succeeded then
      operation[O_EARNED] = 1
    end
  end
  if earned then
    bump(DEPOSITED, deposit(ledger.retry, n, N_RETRY, n[N_DEPOSIT]))
  end
end

local function release(step)
  local id, key, not_sent = step[2], step[3], step[5]
  local record = records[id]
  local closed = not_open(record)
  if closed then
    put(3, closed)
    return
  end
  if record[R_OPERATION] ~= step[4] then
    put(5, 3, 0)
    return
  end
  local keep = not_sent == 0 and step[6] == ABANDONED
  if record[R_PERMIT] == 1 and not keep then
    ledger.in_flight = ledger.in_flight - 1
    drop_permit(id)
  end
  records[id] = { CLOSED, 0, keep and record[R_PERMIT] or 0 }
  dirty[id] = true
  local operation = key ~= 0 and operations[key]
  if operation then
    operations_dirty[key] = true
  end
  if not_sent == 1 then
    hand_back(record, operation)
  else
    settle(record, step, operation)
  end
  put(3, 1)
end

local function extend(step)
  local id = step[2]
  local record = records[id]
  local closed = not_open(record)
  if closed then
    put(4, closed, -1)
    return
  end
  local expires = max(now + step[3], record[R_EXPIRES])
  if expires > record[R_EXPIRES] then
    local where = place[id]
    record[R_EXPIRES] = expires
    dirty[id] = true
    if where == QUEUE or expires > ledger.ends[where] then
      if where ~= QUEUE then
        if record[R_PERMIT] == 1 then
          drop_permit(id)
        end
        ledger.queued = ledger.queued + 1
        ledger.queue_permits = ledger.queue_permits + record[R_PERMIT]
        moved[id] = where
        place[id] = QUEUE
      end
      dues[id] = expires
      ledger.queue_until = max(ledger.queue_until, expires)
    end
  end
  put(4, 1, expires - now)
end

for i = 1, #steps do
  local kind = steps[i][1]
  if kind == 1 then
    reserve(steps[i])
  elseif kind == 2 then
    release(steps[i])
  else
    extend(steps[i])
  end
end

-- Write.
for g = 1, 2 do
  if ended_generation[g] then
    call('UNLINK', KEYS[g + 1])
  end
end
local writes, removed = { {}, {}, {} }, { {}, {}, {} }
for id in pairs(dirty) do
  local list = writes[place[id]]
  list[#list + 1] = id
  list[#list + 1] = pack(unpack(records[id]))
end
for id, where in pairs(moved) do
  local list = removed[where]
  list[#list + 1] = id
end
local scores, gone = {}, {}
for id, due in pairs(dues) do
  if due then
    scores[#scores + 1] = due
    scores[#scores + 1] = id
  else
    gone[#gone + 1] = id
    removed[QUEUE][#removed[QUEUE] + 1] = id
  end
end
for where = 1, QUEUE do
  local key = KEYS[where + 1]
  if #removed[where] > 0 then
    call('HDEL', key, unpack(removed[where]))
  end
  if #writes[where] > 0 then
    call('HSET', key, unpack(writes[where]))
    if where ~= QUEUE then
      call('PEXPIRE', key, ledger.ends[where] - now + PEXPIRE_SLACK_MS)
    end
  end
end
if #gone > 0 then
  call('ZREM', KEYS[5], unpack(gone))
end
if #scores > 0 then
  call('ZADD', KEYS[5], unpack(scores))
  local left = max(1, ledger.queue_until - now) + ttl + PEXPIRE_SLACK_MS
  call('PEXPIRE', KEYS[4], left)
  call('PEXPIRE', KEYS[5], left)
end
for key in pairs(operations_dirty) do
  local operation = operations[key]
  call('SET', KEYS[key], pack(unpack(operation)), 'PX', max(1, operation[O_KEEP] - now))
end

local function relative(due)
  return due > now and due - now or 0
end
local fields = {
  's', pack(ledger.clock, ledger.clock - now, ledger.admission[1], ledger.admission[2], ledger.retry[1],
    ledger.retry[2], ledger.in_flight, relative(ledger.ends[1]), ledger.permits[1], relative(ledger.ends[2]),
    ledger.permits[2], ledger.newer, ledger.queued, ledger.queue_permits, relative(ledger.queue_until)),
  'c', pack(unpack(counters)),
}
local units = {}
for i = 1, #ledger.units do
  local bucket = ledger.units[i]
  units[#units + 1], units[#units + 2], units[#units + 3] = bucket.id, bucket[1], bucket[2]
end
if #units > 0 then
  fields[5], fields[6] = 'u', pack(unpack(units))
elseif adopted then
  fields[5], fields[6] = 'u', ''
end
if adopted then
  local blob = ARGV[5]
  local chunks = floor((#blob + CHUNK - 1) / CHUNK)
  for i = 1, chunks do
    fields[#fields + 1] = 'n' .. i
    fields[#fields + 1] = string.sub(blob, (i - 1) * CHUNK + 1, i * CHUNK)
  end
  fields[#fields + 1] = 'v'
  fields[#fields + 1] = pack(ledger.number, ledger.id, chunks)
  if ledger.chunks > chunks then
    local old = {}
    for i = chunks + 1, ledger.chunks do
      old[#old + 1] = 'n' .. i
    end
    call('HDEL', KEYS[1], unpack(old))
  end
end
call('HSET', KEYS[1], unpack(fields))
if n[N_IDLE_TTL] > 0 then
  call('PEXPIRE', KEYS[1], n[N_IDLE_TTL])
elseif adopted then
  call('PERSIST', KEYS[1])
end
return out
