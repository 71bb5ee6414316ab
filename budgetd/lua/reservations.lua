-- The reservations of the ledger at hand, read once for all steps of a call and written once: the mirror of
-- budget/src/ledger/reservations.rs. Put after ledger.lua.
--
-- Those that expire within a permit life stand in two generations, hashes of id and record that end as a whole. What fits in
-- neither is queued: a hash, and a sorted set of ids by the time they are due.

local QUEUE <const> = 3
local PEXPIRE_SLACK_MS <const> = 60000
-- The compact encoding of a small hash is searched from end to end; a larger one leaves it by holding a long value.
local COMPACT_MAX <const> = 48
local LONG_VALUE_BYTES <const> = 65
local SIZE_MAX <const> = 255

-- Keys of the ledger at hand: the generation's stand in KEYS behind this place, then the queue's hash and its sorted set, then
-- operations. The present time, and the default life of permits.
local keys_at, ledger_now, default_ttl
-- The reservation ids of the call's steps, and what was found of them in each place, in the same order.
local ids, found_in = nil, {}
-- What to write: alternating ids and records for each place; ids that left a generation; for the queue's ids their due times,
-- or false for what leaves it; keys of generations that ended; and what became of the queue's head, by id.
local writes, left_generation, dues, ended, overdue

local function begin_reservations()
  ledger_now, default_ttl = l[L_NOW], n[N_PERMIT_TTL]
  writes, left_generation, dues, ended, overdue = {}, nil, nil, nil, nil
end

local function newest_record(stored)
  return format_of(stored, 'reservation') == 1 and record_from_1(stored) or stored
end

