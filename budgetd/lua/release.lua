-- Release, which hands back what was not sent and settles what was, and Extend: the mirror of budget/src/ledger/release.rs
-- and of Ledger::extend. Late, double and unknown ones change nothing. Put after reserve.lua.

local decide_steps
do
  -- Hands back all that a reservation has taken.
  local function hand_back(record, costs_at, admission, deposited, retry_cost)
    l[L_NOT_SENT] = l[L_NOT_SENT] + 1
    if admission == 1 and n[N_LIMITED] == 1 then
      deposit(l, L_ADMISSION, n, N_ADMISSION, TOKEN)
    end
    for from = costs_at, #record, COST_BYTES do
      local unit, amount = struct.unpack(COST_FORMAT, record, from)
      local at, i = find_unit(unit)
      if at then
        deposit(l, at, n, i, amount)
      end
    end
    deposit(l, L_RETRY, n, N_RETRY, retry_cost)
    -- What was earned and is already spent becomes a debt that later deposits pay.
    charge(l, L_RETRY, n, N_RETRY, deposited)
  end

  -- Settles actual costs against the estimates of the record.
  local function settle(record, costs_at, costs)
    for i = 1, #costs, 2 do
      local more = costs[i + 1]
      for from = costs_at, #record, COST_BYTES do
        local unit, estimate = struct.unpack(COST_FORMAT, record, from)
        if unit == costs[i] then
          more = more - estimate
        end
      end
      local at, i_n = find_unit(costs[i])
      if at and more < 0 then
        deposit(l, at, n, i_n, -more)
      elseif at then
        bump(L_OVERUSE, charge(l, at, n, i_n, more))
      end
    end
  end

  -- The outcome of an attempt that was sent. key: of its operation, 0 for none; operation: nil if it is gone.
  local function report_outcome(outcome, earn, key, operation, terminal, has_ref, ref)
    if outcome == OUTCOME_ACCOUNT then
      l[L_ACCOUNT_SIGNALS] = l[L_ACCOUNT_SIGNALS] + 1
    end
    local succeeded = earn == 1 and outcome == OUTCOME_SUCCESS
    local earned = succeeded and key == 0
    if operation then
      earned = report_attempt(operation, outcome, terminal, has_ref, ref, succeeded)
    end
    if earned then
      bump(L_DEPOSITED, deposit(l, L_RETRY, n, N_RETRY, n[N_DEPOSIT]))
    end
  end

  local function release(i, id, p)
    local not_sent, outcome, terminal, key, count_of_costs
    not_sent, outcome, terminal, key, count_of_costs, p = struct.unpack(RELEASE_FORMAT, packed_steps, p)
    local hash, has_ref, ref, costs = 0, 0, '', nil
    if key ~= 0 then
      hash, has_ref, ref, p = struct.unpack(RELEASE_OPERATION_FORMAT, packed_steps, p)
    end
    if count_of_costs > 0 then
      costs, p = read_costs(p, count_of_costs)
    end
    local record, place = find(i, id)
    if not record then
      output[#output + 1] = ANSWER_RELEASED_UNKNOWN
      return p
    elseif #record == 1 then
      output[#output + 1] = record == EXPIRED and ANSWER_RELEASED_LATE or ANSWER_RELEASED_BEFORE
      return p
    end
    local _, _, expires, permit, admission, deposited, retry_cost, earn, would_be, number =
      struct.unpack(RECORD_FORMAT, record)
    if expires <= ledger_now then
      output[#output + 1] = ANSWER_RELEASED_LATE
      return p
    end
    local _, of, costs_at = read_details(record)
    if of ~= hash then
      output[#output + 1] = ANSWER_OPERATION_MISMATCH
      return p
    end
    local keeps_permit = not_sent == 0 and outcome == OUTCOME_ABANDONED
    if permit == 1 and not keeps_permit then
      l[L_IN_FLIGHT] = l[L_IN_FLIGHT] - 1
      add_permits(place, -1)
    end
    write_later(place, id, permit == 1 and keeps_permit and CLOSED_WITH_PERMIT or CLOSED)
    local operation = end_attempt(key)
    if not_sent == 1 then
      hand_back(record, costs_at, admission, deposited, retry_cost)
      if operation and operation[O_USED] == number then
        operation[O_USED] = number - 1
      end
    else
      if costs and would_be == 0 then
        settle(record, costs_at, costs)
      end
      report_outcome(outcome, earn, key, operation, terminal, has_ref, ref)
    end
    output[#output + 1] = ANSWER_APPLIED
    return p
  end

  local function extend(i, id, p)
    local permit_ttl
    permit_ttl, p = struct.unpack(EXTEND_FORMAT, packed_steps, p)
    local record, place = find(i, id)
    if not record then
      output[#output + 1] = ANSWER_EXTENDED_UNKNOWN
      return p
    elseif #record == 1 then
      output[#output + 1] = record == EXPIRED and ANSWER_EXTENDED_LATE or ANSWER_EXTENDED_RELEASED
      return p
    end
    local format, parts, expires, permit, admission, deposited, retry_cost, earn, would_be, number, cause, at =
      struct.unpack(RECORD_FORMAT, record)
    if expires <= ledger_now then
      output[#output + 1] = ANSWER_EXTENDED_LATE
      return p
    end
    if ledger_now + permit_ttl > expires then
      expires = ledger_now + permit_ttl
      record = struct.pack(RECORD_FORMAT, format, parts, expires, permit, admission, deposited, retry_cost, earn, would_be,
        number, cause) .. string.sub(record, at)
      extend_to(place, id, record, expires, permit)
    end
    output[#output + 1] = ANSWER_EXTENDED
    output[#output + 1] = expires - ledger_now
    return p
  end

  -- Decides all steps of a call in order.
  function decide_steps()
    local p = 1
    for i = 1, #ids do
      local kind = string.byte(packed_steps, p)
      if kind == STEP_RESERVE then
        p = reserve(i, ids[i], p + 1)
      elseif kind == STEP_RELEASE then
        p = release(i, ids[i], p + 1)
      else
        p = extend(i, ids[i], p + 1)
      end
    end
  end
end
