-- Applies a batch of steps to one ledger that does not lend, in order, each all or nothing. Decides in variables, writes at
-- the end. Put after release.lua.

-- What all ledgers of a call have in common: the version of the policies that the numbers come from; 1 to decide even if the
-- ledger has a newer version, with the ledger's numbers; the format to write; and the time.
local version_number, version_id, force, named_format, clock

-- Newer numbers of the call are adopted, older ones are stale, or where the call is forced the ledger's are taken. Returns the
-- status of the reply.
local function settle_version(given)
  if version_number < l[L_NUMBER] or (version_number == l[L_NUMBER] and version_id < l[L_ID]) then
    return force == 1 and STATUS_FORCED or STATUS_STALE
  elseif version_number ~= l[L_NUMBER] or version_id ~= l[L_ID] then
    -- Balances are clipped, nothing is refilled.
    n, packed_numbers = unpack_numbers(given, 1), given
    fit()
    l[L_NUMBER], l[L_ID] = version_number, version_id
  end
  return STATUS_DECIDED
end

-- How a reply begins.
local function begin_reply(status)
  output = { status }
  if status == STATUS_FORCED then
    output = { status, l[L_NUMBER], l[L_ID], n[N_SHADOW], default_ttl, n[N_MAX_ATTEMPTS] }
  end
end

local function store_ledger(key, format)
  if n[N_IDLE_TTL] > 0 then
    redis.call('SET', key, pack_ledger(format), 'PX', n[N_IDLE_TTL])
  else
    redis.call('SET', key, pack_ledger(format))
  end
end

-- Decides the steps of one ledger. stored: it, or false; given: the numbers of the call. Its other keys stand behind keys_at,
-- count_of_operations of them of operations. Returns the reply.
local function apply(key, stored, given, count_of_operations)
  -- Absent, or no text: then this says so.
  read_ledger(stored or redis.call('GET', key), given, version_number, version_id)
  local status, created = STATUS_DECIDED, not l
  begins_nothing = created
  if created then
    new_ledger(given, version_number, version_id, clock)
  else
    if l[L_PARTS] % 2 == PART_LENDS then
      -- It lends, or did so a moment ago.
      return { STATUS_LENDS }
    end
    advance(clock)
    status = settle_version(given)
    if status == STATUS_STALE then
      return { status, l[L_NUMBER], l[L_ID] }
    end
  end
  begin_reservations()
  drop_ended()
  look_up_reservations()
  look_up_operations(count_of_operations)
  begin_reply(status)
  decide_steps()
  if begins_nothing then
    return output
  end
  if created and redis.call('EXISTS', KEYS[keys_at + 1], KEYS[keys_at + 2], KEYS[keys_at + 3], KEYS[keys_at + 4]) > 0 then
    -- Records that have outlived their ledger (it was evicted, or deleted) count nowhere: none may be released. Looked
    -- for first: a script whose first write frees memory is not stopped when there is none left.
    unlink_reservations()
  end
  local format = format_to_write(named_format)
  write_reservations(format)
  write_operations(format)
  store_ledger(key, format)
  return output
end