-- Ends permits of the queue whose time is over, a bounded number of them.
local function expire_queued()
  local heads = redis.call('ZRANGEBYSCORE', KEYS[keys_at + 4], '-inf', ledger_now, 'LIMIT', 0, QUEUE_PER_CALL_MAX)
  local expired = 0
  overdue, dues = {}, {}
  if #heads == 0 and l[L_QUEUE_UNTIL] <= ledger_now then
    -- The queue's keys are gone (evicted): its permits have ended.
    expired = l[L_QUEUE_PERMITS]
    l[L_QUEUED] = 0
  elseif #heads > 0 then
    local found, list = redis.call('HMGET', KEYS[keys_at + 3], unpack(heads)), {}
    for i = 1, #heads do
      local id, record = heads[i], found[i]
      local open, permit = record and #record > 1, record == CLOSED_WITH_PERMIT
      if open then
        if #record < RECORD_1_BYTES then
          corrupt('reservation')
        end
        local _, _, _, holds = struct.unpack(RECORD_FORMAT, newest_record(record))
        permit = holds == 1
      end
      if permit then
        expired = expired + 1
      end
      if permit or open then
        -- Remembered for another permit life, so that a late release learns of it.
        overdue[id] = open and EXPIRED or CLOSED
        list[#list + 1], list[#list + 2] = id, overdue[id]
        dues[id] = ledger_now + default_ttl
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
  bump(L_PERMITS_EXPIRED, expired)
end

-- Drops what ended.
local function drop_ended()
  for g = 1, 2 do
    local ends = l[L_END + 2 * g]
    if ends ~= 0 and ends <= ledger_now then
      l[L_IN_FLIGHT] = l[L_IN_FLIGHT] - l[L_PERMITS + 2 * g]
      bump(L_PERMITS_EXPIRED, l[L_PERMITS + 2 * g])
      l[L_END + 2 * g], l[L_PERMITS + 2 * g], l[L_SIZE + g] = 0, 0, 0
      ended = ended or {}
      ended[#ended + 1] = KEYS[keys_at + g]
    end
  end
  if l[L_QUEUED] > 0 then
    expire_queued()
  end
  if l[L_END + 2] == 0 and l[L_END + 4] == 0 and l[L_QUEUED] == 0 then
    l[L_NEWER] = 1
  end
end

-- Looks up all reservations of the steps in each place that has any.
local function look_up_reservations()
  -- Behind the ids is asked for the marker of a generation, '': where it is missing, the key is new or was evicted.
  ids[#ids + 1] = ''
  for place = 1, 3 do
    local any = place == QUEUE and l[L_QUEUED] > 0 or place ~= QUEUE and l[L_END + 2 * place] ~= 0
    found_in[place] = any and redis.call('HMGET', KEYS[keys_at + place], unpack(ids))
  end
  ids[#ids] = nil
end

-- The reservation of step i: false if there is none, and where it stands.
local function find(i, id)
  if overdue and overdue[id] ~= nil then
    return overdue[id], QUEUE
  end
  for place = 1, 3 do
    local record = found_in[place] and found_in[place][i]
    if record then
      return #record > 1 and newest_record(record) or record, place
    end
  end
  return false, nil
end

-- Of an open reservation that may belong to an operation or start later: start, the operation's hash, and where its costs
-- stand. Other parts are room, which is carried along.
local function read_details(record)
  local parts, start, operation, at = string.byte(record, 2), 0, 0, RECORD_BYTES + 1
  if parts % (2 * PART_DETAIL) >= PART_DETAIL then
    local _
    start, operation, _, at = struct.unpack(DETAIL_FORMAT, record, at)
  end
  if parts % (2 * RECORD_DIGEST) >= RECORD_DIGEST then
    at = at + RECORD_DIGEST_BYTES
  end
  if parts % (2 * RECORD_SLICES) >= RECORD_SLICES then
    at = at + RECORD_SLICES_BYTES
  end
  return start, operation, at
end

local function write_later(place, id, record)
  local list = writes[place]
  if list then
    local size = #list
    list[size + 1], list[size + 2] = id, record
  else
    writes[place] = { id, record }
  end
end

-- Changes the number of permits that stand in a place.
local function add_permits(place, change)
  if place == QUEUE then
    l[L_QUEUE_PERMITS] = l[L_QUEUE_PERMITS] + change
  else
    l[L_PERMITS + 2 * place] = l[L_PERMITS + 2 * place] + change
  end
end

-- Remembers a new reservation where its expiry fits.
local function remember(id, record, expires, permit)
  -- A generation made under a longer permit life would return slots too late.
  local newer = l[L_NEWER]
  local older, last = 3 - newer, ledger_now + default_ttl * 2
  local newer_ends, older_ends = l[L_END + 2 * newer], l[L_END + 2 * older]
  local place
  if expires <= newer_ends and newer_ends <= last then
    place = newer
  elseif expires <= older_ends and older_ends <= last then
    place = older
  elseif expires <= last and (older_ends == 0 or newer_ends == 0) then
    place = older_ends == 0 and older or newer
    l[L_NEWER], l[L_END + 2 * place] = place, last
  else
    place = QUEUE
    dues = dues or {}
    dues[id] = expires
    l[L_QUEUED] = l[L_QUEUED] + 1
  end
  add_permits(place, permit)
  write_later(place, id, record)
end

-- Writes a reservation anew whose expiry has moved to a later time.
local function extend_to(place, id, record, expires, permit)
  if place == QUEUE or expires > l[L_END + 2 * place] then
    if place ~= QUEUE then
      add_permits(place, -permit)
      add_permits(QUEUE, permit)
      l[L_QUEUED] = l[L_QUEUED] + 1
      left_generation = left_generation or { {}, {} }
      local left = left_generation[place]
      left[#left + 1] = id
    end
    dues = dues or {}
    dues[id] = expires
    place = QUEUE
  end
  write_later(place, id, record)
end

local function write_dues()
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
    redis.call('ZREM', KEYS[keys_at + 4], unpack(gone))
    redis.call('HDEL', KEYS[keys_at + 3], unpack(gone))
  end
  if #scores > 0 then
    redis.call('ZADD', KEYS[keys_at + 4], unpack(scores))
    redis.call('PEXPIRE', KEYS[keys_at + 4], l[L_QUEUE_UNTIL] - ledger_now + default_ttl + PEXPIRE_SLACK_MS)
  end
end

-- Writes the records of one place.
local function write_place(place, list, format)
  local key = KEYS[keys_at + place]
  if format == 1 then
    for i = 2, #list, 2 do
      list[i] = #list[i] > 1 and record_to_1(list[i]) or list[i]
    end
  end
  local added = #list > 0 and redis.call('HSET', key, unpack(list)) or 0
  if place == QUEUE then
    redis.call('PEXPIRE', key, math.max(0, l[L_QUEUE_UNTIL] - ledger_now) + default_ttl + PEXPIRE_SLACK_MS)
  elseif added > 0 then
    local found = found_in[place]
    local marked, size = found and found[#ids + 1], l[L_SIZE + place]
    l[L_SIZE + place] = math.min(size + added, SIZE_MAX)
    if not marked or (size <= COMPACT_MAX and size + added > COMPACT_MAX) then
      redis.call('HSET', key, '', string.rep('0', size + added > COMPACT_MAX and LONG_VALUE_BYTES or 0))
    end
    if not marked then
      -- Its end stands, so this holds for its whole life.
      redis.call('PEXPIRE', key, l[L_END + 2 * place] - ledger_now + PEXPIRE_SLACK_MS)
    end
  end
end

local function unlink_reservations()
  redis.call('UNLINK', KEYS[keys_at + 1], KEYS[keys_at + 2], KEYS[keys_at + 3], KEYS[keys_at + 4])
end

local function write_reservations(format)
  if ended then
    redis.call('UNLINK', unpack(ended))
  end
  if dues then
    write_dues()
  end
  for place, list in pairs(writes) do
    write_place(place, list, format)
  end
  for g = 1, 2 do
    local left = left_generation and left_generation[g]
    if left and #left > 0 then
      redis.call('HDEL', KEYS[keys_at + g], unpack(left))
    end
  end
end
