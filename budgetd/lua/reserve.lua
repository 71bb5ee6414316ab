-- Reserve, all or nothing: the mirror of budget/src/ledger/reserve.rs, same checks in the same order. Put after
-- operations.lua.

-- The steps of a call, packed one behind the other, and the answers to them so far; layout/constants.rs says what they mean.
local packed_steps, output
-- Nothing is decided yet: state was lost a moment ago. And there was no ledger, and no step so far begins one: a release or an
-- extension that finds none makes none.
local away, begins_nothing

local read_costs, reserve
do
  -- Unit and amount of each cost of a step, and the position behind them.
  function read_costs(p, count)
    local costs = {}
    for i = 1, 2 * count, 2 do
      costs[i], costs[i + 1], p = struct.unpack(COST_FORMAT, packed_steps, p)
    end
    return costs, p
  end

  -- Answers with five values.
  local function answer(kind, a, b, c, d)
    local at = #output
    output[at + 1], output[at + 2], output[at + 3], output[at + 4], output[at + 5] = kind, a, b, c, d
  end

  local function count_denied(cause)
    local counter = cause ~= 0 and L_RETRIES_DENIED or L_ORIGINALS_DENIED
    l[counter] = l[counter] + 1
  end

  -- Seen before: nothing is charged. hash: of the operation that the ask names.
  local function replay(record, hash)
    local expires, would_be = 0, 0
    if #record > 1 then
      local _
      _, _, expires, _, _, _, _, _, would_be = struct.unpack(RECORD_FORMAT, record)
    end
    if expires <= ledger_now then
      answer(ANSWER_DENIED, REASON_ALREADY_RELEASED, 0, -1, 0)
      return
    end
    local start, operation = read_details(record)
    if operation ~= hash then
      output[#output + 1] = ANSWER_OPERATION_MISMATCH
      return
    end
    if start < ledger_now then
      start = ledger_now
    end
    answer(ANSWER_ADMITTED, start - ledger_now, expires - start, 1, would_be)
  end

  -- Whether an ask contradicts the policy, and answers it if so. expires_in: of its operation, or -1.
  local function contradicts(costs, expires_in)
    for i = 1, costs and #costs or 0, 2 do
      if not find_unit(costs[i]) then
        local at = #output
        output[at + 1], output[at + 2] = ANSWER_UNKNOWN_UNIT, costs[i]
        return true
      end
    end
    if expires_in > n[N_RETENTION] then
      output[#output + 1] = ANSWER_EXPIRES_IN_TOO_LONG
      return true
    end
    return false
  end

  local function deny_by_operation(reason, operation, cause)
    count_denied(cause)
    if reason == REASON_CONFLICT then
      answer(ANSWER_DENIED, reason, 0, -1, 0)
      return
    end
    local at = #output
    output[at + 1], output[at + 2], output[at + 3], output[at + 4], output[at + 5], output[at + 6], output[at + 7] =
      ANSWER_DENIED_BY_OPERATION, reason, 0, 0, 0, 0, ''
    if operation then
      output[at + 3], output[at + 4], output[at + 5] = operation[O_USED], operation[O_LAST], operation[O_TERMINAL]
      output[at + 6], output[at + 7] = operation[O_HAS_REF], operation[O_REF]
    end
  end

  -- The checks in their fixed order. Returns the reason of a refusal or nil; the wait until the start, or what short() says; and
  -- the unit that is short.
  local function judge(number, cause, time_left, max_wait, priority, no_release, costs)
    if cause ~= 0 and n[N_RETRIES_OFF] == 1 then
      return REASON_RETRIES_OFF, -1, 0
    elseif time_left == 0 then
      return REASON_NO_TIME_LEFT, -1, 0
    elseif number > n[N_MAX_ATTEMPTS] then
      return REASON_ATTEMPT_LIMIT, 0, 0
    end
    local missing = cause ~= 0 and short(l, L_RETRY, n, N_RETRY, priority, n[N_RETRY_COST + cause], whole)
    if missing then
      return REASON_RETRY_BUDGET, missing, 0
    end
    if no_release == 0 and l[L_IN_FLIGHT] >= n[N_MAX_IN_FLIGHT] - n[N_KEEP_IN_FLIGHT + priority] then
      return REASON_IN_FLIGHT, -1, 0
    end
    for i = 1, costs and #costs or 0, 2 do
      if costs[i + 1] > 0 then
        local at, i_n = find_unit(costs[i])
        missing = short(l, at, n, i_n, priority, costs[i + 1], whole)
        if missing then
          return REASON_COST, missing, costs[i]
        end
      end
    end
    missing = n[N_LIMITED] == 1 and short(l, L_ADMISSION, n, N_ADMISSION, priority, TOKEN, whole)
    if not missing then
      return nil, 0, 0
    elseif missing <= 0 or missing > max_wait or missing > n[N_MAX_WAIT] then
      return REASON_ADMISSION, missing, 0
    elseif time_left >= 0 and missing >= time_left then
      return REASON_NO_TIME_LEFT, missing, 0
    end
    return nil, missing, 0
  end

  -- Takes everything. Returns what the record has of it: admission, deposited, retry cost, earn.
  local function charge_all(cause, costs)
    local admission, deposited, retry_cost = n[N_LIMITED], 0, 0
    if admission == 1 then
      l[L_ADMISSION] = l[L_ADMISSION] - TOKEN
    end
    for i = 1, costs and #costs or 0, 2 do
      local at = find_unit(costs[i])
      l[at] = l[at] - costs[i + 1]
    end
    if cause ~= 0 then
      retry_cost = n[N_RETRY_COST + cause]
      l[L_RETRY] = l[L_RETRY] - retry_cost
      l[L_RETRIES_ADMITTED] = l[L_RETRIES_ADMITTED] + 1
    else
      if n[N_EARN_ON_SUCCESS] == 0 then
        deposited = deposit(l, L_RETRY, n, N_RETRY, n[N_DEPOSIT])
        bump(L_DEPOSITED, deposited)
      end
      l[L_ORIGINALS_ADMITTED] = l[L_ORIGINALS_ADMITTED] + 1
    end
    return admission, deposited, retry_cost, n[N_EARN_ON_SUCCESS]
  end

  -- Admits, charging everything, or nothing in place of a refusal (would_be) in shadow mode.
  -- hash: of the operation, 0 for none; start: of what is booked ahead, or 0; costs: as far as they are charged.
  local function admit(id, number, cause, start, expires, no_release, hash, costs, would_be)
    local permit, admission, deposited, retry_cost, earn = 0, 0, 0, 0, 0
    if would_be == 0 then
      permit = 1 - no_release
      l[L_IN_FLIGHT] = l[L_IN_FLIGHT] + permit
      admission, deposited, retry_cost, earn = charge_all(cause, costs)
    else
      l[L_WOULD_BE_DENIED] = l[L_WOULD_BE_DENIED] + 1
    end
    if no_release == 1 then
      return
    end
    local detailed = start > 0 or hash ~= 0
    local record = struct.pack(RECORD_FORMAT, FORMAT_BYTE, detailed and PART_DETAIL or 0, expires, permit, admission, deposited,
      retry_cost, earn, would_be, number, cause)
    if detailed then
      record = record .. struct.pack(DETAIL_FORMAT, start, hash, 0)
    end
    for i = 1, costs and #costs or 0, 2 do
      record = record .. struct.pack(COST_FORMAT, costs[i], costs[i + 1])
    end
    remember(id, record, expires, permit)
  end

  -- Decides step i, of a reservation, from a position of the steps on. Returns the position behind it.
  function reserve(i, id, p)
    local number, cause, time_left, max_wait, permit_ttl, priority, no_release, key, count_of_costs
    number, cause, time_left, max_wait, permit_ttl, priority, no_release, key, count_of_costs, p =
      struct.unpack(RESERVE_FORMAT, packed_steps, p)
    local hash, expires_in, fingerprint, costs = 0, -1, nil, nil
    if key ~= 0 then
      hash, expires_in, fingerprint, p = struct.unpack(ASK_OPERATION_FORMAT, packed_steps, p)
    end
    if count_of_costs > 0 then
      costs, p = read_costs(p, count_of_costs)
    end
    begins_nothing = false
    if away then
      output[#output + 1] = ANSWER_AWAY
      return p
    end
    local record = no_release == 0 and find(i, id)
    if record then
      replay(record, hash)
      return p
    elseif contradicts(costs, expires_in) then
      return p
    end
    if key ~= 0 then
      local refused = judge_operation(operations[key], fingerprint, number)
      if refused then
        deny_by_operation(refused, operations[key], cause)
        return p
      end
    end
    local reason, wait, unit = judge(number, cause, time_left, max_wait, priority, no_release, costs)
    local would_be = 0
    if reason and n[N_SHADOW] == 1 and reason ~= REASON_RETRIES_OFF then
      would_be, wait, costs = reason, 0, nil
    elseif reason then
      count_denied(cause)
      answer(ANSWER_DENIED, reason, unit, wait == 0 and -1 or wait, wait == 0 and 1 or 0)
      return p
    end
    local plain = permit_ttl < 0 and wait == 0 and would_be == 0
    if permit_ttl < 0 then
      permit_ttl = default_ttl
    end
    local expires = ledger_now + wait + permit_ttl
    admit(id, number, cause, wait > 0 and ledger_now + wait or 0, expires, no_release, hash, costs, would_be)
    if key ~= 0 then
      admit_attempt(key, number, expires, fingerprint, expires_in)
    end
    if plain then
      output[#output + 1] = ANSWER_ADMITTED_PLAIN
    else
      answer(ANSWER_ADMITTED, wait, permit_ttl, 0, would_be)
    end
    return p
  end
end
