-- Tracked operations of the ledger at hand: the mirror of budget/src/operation.rs. Put after reservations.lua.

-- By their number in the call; false where there is none, or its time is over. And which are to be written.
local operations, operations_changed

-- Looks up all operations of the call: count keys behind those of the reservations.
local function look_up_operations(count)
  operations, operations_changed = nil, nil
  if count == 0 then
    return
  end
  operations, operations_changed = {}, {}
  local found = redis.call('MGET', unpack(KEYS, keys_at + 5, keys_at + 4 + count))
  for i = 1, count do
    local stored, operation = found[i], false
    if stored then
      if format_of(stored, 'operation') == 1 then
        stored = operation_from_1(stored)
      end
      local values = { pcall(struct.unpack, OPERATION_FORMAT, stored) }
      if not values[1] then
        corrupt('operation')
      end
      table.remove(values, 1)
      if ledger_now < values[O_KEEP] then
        operation = values
      end
    end
    operations[i] = operation
  end
end

-- The reason why an attempt of an operation is not the next one, or nil.
local function judge_operation(operation, fingerprint, number)
  if not operation then
    return number ~= 1 and REASON_OUT_OF_ORDER or nil
  elseif operation[O_FINGERPRINT] ~= fingerprint then
    return REASON_CONFLICT
  elseif operation[O_TERMINAL] == TERMINAL_OUTCOME_UNKNOWN then
    return REASON_OUTCOME_UNKNOWN
  elseif operation[O_TERMINAL] ~= 0 then
    return REASON_COMPLETED
  elseif ledger_now >= operation[O_EXPIRES] then
    return REASON_OUT_OF_ORDER
  elseif number == operation[O_USED] + 1 then
    return nil
  elseif number <= operation[O_USED] and operation[O_OPEN] > 0 and ledger_now < operation[O_OPEN_UNTIL] then
    return REASON_IN_PROGRESS
  end
  return REASON_OUT_OF_ORDER
end

-- Counts an attempt that was admitted. expires_in: of an operation that begins, -1 for the policy's retention.
local function admit_attempt(key, number, expires, fingerprint, expires_in)
  local operation = operations[key]
  if not operation then
    local until_ms = ledger_now + (expires_in >= 0 and expires_in or n[N_RETENTION])
    operation = { FORMAT_BYTE, until_ms, until_ms + n[N_RETENTION], 0, 0, 0, 0, 0, 0, 0, fingerprint, 0, '' }
    operations[key] = operation
  end
  if ledger_now >= operation[O_OPEN_UNTIL] then
    operation[O_OPEN] = 0
  end
  operation[O_USED], operation[O_OPEN] = number, operation[O_OPEN] + 1
  if expires > operation[O_OPEN_UNTIL] then
    operation[O_OPEN_UNTIL] = expires
  end
  operations_changed[key] = true
end

-- An attempt has ended; returns its operation, or nil.
local function end_attempt(key)
  local operation = key ~= 0 and operations[key]
  if not operation then
    return nil
  end
  operations_changed[key] = true
  operation[O_OPEN] = math.max(0, operation[O_OPEN] - 1)
  return operation
end

-- Takes the outcome of an attempt. Returns whether this is the operation's first success that earns.
local function report_attempt(operation, outcome, terminal, has_ref, ref, succeeded)
  operation[O_LAST] = outcome
  if operation[O_TERMINAL] == 0 and terminal ~= 0 then
    operation[O_TERMINAL], operation[O_HAS_REF], operation[O_REF] = terminal, has_ref, ref
    operation[O_KEEP] = math.max(operation[O_KEEP], ledger_now + n[N_RETENTION])
  end
  local first = succeeded and operation[O_EARNED] == 0
  if succeeded then
    operation[O_EARNED] = 1
  end
  return first
end

local function write_operations(format)
  for key in pairs(operations_changed or {}) do
    local o = operations[key]
    local packed = struct.pack(OPERATION_FORMAT, FORMAT_BYTE, o[O_EXPIRES], o[O_KEEP], o[O_USED], o[O_OPEN], o[O_OPEN_UNTIL],
      o[O_LAST], o[O_TERMINAL], o[O_EARNED], o[O_LIFE], #o[O_FINGERPRINT], o[O_FINGERPRINT], o[O_HAS_REF], #o[O_REF], o[O_REF])
    redis.call('SET', KEYS[keys_at + 4 + key], format == 1 and operation_to_1(packed) or packed, 'PX',
      math.max(0, o[O_KEEP] - ledger_now) + PEXPIRE_SLACK_MS)
  end
end
