-- What a call brings for a ledger that lends, what will be written, and opening epochs: the mirror of parts of
-- budget/src/ledger/leases.rs, same names, same order. Put after lending.lua.
--
-- KEYS, the last four: lending (string), holders (hash: holder -> record; '' -> sums of shares), due (sorted set: holder by
-- the time of the next change of its charge), proofs (set of incarnations)
-- ARGV, the last two: the policy's terms, and the ground with asks if there are any

local lending_key, holders_key, due_key, proofs_key
local ground_packed, given_terms, ground
-- 1: asks follow in the packed ground, 2: the name of a holder to be revoked; and where.
local has_ask, ask_at
-- No ledger was found, and nothing has begun one.
local absent
-- The ledger says of itself that it lends.
local leased_mark

-- The holders' records as far as they were taken apart, by name; a record that has gone is false. Which of them are to be
-- written; packed ones that were made anew without being taken apart; when charges change next, false for never; proofs.
local records, dirty, renewed, dues_of_holders, new_proofs = {}, {}, {}, {}, {}
local shares, shares_dirty, lending_wiped, lending_over, reservations_gone = nil, false, false, false, false

-- Takes off KEYS and ARGV what concerns leases, and reads how lending stands.
local function begin_call()
  ground_packed, given_terms = table.remove(ARGV), unpack_terms(table.remove(ARGV), 1)
  proofs_key, due_key, holders_key = table.remove(KEYS), table.remove(KEYS), table.remove(KEYS)
  lending_key = table.remove(KEYS)
  local identity, number, id, fresh_id, fresh_store, has_beat, boot, boot_clock
  identity, number, id, fresh_id, fresh_store, has_beat, boot, boot_clock, has_ask, ask_at =
    struct.unpack(GROUND_FORMAT, ground_packed)
  ground = {
    identity = identity, number = number, id = id, fresh_id = fresh_id, fresh_store = fresh_store, has_beat = has_beat,
    boot = boot, clock = boot_clock,
  }
  absent, leased_mark = not l, l and l[L_PARTS] % 2 == PART_LENDS
  load_lending(lending_key)
  if lending and (has_ask == 1 or has_beat == 1) then
    -- What is said of the holders must be what is there: keys may have been evicted.
    local fields = lending.holders > 0 and lending.holders + 1 or 0
    lending.torn = redis.call('HLEN', holders_key) ~= fields or redis.call('ZCARD', due_key) ~= lending.holders
      or redis.call('SCARD', proofs_key) ~= lending.proofs
  end
end

-- Sets what direct callers share to what is not charged. True if that changed: then the levels are to be clipped, and the
-- numbers n made anew.
local function set_direct(amounts)
  local before = lending.direct
  local same = before and #before == #amounts
  for i = 1, same and #amounts or 0 do
    same = same and before[i] == amounts[i]
  end
  if not same then
    lending.direct, lending_dirty = amounts, true
  end
  return not same
end

-- Opens an epoch above every one that is known. lost: with empty levels and no permits.
local function open_epoch(presented, lost)
  local t, now = lending.terms, l[L_NOW]
  -- At the end of all numbers another id is what counts as higher.
  lending.number = math.min(math.max(lending.number, ground.number, presented) + 1, EPOCH_NUMBER_MAX)
  lending.id, lending.identity, lending.lost = ground.fresh_id, ground.identity, lost
  lending.generation, lending.dead, lending.debt, lending.beats = 0, 0, 0, {}
  lending.compared, lending.replaced = now, 0
  lending.charged, lending.proved, lending.direct = ZERO, ZERO, nil
  lending.holders, lending.proofs, lending.next_due, lending.torn = 0, 0, NEVER, false
  -- What passed before it opened earns nothing in it.
  l[L_CLOCK], lending.wait, lending.quarantine = clock, now, now
  if ground.fresh_store == 0 then
    lending.wait, lending.quarantine = now + t.overlap, now + t.longest + t.margin + t.overlap
  end
  records, dirty, renewed, dues_of_holders, new_proofs = {}, {}, {}, {}, {}
  shares, shares_dirty, lending_dirty, lending_wiped = nil, false, true, true
  if lost then
    reservations_gone = true
    l[L_IN_FLIGHT], l[L_END + 2], l[L_PERMITS + 2], l[L_END + 4], l[L_PERMITS + 4] = 0, 0, 0, 0, 0
    l[L_NEWER], l[L_SIZE + 1], l[L_SIZE + 2], l[L_QUEUED], l[L_QUEUE_PERMITS], l[L_QUEUE_UNTIL] = 1, 0, 0, 0, 0, 0
    l[L_ADMISSION], l[L_ADMISSION + 1], l[L_RETRY], l[L_RETRY + 1] = 0, 0, 0, 0
    for at = L_UNITS, #l, L_UNIT do
      l[at + 1], l[at + 2] = 0, 0
    end
  end
end

-- Opens an epoch where state is missing, is another store's, or is older than what the caller remembers. own: the ledger's
-- numbers; given: those of the call, nil if the ledger has newer ones.
local function open_epoch_if_lost(own, given)
  if not lending then
    -- Numbers of the same version begin lending only where an earlier release of this program has not.
    local newer = absent or version_number ~= l[L_NUMBER] or version_id ~= l[L_ID]
    if not (given and given_terms.some and (newer or given_terms.part > 0)) then
      return
    end
    lending, whole = { number = 0, terms = given_terms }, given
    -- Nothing was ever decided here: the state is missing. Otherwise leases are permitted from now on, and direct callers
    -- keep what they have.
    local missing = leased_mark
    if not missing then
      local sum = l[L_ORIGINALS_ADMITTED] + l[L_DEPOSITED]
      for i = L_RETRIES_ADMITTED, L_WOULD_BE_DENIED do
        sum = sum + l[i]
      end
      missing = sum == 0
    end
    open_epoch(0, missing)
    return
  end
  whole = own
  if lending.identity ~= ground.identity or lending.torn or not leased_mark
    or (ground.number > 0 and (ground.number > lending.number
      or (ground.number == lending.number and ground.id ~= lending.id))) then
    open_epoch(0, true)
  else
    n = within(lending.direct)
  end
end
